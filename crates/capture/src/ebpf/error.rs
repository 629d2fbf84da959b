//! Errors that keep the engine from starting, or end it.

use abi::constant::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, Constant};

use super::programs;
use process_info::procfs::ProcError;

/// Error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a program or a map.
    #[error("cannot load the programs of the engine ebpf{}", reason(.said))]
    Load {
        /// Message of libbpf.
        said: String,
        /// Error of libbpf.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The process lacks the privileges that every program needs.
    #[error(
        "cannot load the programs of the engine ebpf: that needs root, or the capabilities BPF and PERFMON"
    )]
    Unprivileged,
    /// A program cannot be attached.
    #[error("cannot attach the program {name}")]
    Attach {
        /// Name of the program.
        name: &'static str,
        /// Cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A map cannot be used.
    #[error("cannot write a table of the engine ebpf")]
    Map {
        /// Cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The hooks that were requested by name do not work on this host.
    #[error("cannot see calls by {hooks}: {why}")]
    Hooks {
        /// The hooks.
        hooks: &'static str,
        /// Reason.
        why: String,
    },
    /// The compiled object lacks a program or map.
    #[error("cannot find {name} in the programs of the engine ebpf")]
    Missing {
        /// Name of the program or map.
        name: &'static str,
    },
    /// The rules ask for more calls than the tables hold.
    #[error("cannot put {rows} calls into a table of {limit}")]
    TooManyCalls {
        /// Number of rows that the rules need.
        rows: usize,
        /// Number of rows that fit.
        limit: usize,
    },
    /// More records were lost than is allowed.
    #[error("cannot go on: more events were lost than is allowed")]
    TooManyLost,
    /// A process that is to be watched has ended, or never existed.
    #[error("cannot watch process {pid}: no such process")]
    Gone {
        /// Pid of the process.
        pid: i32,
    },
    /// `/proc` cannot be read.
    #[error("cannot read the running processes")]
    Proc(#[from] ProcError),
    /// A file system did not return in time the files that rules name.
    #[error(
        "cannot resolve the files that rules name below the root of process {pid}: a file system does not \
        respond; until it does, they are matched by path only"
    )]
    UnknownFiles {
        /// Pid of the process whose root it is.
        pid: i32,
    },
    /// A thread could not be started.
    #[error("cannot start the engine's threads")]
    Thread(#[source] std::io::Error),
}

impl Error {
    pub(super) fn load(cause: libbpf_rs::Error) -> Self {
        // What libbpf says then is about a limit of memory, and misleads.
        let said = programs::said();
        match is_unprivileged() {
            true => Self::Unprivileged,
            false => Self::Load { said, cause },
        }
    }

    pub(super) fn map(cause: libbpf_rs::Error) -> Self {
        Self::Map { cause }
    }
}

/// Returns true if the process has none of the capabilities with which programs can be loaded.
fn is_unprivileged() -> bool {
    let has_none = |sets: sys::credential::CapabilitySets| {
        let has = |capability: Constant| sets.effective.contains(capability.u8());
        !(has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON))
    };
    sys::credential::capabilities(0).is_ok_and(has_none)
}

fn reason(said: &str) -> String {
    // The kernel's own message is in the first lines, the rest repeats it.
    let first: String = said.chars().take(400).collect();
    if first.is_empty() {
        String::new()
    } else {
        format!(" ({})", first.replace('\n', " "))
    }
}
