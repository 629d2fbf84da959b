//! Options of detection and interception: parts of an [`AgentSpec`](crate::spec::AgentSpec).

use std::path::PathBuf;
use std::sync::Arc;

use capture::ebpf::Hooks;
use config::{CompatMode, IoUring, Verify};
use container::registry::Registry;
use event::EngineKind;
use outputs::{StandardStream, StdoutOutput, StreamFormat, StreamTarget};
use serde::{Deserialize, Serialize};

use crate::given::{GivenFolders, GivenHandle};
use crate::learn::Learner;
use crate::observer::AlertObserver;
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
    /// Where the alert stream goes.
    pub stream: AlertStream,
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
    pub rule_threads: Option<std::num::NonZeroUsize>,
    /// Print only warnings about a policy.
    pub quiet: bool,
    /// Whose conventions apply.
    pub manner: CompatMode,
    /// Use no rules.
    pub without_rules: bool,
    /// Recorder of the observed behaviour; belongs to this process alone.
    #[serde(skip)]
    pub learner: Option<Arc<Learner>>,
    /// Rules and settings that this process alone has, as texts.
    #[serde(skip)]
    pub given: Option<Arc<GivenHandle>>,
    /// Folders for the files that those settings name; `None` if they may name no file.
    #[serde(skip)]
    pub given_folders: Option<GivenFolders>,
    /// What a container runtime tells this process about containers.
    #[serde(skip)]
    pub containers: Option<Arc<Registry>>,
    /// Who gets the alerts beside the outputs.
    #[serde(skip)]
    pub observer: Option<AlertObserver>,
}

/// Where the alert stream goes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct AlertStream {
    /// File to which alerts are appended, or `-` for the standard output. Also written if the
    /// configuration disables `stdout_output`.
    #[serde(with = "optional_path")]
    pub log: Option<PathBuf>,
    /// A command has the standard output to itself, so alerts go to the standard error by default.
    pub is_beside_command: bool,
    /// How the alerts read.
    pub format: Option<AlertFormat>,
    /// Lines for people are not cut at the width of the terminal.
    pub is_wide: bool,
}

/// How the alert stream reads.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum AlertFormat {
    /// Two lines for people.
    Pretty,
    /// One line of `key=value`.
    Line,
    /// Falco's text.
    Falco,
    /// JSON.
    Json,
}

impl AlertStream {
    /// Returns the stream of a command without `--log`.
    #[must_use]
    pub fn beside_command() -> Self {
        Self {
            is_beside_command: true,
            ..Self::default()
        }
    }

    /// Returns true if JSON was chosen, which all outputs then write.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.format == Some(AlertFormat::Json)
    }

    /// Applies the command line to the configured output.
    pub fn apply(&self, output: &mut StdoutOutput, manner: CompatMode) {
        output.is_for_people = manner == CompatMode::Tollgate;
        output.enabled |= self.log.is_some();
        output.wide = self.is_wide;
        output.format = self.format.map(|format| match format {
            AlertFormat::Pretty => StreamFormat::Pretty,
            AlertFormat::Line => StreamFormat::Line,
            AlertFormat::Falco => StreamFormat::Falco,
            AlertFormat::Json => StreamFormat::Json,
        });
        output.others = match self.is_beside_command {
            true => StandardStream::Error,
            false => StandardStream::Output,
        };
        output.target = match &self.log {
            Some(file) if file.as_os_str() == "-" => StreamTarget::Stdout,
            Some(file) => StreamTarget::File(file.clone()),
            None if self.is_beside_command => StreamTarget::Stderr,
            None => StreamTarget::Stdout,
        };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_standard_output() {
        let target = |log: Option<&str>, is_beside_command, enabled| {
            let stream = AlertStream {
                log: log.map(PathBuf::from),
                is_beside_command,
                ..AlertStream::default()
            };
            let mut output = StdoutOutput {
                enabled,
                ..StdoutOutput::default()
            };
            stream.apply(&mut output, CompatMode::Tollgate);
            output.enabled.then_some(output.target)
        };
        assert_eq!(target(None, true, true), Some(StreamTarget::Stderr));
        assert_eq!(target(None, false, true), Some(StreamTarget::Stdout));
        assert_eq!(target(None, true, false), None);
        for is_beside_command in [false, true] {
            let stdout = target(Some("-"), is_beside_command, true);
            assert_eq!(stdout, Some(StreamTarget::Stdout));
            // The option was given for this run; the configuration holds for all.
            let file = target(Some("f"), is_beside_command, false);
            assert_eq!(file, Some(StreamTarget::File("f".into())));
        }
    }
}
