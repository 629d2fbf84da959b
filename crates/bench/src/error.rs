//! Errors before, during and after a run.

use std::io;
use std::path::PathBuf;

/// A failure of the benchmark itself. A failing subject is no error but an invalid sample.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plan file is not TOML or JSON of the expected shape.
    #[error("cannot read the plan {}", path.display())]
    PlanSyntax {
        /// The plan file.
        path: PathBuf,
        /// Position and cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A plan can be read but cannot be run.
    #[error("cannot use the plan: {reason}")]
    PlanContent {
        /// Cause, and what to change.
        reason: String,
    },
    /// A command line cannot be split into words.
    #[error("cannot split the command line `{line}`: {reason}")]
    CommandLine {
        /// The command line as given.
        line: String,
        /// The cause.
        reason: &'static str,
    },
    /// A `--subject` or `--workload` option is malformed.
    #[error("cannot use the option {option}: {reason}")]
    Option {
        /// The option as typed.
        option: String,
        /// The expected form.
        reason: String,
    },
    /// Neither a verb nor a command was given.
    #[error("cannot measure anything: give a verb, or a command after `--`, as in `tollgate bench -- make`")]
    NothingToMeasure,
    /// The user's own command failed.
    #[error("cannot compare: `{line}` ({subject}) failed: {reason}")]
    CommandFailed {
        /// The way it was run.
        subject: String,
        /// The command line.
        line: String,
        /// Exit status, the last line of its errors, and what to do.
        reason: String,
    },
    /// The program of a subject or workload does not start.
    #[error("cannot start `{program}` of `{line}`: is it installed and in PATH?")]
    Start {
        /// The program.
        program: String,
        /// The whole command line.
        line: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// Waiting for, or collecting the output of, a started program failed.
    #[error("cannot {action} `{program}`")]
    Supervise {
        /// The operation that failed.
        action: &'static str,
        /// The program.
        program: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The environment or background command of a command could not be set up.
    #[error("cannot set the stage: {reason}")]
    Stage {
        /// The cause.
        reason: String,
    },
    /// A results folder already holds samples.
    #[error("cannot write results to {}: the folder already has samples; choose another --out", path.display())]
    FolderTaken {
        /// The folder.
        path: PathBuf,
    },
    /// A file of the results cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A recorded file does not parse.
    #[error("cannot understand {} at line {line}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// Signal handlers cannot be installed.
    #[error("cannot handle signals")]
    Signals {
        /// The error of the system call.
        source: io::Error,
    },
    /// The result cannot be printed.
    #[error("cannot print the report")]
    Print {
        /// The error of the write.
        source: io::Error,
    },
}

impl Error {
    /// Returns a function for `map_err` that makes [`Error::File`].
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Error::File {
            action,
            path: path.clone(),
            source,
        }
    }

    /// Returns a function for `map_err` that makes [`Error::Supervise`].
    pub(crate) fn supervise(action: &'static str, program: &str) -> impl Fn(io::Error) -> Self {
        let program = program.to_owned();
        move |source| Error::Supervise {
            action,
            program: program.clone(),
            source,
        }
    }

    /// Returns the program's exit code for this error: 1 for a command that failed, 2 for input that the user can correct,
    /// otherwise 4.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::CommandFailed { .. } => 1,
            Error::Stage { .. } => 70,
            Error::Supervise { .. } | Error::Signals { .. } | Error::Print { .. } => 4,
            _ => 2,
        }
    }
}
