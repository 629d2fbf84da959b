//! File calls that std lacks.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::error::Result;
use crate::kernel::{number, own};

/// Handle that identifies a file within its mount, as the file system assigns it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; MAX_HANDLE],
}

/// `MAX_HANDLE_SZ`.
const MAX_HANDLE: usize = 128;

/// `AT_HANDLE_FID`: the handle need not be usable for opening. Linux 6.5.
const HANDLE_FID: i32 = 0x200;

impl FileHandle {
    /// Handle type, as the file system assigns it.
    #[must_use]
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The bytes of the handle.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let len = usize::try_from(self.len)
            .unwrap_or(MAX_HANDLE)
            .min(MAX_HANDLE);
        &self.bytes[..len]
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FileHandle {}

/// Returns the handle of a file and its mount id. `dir` `None` is the working directory; an empty path means
/// `dir` itself. A symbolic link at the end is not followed.
///
/// # Kernel
/// 6.5 for file systems whose files cannot be opened by handle; before that they return EOPNOTSUPP.
///
/// # Errors
/// EOPNOTSUPP, ENOENT, EACCES.
pub fn handle(dir: Option<BorrowedFd<'_>>, path: &CStr) -> Result<(FileHandle, i32)> {
    match handle_with(dir, path, libc::AT_EMPTY_PATH | HANDLE_FID) {
        // Kernels before 6.5 do not know the flag.
        Err(error) if error.is(libc::EINVAL) => handle_with(dir, path, libc::AT_EMPTY_PATH),
        other => other,
    }
}

fn handle_with(dir: Option<BorrowedFd<'_>>, path: &CStr, flags: i32) -> Result<(FileHandle, i32)> {
    let mut handle = FileHandle {
        len: MAX_HANDLE as u32,
        kind: 0,
        bytes: [0; MAX_HANDLE],
    };
    let mut mount = 0_i32;
    // SAFETY: `path` is NUL-terminated; `handle` is a file_handle with `len` bytes behind its
    // head; the kernel writes one int to `mount`.
    unsafe {
        syscall!(
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            dir,
            path,
            &raw mut handle,
            &raw mut mount,
            flags
        )
    }?;
    Ok((handle, mount))
}

/// Result of statx.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FileStatus {
    /// Inode number.
    pub inode: u64,
    /// Device that contains the file: major, minor.
    pub device: (u32, u32),
    /// Device that a device file represents: major, minor.
    pub special_device: (u32, u32),
    /// File type and permissions.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of hard links.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access, nanoseconds since 1970.
    pub access_ns: i128,
    /// Last change of content, nanoseconds since 1970.
    pub modify_ns: i128,
    /// Last change of status, nanoseconds since 1970.
    pub change_ns: i128,
    /// Creation, nanoseconds since 1970, if the file system records it.
    pub birth_ns: Option<i128>,
    /// Mount id, from Linux 5.8.
    pub mount_id: Option<u64>,
}

/// Status of a file. `dir` `None` is the working directory; an empty path means `dir` itself.
/// `flags` is a sum of `libc::AT_SYMLINK_NOFOLLOW`, `AT_NO_AUTOMOUNT` and others.
///
/// # Errors
/// ENOENT, EACCES and others of statx(2).
pub fn status(dir: Option<BorrowedFd<'_>>, path: &CStr, flags: i32) -> Result<FileStatus> {
    // SAFETY: `statx` is plain data, for which zero bytes are a value.
    let mut raw: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    // SAFETY: `path` is NUL-terminated; the kernel writes one statx to `raw`.
    unsafe {
        syscall!(
            "statx",
            libc::SYS_statx,
            dir,
            path,
            flags | libc::AT_EMPTY_PATH,
            mask,
            &raw mut raw
        )
    }?;
    let has = |bit: u32| raw.stx_mask & bit != 0;
    Ok(FileStatus {
        inode: raw.stx_ino,
        device: (raw.stx_dev_major, raw.stx_dev_minor),
        special_device: (raw.stx_rdev_major, raw.stx_rdev_minor),
        mode: raw.stx_mode.into(),
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        links: raw.stx_nlink,
        size: raw.stx_size,
        access_ns: nanoseconds(raw.stx_atime),
        modify_ns: nanoseconds(raw.stx_mtime),
        change_ns: nanoseconds(raw.stx_ctime),
        birth_ns: has(libc::STATX_BTIME).then(|| nanoseconds(raw.stx_btime)),
        mount_id: has(libc::STATX_MNT_ID).then_some(raw.stx_mnt_id),
    })
}

fn nanoseconds(time: libc::statx_timestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Arguments of [`open`], `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenHow {
    /// `libc::O_*`. `O_CLOEXEC` is always added.
    pub flags: u64,
    /// Mode of a new file; must be 0 if no file is created.
    pub mode: u64,
    /// `libc::RESOLVE_*`.
    pub resolve: u64,
}

/// Opens a file. `dir` `None` is the working directory.
///
/// # Kernel
/// 5.6.
///
/// # Errors
/// Those of openat2(2): ELOOP, EXDEV for what `resolve` forbids.
pub fn open(dir: Option<BorrowedFd<'_>>, path: &CStr, how: OpenHow) -> Result<OwnedFd> {
    let how = OpenHow {
        flags: how.flags | libc::O_CLOEXEC as u64,
        ..how
    };
    // SAFETY: `path` is NUL-terminated; the kernel reads one open_how of the given size.
    let fd = unsafe {
        syscall!(
            "openat2",
            libc::SYS_openat2,
            dir,
            path,
            &raw const how,
            size_of::<OpenHow>()
        )
    }?;
    // SAFETY: openat2 returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Reads the target of a symbolic link into `buf`, without allocation. A target that fills `buf` may be
/// truncated.
///
/// # Errors
/// ENOENT, EINVAL if the file is not a link, EACCES.
pub fn read_link<'buf>(
    dir: Option<BorrowedFd<'_>>,
    path: &CStr,
    buf: &'buf mut [u8],
) -> Result<&'buf [u8]> {
    // SAFETY: `path` is NUL-terminated; the kernel writes at most `buf.len()` bytes.
    let len = unsafe {
        syscall!(
            "readlinkat",
            libc::SYS_readlinkat,
            dir,
            path,
            buf.as_mut_ptr(),
            buf.len()
        )
    }?;
    Ok(&buf[..len])
}

/// Reads up to `size` bytes from an offset in bytes, fewer at the end of the file. There is nothing behind the largest offset.
///
/// # Errors
/// As pread(2).
pub fn read_up_to(file: &File, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let mut len = 0;
    while len < size {
        let at = offset.saturating_add(len as u64);
        if i64::try_from(at.saturating_add(size as u64)).is_err() {
            break;
        }
        match file.read_at(&mut bytes[len..], at) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Changes the working directory.
///
/// # Errors
/// ENOENT, ENOTDIR, EACCES.
pub fn change_directory(path: &CStr) -> Result<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { syscall!("chdir", libc::SYS_chdir, path) }?;
    Ok(())
}

/// Returns the foreground process group of a terminal.
///
/// # Errors
/// ENOTTY if `fd` is not the controlling terminal.
pub fn foreground_group(fd: BorrowedFd<'_>) -> Result<i32> {
    let mut group = 0_i32;
    // SAFETY: the kernel writes one int to `group`.
    unsafe {
        syscall!(
            "ioctl(TIOCGPGRP)",
            libc::SYS_ioctl,
            fd,
            libc::TIOCGPGRP,
            &raw mut group
        )
    }?;
    Ok(group)
}

/// Makes a process group the foreground group of a terminal. A caller in the background must ignore or block
/// SIGTTOU.
///
/// # Errors
/// ENOTTY if `fd` is not the controlling terminal, EPERM.
pub fn set_foreground_group(fd: BorrowedFd<'_>, group: i32) -> Result<()> {
    // SAFETY: the kernel reads one int from `group`.
    unsafe {
        syscall!(
            "ioctl(TIOCSPGRP)",
            libc::SYS_ioctl,
            fd,
            libc::TIOCSPGRP,
            &raw const group
        )
    }?;
    Ok(())
}

/// Changes the process group of a process. `pid` 0 means this process; `group` 0 means the pid of the
/// process.
///
/// # Errors
/// EPERM, ESRCH, EACCES after the child's exec.
pub fn set_process_group(pid: i32, group: i32) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("setpgid", libc::SYS_setpgid, pid, group) }?;
    Ok(())
}

/// Starts a session; returns its id.
///
/// # Errors
/// EPERM if the process leads a group.
pub fn new_session() -> Result<i32> {
    // SAFETY: there are no arguments.
    unsafe { syscall!("setsid", libc::SYS_setsid) }.map(number)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn status_agrees_with_std() {
        let std = std::fs::metadata("/bin/sh").expect("a shell");
        let own = status(None, c"/bin/sh", 0).expect("a shell");
        assert_eq!(
            (own.inode, own.mode, own.size),
            (std.ino(), std.mode(), std.len())
        );
        let ns = i128::from(std.mtime()) * 1_000_000_000 + i128::from(std.mtime_nsec());
        assert_eq!(own.modify_ns, ns);
        assert_eq!(libc::makedev(own.device.0, own.device.1), std.dev());
        let null = status(None, c"/dev/null", 0).expect("a device");
        assert_eq!(null.special_device, (1, 3));
        assert!(status(None, c"/nonexistent", 0).is_err_and(|e| e.is(libc::ENOENT)));
        assert_eq!(size_of::<OpenHow>(), 24);
    }

    #[test]
    fn handles_name_the_file_whatever_the_way_to_it() {
        let file = std::fs::File::open("/bin/sh").expect("a shell");
        let by_path = match handle(None, c"/usr/bin/env") {
            Ok(found) => found,
            Err(error) => ::testing::skip!("needs a file system with handles", || {
                match error.is(libc::EOPNOTSUPP) {
                    true => Ok(error.to_string()),
                    false => Err(error.to_string()),
                }
            }),
        };
        let by_fd = handle(Some(file.as_fd()), c"").expect("the same file system");
        assert!(!by_path.0.as_bytes().is_empty());
        assert_ne!(by_path.0, by_fd.0);
        assert_eq!(handle(None, c"/usr/bin/env").expect("again"), by_path);
    }

    #[test]
    fn opening_can_refuse_links() {
        let how = OpenHow {
            flags: libc::O_RDONLY as u64,
            ..OpenHow::default()
        };
        let fd = open(None, c"/proc/self/exe", how).expect("own program");
        let inode = status(Some(fd.as_fd()), c"", 0).expect("open").inode;
        assert_eq!(
            inode,
            status(None, c"/proc/self/exe", 0)
                .expect("own program")
                .inode
        );
        let strict = OpenHow {
            resolve: libc::RESOLVE_NO_SYMLINKS,
            ..how
        };
        assert!(open(None, c"/proc/self/exe", strict).is_err_and(|e| e.is(libc::ELOOP)));
    }

    #[test]
    fn links_are_read_into_the_buffer() {
        let mut buf = [0; 4096];
        let target = read_link(None, c"/proc/self/exe", &mut buf).expect("own program");
        let std = std::fs::read_link("/proc/self/exe").expect("own program");
        assert_eq!(target, std.as_os_str().as_encoded_bytes());
        assert_eq!(
            read_link(None, c"/proc/self/exe", &mut [0; 3]).map(<[u8]>::len),
            Ok(3)
        );
    }

    #[test]
    fn sessions_and_groups_of_a_child() {
        let done = crate::testing::in_child(|| {
            set_process_group(0, 0).map_err(|e| e.errno())?;
            let leader = new_session();
            let refused = leader.is_err_and(|e| e.is(libc::EPERM));
            change_directory(c"/proc").map_err(|e| e.errno())?;
            let cwd_works = status(None, c"self/exe", 0).is_ok();
            if refused && cwd_works {
                Ok(())
            } else {
                Err(200)
            }
        });
        assert_eq!(done, Ok(()));
        let done = crate::testing::in_child(|| match new_session() {
            Ok(session) if session == crate::syscall::getpid() => Ok(()),
            _ => Err(200),
        });
        assert_eq!(done, Ok(()));
        let null = std::fs::File::open("/dev/null").expect("a device");
        assert!(foreground_group(null.as_fd()).is_err_and(|e| e.is(libc::ENOTTY)));
        assert!(set_foreground_group(null.as_fd(), 1).is_err_and(|e| e.is(libc::ENOTTY)));
    }
}
