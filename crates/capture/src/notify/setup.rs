//! Answers a container runtime before rules are loaded.
//!
//! Until a container's first program begins, its runtime's calls are not evaluated. So they can be answered
//! without rules, and the runtime goes on while rules are loaded. A call that would begin a program in other
//! mounts than the runtime's is held, for the engine to inspect. What the runtime's own process runs is read while it
//! waits for an answer, because it may have ended before that program begins.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use abi::Errno;
use abi::constant::O_CLOEXEC;
use sys::notify::{Listener, Notification, Received};
use sys::poll::{self, PollFd};
use sys::signal::{MaskChange, SignalSet, change_mask};

use super::receiver_status::ReceiverStatus;
use super::receiver_status::SlotStatus;
use decoder::call::replaces_program;
use decoder::runtime_process::RuntimeProcess;
use event::Pid;
use process_info::procfs::Proc;

/// Thread that answers calls. Dropping it lets the thread end; calls that it holds are lost then.
#[derive(Debug)]
pub struct AnswerThread {
    /// Closing this descriptor ends the thread.
    order: OwnedFd,
    /// Readable when the thread holds a call; closed when it has ended.
    held: OwnedFd,
    thread: JoinHandle<std::io::Result<HeldCalls>>,
}

/// Calls that were held, and who made the container or session.
#[derive(Clone, Debug, Default)]
pub struct HeldCalls {
    /// The calls.
    pub calls: Vec<Notification>,
    /// The runtime's process; `None` if it made no call that was answered, or could not be read.
    pub runtime: Option<RuntimeProcess>,
}

impl AnswerThread {
    /// Starts the thread; a call that waits already is answered first. `runtime`: the runtime's process. The thread gets no signals, so that
    /// the calling process can still choose which thread does.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started, or `/proc` cannot be read.
    pub fn start(
        listener: &Listener,
        pulse: &Arc<ReceiverStatus>,
        runtime: Option<Pid>,
    ) -> std::io::Result<Self> {
        // A runtime's calls come one by one. Fails before Linux 6.6, where each takes longer.
        let _ = listener.set_sync_wake_up(true);
        let (ordered, order) = sys::fd::pipe(O_CLOEXEC.i32())?;
        let (held, hold) = sys::fd::pipe(O_CLOEXEC.i32())?;
        let mut setup = Setup::new(listener.try_clone()?, pulse, hold, runtime)?;
        // The runtime waits to begin, and starting the thread takes time.
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

    /// Returns a descriptor that is readable when the thread holds a call, or has ended.
    #[must_use]
    pub fn held(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }

    /// Ends the thread and returns the calls that it holds.
    ///
    /// # Errors
    ///
    /// If the thread has failed: unknown calls may wait then.
    pub fn end(self) -> std::io::Result<HeldCalls> {
        drop(self.order);
        let failed = |_panic| std::io::Error::other("who answers the runtime has failed");
        self.thread.join().map_err(failed)?
    }
}

/// Answers a runtime's calls while it makes a container, or a session in one.
struct Setup {
    listener: Listener,
    proc: Proc,
    /// The runtime's mount namespace.
    mounts: u64,
    seat: SlotStatus,
    /// Signalled when a call is held.
    hold: OwnedFd,
    held: HeldCalls,
    runtime: Option<Pid>,
}

impl Setup {
    fn new(
        listener: Listener,
        pulse: &Arc<ReceiverStatus>,
        hold: OwnedFd,
        runtime: Option<Pid>,
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
            held: HeldCalls::default(),
            runtime,
        })
    }

    /// Returns whether a call waits.
    fn is_called(&self) -> std::io::Result<bool> {
        let mut polled = [PollFd::new(self.listener.as_fd(), poll::IN)];
        poll::poll(&mut polled, Some(Duration::ZERO))?;
        Ok(polled[0].found() & poll::IN != 0)
    }

    /// Answers calls until `ordered` is closed. Returns the calls that it holds then.
    fn run(mut self, ordered: &OwnedFd) -> std::io::Result<HeldCalls> {
        loop {
            let mut polled = [
                PollFd::new(self.listener.as_fd(), poll::IN),
                PollFd::new(ordered.as_fd(), poll::IN),
            ];
            match poll::poll(&mut polled, None) {
                Err(error) if !error.is(Errno::EINTR) => return Err(error.into()),
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

    /// Lets a call go, or holds it.
    fn answer(&mut self) -> std::io::Result<()> {
        let mut call = Notification::default();
        let received = self.seat.receive(&self.listener, &mut call)?;
        if !matches!(received, Received::Notification) {
            return Ok(());
        }
        self.seat.received(&call);
        let mounts = || self.proc.namespace(call.tid, "ns/mnt").ok();
        if begins_a_program(&call) && mounts() != Some(self.mounts) {
            self.held.calls.push(call);
            sys::fd::write(self.hold.as_fd(), b"H")?;
            return Ok(());
        }
        self.look_at_runtime(&call);
        // A caller that is gone needs no answer.
        let _ = self.listener.respond_continue(call.id);
        self.seat.done();
        Ok(())
    }
}

impl Setup {
    /// Reads what the runtime's process runs, once for each program.
    fn look_at_runtime(&mut self, call: &Notification) {
        let Some(runtime) = self.runtime else { return };
        let is_new = self.held.runtime.is_none();
        let begins = begins_a_program(call);
        let is_its = || {
            self.proc
                .status(call.tid)
                .is_ok_and(|it| it.tgid == runtime.0)
        };
        if begins && is_its() {
            self.held.runtime = None;
        } else if !begins && is_new && is_its() {
            self.held.runtime = RuntimeProcess::of_caller(&self.proc, runtime);
        }
    }
}

/// Number of words of an encoded call.
const WORDS: usize = 11;

/// Encodes a received call for another process that has the listener.
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

/// Decodes consecutive calls.
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
