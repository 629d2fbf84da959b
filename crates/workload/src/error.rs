//! Errors of loads.

use std::io;
use std::path::PathBuf;

/// A failure of a load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No load has this name.
    #[error("cannot find a workload of this name; {hint}")]
    UnknownName {
        /// The nearest name, or the command that lists all.
        hint: String,
    },
    /// A process was started for an unknown role.
    #[error("cannot play the part `{role}`")]
    UnknownRole {
        /// The role.
        role: String,
    },
    /// A system call failed that must succeed.
    #[error("cannot {call}")]
    Call {
        /// The operation that failed.
        call: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// A file that the load needs cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A program that an action starts failed.
    #[error("{} failed: it exited with {status}: {said}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The program's exit status.
        status: std::process::ExitStatus,
        /// The program's output.
        said: String,
    },
    /// The load starts a program of machine code that is written for x86-64.
    #[error(
        "cannot run this load on {}: its program is for x86-64",
        std::env::consts::ARCH
    )]
    Architecture,
    /// A call returned another result than the load expects.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// The expected result.
        expected: String,
        /// The actual result.
        got: String,
    },
    /// The result cannot be printed.
    #[error("cannot print the result")]
    Print {
        /// The error of the write.
        source: io::Error,
    },
}

impl Error {
    /// Returns the exit code of a process that ends with this error: 2 for invalid input, otherwise 4.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::UnknownName { .. } | Error::UnknownRole { .. } | Error::File { .. } => 2,
            _ => 4,
        }
    }

    /// Formats the message with its causes on one line.
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
