//! A process that cannot be taken for another one: a pidfd whose identity was proven.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use event::{Pid, StartTime};
use process_info::procfs::{Proc, ProcError, ProcessStat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::pidfd;

/// A process, held by a descriptor.
///
/// A pid names another process once its process was reaped; the descriptor never does. That `stat` was read of the
/// descriptor's process is proven: it was read after the descriptor was opened, and the process was not reaped until then.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) pid: Pid,
    /// What `/proc/PID/stat` said.
    pub(crate) stat: ProcessStat,
    pidfd: OwnedFd,
}

/// What a bound process is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now {
    /// It was not reaped yet; what `/proc/PID/stat` says.
    Is(ProcessStat),
    /// It was reaped.
    Reaped,
    /// Its state cannot be read, for example because this process has no descriptor left.
    Unknown,
}

impl Now {
    /// Returns true if it is certain that the process runs no more, also if nobody has reaped it yet.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Is(stat) => has_ended(stat),
            Self::Reaped => true,
            Self::Unknown => false,
        }
    }
}

/// Why a process is not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotBound {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The pid belongs to another process.
    #[error("the process has ended, and another one has its pid")]
    Reused,
    /// The kernel does not show the process, or has no pidfds.
    #[error("the process cannot be identified: {0}")]
    Unknown(&'static str),
}

impl Bound {
    /// Opens the process that has this pid now.
    pub(crate) fn open(proc: &Proc, pid: Pid) -> Result<Self, NotBound> {
        let pidfd = pidfd::open(pid.0).map_err(|error| match error.errno() {
            ESRCH => NotBound::Gone,
            // The pid is that of a thread: its process ended, as an alert names processes.
            EINVAL => NotBound::Reused,
            _ => NotBound::Unknown("pidfd_open failed"),
        })?;
        let stat = proc.stat(pid.0).map_err(|error| match error {
            ProcError::Gone { .. } => NotBound::Gone,
            _ => NotBound::Unknown("/proc/PID/stat cannot be read"),
        })?;
        let bound = Self { pid, stat, pidfd };
        // Reaped meanwhile: `stat` may be that of a successor.
        match bound.is_unreaped() {
            true => Ok(bound),
            false => Err(NotBound::Gone),
        }
    }

    /// Opens the process of an alert, which started at this time.
    pub(crate) fn of_alert(proc: &Proc, pid: Pid, start: StartTime) -> Result<Self, NotBound> {
        let bound = Self::open(proc, pid)?;
        match bound.stat.start == start {
            true => Ok(bound),
            false => Err(NotBound::Reused),
        }
    }

    /// Returns true if the process was not reaped yet, so that its pid is still its own.
    pub(crate) fn is_unreaped(&self) -> bool {
        // EPERM: it is there, and belongs to another user. Only ESRCH proves that it is not there.
        match pidfd::send_signal(self.pidfd.as_fd(), 0) {
            Ok(()) => true,
            Err(error) => error.errno() != ESRCH,
        }
    }

    /// Reads the state again.
    pub(crate) fn now(&self, proc: &Proc) -> Now {
        let stat = proc.stat(self.pid.0);
        match (self.is_unreaped(), stat) {
            (false, _) => Now::Reaped,
            (true, Ok(stat)) => Now::Is(stat),
            (true, Err(_)) => Now::Unknown,
        }
    }

    /// Returns true if every thread is stopped or has ended, or the process was reaped: it runs no more code of its own.
    /// What cannot be read is not at rest.
    pub(crate) fn is_at_rest(&self, proc: &Proc) -> bool {
        let stat = match self.now(proc) {
            Now::Is(stat) => stat,
            Now::Reaped => return true,
            Now::Unknown => return false,
        };
        let rests = |stat: &ProcessStat| b"TtZX".contains(&stat.state);
        if stat.stat.threads <= 1 {
            return rests(&stat);
        }
        // The first thread may be stopped before the others, or have ended.
        let threads = proc.numbers(&format!("{}/task", self.pid.0));
        threads.is_ok_and(|mut threads| {
            threads.all(|thread| match proc.stat(thread) {
                Ok(stat) => rests(&stat),
                Err(error) => matches!(error, ProcError::Gone { .. }),
            })
        })
    }

    /// Returns a thread that has a program: that of the process if its first thread has ended.
    pub(crate) fn live_thread(&self, proc: &Proc) -> i32 {
        let own = self.pid.0;
        let is_headless = |stat: &ProcessStat| stat.state == b'Z' && !has_ended(stat);
        if !matches!(self.now(proc), Now::Is(stat) if is_headless(&stat)) {
            return own;
        }
        let lives = |thread: &i32| {
            proc.stat(*thread)
                .is_ok_and(|stat| !b"ZX".contains(&stat.state))
        };
        let threads = proc.numbers(&format!("{own}/task"));
        threads
            .ok()
            .and_then(|mut threads| threads.find(lives))
            .unwrap_or(own)
    }

    /// Sends a signal. Returns false if the process has ended.
    ///
    /// # Errors
    ///
    /// The number of the kernel's error, which is EPERM for a process of another user.
    pub(crate) fn signal(&self, signal: i32) -> Result<bool, i32> {
        match pidfd::send_signal(self.pidfd.as_fd(), signal) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == ESRCH => Ok(false),
            Err(error) => Err(error.errno()),
        }
    }

    /// Waits until the process has ended. Returns false after the deadline.
    pub(crate) fn ends_before(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time that is too long for the kernel is none.
            let left = Timespec::try_from(left).ok();
            let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Returns true if a process has ended and waits to be reaped. If only its first thread has, it has others.
pub(crate) fn has_ended(stat: &ProcessStat) -> bool {
    b"ZX".contains(&stat.state) && stat.stat.threads <= 1
}

const ESRCH: i32 = 3;
const EINVAL: i32 = 22;

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_ended_or_started_at_another_time_is_not_bound() {
        let proc = Proc::open().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(i32::try_from(child.id()).unwrap());
        let bound = Bound::open(&proc, pid).unwrap();
        let start = bound.stat.start;
        assert!(Bound::of_alert(&proc, pid, start).is_ok());
        let other = StartTime(start.0 + 1);
        assert_eq!(
            Bound::of_alert(&proc, pid, other).unwrap_err(),
            NotBound::Reused
        );
        assert_eq!(bound.signal(SIGKILL), Ok(true));
        child.wait().unwrap();
        assert_eq!(bound.signal(SIGKILL), Ok(false));
        assert_eq!(bound.now(&proc), Now::Reaped);
        assert_eq!(
            Bound::of_alert(&proc, pid, start).unwrap_err(),
            NotBound::Gone
        );
    }
}
