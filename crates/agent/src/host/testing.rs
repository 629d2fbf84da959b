//! Entries for fuzzing: what the other side of a connection between agents sends.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use capture::notify::{call_words, calls_from_words};

use super::handoff_request::{ask_calls, hear, next_order, obey, receive};

/// Build that a request has to name.
pub const BUILD: &str = "build";

/// Reads a request to watch a container that comes with its descriptors. Returns `None` if it is refused, else the ids of its
/// container and of the threads that are not watched.
///
/// # Errors
///
/// The sockets cannot be made.
pub fn handoff_request(bytes: &[u8]) -> io::Result<Option<(String, Vec<i32>)>> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let file = File::open("/dev/null")?;
    for letter in [b"B", b"L"] {
        sys::socket::send_fd(ours.as_fd(), letter, Some(file.as_fd()))?;
    }
    ours.write_all(bytes)?;
    ours.shutdown(Shutdown::Write)?;
    let received = receive(&theirs, Ok(BUILD.to_owned()));
    let hail = received.ok().flatten().map(|handed| handed.hail);
    Ok(hail.map(|hail| (hail.container, hail.transparent)))
}

/// Reads held calls. Returns their number; `None` if these are none.
///
/// # Errors
///
/// The sockets cannot be made.
///
/// # Panics
///
/// If calls that were read differ when they are read again.
pub fn held_calls(bytes: &[u8]) -> io::Result<Option<usize>> {
    let (_ours, theirs) = sent(bytes)?;
    Ok(ask_calls(&theirs).ok().map(|held| {
        let words: Vec<u64> = held.calls.iter().flat_map(call_words).collect();
        assert_eq!(calls_from_words(&words), held.calls);
        held.calls.len()
    }))
}

/// Reads the answer to a request. Returns the reason of a refusal; `None` if it is no answer.
///
/// # Errors
///
/// The sockets cannot be made.
pub fn handoff_answer(bytes: &[u8]) -> io::Result<Option<Result<(), String>>> {
    let (_ours, theirs) = sent(bytes)?;
    let mut none = || Err(io::Error::other("no calls are held"));
    Ok(hear(&theirs, &mut none).ok())
}

/// Reads and answers orders to the end, and returns their number.
///
/// # Errors
///
/// The sockets cannot be made.
pub fn orders(bytes: &[u8]) -> io::Result<usize> {
    let (_ours, theirs) = sent(bytes)?;
    let mut count = 0;
    while next_order(&theirs).is_some() {
        obey(&theirs, true);
        count += 1;
    }
    Ok(count)
}

/// Returns both ends of a connection on which these bytes were sent, and nothing follows.
fn sent(bytes: &[u8]) -> io::Result<(UnixStream, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    ours.write_all(bytes)?;
    ours.shutdown(Shutdown::Write)?;
    Ok((ours, theirs))
}
