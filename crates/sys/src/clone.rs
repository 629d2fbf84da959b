//! Creation of processes without the C library's fork.

use crate::error::{Result, SyscallError};
use crate::kernel::number;

/// Resources that a child shares with its parent, new namespaces, and the notification of its end.
///
/// The exit signal is SIGCHLD, except for a child that is [unannounced](Self::UNANNOUNCED).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CloneFlags(pub u64);

impl CloneFlags {
    /// Share the descriptor table: the parent also has what the child opens, until one of them calls unshare
    /// or the child execs. A child hands its seccomp listener to its parent in this way.
    pub const FILES: Self = Self(libc::CLONE_FILES as u64);
    /// Share working directory, root and umask.
    pub const FS: Self = Self(libc::CLONE_FS as u64);
    /// Make the caller's parent the child's parent too: the parent receives the exit signal, and the child
    /// outlives the caller without being reparented. The kernel refuses this to the first process of a pid
    /// namespace.
    pub const PARENT: Self = Self(libc::CLONE_PARENT as u64);
    /// Create a mount namespace.
    pub const NEWNS: Self = Self(libc::CLONE_NEWNS as u64);
    /// Create a pid namespace, in which the child is 1.
    pub const NEWPID: Self = Self(libc::CLONE_NEWPID as u64);
    /// Create a network namespace.
    pub const NEWNET: Self = Self(libc::CLONE_NEWNET as u64);
    /// Create a user namespace.
    pub const NEWUSER: Self = Self(libc::CLONE_NEWUSER as u64);
    /// Create a UTS (host name) namespace.
    pub const NEWUTS: Self = Self(libc::CLONE_NEWUTS as u64);
    /// Create a System V IPC namespace.
    pub const NEWIPC: Self = Self(libc::CLONE_NEWIPC as u64);
    /// Create a control-group namespace.
    pub const NEWCGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);

    /// Send no exit signal. Only waits for such children (`__WCLONE`, `__WALL`) find the child: a program
    /// that the parent executes does not see it. As an orphan the child is like any other.
    pub const UNANNOUNCED: Self = Self(1 << 63);
    /// Memory and threads cannot be shared: the child runs on a copied stack.
    const FORBIDDEN: u64 = (libc::CLONE_VM
        | libc::CLONE_VFORK
        | libc::CLONE_THREAD
        | libc::CLONE_SIGHAND
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_SETTID
        | libc::CLONE_CHILD_CLEARTID
        | libc::CLONE_PIDFD) as u64;
}

impl std::ops::BitOr for CloneFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Runs `child` in a new process, which exits with the returned status; returns its pid.
///
/// The process must have one thread, which is checked: then no lock can be held by a thread that the child
/// lacks, and `child` may do whatever the parent may. Test programs run their tests on threads: see
/// [`clone_child_unchecked`], or put the test into a program of its own.
///
/// # Errors
/// EBUSY if the process has other threads, EINVAL for flags that share memory, EAGAIN, ENOMEM, EPERM for
/// namespaces.
pub fn clone_child(flags: CloneFlags, child: impl FnOnce() -> i32) -> Result<i32> {
    if has_other_threads()? {
        return Err(SyscallError::new(
            "clone (this process has threads)",
            libc::EBUSY,
        ));
    }
    // SAFETY: there is one thread, so the child has a copy of everything in a settled state.
    unsafe { clone_child_unchecked(flags, child) }
}

/// Runs `child` like [`clone_child`], without the check for threads.
///
/// # Safety
/// Without other threads there is no condition. With other threads, `child` may only do what is
/// async-signal-safe: no allocation, no standard input or output, no lock.
///
/// # Errors
/// As [`clone_child`], but for EBUSY.
pub unsafe fn clone_child_unchecked(flags: CloneFlags, child: impl FnOnce() -> i32) -> Result<i32> {
    if flags.0 & CloneFlags::FORBIDDEN != 0 {
        return Err(SyscallError::new("clone", libc::EINVAL));
    }
    let unannounced = CloneFlags::UNANNOUNCED.0;
    let word = match flags.0 & unannounced {
        0 => flags.0 | libc::SIGCHLD as u64,
        // No exit signal.
        _ => flags.0 & !unannounced,
    };
    // SAFETY: without CLONE_VM (refused above) the child has its own copy of this stack, so a
    // null stack pointer is right; the other pointers are only used with flags refused above.
    let pid = unsafe {
        syscall!(
            "clone",
            libc::SYS_clone,
            word,
            0_usize,
            0_usize,
            0_usize,
            0_usize
        )
    }?;
    if pid != 0 {
        return Ok(number(pid));
    }
    // A panic must not unwind into a second copy of the caller's stack.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
    crate::exec::exit_now(outcome.unwrap_or(PANIC_STATUS))
}

/// Exit status of a child that panicked, the same as in std.
const PANIC_STATUS: i32 = 101;

/// Returns true if the process has other threads. Asks the kernel first: leaving a thread group without other
/// members changes nothing, and is refused otherwise (unshare(2)). `/proc` answers where the call is not
/// permitted, as in containers without `CAP_SYS_ADMIN`.
fn has_other_threads() -> Result<bool> {
    // SAFETY: takes a number and changes nothing of memory.
    let left = unsafe { syscall!("unshare", libc::SYS_unshare, libc::CLONE_THREAD) };
    match left {
        Ok(_) => Ok(false),
        Err(error) if error.is(libc::EINVAL) => Ok(true),
        Err(_) => Ok(listed_threads()? > 1),
    }
}

fn listed_threads() -> Result<usize> {
    let entries = std::fs::read_dir("/proc/self/task").map_err(|error| {
        SyscallError::new(
            "open(/proc/self/task)",
            error.raw_os_error().unwrap_or(libc::EIO),
        )
    })?;
    Ok(entries.count())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::shared::SharedPage;
    use crate::testing;
    use crate::wait::{self, Status, Target};

    #[test]
    fn threads_are_noticed() {
        let other = std::thread::spawn(|| clone_child(CloneFlags::default(), || 0));
        let result = other.join().expect("no panic");
        assert!(
            result.is_err_and(|e| e.is(libc::EBUSY)),
            "the main thread exists too"
        );
    }

    #[test]
    fn shared_memory_is_refused() {
        // SAFETY: the flags are refused before anything happens.
        let result = unsafe { clone_child_unchecked(CloneFlags(libc::CLONE_VM as u64), || 0) };
        assert!(result.is_err_and(|e| e.is(libc::EINVAL)));
    }

    #[test]
    fn an_unannounced_child_is_found_only_by_those_who_ask_for_such() {
        // SAFETY: the child does nothing.
        let pid = unsafe { clone_child_unchecked(CloneFlags::UNANNOUNCED, || 3) }.expect("clone");
        let unseen = wait::wait(Target::Pid(pid), 0);
        assert!(unseen.is_err_and(|error| error.is(libc::ECHILD)));
        assert_eq!(
            wait::wait(Target::Pid(pid), wait::ALL),
            Ok(Some((pid, Status::Exited(3))))
        );
    }

    #[test]
    fn a_child_that_shares_files_opens_them_for_its_parent() {
        let page = SharedPage::new().expect("one page");
        let child = || match crate::fd::eventfd(5) {
            Ok(fd) => {
                page.int(0)
                    .store(fd.as_raw_fd(), std::sync::atomic::Ordering::Release);
                std::mem::forget(fd);
                0
            }
            Err(error) => error.errno(),
        };
        // SAFETY: the child makes one call and a store, both async-signal-safe.
        let pid = unsafe { clone_child_unchecked(CloneFlags::FILES, child) }.expect("clone");
        assert_eq!(
            wait::wait(Target::Pid(pid), wait::ALL),
            Ok(Some((pid, Status::Exited(0))))
        );
        let number = page.int(0).load(std::sync::atomic::Ordering::Acquire);
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).expect("it is ours");
        assert_eq!(link.to_string_lossy(), "anon_inode:[eventfd]");
        testing::adopt(number);
    }
}
