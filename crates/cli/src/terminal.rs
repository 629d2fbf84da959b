//! Printing.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// How long a message waits for the standard error, in milliseconds; 0: for ever.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);
/// Messages that could not be written.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// From now on a message that cannot be written in this time is left out, and counted: a watched program can stop the
/// terminal, and whoever watches it must not wait for that.
pub(crate) fn wait_at_most(patience: Duration) {
    let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    PATIENCE_MS.store(patience.max(1), Ordering::Relaxed);
}

/// Whether something can be written to a file, now or in the time that there is.
fn is_writable(file: BorrowedFd<'_>) -> bool {
    let patience = match PATIENCE_MS.load(Ordering::Relaxed) {
        0 => return true,
        // One has waited in vain; the next ones do not.
        _ if LEFT_OUT.load(Ordering::Relaxed) > 0 => Duration::ZERO,
        patience => Duration::from_millis(patience),
    };
    let mut files = [PollFd::new(file, poll::OUT)];
    // What cannot be waited for is written at once.
    poll::poll(&mut files, Some(patience)).map_or(true, |ready| ready > 0)
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
