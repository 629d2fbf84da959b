//! Process descriptors (pidfds).

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Result;
use crate::kernel::own;

/// `PIDFD_THREAD`, Linux 6.9.
const THREAD: u32 = libc::O_EXCL as u32;

/// Opens a descriptor of a process.
///
/// # Kernel
/// 5.3.
///
/// # Errors
/// ESRCH if there is no such process, EINVAL if `pid` is a thread that does not lead its group.
pub fn open(pid: i32) -> Result<OwnedFd> {
    open_with("pidfd_open", pid, 0)
}

/// Opens a descriptor of a single thread.
///
/// # Kernel
/// 6.9.
///
/// # Errors
/// EINVAL on an older kernel, ESRCH.
pub fn open_thread(tid: i32) -> Result<OwnedFd> {
    open_with("pidfd_open(PIDFD_THREAD)", tid, THREAD)
}

fn open_with(name: &'static str, pid: i32, flags: u32) -> Result<OwnedFd> {
    let args = [
        crate::kernel::RegisterValue::word(pid),
        flags as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: both arguments are numbers.
    let fd = unsafe { crate::kernel::call(name, libc::SYS_pidfd_open, args) }?;
    // SAFETY: pidfd_open returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Copies descriptor `target` of that process; needs the right to trace it.
///
/// # Kernel
/// 5.6.
///
/// # Errors
/// EPERM, EBADF if the process has no such descriptor, ESRCH if it ended.
pub fn take_fd(pidfd: BorrowedFd<'_>, target: i32) -> Result<OwnedFd> {
    // SAFETY: all arguments are numbers.
    let fd = unsafe { syscall!("pidfd_getfd", libc::SYS_pidfd_getfd, pidfd, target, 0_u32) }?;
    // SAFETY: pidfd_getfd returns a new descriptor of this process.
    Ok(unsafe { own(fd) })
}

/// Sends a signal; 0 only checks whether the process can be signalled.
///
/// # Errors
/// ESRCH if the process was reaped, EPERM.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> Result<()> {
    // SAFETY: the info pointer may be null, the rest are numbers.
    unsafe {
        syscall!(
            "pidfd_send_signal",
            libc::SYS_pidfd_send_signal,
            pidfd,
            signal,
            0_usize,
            0_u32
        )
    }?;
    Ok(())
}

/// Identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Pid in the caller's pid namespace.
    pub pid: u32,
    /// Pid of the parent.
    pub parent: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Returns the identity of a process without access to `/proc`; ids are in the caller's namespaces.
///
/// # Kernel
/// 6.13.
///
/// # Errors
/// ENOTTY or EINVAL on an older kernel, ESRCH if the process was reaped.
pub fn info(pidfd: BorrowedFd<'_>) -> Result<Info> {
    let mut raw = RawInfo {
        mask: INFO_PID | INFO_CREDS,
        ..RawInfo::default()
    };
    // SAFETY: `raw` is a `struct pidfd_info` of the first size, which the request number carries.
    unsafe {
        syscall!(
            "ioctl(PIDFD_GET_INFO)",
            libc::SYS_ioctl,
            pidfd,
            GET_INFO,
            std::ptr::from_mut(&mut raw)
        )
    }?;
    Ok(Info {
        pid: raw.tgid,
        parent: raw.ppid,
        uid: raw.euid,
        gid: raw.egid,
    })
}

/// `struct pidfd_info` in its first version, of Linux 6.13. Later kernels have a longer one and accept this
/// size too.
#[repr(C)]
#[derive(Default)]
struct RawInfo {
    mask: u64,
    cgroup_id: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    egid: u32,
    suid: u32,
    sgid: u32,
    fsuid: u32,
    fsgid: u32,
    exit_code: i32,
}

const INFO_PID: u64 = 1;
const INFO_CREDS: u64 = 2;
/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: u32 = 3 << 30 | 64 << 16 | 0xff << 8 | 11;
const _: () = assert!(size_of::<RawInfo>() == 64);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;
    use crate::testing;

    #[test]
    fn a_descriptor_of_a_child_can_be_taken() {
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        let number = writer.as_raw_fd();
        let child = testing::spawn(|| {
            testing::sleep_for_ever();
            Ok(())
        });
        drop(writer);
        let pidfd = open(child).expect("child runs");
        let copy = take_fd(pidfd.as_fd(), number).expect("we may trace our child");
        std::fs::File::from(copy)
            .write_all(b"x")
            .expect("the pipe is open");
        let mut byte = [0];
        reader.read_exact(&mut byte).expect("one byte was written");
        assert_eq!(&byte, b"x");
        testing::kill_and_reap(child);
    }

    #[test]
    fn a_descriptor_tells_who_the_process_is() {
        let own = open(crate::syscall::getpid()).expect("this process runs");
        match info(own.as_fd()) {
            Ok(info) => {
                assert_eq!(info.pid, std::process::id());
                assert_eq!(info.parent, std::os::unix::process::parent_id());
            }
            Err(error) => assert!(
                error.is(libc::ENOTTY) || error.is(libc::EINVAL),
                "before 6.13: {error}"
            ),
        }
    }

    #[test]
    fn threads_can_be_opened_and_missing_processes_not() {
        let tid = crate::syscall::gettid();
        match open_thread(tid) {
            Ok(_) => {}
            Err(error) => assert!(error.is(libc::EINVAL), "before 6.9: {error}"),
        }
        assert!(open(-5).is_err_and(|e| e.is(libc::EINVAL)));
    }
}
