//! The agent from the keeper's point of view.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sys::wait::Status;

use super::super::inherited::is_readable;
use super::super::shared_state::Cause;
use super::super::signals::SIGKILL;

/// The agent.
pub(super) struct Agent {
    pub(super) pid: i32,
    /// `None` if the agent had ended before its process was opened.
    pub(super) process: Option<OwnedFd>,
    /// Wait status, once the agent was reaped.
    pub(super) status: Option<Status>,
    /// Reason for which the keeper killed the agent.
    killed_for: Option<Cause>,
    /// The keeper killed the agent because an upgrade failed.
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

    /// Returns the cause of the agent's end, with the signal or exit status.
    pub(super) fn cause(&self) -> (Cause, u64) {
        let number = |number: i32| u64::try_from(number).unwrap_or(0);
        match (self.killed_for, self.status) {
            (Some(cause), _) => (cause, number(SIGKILL)),
            (None, Some(Status::Signaled { signal, .. })) => (Cause::Killed, number(signal)),
            (None, Some(Status::Exited(status))) => (Cause::Exited, number(status)),
            // Another process's child: the keeper that started it has died.
            (None, _) => (Cause::Gone, 0),
        }
    }

    /// Returns true if the keeper has killed the agent, which may not have ended yet.
    pub(super) fn is_condemned(&self) -> bool {
        self.killed_for.is_some()
    }

    /// Kills the agent because it cannot continue after a failed upgrade. This does not count as a
    /// death of its own.
    pub(super) fn end_for_upgrade(&mut self, cause: Cause) {
        self.ends_for_upgrade = true;
        self.kill(cause);
    }

    /// Returns true if the agent's end is exempt from the limit on deaths. Returns true once: the
    /// ends of successors count.
    pub(super) fn take_pardon(&mut self) -> bool {
        std::mem::take(&mut self.ends_for_upgrade)
    }

    pub(super) fn kill(&mut self, cause: Cause) {
        self.killed_for = Some(cause);
        if let Some(process) = &self.process {
            // Fails only if the process has just ended.
            let _ = sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        }
    }
}
