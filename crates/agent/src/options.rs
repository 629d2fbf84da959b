//! What an agent is asked to do, without a command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use capture::ebpf::Hooks;
use config::{CompatMode, IoUring, OnAgentDeath, Verify};
use event::EngineKind;

use crate::confine::Optional;
use crate::learn::Learner;

/// What a workload can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// To make itself unreadable.
    NonDumpable,
}

/// By which rules processes are watched and where it is told.
#[derive(Debug, Default)]
pub struct Detection {
    /// Rule files and folders of them; the built-in rules if there is none.
    pub rules: Vec<PathBuf>,
    /// Configuration file, as Falco's `falco.yaml`.
    pub config: Option<PathBuf>,
    /// Keys of the configuration that are set over the file, as in `outputs.rate=5`.
    pub options: Vec<String>,
    /// Whether alerts are written as JSON.
    pub json: bool,
    /// File (scap) to which the events that rules ask about are recorded.
    pub write: Option<PathBuf>,
    /// When another file of that recording is begun.
    pub rotation: Rotation,
    /// File to which counters are written, one JSON object a line.
    pub stats: Option<PathBuf>,
    /// Milliseconds between two lines of the stats file.
    pub stats_interval: u64,
    /// File to which the pid of the process that watches is written; it takes SIGUSR1 and SIGHUP.
    pub pidfile: Option<PathBuf>,
    /// Id of the container that is watched, where it cannot be found out.
    pub container_id: Option<String>,
    /// How the engine ebpf sees calls.
    pub hooks: Hooks,
    /// Whether the engine ebpf looks at paths and names in the agent alone; to compare with.
    pub unfiltered: bool,
    /// KiB of the ring for most events of the engine ebpf, a power of two, instead of what the
    /// configuration says; for tests.
    pub ring_kib: Option<u32>,
    /// Number of threads of the engine ebpf that judge a crowd of events, instead of one for each
    /// processor; to compare with.
    pub judges: Option<std::num::NonZeroUsize>,
    /// Whether no warnings are printed but those about a policy.
    pub quiet: bool,
    /// Whose customs apply.
    pub manner: CompatMode,
    /// Whether there are no rules.
    pub without_rules: bool,
    /// Where what is seen is recorded.
    pub learner: Option<Arc<Learner>>,
}

/// When another file of a recording is begun; the files have numbers behind their name then.
#[derive(Debug, Default)]
pub struct Rotation {
    /// MiB after which another file is begun.
    pub write_size: Option<u64>,
    /// Seconds after which another file is begun.
    pub write_time: Option<u64>,
    /// Number of events after which another file is begun.
    pub write_events: Option<u64>,
    /// Number of files that are kept; older ones are removed.
    pub write_keep: Option<u64>,
}

/// How the calls of a command are seen, and what it is refused.
#[derive(Debug, Default)]
pub struct Interception {
    /// How events are captured.
    pub engine: Option<EngineKind>,
    /// Whether the engine ptrace sees every call, as where no filter can be installed; for tests.
    pub every_call: bool,
    /// Which calls of processes with several threads are compared with what the kernel did, instead of
    /// what the configuration says.
    pub verify: Option<Verify>,
    /// Whether the command may use io_uring, whose calls cannot be seen, instead of what the
    /// configuration says.
    pub io_uring: Option<IoUring>,
    /// What the command is refused because it would keep the agent from reading its memory. What is not
    /// refused is reported.
    pub refuse: Vec<Refusal>,
}

/// A command to run under the watch.
#[derive(Debug)]
pub struct Run {
    /// By which rules the command is watched.
    pub detection: Detection,
    /// Policy of the command.
    pub confine: Optional,
    /// How its calls are seen.
    pub interception: Interception,
    /// What becomes of the command's calls while no agent watches: it was killed, stopped or starved.
    pub on_agent_death: OnAgentDeath,
    /// Milliseconds that calls may wait for an agent that makes no progress.
    pub agent_timeout: u64,
    /// Order of a keeper, by which this process takes over from another agent.
    pub resume: Option<String>,
    /// Id of the container that the command, a container runtime, makes.
    pub told_container: Option<String>,
    /// Folder of that container's `config.json`.
    pub told_bundle: Option<PathBuf>,
    /// Folder of cached compiled filters, with which a runtime begins before rules are loaded.
    pub told_plans: Option<PathBuf>,
    /// Whether that container has no mounts of its own.
    pub told_host_mounts: bool,
    /// Folder in which the agent of the host is found that is to watch that container.
    pub told_agent: Option<PathBuf>,
    /// Folder in which exec sessions of that container find this agent, which watches them, too.
    pub told_door: Option<PathBuf>,
    /// Folder in which the agent of that container is found; the command is an exec session of it.
    pub told_session: Option<PathBuf>,
    /// Path with which the files of this agent of the host begin.
    pub host_agent: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}
