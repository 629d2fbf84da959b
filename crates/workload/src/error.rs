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
    /// A program that an action starts ended badly.
    #[error("{} failed: it exited with {status}: {said}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it printed.
        said: String,
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
    /// The exit code of a process that ends with this error: 2 for bad input, else 4.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::UnknownName { .. } | Error::UnknownRole { .. } | Error::File { .. } => 2,
            _ => 4,
        }
    }

    /// The message with its causes, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }

    /// Returns a function for `map_err` that makes [`Error::File`] of an operation on `path`.
    pub fn file<E: Into<io::Error>>(
        action: &'static str,
        path: impl AsRef<std::path::Path>,
    ) -> impl Fn(E) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::File {
            action,
            path: path.clone(),
            source: source.into(),
        }
    }

    /// Returns a function for `map_err` that makes [`Error::Call`].
    pub fn call<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::Call {
            call,
            source: source.into(),
        }
    }
}
