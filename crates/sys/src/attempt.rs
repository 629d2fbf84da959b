//! Calls for programs that simulate attacks: the calls are made to be observed, not for their result.

use std::ffi::{CStr, c_long};
use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::kernel::{RegisterValue, own, words};

const TRACEME: u32 = 0;
const ATTACH: u32 = 16;

/// Makes the parent trace this process, as programs do to keep debuggers away.
///
/// # Errors
/// EPERM if the process is traced already.
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
/// ENOEXEC for an invalid module, EPERM without CAP_SYS_MODULE.
pub fn init_module(image: &[u8]) -> Result<()> {
    let (start, length) = (image.as_ptr(), image.len());
    // SAFETY: `image` lives during the call, which only reads it, and the string is NUL-terminated.
    unsafe { syscall!("init_module", libc::SYS_init_module, start, length, c"") }?;
    Ok(())
}

/// Opens a descriptor through which a program handles its page faults. Flag 1 limits it to faults of user
/// code.
///
/// # Errors
/// EPERM for other faults without CAP_SYS_PTRACE, EINVAL for unknown flags.
pub fn userfaultfd(flags: u32) -> Result<OwnedFd> {
    // SAFETY: the argument is a number.
    let fd = unsafe { syscall!("userfaultfd", libc::SYS_userfaultfd, flags) }?;
    // SAFETY: userfaultfd returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Enters the namespace of a descriptor by number, which need not be one of a namespace.
///
/// # Errors
/// EINVAL if the descriptor is not a namespace, EBADF if it is not open.
pub fn setns(number: i32) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("setns", libc::SYS_setns, number, 0) }?;
    Ok(())
}

/// A system call with its arguments. Descriptors are numbers, which need not be open: a process that makes
/// such calls must not rely on its own descriptors (see [`make`]).
#[derive(Debug)]
pub enum Attempt<'call> {
    /// `read`.
    Read(i32, &'call mut [u8]),
    /// `write`.
    Write(i32, &'call [u8]),
    /// `open`: path, flags, mode.
    Open(&'call CStr, i32, u32),
    /// `openat`: folder, path, flags, mode.
    Openat(i32, &'call CStr, i32, u32),
    /// `openat2`: folder, path, `struct open_how`.
    Openat2(i32, &'call CStr, &'call [u64; 3]),
    /// `symlink`: target, path of the link.
    Symlink(&'call CStr, &'call CStr),
    /// `symlinkat`: target, folder, path of the link.
    Symlinkat(&'call CStr, i32, &'call CStr),
    /// `link`: old path, new path.
    Link(&'call CStr, &'call CStr),
    /// `linkat`: folder, old path, folder, new path, flags.
    Linkat(i32, &'call CStr, i32, &'call CStr, i32),
    /// `init_module`: image, parameters.
    InitModule(&'call [u8], &'call CStr),
    /// `finit_module`: descriptor, parameters, flags.
    FinitModule(i32, &'call CStr, i32),
    /// `dup`.
    Dup(i32),
    /// `dup2`: old number, new number.
    Dup2(i32, i32),
    /// `dup3`: old number, new number, flags.
    Dup3(i32, i32, i32),
    /// `connect`: descriptor, address as the kernel takes it.
    Connect(i32, &'call [u8]),
    /// `socket`: domain, type, protocol.
    Socket(i32, i32, i32),
    /// `sendto`: descriptor, bytes, flags, address.
    Sendto(i32, &'call [u8], i32, &'call [u8]),
    /// `kill`: process, signal.
    Kill(i32, i32),
}

/// Makes a call and returns the kernel's raw result: an error is returned as its negative number. New descriptors
/// stay open until the process exits; `dup2` and `dup3` replace any descriptor with the new number. The
/// function is therefore for processes that do nothing else.
pub fn make(attempt: Attempt<'_>) -> i64 {
    let (name, nr, args) = words_of(attempt);
    // SAFETY: strings are NUL-terminated, slices are given with their length, and all of them live for
    // as long as the attempt, so during the call; the rest are numbers. That a descriptor may be
    // replaced is said above.
    let result = unsafe { crate::kernel::call(name, nr, args) };
    match result {
        Ok(value) => value.cast_signed() as i64,
        Err(error) => -i64::from(error.errno()),
    }
}

/// Name, number and argument registers of a call. The name is that of the number without `SYS_`.
macro_rules! call {
    ($number:ident, $($argument:expr),+) => {{
        let name: &'static str = stringify!($number);
        (&name["SYS_".len()..], libc::$number, words([$($argument.word()),+]))
    }};
}

/// Name, number and arguments of a call. Where one of two equivalent calls is newer, newer architectures have
/// only that one.
fn words_of(attempt: Attempt<'_>) -> (&'static str, c_long, [usize; 6]) {
    use Attempt::*;
    match attempt {
        Read(fd, buffer) => call!(SYS_read, fd, buffer.as_mut_ptr(), buffer.len()),
        Write(fd, bytes) => call!(SYS_write, fd, bytes.as_ptr(), bytes.len()),
        #[cfg(target_arch = "x86_64")]
        Open(path, flags, mode) => call!(SYS_open, path, flags, mode),
        #[cfg(not(target_arch = "x86_64"))]
        Open(path, flags, mode) => words_of(Openat(libc::AT_FDCWD, path, flags, mode)),
        Openat(dir, path, flags, mode) => call!(SYS_openat, dir, path, flags, mode),
        Openat2(dir, path, how) => {
            call!(SYS_openat2, dir, path, how.as_ptr(), size_of_val(how))
        }
        #[cfg(target_arch = "x86_64")]
        Symlink(target, path) => call!(SYS_symlink, target, path),
        #[cfg(not(target_arch = "x86_64"))]
        Symlink(target, path) => words_of(Symlinkat(target, libc::AT_FDCWD, path)),
        Symlinkat(target, dir, path) => call!(SYS_symlinkat, target, dir, path),
        #[cfg(target_arch = "x86_64")]
        Link(old, new) => call!(SYS_link, old, new),
        #[cfg(not(target_arch = "x86_64"))]
        Link(old, new) => words_of(Linkat(libc::AT_FDCWD, old, libc::AT_FDCWD, new, 0)),
        Linkat(old_dir, old, new_dir, new, flags) => {
            call!(SYS_linkat, old_dir, old, new_dir, new, flags)
        }
        InitModule(image, options) => {
            call!(SYS_init_module, image.as_ptr(), image.len(), options)
        }
        FinitModule(fd, options, flags) => {
            call!(SYS_finit_module, fd, options, flags)
        }
        Dup(fd) => call!(SYS_dup, fd),
        #[cfg(target_arch = "x86_64")]
        Dup2(old, new) => call!(SYS_dup2, old, new),
        #[cfg(not(target_arch = "x86_64"))]
        Dup2(old, new) => words_of(Dup3(old, new, 0)),
        Dup3(old, new, flags) => call!(SYS_dup3, old, new, flags),
        Connect(fd, address) => {
            call!(SYS_connect, fd, address.as_ptr(), address.len())
        }
        Socket(domain, kind, protocol) => call!(SYS_socket, domain, kind, protocol),
        Sendto(fd, bytes, flags, address) => {
            let (start, length) = (bytes.as_ptr(), bytes.len());
            let (to, to_length) = (address.as_ptr(), address.len());
            call!(SYS_sendto, fd, start, length, flags, to, to_length)
        }
        Kill(pid, signal) => call!(SYS_kill, pid, signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_made_as_given() {
        let opened = make(Attempt::Openat(
            libc::AT_FDCWD,
            c"/dev/zero",
            libc::O_CLOEXEC,
            0,
        ));
        let fd = i32::try_from(opened).expect("a descriptor");
        assert!(fd > 2);
        let mut buffer = [1; 8];
        assert_eq!(make(Attempt::Read(fd, &mut buffer)), 8);
        assert_eq!(buffer, [0; 8]);
        let missing = make(Attempt::Openat2(libc::AT_FDCWD, c"/none", &[0; 3]));
        assert_eq!(missing, -i64::from(libc::ENOENT));
        assert_eq!(make(Attempt::Dup(-1)), -i64::from(libc::EBADF));
        assert_eq!(make(Attempt::Write(-1, b"x")), -i64::from(libc::EBADF));
    }

    #[test]
    fn attempts_that_cannot_succeed_say_why() {
        ::testing::need_root!();
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
