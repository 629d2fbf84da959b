//! Answering a container runtime before there are rules.
//!
//! Until its container's first program begins, nothing that a runtime does is judged. So its calls need
//! no rules to be answered, and it works on while they are loaded. What would begin a program in other
//! mounts than the runtime's is held, for the engine to look at.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sys::notify::{Listener, Notification, Received};
use sys::poll::{self, PollFd};
use sys::signal::{MaskChange, SignalSet, change_mask};

use super::ReceiverStatus;
use super::receiver_status::SlotStatus;
use decoder::call::replaces_program;
use process_info::procfs::Proc;

/// A thread that answers. Dropped, it lets it end; what it holds is lost then.
#[derive(Debug)]
pub struct AnswerThread {
    /// Closed to end it.
    order: OwnedFd,
    /// Closed by it when it has ended, and readable when it holds a call.
    held: OwnedFd,
    thread: JoinHandle<std::io::Result<Vec<Notification>>>,
}

impl AnswerThread {
    /// Starts it; a call that waits already is answered before. It gets no signals, so that the calling process can
    /// still choose who does.
    ///
    /// # Errors
    /// If there can be no thread, or `/proc` cannot be read.
    pub fn start(listener: &Listener, pulse: &Arc<ReceiverStatus>) -> std::io::Result<Self> {
        // A runtime's calls come one by one. Fails before Linux 6.6, where each takes longer.
        let _ = listener.set_sync_wake_up(true);
        let (ordered, order) = sys::fd::pipe(O_CLOEXEC)?;
        let (held, hold) = sys::fd::pipe(O_CLOEXEC)?;
        let mut setup = Setup::new(listener.try_clone()?, pulse, hold)?;
        // The runtime waits to begin, and a thread takes its time for that, too.
        if setup.is_called()? {
            setup.answer()?;
        }
        let before = change_mask(MaskChange::Block, SignalSet::ALL)?;
        let thread = std::thread::Builder::new()
            .name("answering".to_owned())
            .spawn(move || setup.run(&ordered));
        change_mask(MaskChange::Set, before)?;
        Ok(Self {
            order,
            held,
            thread: thread?,
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
    pub fn end(self) -> std::io::Result<Vec<Notification>> {
        drop(self.order);
        let failed = |_panic| std::io::Error::other("who answers the runtime has failed");
        self.thread.join().map_err(failed)?
    }
}

/// What a runtime calls while it makes a container, or a session in one.
struct Setup {
    listener: Listener,
    proc: Proc,
    /// Those of the runtime.
    mounts: u64,
    seat: SlotStatus,
    /// Told of calls that are held.
    hold: OwnedFd,
    held: Vec<Notification>,
}

impl Setup {
    fn new(
        listener: Listener,
        pulse: &Arc<ReceiverStatus>,
        hold: OwnedFd,
    ) -> std::io::Result<Self> {
        let proc = Proc::open().map_err(std::io::Error::other)?;
        let own = std::process::id().cast_signed();
        let mounts = proc
            .namespace(own, "ns/mnt")
            .map_err(std::io::Error::other)?;
        Ok(Self {
            listener,
            proc,
            mounts,
            seat: pulse.seat(),
            hold,
            held: Vec::new(),
        })
    }

    /// Whether a call waits.
    fn is_called(&self) -> std::io::Result<bool> {
        let mut polled = [PollFd::new(self.listener.as_fd(), poll::IN)];
        poll::poll(&mut polled, Some(Duration::ZERO))?;
        Ok(polled[0].found() & poll::IN != 0)
    }

    /// Answers until it is told to end. Answers with what it holds then.
    fn run(mut self, ordered: &OwnedFd) -> std::io::Result<Vec<Notification>> {
        loop {
            let mut polled = [
                PollFd::new(self.listener.as_fd(), poll::IN),
                PollFd::new(ordered.as_fd(), poll::IN),
            ];
            match poll::poll(&mut polled, None) {
                Err(error) if !error.is(EINTR) => return Err(error.into()),
                _ => {}
            }
            let called = polled[0].found();
            if polled[1].found() != 0 || called & (poll::HUP | poll::ERR) != 0 {
                self.seat.leave();
                return Ok(self.held);
            }
            if called & poll::IN != 0 {
                self.answer()?;
            }
        }
    }

    /// Lets a call pass, or holds it.
    fn answer(&mut self) -> std::io::Result<()> {
        let mut call = Notification::default();
        let received = self.seat.receive(&self.listener, &mut call)?;
        if !matches!(received, Received::Notification) {
            return Ok(());
        }
        self.seat.received(&call);
        let mounts = || self.proc.namespace(call.tid, "ns/mnt").ok();
        if begins_a_program(&call) && mounts() != Some(self.mounts) {
            self.held.push(call);
            sys::fd::write(self.hold.as_fd(), b"H")?;
            return Ok(());
        }
        // A caller that is gone needs no answer.
        let _ = self.listener.respond_continue(call.id);
        self.seat.done();
        Ok(())
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
    known.is_some_and(|syscall| replaces_program(syscall, &call.args))
}

const O_CLOEXEC: i32 = 0o2_000_000;
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
