//! File descriptors.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::{Result, SyscallError};
use crate::kernel::{number, own};

/// Creates a pipe and returns its ends, reader first. `flags` is a sum of `libc::O_CLOEXEC`, `O_NONBLOCK`,
/// `O_DIRECT`.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn pipe(flags: i32) -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1_i32; 2];
    // SAFETY: the kernel writes two descriptors to `ends`.
    unsafe { syscall!("pipe2", libc::SYS_pipe2, ends.as_mut_ptr(), flags) }?;
    // SAFETY: pipe2 succeeded, so this is a new descriptor.
    let reader = unsafe { own(ends[0] as usize) };
    // SAFETY: as above.
    let writer = unsafe { own(ends[1] as usize) };
    Ok((reader, writer))
}

/// Duplicates a descriptor, close-on-exec.
///
/// # Errors
/// EMFILE.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    duplicate_from(fd, 0)
}

/// Duplicates a descriptor to a number of at least `lowest`, close-on-exec; keeps it away from a child's 0 to
/// 2.
///
/// # Errors
/// EMFILE, EINVAL if `lowest` exceeds the limit.
pub fn duplicate_from(fd: BorrowedFd<'_>, lowest: i32) -> Result<OwnedFd> {
    // SAFETY: all arguments are numbers.
    let copy = unsafe {
        syscall!(
            "fcntl(F_DUPFD_CLOEXEC)",
            libc::SYS_fcntl,
            fd,
            libc::F_DUPFD_CLOEXEC,
            lowest
        )
    }?;
    // SAFETY: F_DUPFD_CLOEXEC returns a new descriptor.
    Ok(unsafe { own(copy) })
}

/// Duplicates a descriptor that is known by number only, close-on-exec: one that another process opened in a
/// table shared with this one ([`crate::clone::CloneFlags::FILES`]).
///
/// # Errors
/// EBADF, EMFILE.
pub fn duplicate_number(number: i32) -> Result<OwnedFd> {
    // SAFETY: all arguments are numbers; a number that is no open descriptor is refused.
    let fd = unsafe { syscall!("fcntl", libc::SYS_fcntl, number, libc::F_DUPFD_CLOEXEC, 3) }?;
    // SAFETY: F_DUPFD_CLOEXEC gave a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Closes a descriptor by number: one that this process inherited, and that no value here owns. A number that
/// is not open is ignored.
pub fn close_number(number: i32) {
    // SAFETY: descriptors are numbers; no memory belongs to them. EBADF says that there was none.
    let _ = unsafe { syscall!("close", libc::SYS_close, number) };
}

/// Makes `target` (0, 1 or 2) a copy of `fd` that stays open across exec.
///
/// # Errors
/// EINVAL for another target: replacing a number that a value owns is refused.
pub fn replace_standard(fd: BorrowedFd<'_>, target: i32) -> Result<()> {
    use std::os::fd::AsRawFd;
    if !(0..=2).contains(&target) {
        return Err(SyscallError::new("dup3", libc::EINVAL));
    }
    if fd.as_raw_fd() == target {
        return set_close_on_exec(fd, false);
    }
    // SAFETY: the standard descriptors belong to the whole process, nobody closes them.
    unsafe { syscall!("dup3", libc::SYS_dup3, fd, target, 0_i32) }?;
    Ok(())
}

/// Sets or clears close-on-exec.
///
/// # Errors
/// EBADF.
pub fn set_close_on_exec(fd: BorrowedFd<'_>, enabled: bool) -> Result<()> {
    let flag = if enabled { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: all arguments are numbers.
    unsafe { syscall!("fcntl(F_SETFD)", libc::SYS_fcntl, fd, libc::F_SETFD, flag) }?;
    Ok(())
}

/// Sets or clears non-blocking mode of the file description. Copies of the descriptor are affected too.
///
/// # Errors
/// EBADF.
pub fn set_non_blocking(fd: BorrowedFd<'_>, enabled: bool) -> Result<()> {
    // SAFETY: all arguments are numbers.
    let flags = unsafe { syscall!("fcntl(F_GETFL)", libc::SYS_fcntl, fd, libc::F_GETFL) }?;
    let flags = number(flags) & !libc::O_NONBLOCK;
    let wanted = if enabled {
        flags | libc::O_NONBLOCK
    } else {
        flags
    };
    // SAFETY: all arguments are numbers.
    unsafe { syscall!("fcntl(F_SETFL)", libc::SYS_fcntl, fd, libc::F_SETFL, wanted) }?;
    Ok(())
}

/// Creates a close-on-exec event counter.
///
/// # Errors
/// EMFILE.
pub fn eventfd(initial: u32) -> Result<OwnedFd> {
    // SAFETY: all arguments are numbers.
    let fd = unsafe { syscall!("eventfd2", libc::SYS_eventfd2, initial, libc::EFD_CLOEXEC) }?;
    // SAFETY: eventfd2 returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Marks every descriptor from `first` on close-on-exec, so that a child inherits none by mistake.
///
/// # Kernel
/// 5.11.
///
/// # Errors
/// EINVAL, ENOSYS on older kernels.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: nothing is closed while this program runs.
    unsafe {
        syscall!(
            "close_range(CLOEXEC)",
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC
        )
    }?;
    Ok(())
}

/// Closes all descriptors from 3 on except `kept`: for a process that was cloned for one small task and must
/// not hold its parent's descriptors open. Values that own a closed descriptor are copies of the parent's;
/// dropping one fails with EBADF, as long as nothing is opened afterwards.
///
/// # Kernel
/// Before 5.9 only numbers below 4096 are closed.
///
/// # Errors
/// None are known.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> Result<()> {
    use std::os::fd::AsRawFd;
    let mut first = 3_u32;
    while let Some(next) = kept
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .filter(|fd| *fd >= first)
        .min()
    {
        if next > first {
            close_range(first, next - 1)?;
        }
        first = next + 1;
    }
    close_range(first, u32::MAX)
}

/// End of the range of descriptors that are closed one by one: the usual hard limit.
const BEFORE_CLOSE_RANGE: u32 = 4096;

fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: descriptors are numbers; no memory belongs to them.
    let result = unsafe { syscall!("close_range", libc::SYS_close_range, first, last, 0_u32) };
    match result {
        Err(error) if error.is(libc::ENOSYS) => {
            for number in first..=last.min(BEFORE_CLOSE_RANGE) {
                // SAFETY: as above. EBADF says that there was none.
                let _ = unsafe { syscall!("close", libc::SYS_close, number) };
            }
            Ok(())
        }
        result => result.map(drop),
    }
}

/// Creates an anonymous file in memory. `flags` is a sum of `libc::MFD_*`.
///
/// # Errors
/// EINVAL for a name of more than 249 bytes, EMFILE, EACCES if executable memory files are forbidden.
pub fn memory_file(name: &CStr, flags: u32) -> Result<OwnedFd> {
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { syscall!("memfd_create", libc::SYS_memfd_create, name, flags) }?;
    // SAFETY: memfd_create returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Closes a descriptor and returns the error, which dropping does not.
///
/// # Errors
/// EIO, ENOSPC and others of a file system that writes late; the descriptor is closed in any case.
pub fn close(fd: OwnedFd) -> Result<()> {
    use std::os::fd::IntoRawFd;
    let fd = fd.into_raw_fd();
    // SAFETY: the descriptor was owned by the argument, which gave it up.
    unsafe { syscall!("close", libc::SYS_close, fd) }?;
    Ok(())
}

/// Reads without std's buffering or allocation, e.g. between clone and exec.
///
/// # Errors
/// Those of read(2).
pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes.
    unsafe { syscall!("read", libc::SYS_read, fd, buf.as_mut_ptr(), buf.len()) }
}

/// Writes without std's buffering or allocation, e.g. between clone and exec.
///
/// # Errors
/// Those of write(2).
pub fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads `buf.len()` bytes.
    unsafe { syscall!("write", libc::SYS_write, fd, buf.as_ptr(), buf.len()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    fn flags_of(fd: BorrowedFd<'_>, what: &str) -> u32 {
        let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("the descriptor is open");
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(what))
            .expect("the field exists");
        u32::from_str_radix(line.trim(), 8).expect("octal")
    }

    #[test]
    fn pipes_carry_bytes_and_close() {
        let (reader, writer) = pipe(libc::O_CLOEXEC).expect("pipe");
        assert_eq!(write(writer.as_fd(), b"abc"), Ok(3));
        let mut buf = [0; 8];
        assert_eq!(read(reader.as_fd(), &mut buf), Ok(3));
        assert_eq!(close(writer), Ok(()));
        assert_eq!(read(reader.as_fd(), &mut buf), Ok(0));
        set_non_blocking(reader.as_fd(), true).expect("open");
        assert_ne!(
            flags_of(reader.as_fd(), "flags:") & libc::O_NONBLOCK as u32,
            0
        );
    }

    #[test]
    fn copies_are_close_on_exec_and_high_enough() {
        let file = memory_file(c"test", 0).expect("memfd");
        let cloexec = libc::O_CLOEXEC as u32;
        assert_eq!(flags_of(file.as_fd(), "flags:") & cloexec, 0);
        let copy = duplicate_from(file.as_fd(), 100).expect("limit is above 100");
        assert!(copy.as_raw_fd() >= 100);
        assert_ne!(flags_of(copy.as_fd(), "flags:") & cloexec, 0);
        set_close_on_exec(copy.as_fd(), false).expect("open");
        assert_eq!(flags_of(copy.as_fd(), "flags:") & cloexec, 0);
        assert!(replace_standard(copy.as_fd(), 7).is_err_and(|e| e.is(libc::EINVAL)));
    }

    #[test]
    fn a_child_redirects_and_marks_without_closing() {
        let file = memory_file(c"out", libc::MFD_CLOEXEC).expect("memfd");
        let done = crate::testing::in_child(|| {
            let step = || -> Result<()> {
                replace_standard(file.as_fd(), 1)?;
                close_on_exec_from(3)?;
                write(file.as_fd(), b"x")?;
                Ok(())
            };
            step().map_err(|e| e.errno())
        });
        assert_eq!(done, Ok(()));
        assert_eq!(std::fs::File::from(file).metadata().expect("open").len(), 1);
        assert!(eventfd(1).is_ok());
    }

    #[test]
    fn a_child_keeps_what_it_names() {
        let (reader, writer) = pipe(libc::O_CLOEXEC).expect("pipe");
        let (_other, closed) = pipe(libc::O_CLOEXEC).expect("pipe");
        let outcome = crate::testing::in_child(|| {
            keep_only(&[writer.as_fd(), reader.as_fd()]).map_err(|e| e.errno())?;
            write(writer.as_fd(), b"x").map_err(|e| e.errno())?;
            match write(closed.as_fd(), b"x") {
                Err(error) if error.is(libc::EBADF) => Ok(()),
                _ => Err(255),
            }
        });
        assert_eq!(outcome, Ok(()));
        assert_eq!(read(reader.as_fd(), &mut [0]), Ok(1));
    }
}
