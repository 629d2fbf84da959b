//! Waiting for children and tracees.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Result, SyscallError};

/// Return at once if nothing has changed.
pub const NO_HANG: i32 = libc::WNOHANG;
/// Report stops of children that are not traced.
pub const UNTRACED: i32 = libc::WUNTRACED;
/// Report continued children.
pub const CONTINUED: i32 = libc::WCONTINUED;
/// Children of any kind, threads included.
pub const ALL: i32 = libc::__WALL;
/// Exclude the children and tracees of other threads of this process.
pub const NO_THREAD: i32 = libc::__WNOTHREAD;

/// The processes to wait for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// Any child or tracee.
    Any,
    /// Any member of this process group.
    Group(i32),
    /// This child or tracee.
    Pid(i32),
}

/// State change of a child or tracee.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// Continued after a stop.
    Continued,
    /// Exited with this status.
    Exited(i32),
    /// A tracee stopped for a `ptrace::EVENT_*`.
    PtraceEvent {
        /// Signal of the stop: SIGTRAP, or the stopping signal of a group-stop.
        signal: i32,
        /// The event.
        event: u32,
    },
    /// Killed by a signal.
    Signaled {
        /// The signal.
        signal: i32,
        /// Set if a core was dumped.
        core: bool,
    },
    /// Stopped by this signal, or, for a tracee, about to receive it.
    Stopped(i32),
    /// A tracee entered or left a call; only with `ptrace::OPTION_TRACESYSGOOD`.
    SyscallStop,
}

impl Status {
    /// Decodes a raw wait status.
    #[must_use]
    pub fn from_raw(raw: i32) -> Self {
        if libc::WIFEXITED(raw) {
            return Self::Exited(libc::WEXITSTATUS(raw));
        }
        if libc::WIFSIGNALED(raw) {
            return Self::Signaled {
                signal: libc::WTERMSIG(raw),
                core: libc::WCOREDUMP(raw),
            };
        }
        if libc::WIFCONTINUED(raw) {
            return Self::Continued;
        }
        let signal = libc::WSTOPSIG(raw);
        let event = raw.cast_unsigned() >> 16;
        if event != 0 {
            return Self::PtraceEvent { signal, event };
        }
        // TRACESYSGOOD sets bit 7 of the signal of a syscall-stop.
        if signal == libc::SIGTRAP | 0x80 {
            return Self::SyscallStop;
        }
        Self::Stopped(signal)
    }

    /// Returns true if the child has ended.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Self::Exited(_) | Self::Signaled { .. })
    }

    /// The exit status as a shell reports it: 128 + n for signal n; `None` if the child has not ended.
    #[must_use]
    pub fn shell_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled { signal, .. } => Some(128 + signal),
            _ => None,
        }
    }
}

/// Waits for a change; `None` with [`NO_HANG`] if there is none.
///
/// # Errors
/// ECHILD if there is no process to wait for, EINTR.
pub fn wait(target: Target, flags: i32) -> Result<Option<(i32, Status)>> {
    let pid = match target {
        Target::Any => -1,
        Target::Group(group) => -group,
        Target::Pid(pid) => pid,
    };
    let mut raw: i32 = 0;
    // SAFETY: the kernel writes one int to `raw`; the rusage pointer may be null.
    let found = unsafe { syscall!("wait4", libc::SYS_wait4, pid, &raw mut raw, flags, 0_usize) }?;
    if found == 0 {
        return Ok(None);
    }
    Ok(Some((crate::kernel::number(found), Status::from_raw(raw))))
}

/// Returns the pending stops and ends of the threads that this thread traces, one of each. Those that stop again
/// meanwhile have their turn in the next call.
#[must_use]
pub fn pending_of_thread() -> Vec<(i32, Status)> {
    let next = || wait(Target::Any, ALL | NO_THREAD | NO_HANG);
    std::iter::from_fn(|| next().ok().flatten()).collect()
}

/// Returns a child that has ended, if any, without reaping it.
///
/// # Errors
/// ECHILD if there are no children at all.
pub fn peek_end() -> Result<Option<i32>> {
    Ok(wait_id(libc::P_ALL, 0, PEEK)?.map(|(pid, _)| pid))
}

/// Returns the status of this child, if it has ended, without reaping it.
///
/// # Errors
/// ECHILD if the process is not a child.
pub fn peek_end_of(pid: i32) -> Result<Option<Status>> {
    let ended = wait_id(libc::P_PID, pid.cast_unsigned(), PEEK)?;
    Ok(ended.map(|(_, status)| status))
}

const PEEK: i32 = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG | libc::__WALL;

/// Waits for the end of a child by its pidfd and reaps it; `None` with [`NO_HANG`] while the child runs.
///
/// # Kernel
/// 5.4.
///
/// # Errors
/// ECHILD if the process is not a child of this process, EINTR.
pub fn wait_pidfd(pidfd: BorrowedFd<'_>, flags: i32) -> Result<Option<Status>> {
    let id = pidfd.as_raw_fd().cast_unsigned();
    let ended = wait_id(libc::P_PIDFD, id, flags | libc::WEXITED)?;
    Ok(ended.map(|(_, status)| status))
}

/// Calls waitid(2) for an end.
fn wait_id(kind: libc::idtype_t, id: u32, flags: i32) -> Result<Option<(i32, Status)>> {
    // SAFETY: `siginfo_t` is plain data, for which zero bytes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t to `info`; the rusage pointer may be null.
    unsafe {
        syscall!(
            "waitid",
            libc::SYS_waitid,
            kind,
            id,
            &raw mut info,
            flags,
            0_usize
        )
    }?;
    if info.si_signo == 0 {
        return Ok(None);
    }
    // SAFETY: a result of waitid with si_signo set is of the SIGCHLD form, which has si_pid.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above; it has si_status, too.
    let status = unsafe { info.si_status() };
    let signaled = |core| Status::Signaled {
        signal: status,
        core,
    };
    let status = match info.si_code {
        libc::CLD_EXITED => Status::Exited(status),
        libc::CLD_KILLED => signaled(false),
        libc::CLD_DUMPED => signaled(true),
        _ => return Err(SyscallError::new("waitid", libc::EPROTO)),
    };
    Ok(Some((pid, status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_has_ended_is_seen_before_it_is_reaped() {
        // In a child of its own: tests of other threads have children too.
        let seen = crate::testing::in_child(|| {
            if !peek_end().is_err_and(|error| error.is(libc::ECHILD)) {
                return Err(1);
            }
            let child = crate::testing::spawn(|| Err(7));
            let seen = loop {
                match peek_end() {
                    Ok(Some(pid)) => break pid,
                    Ok(None) => {}
                    Err(_) => return Err(2),
                }
            };
            if seen != child || peek_end() != Ok(Some(child)) {
                return Err(3);
            }
            if peek_end_of(child) != Ok(Some(Status::Exited(7))) {
                return Err(5);
            }
            crate::testing::reap(child)
                .err()
                .filter(|code| *code == 7)
                .map_or(Err(4), |_| Ok(()))
        });
        assert_eq!(seen, Ok(()));
    }

    #[test]
    fn raw_statuses_are_told_apart() {
        assert_eq!(Status::from_raw(3 << 8), Status::Exited(3));
        assert_eq!(
            Status::from_raw(9),
            Status::Signaled {
                signal: 9,
                core: false
            }
        );
        assert_eq!(
            Status::from_raw(11 | 0x80),
            Status::Signaled {
                signal: 11,
                core: true
            }
        );
        assert_eq!(Status::from_raw(0xffff), Status::Continued);
        assert_eq!(Status::from_raw(19 << 8 | 0x7f), Status::Stopped(19));
        assert_eq!(Status::from_raw(0x85 << 8 | 0x7f), Status::SyscallStop);
        let event = Status::PtraceEvent {
            signal: 5,
            event: 128,
        };
        assert_eq!(Status::from_raw(128 << 16 | 5 << 8 | 0x7f), event);
        assert_eq!(Status::Exited(3).shell_code(), Some(3));
        assert_eq!(Status::from_raw(9).shell_code(), Some(137));
    }

    #[test]
    fn a_childs_end_is_reported_by_pid_and_by_pidfd() {
        let pid = crate::testing::spawn(|| Err(7));
        assert_eq!(
            wait(Target::Pid(pid), ALL),
            Ok(Some((pid, Status::Exited(7))))
        );
        let pid = crate::testing::spawn(|| {
            crate::testing::sleep_for_ever();
            Ok(())
        });
        let pidfd = crate::pidfd::open(pid).expect("the child is not reaped");
        use std::os::fd::AsFd;
        assert_eq!(wait_pidfd(pidfd.as_fd(), NO_HANG), Ok(None));
        crate::pidfd::send_signal(pidfd.as_fd(), libc::SIGKILL).expect("it is our child");
        let killed = Status::Signaled {
            signal: 9,
            core: false,
        };
        assert_eq!(wait_pidfd(pidfd.as_fd(), 0), Ok(Some(killed)));
        let gone = wait(Target::Pid(pid), ALL);
        assert!(gone.is_err_and(|e| e.is(libc::ECHILD)));
    }
}
