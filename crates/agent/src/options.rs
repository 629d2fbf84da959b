//! Options of detection and interception: parts of an [`AgentSpec`](crate::spec::AgentSpec).

use std::path::PathBuf;
use std::sync::Arc;

use capture::ebpf::Hooks;
use config::{CompatMode, IoUring, Verify};
use event::EngineKind;
use serde::{Deserialize, Serialize};

use crate::learn::Learner;
use crate::spec::{optional_path, paths};

/// An operation that can be refused to a workload.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Refusal {
    /// Making itself non-dumpable, and thereby unreadable.
    NonDumpable,
}

/// Rules for watching processes, and destinations of the results.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Detection {
    /// Rule files and directories of them; empty for the built-in rules.
    #[serde(with = "paths")]
    pub rules: Vec<PathBuf>,
    /// Rule files and directories that are loaded after the others.
    #[serde(with = "paths")]
    pub add_rules: Vec<PathBuf>,
    /// Directory of rule files beside the built-in rules; not used with `rules`.
    #[serde(with = "optional_path")]
    pub rules_folder: Option<PathBuf>,
    /// Configuration files that `config` overrides; they need not exist.
    #[serde(with = "paths")]
    pub layers: Vec<PathBuf>,
    /// Configuration file in the format of Falco's `falco.yaml`.
    #[serde(with = "optional_path")]
    pub config: Option<PathBuf>,
    /// Settings that override the file, such as `outputs.rate=5`.
    pub options: Vec<String>,
    /// Write alerts as JSON.
    pub json: bool,
    /// Capture file (scap) to which the events used by rules are recorded.
    #[serde(with = "optional_path")]
    pub write: Option<PathBuf>,
    /// Rotation of that file.
    pub rotation: Rotation,
    /// File to which counters are written, one JSON object per line.
    #[serde(with = "optional_path")]
    pub stats: Option<PathBuf>,
    /// Interval between lines of the stats file in milliseconds.
    pub stats_interval: u64,
    /// File to which the monitor's pid is written; it accepts SIGUSR1 and SIGHUP.
    #[serde(with = "optional_path")]
    pub pidfile: Option<PathBuf>,
    /// Id of the watched container, where it cannot be detected.
    pub container_id: Option<String>,
    /// Hooks of the engine ebpf.
    pub hooks: Hooks,
    /// The engine ebpf evaluates paths and names only in the agent; for comparison.
    pub unfiltered: bool,
    /// Ring buffer size for most events of the engine ebpf, in KiB, a power of two. Overrides the
    /// configuration; for tests.
    pub ring_kib: Option<u32>,
    /// Number of threads of the engine ebpf that evaluate a burst of events, instead of one per
    /// processor; for comparison.
    pub judges: Option<std::num::NonZeroUsize>,
    /// Print only warnings about a policy.
    pub quiet: bool,
    /// Whose conventions apply.
    pub manner: CompatMode,
    /// Use no rules.
    pub without_rules: bool,
    /// Recorder of the observed behaviour; belongs to this process alone.
    #[serde(skip)]
    pub learner: Option<Arc<Learner>>,
}

/// Limits at which a recording continues in another file. File names then get a number as a suffix.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Rotation {
    /// Maximum size of a file in MiB.
    pub write_size: Option<u64>,
    /// Maximum duration of a file in seconds.
    pub write_time: Option<u64>,
    /// Maximum number of events in a file.
    pub write_events: Option<u64>,
    /// Number of files that are kept; older ones are removed.
    pub write_keep: Option<u64>,
}

/// Interception of a command's calls, and operations that are refused to it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Interception {
    /// Engine that captures events.
    pub engine: Option<EngineKind>,
    /// The engine ptrace intercepts every call, as where no filter can be installed; for tests.
    pub every_call: bool,
    /// Calls of multithreaded processes that are compared with what the kernel did. Overrides the
    /// configuration.
    pub verify: Option<Verify>,
    /// Allow or deny io_uring, whose operations cannot be intercepted. Overrides the configuration.
    pub io_uring: Option<IoUring>,
    /// Operations refused to the command because they would prevent the agent from reading its
    /// memory. Other such operations are reported.
    pub refuse: Vec<Refusal>,
}
