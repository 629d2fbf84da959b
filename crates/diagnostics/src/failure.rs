//! The error that ends a command: one message with its cause, and the next step.

use std::error::Error;
use std::fmt::Write as _;

use crate::exit::Exit;

/// An error that ends a command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the program.
    pub exit: Exit,
    message: String,
    help: Option<String>,
}

impl Failure {
    /// Creates an error. `message` has the form "cannot VERB OBJECT: CAUSE".
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            help: None,
        }
    }

    /// Creates an error from `error` and its chain of sources, joined by colons.
    pub fn from_error(exit: Exit, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let _ = write!(message, ": {error}");
            cause = error.source();
        }
        Self::new(exit, message)
    }

    /// The message without prefix and next step.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Sets the next step, shown in a `help:` line.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }

    /// The text for the standard error: `tollgate: MESSAGE`, and a `help:` line if a next step is set.
    pub fn render(&self) -> String {
        self.render_as("tollgate: ")
    }

    /// Like [`Failure::render`], with another prefix than `tollgate: `.
    pub fn render_as(&self, prefix: &str) -> String {
        let mut text = format!("{prefix}{}\n", self.message);
        if let Some(help) = &self.help {
            let _ = writeln!(text, "help: {help}");
        }
        text
    }
}

/// The result of a command.
pub type Outcome = Result<Exit, Failure>;

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
