//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use config::{Choice, CompatMode};
pub(crate) use config::{IoUring, OnAgentDeath, Verify};
use event::field::Mechanism;
use sys::features::KernelVersion;

use crate::command::rules::cost::figures::WatchMode;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Watches, confines and measures Linux workloads by their system calls.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, styles = STYLES, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Do without what kernels after this version have; for tests, see CONTRIBUTING.md
    #[arg(long, global = true, hide = true, value_name = "VERSION", value_parser = kernel_version)]
    pub(crate) pretend_kernel: Option<KernelVersion>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

fn kernel_version(text: &str) -> Result<KernelVersion, &'static str> {
    /// Below it there is no engine to run.
    const OLDEST: KernelVersion = KernelVersion::new(5, 5);
    KernelVersion::parse(text)
        .filter(|version| *version >= OLDEST)
        .ok_or("expected a version from 5.5 on, as in 5.10")
}

/// A parser for the words of a setting that is also an option.
fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let words = T::CHOICES.iter();
    let words = words.map(|(_, word, description)| PossibleValue::new(*word).help(*description));
    PossibleValuesParser::new(words)
        .map(|word| T::from_word(&word).expect("the parser takes no other word"))
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command and alert on what it does, by Falco rules
    Run(Run),
    /// Confine a command by a policy
    Enforce(Enforce),
    /// Record what a command does, and write a policy that it passes
    Learn(Learn),
    /// Watch processes that run already, by Falco rules
    Watch(Watch),
    /// Read captures of sysdig and Falco: alert on their events, or print them
    Replay(Replay),
    /// Be Falco: its command line, configuration and exit codes, as when this program is called falco
    Falco(Box<crate::command::falco::args::Falco>),
    /// Check, list and explain rules
    #[command(subcommand, arg_required_else_help = true)]
    Rules(Rules),
    /// Check, list and explain policies, which say what a workload may do
    #[command(subcommand, arg_required_else_help = true)]
    Policy(crate::command::policy::args::Policy),
    /// Stand in for an OCI runtime such as runc, and watch the containers it makes
    Runtime(Runtime),
    /// Show what works here, what does not, why, and how to fix it
    Doctor(Doctor),
    /// Show live alerts from real programs, in a minute
    Demo(Demo),
    /// Play what rules are about, and check that a detector notices
    #[command(subcommand, arg_required_else_help = true)]
    Generate(crate::command::generate::args::Generate),
    /// Measure what watching costs
    #[command(arg_required_else_help = true)]
    Bench(bench::command::Bench),
    /// Run one load generator, for measurements and tests
    #[command(hide = true)]
    Workload(workload::Args),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page, of the program or of a verb
    Man(Man),
    /// Print the version
    Version(Version),
}

/// How events are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The best that works here
    #[default]
    Auto,
    /// seccomp user notification: no privileges, kernel 5.5
    Notify,
    /// ptrace: where notify is missing
    Ptrace,
    /// eBPF: root, and a kernel with BTF
    Ebpf,
}

/// How events of processes that run already are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchEngine {
    /// eBPF where it works, else ptrace
    Auto,
    /// eBPF: root, and a kernel with BTF
    Ebpf,
    /// ptrace: processes that -p names
    Ptrace,
}

/// What a workload can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Refusal {
    /// To make itself unreadable
    NonDumpable,
}

/// By which rules processes are watched and where it is told, for each verb that watches.
#[derive(Args, Debug, Default)]
pub(crate) struct Detection {
    /// Rule file, or folder of rule files; repeatable [default: the built-in rules]
    #[arg(short = 'r', long = "rules", value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Configuration file, as Falco's falco.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one key of the configuration, as in outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Write alerts as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Record the events that rules ask about to this file (scap), for `tollgate replay`, sysdig and Falco
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rotation: Rotation,
    /// Write counters to this file, one JSON object a line
    #[arg(short = 's', long = "stats", value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Time between two lines of the stats file
    #[arg(long, value_name = "MS", default_value_t = 5000, requires = "stats",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stats_interval: u64,
    /// Write the pid of the process that watches, which takes SIGUSR1 and SIGHUP, to this file
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,
    /// Id of the container that is watched, where it cannot be found out
    #[arg(long, value_name = "ID")]
    pub(crate) container_id: Option<String>,
    /// How the engine ebpf sees calls; auto takes the cheapest that works here and sees all
    #[arg(long, value_enum, default_value_t = Hooks::Auto, hide_possible_values = true,
          value_name = "auto|functions|per-call|raw")]
    pub(crate) hooks: Hooks,
    /// With the engine ebpf, look at paths and names in the agent alone; to compare with
    #[arg(long, hide = true)]
    pub(crate) unfiltered: bool,
    /// Size of the ring for most events of the engine ebpf, a power of two, instead of what the
    /// configuration says; for tests
    #[arg(long, hide = true, value_name = "KIB")]
    pub(crate) ring_kib: Option<u32>,
    /// How many threads of the engine ebpf judge a crowd of events, instead of one for each processor;
    /// to compare with
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) judges: Option<std::num::NonZeroUsize>,
    /// Print no warnings, but those about a policy
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Whose customs apply.
    #[arg(skip)]
    pub(crate) manner: CompatMode,
}

/// Where the programs of the engine ebpf are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hooks {
    /// The cheapest that works and sees every call
    #[default]
    Auto,
    /// Functions that carry out calls
    Functions,
    /// Tracepoints of single calls
    PerCall,
    /// The tracepoint of all calls
    Raw,
    /// An empty program, for measurements
    #[value(hide = true)]
    Nothing,
}

/// When another file of a recording is begun; the files have numbers behind their name then.
#[derive(Args, Debug, Default)]
pub(crate) struct Rotation {
    /// Begin another file after this many MiB
    #[arg(long, value_name = "MIB", requires = "write",
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) write_size: Option<u64>,
    /// Begin another file after this time
    #[arg(long, value_name = "SECONDS", requires = "write",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_time: Option<u64>,
    /// Begin another file after this many events
    #[arg(long, value_name = "COUNT", requires = "write",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_events: Option<u64>,
    /// Keep this many files and remove older ones
    #[arg(long, value_name = "COUNT", requires = "write",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_keep: Option<u64>,
}

/// How the calls of a command are seen, and what it is refused.
#[derive(Args, Debug, Default)]
pub(crate) struct Interception {
    /// How events are captured
    #[arg(long, value_enum, default_value_t = Engine::Auto, hide_possible_values = true,
          value_name = "auto|notify|ptrace|ebpf")]
    pub(crate) engine: Engine,
    /// See every call with the engine ptrace, as where no filter can be installed; for tests
    #[arg(long, hide = true)]
    pub(crate) every_call: bool,
    /// Check calls of processes with several threads against what the kernel did [default: sampled]
    #[arg(
        long,
        value_parser = choice::<Verify>(),
        hide_possible_values = true,
        value_name = "off|sampled|always"
    )]
    pub(crate) verify: Option<Verify>,
    /// Whether CMD may use io_uring, whose calls cannot be seen [default: deny]
    #[arg(
        long,
        value_parser = choice::<IoUring>(),
        hide_possible_values = true,
        value_name = "deny|allow"
    )]
    pub(crate) io_uring: Option<IoUring>,
    /// Refuse CMD what would keep the agent from reading its memory: `non-dumpable` is
    /// prctl(PR_SET_DUMPABLE, 0). Otherwise it is told; repeatable
    #[arg(
        long,
        value_enum,
        value_name = "non-dumpable",
        hide_possible_values = true
    )]
    pub(crate) refuse: Vec<Refusal>,
}

/// The policy of a command that is watched.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Confine {
    /// Confine CMD by this policy
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: PolicyOptions,
}

/// How strictly a policy is taken.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyOptions {
    /// Deny nothing, and report what the policy would deny, as far as enforcers can
    #[arg(long, requires = "policy")]
    pub(crate) audit: bool,
    /// Go on although no enforcer that works here carries this rule of the policy at all, which is an
    /// error, or only in part, which is a warning; repeatable
    #[arg(long, value_name = "RULE", requires = "policy")]
    pub(crate) accept_partial: Vec<String>,
}

/// `tollgate run`.
///
/// The exit status is that of CMD: 128+N if signal N killed it, 127 if it was not found, 126 if it
/// cannot be executed.
#[derive(Args, Debug)]
#[command(
    after_help = "The exit status is that of CMD. Descendants that outlive it stay watched, \
                        and stdout stays open for their alerts. Signals to this process go to \
                        CMD; the agent (-P FILE) reopens its outputs on SIGUSR1, and on SIGHUP loads \
                        the rules anew, too."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) detection: Detection,
    #[command(flatten)]
    pub(crate) confine: Confine,
    #[command(flatten)]
    pub(crate) interception: Interception,
    /// What becomes of CMD's calls while nobody watches because the agent was killed, stopped or
    /// starved: let them pass and count them, refuse them, or kill CMD
    #[arg(long, value_parser = choice::<OnAgentDeath>(), default_value = OnAgentDeath::Continue.word(),
          hide_possible_values = true, value_name = "continue|deny|kill")]
    pub(crate) on_agent_death: OnAgentDeath,
    /// How long calls may wait for an agent that makes no progress
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    pub(crate) agent_timeout: u64,
    /// Take over from another agent; for the keeper
    #[arg(long, value_name = "ORDER", hide = true)]
    pub(crate) resume: Option<String>,
    /// CMD is a container runtime that makes the container of this id; for `tollgate runtime`
    #[arg(long, value_name = "ID", hide = true, requires = "told_bundle")]
    pub(crate) told_container: Option<String>,
    /// The folder of that container's config.json
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) told_bundle: Option<PathBuf>,
    /// Where filters are kept that rules came to, for a runtime to begin before they are loaded
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) told_plans: Option<PathBuf>,
    /// That container has no mounts of its own
    #[arg(long, hide = true)]
    pub(crate) told_host_mounts: bool,
    /// An agent of the host is to watch it, which is found in this folder
    #[arg(long, value_name = "DIR", hide = true, requires = "told_container")]
    pub(crate) told_agent: Option<PathBuf>,
    /// Watch that container's exec sessions, too, which find this agent in this folder
    #[arg(long, value_name = "DIR", hide = true, requires = "told_container")]
    pub(crate) told_door: Option<PathBuf>,
    /// CMD is an exec session of that container, whose agent is found in this folder
    #[arg(long, value_name = "DIR", hide = true, requires = "told_container")]
    pub(crate) told_session: Option<PathBuf>,
    /// Be that agent of the host; its files begin with this path
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) host_agent: Option<PathBuf>,
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
    after_help = "CMD is confined from its first instruction on, and so is whatever it starts, for \
                        ever. CMD's own exec is made under the policy: one that denies a program does \
                        not start it. Without violations to report, this process becomes CMD and \
                        nothing stays behind; with them it watches, as `tollgate run` does."
)]
pub(crate) struct Enforce {
    /// The policy
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) how: PolicyOptions,
    /// Configuration file, as Falco's falco.yaml: where violations are reported
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one key of the configuration, as in json_output=true; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Report violations as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not print how far each enforcer goes; rules that are carried in part are named all the same,
    /// unless --accept-partial names them
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Take over from another agent; for the keeper
    #[arg(long, value_name = "ORDER", hide = true)]
    pub(crate) resume: Option<String>,
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
    after_help = "The policy has the built-in rules that CMD can live with, and denies every call that it \
                        did not make: exercise all that it is to do, errors and its end too. With \
                        --model several runs add up. Which capabilities CMD uses is recorded as root \
                        since Linux 6.14; elsewhere root gets no rule about them."
)]
pub(crate) struct Learn {
    /// Where to write the policy
    #[arg(short = 'o', long = "output", value_name = "POLICY")]
    pub(crate) output: PathBuf,
    /// Add what is in this file, if it exists, and write all that was seen there
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Write the policy after this time, while CMD runs on unrecorded
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) duration: Option<u64>,
    /// What is to carry the policy, such as SeccompLandlockCapsBPF
    #[arg(long, value_name = "ENFORCERS", default_value = agent::learn::ENFORCERS,
          value_parser = agent::learn::enforcers)]
    pub(crate) enforcer: policy::Enforcers,
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
    after_help = "The engine ebpf needs root and a kernel with BTF; `tollgate doctor` shows \
                        whether it works here. The engine ptrace needs neither, watches only \
                        processes that -p names, and stops them at every call, which makes cheap \
                        calls more than 100 times as expensive."
)]
pub(crate) struct Watch {
    /// Process to watch, instead of all; repeatable
    #[arg(short = 'p', long = "pid", value_name = "PID",
          value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pids: Vec<i32>,
    /// Container to watch, instead of all processes: its name, or the beginning of its id; repeatable
    #[arg(long = "container", value_name = "NAME|ID", conflicts_with = "pids",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) containers: Vec<String>,
    /// Control group to watch, with those below it, as /sys/fs/cgroup/system.slice; repeatable
    #[arg(long = "cgroup", value_name = "PATH", conflicts_with = "pids")]
    pub(crate) cgroups: Vec<PathBuf>,
    /// How events are captured
    #[arg(long, value_enum, default_value_t = WatchEngine::Auto, hide_possible_values = true,
          value_name = "auto|ebpf|ptrace")]
    pub(crate) engine: WatchEngine,
    /// Watch sandboxes of gVisor, which connect to this socket
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["pids", "containers", "cgroups", "engine"])]
    pub(crate) gvisor: Option<PathBuf>,
    /// Write what runsc has to be told to this file: `runsc --pod-init-config FILE`, or for a sandbox
    /// that runs `runsc trace create --config FILE ID`
    #[arg(long, value_name = "FILE", requires = "gvisor")]
    pub(crate) gvisor_session: Option<PathBuf>,
    /// The session with which somebody else has sandboxes begin.
    #[arg(skip)]
    pub(crate) gvisor_given: Option<serde_json::Value>,
    /// End after this time
    #[arg(short = 'M', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) detection: Detection,
}

/// `tollgate replay`.
#[derive(Args, Debug)]
#[command(
    after_help = "Without --fields and --filter the events are judged by rules, and alerts go where the \
                        configuration says. With one of them events are printed, one a line; an event \
                        stands for a call and its result."
)]
pub(crate) struct Replay {
    /// Captures (scap, also compressed by gzip), read one after the other; - is the standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Rule file, or folder of rule files; repeatable [default: the built-in rules]
    #[arg(short = 'r', long = "rules", value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Configuration file, as Falco's falco.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one key of the configuration, as in outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Write alerts or events as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print events, with these fields, as in '%evt.num %proc.name %fd.name'
    #[arg(short = 'p', long, value_name = "FORMAT", conflicts_with = "rules")]
    pub(crate) fields: Option<String>,
    /// Print the events for which this condition holds
    #[arg(long, value_name = "CONDITION", conflicts_with = "rules")]
    pub(crate) filter: Option<String>,
    /// At the end print what was read, how fast, and what matched
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print no warnings and no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// How much of a capture is replayed, from its first event on.
    #[arg(skip)]
    pub(crate) seconds: Option<u64>,
    /// Whose customs apply.
    #[arg(skip)]
    pub(crate) manner: CompatMode,
}

/// `tollgate rules`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Check rule files
    Check(Check),
    /// List rules
    List(List),
    /// List the fields that conditions and outputs can use
    Fields(Fields),
    /// List the event types that conditions can name
    Events(Events),
    /// Show which system calls rules make the program look at, and why; or why rules do or do not match
    /// an event
    Explain(Explain),
    /// Test rules: events that are described in YAML or recorded, and the alerts they have to give
    Test(TestRules),
    /// Find rules that are hidden by others, cannot match or cost much
    Lint(Lint),
    /// Show what each rule has looked at, and the price of that by measured figures
    Cost(Cost),
}

/// `tollgate rules check`.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Rule files, or folders of rule files; later ones may append to earlier ones
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON, as Falco's -V does
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Rule files, or folders of rule files [default: the built-in rules]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Only this rule, in full
    #[arg(short = 'l', long = "rule", value_name = "RULE")]
    pub(crate) rule: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules fields`.
#[derive(Args, Debug)]
pub(crate) struct Fields {
    /// Only fields of this class: evt, proc, fd, ...
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `tollgate rules events`.
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// `tollgate rules explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Rule files, or folders of rule files [default: the built-in rules]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Only this call
    #[arg(long, value_name = "CALL")]
    pub(crate) call: Option<String>,
    /// Why rules do or do not match this event: fields and values as YAML, an alert as JSON, or a capture
    #[arg(long, value_name = "FILE", conflicts_with = "call")]
    pub(crate) event: Option<PathBuf>,
    /// With --event and a capture: the number of the event in it (evt.num)
    #[arg(long, value_name = "N", requires = "event")]
    pub(crate) number: Option<u64>,
    /// With --event: only this rule, with each clause of its condition
    #[arg(long, value_name = "RULE", requires = "event")]
    pub(crate) rule: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate rules lint`.
#[derive(Args, Debug)]
#[command(after_help = "\
shadowed   a rule before it matches whenever it does, so it never alerts while rule_matching is first
never      no event can make the rule match: clauses that cannot hold together, fields without a value
idle       a clause about a field without a value is decided already
empty      the output prints a field without a value
expensive  each of a frequent call has to be looked at for the rule

The exit status is 1 if something was found.")]
pub(crate) struct Lint {
    /// Rule files, or folders of rule files [default: the built-in rules]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How events will be captured; repeatable [default: notify, ptrace, ebpf]
    #[arg(long = "engine", value_name = "notify|ptrace|ebpf|gvisor|scap", value_parser = mechanism)]
    pub(crate) engines: Vec<Mechanism>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn mechanism(text: &str) -> Result<Mechanism, String> {
    Mechanism::from_name(text).ok_or_else(|| {
        let names = Mechanism::ALL.map(Mechanism::name);
        format!("expected one of {}", names.join(", "))
    })
}

/// `tollgate rules cost`.
#[derive(Args, Debug)]
#[command(after_help = "\
calls        system calls that are looked at for the rule
alone        those of them that no other rule asks for
events       such calls in the capture
share        their price, if all rules that ask for a call pay the same
alone        the price of those that no other rule asks for: what is saved without the rule
evaluations  how often the condition was evaluated, about, and what each of them took here")]
pub(crate) struct Cost {
    /// Rule files, or folders of rule files [default: the built-in rules]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Also price the events of this capture, and time the rules on them
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// By which engine processes are watched
    #[arg(long, value_enum, default_value_t = WatchMode::Notify, hide_possible_values = true,
          value_name = "notify|ebpf")]
    pub(crate) engine: WatchMode,
    /// Figures of this folder, which `tollgate bench compare --out` made [default: published ones]
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
    /// Files of tests
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Rule file, or folder of rule files, instead of those that FILE names; repeatable [default: the
    /// built-in rules]
    #[arg(short = 'r', long = "rules", value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Print JSON, one test a line
    #[arg(long)]
    pub(crate) json: bool,
}

const TEST_HELP: &str = "\
FILE is YAML:

    rules: [my_rules.yaml]           # beside FILE
    tests:
      - name: cat reads a sensitive file
        event:                       # fields of one event, as rules name them
          evt.type: openat
          evt.arg.flags: O_RDONLY
          fd.name: /etc/shadow
          proc.name: cat
          proc.aname: [bash, sshd]   # the parent first
        alerts: [Read sensitive file untrusted]
      - name: what was recorded with -w
        capture: attack.scap
        alerts:
          - rule: Run shell untrusted
            count: 2                 # else once or more
            priority: NOTICE
            output: spawned by       # a part of it
            fields: {proc.name: sh}

All rules are tried, whatever comes first, and those that are not named must not match. Fields that are
not given follow from others where they always do (fd.filename from fd.name, a result of success, the
host as container) and are absent otherwise, or unknown with `others: unknown`. The exit status is 1 if a
test fails.";

/// `tollgate runtime`, also when called as `tollgate-runtime`.
///
/// Takes runc's command line and passes it on to an installed runtime. Containers that are made with
/// it, and programs that are started in them with exec, are watched by rules from their first
/// instruction on, as the configuration says.
#[derive(Args, Debug)]
#[command(after_help = "\
Global options:
      --runtime NAME|PATH  The runtime to stand in for: runc, crun, youki or a path; vm makes a machine
                           with a kernel of its own for each container
                           [default: `runtime.binary` of the configuration, else the first installed]
      --config FILE        Configuration [default: $TOLLGATE_RUNTIME_CONFIG, else
                           /etc/tollgate/runtime.yaml if it is there]
      --agent container|host
                           Who watches: an agent for each container and each exec session, or one for all
                           containers of this machine [default: `runtime.agent`, else container]
  All others, as --root, --log, --log-format, --systemd-cgroup and --debug, are passed on.

Commands:
  create, run, exec        Passed on under a filter; what starts in the container is watched
  delete                   Passed on; what was noted of the container goes, too
  start, state, kill, list, ps, pause, resume, update, events, features, spec, checkpoint
                           Passed on
  restore                  Refused: a restored container would not be watched
  pool start [N], status [--json], stop
                           Keep N machines ready for the runtime vm (default: 1), show them, end them
  install, uninstall       Make this runtime known to containerd, docker and podman, or unknown again;
                           shows what would change, and changes it with --yes

Without a configuration all containers are watched by the built-in rules, and alerts go to
/var/log/tollgate/alerts.jsonl. The standard output is the container's and gets none.

The annotation tollgate.policy of a container, or `runtime.policy` of the configuration, names a policy
by which it is confined: NAME.yaml in `runtime.policies`, which is /etc/tollgate/policies by default.
")]
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
///
/// As root it makes two passes: as root in a container, and as an ordinary user. The exit status is
/// 1 if an alert was missed or anything was lost.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Print only the summary, as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Make one pass and report it line by line; for the demo itself
    #[arg(long, value_enum, hide = true)]
    pub(crate) stage: Option<DemoStage>,
}

/// The surroundings of a pass of the demo.
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
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `tollgate man`.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// A verb, and for `rules` and `bench` one of theirs
    #[arg(value_name = "VERB", action = ArgAction::Append)]
    pub(crate) verb: Vec<String>,
}

/// `tollgate version`.
#[derive(Args, Debug)]
pub(crate) struct Version {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
