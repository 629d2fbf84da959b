//! Layers of overlays: whether an executable came after the image of its container.

use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::StartTime;
use process_info::procfs::{
    MountLine, Proc, ProcError, clock_was_set, mount_lines, start_ns, unescape,
};

use super::executable::nanoseconds;

/// Time after which the first process of an overlay is looked for again if none was found.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of searches for first processes in a period; more overlays stay unknown until the next.
const SEARCH_LIMIT: u32 = 64;
const SEARCH_PERIOD: Duration = Duration::from_secs(2);
/// Number of folders above a mount point that may be the one that layers are named from: `ID/merged` is two below it.
const LEVELS: usize = 3;
/// Maximum number of cached overlays.
const OVERLAY_LIMIT: usize = 256;

/// An overlay, as a table of mounts describes it.
#[derive(Debug)]
pub(super) struct Overlay {
    /// Its device, as `major:minor`.
    pub(super) device: Vec<u8>,
    pub(super) mount_point: Vec<u8>,
    pub(super) root: Vec<u8>,
    /// True if it has an upper layer.
    pub(super) has_upper: bool,
    /// The upper layer, if its folder is known.
    pub(super) upper: Option<Upper>,
}

impl Overlay {
    /// Returns whether the executable, whose path is `path`, lies in the upper layer. `trust_paths`: whether this
    /// process sees the layer where the mount says.
    pub(super) fn has_above(
        &self,
        proc: &Proc,
        starts: &Starts,
        pid: i32,
        (path, trust_paths): (&[u8], bool),
    ) -> Option<bool> {
        if !self.has_upper {
            return Some(false);
        }
        // A file that was copied up keeps the handle of its origin, so only a new file's handle proves something.
        if handle_says_upper(proc, pid) {
            return Some(true);
        }
        // The first process of a container proves that an engine made the overlay that is its root. Another overlay may
        // be a program's of the container, which can name any folder: then the start of that container counts.
        let made = || starts.of_container(proc, &self.device);
        let root = || starts.of_container(proc, device_of_root(proc, pid).ok()?.as_bytes());
        let upper = self.upper.as_ref().filter(|_| trust_paths);
        let upper = upper.filter(|upper| upper.is_seen || made().is_some());
        let found = upper.and_then(|upper| self.is_below(&upper.path, path));
        // A deleted file is in no folder any more.
        let is_gone = || {
            proc.stat_link(pid, "exe")
                .is_ok_and(|file| file.stx_nlink == 0)
        };
        let found = found.filter(|is_above| *is_above || !is_gone());
        found.or_else(|| changed_since(proc, pid, made().or_else(root)?))
    }

    /// Returns whether the folder of the upper layer has the file; `None` if that folder is not where the mount says.
    fn is_below(&self, upper: &Path, path: &[u8]) -> Option<bool> {
        let base = &self.mount_point;
        let base = base.strip_suffix(b"/").unwrap_or(base);
        let inside = path.strip_prefix(base)?;
        let relative = [self.root.as_slice(), b"/", inside].concat();
        let at = relative.iter().position(|byte| *byte != b'/')?;
        let file = upper.join(Path::new(std::ffi::OsStr::from_bytes(&relative[at..])));
        match std::fs::symlink_metadata(file) {
            Ok(_) => Some(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                upper.is_dir().then_some(false)
            }
            Err(_) => None,
        }
    }
}

/// Folder of an upper layer.
#[derive(Debug)]
pub(super) struct Upper {
    path: PathBuf,
    /// True if the overlay is mounted in this process's namespace: no program in a container made it.
    is_seen: bool,
}

impl Upper {
    /// Finds the upper layer that an overlay's mount names. `None` if it is named relative to an unknown folder.
    pub(super) fn locate(proc: &Proc, device: &[u8], named: PathBuf) -> Option<Self> {
        let text = proc.mountinfo(std::process::id().cast_signed()).ok()?;
        let is_it = |mount: &MountLine<'_>| mount.fs_type == b"overlay" && mount.device == device;
        let seen = mount_lines(&text).find(is_it);
        if named.is_absolute() {
            return Some(Self {
                path: named,
                is_seen: seen.is_some(),
            });
        }
        // Engines enter the folder that has the mount points and the layers, and mount from there.
        let point = unescape(seen?.mount_point).into_owned();
        let point = PathBuf::from(std::ffi::OsString::from_vec(point));
        let folders = point.ancestors().skip(1).take(LEVELS);
        let mut layers = folders.map(|folder| folder.join(&named));
        layers.find(|layer| layer.is_dir()).map(|path| Self {
            path,
            is_seen: true,
        })
    }
}

/// Returns whether the executable was made or changed after a container was started. Images are older than their
/// containers, copying up sets the change time, and no process without CAP_SYS_TIME can set that back.
fn changed_since(proc: &Proc, pid: i32, start: StartTime) -> Option<bool> {
    let changed = nanoseconds(&proc.stat_link(pid, "exe").ok()?.stx_ctime);
    let is_after = changed >= start_ns(start);
    (!clock_was_set()).then_some(is_after)
}

/// Returns when the container was started that the agent is in, if its root is on an overlay of this device.
fn own_start(proc: &Proc, device: &[u8]) -> Option<StartTime> {
    /// Inode of the initial pid namespace (PROC_PID_INIT_INO).
    const INITIAL: u64 = 0xeffffffc;
    let own_pid = std::process::id().cast_signed();
    let is_own = device_of_root(proc, own_pid).ok()?.as_bytes() == device;
    // In the initial namespace process 1 is the host's, which says nothing about the container.
    let is_inside = is_own && proc.namespace(own_pid, "ns/pid").ok()? != INITIAL;
    is_inside
        .then(|| proc.stat(1).ok())
        .flatten()
        .map(|first| first.start)
}

/// Returns the device of the root of a process, as tables of mounts write it.
fn device_of_root(proc: &Proc, pid: i32) -> Result<String, ProcError> {
    let root = proc.stat_link(pid, "root")?;
    Ok(format!("{}:{}", root.stx_dev_major, root.stx_dev_minor))
}

/// When containers were started, by the devices of the overlays that are their roots.
#[derive(Debug, Default)]
pub(super) struct Starts {
    known: Mutex<HashMap<Vec<u8>, CachedStart>>,
    searches: Mutex<Searches>,
}

/// Searches through all processes. A workload that mounts overlays could ask for one with each program.
#[derive(Debug)]
struct Searches {
    left: u32,
    since: Instant,
}

impl Default for Searches {
    fn default() -> Self {
        Self {
            left: SEARCH_LIMIT,
            since: Instant::now(),
        }
    }
}

impl Searches {
    /// Returns true if another search may begin.
    fn take(&mut self) -> bool {
        if self.since.elapsed() >= SEARCH_PERIOD {
            *self = Self::default();
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct CachedStart {
    read: Instant,
    first: Option<(i32, StartTime)>,
}

impl Starts {
    /// Returns when the container was started whose root is on an overlay.
    fn of_container(&self, proc: &Proc, device: &[u8]) -> Option<StartTime> {
        own_start(proc, device).or_else(|| self.of(proc, device))
    }

    /// Returns when the first process was started whose root is on an overlay. `None` unless it is the first of a
    /// container, without which no other one of that lives.
    fn of(&self, proc: &Proc, device: &[u8]) -> Option<StartTime> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = known.get(device).copied();
        drop(known);
        match cached.map(|cached| (cached.first, cached.read.elapsed())) {
            Some((None, age)) if age < PAUSE => return None,
            // Devices are used again, but by then that process has ended.
            Some((Some((pid, start)), _)) if proc.stat_of(pid, start).is_ok() => {
                return Some(start);
            }
            _ => {}
        }
        let mut searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        let may_search = searches.take();
        drop(searches);
        if !may_search {
            return None;
        }
        let first = first_below(proc, device);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= OVERLAY_LIMIT {
            known.clear();
        }
        let read = Instant::now();
        known.insert(device.to_vec(), CachedStart { read, first });
        first.map(|(_, start)| start)
    }
}

/// Finds the first process of a container by the device of its root.
fn first_below(proc: &Proc, device: &[u8]) -> Option<(i32, StartTime)> {
    let mut first: Option<(i32, StartTime)> = None;
    for pid in proc.numbers(".").ok()? {
        let its = match device_of_root(proc, pid) {
            Ok(its) => its,
            Err(ProcError::Denied { .. }) if is_first_of_namespace(proc, pid) => return None,
            Err(_) => continue,
        };
        if its.as_bytes() != device {
            continue;
        }
        let Ok(stat) = proc.stat(pid) else {
            continue;
        };
        if first.is_none_or(|(_, start)| stat.start < start) {
            first = Some((pid, stat.start));
        }
    }
    first.filter(|(pid, _)| is_first_of_container(proc, *pid))
}

/// Returns true for the first process of a pid namespace and of its control group. A program in a container can make a
/// namespace and an overlay of its own, whose start is later than what it wrote; it stays in the container's group.
fn is_first_of_container(proc: &Proc, pid: i32) -> bool {
    let groups = |pid| {
        let groups = proc.cgroup(pid).ok()?;
        Some(container::identify(&groups).map(|found| found.full_id))
    };
    let parent = proc
        .stat(pid)
        .ok()
        .and_then(|found| groups(found.stat.ppid.0));
    let is_in_its_own = match (groups(pid).flatten(), parent) {
        (Some(own), Some(parent)) => parent != Some(own),
        // Unknown groups prove nothing.
        _ => false,
    };
    is_in_its_own && is_first_of_namespace(proc, pid)
}

/// Returns true for the first process of another pid namespace than the agent's.
fn is_first_of_namespace(proc: &Proc, pid: i32) -> bool {
    pid != 1 && proc.status(pid).is_ok_and(|found| found.status.vpid == 1)
}

/// Returns whether an overlay file handle says that the file is in the upper layer (struct ovl_fb in
/// fs/overlayfs/overlayfs.h). Overlays that were mounted without CAP_DAC_READ_SEARCH have no such handles.
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
