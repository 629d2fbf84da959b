//! The typed model of the configuration, with Falco's defaults.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use outputs::{JsonParts, Outputs, StdoutOutput, ThrottleRate};
use rules::{AppendOutput, Level, Priority, RuleMatching};
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::levels;
use super::plugins::PluginSettings;
use super::responses::ResponseSettings;
use super::rule_files::RuleSources;

/// All settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `rules_files`: rule files and folders of rule files.
    pub rules_files: Vec<PathBuf>,
    /// Folder whose rule files are loaded after the built-in rules; it need not exist. Not loaded if `rules_files`
    /// names files.
    pub rules_folder: Option<PathBuf>,
    /// Rule files of a signed bundle in place of these, by name and text; empty without one.
    pub bundled_rules: Vec<(String, String)>,
    /// Rule files and folders that are loaded after all others (`--add-rules`).
    pub added_rules: Vec<PathBuf>,
    /// Rule files that a program gives, by name and text; loaded last.
    pub given_rules: Vec<(String, String)>,
    /// `rules_level`: highest level of the rules that are on. `rules` starts with the selections that it implies.
    pub level: Level,
    /// Levels mean nothing, as for Falco: all rules are on, and each output takes all alerts.
    pub ignores_levels: bool,
    /// `rules`: selections that enable and disable rules, in order.
    pub rules: Vec<Selection>,
    /// `json_output`: write alerts as JSON.
    pub json_output: bool,
    /// `json_*`: optional parts of JSON alerts.
    pub json_parts: JsonParts,
    /// `time_format_iso_8601`: write times in ISO 8601.
    pub time_format_iso_8601: bool,
    /// `tollgate_internal`: outputs get internal alerts that Falco does not have. They do anyway but as `falco`.
    pub tollgate_internal: bool,
    /// `priority`: rules less urgent than this are not loaded.
    pub priority: Priority,
    /// `buffered_outputs`: do not flush after each alert.
    pub buffered_outputs: bool,
    /// `rule_matching`: match the first rule or all rules.
    pub rule_matching: RuleMatching,
    /// `outputs`: rate limit of alerts.
    pub throttle: ThrottleRate,
    /// `syscall_event_drops`.
    pub drops: DropSettings,
    /// `outputs_queue.capacity`: capacity of each channel's queue, in alerts. `None` for the
    /// default.
    pub queue_capacity: Option<usize>,
    /// `output_timeout`: time limit of a channel for one alert, and of a blocked channel at the end
    /// of the program, in milliseconds.
    pub output_timeout_ms: u64,
    /// `stdout_output`, `file_output` and the other outputs.
    pub outputs: Outputs,
    /// `append_output`.
    pub append_output: Vec<AppendOutput>,
    /// `static_fields`: fields that are added to every alert.
    pub static_fields: Vec<(String, String)>,
    /// `verify`: calls whose arguments are compared with what the kernel used.
    pub verify: Verify,
    /// `io_uring`: whether the workload may use io_uring.
    pub io_uring: IoUring,
    /// `capture`.
    pub capture: CaptureOptions,
    /// `engine`.
    pub engine: EngineSettings,
    /// `log_stderr`, `log_syslog` and `log_level`.
    pub log: Log,
    /// `webserver`.
    pub webserver: Webserver,
    /// `metrics`.
    pub metrics: Metrics,
    /// `grpc` and `grpc_output`.
    pub grpc: Grpc,
    /// `watch_config_files`: reload rules and configuration when their files change.
    pub watch_config_files: bool,
    /// Configuration files that were read, those that nobody named first.
    pub files: Vec<PathBuf>,
    /// Configuration files that are read without being named. They need not exist.
    pub layers: Vec<PathBuf>,
    /// Configuration files with unknown keys.
    pub files_with_unknown_keys: Vec<PathBuf>,
    /// Directories of included configuration files.
    pub folders: Vec<PathBuf>,
    /// `runtime`.
    pub runtime: RuntimeOptions,
    /// `responses_files` and `responses`.
    pub responses: ResponseSettings,
    /// `load_plugins`, `plugins` and `plugin_host`.
    pub plugins: PluginSettings,
}

/// `runtime`: settings of `tollgate runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Which agent watches containers.
    pub agent: WatchedBy,
    /// Time a host agent stays without containers, in seconds.
    pub agent_linger: u64,
    /// What happens to a container while no agent runs.
    pub on_agent_death: OnAgentDeath,
    /// Name or path of the underlying runtime; empty for the first installed one.
    pub binary: String,
    /// Selects the containers that are watched.
    pub watch: WatchContainers,
    /// The trace session for gVisor's runtime; empty for none.
    pub gvisor_session: PathBuf,
    /// Policy of containers without one: a name in `policies`, or a path; empty for none.
    pub policy: String,
    /// Directory of policies that annotations can name; empty for the default.
    pub policies: PathBuf,
    /// Kernel of virtual machines; empty for the newest one installed.
    pub vm_kernel: PathBuf,
    /// Directory of the kernel's modules; empty for the default.
    pub vm_modules: PathBuf,
    /// Policies report violations without enforcing.
    pub audit: bool,
    /// Policy rules that enforcers may enforce only partially.
    pub accept_partial: Vec<String>,
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

/// `runtime.agent`: which agent watches containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchedBy {
    /// Each container and each exec session has an agent of its own.
    #[default]
    Container,
    /// One agent watches all containers of the host.
    Host,
}

impl Choice for WatchedBy {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Container,
            "container",
            "Each container and each exec session has an agent of its own",
        ),
        (
            Self::Host,
            "host",
            "One agent watches all containers of the machine",
        ),
    ];
}

/// `runtime.watch`: selects the containers that are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchContainers {
    /// All containers.
    #[default]
    All,
    /// Containers whose annotation `tollgate.watch` is `true`.
    Annotated,
    /// All containers but those whose annotation `tollgate.watch` is `false`.
    UnlessAnnotated,
    /// No containers.
    None,
}

impl Choice for WatchContainers {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::All, "all", "All"),
        (
            Self::Annotated,
            "annotated",
            "Those whose annotation `tollgate.watch` is `true`",
        ),
        (
            Self::UnlessAnnotated,
            "unless_annotated",
            "All but those whose annotation `tollgate.watch` is `false`",
        ),
        (Self::None, "none", "None"),
    ];
}

/// `runtime.on_agent_death` and `--on-agent-death`: what happens to watched processes while no agent runs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum OnAgentDeath {
    /// Allow their calls and count them.
    Continue,
    /// Fail their calls with EPERM, except harmless ones.
    Deny,
    /// Kill the processes.
    Kill,
}

impl Choice for OnAgentDeath {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Continue,
            "continue",
            "Its calls pass, and are counted",
        ),
        (
            Self::Deny,
            "deny",
            "Its calls fail with EPERM, but for those that can do no harm",
        ),
        (Self::Kill, "kill", "It is killed"),
    ];
}

/// `verify`: selects the calls whose arguments are compared with what the kernel used. Only
/// processes whose memory others can write are concerned.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Verify {
    /// No calls.
    Off,
    /// Calls that rules ask about: 64 a second per process, then one in 16.
    Sampled,
    /// All calls.
    Always,
}

impl Choice for Verify {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Off, "off", "None"),
        (
            Self::Sampled,
            "sampled",
            "What rules ask about, 64 others a second and process, then one in 16",
        ),
        (Self::Always, "always", "All"),
    ];
}

/// `io_uring`: the result of `io_uring_setup`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum IoUring {
    /// Fails with ENOSYS.
    Deny,
    /// The kernel's result.
    Allow,
}

impl Choice for IoUring {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Deny, "deny", "It fails with ENOSYS"),
        (Self::Allow, "allow", "It is carried out"),
    ];
}

/// `capture.mode`: selects the matches that start a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Matches of rules with `capture: true`.
    #[default]
    Rules,
    /// All matches.
    AllRules,
}

/// `capture`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Matches start captures.
    pub enabled: bool,
    /// Path prefix of capture files.
    pub path_prefix: String,
    /// Selects the matches that start a capture.
    pub mode: CaptureMode,
    /// Default duration of a capture in milliseconds, for rules without one.
    pub default_duration_ms: u64,
    /// Maximum size of a capture in MiB; 0 for no limit.
    pub max_file_size_mb: u64,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            enabled: false,
            path_prefix: "/tmp/falco".to_owned(),
            mode: CaptureMode::Rules,
            default_duration_ms: 5000,
            max_file_size_mb: 0,
        }
    }
}

/// One entry of `rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Enable matching rules; otherwise disable them.
    pub enable: bool,
    /// Name of the rule; `*` matches any text.
    pub rule: Option<String>,
    /// Tag of the rule.
    pub tag: Option<String>,
    /// Whether this stems from `rules_level`. It need not concern any rule.
    pub implied: bool,
}

impl Selection {
    /// Returns the warning for a selection that matches no rule.
    #[must_use]
    pub fn complaint(&self) -> String {
        let verb = if self.enable { "enable" } else { "disable" };
        let rule = self.rule.iter().map(|rule| format!("rule `{rule}`"));
        let tag = self.tag.iter().map(|tag| format!("tag `{tag}`"));
        let what: Vec<_> = rule.chain(tag).collect();
        let complaint = format!("`rules`: {verb} concerns no rule: {}", what.join(", "));
        match levels::would_enable_hunting(self) {
            true => format!(
                "{complaint}; built-in rules of level hunting have such names: --level hunting turns these on"
            ),
            false => complaint,
        }
    }

    /// Returns true if this selection matches `rule`.
    #[must_use]
    pub fn concerns(&self, rule: &rules::Rule) -> bool {
        let by_tag = self.tag.as_ref().is_some_and(|tag| rule.tags.contains(tag));
        self.names(&rule.name) || by_tag
    }

    /// Returns true if the pattern of names, if there is one, matches this name.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        let pattern = self.rule.as_deref();
        pattern.is_some_and(|pattern| matches_wildcard(pattern, name))
    }
}

/// Returns true if a text matches a pattern in which `*` stands for any text, including none.
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

/// `syscall_event_drops`: reaction to events lost by the engine `ebpf`.
#[derive(Clone, Debug, PartialEq)]
pub struct DropSettings {
    /// Actions; empty to only count losses.
    pub actions: Vec<DropAction>,
    /// Share of lost events within a second above which the actions run.
    pub threshold: f64,
    /// Rate limit of the actions.
    pub rate: ThrottleRate,
}

impl Default for DropSettings {
    /// Reports every loss.
    fn default() -> Self {
        Self {
            actions: vec![DropAction::Alert],
            threshold: 0.0,
            rate: ThrottleRate::default(),
        }
    }
}

/// A reaction to lost events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropAction {
    /// Write an alert.
    Alert,
    /// End the program.
    Exit,
    /// Write a line to the standard error.
    Log,
}

/// `engine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// `engine.kind`.
    pub kind: FalcoEngine,
    /// Capture file of the kind `replay`.
    pub capture_file: PathBuf,
    /// Trace session of the kind `gvisor`.
    pub gvisor_session: PathBuf,
    /// Ring buffer size of the kind `kmod`, by Falco's number.
    pub kmod_buffer: u8,
    /// Ring buffer size of the kind `modern_ebpf`, by Falco's number.
    pub ebpf_buffer: u8,
}

/// `engine.kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FalcoEngine {
    /// The kernel module; here the same as the engine `ebpf`.
    Kmod,
    /// The engine `ebpf`.
    #[default]
    ModernEbpf,
    /// A capture file.
    Replay,
    /// Events of gVisor sandboxes.
    Gvisor,
    /// No events.
    Nodriver,
}

impl FalcoEngine {
    /// Returns true if events come from the kernel of this host.
    #[must_use]
    pub fn watches_the_host(self) -> bool {
        matches!(self, Self::Kmod | Self::ModernEbpf)
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            kind: FalcoEngine::default(),
            capture_file: PathBuf::new(),
            gvisor_session: PathBuf::new(),
            kmod_buffer: DEFAULT_BUFFER,
            ebpf_buffer: DEFAULT_BUFFER,
        }
    }
}

/// Falco's number for a ring buffer of 8 MiB.
const DEFAULT_BUFFER: u8 = 4;

impl EngineSettings {
    /// Returns the ring buffer size in KiB of the selected kind.
    #[must_use]
    pub fn ring_kib(&self) -> u32 {
        let number = match self.kind {
            FalcoEngine::Kmod => self.kmod_buffer,
            FalcoEngine::ModernEbpf
            | FalcoEngine::Replay
            | FalcoEngine::Gvisor
            | FalcoEngine::Nodriver => self.ebpf_buffer,
        };
        // 1 is 1 MiB, and each step doubles it.
        1024 << (number - 1)
    }
}

/// `log_stderr`, `log_syslog` and `log_level`: destinations of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Write messages to the standard error.
    pub stderr: bool,
    /// Write messages to the system log.
    pub syslog: bool,
    /// Messages less urgent than this are not written.
    pub level: Priority,
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
pub struct Webserver {
    /// Start the web server.
    pub enabled: bool,
    /// Listening address.
    pub address: IpAddr,
    /// Listening port.
    pub port: u16,
    /// Path of the health page.
    pub healthz: String,
    /// Serve Prometheus metrics.
    pub metrics: bool,
    /// Use HTTPS.
    pub tls: bool,
    /// File with certificates and private key.
    pub certificate: PathBuf,
}

impl Default for Webserver {
    fn default() -> Self {
        Self {
            enabled: false,
            // Falco listens on all addresses, where any host could read what is watched.
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
pub struct Metrics {
    /// Collect metrics.
    pub enabled: bool,
    /// Interval between snapshots.
    pub interval: Duration,
    /// Write each snapshot as an internal event.
    pub output_rule: bool,
    /// File to which snapshots are appended.
    pub output_file: PathBuf,
    /// Count alerts by rule.
    pub rules: bool,
    /// Include processor time and memory.
    pub resources: bool,
    /// Include sizes of internal tables.
    pub state: bool,
    /// Include counters of the kernel side.
    pub kernel: bool,
    /// Convert memory to megabytes.
    pub megabytes: bool,
    /// Include metrics that are zero.
    pub empty_values: bool,
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
pub struct Grpc {
    /// Start the server.
    pub enabled: bool,
    /// `unix:///PATH` or `ADDRESS:PORT`.
    pub bind_address: String,
    /// Number of threads; 0 for one per CPU.
    pub threadiness: u16,
    /// Private key of the server.
    pub private_key: PathBuf,
    /// Certificates of the server.
    pub cert_chain: PathBuf,
    /// Certificate authorities of clients.
    pub root_certs: PathBuf,
    /// Keep alerts for the server's clients.
    pub output: bool,
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
            rules_folder: None,
            bundled_rules: Vec::new(),
            added_rules: Vec::new(),
            given_rules: Vec::new(),
            level: Level::Stable,
            ignores_levels: false,
            rules: Vec::new(),
            json_output: false,
            json_parts: JsonParts::default(),
            time_format_iso_8601: false,
            tollgate_internal: false,
            priority: Priority::Debug,
            buffered_outputs: false,
            rule_matching: RuleMatching::First,
            throttle: ThrottleRate::default(),
            drops: DropSettings::default(),
            queue_capacity: None,
            output_timeout_ms: 2000,
            outputs: Outputs::default(),
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
            layers: Vec::new(),
            files_with_unknown_keys: Vec::new(),
            folders: Vec::new(),
            runtime: RuntimeOptions::default(),
            responses: ResponseSettings::default(),
            plugins: PluginSettings::default(),
        }
    }
}

impl Config {
    /// Returns the files that the rules are read from.
    #[must_use]
    pub fn rule_sources(&self) -> RuleSources {
        RuleSources {
            named: self.rules_files.clone(),
            folder: self.rules_folder.clone(),
            bundled: self.bundled_rules.clone(),
            added: self.added_rules.clone(),
            given: self.given_rules.clone(),
            level: self.level,
            enables_hunting: self.rules.iter().any(levels::enables_hunting),
            // Falco knows no levels.
            as_falco: self.ignores_levels,
        }
    }

    /// Replaces this configuration by `new`, except for settings that need a restart. Returns the
    /// names of those that differ.
    #[must_use]
    pub fn keep(&mut self, mut new: Self) -> Vec<&'static str> {
        let mut left = Vec::new();
        macro_rules! restart {
            ($($field:ident)*) => {
                $(if self.$field != new.$field {
                    left.push(stringify!($field));
                    new.$field.clone_from(&self.$field);
                })*
            };
        }
        restart! { verify io_uring capture engine drops watch_config_files runtime responses plugins }
        *self = new;
        left
    }

    /// Returns true if settings of outputs differ.
    #[must_use]
    pub fn has_other_outputs(&self, other: &Self) -> bool {
        macro_rules! differ {
            ($($field:ident)*) => { $(self.$field != other.$field)||* };
        }
        differ! {
            json_output json_parts time_format_iso_8601 tollgate_internal buffered_outputs throttle queue_capacity
            output_timeout_ms outputs grpc
        }
    }

    /// Returns true if settings of servers, or what they report, differ.
    #[must_use]
    pub fn has_other_servers(&self, other: &Self) -> bool {
        macro_rules! differ {
            ($($field:ident)*) => { $(self.$field != other.$field)||* };
        }
        // The reported metrics include checksums of the files.
        differ! { webserver metrics grpc rules_files rules_folder bundled_rules added_rules given_rules level files }
    }

    /// Returns Falco's defaults, some of which differ from this program's.
    #[must_use]
    pub fn of_falco() -> Self {
        Self {
            outputs: Outputs {
                stdout: StdoutOutput {
                    enabled: false,
                    ..StdoutOutput::default()
                },
                ..Outputs::default()
            },
            json_parts: JsonParts {
                ids: false,
                ..JsonParts::default()
            },
            watch_config_files: true,
            engine: EngineSettings {
                kind: FalcoEngine::Kmod,
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
                kind: FalcoEngine::ModernEbpf,
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
