//! The command line.

mod added_rules;
mod bench;
mod collector;
mod idle;
mod plugin_config;
mod responses;
mod rule_sources;
#[cfg(feature = "bench")]
mod workload;

pub(crate) use added_rules::AddedRules;
pub(crate) use bench::Bench;
pub(crate) use collector::Collector;
pub(crate) use idle::Idle;
pub(crate) use plugin_config::PluginConfig;
pub(crate) use responses::Responses;
pub(crate) use rule_sources::RuleSources;
use std::ffi::OsString;
use std::path::PathBuf;
#[cfg(feature = "bench")]
pub(crate) use workload::Workload;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use config::{Choice, CompatMode, Places};
pub(crate) use config::{IoUring, OnAgentDeath, Verify};
use event::EngineKind;
use rule_tools::cost::WatchMode;
use sys::features::KernelVersion;

use crate::choice::choice;
use crate::engine::Engine;

pub(crate) const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Headings of options in help texts.
const CAPTURE: &str = "Capture options";
const EVENTS: &str = "Event options";
const OUTPUT: &str = "Output options";
const POLICY: &str = "Policy options";
const RECORDING: &str = "Recording options";
const RESPONSES: &str = "Response options";
const RULES: &str = "Rule and configuration options";
const SUPERVISION: &str = "Supervision options";
const TARGET: &str = "Target options";

/// Watch, confine and measure Linux programs, with Falco rules and vArmor policies; needs no root
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, styles = STYLES, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
pub(crate) struct Cli {
    /// Use no feature that is newer than this kernel version; for tests, see CONTRIBUTING.md
    #[arg(long, global = true, hide = true, value_name = "VERSION", value_parser = kernel_version)]
    pub(crate) pretend_kernel: Option<KernelVersion>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

fn kernel_version(text: &str) -> Result<KernelVersion, &'static str> {
    /// Oldest kernel version that has an engine.
    const OLDEST: KernelVersion = KernelVersion::new(5, 5);
    KernelVersion::parse(text)
        .filter(|version| *version >= OLDEST)
        .ok_or("expected a version from 5.5 on, as in 5.10")
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command and alert when it breaks a rule
    Run(Run),
    /// Run a command under a policy
    Enforce(Enforce),
    /// Let a coding agent, build or install run in a box, and report every denial
    Guard(Box<crate::command::guard::args::Guard>),
    /// Record what a command does, and write a policy from it
    Learn(Learn),
    /// Watch running processes, containers or the whole host
    Watch(Watch),
    /// Show live processes, calls and alerts in a terminal
    Top(Top),
    /// Read captures of sysdig and Falco: alert on their events, or print them
    Replay(Replay),
    /// Drop-in replacement for the falco binary
    Falco(Box<crate::command::falco::args::Falco>),
    /// Check, list, explain and test rules
    #[command(subcommand, arg_required_else_help = true)]
    Rules(Rules),
    /// Install, follow, verify and publish rules in OCI registries
    #[command(subcommand, arg_required_else_help = true)]
    Artifact(crate::command::artifact::args::Artifact),
    /// Show or check the configuration
    #[command(subcommand, arg_required_else_help = true)]
    Config(crate::command::config::args::Config),
    /// Write, check, list and explain policies
    #[command(subcommand, arg_required_else_help = true)]
    Policy(crate::command::policy::args::Policy),
    /// Drop-in OCI runtime: wraps runc and watches its containers
    Runtime(Runtime),
    /// Collect the alerts of many agents, and show them on a page
    Serve(Box<crate::command::serve::args::Serve>),
    /// List, show, acknowledge and export the alerts of a collector
    #[command(subcommand, arg_required_else_help = true)]
    Alerts(crate::command::alerts::args::Alerts),
    /// List the agents of a collector
    #[command(subcommand, arg_required_else_help = true)]
    Fleet(crate::command::alerts::args::Fleet),
    /// Confine the containers of a Kubernetes node by the policies of its cluster
    Node(Box<crate::command::node::args::Node>),
    /// Show what works on this machine, and how to fix what does not
    Doctor(Doctor),
    /// Take a one-minute tour: live alerts from real programs
    Demo(Demo),
    /// Simulate suspicious activity and check that a detector alerts on it
    #[command(subcommand, arg_required_else_help = true)]
    Generate(crate::command::generate::args::Generate),
    /// Measure how much watching slows a workload down
    #[command(arg_required_else_help = true)]
    Bench(Bench),
    /// Run one load generator, for measurements and tests
    #[command(hide = true)]
    Workload(Workload),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Copy this program into a folder, from an image that has no `cp`
    Copy(Copy),
    /// Print the manual page of the program or of a verb
    Man(Man),
    /// Print the help of a verb, as `VERB --help` does
    Help(Help),
    /// Print the version
    Version(Version),
}

/// The command line of `tollgate workload`, which is not part of this build.
#[cfg(not(feature = "bench"))]
#[derive(Args, Debug)]
pub(crate) struct Workload {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

/// The capture engine for running processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchEngine {
    /// eBPF where it works, else ptrace
    Auto,
    /// eBPF: root, and a kernel with BTF
    Ebpf,
    /// ptrace: only the processes that -p names
    Ptrace,
}

/// A call that a workload can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Refusal {
    /// prctl(PR_SET_DUMPABLE, 0)
    NonDumpable,
}

/// The rules, outputs and recordings of every verb that watches.
#[derive(Args, Debug, Default)]
pub(crate) struct Detection {
    #[command(flatten)]
    pub(crate) sources: RuleSources,
    /// Write alerts as JSON, one object a line
    #[arg(long, conflicts_with = "format", help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stream: AlertStream,
    #[command(flatten)]
    pub(crate) collector: Collector,
    #[command(flatten)]
    pub(crate) responses: Responses,
    /// Record the events that the rules use to FILE (scap), for `tollgate replay`, sysdig and Falco
    #[arg(short = 'w', long = "write", value_name = "FILE", help_heading = RECORDING)]
    pub(crate) write: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rotation: Rotation,
    /// Write counters to FILE, one JSON object a line
    #[arg(short = 's', long = "stats", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) stats: Option<PathBuf>,
    /// Milliseconds between two lines of the stats file
    #[arg(long, value_name = "MS", default_value_t = 5000, requires = "stats", help_heading = OUTPUT,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stats_interval: u64,
    /// Write the monitor's PID to FILE (SIGHUP reloads, SIGUSR1 reopens outputs)
    #[arg(short = 'P', long = "pidfile", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) pidfile: Option<PathBuf>,
    /// Report ID as container.id of processes whose container cannot be detected
    #[arg(long, value_name = "ID", help_heading = CAPTURE)]
    pub(crate) container_id: Option<String>,
    /// Where the eBPF engine attaches; auto takes the cheapest hooks that work here and miss no call
    #[arg(long, value_enum, default_value_t = Hooks::Auto, hide_possible_values = true, help_heading = CAPTURE,
          value_name = "auto|functions|per-call|raw")]
    pub(crate) hooks: Hooks,
    /// eBPF engine: match paths and names in the monitor only, for comparisons
    #[arg(long, hide = true)]
    pub(crate) unfiltered: bool,
    /// eBPF engine: size of the main ring buffer in KiB, a power of two; for tests
    #[arg(long, hide = true, value_name = "KIB")]
    pub(crate) ring_kib: Option<u32>,
    /// eBPF engine: number of threads that evaluate rules, for comparisons [default: one a processor]
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) rule_threads: Option<std::num::NonZeroUsize>,
    /// Print no status lines, no summary and no warnings, except those about the policy
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// Whether the program behaves as Falco does.
    #[arg(skip)]
    pub(crate) manner: CompatMode,
    /// Files of the machine and the user that are read without being named.
    #[arg(skip)]
    pub(crate) places: Places,
}

/// Where alerts go.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AlertStream {
    /// Append alerts to FILE; - is stdout [default: stderr beside a command, else stdout]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) log: Option<PathBuf>,
    /// How alerts read: pretty (for people), line (key=value), falco or json [default: pretty on a
    /// terminal, else falco]
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true, help_heading = OUTPUT)]
    pub(crate) format: Option<AlertFormat>,
    /// Do not cut pretty alerts at the width of the terminal
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) wide: bool,
}

/// How alerts read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlertFormat {
    /// Two lines for people
    Pretty,
    /// One line of key=value
    Line,
    /// Falco's text
    Falco,
    /// JSON
    Json,
}

/// Where the eBPF engine attaches its programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hooks {
    /// The cheapest hooks that work and miss no call
    #[default]
    Auto,
    /// Kernel functions that implement the calls
    Functions,
    /// One tracepoint for each call
    PerCall,
    /// The sys_exit tracepoint, which all calls pass
    Raw,
    /// An empty program, for measurements
    #[value(hide = true)]
    Nothing,
}

/// When a recording starts its next file. The files are numbered then.
#[derive(Args, Debug, Default)]
#[command(group(clap::ArgGroup::new("limits").multiple(true).args(["write_size", "write_time", "write_events"])))]
pub(crate) struct Rotation {
    /// Start a new recording file every MIB mebibytes [default: no limit]
    #[arg(long, value_name = "MIB", requires = "write", help_heading = RECORDING,
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) write_size: Option<u64>,
    /// Start a new recording file every SECONDS seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", requires = "write", help_heading = RECORDING,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_time: Option<u64>,
    /// Start a new recording file every COUNT events [default: no limit]
    #[arg(long, value_name = "COUNT", requires = "write", help_heading = RECORDING,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_events: Option<u64>,
    /// Keep the newest COUNT recording files and delete older ones [default: keep all]
    #[arg(long, value_name = "COUNT", requires_all = ["write", "limits"], help_heading = RECORDING,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_keep: Option<u64>,
}

/// How calls of a command are captured, and which it is refused.
#[derive(Args, Debug, Default)]
pub(crate) struct Interception {
    /// Capture engine; auto takes the cheapest that works here
    #[arg(long, value_enum, default_value_t = Engine::Auto, hide_possible_values = true, help_heading = CAPTURE,
          value_name = "auto|notify|ptrace|ebpf")]
    pub(crate) engine: Engine,
    /// ptrace engine: stop at every call, as if no seccomp filter could be installed; for tests
    #[arg(long, hide = true)]
    pub(crate) every_call: bool,
    /// Compare arguments of multi-threaded processes with what the kernel did, to detect argument races
    /// (TOCTOU) [default: sampled]
    #[arg(
        long,
        help_heading = CAPTURE,
        value_parser = choice::<Verify>(),
        hide_possible_values = true,
        value_name = "off|sampled|always"
    )]
    pub(crate) verify: Option<Verify>,
    /// Allow or deny CMD to use io_uring, whose operations cannot be watched [default: deny]
    #[arg(
        long,
        help_heading = CAPTURE,
        value_parser = choice::<IoUring>(),
        hide_possible_values = true,
        value_name = "deny|allow"
    )]
    pub(crate) io_uring: Option<IoUring>,
    /// Refuse CMD a call that hides its memory from the monitor: non-dumpable is prctl(PR_SET_DUMPABLE,
    /// 0); repeatable [default: allow the call, and report it]
    #[arg(
        long,
        help_heading = CAPTURE,
        value_enum,
        value_name = "non-dumpable",
        hide_possible_values = true
    )]
    pub(crate) refuse: Vec<Refusal>,
}

/// The policy of a command that is watched.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Confine {
    /// Confine CMD by the policy in FILE
    #[arg(long, value_name = "FILE", help_heading = POLICY)]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: PolicyOptions,
}

/// How strictly a policy is taken.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyOptions {
    /// Deny nothing; report what the policy would deny
    #[arg(long, requires = "policy", help_heading = POLICY)]
    pub(crate) audit: bool,
    /// Accept that RULE is enforced only partially, or not at all, on this machine; repeatable
    #[arg(long, value_name = "RULE", requires = "policy", help_heading = POLICY)]
    pub(crate) accept_partial: Vec<String>,
}

/// `tollgate run`.
///
/// The exit status is that of CMD: 128+N if signal N killed it, 127 if it was not found, 126 if it
/// cannot be executed.
#[derive(Args, Debug)]
#[command(
    after_help = "Alerts go to stderr, never to CMD's stdout; --log FILE sends them elsewhere. \
                  The exit status is that of CMD. Processes that outlive CMD remain watched, and stderr \
                  remains open for their alerts. Signals to this process are passed on to CMD; the \
                  monitor (-P FILE) has a PID of its own."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) detection: Detection,
    #[command(flatten)]
    pub(crate) confine: Confine,
    #[command(flatten)]
    pub(crate) interception: Interception,
    /// What to do with CMD while the monitor is down: let calls pass, refuse them, or kill CMD
    #[arg(long, help_heading = SUPERVISION, value_parser = choice::<OnAgentDeath>(), default_value = OnAgentDeath::Continue.word(),
          hide_possible_values = true, value_name = "continue|deny|kill")]
    pub(crate) on_agent_death: OnAgentDeath,
    /// Milliseconds without progress after which the monitor counts as down
    #[arg(long, value_name = "MS", default_value_t = 1000, help_heading = SUPERVISION,
          value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    pub(crate) agent_timeout: u64,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tollgate enforce`.
///
/// The exit status is that of CMD: 128+N if signal N killed it, 127 if it was not found, 126 if it
/// cannot be executed. If the policy cannot be put in force nothing is run.
#[derive(Args, Debug)]
#[command(
    after_help = "The policy holds for CMD and everything it starts, from the first instruction on, and \
                  cannot be removed. It also holds for the exec of CMD itself. If the policy reports \
                  violations, a monitor process runs beside CMD, as with `tollgate run`; otherwise tollgate \
                  execs CMD in place. The exit status is that of CMD."
)]
pub(crate) struct Enforce {
    /// Confine CMD by the policy in FILE
    #[arg(long, value_name = "FILE", help_heading = POLICY)]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) how: PolicyOptions,
    /// Also read the outputs for violations from FILE, in the format of falco.yaml; it overrides
    /// /etc/tollgate/config.yaml and ~/.config/tollgate/config.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration key, such as json_output=true; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE", help_heading = OUTPUT)]
    pub(crate) options: Vec<String>,
    /// Report violations as JSON, one object a line
    #[arg(long, conflicts_with = "format", help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stream: AlertStream,
    #[command(flatten)]
    pub(crate) collector: Collector,
    /// Do not print which enforcers are active; rules that are enforced only partially are still named,
    /// unless --accept-partial names them
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tollgate learn`.
///
/// Every system call of CMD and its descendants is looked at, so CMD runs slower. The exit status is that
/// of CMD.
#[derive(Args, Debug)]
#[command(
    after_help = "The policy contains the built-in rules that CMD did not break, and denies every system \
                  call that CMD did not make. Let CMD do everything it is meant to do, including errors \
                  and shutdown; --model adds up several runs. Every system call is recorded, so CMD runs \
                  slower. Capabilities are recorded as root on Linux 6.14 or newer; on older kernels the \
                  policy has no rule about them. The exit status is that of CMD."
)]
pub(crate) struct Learn {
    /// Write the policy to this file
    #[arg(short = 'o', long = "output", value_name = "POLICY")]
    pub(crate) output: PathBuf,
    /// Add the behaviour that earlier runs recorded in FILE, and write the sum back [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Run CMD so many times, and write one policy for all runs; it ends with the first run that fails
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write the policy after SECONDS seconds, and stop recording while CMD runs on [default: when CMD ends]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) duration: Option<u64>,
    /// Enforcers that the policy is written for, such as SeccompLandlockCapsBPF
    #[arg(long, value_name = "ENFORCERS", default_value = agent::learn::ENFORCERS,
          value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: policy::Enforcers,
    #[command(flatten)]
    pub(crate) stream: AlertStream,
    /// Print no warnings
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tollgate watch`.
///
/// Watches every process of this machine from within the kernel, or those that -p names, with their
/// threads, their children, and what those make from then on; or containers and control groups, those
/// that run and those that come to run. It ends with the last process that -p names, or on SIGINT or
/// SIGTERM.
#[derive(Args, Debug)]
#[command(
    after_help = "Watches until SIGINT or SIGTERM, or until the last process that -p names has ended. Threads \
                  and children of a watched process are watched, too. The eBPF engine needs root and a \
                  kernel with BTF; `tollgate doctor` shows whether it works here. The ptrace engine needs \
                  neither, watches only processes that -p names, and stops them at every call: cheap \
                  calls become more than 100 times slower."
)]
pub(crate) struct Watch {
    /// Watch this process, with its threads and children; repeatable [default: all processes]
    #[arg(short = 'p', long = "pid", value_name = "PID", help_heading = TARGET,
          value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pids: Vec<i32>,
    /// Watch this container, by its name or the first digits of its ID; repeatable [default: all
    /// processes]
    #[arg(long = "container", value_name = "NAME|ID", conflicts_with = "pids", help_heading = TARGET,
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) containers: Vec<String>,
    /// Watch this control group and those below it, such as /sys/fs/cgroup/system.slice; repeatable
    /// [default: all processes]
    #[arg(long = "cgroup", value_name = "PATH", conflicts_with = "pids", help_heading = TARGET)]
    pub(crate) cgroups: Vec<PathBuf>,
    /// Capture engine; auto takes eBPF where it works, and ptrace with -p otherwise
    #[arg(long, value_enum, default_value_t = WatchEngine::Auto, hide_possible_values = true, help_heading = CAPTURE,
          value_name = "auto|ebpf|ptrace")]
    pub(crate) engine: WatchEngine,
    /// Watch gVisor sandboxes, which connect to this Unix socket
    #[arg(long, value_name = "SOCKET", help_heading = TARGET, conflicts_with_all = ["pids", "containers", "cgroups", "engine"])]
    pub(crate) gvisor: Option<PathBuf>,
    /// Write the trace session for runsc to FILE: pass it to `runsc --pod-init-config FILE`, or for a running
    /// sandbox to `runsc trace create --config FILE ID`
    #[arg(long, value_name = "FILE", requires = "gvisor", help_heading = TARGET)]
    pub(crate) gvisor_session: Option<PathBuf>,
    /// The trace session that sandboxes start with, where another program chose it.
    #[arg(skip)]
    pub(crate) gvisor_given: Option<serde_json::Value>,
    /// Stop after SECONDS seconds [default: no limit]
    #[arg(short = 'M', value_name = "SECONDS", help_heading = TARGET, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) detection: Detection,
}

/// `tollgate top`.
#[derive(Args, Debug)]
#[command(
    after_help = "Cost is the time that the rules take for events of a process or a call. Events that the kernel's \
                  filter rejects cost nothing here and are not shown. Keys: / filters as you type, Tab shows the \
                  next table, s changes the order, the arrow keys select an alert, q quits. Live processes need \
                  root and the eBPF engine; a capture needs neither."
)]
pub(crate) struct Top {
    /// Show this capture (scap, also gzipped) instead of live processes
    #[arg(value_name = "FILE", conflicts_with_all = ["pids", "containers"])]
    pub(crate) file: Option<PathBuf>,
    /// Watch this process, with its threads and children; repeatable [default: all processes]
    #[arg(short = 'p', long = "pid", value_name = "PID", help_heading = TARGET,
          value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pids: Vec<i32>,
    /// Watch this container, by its name or the first digits of its ID; repeatable [default: all
    /// processes]
    #[arg(long = "container", value_name = "NAME|ID", conflicts_with = "pids", help_heading = TARGET,
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) containers: Vec<String>,
    #[command(flatten)]
    pub(crate) sources: RuleSources,
}

/// `tollgate replay`.
#[derive(Args, Debug)]
#[command(
    after_help = "Without --fields and --filter, replay evaluates rules and sends alerts to the configured \
                  outputs. With one of them it prints events, one a line: a system call and its result. \
                  Long replays show progress and an ETA; -q turns this off."
)]
pub(crate) struct Replay {
    /// Captures to read, in this order: scap, also gzipped; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) sources: RuleSources,
    /// Write alerts or events as JSON, one object a line
    #[arg(long, conflicts_with = "format", help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stream: AlertStream,
    /// Print events in this format, such as '%evt.num %proc.name %fd.name'
    #[arg(short = 'p', long, value_name = "FORMAT", conflicts_with = "rules", help_heading = EVENTS)]
    pub(crate) fields: Option<String>,
    /// Print only the events that this condition matches
    #[arg(long, value_name = "CONDITION", conflicts_with = "rules", help_heading = EVENTS)]
    pub(crate) filter: Option<String>,
    /// Print the number of events, the rate and the matches of each rule at the end
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) stats: bool,
    /// Print no warnings and no progress
    #[arg(short, long, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
}

/// `tollgate rules`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Check rule files for errors
    Check(Check),
    /// List rules, or show one in full
    List(List),
    /// List the fields that conditions and outputs can use
    Fields(Fields),
    /// List the event types that conditions can name
    Events(Events),
    /// Show which system calls the rules need and why, why a rule matches an event, or what an alert means
    Explain(Explain),
    /// Run tests of rules: events in YAML or captures, and the alerts to expect
    Test(TestRules),
    /// Write an exception, and its test, so that an alert is not raised again
    Silence(crate::command::rules::silence::Silence),
    /// Show which techniques of MITRE ATT&CK rules are about
    Coverage(crate::command::rules::coverage::Coverage),
    /// Convert rules of other programs: Sigma
    Convert(crate::command::rules::convert::Convert),
    /// Find rules that never alert, cannot match or are expensive
    Lint(Lint),
    /// Estimate how much each rule costs, from measured figures
    Cost(Cost),
}

/// `tollgate rules check`.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Rule files or folders to check; later files can change rules of earlier ones [default: the built-in
    /// rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    #[command(flatten)]
    pub(crate) plugins: PluginConfig,
    /// Also check the response file FILE, whose actions alerts of these rules start; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) responses: Vec<PathBuf>,
    /// Leave out actions by ACTIONNER, which this program does not have; repeatable
    #[arg(long, value_name = "ACTIONNER", requires = "responses")]
    pub(crate) accept_partial: Vec<String>,
    /// Print JSON in the format of Falco's -V
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    #[command(flatten)]
    pub(crate) plugins: PluginConfig,
    /// Show only RULE, in full
    #[arg(short = 'l', long = "rule", value_name = "RULE")]
    pub(crate) rule: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules fields`.
#[derive(Args, Debug)]
pub(crate) struct Fields {
    /// List only the fields of CLASS, such as evt, proc or fd [default: all]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print a Markdown table
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `tollgate rules events`.
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print a Markdown table
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `tollgate rules explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten, next_help_heading = RULES)]
    pub(crate) added: AddedRules,
    #[command(flatten, next_help_heading = RULES)]
    pub(crate) plugins: PluginConfig,
    /// Show only the system call CALL [default: all that the rules need]
    #[arg(long, value_name = "CALL", help_heading = EVENTS)]
    pub(crate) call: Option<String>,
    /// Show why rules match this event or not; FILE has fields and values as YAML, an alert as JSON, or a
    /// capture
    #[arg(long, value_name = "FILE", conflicts_with = "call", group = "subject", help_heading = EVENTS)]
    pub(crate) event: Option<PathBuf>,
    /// Tell what the alert in FILE means: what happened, why it matters, what matched, what to check next; FILE is
    /// JSON, as --json or Falco writes it, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["call", "rule"], group = "subject", help_heading = EVENTS)]
    pub(crate) alert: Option<PathBuf>,
    /// Number of the event in a capture (evt.num), or of one alert of several
    #[arg(long, value_name = "N", requires = "subject", help_heading = EVENTS)]
    pub(crate) number: Option<u64>,
    /// Explain only RULE, with each clause of its condition [default: all rules]
    #[arg(long, value_name = "RULE", requires = "event", help_heading = RULES)]
    pub(crate) rule: Option<String>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

/// `tollgate rules lint`.
#[derive(Args, Debug)]
#[command(after_help = "\
Findings:
  shadowed   an earlier rule always matches first (with `rule_matching: first`)
  never      no event can match: clauses contradict, or a field never has a value
  idle       a clause has no effect: its field never has a value
  empty      the output prints a field that never has a value
  expensive  the rule needs a frequent system call

The exit status is 1 if there is a finding.")]
pub(crate) struct Lint {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    /// Capture engine to check for; repeatable [default: notify, ptrace, ebpf]
    #[arg(long = "engine", value_name = "notify|ptrace|ebpf|gvisor|scap", value_parser = crate::engine::named)]
    pub(crate) engines: Vec<EngineKind>,
    #[command(flatten)]
    pub(crate) plugins: PluginConfig,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules cost`.
#[derive(Args, Debug)]
#[command(after_help = "\
Columns:
  calls        system calls that the rule needs
  alone        those calls that no other rule needs
  events       such calls in the capture
  share        cost of the calls, split between the rules that need them
  alone        cost of the calls of this rule alone: what removing it saves
  evaluations  estimated evaluations of the condition, and the time of each")]
pub(crate) struct Cost {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    /// Also count the events of this capture, and time the rules on them
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Capture engine whose cost is shown
    #[arg(long, value_parser = choice::<WatchMode>(), default_value = WatchMode::Notify.word(), hide_possible_values = true,
          value_name = "notify|ebpf")]
    pub(crate) engine: WatchMode,
    /// Use the measurements in DIR, written by `tollgate bench compare --out DIR` [default: published
    /// figures]
    #[arg(long, value_name = "DIR")]
    pub(crate) figures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules test`.
#[derive(Args, Debug)]
#[command(after_help = TEST_HELP)]
pub(crate) struct TestRules {
    /// Test files to run
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Load rules from this file or folder instead of those that FILE names; repeatable [default: the
    /// built-in rules and /etc/tollgate/rules.d]
    #[arg(short = 'r', long = "rules", value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    #[command(flatten)]
    pub(crate) plugins: PluginConfig,
    /// Print JSON, one object a line for each test
    #[arg(long)]
    pub(crate) json: bool,
}

const TEST_HELP: &str = "\
FILE is YAML:

    rules: [my_rules.yaml]           # instead of the built-in rules, in the same folder as FILE
    add_rules: [my_changes.yaml]     # beside them
    tests:
      - name: cat reads a sensitive file
        event:                       # fields of one event, as rules name them
          evt.type: openat
          evt.arg.flags: O_RDONLY
          fd.name: /etc/shadow
          proc.name: cat
          proc.aname: [bash, sshd]   # parent first
        alerts: [Read sensitive file untrusted]
      - name: a recording of `tollgate run -w`
        capture: attack.scap
        alerts:
          - rule: Run shell untrusted
            count: 2                 # default: once or more
            priority: NOTICE
            output: spawned by       # any part of the output
            fields: {proc.name: sh}

All rules are evaluated, and rules that a test does not name must not match. Missing fields are \
derived where possible (fd.filename from fd.name, a successful result, the host as container) and are \
absent otherwise, or unknown with `others: unknown`. The exit status is 1 if a test fails.";

/// `tollgate runtime`, also when called as `tollgate-runtime`.
///
/// Takes runc's command line and passes it on to an installed runtime. Containers that it creates, and
/// programs that exec starts in them, are watched by rules from their first instruction on, as the
/// configuration says.
#[derive(Args, Debug)]
#[command(after_help = "\
Global options:
  --runtime NAME|PATH     Runtime to wrap: runc, crun, youki, vm or a path
                          [default: `runtime.binary`, else the first installed]
  --config FILE           Configuration [default: $TOLLGATE_RUNTIME_CONFIG, else
                          /etc/tollgate/runtime.yaml]
  --agent container|host  One monitor for each container, or one for all
                          [default: `runtime.agent`, else container]
Other options, such as --root, --log and --systemd-cgroup, are passed on.

Commands:
  create, run, exec       Passed on; the new process is watched
  delete                  Passed on; removes the state of the monitor, too
  start, state, kill, list, ps, pause, resume, update, events, features, spec,
  checkpoint              Passed on
  restore                 Refused: a restored container would not be watched
  pool start [N]          Keep N virtual machines ready for the runtime vm
  pool status [--json]    Show them
  pool stop               Stop them
  install, uninstall      Register with containerd, docker and podman, or undo it;
                          shows the changes, and makes them with --yes

Without a configuration, the built-in rules watch all containers, and alerts go to \
/var/log/tollgate/alerts.jsonl. Standard output belongs to the container and gets no alerts.

The annotation tollgate.policy of a container, or the key `runtime.policy`, names a policy that confines \
it: the file NAME.yaml in the folder `runtime.policies` (default: /etc/tollgate/policies).")]
pub(crate) struct Runtime {
    /// Global options, a command, and its options and arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORD"
    )]
    pub(crate) words: Vec<OsString>,
}

/// `tollgate doctor`.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate demo`.
#[derive(Args, Debug)]
#[command(
    after_help = "As root, the demo runs twice: as root in a container, and as an ordinary user. The exit \
                  status is 1 if an alert is missing or an event was dropped."
)]
pub(crate) struct Demo {
    /// Print only the summary, as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Run one part of the demo; internal option
    #[arg(long, value_enum, hide = true)]
    pub(crate) stage: Option<DemoStage>,
}

/// The environment of one part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoStage {
    /// Root with a container's usual capabilities, in a container-like set of namespaces.
    Container,
    /// An ordinary user in a changed root, brought there by root.
    User,
    /// An ordinary user in a user namespace, made by an ordinary user.
    UserNamespace,
}

/// `tollgate completions`.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `tollgate man`.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Verb, and a verb of its own where it has some, such as `rules check` [default: the whole program]
    #[arg(value_name = "VERB", action = ArgAction::Append)]
    pub(crate) verb: Vec<String>,
    /// Write the pages of the program and of all verbs to DIR instead
    #[arg(
        short = 'o',
        long = "output",
        value_name = "DIR",
        conflicts_with = "verb"
    )]
    pub(crate) output: Option<PathBuf>,
}

/// `tollgate help`.
#[derive(Args, Debug)]
pub(crate) struct Help {
    /// Verb, and a verb of its own where it has some, such as `rules check` [default: the whole program]
    #[arg(value_name = "VERB", action = ArgAction::Append)]
    pub(crate) verb: Vec<String>,
}

/// `tollgate copy`.
#[derive(Args, Debug)]
pub(crate) struct Copy {
    /// Folder of the copy, such as a volume that another container mounts; its name is `tollgate`
    pub(crate) folder: PathBuf,
}

/// `tollgate version`.
#[derive(Args, Debug)]
pub(crate) struct Version {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
