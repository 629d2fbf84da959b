//! Answering a container runtime before there are rules.
//!
//! Until its container's first program begins, nothing that a runtime does is judged. So its calls need
//! no rules to be answered, and it works on while they are loaded. What would begin a program in other
//! mounts than the runtime's is held, for the engine to look at.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::Syscall;
use sys::clone::CloneFlags;
use sys::notify::{Listener, Notification, Received};
use sys::poll::{self, PollFd};
use sys::wait::{self, Target};

use super::Pulse;
use crate::procfs::Proc;

/// A process that answers. Dropped, it lets it end; what it holds is lost then.
#[derive(Debug)]
pub struct Answering {
    pid: i32,
    /// Closed to end it.
    order: Option<OwnedFd>,
    /// What it held comes from here.
    held: OwnedFd,
}

impl Answering {
    /// Starts it. The calling process must have one thread.
    ///
    /// # Errors
    /// If there can be no process.
    pub fn start(listener: &Listener, pulse: &Arc<Pulse>) -> std::io::Result<Self> {
        // A runtime's calls come one by one. Fails before Linux 6.6, where each takes longer.
        let _ = listener.set_sync_wake_up(true);
        let (ordered, order) = sys::fd::pipe(O_CLOEXEC)?;
        let (held, hold) = sys::fd::pipe(O_CLOEXEC)?;
        let parent = std::process::id().cast_signed();
        let pid = sys::clone::clone_child(CloneFlags::default(), || {
            // Its own copies of the parent's ends would keep the pipes open.
            sys::fd::close_number(number(&order));
            sys::fd::close_number(number(&held));
            match answer(listener, &ordered, &hold, pulse, parent) {
                Ok(()) => 0,
                Err(_) => 1,
            }
        })?;
        Ok(Self {
            pid,
            order: Some(order),
            held,
        })
    }

    /// Readable when it holds a call, or has ended.
    #[must_use]
    pub fn held(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }

    /// Ends it, and gives the calls that it holds.
    ///
    /// # Errors
    /// If it has failed: then calls may wait that nobody knows of.
    pub fn end(mut self) -> std::io::Result<Vec<Notification>> {
        self.order = None;
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match sys::fd::read(self.held.as_fd(), &mut buffer)? {
                0 => break,
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
        match wait::wait(Target::Pid(self.pid), 0)? {
            Some((_, wait::Status::Exited(0))) => {}
            _ => return Err(std::io::Error::other("who answers the runtime has failed")),
        }
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        Ok(calls_from_words(&words))
    }
}

fn number(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

/// Answers until it is told to end.
fn answer(
    listener: &Listener,
    ordered: &OwnedFd,
    hold: &OwnedFd,
    pulse: &Arc<Pulse>,
    parent: i32,
) -> std::io::Result<()> {
    sys::prctl::set_parent_death_signal(SIGKILL)?;
    if std::os::unix::process::parent_id().cast_signed() != parent {
        return Ok(());
    }
    let proc = Proc::open().map_err(std::io::Error::other)?;
    let own = std::process::id().cast_signed();
    let mounts = proc
        .namespace(own, "ns/mnt")
        .map_err(std::io::Error::other)?;
    let seat = pulse.seat();
    let mut notification = Notification::default();
    loop {
        let mut polled = [
            PollFd::new(listener.as_fd(), poll::IN),
            PollFd::new(ordered.as_fd(), poll::IN),
        ];
        match poll::poll(&mut polled, None) {
            Err(error) if !error.is(EINTR) => return Err(error.into()),
            _ => {}
        }
        if polled[1].found() != 0 || polled[0].found() & (poll::HUP | poll::ERR) != 0 {
            return Ok(());
        }
        if polled[0].found() & poll::IN == 0 {
            continue;
        }
        if !matches!(listener.receive(&mut notification)?, Received::Notification) {
            continue;
        }
        seat.received(&notification);
        let begins = begins_a_program(&notification)
            && proc.namespace(notification.tid, "ns/mnt").ok() != Some(mounts);
        if begins {
            let bytes: Vec<u8> = call_words(&notification)
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect();
            sys::fd::write(hold.as_fd(), &bytes)?;
            continue;
        }
        // A caller that is gone needs no answer.
        let _ = listener.respond_continue(notification.id);
        seat.done();
    }
}

/// Words of a call on the way to another process.
const WORDS: usize = 11;

/// A call that was received, on the way to another process that has the listener.
pub fn call_words(call: &Notification) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = call.id;
    words[1] = u64::from(call.tid.cast_unsigned());
    words[2] = u64::from(call.nr);
    words[3] = u64::from(call.arch);
    words[4] = call.ip;
    words[5..].copy_from_slice(&call.args);
    words
}

/// Calls from their words, one after the other.
pub fn calls_from_words(words: &[u64]) -> Vec<Notification> {
    words.chunks_exact(WORDS).filter_map(from_words).collect()
}

fn from_words(words: &[u64]) -> Option<Notification> {
    let small = |word: u64| u32::try_from(word).ok();
    Some(Notification {
        id: words[0],
        tid: small(words[1])?.cast_signed(),
        flags: 0,
        nr: small(words[2])?,
        arch: small(words[3])?,
        ip: words[4],
        args: words[5..].try_into().ok()?,
    })
}

fn begins_a_program(call: &Notification) -> bool {
    let known = abi::arch::decode(call.arch, call.nr).and_then(|(_, call)| call);
    matches!(known, Some(Syscall::EXECVE | Syscall::EXECVEAT))
}

const O_CLOEXEC: i32 = 0o2_000_000;
const SIGKILL: i32 = 9;
const EINTR: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_call_comes_over_as_it_is() {
        let call = Notification {
            id: u64::MAX - 3,
            tid: 4711,
            flags: 0,
            nr: 59,
            arch: 0xc000_003e,
            ip: 0x7fff_0000_1234,
            args: [1, 2, 3, 4, 5, u64::MAX],
        };
        assert_eq!(calls_from_words(&call_words(&call)), [call]);
        assert!(begins_a_program(&call));
        assert!(!begins_a_program(&Notification { nr: 257, ..call }));
    }
}
