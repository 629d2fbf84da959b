//! What the processes of `run` inherit.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use abi::constant::{MFD_CLOEXEC, O_CLOEXEC};
use capture::notify::ActivePolicy;
use sys::notify::Listener;
use sys::poll::{self, PollFd};

use super::detach::Detach;
use super::message::{Receiver, Sender, channel};
use super::respawn::Respawn;
use super::shared_state::{OpenError, SharedState};

/// Made before the first fork, by the process that was called. A process that is made later inherits it, and one that
/// is executed later gets the descriptors by number.
#[derive(Debug)]
pub(super) struct InheritedDescriptors {
    pub(super) shared_state: SharedState,
    pub(super) shared_state_file: OwnedFd,
    /// What the first agent leaves to those that take over.
    pub(super) memo: HandoverBuffer,
    /// What the policy refuses, read from the memo when it is first needed.
    confiner: OnceLock<Option<ActivePolicy>>,
    /// News for the front.
    pub(super) to_front: Sender,
    /// News of the command, from the waiter.
    pub(super) from_waiter: Receiver,
    /// Wakes the keeper.
    pub(super) keeper_bell: EventFdNotifier,
    /// Wake the agents, one of odd and one of even generation.
    pub(super) agent_bells: [EventFdNotifier; 2],
    /// The process that was called: the front, or without one the command.
    pub(super) front: OwnedFd,
    /// The front's pid; 0: there is none.
    pub(super) front_pid: i32,
    /// Its reading end tells the waiter when none of the others is left.
    pub(super) lifeline: OwnedFd,
    /// How another agent is started.
    pub(super) respawn: Respawn,
    /// Whether the processes of ours stay behind when the command has ended.
    pub(super) tenure: Detach,
}

/// The ends that only one process uses.
#[derive(Debug)]
pub(super) struct PrivateEnds {
    pub(super) from_agent: Receiver,
    pub(super) to_agent: Sender,
    pub(super) lifeline: OwnedFd,
}

impl InheritedDescriptors {
    /// All of it.
    pub(super) fn create(respawn: Respawn, tenure: Detach) -> std::io::Result<(Self, PrivateEnds)> {
        let (to_front, from_agent) = channel()?;
        let (to_agent, from_waiter) = channel()?;
        let (ends_lifeline, lifeline) = sys::fd::pipe(O_CLOEXEC.i32())?;
        let (shared_state, shared_state_file) = SharedState::create()?;
        let front_pid = std::process::id().cast_signed();
        let inherited = Self {
            shared_state,
            shared_state_file,
            memo: HandoverBuffer::new()?,
            confiner: OnceLock::new(),
            to_front,
            from_waiter,
            keeper_bell: EventFdNotifier::new()?,
            agent_bells: [EventFdNotifier::new()?, EventFdNotifier::new()?],
            front: sys::pidfd::open(front_pid)?,
            front_pid,
            lifeline,
            respawn,
            tenure,
        };
        let ends = PrivateEnds {
            from_agent,
            to_agent,
            lifeline: ends_lifeline,
        };
        Ok((inherited, ends))
    }

    /// As [`Self::create`], where there is neither front nor waiter: the command has ended, as far as the
    /// others are concerned, and what it leaves running is watched.
    pub(super) fn create_alone(respawn: Respawn, tenure: Detach) -> std::io::Result<Self> {
        let (inherited, _ends) = Self::create(respawn, tenure)?;
        inherited.shared_state.command_end_told.set(true);
        inherited.shared_state.outlived.set(true);
        Ok(Self {
            front_pid: 0,
            ..inherited
        })
    }

    /// What the policy in force refuses. `None`: that cannot be learnt, so nothing may pass. The command
    /// must have begun: the memo is written before.
    pub(super) fn confiner(&self) -> Option<&ActivePolicy> {
        let read = || {
            let memo = self.memo.read().ok()?;
            let (_, profile, _) = crate::handover_state::decode(&memo).ok()?;
            Some(ActivePolicy::new(profile))
        };
        self.confiner.get_or_init(read).as_ref()
    }

    /// Whether there was a front: there may be none any more.
    pub(super) fn has_front(&self) -> bool {
        self.front_pid != 0
    }

    pub(super) fn agent_bell(&self, generation: u64) -> &EventFdNotifier {
        &self.agent_bells[usize::from(generation % 2 == 1)]
    }

    /// The descriptors that a program which takes over is given, in the order of [`Self::open`].
    pub(super) fn descriptors<'a>(&'a self, listener: &'a Listener) -> [BorrowedFd<'a>; 10] {
        [
            self.shared_state_file.as_fd(),
            self.memo.0.as_fd(),
            self.to_front.as_fd(),
            self.from_waiter.file().as_fd(),
            self.keeper_bell.as_fd(),
            self.agent_bells[0].as_fd(),
            self.agent_bells[1].as_fd(),
            self.front.as_fd(),
            self.lifeline.as_fd(),
            listener.as_fd(),
        ]
    }

    /// From the numbers of those descriptors.
    pub(super) fn open(numbers: &[i32], respawn: Respawn) -> Result<(Self, Listener), OpenError> {
        let mut copies = numbers
            .iter()
            .map(|number| sys::fd::duplicate_number(*number));
        let mut next = || {
            copies
                .next()
                .unwrap_or_else(|| sys::fd::duplicate_number(-1))
        };
        let shared_state_file = next()?;
        let shared_state = SharedState::open(shared_state_file.as_fd())?;
        let inherited = Self {
            shared_state,
            shared_state_file,
            memo: HandoverBuffer(next()?),
            confiner: OnceLock::new(),
            to_front: next()?.into(),
            from_waiter: next()?.into(),
            keeper_bell: EventFdNotifier(next()?),
            agent_bells: [EventFdNotifier(next()?), EventFdNotifier(next()?)],
            front: next()?,
            front_pid: 0,
            lifeline: next()?,
            respawn,
            // Whatever was to be left has been left by the one before.
            tenure: Detach::WithCommand,
        };
        let listener = Listener::new(next()?);
        let front_pid = inherited.shared_state.front_pid.get();
        let inherited = Self {
            front_pid,
            ..inherited
        };
        Ok((inherited, listener))
    }
}

/// A note in memory that survives every process of ours.
#[derive(Debug)]
pub(super) struct HandoverBuffer(OwnedFd);

impl HandoverBuffer {
    fn new() -> sys::Result<Self> {
        sys::fd::memory_file(c"tollgate-memo", MFD_CLOEXEC.u32()).map(Self)
    }

    /// With this note.
    fn with(note: &[u8]) -> std::io::Result<Self> {
        let memo = Self::new()?;
        memo.write(note)?;
        Ok(memo)
    }

    /// Replaces the note.
    pub(super) fn write(&self, note: &[u8]) -> std::io::Result<()> {
        let file = File::from(self.0.try_clone()?);
        sys::resource::beyond_file_size(|| {
            file.set_len(0)?;
            file.write_all_at(note, 0)
        })
    }

    /// Reads it.
    pub(super) fn read(&self) -> std::io::Result<Vec<u8>> {
        let file = File::from(self.0.try_clone()?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let mut note = vec![0; len];
        file.read_exact_at(&mut note, 0)?;
        Ok(note)
    }
}

/// A file in memory that holds these bytes, to be read from its beginning.
///
/// # Errors
///
/// If there can be none.
pub fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    HandoverBuffer::with(bytes).map(|memo| memo.0)
}

/// An event counter that wakes one process.
#[derive(Debug)]
pub(super) struct EventFdNotifier(OwnedFd);

impl EventFdNotifier {
    fn new() -> sys::Result<Self> {
        let bell = sys::fd::eventfd(0)?;
        sys::fd::set_non_blocking(bell.as_fd(), true)?;
        Ok(Self(bell))
    }

    /// Wakes it.
    pub(super) fn ring(&self) {
        // Fails only when it rings already.
        let _ = sys::fd::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }

    /// Before looking at what it was rung for.
    pub(super) fn hush(&self) {
        // Fails only when it does not ring.
        let _ = sys::fd::read(self.0.as_fd(), &mut [0; 8]);
    }
}

impl AsFd for EventFdNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a process ends within this time, or another descriptor becomes readable.
pub(super) fn is_readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut polled = [PollFd::new(fd, poll::IN)];
    poll::poll(&mut polled, Some(patience)).is_ok_and(|ready| ready > 0)
}

/// Whether calls wait for somebody to receive them.
pub(super) fn has_calls(listener: &Listener) -> bool {
    found(listener) & poll::IN != 0
}

/// Whether no watched process is left.
pub(super) fn has_hung_up(listener: &Listener) -> bool {
    found(listener) & (poll::HUP | poll::ERR) != 0
}

fn found(listener: &Listener) -> i16 {
    let mut polled = [PollFd::new(listener.as_fd(), poll::IN)];
    // What cannot be asked is looked at again.
    match poll::poll(&mut polled, Some(Duration::ZERO)) {
        Ok(_) => polled[0].found(),
        Err(_) => 0,
    }
}
