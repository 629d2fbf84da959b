//! What the processes of `run` inherit.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use capture::notify::ActivePolicy;
use sys::notify::Listener;
use sys::poll::{self, PollFd};

use super::board::{Board, word};
use super::message::{Receiver, Sender, channel};
use super::tenure::Tenure;

/// Made before the first fork, by the process that was called. A process that is made later inherits it, and one that
/// is executed later gets the descriptors by number.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) board: Board,
    pub(super) board_file: OwnedFd,
    /// What the first agent leaves to those that take over.
    pub(super) memo: Memo,
    /// What the policy refuses, read from the memo when it is first needed.
    confiner: OnceLock<Option<ActivePolicy>>,
    /// News for the front.
    pub(super) to_front: Sender,
    /// News of the command, from the waiter.
    pub(super) from_waiter: Receiver,
    /// Wakes the keeper.
    pub(super) keeper_bell: Bell,
    /// Wake the agents, one of odd and one of even generation.
    pub(super) agent_bells: [Bell; 2],
    /// The process that was called: the front, or without one the command.
    pub(super) front: OwnedFd,
    /// The front's pid; 0: there is none.
    pub(super) front_pid: i32,
    /// Its reading end tells the waiter when none of the others is left.
    pub(super) lifeline: OwnedFd,
    /// The command line of an agent that takes over, but for the order.
    pub(super) words: Vec<OsString>,
    /// Whether the processes of ours stay behind when the command has ended.
    pub(super) tenure: Tenure,
}

/// The ends that only one process uses.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) from_agent: Receiver,
    pub(super) to_agent: Sender,
    pub(super) lifeline: OwnedFd,
}

impl Inherited {
    /// All of it.
    pub(super) fn create(words: Vec<OsString>, tenure: Tenure) -> std::io::Result<(Self, Ends)> {
        let (to_front, from_agent) = channel()?;
        let (to_agent, from_waiter) = channel()?;
        let (ends_lifeline, lifeline) = sys::fd::pipe(O_CLOEXEC)?;
        let (board, board_file) = Board::create()?;
        let front_pid = std::process::id().cast_signed();
        let inherited = Self {
            board,
            board_file,
            memo: Memo::new()?,
            confiner: OnceLock::new(),
            to_front,
            from_waiter,
            keeper_bell: Bell::new()?,
            agent_bells: [Bell::new()?, Bell::new()?],
            front: sys::pidfd::open(front_pid)?,
            front_pid,
            lifeline,
            words,
            tenure,
        };
        let ends = Ends {
            from_agent,
            to_agent,
            lifeline: ends_lifeline,
        };
        Ok((inherited, ends))
    }

    /// As [`Self::create`], where there is neither front nor waiter: the command has ended, as far as the
    /// others are concerned, and what it leaves running is watched.
    pub(super) fn create_alone(words: Vec<OsString>, tenure: Tenure) -> std::io::Result<Self> {
        let (inherited, _ends) = Self::create(words, tenure)?;
        inherited.board.set(word::END_TOLD, 1);
        inherited.board.set(word::OUTLIVED, 1);
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

    pub(super) fn agent_bell(&self, generation: u64) -> &Bell {
        &self.agent_bells[usize::from(generation % 2 == 1)]
    }

    /// The descriptors that a program which takes over is given, in the order of [`Self::open`].
    pub(super) fn descriptors<'a>(&'a self, listener: &'a Listener) -> [BorrowedFd<'a>; 10] {
        [
            self.board_file.as_fd(),
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

    /// From the numbers of those descriptors. `None`: they are of another version of this program.
    pub(super) fn open(numbers: &[i32]) -> sys::Result<Option<(Self, Listener)>> {
        let mut copies = numbers
            .iter()
            .map(|number| sys::fd::duplicate_number(*number));
        let mut next = || {
            copies
                .next()
                .unwrap_or_else(|| sys::fd::duplicate_number(-1))
        };
        let board_file = next()?;
        let Some(board) = Board::open(board_file.as_fd())? else {
            return Ok(None);
        };
        let inherited = Self {
            board,
            board_file,
            memo: Memo(next()?),
            confiner: OnceLock::new(),
            to_front: next()?.into(),
            from_waiter: next()?.into(),
            keeper_bell: Bell(next()?),
            agent_bells: [Bell(next()?), Bell(next()?)],
            front: next()?,
            front_pid: 0,
            lifeline: next()?,
            words: std::env::args_os().collect(),
            // Whatever was to be left has been left by the one before.
            tenure: Tenure::WithCommand,
        };
        let listener = Listener::new(next()?);
        let front_pid = inherited.board.pid(word::FRONT_PID);
        Ok(Some((
            Self {
                front_pid,
                ..inherited
            },
            listener,
        )))
    }
}

/// A note in memory that survives every process of ours.
#[derive(Debug)]
pub(super) struct Memo(OwnedFd);

impl Memo {
    fn new() -> sys::Result<Self> {
        sys::fd::memory_file(c"tollgate-memo", MFD_CLOEXEC).map(Self)
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

/// An event counter that wakes one process.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
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

impl AsFd for Bell {
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

const O_CLOEXEC: i32 = 0o2_000_000;
const MFD_CLOEXEC: u32 = 1;
