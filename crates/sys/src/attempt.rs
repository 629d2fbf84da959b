//! Calls that intruders make, for programs that play them: made to be seen, not for their result.

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::kernel::own;

const TRACEME: u32 = 0;
const ATTACH: u32 = 16;

/// Hands this process to its parent to be traced, as programs do that want no debugger.
///
/// # Errors
/// EPERM when it is traced already.
pub fn trace_me() -> Result<()> {
    // SAFETY: the request takes no address.
    unsafe { syscall!("ptrace(TRACEME)", libc::SYS_ptrace, TRACEME, 0, 0, 0) }?;
    Ok(())
}

/// Attaches to a process, which gets a SIGSTOP.
///
/// # Errors
/// EPERM (other user, not dumpable, Yama, already traced), ESRCH.
pub fn attach(pid: i32) -> Result<()> {
    // SAFETY: the request takes no address; the process is not this one, which nobody can trace himself.
    unsafe { syscall!("ptrace(ATTACH)", libc::SYS_ptrace, ATTACH, pid, 0, 0) }?;
    Ok(())
}

/// Loads a kernel module from memory.
///
/// # Errors
/// ENOEXEC for what is no module, EPERM without CAP_SYS_MODULE.
pub fn init_module(image: &[u8]) -> Result<()> {
    let (start, length) = (image.as_ptr(), image.len());
    // SAFETY: `image` lives during the call, which only reads it, and the string is NUL-terminated.
    unsafe { syscall!("init_module", libc::SYS_init_module, start, length, c"") }?;
    Ok(())
}

/// A descriptor by which a program handles page faults itself. 1 asks for those of user code only.
///
/// # Errors
/// EPERM for other faults without CAP_SYS_PTRACE, EINVAL for flags that do not exist.
pub fn userfaultfd(flags: u32) -> Result<OwnedFd> {
    // SAFETY: the argument is a number.
    let fd = unsafe { syscall!("userfaultfd", libc::SYS_userfaultfd, flags) }?;
    // SAFETY: userfaultfd returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Enters the namespace of a descriptor by number, which need not be one of a namespace.
///
/// # Errors
/// EINVAL when it is none, EBADF when it is not open.
pub fn setns(number: i32) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("setns", libc::SYS_setns, number, 0) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_cannot_succeed_say_why() {
        let errno = |result: Result<()>| result.unwrap_err().errno();
        assert_eq!(errno(attach(i32::MAX)), libc::ESRCH);
        assert_eq!(errno(setns(-1)), libc::EBADF);
        // The last where the kernel has no modules.
        assert!(
            [libc::ENOEXEC, libc::EPERM, libc::ENOSYS].contains(&errno(init_module(b"no module")))
        );
        assert_eq!(userfaultfd(2).unwrap_err().errno(), libc::EINVAL);
    }
}
