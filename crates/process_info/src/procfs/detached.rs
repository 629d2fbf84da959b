//! A detached mount of `/proc`.
//!
//! A workload that is root in the mount namespace of this program can mount over `/proc` or parts of it, and
//! reads by path would return the workload's files. Such a workload has `CAP_SYS_ADMIN`, and then this
//! program usually has it too: it clones the mount into a detached one (open_tree(2), Linux 5.2), over which
//! nobody can mount. If something is already mounted over `/proc`, it creates a mount of its own.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: u64 = 0x9fa0;
/// `PROC_ROOT_INO`: only the root of procfs has this inode number.
const ROOT_INODE: u64 = 1;

/// Opens a detached `/proc`, or the mounted one if the kernel does not permit or support that.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mounted = || rustix::fs::open("/proc", flags, Mode::empty());
    let copied = copy().ok().filter(is_root);
    match copied.map_or_else(mounted, Ok) {
        Ok(found) if is_root(&found) => Ok(found),
        found => make().or(found),
    }
}

/// Clones the mount without the mounts below it.
fn copy() -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, "/proc", flags)
}

fn make() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn is_root(folder: &OwnedFd) -> bool {
    let is_proc =
        rustix::fs::fstatfs(folder).is_ok_and(|fs| u64::try_from(fs.f_type) == Ok(PROC_MAGIC));
    is_proc && rustix::fs::fstat(folder).is_ok_and(|stat| stat.st_ino == ROOT_INODE)
}
