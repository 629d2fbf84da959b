//! What settings that were given as texts may say. Whoever may write a Config in a cluster is not thereby root of its nodes,
//! while the agent that reads it is.

use std::fs;
use std::path::{Component, Path};

use config::Config;
use config::ResponseSettings;

use crate::given::GivenFolders;

const BY_NAME: &str = "rules are given by name, not as files of the node";
const NO_PROGRAM: &str = "a given text starts no program on the node";
const NO_LIBRARY: &str = "a given text loads no libraries on the node";
const NO_SERVER: &str = "a given text opens no socket on the node";
const NO_CAPTURE: &str = "the engine is the agent's, and reads no files";

/// Keys and groups that no given text may have, and why.
pub(crate) const REFUSED: [(&str, &str); 19] = [
    ("rules_files", BY_NAME),
    ("rules_file", BY_NAME),
    ("config_files", "a given text includes no files of the node"),
    ("program_output", NO_PROGRAM),
    // Actions of a response file run scripts, and end processes.
    ("responses_files", NO_PROGRAM),
    ("responses", NO_PROGRAM),
    ("load_plugins", NO_LIBRARY),
    ("plugins", NO_LIBRARY),
    // It also names the program that loads them.
    ("plugin_host", NO_LIBRARY),
    (
        "watch_config_files",
        "given texts are followed by themselves",
    ),
    // They listen, and the path of a UNIX socket is made anew.
    ("webserver", NO_SERVER),
    ("grpc", NO_SERVER),
    ("grpc_output", NO_SERVER),
    ("engine.gvisor", NO_CAPTURE),
    ("engine.replay", NO_CAPTURE),
    // Names the programs, kernels and policies of containers.
    ("runtime", "the container runtime has settings of its own"),
    // The settings of a bundle would go before what is refused here.
    (
        "collector_output.bundle_key",
        "rules are given by name, not by a bundle of the collector",
    ),
    (
        "collector_output.allow_loosening",
        "policies come from the cluster, not from a bundle of the collector",
    ),
    // A capture has everything that the node's programs do, and the text may name the collector.
    (
        "collector_output.allow_captures",
        "a given text lets nobody record the events of the node",
    ),
];

/// A setting that names a file.
struct FileSetting {
    path: &'static str,
    /// Whether the file is written, not read.
    is_written: bool,
    value: fn(&Config) -> &Path,
    /// Whether the value counts even if it is the default.
    is_used: fn(&Config) -> bool,
}

const fn read(path: &'static str, value: fn(&Config) -> &Path) -> FileSetting {
    FileSetting {
        path,
        is_written: false,
        value,
        // The defaults are certificates that a system has.
        is_used: |_| false,
    }
}

const fn written(
    path: &'static str,
    value: fn(&Config) -> &Path,
    is_used: fn(&Config) -> bool,
) -> FileSetting {
    FileSetting {
        path,
        is_written: true,
        value,
        is_used,
    }
}

/// All settings that name files and are not refused.
#[rustfmt::skip]
const FILES: &[FileSetting] = &[
    written("capture.path_prefix", |config| Path::new(&config.capture.path_prefix), |config| config.capture.enabled),
    written("collector_output.spool", |config| &config.outputs.collector.spool, |_| false),
    written("file_output.filename", |config| &config.outputs.file.filename, |config| config.outputs.file.enabled),
    written("metrics.output_file", |config| &config.metrics.output_file, |_| false),
    read("collector_output.ca_file", |config| &config.outputs.collector.ca_file),
    read("collector_output.cert_file", |config| &config.outputs.collector.cert_file),
    read("collector_output.key_file", |config| &config.outputs.collector.key_file),
    read("collector_output.token_file", |config| &config.outputs.collector.token_file),
    read("http_output.ca_bundle", |config| &config.outputs.http.ca_bundle),
    read("http_output.ca_cert", |config| &config.outputs.http.ca_cert),
    read("http_output.ca_path", |config| &config.outputs.http.ca_path),
    read("http_output.client_cert", |config| &config.outputs.http.client_cert),
    read("http_output.client_key", |config| &config.outputs.http.client_key),
    read("nats_output.credentials_file", |config| &config.outputs.nats.credentials_file),
    read("nats_output.password_file", |config| &config.outputs.nats.password_file),
    read("nats_output.tls.ca_file", |config| &config.outputs.nats.tls.ca_file),
    read("nats_output.tls.cert_file", |config| &config.outputs.nats.tls.cert_file),
    read("nats_output.tls.key_file", |config| &config.outputs.nats.tls.key_file),
    read("nats_output.token_file", |config| &config.outputs.nats.token_file),
    read("otlp_output.tls.ca_file", |config| &config.outputs.otlp.ca_file),
    read("otlp_output.tls.cert_file", |config| &config.outputs.otlp.cert_file),
    read("otlp_output.tls.key_file", |config| &config.outputs.otlp.key_file),
];

/// A setting that names a file which it may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileProblem {
    /// The group of the setting, such as `file_output`.
    pub(crate) group: &'static str,
    /// What is wrong.
    pub(crate) message: String,
}

/// What is wrong with the files that a configuration names. It is asked of the merged settings, whose variables are expanded,
/// and not of each text: a default counts, too.
pub(crate) fn file_problems(config: &Config, folders: Option<&GivenFolders>) -> Vec<FileProblem> {
    let default = Config::default();
    let problem = |setting: &FileSetting| {
        let value = (setting.value)(config);
        if !(setting.is_used)(config) && value == (setting.value)(&default) {
            return None;
        }
        // An empty path names no file.
        if !(setting.is_used)(config) && value.as_os_str().is_empty() {
            return None;
        }
        let path = setting.path;
        let why = why_outside(value, setting.is_written, folders)?;
        let group = path.split_once('.').map_or(path, |(group, _)| group);
        let message = format!("`{path}` cannot be {} here: {why}", value.display());
        Some(FileProblem { group, message })
    };
    FILES.iter().filter_map(problem).collect()
}

/// Why a path may not be used; `None` if it may.
fn why_outside(path: &Path, is_written: bool, folders: Option<&GivenFolders>) -> Option<String> {
    let Some(folders) = folders else {
        return Some("a given text names no files of the node".to_owned());
    };
    let (folder, verb) = match is_written {
        true => (&folders.written, "written"),
        false => (&folders.read, "read"),
    };
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::RootDir);
    let rest = path.strip_prefix(folder).ok();
    let rest = rest.filter(|rest| !rest.as_os_str().is_empty() && path.components().all(is_plain));
    let Some(rest) = rest else {
        let folder = folder.display();
        return Some(format!("only files in {folder} are {verb}, without `..`"));
    };
    if !is_written {
        // Mounted Secrets have links of their own. Only root writes there.
        return None;
    }
    let mut at = folder.clone();
    for part in rest.components() {
        at.push(part);
        if fs::symlink_metadata(&at).is_ok_and(|there| there.is_symlink()) {
            return Some(format!("{} is a symbolic link", at.display()));
        }
    }
    None
}

/// Why a configuration with given texts cannot be used, whoever has set what; `None` if it can. This is the barrier behind
/// [`REFUSED`]: it also holds where a text was not checked, or another way brings settings.
pub(crate) fn why_unusable(config: &Config, folders: Option<&GivenFolders>) -> Option<String> {
    let refused = [
        (config.outputs.program.enabled, "program_output", NO_PROGRAM),
        (
            config.responses != ResponseSettings::default(),
            "responses",
            NO_PROGRAM,
        ),
        (config.webserver.enabled, "webserver", NO_SERVER),
        (config.grpc.enabled, "grpc", NO_SERVER),
    ];
    let found = refused.iter().find(|(is_set, ..)| *is_set);
    if let Some((_, group, why)) = found {
        return Some(format!("`{group}` cannot be set here: {why}"));
    }
    let problem = file_problems(config, folders).into_iter().next();
    problem.map(|problem| problem.message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::embedded::{self, SourceProblem};
    use crate::given::{GivenHandle, GivenSources};
    use crate::options::{Detection, Interception};
    use crate::settings::configuration;

    /// Keys that may be set by whoever writes a Config: they name no file, no program and nothing to listen on.
    const HARMLESS: &[&str] = &[
        "append_output",
        "buffered_outputs",
        "capture.default_duration",
        "capture.enabled",
        "capture.max_file_size_mb",
        "capture.mode",
        "collector_output.allow_rollback",
        "collector_output.bundle_min_version",
        // Without `allow_captures`, they are refused.
        "collector_output.capture_on_alert.after",
        "collector_output.capture_on_alert.before",
        "collector_output.capture_on_alert.limit",
        "collector_output.capture_on_alert.max_per_hour",
        "collector_output.capture_on_alert.priority",
        "collector_output.capture_on_alert.rules",
        "collector_output.enabled",
        "collector_output.labels",
        "collector_output.spool_limit",
        "collector_output.url",
        "engine.kind",
        "engine.kmod.buf_size_preset",
        "engine.modern_ebpf.buf_size_preset",
        "file_output.enabled",
        "file_output.keep_alive",
        "http_output.compress_uploads",
        "http_output.echo",
        "http_output.enabled",
        "http_output.headers",
        "http_output.insecure",
        "http_output.keep_alive",
        "http_output.max_consecutive_timeouts",
        "http_output.mtls",
        "http_output.url",
        "http_output.user_agent",
        "io_uring",
        "json_include_ids_property",
        "json_include_message_property",
        "json_include_output_fields_property",
        "json_include_output_property",
        "json_include_tags_property",
        "json_output",
        "log_level",
        "log_stderr",
        "log_syslog",
        "metrics.convert_memory_to_mb",
        "metrics.enabled",
        "metrics.include_empty_values",
        "metrics.interval",
        "metrics.kernel_event_counters_enabled",
        "metrics.output_rule",
        "metrics.resource_utilization_enabled",
        "metrics.rules_counters_enabled",
        "metrics.state_counters_enabled",
        "nats_output.enabled",
        "nats_output.jetstream.enabled",
        "nats_output.jetstream.stream",
        "nats_output.subject",
        "nats_output.timeout",
        "nats_output.tls.enabled",
        "nats_output.url",
        "nats_output.user",
        "otlp_output.compression",
        "otlp_output.enabled",
        "otlp_output.endpoint",
        "otlp_output.headers",
        "otlp_output.protocol",
        "otlp_output.resource_attributes",
        "otlp_output.service_name",
        "otlp_output.timeout",
        "output_timeout",
        "outputs.max_burst",
        "outputs.rate",
        "outputs_queue.capacity",
        "priority",
        "rule_matching",
        "rules",
        "rules_level",
        "static_fields",
        "stdout_output.enabled",
        "syscall_event_drops.actions",
        "syscall_event_drops.max_burst",
        "syscall_event_drops.rate",
        "syscall_event_drops.threshold",
        "syslog_output.enabled",
        "time_format_iso_8601",
        "tollgate_internal",
        "verify",
    ];

    fn is_refused(path: &str) -> bool {
        let is_in = |group: &str| {
            let rest = path.strip_prefix(group);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        REFUSED.iter().any(|(group, _)| is_in(group))
    }

    #[test]
    fn each_key_is_refused_or_confined_or_harmless() {
        for path in config::key_names() {
            let judged = [
                is_refused(path),
                FILES.iter().any(|setting| setting.path == path),
                HARMLESS.contains(&path),
            ];
            let count = judged.iter().filter(|is_so| **is_so).count();
            assert_eq!(count, 1, "`{path}`: decide what a Config may do by it");
        }
        for path in HARMLESS {
            assert!(config::key_names().any(|known| known == *path), "{path}");
        }
    }

    /// Settings in one text, between two others.
    fn detection(text: &str, folders: Option<GivenFolders>) -> (Detection, GivenSources) {
        let own = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let sources = GivenSources {
            without_builtin: true,
            settings: vec![
                own("before", "json_output: true\n"),
                own("s", text),
                own("after", "priority: debug\n"),
            ],
            ..GivenSources::default()
        };
        let detection = Detection {
            given_folders: folders,
            given: Some(Arc::new(GivenHandle::new(sources.clone()))),
            ..Detection::default()
        };
        (detection, sources)
    }

    fn problems(text: &str, folders: Option<GivenFolders>) -> Vec<SourceProblem> {
        let (detection, sources) = detection(text, folders);
        match embedded::check(&detection, &sources) {
            Ok(()) => Vec::new(),
            Err(problems) => problems,
        }
    }

    fn folders(root: &Path) -> GivenFolders {
        GivenFolders {
            written: root.join("out"),
            read: root.join("in"),
        }
    }

    #[test]
    fn each_file_has_to_be_in_its_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let own = folders(dir.path());
        fs::create_dir(&own.written).expect("it is new");
        std::os::unix::fs::symlink("/etc", own.written.join("link")).expect("it is new");
        for setting in FILES {
            let root = match setting.is_written {
                true => own.written.display(),
                false => own.read.display(),
            };
            let text = |value: String| format!("{}: {value:?}\n", setting.path);
            for good in ["x", "x.y", "x/y"] {
                let found = problems(&text(format!("{root}/{good}")), Some(own.clone()));
                assert_eq!(found, [], "{}", setting.path);
            }
            let mut bad = vec![
                "/proc/1/cwd/etc/profile.d/x.sh".to_owned(),
                "events".to_owned(),
                root.to_string(),
                format!("{root}x"),
                format!("{root}/../x"),
            ];
            if setting.is_written {
                bad.extend([format!("{root}/link"), format!("{root}/link/x")]);
            }
            for value in bad {
                for folders in [Some(own.clone()), None] {
                    let found = problems(&text(value.clone()), folders);
                    assert_eq!(found.len(), 1, "{}: {value}: {found:?}", setting.path);
                    assert_eq!(found[0].text.as_deref(), Some("s"), "{found:?}");
                    assert!(found[0].message.contains(setting.path), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn the_default_file_of_an_output_that_is_on_is_no_exception() {
        let dir = tempfile::tempdir().expect("a folder");
        for text in [
            "file_output: {enabled: true}\n",
            "capture: {enabled: true}\n",
            "capture: {enabled: true, path_prefix: ''}\n",
        ] {
            let found = problems(text, Some(folders(dir.path())));
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert_eq!(found[0].text.as_deref(), Some("s"), "{found:?}");
        }
        let off = "file_output: {enabled: false, filename: ./events.txt}\nmetrics: {enabled: true, output_file: ''}\n";
        assert_eq!(problems(off, Some(folders(dir.path()))), []);
    }

    #[test]
    fn a_config_starts_no_program_by_a_response_file() {
        for text in [
            "responses_files: [/x.yaml]\n",
            "responses: {dry_run: false}\n",
            "responses.rate: 1\n",
        ] {
            let found = problems(text, None);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert_eq!(found[0].text.as_deref(), Some("s"), "{found:?}");
            assert!(found[0].message.contains("starts no program"), "{found:?}");
        }
    }

    #[test]
    fn settings_that_were_not_checked_meet_a_second_barrier() {
        for text in [
            "responses_files: [/x.yaml]\n",
            "program_output: {enabled: true, program: id}\n",
            "webserver: {enabled: true}\n",
            "grpc: {enabled: true}\n",
            "file_output: {enabled: true, filename: /etc/x}\n",
        ] {
            let (detection, _) = detection(text, None);
            let failure = configuration(&detection, &Interception::default()).err();
            let failure = failure.unwrap_or_else(|| panic!("{text} is in force"));
            assert!(failure.render().contains("cannot be"), "{text}");
        }
        // Counterpart: the host's own configuration may.
        let own = ["responses.dry_run=true", "webserver.enabled=true"];
        let own = Detection {
            options: own.map(str::to_owned).into(),
            ..Detection::default()
        };
        assert!(configuration(&own, &Interception::default()).is_ok());
    }
}
