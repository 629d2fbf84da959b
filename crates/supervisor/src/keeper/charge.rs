//! The agent as the keeper sees it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sys::wait::Status;

use super::super::inherited::is_readable;
use super::super::shared_state::Cause;
use super::super::signals::SIGKILL;

/// The agent.
pub(super) struct Agent {
    pub(super) pid: i32,
    /// `None`: it had ended before it was looked at.
    pub(super) process: Option<OwnedFd>,
    /// How it ended, once it was reaped.
    pub(super) status: Option<Status>,
    /// The keeper killed it, for this reason.
    killed_for: Option<Cause>,
    /// The keeper killed it because an upgrade failed.
    ends_for_upgrade: bool,
}

impl Agent {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            pid,
            process: sys::pidfd::open(pid).ok(),
            status: None,
            killed_for: None,
            ends_for_upgrade: false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        let has_ended = |process: &OwnedFd| is_readable(process.as_fd(), Duration::ZERO);
        self.status.is_some() || self.process.as_ref().is_none_or(has_ended)
    }

    /// Why it ended, with the signal or status.
    pub(super) fn cause(&self) -> (Cause, u64) {
        let number = |number: i32| u64::try_from(number).unwrap_or(0);
        match (self.killed_for, self.status) {
            (Some(cause), _) => (cause, number(SIGKILL)),
            (None, Some(Status::Signaled { signal, .. })) => (Cause::Killed, number(signal)),
            (None, Some(Status::Exited(status))) => (Cause::Exited, number(status)),
            // Somebody else's child: the keeper that started it is gone.
            (None, _) => (Cause::Gone, 0),
        }
    }

    /// The keeper has killed it, and it may be ending still.
    pub(super) fn is_condemned(&self) -> bool {
        self.killed_for.is_some()
    }

    /// Kills it because it cannot go on after an upgrade that failed. That is not its own death.
    pub(super) fn end_for_upgrade(&mut self, cause: Cause) {
        self.ends_for_upgrade = true;
        self.kill(cause);
    }

    /// Whether its end does not count among those after which no other agent is started. True once: successors
    /// that end count.
    pub(super) fn take_pardon(&mut self) -> bool {
        std::mem::take(&mut self.ends_for_upgrade)
    }

    pub(super) fn kill(&mut self, cause: Cause) {
        self.killed_for = Some(cause);
        if let Some(process) = &self.process {
            // Fails only if it has just ended.
            let _ = sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        }
    }
}
