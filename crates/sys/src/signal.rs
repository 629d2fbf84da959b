//! Signals, received by reading from a descriptor instead of in handlers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Result, SyscallError};
use crate::kernel::own;

/// A set of signals in the kernel's form: bit n-1 for signal n.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// All signals that can be blocked.
    pub const ALL: Self = Self(u64::MAX);

    /// Creates a set of these signals; numbers outside 1 to 64 are ignored.
    #[must_use]
    pub fn of(signals: &[i32]) -> Self {
        let bits = signals.iter().filter(|s| (1..=64).contains(*s));
        Self(bits.fold(0, |set, signal| set | 1 << (signal - 1)))
    }

    /// Returns true if the set contains the signal.
    #[must_use]
    pub fn contains(self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.0 & (1 << (signal - 1)) != 0
    }
}

/// Operation of [`change_mask`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MaskChange {
    /// Block these signals too.
    Block,
    /// Block exactly these signals.
    Set,
    /// Unblock these signals.
    Unblock,
}

/// Changes the signal mask of this thread and returns the previous mask. Exec and clone keep the mask:
/// restore it in a child before exec.
///
/// # Errors
/// None are known.
pub fn change_mask(change: MaskChange, set: SignalSet) -> Result<SignalSet> {
    let how = match change {
        MaskChange::Block => libc::SIG_BLOCK,
        MaskChange::Set => libc::SIG_SETMASK,
        MaskChange::Unblock => libc::SIG_UNBLOCK,
    };
    let mut old = SignalSet::default();
    // SAFETY: both sets are the eight bytes that the last argument says.
    unsafe {
        syscall!(
            "rt_sigprocmask",
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut old,
            size_of::<u64>()
        )
    }?;
    Ok(old)
}

/// Has a program start with no signal blocked, whatever the thread that starts it blocks.
pub fn unblock_all_in(command: &mut Command) {
    let unblock = || Ok(change_mask(MaskChange::Set, SignalSet::default()).map(drop)?);
    // SAFETY: what runs between fork and exec is one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(unblock) };
}

/// Action of a process on a signal that is not blocked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Disposition {
    /// The kernel's default.
    Default,
    /// Ignore; kept across exec.
    Ignore,
    /// Do nothing, except that a blocking call returns EINTR; exec restores the default.
    Interrupt,
}

/// Changes this process's action on a signal.
///
/// # Errors
/// EINVAL for SIGKILL, SIGSTOP and invalid numbers.
pub fn set_disposition(signal: i32, disposition: Disposition) -> Result<()> {
    // SAFETY: `sigaction` is plain data, for which zero bytes are a value (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
        Disposition::Interrupt => do_nothing as *const () as usize,
    };
    // SAFETY: `action` is complete; the handler, if any, does nothing and so may run anywhere.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(SyscallError::last("rt_sigaction"))
    }
}

extern "C" fn do_nothing(_: i32) {}

/// One received signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Signal {
    /// Signal number.
    pub signal: i32,
    /// `si_code`, which tells the kind of sender.
    pub code: i32,
    /// Pid of the sender, or of the child that changed.
    pub pid: i32,
    /// Real uid of the sender.
    pub uid: u32,
    /// Exit status or signal of a child.
    pub status: i32,
}

/// A stream of blocked signals. Several signals of one kind may arrive as one.
#[derive(Debug)]
pub struct SignalStream(OwnedFd);

impl SignalStream {
    /// Blocks the signals in this thread and creates a non-blocking stream of them.
    ///
    /// Call it before other threads exist: they inherit the mask.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(set: SignalSet) -> Result<Self> {
        change_mask(MaskChange::Block, set)?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is the eight bytes that the third argument says.
        let fd = unsafe {
            syscall!(
                "signalfd4",
                libc::SYS_signalfd4,
                -1_i32,
                &raw const set,
                size_of::<u64>(),
                flags
            )
        }?;
        // SAFETY: signalfd4 was asked for a new descriptor by -1.
        Ok(Self(unsafe { own(fd) }))
    }

    /// The next signal, `None` if none is pending.
    ///
    /// # Errors
    /// None are known.
    pub fn next(&self) -> Result<Option<Signal>> {
        // SAFETY: `signalfd_siginfo` is plain data, for which zero bytes are a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the given size, that of `info`.
        let result = unsafe {
            syscall!(
                "read",
                libc::SYS_read,
                self.0.as_fd(),
                &raw mut info,
                size_of::<libc::signalfd_siginfo>()
            )
        };
        match result {
            Ok(_) => Ok(Some(Signal {
                signal: info.ssi_signo.cast_signed(),
                code: info.ssi_code,
                pid: info.ssi_pid.cast_signed(),
                uid: info.ssi_uid,
                status: info.ssi_status,
            })),
            Err(error) if error.is(libc::EAGAIN) || error.is(libc::EINTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for SignalStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Signals a process, or a group if `pid` is negative; signal 0 only checks for existence and permission.
///
/// # Errors
/// ESRCH, EPERM; EINVAL for -1, which would mean every process.
pub fn send(pid: i32, signal: i32) -> Result<()> {
    if pid == -1 {
        return Err(SyscallError::new("kill", libc::EINVAL));
    }
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("kill", libc::SYS_kill, pid, signal) }?;
    Ok(())
}

/// Signals one thread; `pid` guards against a reused tid.
///
/// # Errors
/// ESRCH, EPERM.
pub fn send_to_thread(pid: i32, tid: i32, signal: i32) -> Result<()> {
    // SAFETY: all arguments are numbers.
    unsafe { syscall!("tgkill", libc::SYS_tgkill, pid, tid, signal) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{self, PollFd};
    use crate::testing;

    #[test]
    fn sets_hold_what_was_put_in() {
        let set = SignalSet::of(&[1, 64, 0, 65]);
        assert_eq!(set.0, 1 | 1 << 63);
        assert!(set.contains(64) && !set.contains(2) && !set.contains(0));
    }

    #[test]
    fn a_stream_reports_sender_and_status() {
        let done = testing::in_child(|| {
            let step = || -> Result<bool> {
                let stream = SignalStream::new(SignalSet::of(&[libc::SIGUSR1]))?;
                let none = stream.next()?;
                send(crate::syscall::getpid(), libc::SIGUSR1)?;
                poll::poll(&mut [PollFd::new(stream.as_fd(), poll::IN)], None)?;
                let one = stream.next()?;
                let right = one.is_some_and(|s| {
                    s.signal == libc::SIGUSR1
                        && s.code == libc::SI_USER
                        && s.pid == crate::syscall::getpid()
                });
                Ok(none.is_none() && right && stream.next()?.is_none())
            };
            match step() {
                Ok(true) => Ok(()),
                Ok(false) => Err(200),
                Err(error) => Err(error.errno()),
            }
        });
        assert_eq!(done, Ok(()));
    }

    #[test]
    fn dispositions_decide_between_death_silence_and_eintr() {
        let with = |disposition| {
            testing::in_child(move || {
                set_disposition(libc::SIGUSR2, disposition).map_err(|e| e.errno())?;
                let (pid, tid) = (crate::syscall::getpid(), crate::syscall::gettid());
                send_to_thread(pid, tid, libc::SIGUSR2).map_err(|e| e.errno())
            })
        };
        assert_eq!(with(Disposition::Ignore), Ok(()));
        assert_eq!(with(Disposition::Interrupt), Ok(()));
        assert_eq!(with(Disposition::Default), Err(128 + libc::SIGUSR2));
        let refused = set_disposition(libc::SIGKILL, Disposition::Ignore);
        assert!(refused.is_err_and(|e| e.is(libc::EINVAL)));
        assert!(send(-1, 0).is_err_and(|e| e.is(libc::EINVAL)));
    }
}
