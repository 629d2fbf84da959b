//! The program's exit codes.

use std::process::ExitCode;

/// What the program ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well.
    Ok,
    /// Something is wrong, to those who know only that: Falco's only status besides 0.
    Failed,
    /// Wrong usage or bad input.
    BadInput,
    /// The kernel or the user's privileges do not suffice.
    Unsupported,
    /// A defect of this program.
    Internal,
    /// The command to run exists but cannot be executed.
    NotExecutable,
    /// The command to run does not exist.
    NotFound,
    /// The status of the command that was run; 128 + n if signal n killed it.
    Command(u8),
}

impl Exit {
    /// Each code and its meaning, for the manual page.
    pub(crate) const MEANINGS: &'static [(&'static str, &'static str)] = &[
        ("0", "all went well"),
        (
            "1",
            "an alert, violation or regression was found, where that was asked for",
        ),
        ("2", "wrong usage or bad input"),
        ("3", "missing kernel support or privilege"),
        ("4", "internal error"),
        ("126", "CMD cannot be executed"),
        ("127", "CMD was not found"),
        ("128+N", "CMD was killed by signal N"),
    ];

    /// The number.
    pub(crate) fn code(self) -> u8 {
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
