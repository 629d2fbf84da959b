//! What can go wrong before, during and after a run.

use std::io;
use std::path::PathBuf;

/// A failure of the lab itself; a failing subject is not one, it is an invalid sample.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plan file is not TOML or JSON of the expected shape.
    #[error("cannot read the plan {}", path.display())]
    PlanSyntax {
        /// The plan file.
        path: PathBuf,
        /// Where and why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A plan can be read but cannot be run.
    #[error("cannot use the plan: {reason}")]
    PlanContent {
        /// What to change.
        reason: String,
    },
    /// A command line cannot be split into words.
    #[error("cannot split the command line `{line}`: {reason}")]
    CommandLine {
        /// The text as given.
        line: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A `--subject` or `--workload` option is malformed.
    #[error("cannot use the option {option}: {reason}")]
    Option {
        /// The option as typed.
        option: String,
        /// What was expected.
        reason: String,
    },
    /// The program of a subject or workload does not start.
    #[error("cannot start `{program}` of `{line}`: is it installed and in PATH?")]
    Start {
        /// The program.
        program: String,
        /// The whole command line.
        line: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Waiting for, or collecting the output of, a started program failed.
    #[error("cannot {action} `{program}`")]
    Supervise {
        /// What was tried.
        action: &'static str,
        /// The program.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What a command was to run in or beside could not be set up.
    #[error("cannot set the stage: {reason}")]
    Stage {
        /// What went wrong.
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
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A recorded file does not parse.
    #[error("cannot understand {} at line {line}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// Handlers for Ctrl-C cannot be set up.
    #[error("cannot handle signals")]
    Signals {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The result cannot be printed.
    #[error("cannot print the report")]
    Print {
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err` on a file.
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Error::File {
            action,
            path: path.clone(),
            source,
        }
    }

    /// For `map_err` on a call about a started program.
    pub(crate) fn supervise(action: &'static str, program: &str) -> impl Fn(io::Error) -> Self {
        let program = program.to_owned();
        move |source| Error::Supervise {
            action,
            program: program.clone(),
            source,
        }
    }

    /// The exit code of the program for this failure: 2 for input that the user can mend, 4 else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Stage { .. } => 70,
            Error::Supervise { .. } | Error::Signals { .. } | Error::Print { .. } => 4,
            _ => 2,
        }
    }
}
