//! A process that is no child of the test.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sys::poll::{self, PollFd};

/// A process that was found by its pid, which another process may have by the time it is used. Signals reach the
/// process that was found, or none.
#[derive(Debug)]
pub struct FoundProcess {
    pid: i32,
    file: OwnedFd,
}

impl FoundProcess {
    /// Opens a process. `None` if it has ended, or if `is_expected` returns false because the pid is another's.
    ///
    /// The check follows the open: if the pid changes hands in between, the descriptor is of a process that has ended,
    /// which no signal reaches.
    ///
    /// # Panics
    /// If the kernel refuses the descriptor although there is such a process.
    pub fn open(pid: i32, is_expected: impl Fn(i32) -> bool) -> Option<Self> {
        let file = match pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return None,
            opened => opened.expect("root opens processes"),
        };
        is_expected(pid).then_some(Self { pid, file })
    }

    /// Opens a process whose program is below a folder, under the conditions of [`FoundProcess::open`].
    ///
    /// # Panics
    /// As [`FoundProcess::open`].
    pub fn of_program_below(folder: &Path, pid: i32) -> Option<Self> {
        Self::open(pid, |pid| {
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            program.is_ok_and(|program| program.starts_with(folder))
        })
    }

    /// Returns the pid, for interfaces that have no descriptors. It may be another's once this process has ended.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal. Returns false if the process has ended and its parent has noticed.
    ///
    /// # Panics
    /// If the kernel refuses the signal for another reason.
    pub fn send(&self, signal: Signal) -> bool {
        match pidfd_send_signal(&self.file, signal) {
            Err(Errno::SRCH) => false,
            sent => {
                sent.expect("root sends signals");
                true
            }
        }
    }

    /// Waits until the process has ended. Returns false if it lives on.
    ///
    /// # Panics
    /// If the kernel cannot be asked.
    #[must_use]
    pub fn ends_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(self.file.as_fd(), poll::IN)];
        poll::poll(&mut polled, Some(time)).expect("no signal interrupts a test");
        polled[0].found() & poll::IN != 0
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeping() -> Child {
        let child = Command::new("sleep").arg("100").spawn();
        child.expect("it is installed")
    }

    #[test]
    fn a_pid_of_another_program_gives_no_process() {
        let mut child = sleeping();
        let pid = child.id().cast_signed();
        let nowhere = Path::new("/nowhere");
        assert!(FoundProcess::of_program_below(nowhere, pid).is_none());
        // Until it executes `sleep`, it is this program.
        assert!(FoundProcess::of_program_below(Path::new("/"), pid).is_some());
        assert!(child.try_wait().expect("it is ours").is_none(), "it lives");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(FoundProcess::of_program_below(Path::new("/"), pid).is_none());
    }

    #[test]
    fn a_signal_reaches_the_process_that_was_found_or_none() {
        let mut child = sleeping();
        let pid = child.id().cast_signed();
        let found = FoundProcess::open(pid, |_| true).expect("it lives");
        assert!(!found.ends_within(Duration::ZERO));
        assert!(found.send(Signal::TERM));
        assert!(found.ends_within(Duration::from_secs(60)));
        child.wait().expect("it is ours");
        assert!(!found.send(Signal::TERM), "nobody has its descriptor");
    }
}
