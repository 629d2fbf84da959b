//! Detects programs that do not get the privileges of their file.
//!
//! Without CAP_SYS_ADMIN a filter needs `no_new_privs`, under which set-user-ID and set-group-ID bits and
//! file capabilities have no effect (execve(2)). The workload then runs otherwise than it would unwatched, so
//! the engine reports it: once for each file, and only if its privileges would have made a difference to the
//! caller.

use std::collections::HashSet;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abi::constant::CAP_SYS_ADMIN;
use event::{Credentials, Pid};
use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, Statx, StatxFlags};

use decoder::system_info::is_mapped;
use process_info::deadline::Deadline;
use process_info::procfs::Proc;

/// Privilege that a program did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Capabilities in the file's attribute.
    Capabilities,
    /// Group of the file.
    Group(u32),
    /// Owner of the file.
    User(u32),
}

/// Program that runs with fewer privileges than its file would give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithheldPrivileges {
    /// Path of the file.
    pub path: Vec<u8>,
    /// The privilege that it would have given.
    pub privilege: Privilege,
}

/// Checks programs that start.
#[derive(Debug)]
pub(crate) struct Privileges {
    /// State of the check; `None` if this program withholds nothing.
    watched: Option<Watched>,
}

#[derive(Debug)]
struct Watched {
    proc: Proc,
    deadline: Deadline,
    /// Files that have been checked.
    seen: Mutex<HashSet<FileId>>,
}

/// Device, inode and time of the last change, of contents or attributes.
type FileId = ((u32, u32), u64, (i64, u32));

/// Maximum number of files remembered; further files are not checked.
const SEEN_LIMIT: usize = 16 * 1024;
/// Maximum time for a file system to return a file's attributes: long for one that answers at all.
const PATIENCE: Duration = Duration::from_millis(50);
const SET_USER_ID: u16 = 0o4000;
/// Set-group-ID bit with the group's right to execute; without that right the bit means mandatory locking.
const SET_GROUP_ID: u16 = 0o2010;

impl Privileges {
    /// Creates the checker.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub(crate) fn new() -> Result<Self, process_info::procfs::ProcError> {
        let capable = sys::credential::capabilities(0)
            .is_ok_and(|sets| sets.effective.contains(CAP_SYS_ADMIN.u8()));
        // A process that set it earlier has withheld the privileges already.
        let was_set = sys::prctl::no_new_privs().unwrap_or(false);
        if capable || was_set {
            return Ok(Self { watched: None });
        }
        let watched = Watched {
            proc: Proc::open()?,
            deadline: Deadline::new(1),
            seen: Mutex::default(),
        };
        Ok(Self {
            watched: Some(watched),
        })
    }

    /// Returns the privilege that the program that has just started in a process did not get, if that is new.
    pub(crate) fn withheld(&self, pid: Pid) -> Option<WithheldPrivileges> {
        self.watched.as_ref()?.withheld(pid)
    }
}

impl Watched {
    fn withheld(&self, pid: Pid) -> Option<WithheldPrivileges> {
        let path = format!("/proc/{}/exe", pid.0);
        // Without asking the file system, which the workload may serve.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let file = rustix::fs::statx(CWD, &path, flags, StatxFlags::BASIC_STATS).ok()?;
        let privileged = file.stx_mode & (SET_USER_ID | SET_GROUP_ID);
        if !self.is_new(&file) {
            return None;
        }
        let attribute = path.clone();
        let look = move || (has_capabilities(&attribute), ignores_privileges(&attribute));
        let Ok((has_capabilities, ignored)) = self.deadline.run(PATIENCE, look) else {
            // Its next start is checked.
            self.forget(&file);
            return None;
        };
        if ignored || (privileged == 0 && !has_capabilities) {
            return None;
        }
        let status = self.proc.status(pid.0).ok()?;
        let caller = status.status.credentials;
        let privilege = difference(&file, has_capabilities, caller)?;
        if !self.would_give(pid, privilege) {
            return None;
        }
        let path = std::fs::read_link(&path).ok()?.into_os_string().into_vec();
        status
            .no_new_privs
            .then_some(WithheldPrivileges { path, privilege })
    }

    /// Returns whether the kernel would give the privilege to an unwatched process. In a user namespace of
    /// its own a process gets nothing from users that are not mapped there, and no capabilities from files
    /// outside.
    fn would_give(&self, pid: Pid, privilege: Privilege) -> bool {
        let own = std::process::id().cast_signed();
        let of = |pid| self.proc.namespace(pid, "ns/user").ok();
        if of(pid.0) == of(own) {
            return true;
        }
        match privilege {
            Privilege::Capabilities => false,
            Privilege::Group(gid) => is_mapped(&self.proc, pid.0, "gid_map", gid),
            Privilege::User(uid) => is_mapped(&self.proc, pid.0, "uid_map", uid),
        }
    }

    fn is_new(&self, file: &Statx) -> bool {
        let mut seen = self.seen();
        seen.len() < SEEN_LIMIT && seen.insert(file_id(file))
    }

    fn forget(&self, file: &Statx) {
        self.seen().remove(&file_id(file));
    }

    fn seen(&self) -> MutexGuard<'_, HashSet<FileId>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_id(file: &Statx) -> FileId {
    let device = (file.stx_dev_major, file.stx_dev_minor);
    let changed = (file.stx_ctime.tv_sec, file.stx_ctime.tv_nsec);
    (device, file.stx_ino, changed)
}

/// Returns the privilege of the file that the caller lacks. Root needs no capabilities of a file.
fn difference(file: &Statx, has_capabilities: bool, caller: Credentials) -> Option<Privilege> {
    if file.stx_mode & SET_USER_ID != 0 && file.stx_uid != caller.uid {
        return Some(Privilege::User(file.stx_uid));
    }
    if file.stx_mode & SET_GROUP_ID == SET_GROUP_ID && file.stx_gid != caller.gid {
        return Some(Privilege::Group(file.stx_gid));
    }
    (has_capabilities && caller.uid != 0).then_some(Privilege::Capabilities)
}

fn has_capabilities(path: &str) -> bool {
    let mut attribute = [0_u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut attribute[..]).is_ok()
}

/// Returns whether the mount disables the privileges of files anyway.
fn ignores_privileges(path: &str) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u16, uid: u32, gid: u32) -> Statx {
        let flags = AtFlags::empty();
        let mut file = rustix::fs::statx(CWD, "/", flags, StatxFlags::BASIC_STATS).unwrap();
        (file.stx_mode, file.stx_uid, file.stx_gid) = (mode, uid, gid);
        file
    }

    #[test]
    fn only_what_would_have_changed_something_counts() {
        let user = Credentials {
            uid: 1000,
            gid: 1000,
        };
        let root = Credentials { uid: 0, gid: 0 };
        let sudo = file(0o104_755, 0, 0);
        assert_eq!(difference(&sudo, false, user), Some(Privilege::User(0)));
        assert_eq!(difference(&sudo, false, root), None);
        let wall = file(0o102_755, 0, 5);
        assert_eq!(difference(&wall, false, user), Some(Privilege::Group(5)));
        let locked = file(0o102_744, 0, 5);
        assert_eq!(difference(&locked, false, user), None);
        let ping = file(0o100_755, 0, 0);
        assert_eq!(difference(&ping, true, user), Some(Privilege::Capabilities));
        assert_eq!(difference(&ping, true, root), None);
        assert_eq!(difference(&ping, false, user), None);
    }
}
