//! Facts about a process's executable file.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{ExecutableFile, ExecutableFlags};
use rustix::fs::StatxTimestamp;

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

#[derive(Debug)]
struct Overlay {
    mount_point: Vec<u8>,
    root: Vec<u8>,
    /// Upper folder of an overlay as named at mount time; `None` for an overlay without one.
    upper: Option<PathBuf>,
}

/// Cached mounts by id. Ids are unique among all mounts that exist at one time.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    known: Mutex<HashMap<u64, CachedExecutable>>,
}

#[derive(Debug)]
struct CachedExecutable {
    read: Instant,
    facts: Option<Arc<MountFacts>>,
}

impl Mounts {
    /// Returns the facts of a mount; `None` for a file on no mount of the process's namespace, e.g. a memfd.
    fn of(&self, proc: &Proc, pid: i32, id: u64) -> Option<Arc<MountFacts>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = known.get(&id)
            && mount.read.elapsed() < FRESH
        {
            return mount.facts.clone();
        }
        drop(known);
        let text = proc.mountinfo(pid).ok()?;
        let facts = mount_lines(&text)
            .find(|mount| mount.id == id)
            .map(|mount| {
                let overlay = (mount.fs_type == b"overlay").then(|| Overlay {
                    mount_point: unescape(mount.mount_point).into_owned(),
                    root: unescape(mount.root).into_owned(),
                    upper: mount
                        .super_option("upperdir")
                        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(&path))),
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
        facts
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
/// attributes are the cached ones. `trust_paths`: whether the paths that mounts name are valid, which inside
/// a container they are not.
pub(super) fn file(
    proc: &Proc,
    mounts: &Mounts,
    trust_paths: bool,
    pid: i32,
) -> Result<ExecutableFile, ProcError> {
    let file = proc.stat_link(pid, "exe")?;
    let mount = mounts.of(proc, pid, file.stx_mnt_id);
    let overlay = mount.as_ref().and_then(|mount| mount.overlay.as_ref());
    let upper_layer = match overlay {
        None => Some(false),
        Some(overlay) => in_upper_layer(proc, pid, overlay, &path(proc, pid)?, trust_paths),
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
    let mount = mounts.of(proc, pid, file.stx_mnt_id);
    let read_only = mount.is_some_and(|mount| mount.read_only);
    Ok(writable::is_writable(proc, pid, &file, read_only))
}

fn in_upper_layer(
    proc: &Proc,
    pid: i32,
    overlay: &Overlay,
    path: &[u8],
    trust_paths: bool,
) -> Option<bool> {
    let Some(upper) = &overlay.upper else {
        return Some(false);
    };
    if handle_says_upper(proc, pid) {
        return Some(true);
    }
    // A file that was copied up keeps the handle of its origin, so the handle alone proves nothing.
    if !trust_paths {
        return changed_since_start(proc, pid);
    }
    let below = |path: &[u8], base: &[u8]| {
        let base = base.strip_suffix(b"/").unwrap_or(base);
        path.strip_prefix(base).map(<[u8]>::to_vec)
    };
    let inside = below(path, &overlay.mount_point)?;
    let relative = [overlay.root.as_slice(), b"/", &inside].concat();
    let trimmed = relative
        .iter()
        .position(|byte| *byte != b'/')
        .map(|at| &relative[at..])?;
    let file = upper.join(Path::new(std::ffi::OsStr::from_bytes(trimmed)));
    match std::fs::symlink_metadata(file) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Only if the layer itself is where the mount says.
            upper.is_dir().then_some(false)
        }
        Err(_) => None,
    }
}

/// Returns whether the file was made or changed after the container was started, seen from inside. Images are
/// older than their containers, copying up sets the change time, and no process without CAP_SYS_TIME can set
/// that back.
fn changed_since_start(proc: &Proc, pid: i32) -> Option<bool> {
    /// Inode of the initial pid namespace (PROC_PID_INIT_INO).
    const INITIAL: u64 = 0xeffffffc;
    let own_pid = std::process::id().cast_signed();
    if proc.namespace(own_pid, "ns/pid").ok()? == INITIAL {
        // Process 1 is the host's, which says nothing about the container.
        return None;
    }
    let started_ns = process_info::procfs::start_ns(proc.stat(1).ok()?.start);
    let changed_ns = nanoseconds(&proc.stat_link(pid, "exe").ok()?.stx_ctime);
    Some(changed_ns >= started_ns)
}

/// Returns whether an overlay file handle says that the file is in the upper layer (struct ovl_fb in
/// fs/overlayfs/overlayfs.h).
pub(super) fn handle_says_upper(proc: &Proc, pid: i32) -> bool {
    const FILEID_V1: i32 = 0xf8;
    const MAGIC: u8 = 0xfb;
    const PATH_UPPER: u8 = 1 << 2;
    let Ok(file) = proc.open_path(pid, "exe") else {
        return false;
    };
    let Ok((handle, _)) = sys::file::handle(Some(std::os::fd::AsFd::as_fd(&file)), c"") else {
        return false;
    };
    // Three bytes of padding, version, magic, length, flags.
    match handle.as_bytes() {
        [_, _, _, _, MAGIC, _, flags, ..] if handle.kind() == FILEID_V1 => flags & PATH_UPPER != 0,
        _ => false,
    }
}

fn nanoseconds(time: &StatxTimestamp) -> u64 {
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(time.tv_nsec))
}
