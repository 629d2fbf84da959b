//! Settings: a Falco configuration file and `-o` options.

mod assign;
mod keys;
pub(crate) mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use outputs::{JsonParts, ThrottleRate};
use rules::diagnostic::closest;
use rules::{AppendOutput, Priority, RuleMatching};

use self::keys::{KEYS, WITHOUT_EFFECT, suggested_outputs};
use self::tree::{Node, Origin, Problem, Value};
use crate::args::{IoUring, Verify};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::recording::CaptureOptions;

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) rules_files: Vec<PathBuf>,
    pub(crate) json_output: bool,
    pub(crate) json_parts: JsonParts,
    pub(crate) time_format_iso_8601: bool,
    pub(crate) priority: Priority,
    pub(crate) buffered_outputs: bool,
    pub(crate) rule_matching: RuleMatching,
    pub(crate) throttle: ThrottleRate,
    /// Alerts that a channel's queue holds, if not the default.
    pub(crate) queue_capacity: Option<usize>,
    /// How long a channel may take over an alert, and the end of the program waits for one that
    /// does not move.
    pub(crate) output_timeout_ms: u64,
    pub(crate) stdout_enabled: bool,
    pub(crate) syslog_enabled: bool,
    pub(crate) file_output: FileOutput,
    pub(crate) program_output: ProgramOutput,
    pub(crate) http_output: HttpOutput,
    pub(crate) append_output: Vec<AppendOutput>,
    pub(crate) verify: Verify,
    pub(crate) io_uring: IoUring,
    pub(crate) capture: CaptureOptions,
}

/// `file_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileOutput {
    pub(crate) enabled: bool,
    pub(crate) keep_alive: bool,
    pub(crate) filename: PathBuf,
}

/// `program_output`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramOutput {
    pub(crate) enabled: bool,
    pub(crate) keep_alive: bool,
    pub(crate) program: String,
}

/// `http_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpOutput {
    pub(crate) enabled: bool,
    pub(crate) url: String,
    pub(crate) user_agent: String,
    pub(crate) insecure: bool,
    pub(crate) ca_cert: PathBuf,
    pub(crate) ca_bundle: PathBuf,
    pub(crate) ca_path: PathBuf,
    pub(crate) mtls: bool,
    pub(crate) client_cert: PathBuf,
    pub(crate) client_key: PathBuf,
    pub(crate) echo: bool,
    pub(crate) compress_uploads: bool,
    pub(crate) keep_alive: bool,
    pub(crate) max_consecutive_timeouts: u8,
}

/// Falco's defaults.
impl Default for HttpOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            url: String::new(),
            user_agent: "falcosecurity/falco".to_owned(),
            insecure: false,
            ca_cert: PathBuf::new(),
            ca_bundle: PathBuf::new(),
            ca_path: PathBuf::from("/etc/ssl/certs"),
            mtls: false,
            client_cert: PathBuf::from("/etc/ssl/certs/client.crt"),
            client_key: PathBuf::from("/etc/ssl/certs/client.key"),
            echo: false,
            compress_uploads: false,
            keep_alive: false,
            max_consecutive_timeouts: 5,
        }
    }
}

/// Falco's defaults.
impl Default for Config {
    fn default() -> Self {
        Self {
            rules_files: Vec::new(),
            json_output: false,
            json_parts: JsonParts::default(),
            time_format_iso_8601: false,
            priority: Priority::Debug,
            buffered_outputs: false,
            rule_matching: RuleMatching::First,
            throttle: ThrottleRate::default(),
            queue_capacity: None,
            output_timeout_ms: 2000,
            stdout_enabled: true,
            syslog_enabled: false,
            file_output: FileOutput {
                enabled: false,
                keep_alive: false,
                filename: PathBuf::from("./events.txt"),
            },
            program_output: ProgramOutput::default(),
            http_output: HttpOutput::default(),
            append_output: Vec::new(),
            verify: Verify::Sampled,
            io_uring: IoUring::Deny,
            capture: CaptureOptions::default(),
        }
    }
}

/// Reads a configuration file, if there is one, and carries out the `-o` options on it. The second
/// part of the result is warnings.
pub(crate) fn load(
    file: Option<&Path>,
    options: &[String],
) -> Result<(Config, Vec<String>), Failure> {
    let (name, text) = match file {
        Some(file) => (file.display().to_string(), read(file)?),
        None => (String::new(), String::new()),
    };
    parse(&name, &text, options).map_err(|problems| failure(&problems))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| {
        let message = format!("cannot read configuration {}: {error}", file.display());
        Failure::new(Exit::BadInput, message).help("give -c a YAML file as Falco's falco.yaml")
    })
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
        None => failure,
    }
}

fn parse(
    name: &str,
    text: &str,
    options: &[String],
) -> Result<(Config, Vec<String>), Vec<Problem>> {
    let mut root = tree::read(name, text).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    for option in options {
        problems.extend(assign::assign(&mut root, option).err());
    }
    let mut config = Config::default();
    let mut ineffective = Vec::new();
    apply("", &root, &mut config, &mut problems, &mut ineffective);
    if problems.is_empty() {
        Ok((config, warnings(&ineffective)))
    } else {
        Err(problems)
    }
}

/// Walks down to the settings and sets them.
fn apply(
    path: &str,
    node: &Node,
    config: &mut Config,
    problems: &mut Vec<Problem>,
    ineffective: &mut Vec<Ineffective>,
) {
    let entries = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        // A group without content sets nothing.
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
            problems.push(Problem::new(&node.origin, message));
            return;
        }
    };
    for entry in entries {
        let path = if path.is_empty() {
            entry.key.clone()
        } else {
            format!("{path}.{}", entry.key)
        };
        if let Some(key) = KEYS.iter().find(|key| key.path == path) {
            problems.extend(key.set(config, &entry.node).err());
            if path == "append_output" {
                let suggested = suggested_outputs(&entry.node).into_iter();
                ineffective.extend(suggested.map(|setting| Ineffective {
                    path: format!("{path}[].{}", setting.key),
                    origin: setting.origin.clone(),
                    why: "plugins suggest outputs, and there are none",
                }));
            }
        } else if KEYS
            .iter()
            .any(|key| key.path.starts_with(&format!("{path}.")))
        {
            apply(&path, &entry.node, config, problems, ineffective);
        } else if let Some((_, why)) = WITHOUT_EFFECT.iter().find(|(key, _)| *key == path) {
            if has_effect_elsewhere(&entry.node) {
                let origin = entry.origin.clone();
                ineffective.push(Ineffective {
                    path: path.clone(),
                    origin,
                    why,
                });
            }
        } else {
            problems.push(unknown(&path, &entry.origin));
        }
    }
}

/// A setting of Falco's that has no effect here.
struct Ineffective {
    path: String,
    origin: Origin,
    why: &'static str,
}

/// Most settings without effect that get a line each; Falco's whole file has twenty.
const MAX_WARNINGS: usize = 3;

fn warnings(ineffective: &[Ineffective]) -> Vec<String> {
    if ineffective.len() <= MAX_WARNINGS {
        let line =
            |it: &Ineffective| format!("{}: `{}` has no effect: {}", it.origin, it.path, it.why);
        return ineffective.iter().map(line).collect();
    }
    let paths: Vec<_> = ineffective.iter().map(|it| it.path.as_str()).collect();
    vec![format!(
        "{} keys have no effect here: {}",
        paths.len(),
        paths.join(", ")
    )]
}

/// What is switched off is not missed.
fn has_effect_elsewhere(node: &Node) -> bool {
    let Value::Map(entries) = &node.value else {
        return true;
    };
    let enabled = entries.iter().find(|entry| entry.key == "enabled");
    enabled.is_none_or(|entry| entry.node.boolean() != Ok(false))
}

fn unknown(path: &str, origin: &Origin) -> Problem {
    let problem = Problem::new(origin, format!("unknown key `{path}`"));
    let known = KEYS
        .iter()
        .map(|key| key.path)
        .chain(WITHOUT_EFFECT.iter().map(|(key, _)| *key));
    let leaf = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let namesake = known.clone().find(|key| leaf(key) == leaf(path));
    match closest(path, known).or(namesake) {
        Some(known) => problem.help(format!("did you mean `{known}`?")),
        None => problem.help("`tollgate man` lists the keys"),
    }
}

/// Paths of all settings, for the manual page.
pub(crate) fn key_names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.path)
}

#[cfg(test)]
mod tests {
    use rules::ExtraField;

    use super::*;

    fn options(list: &[&str]) -> Vec<String> {
        list.iter().map(|&option| option.to_owned()).collect()
    }

    fn problems(text: &str, list: &[&str]) -> Vec<String> {
        let problems = parse("f.yaml", text, &options(list)).unwrap_err();
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
json_include_output_fields_property: false
json_include_message_property: true
time_format_iso_8601: true
priority: warning
buffered_outputs: true
rule_matching: all
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
  - suggested_output: true
  - match: {source: syscall, tags: [t], rule: R}
    extra_output: on %evt.hostname
    extra_fields: [evt.hostname, {who: '%user.name here'}]
verify: always
io_uring: allow
capture:
  enabled: true
  path_prefix: /var/tmp/x
  mode: all_rules
  default_duration: 100
";

    #[test]
    fn every_key_is_taken() {
        let (config, warnings) = parse("f.yaml", ALL, &[]).unwrap();
        assert_eq!(
            warnings,
            [
                "f.yaml:38:5: `append_output[].suggested_output` has no effect: plugins suggest outputs, and there are none"
            ]
        );
        let expected = Config {
            rules_files: vec!["/etc/a.yaml".into(), "b.yaml".into()],
            json_output: true,
            json_parts: JsonParts {
                output: false,
                tags: false,
                output_fields: false,
                message: true,
            },
            time_format_iso_8601: true,
            priority: Priority::Warning,
            buffered_outputs: true,
            rule_matching: RuleMatching::All,
            throttle: ThrottleRate {
                per_second: 0.5,
                max_burst: 3,
            },
            queue_capacity: Some(12),
            output_timeout_ms: 100,
            stdout_enabled: false,
            file_output: FileOutput {
                enabled: true,
                keep_alive: true,
                filename: "/tmp/alerts".into(),
            },
            syslog_enabled: true,
            program_output: ProgramOutput {
                enabled: true,
                keep_alive: true,
                program: "cat > /dev/null".to_owned(),
            },
            http_output: HttpOutput {
                enabled: true,
                url: "https://localhost/".to_owned(),
                user_agent: "me".to_owned(),
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
            },
            append_output: vec![AppendOutput {
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
            }],
            verify: Verify::Always,
            io_uring: IoUring::Allow,
            capture: CaptureOptions {
                enabled: true,
                path_prefix: "/var/tmp/x".to_owned(),
                mode: crate::recording::CaptureMode::AllRules,
                default_duration_ms: 100,
            },
        };
        assert_eq!(config, expected);
        for key in KEYS {
            let leaf = key.path.rsplit('.').next().unwrap();
            assert!(ALL.contains(leaf), "{} is not in the test", key.path);
        }
    }

    #[test]
    fn nothing_means_the_defaults() {
        for text in ["", "# only a comment\n", "outputs:\n"] {
            assert_eq!(
                parse("f.yaml", text, &[]).unwrap().0,
                Config::default(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn options_win_over_the_file() {
        let text = "outputs:\n  rate: 1\n  max_burst: 2\nrules_files:\n  - a\n";
        let list = options(&["outputs.rate=7", "rules_files[1]=b", "json_output=true"]);
        let (config, _) = parse("f.yaml", text, &list).unwrap();
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
        let text = "json_ouput: true\noutputs:\n  rates: 5\n  max_burst: -1\npriority: urgent\n\
                    buffered_outputs: 'true'\nfile_output: yes\n";
        assert_eq!(
            problems(text, &["max_burst=5", "outputs.rate=fast", "zzzz.qqqq=1"]),
            [
                "f.yaml:1:1: unknown key `json_ouput` | did you mean `json_output`?",
                "f.yaml:3:3: unknown key `outputs.rates` | did you mean `outputs.rate`?",
                "f.yaml:4:14: expected a whole number from 0 on, found `-1`",
                "-o outputs.rate=fast: expected a number from 0 on, found `fast`",
                "f.yaml:5:11: `urgent` is no priority | one of emergency, alert, critical, error, \
                 warning, notice, informational, debug",
                "f.yaml:6:19: expected true or false, found `true`",
                "f.yaml:7:14: file_output has to be a group of settings, found `yes`",
                "-o max_burst=5: unknown key `max_burst` | did you mean `outputs.max_burst`?",
                "-o zzzz.qqqq=1: unknown key `zzzz` | `tollgate man` lists the keys",
            ]
        );
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
            ["f.yaml:2:1: key `a` is given twice | the first is at f.yaml:1:1; remove one of them"]
        );
        assert_eq!(
            problems("- a\n", &[]),
            ["f.yaml:1:1: the configuration has to be a group of settings, found a list"]
        );
    }

    #[test]
    fn falcos_own_keys_are_warned_about_where_they_would_have_done_something() {
        let text = "engine: {kind: modern_ebpf}\ngrpc_output: {enabled: false}\nmetrics:\n  enabled: true\n";
        let (_, warnings) = parse("f.yaml", text, &[]).unwrap();
        assert_eq!(
            warnings,
            [
                "f.yaml:1:1: `engine` has no effect: choose the engine with --engine",
                "f.yaml:3:1: `metrics` has no effect: write counters with -s FILE",
            ]
        );
    }

    #[test]
    fn several_problems_make_one_message() {
        let problems = parse("f.yaml", "a: 1\njson_ouput: 1\n", &[]).unwrap_err();
        assert_eq!(
            failure(&problems).render(),
            "tollgate: cannot use the configuration: f.yaml:1:1: unknown key `a` (`tollgate man` \
             lists the keys)\n  f.yaml:2:1: unknown key `json_ouput`\n\
             help: did you mean `json_output`?\n"
        );
    }
}
