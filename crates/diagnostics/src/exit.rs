//! Exit codes of the program.

use std::process::ExitCode;

/// The exit code of the program, by its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success: 0.
    Ok,
    /// Alerts, violations or regressions were found where the caller asked for that status; also Falco's only
    /// status besides 0: 1.
    Failed,
    /// Wrong usage or bad input: 2.
    BadInput,
    /// The kernel lacks support, or the user lacks a privilege: 3.
    Unsupported,
    /// A defect of this program: 4.
    Internal,
    /// The command to run exists but cannot be executed: 126, as in a shell.
    NotExecutable,
    /// The command to run does not exist: 127, as in a shell.
    NotFound,
    /// The status of the command that was run; 128 + n if signal n killed it.
    Command(u8),
}

impl Exit {
    /// Every code with its meaning, for the manual page.
    pub const MEANINGS: &'static [(&'static str, &'static str)] = &[
        ("0", "success"),
        (
            "1",
            "an alert, violation or regression was found, if the options ask for this status",
        ),
        ("2", "wrong usage or bad input"),
        ("3", "missing kernel support or privilege"),
        ("4", "internal error"),
        ("126", "CMD cannot be executed"),
        ("127", "CMD was not found"),
        ("128+N", "CMD was killed by signal N"),
    ];

    /// The number that the process exits with.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::BadInput => 2,
            Exit::Unsupported => 3,
            Exit::Internal => 4,
            Exit::NotExecutable => 126,
            Exit::NotFound => 127,
            Exit::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
