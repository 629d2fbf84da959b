//! The configuration: files of the machine and of the user, a Falco configuration file, the files they
//! include, and `-o` options, as one typed model.
//!
//! [`Request::load`] reads it. Every key is a row of a table, with its type and its field in [`Config`].
//! Falco keys that have no effect here cause a warning.

mod append;
mod assign;
mod choice;
mod defaults;
mod environment;
pub mod falco_files;
mod file_reader;
mod fragments;
mod include;
mod ineffective;
mod keys;
mod layers;
mod levels;
mod model;
pub mod places;
pub mod plugins;
#[cfg(test)]
mod reference;
mod responses;
pub mod rule_files;
mod schema;
mod show;
pub mod trust;
mod values;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rules::Level;
use rules::diagnostic::closest;
use serde::{Deserialize, Serialize};

pub use self::assign::path_value;
pub use self::choice::Choice;
use self::file_reader::FileReader;
pub use self::fragments::FragmentProblem;
use self::fragments::LoadError;
use self::include::Included;
use self::ineffective::INEFFECTIVE;
use self::keys::KEYS;
pub use self::model::{
    CaptureMode, CaptureOptions, Config, DropAction, DropSettings, EngineSettings, FalcoEngine,
    Grpc, IoUring, Log, Metrics, OnAgentDeath, RuntimeOptions, Selection, Verify, WatchContainers,
    WatchedBy, Webserver,
};
pub use self::places::Places;
pub use self::plugins::{PluginSetting, PluginSettings};
pub use self::responses::ResponseSettings;
pub use self::schema::schema;
pub use self::show::{Shown, ShownOrigin};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::text_file;
use trust::Untrusted;
use yaml::settings::{Node, Origin, Problem, Value};

/// Selects whose defaults and rules apply when settings are read.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum CompatMode {
    /// The defaults and rules of this program.
    #[default]
    Tollgate,
    /// Falco's: its defaults; the configuration chooses the engine; unknown options on the command
    /// line are no error; missing rule files are skipped.
    Falco,
}

/// A configuration with its warnings.
pub type LoadedConfig = (Config, Vec<String>);

/// Reads a configuration file, if one is named, and applies the `-o` options to it. Reads no other file.
///
/// # Errors
///
/// [`Exit::BadInput`] if the file or an included one cannot be read, or a setting is wrong. The
/// message names every wrong setting.
pub fn load(
    file: Option<&Path>,
    options: &[String],
    mode: CompatMode,
) -> Result<LoadedConfig, Failure> {
    let request = Request {
        file,
        options,
        mode,
        ..Request::default()
    };
    let Effective {
        config, warnings, ..
    } = request.load()?;
    Ok((config, warnings))
}

/// What a configuration is read from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Files that nobody named, the least important first. They need not exist. If root runs this program, only root
    /// must be able to change them.
    pub layers: &'a [PathBuf],
    /// The file that the command line names, which goes before those.
    pub file: Option<&'a Path>,
    /// Texts with their names, which go before those: each is merged as one of `config_files` is.
    pub fragments: &'a [(String, String)],
    /// The `-o` options, which go before all files and texts.
    pub options: &'a [String],
    /// Selects defaults and rules.
    pub mode: CompatMode,
}

/// A configuration, and how it came about.
#[derive(Debug)]
pub struct Effective {
    /// The settings.
    pub config: Config,
    /// Warnings about settings without effect, unknown keys among them.
    pub warnings: Vec<String>,
    /// The unknown keys.
    pub unknown: Vec<Problem>,
    /// All settings with their origins.
    root: Node,
}

impl Request<'_> {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if a file cannot be read or trusted, or a setting is wrong. The message names every wrong
    /// setting.
    pub fn load(&self) -> Result<Effective, Failure> {
        self.parse().map_err(|error| match error {
            LoadError::File(failure) => failure,
            LoadError::Settings(problems) => failure(&problems),
        })
    }

    fn parse(&self) -> Result<Effective, LoadError> {
        let mut texts = Vec::new();
        for path in self.layers {
            if let Some(text) = read_layer(path)? {
                texts.push((path.as_path(), text));
            }
        }
        let text = match self.file {
            Some(file) => {
                if self.mode == CompatMode::Tollgate {
                    trust::check_named(file).map_err(|error| untrusted(file, &error))?;
                }
                read(file)?
            }
            None => String::new(),
        };
        let lower = texts.iter().map(|(path, text)| Text { path, text });
        let lower: Vec<_> = lower.collect();
        let source = Text {
            path: self.file.unwrap_or(Path::new("")),
            text: &text,
        };
        let variable = |name: &str| std::env::var(name).ok();
        let parsed = parse_layers(
            &lower,
            source,
            (self.fragments, self.options),
            self.mode,
            &variable,
        );
        let mut effective = parsed.map_err(LoadError::Settings)?;
        let config = &mut effective.config;
        config.layers = self.layers.to_vec();
        match self.mode {
            CompatMode::Falco => {
                config.rules_files.retain(|path| path.exists());
                // Falco knows no levels. Reloads and replays read this configuration, too.
                config.level = Level::Forensic;
                config.ignores_levels = true;
            }
            CompatMode::Tollgate => {
                let implied = levels::selections(config.level);
                config.rules.splice(0..0, implied);
            }
        }
        Ok(effective)
    }
}

/// Text of a file.
#[derive(Clone, Copy)]
struct Text<'t> {
    path: &'t Path,
    text: &'t str,
}

fn read(file: &Path) -> Result<String, Failure> {
    text_file::read(file).map_err(|error| {
        let message = format!("cannot read configuration {}: {error}", file.display());
        Failure::new(Exit::BadInput, message)
            .help("name a YAML file, such as Falco's falco.yaml, with --config")
    })
}

/// Reads a file that nobody named; `None` if there is none.
fn read_layer(file: &Path) -> Result<Option<String>, Failure> {
    trust::check(file).map_err(|error| untrusted(file, &error))?;
    match text_file::read(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot read configuration {}: {error}", file.display());
            let help = "let this user read it, or remove it; it applies to all runs";
            Err(Failure::new(Exit::BadInput, message).help(help))
        }
    }
}

fn untrusted(file: &Path, error: &Untrusted) -> Failure {
    let message = format!(
        "cannot use configuration {}: {}",
        file.display(),
        error.cause()
    );
    let failure = Failure::new(Exit::BadInput, message);
    if file.starts_with(places::FOLDER) {
        return failure.help(error.fix());
    }
    let own = "or read root's own file: `sudo -H`, and unset XDG_CONFIG_HOME";
    failure.help(format!("{}, {own}", error.fix()))
}

fn failure(problems: &[Problem]) -> Failure {
    let (last, before) = problems.split_last().expect("a failed parse has a problem");
    let line = |problem: &Problem| format!("{}: {}", problem.origin, problem.message);
    // Problems before the last carry their help inline; the last one's goes to the help line.
    let mut message = String::from("cannot use the configuration: ");
    for problem in before {
        message.push_str(&line(problem));
        if let Some(help) = &problem.help {
            message.push_str(&format!(" ({help})"));
        }
        message.push_str("\n  ");
    }
    message.push_str(&line(last));
    let failure = Failure::new(Exit::BadInput, message);
    match &last.help {
        Some(help) => failure.help(help.clone()),
        None => failure.help("`tollgate falco --config-schema` prints the type of each key"),
    }
}

impl Effective {
    /// Checks that there are no unknown keys, which are otherwise only warned about.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] with all unknown keys.
    pub fn is_known(&self) -> Result<(), Failure> {
        match self.unknown.is_empty() {
            true => Ok(()),
            false => Err(failure(&self.unknown)),
        }
    }
}

fn parse_layers(
    lower: &[Text<'_>],
    source: Text<'_>,
    (fragments, options): (&[(String, String)], &[String]),
    mode: CompatMode,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Effective, Vec<Problem>> {
    // Options that include files are applied first, so that the others override included settings.
    let includes = |option: &&String| option.starts_with("config_files");
    let (first, last): (Vec<_>, Vec<_>) = options.iter().partition(includes);
    let reader = FileReader::new(mode);
    let mut problems = Vec::new();
    let mut root = None;
    let mut read = Included::default();
    let lower = lower.iter().map(|text| (*text, &[][..], true));
    for (text, options, is_checked) in lower.chain([(source, &first[..], false)]) {
        match reader.read_tree(text, options, is_checked, variable) {
            Ok((node, included)) => {
                read.files.extend(included.files);
                read.folders.extend(included.folders);
                match &mut root {
                    Some(root) if has_settings(&node) => layers::merge(root, node),
                    Some(_) => {}
                    None => root = Some(node),
                }
            }
            Err(more) => problems.extend(more),
        }
    }
    let Some(mut root) = root.filter(|_| problems.is_empty()) else {
        return Err(problems);
    };
    problems.extend(fragments::merge(&mut root, fragments, &reader, variable));
    for option in last {
        problems.extend(assign::assign(&mut root, option).err());
    }
    let mut application = Application::new(mode, problems);
    application.warnings = reader.into_warnings();
    application.finish(root, read)
}

/// Returns false for an empty file.
fn has_settings(node: &Node) -> bool {
    !matches!(&node.value, Value::Null)
        && !matches!(&node.value, Value::Map(entries) if entries.is_empty())
}

/// State of applying settings to a configuration.
struct Application {
    config: Config,
    mode: CompatMode,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    unknown: Vec<Problem>,
}

impl Application {
    fn new(mode: CompatMode, problems: Vec<Problem>) -> Self {
        Self {
            config: match mode {
                CompatMode::Tollgate => Config::default(),
                CompatMode::Falco => Config::of_falco(),
            },
            mode,
            problems,
            warnings: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Applies all settings, and returns the configuration or all problems.
    fn finish(mut self, root: Node, read: Included) -> Result<Effective, Vec<Problem>> {
        self.apply("", &root);
        self.contradictions(&root);
        self.config.files = read.files;
        self.config.folders = read.folders;
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        Ok(Effective {
            config: self.config,
            warnings: self.warnings,
            unknown: self.unknown,
            root,
        })
    }

    /// Applies the settings below a node.
    fn apply(&mut self, path: &str, node: &Node) {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            // An empty group sets nothing.
            Value::Null => &[],
            Value::Scalar { .. } | Value::List(_) => {
                let what = if path.is_empty() {
                    "the configuration"
                } else {
                    path
                };
                let message = format!(
                    "{what} has to be a group of settings, found {}",
                    node.describe()
                );
                self.problems.push(Problem::new(&node.origin, message));
                return;
            }
        };
        let enabled = entries.iter().find(|entry| entry.key == "enabled");
        let is_off = enabled.is_some_and(|entry| entry.node.boolean() == Ok(false));
        for entry in entries {
            let path = if path.is_empty() {
                entry.key.clone()
            } else {
                format!("{path}.{}", entry.key)
            };
            let group = format!("{path}.");
            let is_group = |known: &str| known.starts_with(&group);
            if let Some(key) = KEYS.iter().find(|key| key.path == path) {
                self.problems
                    .extend(key.set(&mut self.config, &entry.node).err());
                if self.mode == CompatMode::Tollgate && CHOSEN_BY_OPTION.contains(&key.path) {
                    self.warn(&path, &entry.origin, "choose the engine with --engine");
                }
            } else if let Some(known) = INEFFECTIVE.iter().find(|known| known.path == path) {
                // Settings of a disabled group need no warning.
                if !is_off && known.is_missed(&entry.node) {
                    let origin = entry.node.option().unwrap_or(&entry.origin);
                    self.warn(&path, origin, known.why);
                }
            } else if KEYS.iter().any(|key| is_group(key.path))
                || INEFFECTIVE.iter().any(|known| is_group(known.path))
            {
                self.apply(&path, &entry.node);
            } else {
                self.unknown(&path, &entry.origin);
            }
        }
    }

    fn warn(&mut self, path: &str, origin: &Origin, why: &str) {
        let warning = format!("{origin}: `{path}` has no effect: {why}");
        self.warnings.push(warning);
    }

    /// Reports an unknown key. In an option it is an error, since it can be corrected at once; a
    /// file may be for another version. An unknown key about containers is never ignored:
    /// containers would start without their policy.
    fn unknown(&mut self, path: &str, origin: &Origin) {
        let problem = unknown(path, origin);
        let is_typed = matches!(origin, Origin::Option(_)) && self.mode == CompatMode::Tollgate;
        if is_typed || path.starts_with("runtime.") {
            self.problems.push(problem);
            return;
        }
        if let Origin::File { name, .. } = origin {
            self.config
                .files_with_unknown_keys
                .push(PathBuf::from(&**name));
        }
        let help = problem.help.clone().unwrap_or_default();
        self.warnings.push(format!(
            "{origin}: {}, which has no effect: {help}",
            problem.message
        ));
        self.unknown.push(problem);
    }

    /// Reports settings that exclude each other.
    fn contradictions(&mut self, root: &Node) {
        let Value::Map(entries) = &root.value else {
            return;
        };
        let entry = |name: &str| entries.iter().find(|entry| entry.key == name);
        if let (Some(_), Some(old)) = (entry("rules_files"), entry("rules_file")) {
            let message = "both `rules_files` and `rules_file` are set";
            self.problems
                .push(Problem::new(&old.origin, message).help("name all files in `rules_files`"));
        } else if let Some(old) = entry("rules_file") {
            self.warnings.push(format!(
                "{}: `rules_file` is deprecated: use `rules_files`",
                old.origin
            ));
        }
        self.outputs_without_a_place(root);
        self.problems
            .extend(plugins::undescribed(&self.config, root));
        if self.config.engine.kind == FalcoEngine::Replay
            && self.mode == CompatMode::Falco
            && self.config.engine.capture_file.as_os_str().is_empty()
        {
            let origin = entry("engine").map_or(&root.origin, |entry| &entry.origin);
            let message = "the engine replays and no capture is named";
            self.problems.push(
                Problem::new(origin, message)
                    .help("set engine.replay.capture_file, or use -e FILE"),
            );
        }
        if self.config.engine.kind == FalcoEngine::Gvisor
            && self.mode == CompatMode::Falco
            && self.config.engine.gvisor_session.as_os_str().is_empty()
        {
            let origin = entry("engine").map_or(&root.origin, |entry| &entry.origin);
            let message = "the engine is gvisor and no trace session is named";
            self.problems.push(Problem::new(origin, message).help(
                "set engine.gvisor.config, or use -g FILE; --gvisor-generate-config prints one",
            ));
        }
    }
}

impl Application {
    /// Reports enabled outputs without a destination.
    fn outputs_without_a_place(&mut self, root: &Node) {
        for (output, missing) in self.config.outputs.missing() {
            let origin = root.entry(output).map_or(&root.origin, |entry| {
                // The position of `enabled`, which may be in another file than the group.
                let enabled = entry.node.entry("enabled");
                enabled.map_or(&entry.origin, |enabled| &enabled.origin)
            });
            let outputs::Missing { key, example } = missing;
            let message = format!("`{output}` is enabled and has no `{key}`");
            let help = format!("set it, as in -o {output}.{key}={example}");
            self.problems.push(Problem::new(origin, message).help(help));
        }
    }
}

/// Settings that only the command `falco` takes from the configuration.
const CHOSEN_BY_OPTION: [&str; 4] = [
    "engine.gvisor.config",
    "engine.kind",
    "engine.kmod.buf_size_preset",
    "engine.replay.capture_file",
];

fn unknown(path: &str, origin: &Origin) -> Problem {
    let problem = Problem::new(origin, format!("unknown key `{path}`"));
    let known = KEYS
        .iter()
        .map(|key| key.path)
        .chain(INEFFECTIVE.iter().map(|known| known.path));
    let leaf = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let namesake = known.clone().find(|key| leaf(key) == leaf(path));
    // The name of a mapping, such as `http_output`.
    let groups: BTreeSet<&str> = known
        .clone()
        .filter_map(|key| key.rsplit_once('.').map(|(group, _)| group))
        .collect();
    let known = known.chain(groups);
    match closest(path, known).or(namesake) {
        Some(known) => problem.help(format!("did you mean `{known}`?")),
        None => problem.help("`tollgate config show` lists the keys"),
    }
}

/// Returns the path of every setting that has an effect, in alphabetical order.
pub fn key_names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.path)
}

/// Returns the path of every setting that has an effect, with the JSON type of its values.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter().map(|key| (key.path, key.json_type))
}

/// Returns the path of every setting that causes a warning, with the reason.
pub fn ineffective_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    INEFFECTIVE.iter().map(|known| (known.path, known.why))
}

#[cfg(test)]
mod tests {
    use outputs::{
        FileOutput, HttpOutput, JsonParts, Outputs, ProgramOutput, StdoutOutput, SyslogOutput,
        ThrottleRate,
    };
    use rules::{AppendOutput, ExtraField, Priority, RuleMatching};

    use super::*;

    /// Parses `text` as the file `f.yaml`, in an environment with one variable.
    fn parse_as(mode: CompatMode, text: &str, list: &[&str]) -> Result<LoadedConfig, Vec<Problem>> {
        let path = Path::new("f.yaml");
        let variable = |name: &str| (name == "WHERE").then(|| "/var/log".to_owned());
        let source = Text { path, text };
        let parsed = parse_layers(&[], source, (&[], &options(list)), mode, &variable);
        parsed.map(|effective| (effective.config, effective.warnings))
    }

    fn parse_text(text: &str, list: &[&str]) -> Result<LoadedConfig, Vec<Problem>> {
        parse_as(CompatMode::Tollgate, text, list)
    }

    fn options(list: &[&str]) -> Vec<String> {
        list.iter().map(|&option| option.to_owned()).collect()
    }

    fn problems(text: &str, list: &[&str]) -> Vec<String> {
        let problems = parse_text(text, list).unwrap_err();
        problems
            .iter()
            .map(|p| {
                let help = p
                    .help
                    .as_deref()
                    .map(|help| format!(" | {help}"))
                    .unwrap_or_default();
                format!("{}: {}{help}", p.origin, p.message)
            })
            .collect()
    }

    const ALL: &str = "
rules_files: [/etc/a.yaml, b.yaml]
json_output: true
json_include_output_property: false
json_include_tags_property: no
json_include_ids_property: true
json_include_output_fields_property: false
json_include_message_property: true
time_format_iso_8601: true
tollgate_internal: true
priority: warning
buffered_outputs: true
rule_matching: all
rules_level: forensic
outputs: {rate: 0.5, max_burst: 3}
outputs_queue: {capacity: 12}
output_timeout: 100
stdout_output: {enabled: false}
file_output:
  enabled: true
  keep_alive: true
  filename: /tmp/alerts
syslog_output: {enabled: true}
program_output: {enabled: true, keep_alive: true, program: cat > /dev/null}
http_output:
  enabled: true
  url: https://localhost/
  user_agent: me
  headers: {x-scope: north}
  insecure: true
  ca_cert: /c/ca.pem
  ca_bundle: /c/bundle.pem
  ca_path: /c
  mtls: true
  client_cert: /c/client.crt
  client_key: /c/client.key
  echo: true
  compress_uploads: true
  keep_alive: true
  max_consecutive_timeouts: 7
append_output:
  - suggested_output: false
  - match: {source: syscall, tags: [t], rule: R}
    extra_output: on %evt.hostname
    extra_fields: [evt.hostname, {who: '%user.name here'}]
verify: always
io_uring: allow
config_files: []
rules: [{disable: {rule: X*}}, {enable: {tag: t}}]
static_fields: {site: north}
log_level: error
log_stderr: false
log_syslog: true
watch_config_files: true
load_plugins: [json]
plugins: [{name: json, library_path: libjson.so, init_config: {a: 1}, open_params: x}]
plugin_host: {disabled_sources: [k8s_audit], memory: 256, program: /usr/lib/host, timeout: 200}
responses_files: [/etc/r.yaml]
responses: {dry_run: true, accept_partial: [aws:lambda], rate: 1, max_burst: 2, rule_rate: 3, rule_max_burst: 4}
grpc: {enabled: true, bind_address: 'localhost:5060', threadiness: 3, private_key: /k, cert_chain: /c, root_certs: /r}
grpc_output: {enabled: true}
webserver:
  enabled: true
  k8s_healthz_endpoint: /h
  listen_address: '::1'
  listen_port: 99
  prometheus_metrics_enabled: true
  ssl_certificate: /s
  ssl_enabled: true
metrics:
  enabled: true
  interval: 1m30s
  output_rule: true
  output_file: /m
  rules_counters_enabled: false
  resource_utilization_enabled: false
  state_counters_enabled: false
  kernel_event_counters_enabled: false
  convert_memory_to_mb: false
  include_empty_values: true
engine:
  modern_ebpf: {buf_size_preset: 5}
capture:
  enabled: true
  path_prefix: /var/tmp/x
  mode: all_rules
  default_duration: 100
  max_file_size_mb: 3
runtime:
  agent: host
  agent_linger: 5
  on_agent_death: deny
  binary: crun
  gvisor_session: /run/s.json
  watch: annotated
  policy: web
  vm_kernel: /boot/vmlinuz
  vm_modules: /srv/modules
  policies: /srv/policies
  audit: true
  accept_partial: [one]
syscall_event_drops:
  actions: [log, exit]
  threshold: 0.5
  rate: 2
  max_burst: 7
";

    fn http_output() -> HttpOutput {
        HttpOutput {
            enabled: true,
            url: "https://localhost/".to_owned(),
            user_agent: "me".to_owned(),
            headers: vec![("x-scope".to_owned(), "north".to_owned())],
            insecure: true,
            ca_cert: "/c/ca.pem".into(),
            ca_bundle: "/c/bundle.pem".into(),
            ca_path: "/c".into(),
            mtls: true,
            client_cert: "/c/client.crt".into(),
            client_key: "/c/client.key".into(),
            echo: true,
            compress_uploads: true,
            keep_alive: true,
            max_consecutive_timeouts: 7,
        }
    }

    fn grpc() -> Grpc {
        Grpc {
            enabled: true,
            bind_address: "localhost:5060".to_owned(),
            threadiness: 3,
            private_key: "/k".into(),
            cert_chain: "/c".into(),
            root_certs: "/r".into(),
            output: true,
        }
    }

    fn webserver() -> Webserver {
        Webserver {
            enabled: true,
            address: "::1".parse().unwrap(),
            port: 99,
            healthz: "/h".to_owned(),
            metrics: true,
            tls: true,
            certificate: "/s".into(),
        }
    }

    fn metrics() -> Metrics {
        Metrics {
            enabled: true,
            interval: std::time::Duration::from_secs(90),
            output_rule: true,
            output_file: "/m".into(),
            rules: false,
            resources: false,
            state: false,
            kernel: false,
            megabytes: false,
            empty_values: true,
        }
    }

    fn runtime() -> RuntimeOptions {
        RuntimeOptions {
            agent: WatchedBy::Host,
            agent_linger: 5,
            on_agent_death: OnAgentDeath::Deny,
            binary: "crun".to_owned(),
            gvisor_session: "/run/s.json".into(),
            watch: WatchContainers::Annotated,
            policy: "web".to_owned(),
            vm_kernel: "/boot/vmlinuz".into(),
            vm_modules: "/srv/modules".into(),
            policies: "/srv/policies".into(),
            audit: true,
            accept_partial: vec!["one".to_owned()],
        }
    }

    fn drops() -> DropSettings {
        DropSettings {
            actions: vec![DropAction::Log, DropAction::Exit],
            threshold: 0.5,
            rate: ThrottleRate {
                per_second: 2.0,
                max_burst: 7,
            },
        }
    }

    fn capture() -> CaptureOptions {
        CaptureOptions {
            enabled: true,
            path_prefix: "/var/tmp/x".to_owned(),
            mode: CaptureMode::AllRules,
            default_duration_ms: 100,
            max_file_size_mb: 3,
        }
    }

    fn append_output() -> Vec<AppendOutput> {
        vec![AppendOutput {
            rule: Some("R".into()),
            source: Some("syscall".into()),
            tags: ["t".to_owned()].into(),
            extra_output: Some("on %evt.hostname".into()),
            extra_fields: vec![
                ExtraField::Field("evt.hostname".into()),
                ExtraField::Formatted {
                    name: "who".into(),
                    format: "%user.name here".into(),
                },
            ],
        }]
    }

    fn selections() -> Vec<Selection> {
        vec![
            Selection {
                enable: false,
                rule: Some("X*".to_owned()),
                tag: None,
                implied: false,
            },
            Selection {
                enable: true,
                rule: None,
                tag: Some("t".to_owned()),
                implied: false,
            },
        ]
    }

    fn outputs() -> Outputs {
        Outputs {
            stdout: StdoutOutput {
                enabled: false,
                ..StdoutOutput::default()
            },
            file: FileOutput {
                enabled: true,
                keep_alive: true,
                filename: "/tmp/alerts".into(),
            },
            syslog: SyslogOutput { enabled: true },
            program: ProgramOutput {
                enabled: true,
                keep_alive: true,
                program: "cat > /dev/null".to_owned(),
            },
            http: http_output(),
            ..Outputs::default()
        }
    }

    fn responses() -> ResponseSettings {
        let rate = |per_second, max_burst| ThrottleRate {
            per_second,
            max_burst,
        };
        ResponseSettings {
            files: vec!["/etc/r.yaml".into()],
            dry_run: true,
            accept_partial: vec!["aws:lambda".to_owned()],
            total: rate(1.0, 2),
            each: rate(3.0, 4),
            // No keys.
            may_deny: false,
            may_capture: false,
        }
    }

    fn plugin_settings() -> PluginSettings {
        PluginSettings {
            load: Some(vec!["json".to_owned()]),
            described: vec![PluginSetting {
                name: "json".to_owned(),
                library: "/usr/share/falco/plugins/libjson.so".into(),
                init_config: r#"{"a":1}"#.to_owned(),
                open_params: "x".to_owned(),
            }],
            disabled_sources: vec!["k8s_audit".to_owned()],
            program: "/usr/lib/host".into(),
            timeout_ms: 200,
            memory_mib: 256,
        }
    }

    /// The configuration that [`ALL`] describes.
    fn all_taken() -> Config {
        Config {
            rules_files: vec!["/etc/a.yaml".into(), "b.yaml".into()],
            rules_folder: None,
            bundled_rules: Vec::new(),
            added_rules: Vec::new(),
            given_rules: Vec::new(),
            level: rules::Level::Forensic,
            ignores_levels: false,
            layers: Vec::new(),
            json_output: true,
            json_parts: JsonParts {
                output: false,
                tags: false,
                output_fields: false,
                message: true,
                ids: true,
            },
            time_format_iso_8601: true,
            tollgate_internal: true,
            priority: Priority::Warning,
            buffered_outputs: true,
            rule_matching: RuleMatching::All,
            throttle: ThrottleRate {
                per_second: 0.5,
                max_burst: 3,
            },
            queue_capacity: Some(12),
            output_timeout_ms: 100,
            outputs: outputs(),
            append_output: append_output(),
            verify: Verify::Always,
            io_uring: IoUring::Allow,
            rules: selections(),
            static_fields: vec![("site".to_owned(), "north".to_owned())],
            log: Log {
                stderr: false,
                syslog: true,
                level: Priority::Error,
            },
            watch_config_files: true,
            drops: drops(),
            grpc: grpc(),
            webserver: webserver(),
            metrics: metrics(),
            engine: EngineSettings {
                ebpf_buffer: 5,
                ..EngineSettings::default()
            },
            files: vec!["f.yaml".into()],
            files_with_unknown_keys: Vec::new(),
            folders: Vec::new(),
            capture: capture(),
            runtime: runtime(),
            responses: responses(),
            plugins: plugin_settings(),
        }
    }

    #[test]
    fn every_key_is_taken() {
        let (config, warnings) = parse_text(ALL, &[]).unwrap();
        assert_eq!(warnings, [""; 0]);
        assert_eq!(config, all_taken());
        // Output keys are also tested in their crate, which knows them all.
        let of_outputs: Vec<_> = Outputs::keys().map(|(path, _)| path).collect();
        let elsewhere = |key: &&keys::Setting| {
            let by_option = CHOSEN_BY_OPTION.contains(&key.path) || key.path == "rules_file";
            by_option || of_outputs.contains(&key.path)
        };
        for key in KEYS.iter().filter(|key| !elsewhere(key)) {
            let leaf = key.path.rsplit('.').next().unwrap();
            assert!(ALL.contains(leaf), "{} is not in the test", key.path);
        }
    }

    #[test]
    fn nothing_means_the_defaults() {
        for text in ["", "# only a comment\n", "outputs:\n"] {
            let expected = Config {
                files: vec!["f.yaml".into()],
                ..Config::default()
            };
            assert_eq!(parse_text(text, &[]).unwrap().0, expected, "{text:?}");
        }
    }

    #[test]
    fn options_win_over_the_file() {
        let text = "outputs:\n  rate: 1\n  max_burst: 2\nrules_files:\n  - a\n";
        let list = ["outputs.rate=7", "rules_files[1]=b", "json_output=true"];
        let (config, _) = parse_text(text, &list).unwrap();
        assert_eq!(
            config.throttle,
            ThrottleRate {
                per_second: 7.0,
                max_burst: 2
            }
        );
        assert_eq!(config.rules_files, [PathBuf::from("a"), "b".into()]);
        assert!(config.json_output);
    }

    #[test]
    fn wrong_settings_are_all_reported_with_place_and_next_step() {
        let text = "outputs:\n  max_burst: -1\npriority: urgent\n\
                    buffered_outputs: 'tru'\nfile_output: yes\n";
        assert_eq!(
            problems(
                text,
                &[
                    "max_burst=5",
                    "outputs.rate=fast",
                    "http_ouput.enabled=true",
                    "zzzz.qqqq=1"
                ]
            ),
            [
                "f.yaml:2:14: expected a whole number from 0 on, found `-1`",
                "-o outputs.rate=fast: expected a number from 0 on, found `fast`",
                "f.yaml:3:11: invalid priority `urgent` | one of emergency, alert, critical, error, \
                 warning, notice, informational, debug",
                "f.yaml:4:19: expected true or false, found `tru`",
                "f.yaml:5:14: file_output has to be a group of settings, found `yes`",
                "-o max_burst=5: unknown key `max_burst` | did you mean `outputs.max_burst`?",
                "-o http_ouput.enabled=true: unknown key `http_ouput` | did you mean `http_output`?",
                "-o zzzz.qqqq=1: unknown key `zzzz` | `tollgate config show` lists the keys",
            ]
        );
    }

    #[test]
    fn unknown_keys_of_files_are_warned_about() {
        let text = "json_ouput: true\noutputs:\n  rates: 5\n";
        let expected = [
            "f.yaml:1:1: unknown key `json_ouput`, which has no effect: did you mean `json_output`?",
            "f.yaml:3:3: unknown key `outputs.rates`, which has no effect: did you mean `outputs.rate`?",
        ];
        assert_eq!(parse_text(text, &[]).unwrap().1, expected);
        assert_eq!(
            problems("runtime:\n  policiy: web\n", &[]),
            ["f.yaml:2:3: unknown key `runtime.policiy` | did you mean `runtime.policy`?"]
        );
        let (_, warnings) = parse_as(CompatMode::Falco, "", &["max_burst=5"]).unwrap();
        assert_eq!(
            warnings.len(),
            1,
            "Falco takes unknown keys as options, too"
        );
    }

    #[test]
    fn variables_are_expanded_in_files() {
        let text =
            "file_output: {filename: '${WHERE}/x', enabled: true}\nrules_files: ['$${WHERE}']\n";
        let (config, _) = parse_text(text, &[]).unwrap();
        assert_eq!(config.outputs.file.filename, Path::new("/var/log/x"));
        assert_eq!(config.rules_files, [PathBuf::from("${WHERE}")]);
    }

    #[test]
    fn falcos_own_defaults_and_engine_are_those_of_its_mode() {
        let text = "engine: {kind: replay, replay: {capture_file: a.scap}}\n";
        let (config, warnings) = parse_as(CompatMode::Falco, text, &[]).unwrap();
        assert!(!config.outputs.stdout.enabled);
        assert_eq!(config.engine.kind, FalcoEngine::Replay);
        assert_eq!(warnings, [""; 0]);
        let problems = parse_as(CompatMode::Falco, "engine: {kind: replay}\n", &[]).unwrap_err();
        assert_eq!(
            problems[0].message,
            "the engine replays and no capture is named"
        );
        let both = "rules_file: [a]\nrules_files: [b]\n";
        assert!(parse_as(CompatMode::Falco, both, &[]).is_err());
    }

    #[test]
    fn broken_yaml_has_a_place() {
        let problem = &problems("json_output: [true\npriority: x\n", &[])[0];
        assert!(problem.starts_with("f.yaml:2:"), "{problem}");
        assert!(
            problem.ends_with("| correct the YAML: check indentation and quotes"),
            "{problem}"
        );
        assert_eq!(
            problems("a: 1\na: 2\n", &[]),
            ["f.yaml:2:1: duplicate key `a` | the first is at f.yaml:1:1; remove one of them"]
        );
        assert_eq!(
            problems("- a\n", &[]),
            ["f.yaml:1:1: the configuration has to be a group of settings, found a list"]
        );
    }

    #[test]
    fn falcos_own_keys_are_warned_about_where_they_would_have_done_something() {
        let text = "engine: {kind: modern_ebpf}\ngrpc_output: {enabled: false}\n\
                    base_syscalls:\n  custom_set: [open]\n  all: false\n";
        let (_, warnings) = parse_text(text, &[]).unwrap();
        assert_eq!(
            warnings,
            [
                "f.yaml:1:10: `engine.kind` has no effect: choose the engine with --engine",
                "f.yaml:4:3: `base_syscalls.custom_set` has no effect: only calls that rules need are \
                trapped; see `tollgate rules explain`",
            ]
        );
    }

    #[test]
    fn several_problems_make_one_message() {
        let problems = parse_text("priority: x\njson_output: 1\n", &["a=1"]).unwrap_err();
        assert_eq!(
            failure(&problems).render(),
            "tollgate: cannot use the configuration: f.yaml:1:11: invalid priority `x` (one of \
             emergency, alert, critical, error, warning, notice, informational, debug)\n  \
             f.yaml:2:14: expected true or false, found `1`\n  -o a=1: unknown key `a`\n\
             help: `tollgate config show` lists the keys\n"
        );
    }

    #[test]
    fn an_output_without_a_place_is_an_error_where_it_is_enabled() {
        for (text, options, expected) in [
            (
                "http_output:\n  enabled: true\n",
                &[][..],
                "f.yaml:2:3: `http_output` is enabled and has no `url` | set it, as in -o http_output.url=",
            ),
            (
                "program_output: {program: ''}",
                &["program_output.enabled=true"],
                "-o program_output.enabled=true: `program_output` is enabled and has no `program`",
            ),
            (
                "file_output: {enabled: true, filename: ''}",
                &[],
                "f.yaml:1:15: `file_output` is enabled and has no `filename`",
            ),
        ] {
            let problems = problems(text, options);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with(expected), "{}", problems[0]);
        }
        assert!(parse_text("http_output: {enabled: false}", &[]).is_ok());
    }

    #[test]
    fn plugins_that_are_to_be_loaded_have_to_be_described() {
        let problems = problems("load_plugins: [container, json]", &[]);
        let expected =
            "f.yaml:1:27: `load_plugins` names `json`, which `plugins` does not describe";
        assert!(problems[0].starts_with(expected), "{problems:?}");
        let described = "load_plugins: [json]\nplugins: [{name: json, library_path: libjson.so}]";
        let (config, warnings) = parse_text(described, &[]).expect("it is described");
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(config.plugins.loaded().count(), 1);
        let near = "load_plugins: [jsn]\nplugins: [{name: json, library_path: libjson.so}]";
        let problems = parse_text(near, &[]).expect_err("it is not described");
        assert_eq!(problems[0].help.as_deref(), Some("did you mean `json`?"));
    }

    #[test]
    fn the_old_name_of_rules_files_is_warned_about() {
        let (config, warnings) = parse_text("rules_file: [a.yaml]", &[]).expect("it is known");
        assert_eq!(config.rules_files, [PathBuf::from("a.yaml")]);
        let expected = "f.yaml:1:1: `rules_file` is deprecated: use `rules_files`";
        assert_eq!(warnings, [expected]);
    }

    /// Like Falco's parser; Helm charts write such values.
    #[test]
    fn numbers_and_booleans_may_be_quoted() {
        let text = "json_output: 'true'\noutput_timeout: \"5\"\noutputs: {rate: '0.5'}\n";
        let (config, warnings) = parse_text(text, &[]).expect("good settings");
        assert!(config.json_output && warnings.is_empty(), "{warnings:?}");
        assert_eq!(config.output_timeout_ms, 5);
    }

    #[test]
    fn what_has_no_effect_is_said_of_the_option_that_asks_for_it() {
        let options = ["base_syscalls.custom_set[]=open", "falco_libs.snaplen=9"];
        let text = "base_syscalls: {custom_set: []}\nfalco_libs: {snaplen: 80}";
        let (_, warnings) = parse_text(text, &options).expect("good settings");
        assert!(
            warnings[0].starts_with("-o base_syscalls.custom_set[]=open: "),
            "{warnings:?}"
        );
        assert!(
            warnings[1].starts_with("-o falco_libs.snaplen=9: "),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_named_file_goes_before_the_machines_and_an_option_before_both() {
        let machine = Text {
            path: Path::new("m.yaml"),
            text: "priority: error\noutputs: {rate: 1, max_burst: 2}\njson_output: true\n",
        };
        let user = Text {
            path: Path::new("u.yaml"),
            text: "outputs:\n  rate: 3\n",
        };
        let named = Text {
            path: Path::new("n.yaml"),
            text: "priority: notice\nnosuch: 1\n",
        };
        let options = options(&["outputs.max_burst=9"]);
        let mode = CompatMode::Tollgate;
        let effective = parse_layers(&[machine, user], named, (&[], &options), mode, &|_| None)
            .expect("good settings");
        let config = &effective.config;
        assert_eq!(config.priority, Priority::Notice);
        assert!(config.json_output);
        let throttle = ThrottleRate {
            per_second: 3.0,
            max_burst: 9,
        };
        assert_eq!(config.throttle, throttle);
        assert_eq!(
            config.files,
            ["m.yaml", "u.yaml", "n.yaml"].map(PathBuf::from)
        );
        let origin = |path: &str| {
            let shown = effective.shown().into_iter().find(|key| key.path == path);
            shown.expect("it is a key").origin.to_string()
        };
        assert_eq!(origin("priority"), "n.yaml:1");
        assert_eq!(origin("outputs.rate"), "u.yaml:2");
        assert_eq!(origin("json_output"), "m.yaml:3");
        assert_eq!(origin("outputs.max_burst"), "-o outputs.max_burst=9");
        assert_eq!(origin("verify"), "default");
        let refused = effective.is_known().expect_err("a key is unknown").render();
        assert!(
            refused.contains("n.yaml:2:1: unknown key `nosuch`"),
            "{refused}"
        );
    }

    #[test]
    fn problems_of_every_layer_name_their_file() {
        let layer = |path, text| Text {
            path: Path::new(path),
            text,
        };
        let machine = layer("m.yaml", "priority: [\n");
        let named = layer("n.yaml", "a: 1\na: 2\n");
        let mode = CompatMode::Tollgate;
        let problems = parse_layers(&[machine], named, (&[], &[]), mode, &|_| None)
            .expect_err("both are broken");
        let places: Vec<_> = problems.iter().map(|p| p.origin.to_string()).collect();
        assert_eq!(places.len(), 2, "{places:?}");
        assert!(places[0].starts_with("m.yaml:") && places[1].starts_with("n.yaml:2"));
    }

    #[test]
    fn files_with_unknown_keys_are_remembered() {
        let (config, _) = parse_as(CompatMode::Falco, "json_ouput: true", &["prioritee=1"])
            .expect("unknown keys are warned about");
        assert_eq!(config.files_with_unknown_keys, [PathBuf::from("f.yaml")]);
    }
}
