//! Namespaces, mounts and related calls.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Result;
use crate::kernel::own;

/// Moves the caller into new namespaces, or unshares other resources. `flags` is a sum of `libc::CLONE_*`.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN (not for a user namespace), EINVAL, ENOSPC.
pub fn unshare(flags: u64) -> Result<()> {
    // SAFETY: the argument is a number; what stops being shared stays valid in this thread.
    unsafe { syscall!("unshare", libc::SYS_unshare, flags) }?;
    Ok(())
}

/// Enters the namespace of an open `/proc/PID/ns/*` file or those of a pidfd. `kinds` is a sum of
/// `libc::CLONE_NEW*`; 0 accepts any kind of file.
///
/// # Errors
/// EPERM, EINVAL if the kind does not match or this process has threads.
pub fn enter(namespace: BorrowedFd<'_>, kinds: u32) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("setns", libc::SYS_setns, namespace, kinds) }?;
    Ok(())
}

/// Mounts. `flags` is a sum of `libc::MS_*`.
///
/// # Errors
/// Those of mount(2).
pub fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: u64,
    data: Option<&CStr>,
) -> Result<()> {
    // SAFETY: each string is NUL-terminated or null, and read during the call only.
    unsafe { syscall!("mount", libc::SYS_mount, source, target, kind, flags, data) }?;
    Ok(())
}

/// Clones the mount of an open file into a detached mount, which is in no mount namespace. The mount ends
/// with the descriptor, except for files that were opened in it.
///
/// # Errors
/// ENOSYS before Linux 5.2, EPERM without CAP_SYS_ADMIN.
pub fn mount_of_its_own(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    const OPEN_TREE_CLONE: u32 = 1;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_EMPTY_PATH as u32;
    // SAFETY: the path is a NUL-terminated string, and the rest are numbers.
    let fd = unsafe { syscall!("open_tree", libc::SYS_open_tree, file, c"", flags) }?;
    // SAFETY: open_tree returns a new descriptor.
    Ok(unsafe { own(fd) })
}

/// Makes a mount read-only.
///
/// # Errors
/// ENOSYS before Linux 5.12, EINVAL for a mount that was unmounted, EPERM.
pub fn make_read_only(mount: BorrowedFd<'_>) -> Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    // `struct mount_attr`: attributes to set, attributes to clear, propagation, user namespace.
    let attributes: [u64; 4] = [MOUNT_ATTR_RDONLY, 0, 0, 0];
    // SAFETY: the path is a NUL-terminated string, and the kernel reads the given number of bytes of
    // `attributes`.
    unsafe {
        syscall!(
            "mount_setattr",
            libc::SYS_mount_setattr,
            mount,
            c"",
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes)
        )
    }?;
    Ok(())
}

/// Unmounts. `flags` is a sum of `libc::MNT_*` and `libc::UMOUNT_NOFOLLOW`.
///
/// # Errors
/// Those of umount2(2).
pub fn unmount(target: &CStr, flags: i32) -> Result<()> {
    // SAFETY: `target` is NUL-terminated.
    unsafe { syscall!("umount2", libc::SYS_umount2, target, flags) }?;
    Ok(())
}

/// Makes `new_root` the root and puts the old one at `put_old`.
///
/// # Errors
/// Those of pivot_root(2).
pub fn pivot_root(new_root: &CStr, put_old: &CStr) -> Result<()> {
    // SAFETY: both strings are NUL-terminated.
    unsafe { syscall!("pivot_root", libc::SYS_pivot_root, new_root, put_old) }?;
    Ok(())
}

/// Changes the root directory.
///
/// # Errors
/// EPERM without CAP_SYS_CHROOT, ENOENT, ENOTDIR.
pub fn chroot(path: &CStr) -> Result<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { syscall!("chroot", libc::SYS_chroot, path) }?;
    Ok(())
}

/// Changes the host name.
///
/// # Errors
/// EPERM, EINVAL when it is longer than 64 bytes.
pub fn set_host_name(name: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `name.len()` bytes.
    unsafe {
        syscall!(
            "sethostname",
            libc::SYS_sethostname,
            name.as_ptr(),
            name.len()
        )
    }?;
    Ok(())
}

/// Creates a file of the kind in `mode` (`libc::S_IFCHR` and others).
///
/// # Errors
/// EPERM for devices without CAP_MKNOD, EEXIST.
pub fn make_node(dir: Option<BorrowedFd<'_>>, path: &CStr, mode: u32, device: u64) -> Result<()> {
    // SAFETY: `path` is NUL-terminated, the rest are numbers.
    unsafe { syscall!("mknodat", libc::SYS_mknodat, dir, path, mode, device) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::testing;

    #[test]
    fn a_new_host_name_stays_in_its_namespace() {
        ::testing::need_root!();
        let before = std::fs::read("/proc/sys/kernel/hostname").expect("procfs");
        let outer = std::fs::File::open("/proc/self/ns/uts").expect("procfs");
        let done = testing::in_child(|| {
            let step = || -> Result<()> {
                unshare(libc::CLONE_NEWUTS as u64)?;
                set_host_name(b"sys-test")?;
                enter(outer.as_fd(), libc::CLONE_NEWUTS as u32)
            };
            step().map_err(|e| e.errno())
        });
        assert_eq!(done, Ok(()));
        assert_eq!(
            std::fs::read("/proc/sys/kernel/hostname").expect("procfs"),
            before
        );
    }

    #[test]
    fn mounts_and_roots_of_a_child_are_its_own() {
        ::testing::need_root!();
        let done = testing::in_child(|| {
            let step = || -> Result<()> {
                unshare(libc::CLONE_NEWNS as u64)?;
                mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
                mount(Some(c"none"), c"/mnt", Some(c"tmpfs"), 0, Some(c"size=64k"))?;
                make_node(None, c"/mnt/null", libc::S_IFCHR | 0o600, 1 << 8 | 3)?;
                pivot_root(c"/mnt", c"/mnt")?;
                unmount(c"/", libc::MNT_DETACH)?;
                chroot(c"/")
            };
            step().map_err(|e| e.errno())
        });
        assert_eq!(done, Ok(()));
        assert!(!std::path::Path::new("/mnt/null").exists());
    }

    #[test]
    fn missing_targets_are_errors() {
        let refused = unmount(c"/nonexistent", 0).map_err(|e| e.errno());
        assert!(matches!(refused, Err(libc::ENOENT | libc::EPERM)));
    }
}
