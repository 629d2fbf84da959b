//! The settings there are.

use std::path::PathBuf;

use clap::ValueEnum;
use rules::{AppendOutput, ExtraField, Priority, RuleMatching};

use super::Config;
use super::tree::{Entry, Node, Problem, Value};

/// One setting.
pub(super) struct Key {
    /// Its path; as in Falco's configuration.
    pub(super) path: &'static str,
    /// Puts a value into the configuration.
    pub(super) set: fn(&mut Config, &Node) -> Result<(), Problem>,
}

/// All settings that have an effect. Names and meanings are Falco's; `io_uring` and `verify` are not
/// in Falco.
pub(super) const KEYS: &[Key] = &[
    Key {
        path: "append_output",
        set: append_output,
    },
    Key {
        path: "buffered_outputs",
        set: |config, node| node.boolean().map(|value| config.buffered_outputs = value),
    },
    Key {
        path: "file_output.enabled",
        set: |config, node| {
            node.boolean()
                .map(|value| config.file_output.enabled = value)
        },
    },
    Key {
        path: "file_output.filename",
        set: |config, node| {
            node.text()
                .map(|value| config.file_output.filename = PathBuf::from(value))
        },
    },
    Key {
        path: "file_output.keep_alive",
        set: |config, node| {
            node.boolean()
                .map(|value| config.file_output.keep_alive = value)
        },
    },
    Key {
        path: "http_output.ca_bundle",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.ca_bundle = PathBuf::from(value))
        },
    },
    Key {
        path: "http_output.ca_cert",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.ca_cert = PathBuf::from(value))
        },
    },
    Key {
        path: "http_output.ca_path",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.ca_path = PathBuf::from(value))
        },
    },
    Key {
        path: "http_output.client_cert",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.client_cert = PathBuf::from(value))
        },
    },
    Key {
        path: "http_output.client_key",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.client_key = PathBuf::from(value))
        },
    },
    Key {
        path: "http_output.compress_uploads",
        set: |config, node| {
            node.boolean()
                .map(|value| config.http_output.compress_uploads = value)
        },
    },
    Key {
        path: "http_output.echo",
        set: |config, node| node.boolean().map(|value| config.http_output.echo = value),
    },
    Key {
        path: "http_output.enabled",
        set: |config, node| {
            node.boolean()
                .map(|value| config.http_output.enabled = value)
        },
    },
    Key {
        path: "http_output.insecure",
        set: |config, node| {
            node.boolean()
                .map(|value| config.http_output.insecure = value)
        },
    },
    Key {
        path: "http_output.keep_alive",
        set: |config, node| {
            node.boolean()
                .map(|value| config.http_output.keep_alive = value)
        },
    },
    Key {
        path: "http_output.max_consecutive_timeouts",
        set: max_consecutive_timeouts,
    },
    Key {
        path: "http_output.mtls",
        set: |config, node| node.boolean().map(|value| config.http_output.mtls = value),
    },
    Key {
        path: "http_output.url",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.url = value.to_owned())
        },
    },
    Key {
        path: "http_output.user_agent",
        set: |config, node| {
            node.text()
                .map(|value| config.http_output.user_agent = value.to_owned())
        },
    },
    Key {
        path: "io_uring",
        set: |config, node| choice(node).map(|value| config.io_uring = value),
    },
    Key {
        path: "json_include_message_property",
        set: |config, node| {
            node.boolean()
                .map(|value| config.json_parts.message = value)
        },
    },
    Key {
        path: "json_include_output_fields_property",
        set: |config, node| {
            node.boolean()
                .map(|value| config.json_parts.output_fields = value)
        },
    },
    Key {
        path: "json_include_output_property",
        set: |config, node| node.boolean().map(|value| config.json_parts.output = value),
    },
    Key {
        path: "json_include_tags_property",
        set: |config, node| node.boolean().map(|value| config.json_parts.tags = value),
    },
    Key {
        path: "json_output",
        set: |config, node| node.boolean().map(|value| config.json_output = value),
    },
    Key {
        path: "output_timeout",
        set: |config, node| node.integer().map(|value| config.output_timeout_ms = value),
    },
    Key {
        path: "outputs.max_burst",
        set: max_burst,
    },
    Key {
        path: "outputs.rate",
        set: |config, node| {
            node.number()
                .map(|value| config.throttle.per_second = value)
        },
    },
    Key {
        path: "outputs_queue.capacity",
        set: queue_capacity,
    },
    Key {
        path: "priority",
        set: priority,
    },
    Key {
        path: "program_output.enabled",
        set: |config, node| {
            node.boolean()
                .map(|value| config.program_output.enabled = value)
        },
    },
    Key {
        path: "program_output.keep_alive",
        set: |config, node| {
            node.boolean()
                .map(|value| config.program_output.keep_alive = value)
        },
    },
    Key {
        path: "program_output.program",
        set: |config, node| {
            node.text()
                .map(|value| config.program_output.program = value.to_owned())
        },
    },
    Key {
        path: "rule_matching",
        set: rule_matching,
    },
    Key {
        path: "rules_files",
        set: rules_files,
    },
    Key {
        path: "stdout_output.enabled",
        set: |config, node| node.boolean().map(|value| config.stdout_enabled = value),
    },
    Key {
        path: "syslog_output.enabled",
        set: |config, node| node.boolean().map(|value| config.syslog_enabled = value),
    },
    Key {
        path: "time_format_iso_8601",
        set: |config, node| {
            node.boolean()
                .map(|value| config.time_format_iso_8601 = value)
        },
    },
    Key {
        path: "verify",
        set: |config, node| choice(node).map(|value| config.verify = value),
    },
];

/// Settings of Falco's that have no effect here, so that its configuration file can be used, and
/// what to know about them. A group stands for all below it.
pub(super) const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "base_syscalls",
        "calls are chosen from the rules; see `tollgate rules explain`",
    ),
    ("buffer_format_base64", "buffers are printed as text"),
    ("capture", "capture files are not in this release"),
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
            // Plugins suggest outputs, and there are none.
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
