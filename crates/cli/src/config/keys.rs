//! The settings there are.

use std::path::PathBuf;

use clap::ValueEnum;
use rules::{AppendOutput, ExtraField, Priority, RuleMatching};

use super::Config;
use super::tree::{Entry, Node, Problem, Value};
use crate::recording::CaptureMode;

/// One setting.
pub(super) struct Key {
    /// Its path; as in Falco's configuration.
    pub(super) path: &'static str,
    kind: Kind,
}

/// What a setting takes, and where that is kept.
enum Kind {
    Boolean(fn(&mut Config) -> &mut bool),
    Integer(fn(&mut Config) -> &mut u64),
    Number(fn(&mut Config) -> &mut f64),
    Text(fn(&mut Config) -> &mut String),
    File(fn(&mut Config) -> &mut PathBuf),
    /// What needs more than to be read.
    Other(fn(&mut Config, &Node) -> Result<(), Problem>),
}

impl Key {
    const fn new(path: &'static str, kind: Kind) -> Self {
        Self { path, kind }
    }

    /// Puts a value into the configuration.
    pub(super) fn set(&self, config: &mut Config, node: &Node) -> Result<(), Problem> {
        match self.kind {
            Kind::Boolean(place) => *place(config) = node.boolean()?,
            Kind::Integer(place) => *place(config) = node.integer()?,
            Kind::Number(place) => *place(config) = node.number()?,
            Kind::Text(place) => node.text()?.clone_into(place(config)),
            Kind::File(place) => *place(config) = PathBuf::from(node.text()?),
            Kind::Other(set) => set(config, node)?,
        }
        Ok(())
    }
}

/// All settings that have an effect. Names and meanings are Falco's; `io_uring` and `verify` are not
/// in Falco.
pub(super) const KEYS: &[Key] = &[
    Key::new("append_output", Kind::Other(append_output)),
    Key::new(
        "buffered_outputs",
        Kind::Boolean(|config| &mut config.buffered_outputs),
    ),
    Key::new(
        "capture.default_duration",
        Kind::Integer(|config| &mut config.capture.default_duration_ms),
    ),
    Key::new(
        "capture.enabled",
        Kind::Boolean(|config| &mut config.capture.enabled),
    ),
    Key::new("capture.mode", Kind::Other(capture_mode)),
    Key::new(
        "capture.path_prefix",
        Kind::Text(|config| &mut config.capture.path_prefix),
    ),
    Key::new(
        "file_output.enabled",
        Kind::Boolean(|config| &mut config.file_output.enabled),
    ),
    Key::new(
        "file_output.filename",
        Kind::File(|config| &mut config.file_output.filename),
    ),
    Key::new(
        "file_output.keep_alive",
        Kind::Boolean(|config| &mut config.file_output.keep_alive),
    ),
    Key::new(
        "http_output.ca_bundle",
        Kind::File(|config| &mut config.http_output.ca_bundle),
    ),
    Key::new(
        "http_output.ca_cert",
        Kind::File(|config| &mut config.http_output.ca_cert),
    ),
    Key::new(
        "http_output.ca_path",
        Kind::File(|config| &mut config.http_output.ca_path),
    ),
    Key::new(
        "http_output.client_cert",
        Kind::File(|config| &mut config.http_output.client_cert),
    ),
    Key::new(
        "http_output.client_key",
        Kind::File(|config| &mut config.http_output.client_key),
    ),
    Key::new(
        "http_output.compress_uploads",
        Kind::Boolean(|config| &mut config.http_output.compress_uploads),
    ),
    Key::new(
        "http_output.echo",
        Kind::Boolean(|config| &mut config.http_output.echo),
    ),
    Key::new(
        "http_output.enabled",
        Kind::Boolean(|config| &mut config.http_output.enabled),
    ),
    Key::new(
        "http_output.insecure",
        Kind::Boolean(|config| &mut config.http_output.insecure),
    ),
    Key::new(
        "http_output.keep_alive",
        Kind::Boolean(|config| &mut config.http_output.keep_alive),
    ),
    Key::new(
        "http_output.max_consecutive_timeouts",
        Kind::Other(max_consecutive_timeouts),
    ),
    Key::new(
        "http_output.mtls",
        Kind::Boolean(|config| &mut config.http_output.mtls),
    ),
    Key::new(
        "http_output.url",
        Kind::Text(|config| &mut config.http_output.url),
    ),
    Key::new(
        "http_output.user_agent",
        Kind::Text(|config| &mut config.http_output.user_agent),
    ),
    Key::new(
        "io_uring",
        Kind::Other(|config, node| choice(node).map(|value| config.io_uring = value)),
    ),
    Key::new(
        "json_include_message_property",
        Kind::Boolean(|config| &mut config.json_parts.message),
    ),
    Key::new(
        "json_include_output_fields_property",
        Kind::Boolean(|config| &mut config.json_parts.output_fields),
    ),
    Key::new(
        "json_include_output_property",
        Kind::Boolean(|config| &mut config.json_parts.output),
    ),
    Key::new(
        "json_include_tags_property",
        Kind::Boolean(|config| &mut config.json_parts.tags),
    ),
    Key::new(
        "json_output",
        Kind::Boolean(|config| &mut config.json_output),
    ),
    Key::new(
        "output_timeout",
        Kind::Integer(|config| &mut config.output_timeout_ms),
    ),
    Key::new("outputs.max_burst", Kind::Other(max_burst)),
    Key::new(
        "outputs.rate",
        Kind::Number(|config| &mut config.throttle.per_second),
    ),
    Key::new("outputs_queue.capacity", Kind::Other(queue_capacity)),
    Key::new("priority", Kind::Other(priority)),
    Key::new(
        "program_output.enabled",
        Kind::Boolean(|config| &mut config.program_output.enabled),
    ),
    Key::new(
        "program_output.keep_alive",
        Kind::Boolean(|config| &mut config.program_output.keep_alive),
    ),
    Key::new(
        "program_output.program",
        Kind::Text(|config| &mut config.program_output.program),
    ),
    Key::new("rule_matching", Kind::Other(rule_matching)),
    Key::new("rules_files", Kind::Other(rules_files)),
    Key::new(
        "stdout_output.enabled",
        Kind::Boolean(|config| &mut config.stdout_enabled),
    ),
    Key::new(
        "syslog_output.enabled",
        Kind::Boolean(|config| &mut config.syslog_enabled),
    ),
    Key::new(
        "time_format_iso_8601",
        Kind::Boolean(|config| &mut config.time_format_iso_8601),
    ),
    Key::new(
        "verify",
        Kind::Other(|config, node| choice(node).map(|value| config.verify = value)),
    ),
];

/// Settings of Falco's that have no effect here, so that its configuration file can be used, and
/// what to know about them. A group stands for all below it.
pub(super) const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "base_syscalls",
        "calls are chosen from the rules; see `tollgate rules explain`",
    ),
    ("buffer_format_base64", "buffers are printed as text"),
    ("config_files", "name each file with -c"),
    ("engine", "choose the engine with --engine"),
    ("falco_libs", "process state is looked up when needed"),
    ("grpc", "the gRPC output is not in this release"),
    ("grpc_output", "the gRPC output is not in this release"),
    ("libs_logger", "there is no such log"),
    ("load_plugins", "plugins are not in this release"),
    ("log_level", "messages go to the standard error"),
    ("log_stderr", "messages go to the standard error"),
    ("log_syslog", "messages go to the standard error"),
    ("metrics", "write counters with -s FILE"),
    ("plugins", "plugins are not in this release"),
    ("plugins_hostinfo", "plugins are not in this release"),
    (
        "rules",
        "disable a rule with `enabled: false` in a rule file",
    ),
    ("static_fields", "static fields are not in this release"),
    (
        "syscall_event_drops",
        "the notify engine cannot drop events",
    ),
    (
        "syscall_event_timeouts",
        "the notify engine has no such timeout",
    ),
    ("watch_config_files", "the configuration is read once"),
    ("webserver", "the web server is not in this release"),
];

fn max_consecutive_timeouts(config: &mut Config, node: &Node) -> Result<(), Problem> {
    // Falco keeps it in one byte.
    config.http_output.max_consecutive_timeouts = u8::try_from(node.integer()?)
        .map_err(|error| Problem::new(&node.origin, format!("too large: {error}")))?;
    Ok(())
}

fn max_burst(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.throttle.max_burst = u32::try_from(node.integer()?)
        .map_err(|error| Problem::new(&node.origin, format!("too large: {error}")))?;
    Ok(())
}

/// 0 is Falco's word for "as large as it gets"; a queue here always has a bound.
fn queue_capacity(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let alerts = usize::try_from(node.integer()?)
        .map_err(|error| Problem::new(&node.origin, format!("too large: {error}")))?;
    config.queue_capacity = (alerts > 0).then_some(alerts);
    Ok(())
}

fn priority(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let text = node.text()?;
    config.priority = Priority::parse(text).ok_or_else(|| {
        Problem::new(&node.origin, format!("`{text}` is no priority"))
            .help("one of emergency, alert, critical, error, warning, notice, informational, debug")
    })?;
    Ok(())
}

fn rule_matching(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.rule_matching = match node.text()? {
        "first" => RuleMatching::First,
        "all" => RuleMatching::All,
        other => {
            let message = format!("expected first or all, found `{other}`");
            return Err(Problem::new(&node.origin, message));
        }
    };
    Ok(())
}

fn capture_mode(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.capture.mode = match node.text()? {
        "rules" => CaptureMode::Rules,
        "all_rules" => CaptureMode::AllRules,
        other => {
            let message = format!("expected rules or all_rules, found `{other}`");
            return Err(Problem::new(&node.origin, message));
        }
    };
    Ok(())
}

/// One of the words that the option of the same name takes.
fn choice<T: ValueEnum>(node: &Node) -> Result<T, Problem> {
    let word = node.text()?;
    T::from_str(word, false).map_err(|_unknown| {
        let words = T::value_variants().iter();
        let words: Vec<_> = words
            .filter_map(|variant| Some(variant.to_possible_value()?.get_name().to_owned()))
            .collect();
        let message = format!("expected {}, found `{word}`", words.join(" or "));
        Problem::new(&node.origin, message)
    })
}

fn rules_files(config: &mut Config, node: &Node) -> Result<(), Problem> {
    let files = node
        .list()?
        .iter()
        .map(|item| item.text().map(PathBuf::from));
    config.rules_files = files.collect::<Result<_, _>>()?;
    Ok(())
}

fn append_output(config: &mut Config, node: &Node) -> Result<(), Problem> {
    config.append_output = node
        .list()?
        .iter()
        .map(append_entry)
        .collect::<Result<_, _>>()?;
    // What is left of an entry that only plugins would use.
    config
        .append_output
        .retain(|entry| *entry != AppendOutput::default());
    Ok(())
}

/// Where a list of `append_output` asks for what only plugins have: outputs that they suggest.
pub(super) fn suggested_outputs(list: &Node) -> Vec<&Entry> {
    let entries = list.list().unwrap_or_default().iter();
    let settings = entries.flat_map(|entry| group(entry).unwrap_or_default());
    let asks = |entry: &&Entry| entry.node.boolean() == Ok(true);
    let suggested = settings.filter(|entry| entry.key == "suggested_output");
    suggested.filter(asks).collect()
}

fn append_entry(node: &Node) -> Result<AppendOutput, Problem> {
    let mut append = AppendOutput::default();
    for entry in group(node)? {
        match entry.key.as_str() {
            "extra_fields" => {
                let fields = entry.node.list()?.iter().map(extra_field);
                append.extra_fields = fields.collect::<Result<_, _>>()?;
            }
            "extra_output" => append.extra_output = Some(entry.node.text()?.to_owned()),
            "match" => append_match(&mut append, &entry.node)?,
            // See `suggested_outputs`.
            "suggested_output" => {
                entry.node.boolean()?;
            }
            other => {
                return Err(
                    Problem::new(&entry.origin, format!("unknown key `{other}`"))
                        .help("the keys are match, extra_output, extra_fields, suggested_output"),
                );
            }
        }
    }
    Ok(append)
}

/// `evt.hostname`, or `name: text with %evt.hostname`.
fn extra_field(node: &Node) -> Result<ExtraField, Problem> {
    let Value::Map(entries) = &node.value else {
        return node.text().map(|name| ExtraField::Field(name.to_owned()));
    };
    match entries.as_slice() {
        [entry] => Ok(ExtraField::Formatted {
            name: entry.key.clone(),
            format: entry.node.text()?.to_owned(),
        }),
        _ => Err(
            Problem::new(&node.origin, "expected one name with its text")
                .help("begin each field with `- `"),
        ),
    }
}

fn append_match(append: &mut AppendOutput, node: &Node) -> Result<(), Problem> {
    for entry in group(node)? {
        match entry.key.as_str() {
            "rule" => append.rule = Some(entry.node.text()?.to_owned()),
            "source" => append.source = Some(entry.node.text()?.to_owned()),
            "tags" => {
                let tags = entry
                    .node
                    .list()?
                    .iter()
                    .map(|tag| tag.text().map(str::to_owned));
                append.tags = tags.collect::<Result<_, _>>()?;
            }
            other => {
                return Err(
                    Problem::new(&entry.origin, format!("unknown key `{other}`"))
                        .help("the keys are rule, source, tags"),
                );
            }
        }
    }
    Ok(())
}

fn group(node: &Node) -> Result<&[Entry], Problem> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        _ => {
            let message = format!("expected a group of settings, found {}", node.describe());
            Err(Problem::new(&node.origin, message))
        }
    }
}
