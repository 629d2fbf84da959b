//! Facts about a process's executable file.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{ExecutableFile, ExecutableFlags};
use rustix::fs::StatxTimestamp;

use super::layers::{Overlay, Starts, Upper};
use super::writable;
use process_info::procfs::{LINK_LIMIT, Proc, ProcError, mount_lines, unescape};

/// Time for which facts about a mount are valid: a remount may change them.
const FRESH: Duration = Duration::from_secs(2);
/// Suffix that the kernel adds to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";
/// Maximum number of cached mounts.
const MOUNT_LIMIT: usize = 256;

/// Facts about the mount that a file is on.
#[derive(Debug)]
pub(super) struct MountFacts {
    pub(super) read_only: bool,
    overlay: Option<Overlay>,
}

/// Cached mounts by id. Ids are unique among all mounts that exist at one time.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    known: Mutex<HashMap<u64, CachedExecutable>>,
    starts: Starts,
}

#[derive(Debug)]
struct CachedExecutable {
    read: Instant,
    facts: Option<Arc<MountFacts>>,
}

impl Mounts {
    /// Returns the facts of a mount; `None` for a file on no mount of the process's namespace, e.g. a memfd.
    fn of(&self, proc: &Proc, pid: i32, id: u64) -> Result<Option<Arc<MountFacts>>, ProcError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = known.get(&id)
            && mount.read.elapsed() < FRESH
        {
            return Ok(mount.facts.clone());
        }
        drop(known);
        let text = proc.mountinfo(pid)?;
        let facts = mount_lines(&text)
            .find(|mount| mount.id == id)
            .map(|mount| {
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
                Arc::new(MountFacts {
                    read_only: mount.is_read_only(),
                    overlay,
                })
            });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOUNT_LIMIT {
            known.clear();
        }
        known.insert(
            id,
            CachedExecutable {
                read: Instant::now(),
                facts: facts.clone(),
            },
        );
        Ok(facts)
    }
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

/// Reads all facts about the executable's file. Never waits for anything that the process controls:
/// attributes are the cached ones. `trust_paths`: whether this process sees files where mounts say, which inside a
/// container it does not for the container's own.
pub(super) fn file(
    proc: &Proc,
    mounts: &Mounts,
    trust_paths: bool,
    pid: i32,
) -> Result<ExecutableFile, ProcError> {
    let file = proc.stat_link(pid, "exe")?;
    let mount = mounts.of(proc, pid, file.stx_mnt_id)?;
    let overlay = mount.as_ref().and_then(|mount| mount.overlay.as_ref());
    let upper_layer = match overlay {
        None => Some(false),
        Some(overlay) => {
            let path = path(proc, pid)?;
            overlay.has_above(proc, &mounts.starts, pid, (&path, trust_paths))
        }
    };
    let flags = ExecutableFlags {
        upper_layer,
        lower_layer: if overlay.is_some() {
            upper_layer.map(|upper| !upper)
        } else {
            Some(false)
        },
        // Only a memfd has such a path without a mount or a name.
        from_memfd: mount.is_none()
            && file.stx_nlink == 0
            && path(proc, pid)?.starts_with(b"/memfd:"),
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
    let file = proc.stat_link(pid, "exe")?;
    let mount = mounts.of(proc, pid, file.stx_mnt_id)?;
    let read_only = mount.is_some_and(|mount| mount.read_only);
    Ok(writable::is_writable(proc, pid, &file, read_only))
}

pub(super) fn nanoseconds(time: &StatxTimestamp) -> u64 {
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(time.tv_nsec))
}
