//! What went wrong, for the user: one message, its cause, the next step.

use std::error::Error;
use std::fmt::Write as _;

use crate::exit::Exit;

/// Ends a verb.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the program exits with.
    pub(crate) exit: Exit,
    message: String,
    help: Option<String>,
}

impl Failure {
    /// `message` begins with "cannot".
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            help: None,
        }
    }

    /// An error with its chain of causes.
    pub(crate) fn from_error(exit: Exit, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let _ = write!(message, ": {error}");
            cause = error.source();
        }
        Self::new(exit, message)
    }

    /// What went wrong, without the next step.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds the next step.
    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }

    /// `tollgate: cannot X: cause`, and a `help:` line.
    pub(crate) fn render(&self) -> String {
        self.render_as("tollgate: ")
    }

    /// The same with another word in front.
    pub(crate) fn render_as(&self, prefix: &str) -> String {
        let mut text = format!("{prefix}{}\n", self.message);
        if let Some(help) = &self.help {
            let _ = writeln!(text, "help: {help}");
        }
        text
    }
}

/// What a verb returns.
pub(crate) type Outcome = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open x")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_follow_the_message_and_help_has_its_own_line() {
        let error = Outer(std::io::Error::other("no such thing"));
        let failure = Failure::from_error(Exit::BadInput, &error).help("make one");
        assert_eq!(
            failure.render(),
            "tollgate: cannot open x: no such thing\nhelp: make one\n"
        );
    }
}
