//! What can be set, with Falco's defaults.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use outputs::{JsonParts, ThrottleRate};
use rules::{AppendOutput, Priority, RuleMatching};

use crate::args::{IoUring, OnAgentDeath, Verify};
use crate::recording::CaptureOptions;

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) rules_files: Vec<PathBuf>,
    /// Which rules are switched on and off, in this order.
    pub(crate) rules: Vec<Selection>,
    pub(crate) json_output: bool,
    pub(crate) json_parts: JsonParts,
    pub(crate) time_format_iso_8601: bool,
    pub(crate) priority: Priority,
    pub(crate) buffered_outputs: bool,
    pub(crate) rule_matching: RuleMatching,
    pub(crate) throttle: ThrottleRate,
    pub(crate) drops: DropSettings,
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
    pub(crate) static_fields: Vec<(String, String)>,
    pub(crate) verify: Verify,
    pub(crate) io_uring: IoUring,
    pub(crate) capture: CaptureOptions,
    pub(crate) engine: EngineSettings,
    pub(crate) log: Log,
    pub(crate) webserver: Webserver,
    pub(crate) metrics: Metrics,
    pub(crate) grpc: Grpc,
    /// Whether files are watched for changes.
    pub(crate) watch_config_files: bool,
    /// The configuration files that were read, the main one first.
    pub(crate) files: Vec<PathBuf>,
    /// Those of them that have keys which nobody knows.
    pub(crate) files_with_unknown_keys: Vec<PathBuf>,
    /// Folders of configuration files.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) runtime: RuntimeOptions,
}

/// `runtime`: what `tollgate runtime` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeOptions {
    /// Who watches containers.
    pub(crate) agent: WatchedBy,
    /// How many seconds an agent of the host stays when there is no container.
    pub(crate) agent_linger: u64,
    /// What becomes of a container's calls while nobody watches.
    pub(crate) on_agent_death: OnAgentDeath,
    /// Name or path of the runtime that is stood in for; empty for the first that is installed.
    pub(crate) binary: String,
    pub(crate) watch: WatchContainers,
    /// The trace session for gVisor's runtime; empty for none.
    pub(crate) gvisor_session: PathBuf,
    /// The policy of containers that name none: a name in `policies`, or a path; empty for none.
    pub(crate) policy: String,
    /// The folder of policies that annotations may name; empty for the usual one.
    pub(crate) policies: PathBuf,
    /// The kernel of machines; empty for the newest that is installed.
    pub(crate) vm_kernel: PathBuf,
    /// The folder of its modules; empty for the usual one.
    pub(crate) vm_modules: PathBuf,
    /// Whether policies only report.
    pub(crate) audit: bool,
    /// Rules of policies that enforcers may carry in part.
    pub(crate) accept_partial: Vec<String>,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            agent: WatchedBy::default(),
            agent_linger: 60,
            on_agent_death: OnAgentDeath::Continue,
            binary: String::new(),
            watch: WatchContainers::default(),
            gvisor_session: PathBuf::new(),
            policy: String::new(),
            policies: PathBuf::new(),
            vm_kernel: PathBuf::new(),
            vm_modules: PathBuf::new(),
            audit: false,
            accept_partial: Vec::new(),
        }
    }
}

/// Who watches containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchedBy {
    /// Each container and each exec session has an agent of its own
    #[default]
    Container,
    /// One agent watches all containers of the machine
    Host,
}

/// Which containers are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchContainers {
    /// All
    #[default]
    All,
    /// Those whose annotation `tollgate.watch` is `true`
    Annotated,
    /// None
    None,
}

/// One entry of `rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) enable: bool,
    /// Name, in which `*` stands for anything.
    pub(crate) rule: Option<String>,
    pub(crate) tag: Option<String>,
}

impl Selection {
    /// What to say if it is about no rule.
    pub(crate) fn complaint(&self) -> String {
        let verb = if self.enable { "enable" } else { "disable" };
        let rule = self.rule.iter().map(|rule| format!("rule `{rule}`"));
        let tag = self.tag.iter().map(|tag| format!("tag `{tag}`"));
        let what: Vec<_> = rule.chain(tag).collect();
        format!("`rules`: {verb} concerns no rule: {}", what.join(", "))
    }

    /// Whether it is about a rule.
    pub(crate) fn concerns(&self, rule: &rules::Rule) -> bool {
        let by_name = self.rule.as_deref();
        let by_name = by_name.is_some_and(|pattern| matches_wildcard(pattern, &rule.name));
        let by_tag = self.tag.as_ref().is_some_and(|tag| rule.tags.contains(tag));
        by_name || by_tag
    }
}

/// Whether a text fits a pattern in which `*` stands for any text, also none.
fn matches_wildcard(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return text.ends_with(part);
        }
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// What is done when the engine `ebpf` loses events: `syscall_event_drops`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DropSettings {
    /// None: nothing is done, but counting.
    pub(crate) actions: Vec<DropAction>,
    /// The part of a second's events from which on something is done.
    pub(crate) threshold: f64,
    /// How often something is done.
    pub(crate) rate: ThrottleRate,
}

impl Default for DropSettings {
    /// Every loss is told.
    fn default() -> Self {
        Self {
            actions: vec![DropAction::Alert],
            threshold: 0.0,
            rate: ThrottleRate::default(),
        }
    }
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropAction {
    /// An alert.
    Alert,
    /// The end.
    Exit,
    /// A line on the standard error.
    Log,
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
    pub(crate) headers: Vec<(String, String)>,
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

impl Default for HttpOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            url: String::new(),
            user_agent: "falcosecurity/falco".to_owned(),
            headers: Vec::new(),
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

/// `engine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineSettings {
    pub(crate) kind: EngineKind,
    /// Of the kind `replay`.
    pub(crate) capture_file: PathBuf,
    /// Of the kind `gvisor`: the trace session.
    pub(crate) gvisor_session: PathBuf,
    /// Sizes of the ring by kind, as Falco numbers them.
    pub(crate) kmod_buffer: u8,
    pub(crate) ebpf_buffer: u8,
}

/// `engine.kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EngineKind {
    /// The kernel module: another way to what the engine ebpf does.
    Kmod,
    #[default]
    ModernEbpf,
    Replay,
    /// Events of gVisor's sandboxes.
    Gvisor,
    /// No events.
    Nodriver,
}

impl EngineKind {
    /// Whether the kernel tells of events.
    pub(crate) fn watches_the_host(self) -> bool {
        matches!(self, Self::Kmod | Self::ModernEbpf)
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            kind: EngineKind::default(),
            capture_file: PathBuf::new(),
            gvisor_session: PathBuf::new(),
            kmod_buffer: DEFAULT_BUFFER,
            ebpf_buffer: DEFAULT_BUFFER,
        }
    }
}

/// Falco's number for 8 MiB.
const DEFAULT_BUFFER: u8 = 4;

impl EngineSettings {
    /// Size of the ring for most events, of the kind that is chosen.
    pub(crate) fn ring_kib(&self) -> u32 {
        let number = match self.kind {
            EngineKind::Kmod => self.kmod_buffer,
            EngineKind::ModernEbpf
            | EngineKind::Replay
            | EngineKind::Gvisor
            | EngineKind::Nodriver => self.ebpf_buffer,
        };
        // 1 is 1 MiB, and each step doubles it.
        1024 << (number - 1)
    }
}

/// `log_*`: what becomes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) stderr: bool,
    pub(crate) syslog: bool,
    /// The least urgent that is written.
    pub(crate) level: Priority,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            stderr: true,
            syslog: false,
            level: Priority::Informational,
        }
    }
}

/// `webserver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webserver {
    pub(crate) enabled: bool,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) healthz: String,
    pub(crate) metrics: bool,
    pub(crate) tls: bool,
    /// Certificates and key.
    pub(crate) certificate: PathBuf,
}

impl Default for Webserver {
    fn default() -> Self {
        Self {
            enabled: false,
            // Falco has all addresses here, and pages tell what is watched to whoever asks.
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8765,
            healthz: "/healthz".to_owned(),
            metrics: false,
            tls: false,
            certificate: PathBuf::from("/etc/falco/falco.pem"),
        }
    }
}

/// `metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metrics {
    pub(crate) enabled: bool,
    pub(crate) interval: Duration,
    /// Whether a snapshot is an internal event.
    pub(crate) output_rule: bool,
    /// File that snapshots are appended to.
    pub(crate) output_file: PathBuf,
    pub(crate) rules: bool,
    pub(crate) resources: bool,
    pub(crate) state: bool,
    pub(crate) kernel: bool,
    pub(crate) megabytes: bool,
    pub(crate) empty_values: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: Duration::from_secs(5),
            output_rule: false,
            output_file: PathBuf::new(),
            rules: true,
            resources: true,
            state: true,
            kernel: true,
            megabytes: true,
            empty_values: false,
        }
    }
}

/// `grpc` and `grpc_output`, of Falco before 0.44.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grpc {
    /// The server.
    pub(crate) enabled: bool,
    /// `unix:///PATH` or `ADDRESS:PORT`.
    pub(crate) bind_address: String,
    /// Threads; 0 is one for each CPU.
    pub(crate) threadiness: u16,
    pub(crate) private_key: PathBuf,
    pub(crate) cert_chain: PathBuf,
    pub(crate) root_certs: PathBuf,
    /// Whether alerts are kept for its clients.
    pub(crate) output: bool,
}

impl Default for Grpc {
    fn default() -> Self {
        Self {
            enabled: false,
            bind_address: "unix:///run/falco/falco.sock".to_owned(),
            threadiness: 0,
            private_key: PathBuf::from("/etc/falco/certs/server.key"),
            cert_chain: PathBuf::from("/etc/falco/certs/server.crt"),
            root_certs: PathBuf::from("/etc/falco/certs/ca.crt"),
            output: false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rules_files: Vec::new(),
            rules: Vec::new(),
            json_output: false,
            json_parts: JsonParts::default(),
            time_format_iso_8601: false,
            priority: Priority::Debug,
            buffered_outputs: false,
            rule_matching: RuleMatching::First,
            throttle: ThrottleRate::default(),
            drops: DropSettings::default(),
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
            static_fields: Vec::new(),
            verify: Verify::Sampled,
            io_uring: IoUring::Deny,
            capture: CaptureOptions::default(),
            engine: EngineSettings::default(),
            log: Log::default(),
            webserver: Webserver::default(),
            metrics: Metrics::default(),
            grpc: Grpc::default(),
            watch_config_files: false,
            files: Vec::new(),
            files_with_unknown_keys: Vec::new(),
            folders: Vec::new(),
            runtime: RuntimeOptions::default(),
        }
    }
}

impl Config {
    /// Takes another configuration over, but for what needs a restart; that is named.
    pub(crate) fn keep(&mut self, mut new: Self) -> Vec<&'static str> {
        let mut left = Vec::new();
        macro_rules! restart {
            ($($field:ident)*) => {
                $(if self.$field != new.$field {
                    left.push(stringify!($field));
                    new.$field.clone_from(&self.$field);
                })*
            };
        }
        restart! { verify io_uring capture engine drops watch_config_files runtime }
        *self = new;
        left
    }

    /// Whether alerts go out in another way.
    pub(crate) fn has_other_outputs(&self, other: &Self) -> bool {
        macro_rules! differ {
            ($($field:ident)*) => { $(self.$field != other.$field)||* };
        }
        differ! {
            json_output json_parts time_format_iso_8601 buffered_outputs throttle queue_capacity
            output_timeout_ms stdout_enabled syslog_enabled file_output program_output http_output grpc
        }
    }

    /// Whether others can ask for other things, or elsewhere.
    pub(crate) fn has_other_servers(&self, other: &Self) -> bool {
        macro_rules! differ {
            ($($field:ident)*) => { $(self.$field != other.$field)||* };
        }
        // Sums of the files are among what is told.
        differ! { webserver metrics grpc rules_files files }
    }

    /// What Falco does without being told otherwise, where that is not what `tollgate` does.
    pub(crate) fn of_falco() -> Self {
        Self {
            stdout_enabled: false,
            watch_config_files: true,
            engine: EngineSettings {
                kind: EngineKind::Kmod,
                ..EngineSettings::default()
            },
            log: Log {
                stderr: false,
                syslog: true,
                ..Log::default()
            },
            drops: DropSettings {
                actions: vec![DropAction::Log, DropAction::Alert],
                threshold: 0.1,
                rate: ThrottleRate {
                    per_second: 0.033_33,
                    max_burst: 1,
                },
            },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, fits) in [
            ("Read *", "Read files", true),
            ("Read *", "Read ", true),
            ("*", "", true),
            ("*", "x", true),
            ("*shell*", "a shell b", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "abcb", false),
            ("a*a", "a", false),
            ("R", "R", true),
            ("R", "RR", false),
            ("Read *", "read x", false),
        ] {
            assert_eq!(matches_wildcard(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn rings_have_falcos_sizes() {
        let ring = |ebpf_buffer| {
            EngineSettings {
                kind: EngineKind::ModernEbpf,
                ebpf_buffer,
                ..EngineSettings::default()
            }
            .ring_kib()
        };
        assert_eq!(ring(1), 1024);
        assert_eq!(ring(4), 8192);
        assert_eq!(ring(10), 512 * 1024);
    }
}
