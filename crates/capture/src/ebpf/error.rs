//! Why the engine does not start, or does not go on.

use super::programs;
use process_info::procfs::ProcError;

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a program or a map.
    #[error("cannot load the programs of the engine ebpf{}", reason(.said))]
    Load {
        /// What libbpf said.
        said: String,
        /// Its error.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A program cannot be attached.
    #[error("cannot attach the program {name}")]
    Attach {
        /// The program.
        name: &'static str,
        /// Why.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A map cannot be used.
    #[error("cannot write a table of the engine ebpf")]
    Map {
        /// Why.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// What was asked for by name does not work here.
    #[error("cannot see calls by {hooks}: {why}")]
    Hooks {
        /// What.
        hooks: &'static str,
        /// Why.
        why: String,
    },
    /// The compiled programs lack something.
    #[error("cannot find {name} in the programs of the engine ebpf")]
    Missing {
        /// What.
        name: &'static str,
    },
    /// The rules ask for more calls than the tables hold.
    #[error("cannot put {rows} calls into a table of {limit}")]
    TooManyCalls {
        /// How many there are.
        rows: usize,
        /// How many fit.
        limit: usize,
    },
    /// More was lost than is allowed.
    #[error("cannot go on: more events were lost than is allowed")]
    TooManyLost,
    /// A process that is to be watched has ended, or never was.
    #[error("cannot watch process {pid}: no such process")]
    Gone {
        /// Its number.
        pid: i32,
    },
    /// `/proc` cannot be read.
    #[error("cannot read the running processes")]
    Proc(#[from] ProcError),
    /// A file system did not say in time what is at the paths that rules name.
    #[error(
        "cannot resolve the files that rules name below the root of process {pid}: a file system does not \
        respond; until it does, they are matched by path only"
    )]
    UnknownFiles {
        /// Whose root it is.
        pid: i32,
    },
    /// A thread could not be made.
    #[error("cannot start the engine's threads")]
    Thread(#[source] std::io::Error),
}

impl Error {
    pub(super) fn load(cause: libbpf_rs::Error) -> Self {
        Self::Load {
            said: programs::said(),
            cause,
        }
    }

    pub(super) fn map(cause: libbpf_rs::Error) -> Self {
        Self::Map { cause }
    }
}

fn reason(said: &str) -> String {
    // The kernel's own words are in the first lines, the rest repeats them.
    let first: String = said.chars().take(400).collect();
    if first.is_empty() {
        String::new()
    } else {
        format!(" ({})", first.replace('\n', " "))
    }
}
