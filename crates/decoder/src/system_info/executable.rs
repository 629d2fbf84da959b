//! Facts about a process's executable file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{ExecutableFile, ExecutableFlags};
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};

use super::layers::{Overlay, Starts, Upper};
use super::writable;
use crate::names::UNIQUE_ID;
use process_info::procfs::{LINK_LIMIT, MountLine, Proc, ProcError, mount_lines, unescape};

/// Time for which facts about a mount are valid: a remount may change them.
const FRESH: Duration = Duration::from_secs(2);
/// The link to the executable.
const FILE: &str = "exe";
/// Suffix that the kernel adds to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";
/// Maximum number of cached mounts.
const MOUNT_LIMIT: usize = 256;

/// Facts about the mount that a file is on.
#[derive(Debug)]
pub(super) struct MountFacts {
    /// False if this is another mount of the same file system: the file's own is detached, or another namespace's.
    is_own: bool,
    read_only: bool,
    overlay: Option<Overlay>,
}

/// Cached mounts, by the ids that the kernel gives only once (Linux 6.8). Where it gives none, nothing is cached: a
/// container can have one mount replaced by another with the same number.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    known: Mutex<HashMap<u64, CachedMount>>,
    starts: Starts,
}

#[derive(Debug)]
struct CachedMount {
    read: Instant,
    facts: Option<Arc<MountFacts>>,
}

impl Mounts {
    /// Returns the facts of the mount that the executable was found by, or of another one of its file system; `None` if
    /// the process's namespace has none, e.g. for a memfd. `has_ids`: whether the kernel may have ids that it gives only
    /// once.
    fn of(
        &self,
        proc: &Proc,
        pid: i32,
        executable: &Executable,
        has_ids: bool,
    ) -> Result<Option<Arc<MountFacts>>, ProcError> {
        let unique = match has_ids {
            true => executable.unique_mount(pid)?,
            false => None,
        };
        if let Some(known) = unique.and_then(|id| self.cached(id)) {
            return Ok(known);
        }
        let text = proc.mountinfo(pid)?;
        let stat = &executable.stat;
        let own = mount_lines(&text).find(|mount| mount.id == stat.stx_mnt_id);
        let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        let other = || mount_lines(&text).find(|mount| mount.device == device.as_bytes());
        let is_own = own.is_some();
        let facts = own.or_else(other);
        let facts = facts.map(|mount| Arc::new(MountFacts::of(proc, &mount, is_own)));
        if let Some(id) = unique {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOUNT_LIMIT {
                known.clear();
            }
            let (read, facts) = (Instant::now(), facts.clone());
            known.insert(id, CachedMount { read, facts });
        }
        Ok(facts)
    }

    /// Returns the facts of a mount by the id that the kernel gives only once, if they are cached.
    fn cached(&self, unique: u64) -> Option<Option<Arc<MountFacts>>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = known.get(&unique)?;
        (mount.read.elapsed() < FRESH).then(|| mount.facts.clone())
    }
}

impl MountFacts {
    fn of(proc: &Proc, mount: &MountLine<'_>, is_own: bool) -> Self {
        let overlay = (mount.fs_type == b"overlay").then(|| {
            let upper = mount.super_option("upperdir");
            Overlay {
                device: mount.device.to_vec(),
                mount_point: unescape(mount.mount_point).into_owned(),
                root: unescape(mount.root).into_owned(),
                has_upper: upper.is_some(),
                upper: upper.and_then(|path| {
                    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
                    Upper::locate(proc, mount.device, path)
                }),
            }
        });
        Self {
            is_own,
            read_only: mount.is_read_only(),
            overlay,
        }
    }
}

/// The executable's file. While it is open, its mount exists, and no other gets the mount's number.
struct Executable {
    handle: OwnedFd,
    stat: Statx,
}

impl Executable {
    fn open(proc: &Proc, pid: i32) -> Result<Self, ProcError> {
        let handle = proc.open_path(pid, FILE)?;
        let stat = stat(&handle, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID, pid)?;
        Ok(Self { handle, stat })
    }

    /// Returns the mount's id that the kernel gives only once.
    fn unique_mount(&self, pid: i32) -> Result<Option<u64>, ProcError> {
        stat(&self.handle, UNIQUE_ID, pid).map(|stat| unique_id(&stat))
    }
}

/// Returns the id that the kernel gives only once, if that was asked for and the kernel has one.
fn unique_id(stat: &Statx) -> Option<u64> {
    (stat.stx_mask & UNIQUE_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Reads attributes that the kernel has, without asking the file's file system.
fn stat(handle: &OwnedFd, mask: StatxFlags, pid: i32) -> Result<Statx, ProcError> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let file = FILE;
    rustix::fs::statx(handle, c"", flags, mask).map_err(|source| ProcError::System {
        pid,
        file,
        source,
    })
}

/// Reads the path of the executable. The path of a deleted file comes without the kernel's suffix. A file's
/// own name may end in that suffix, so such a path is looked up.
pub fn path(proc: &Proc, pid: i32) -> Result<Vec<u8>, ProcError> {
    let mut buffer = [0; LINK_LIMIT];
    let link = proc.link(pid, "exe", &mut buffer)?;
    match link.strip_suffix(DELETED) {
        Some(path) if proc.stat_link(pid, "exe")?.stx_nlink == 0 => Ok(path.to_vec()),
        _ => Ok(link.to_vec()),
    }
}

/// Reads all facts about the executable's file. One request suffices where the kernel has ids of mounts that it gives
/// only once (6.8), the mount was looked at in the last two seconds and it is no overlay. Never waits for anything that the process controls:
/// attributes are the cached ones. `trust_paths`: whether this process sees files where mounts say, which inside a
/// container it does not for the container's own.
pub(super) fn file(
    proc: &Proc,
    mounts: &Mounts,
    trust_paths: bool,
    pid: i32,
) -> Result<ExecutableFile, ProcError> {
    let seen = proc.stat_link_for(pid, FILE, StatxFlags::BASIC_STATS | UNIQUE_ID)?;
    let id = unique_id(&seen);
    let (file, mount) = match id.and_then(|id| mounts.cached(id)) {
        Some(mount) => (seen, mount),
        None => {
            let executable = Executable::open(proc, pid)?;
            let mount = mounts.of(proc, pid, &executable, id.is_some())?;
            (executable.stat, mount)
        }
    };
    // Only a memfd has such a path without a mount or a name.
    let from_memfd =
        mount.is_none() && file.stx_nlink == 0 && path(proc, pid)?.starts_with(b"/memfd:");
    let (upper_layer, lower_layer) = match mount.as_deref() {
        Some(MountFacts { overlay: None, .. }) => (Some(false), Some(false)),
        Some(mount) => {
            let overlay = mount.overlay.as_ref();
            let path = path(proc, pid)?;
            // The path of a file on a detached mount begins there.
            let place = (path.as_slice(), trust_paths && mount.is_own);
            let has_above = |overlay: &Overlay| overlay.has_above(proc, &mounts.starts, pid, place);
            let upper = overlay.and_then(has_above);
            (upper, upper.map(|upper| !upper))
        }
        None if from_memfd => (Some(false), Some(false)),
        // Mounts of another namespace may be overlays.
        None => (None, None),
    };
    let flags = ExecutableFlags {
        upper_layer,
        lower_layer,
        from_memfd,
    };
    Ok(ExecutableFile {
        flags,
        inode: file.stx_ino,
        ctime_ns: nanoseconds(&file.stx_ctime),
        mtime_ns: nanoseconds(&file.stx_mtime),
    })
}

/// Returns whether the user who runs the executable may write it.
pub(super) fn is_writable(proc: &Proc, mounts: &Mounts, pid: i32) -> Result<bool, ProcError> {
    let executable = Executable::open(proc, pid)?;
    let mount = mounts.of(proc, pid, &executable, true)?;
    let read_only = mount.is_some_and(|mount| mount.is_own && mount.read_only);
    Ok(writable::is_writable(
        proc,
        pid,
        &executable.stat,
        read_only,
    ))
}

pub(super) fn nanoseconds(time: &StatxTimestamp) -> u64 {
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts that no mount of a test has, to see whether they are used.
    fn facts(overlay: Option<Overlay>) -> Option<Arc<MountFacts>> {
        Some(Arc::new(MountFacts {
            is_own: true,
            read_only: false,
            overlay,
        }))
    }

    /// An overlay whose files are all of a lower layer.
    fn overlay() -> Option<Overlay> {
        Some(Overlay {
            device: b"0:0".to_vec(),
            mount_point: b"/".to_vec(),
            root: b"/".to_vec(),
            has_upper: false,
            upper: None,
        })
    }

    #[test]
    fn one_request_says_the_same_of_a_program_as_all_of_them() {
        let proc = Proc::open().unwrap();
        let mounts = Mounts::default();
        let own = std::process::id().cast_signed();
        let whole = file(&proc, &mounts, true, own).unwrap();
        assert_eq!(file(&proc, &mounts, true, own).unwrap(), whole);
    }

    #[test]
    fn facts_of_a_mount_decide_about_a_program_only_while_they_are_fresh() {
        let proc = Proc::open().unwrap();
        let own = std::process::id().cast_signed();
        let whole = file(&proc, &Mounts::default(), true, own).unwrap();
        let seen = proc.stat_link_for(own, FILE, UNIQUE_ID).unwrap();
        let Some(id) = unique_id(&seen) else {
            testing::skip!("needs ids of mounts (Linux 6.8)", || Ok(
                "statx gives none".to_owned()
            ));
        };
        let with = |facts, read| {
            let mounts = Mounts::default();
            let known = CachedMount { read, facts };
            mounts.known.lock().unwrap().insert(id, known);
            file(&proc, &mounts, true, own).unwrap()
        };
        let layers = |file: ExecutableFile| (file.flags.upper_layer, file.flags.lower_layer);
        let (now, old) = (Instant::now(), Instant::now().checked_sub(FRESH).unwrap());
        assert_eq!(with(facts(None), now).inode, whole.inode);
        assert_eq!(layers(with(facts(None), now)), (Some(false), Some(false)));
        assert_eq!(
            layers(with(facts(overlay()), now)),
            (Some(false), Some(true))
        );
        assert_eq!(layers(with(None, now)), (None, None), "no memfd");
        for facts in [facts(overlay()), facts(None), None] {
            assert_eq!(with(facts, old), whole);
        }
    }
}
