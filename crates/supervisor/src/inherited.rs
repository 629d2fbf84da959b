//! Resources that the processes of `run` inherit.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use abi::constant::{MFD_ALLOW_SEALING, MFD_CLOEXEC, O_CLOEXEC};
use capture::notify::ActivePolicy;
use rustix::fs::SealFlags;
use sys::notify::Listener;
use sys::poll::{self, PollFd};

use super::detach::Detach;
use super::message::{Receiver, Sender, channel};
use super::respawn::Respawn;
use super::shared_state::{OpenError, SharedState};

/// Created before the first fork, by the called process. Processes forked later inherit it; a
/// process executed later gets the descriptors by number.
#[derive(Debug)]
pub(super) struct InheritedDescriptors {
    pub(super) shared_state: SharedState,
    pub(super) shared_state_file: OwnedFd,
    /// Handover state that the first agent leaves to its successors.
    pub(super) handover: HandoverBuffer,
    /// Calls that the policy refuses, read from the handover state at first use.
    confiner: OnceLock<Option<ActivePolicy>>,
    /// Messages to the front.
    pub(super) to_front: Sender,
    /// Messages of the waiter about the command.
    pub(super) from_waiter: Receiver,
    /// Wakes the keeper.
    pub(super) keeper_bell: EventFdNotifier,
    /// Wake the agents of even and odd generation.
    pub(super) agent_bells: [EventFdNotifier; 2],
    /// The called process: the front, or the command if there is no front.
    pub(super) front: OwnedFd,
    /// The front's pid; 0 if there is none.
    pub(super) front_pid: i32,
    /// Pipe whose reading end shows the waiter that no other process is left.
    pub(super) lifeline: OwnedFd,
    /// Parameters for starting another agent.
    pub(super) respawn: Respawn,
    /// Determines whether our processes outlive the command.
    pub(super) tenure: Detach,
}

/// Ends that only one process uses.
#[derive(Debug)]
pub(super) struct PrivateEnds {
    pub(super) from_agent: Receiver,
    pub(super) to_agent: Sender,
    pub(super) lifeline: OwnedFd,
}

impl InheritedDescriptors {
    /// Creates all resources.
    pub(super) fn create(respawn: Respawn, tenure: Detach) -> std::io::Result<(Self, PrivateEnds)> {
        let (to_front, from_agent) = channel()?;
        let (to_agent, from_waiter) = channel()?;
        let (ends_lifeline, lifeline) = sys::fd::pipe(O_CLOEXEC.i32())?;
        let (shared_state, shared_state_file) = SharedState::create()?;
        let front_pid = std::process::id().cast_signed();
        let inherited = Self {
            shared_state,
            shared_state_file,
            handover: HandoverBuffer::new()?,
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

    /// Like [`Self::create`], without front and waiter: for the other processes the command has
    /// ended, and its remaining processes are watched.
    pub(super) fn create_alone(respawn: Respawn, tenure: Detach) -> std::io::Result<Self> {
        let (inherited, _ends) = Self::create(respawn, tenure)?;
        inherited.shared_state.command_end_reported.set(true);
        inherited.shared_state.outlived.set(true);
        Ok(Self {
            front_pid: 0,
            ..inherited
        })
    }

    /// Returns the calls that the policy refuses. `None` if they cannot be determined; then no call
    /// may pass. The command must have started, because the handover state is written before.
    pub(super) fn confiner(&self) -> Option<&ActivePolicy> {
        let read = || {
            let handover = self.handover.read().ok()?;
            let (_, in_force) = crate::handover_state::decode(&handover).ok()?;
            Some(ActivePolicy::new(in_force.profile))
        };
        self.confiner.get_or_init(read).as_ref()
    }

    /// Returns true if there was a front, which may have ended.
    pub(super) fn has_front(&self) -> bool {
        self.front_pid != 0
    }

    pub(super) fn agent_bell(&self, generation: u64) -> &EventFdNotifier {
        &self.agent_bells[usize::from(generation % 2 == 1)]
    }

    /// Returns the descriptors for a program that takes over, in the order of [`Self::open`].
    pub(super) fn descriptors<'a>(&'a self, listener: &'a Listener) -> [BorrowedFd<'a>; 10] {
        [
            self.shared_state_file.as_fd(),
            self.handover.0.as_fd(),
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

    /// Creates the resources from the numbers of those descriptors.
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
            handover: HandoverBuffer(next()?),
            confiner: OnceLock::new(),
            to_front: next()?.into(),
            from_waiter: next()?.into(),
            keeper_bell: EventFdNotifier(next()?),
            agent_bells: [EventFdNotifier(next()?), EventFdNotifier(next()?)],
            front: next()?,
            front_pid: 0,
            lifeline: next()?,
            respawn,
            // The previous agent has already released the caller's resources.
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

/// A note in memory that outlives every process of ours.
#[derive(Debug)]
pub(super) struct HandoverBuffer(OwnedFd);

impl HandoverBuffer {
    fn new() -> sys::Result<Self> {
        sys::fd::memory_file(c"tollgate-handover", MFD_CLOEXEC.u32()).map(Self)
    }

    /// Replaces the note.
    pub(super) fn write(&self, note: &[u8]) -> std::io::Result<()> {
        let file = File::from(self.0.try_clone()?);
        sys::resource::beyond_file_size(|| {
            file.set_len(0)?;
            file.write_all_at(note, 0)
        })
    }

    /// Reads the note.
    pub(super) fn read(&self) -> std::io::Result<Vec<u8>> {
        let file = File::from(self.0.try_clone()?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let mut note = vec![0; len];
        file.read_exact_at(&mut note, 0)?;
        Ok(note)
    }
}

/// Creates a file in memory with these bytes, positioned at its beginning. Nobody can change it any more: between
/// exec and the first call of the process that gets it, others of the user can open it by `/proc/PID/fd`.
///
/// # Errors
///
/// The file cannot be created or sealed.
pub fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MFD_CLOEXEC.u32() | MFD_ALLOW_SEALING.u32();
    let handover = HandoverBuffer(sys::fd::memory_file(c"tollgate-spec", flags)?);
    handover.write(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&handover.0, seals)?;
    Ok(handover.0)
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

    /// Wakes the process.
    pub(super) fn ring(&self) {
        // Fails only if the counter is already set.
        let _ = sys::fd::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }

    /// Resets the counter. Called before checking for work.
    pub(super) fn hush(&self) {
        // Fails only if the counter is zero.
        let _ = sys::fd::read(self.0.as_fd(), &mut [0; 8]);
    }
}

impl AsFd for EventFdNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a descriptor is readable, or a process has ended. Returns false when the time has
/// passed.
pub(super) fn is_readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut polled = [PollFd::new(fd, poll::IN)];
    poll::poll(&mut polled, Some(patience)).is_ok_and(|ready| ready > 0)
}

/// Returns true if calls wait for a receiver.
pub(super) fn has_calls(listener: &Listener) -> bool {
    found(listener) & poll::IN != 0
}

/// Returns true if no watched process is left.
pub(super) fn has_hung_up(listener: &Listener) -> bool {
    found(listener) & (poll::HUP | poll::ERR) != 0
}

fn found(listener: &Listener) -> i16 {
    let mut polled = [PollFd::new(listener.as_fd(), poll::IN)];
    // A descriptor that cannot be polled is checked again.
    match poll::poll(&mut polled, Some(Duration::ZERO)) {
        Ok(_) => polled[0].found(),
        Err(_) => 0,
    }
}
