//! Why a load did not do its work.

use std::io;
use std::path::PathBuf;

/// A failure of a load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No load has this name.
    #[error("cannot find a workload of this name; {hint}")]
    UnknownName {
        /// The nearest name, or where to find all.
        hint: String,
    },
    /// A process was started for a part that does not exist.
    #[error("cannot play the part `{role}`")]
    UnknownRole {
        /// The part.
        role: String,
    },
    /// A system call failed that must work.
    #[error("cannot {call}")]
    Call {
        /// What was tried.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file that the load needs cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A call came back with another result than the load is about.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// What should have happened.
        expected: String,
        /// What did.
        got: String,
    },
    /// The result cannot be printed.
    #[error("cannot print the result")]
    Print {
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// 2 for what the user can mend, 4 for the rest.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::UnknownName { .. } | Error::UnknownRole { .. } | Error::File { .. } => 2,
            _ => 4,
        }
    }

    /// For `map_err` on a call that must work.
    pub(crate) fn call<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::Call {
            call,
            source: source.into(),
        }
    }
}
