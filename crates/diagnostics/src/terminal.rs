//! Printing to the standard output and the standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::poll::{self, PollFd};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// Prints the whole output of a command to the standard output. A reader that closed the pipe early (`head`, a
/// pager) is no error.
pub fn print(text: &str) -> Outcome {
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

/// Returns true if the standard output is a pipe without readers.
pub fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut out = [PollFd::new(out.as_fd(), poll::OUT)];
    poll::poll(&mut out, Some(Duration::ZERO)).is_ok() && out[0].found() & poll::ERR != 0
}

/// Prints a message to the standard error. Errors are ignored: no channel is left to report them.
pub fn complain(text: &str) {
    if !is_writable(io::stderr().as_fd()) {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let mut err = io::stderr().lock();
    let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
    if left_out > 0 {
        let _ = writeln!(
            err,
            "tollgate: {left_out} messages are missing here: the standard error took nothing"
        );
    }
    let _ = err.write_all(text.as_bytes());
}

/// Time limit for writing a message to the standard error, in milliseconds; 0 for none.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);
/// Number of messages that could not be written.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Limits how long [`complain`] waits for the standard error. Later messages that cannot be written in that time are
/// dropped and counted: a watched program can stop the terminal, which must not block the monitor.
pub fn wait_at_most(patience: Duration) {
    let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    PATIENCE_MS.store(patience.max(1), Ordering::Relaxed);
}

/// Returns true if the file becomes writable within the time limit.
fn is_writable(file: BorrowedFd<'_>) -> bool {
    let patience = match PATIENCE_MS.load(Ordering::Relaxed) {
        0 => return true,
        // After one message has timed out, later ones do not wait.
        _ if LEFT_OUT.load(Ordering::Relaxed) > 0 => Duration::ZERO,
        patience => Duration::from_millis(patience),
    };
    let mut files = [PollFd::new(file, poll::OUT)];
    // If waiting is impossible, the message is written at once.
    poll::poll(&mut files, Some(patience)).map_or(true, |ready| ready > 0)
}

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Works: green.
    Good,
    /// Works in part: yellow.
    Doubtful,
    /// Does not work: red.
    Bad,
}

/// Returns true if the standard output is a terminal, and neither `NO_COLOR` (<https://no-color.org>) nor
/// `TERM=dumb` disables colours.
pub fn wants_colour() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !no_color && !dumb
}

/// Wraps text in the escape sequences of a colour.
pub fn paint(text: &str, colour: Colour) -> String {
    let code = match colour {
        Colour::Good => 32,
        Colour::Doubtful => 33,
        Colour::Bad => 31,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}
