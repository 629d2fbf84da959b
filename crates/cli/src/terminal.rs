//! Printing.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use sys::poll::{self, PollFd};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// Prints a verb's whole output. A reader that has seen enough (`head`, a pager) is no failure.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Err(error) => Err(Failure::new(
            Exit::BadInput,
            format!("cannot print: {error}"),
        )),
        Ok(()) => Ok(Exit::Ok),
    }
}

/// Whether the standard output is a pipe whose readers have all gone.
pub(crate) fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut out = [PollFd::new(out.as_fd(), poll::OUT)];
    poll::poll(&mut out, Some(Duration::ZERO)).is_ok() && out[0].found() & poll::ERR != 0
}

/// Prints a message to the standard error. There is nobody left to tell if that fails.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A colour, where colours are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Something works.
    Good,
    /// Something works in part.
    Doubtful,
    /// Something does not work.
    Bad,
}

/// Whether the standard output takes colours: a terminal, and neither `NO_COLOR`
/// (<https://no-color.org>) nor `TERM=dumb` says no.
pub(crate) fn wants_colour() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !no_color && !dumb
}

/// Wraps text in a colour.
pub(crate) fn paint(text: &str, colour: Colour) -> String {
    let code = match colour {
        Colour::Good => 32,
        Colour::Doubtful => 33,
        Colour::Bad => 31,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}
