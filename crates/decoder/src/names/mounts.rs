//! Cache of mounts: which belong to `/proc`, and through which other mounts their files are visible.
//!
//! statfs(2) asks the server of a file system, which may be the workload and never answer. A mount with a
//! unique id (Linux 6.8) is asked about once.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::Tid;
use rustix::fs::{Statx, StatxFlags};
use rustix::io::Errno;
use sys::time::{Clock, now_ns};

use super::layers::layers;
use super::walk::{self, Caller, ResolvedFile};
use process_info::procfs::{MountLine, mount_lines, unescape};

/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: u64 = 0x9fa0;
/// `STATX_MNT_ID_UNIQUE`.
pub(crate) const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Maximum number of cached mounts.
const LIMIT: usize = 1024;
/// Time, in nanoseconds, after which a mount that another process has made is noticed.
const FRESH_NS: u64 = 1_000_000_000;

/// Cached facts about mounts, by id.
#[derive(Debug, Default)]
pub struct Mounts {
    are_proc: Mutex<HashMap<u64, bool>>,
    /// Views by mount id.
    views: Mutex<HashMap<u64, Known>>,
}

#[derive(Debug)]
struct Known {
    until_ns: u64,
    view: Arc<MountView>,
}

/// The part of a file system that a mount shows, and the parts that this program's own mounts show of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct MountView {
    /// Mount point, as this program sees it.
    place: Vec<u8>,
    /// Folder of the file system that is mounted.
    folder: Vec<u8>,
    /// Other mounts: folder of the file system, and mount point. A layer of an overlay is its `/`.
    others: Vec<(Vec<u8>, Vec<u8>)>,
}

impl MountView {
    fn names<'v>(&'v self, path: &'v [u8]) -> impl Iterator<Item = Vec<u8>> + 'v {
        // Most file systems are mounted once, and every open runs this code.
        let way = match self.others.is_empty() {
            true => None,
            false => below(path, &self.place),
        };
        let way = way.map(|way| [without_slash(&self.folder), way].concat());
        self.others.iter().filter_map(move |(folder, place)| {
            let way = below(way.as_ref()?, folder)?;
            Some([without_slash(place), way].concat())
        })
    }
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Returns the rest of a path below a folder: empty, or with a leading slash.
fn below<'p>(path: &'p [u8], folder: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(without_slash(folder))?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

impl Mounts {
    /// Returns whether a file belongs to `/proc`.
    pub(super) fn is_proc(
        &self,
        file: &OwnedFd,
        stat: &Statx,
        caller: Caller<'_>,
    ) -> Result<bool, Errno> {
        if stat.stx_dev_major != 0 {
            // Files that the kernel synthesises are on no device.
            return Ok(false);
        }
        let known = || self.are_proc.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unique = stat.stx_mask & UNIQUE_ID.bits() != 0;
        let number = is_unique.then_some(stat.stx_mnt_id);
        if let Some(found) = number.and_then(|number| known().get(&number).copied()) {
            return Ok(found);
        }
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        let kind = caller.ask(move || rustix::fs::fstatfs(&file))?.f_type;
        let is_proc = u64::try_from(kind) == Ok(PROC_MAGIC);
        if let Some(number) = number {
            let mut known = known();
            if known.len() >= LIMIT {
                known.clear();
            }
            known.insert(number, is_proc);
        }
        Ok(is_proc)
    }

    /// Returns paths of a file through other mounts of this program than the one by which it was found at `path`.
    pub(super) fn other_names(
        &self,
        found: &ResolvedFile,
        path: &[u8],
        caller: Caller<'_>,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let view = self.view(found, caller)?;
        Ok(view.map_or_else(Vec::new, |view| view.names(path).collect()))
    }

    /// Drops cached views after the mounts have changed.
    pub(super) fn forget_views(&self) {
        self.views().clear();
    }

    fn view(
        &self,
        found: &ResolvedFile,
        caller: Caller<'_>,
    ) -> Result<Option<Arc<MountView>>, Errno> {
        let number = found.stat.stx_mnt_id;
        let now = now_ns(Clock::Monotonic);
        if let Some(known) = self
            .views()
            .get(&number)
            .filter(|known| now < known.until_ns)
        {
            return Ok(Some(Arc::clone(&known.view)));
        }
        // Another caller's table may have the mount.
        let Some(view) = look(found, caller)?.map(Arc::new) else {
            return Ok(None);
        };
        let mut views = self.views();
        if views.len() >= LIMIT {
            views.clear();
        }
        let known = Known {
            until_ns: now + FRESH_NS,
            view: Arc::clone(&view),
        };
        views.insert(number, known);
        Ok(Some(view))
    }

    fn views(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds the mount of a file in this program's own table, or in the caller's. A detached mount is in neither.
fn look(found: &ResolvedFile, caller: Caller<'_>) -> Result<Option<MountView>, Errno> {
    let own_tid = Tid(std::process::id().cast_signed());
    let number = walk::mount_number(&found.file)?;
    let own = caller.inspector.mounts(own_tid)?;
    let is_it = |line: &MountLine<'_>| line.id == number;
    if let Some(line) = mount_lines(&own).find(is_it) {
        return Ok(Some(view(&line, b"/", &own)));
    }
    if caller.tid == own_tid {
        return Ok(None);
    }
    let theirs = caller.inspector.mounts(caller.tid)?;
    let Some(line) = mount_lines(&theirs).find(is_it) else {
        return Ok(None);
    };
    let root = caller.inspector.open_link(caller.tid, "root")?;
    let root = caller.inspector.own_descriptor(&root)?;
    Ok(Some(view(&line, &root, &own)))
}

/// Builds the view of a mount; `root` is the root of its table.
fn view(line: &MountLine<'_>, root: &[u8], own: &[u8]) -> MountView {
    let is_root = line.mount_point == b"/";
    let mut others = Vec::new();
    // The host's path of a container's own root is of no use to rules.
    if !is_root || root == b"/" && mount_lines(own).any(|own| own.id == line.id) {
        let same = mount_lines(own).filter(|other| other.device == line.device);
        others.extend(same.filter(|other| other.id != line.id).map(|other| {
            let [folder, place] = [other.root, other.mount_point].map(unescape);
            (folder.into_owned(), place.into_owned())
        }));
    }
    if !is_root && line.fs_type == b"overlay" {
        others.extend(layers(line.super_options).map(|layer| (b"/".to_vec(), layer)));
    }
    MountView {
        place: [without_slash(root), &unescape(line.mount_point)].concat(),
        folder: unescape(line.root).into_owned(),
        others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[u8] = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        22 21 8:2 /home /home rw - ext4 /dev/sda2 rw\n\
        23 21 8:1 /srv/a\\040b /mnt rw - ext4 /dev/sda1 rw\n";

    fn names(line: &[u8], root: &str, path: &str) -> Vec<String> {
        let line = mount_lines(line).next().expect("one line");
        let view = view(&line, root.as_bytes(), OWN);
        let text = |name| String::from_utf8(name).expect("letters");
        view.names(path.as_bytes()).map(text).collect()
    }

    #[test]
    fn a_file_has_the_names_that_other_mounts_of_its_file_system_give_it() {
        let bind = b"90 80 8:1 /etc /tmp/x rw - ext4 /dev/sda1 rw\n";
        assert_eq!(names(bind, "/", "/tmp/x/passwd"), ["/etc/passwd"]);
        assert_eq!(names(bind, "/", "/tmp/x"), ["/etc"]);
        // Another mount lies there.
        assert_eq!(names(bind, "/", "/tmp/xy/passwd"), [""; 0]);
        let below = b"90 80 8:1 /srv/a\\040b/c /x rw - ext4 /dev/sda1 rw\n";
        assert_eq!(
            names(below, "/jail", "/jail/x/file"),
            ["/srv/a b/c/file", "/mnt/c/file"]
        );
        let root = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(names(root, "/", "/srv/a b/file"), ["/mnt/file"]);
        assert_eq!(names(root, "/", "/etc/passwd"), [""; 0]);
        let elsewhere = b"90 80 8:3 /etc /tmp/x rw - ext4 /dev/sdb rw\n";
        assert_eq!(names(elsewhere, "/", "/tmp/x/passwd"), [""; 0]);
    }

    #[test]
    fn a_file_of_an_overlay_has_the_names_that_it_has_in_its_layers() {
        let overlay =
            b"90 80 0:44 / /tmp/o rw - overlay o rw,lowerdir=/etc:/usr,upperdir=/u,workdir=/w\n";
        assert_eq!(
            names(overlay, "/", "/tmp/o/passwd"),
            ["/etc/passwd", "/usr/passwd", "/u/passwd"]
        );
        let part =
            b"90 80 0:44 /deep /tmp/o rw - overlay o rw,lowerdir=/etc,upperdir=/u,workdir=/w\n";
        assert_eq!(names(part, "/", "/tmp/o/f"), ["/etc/deep/f", "/u/deep/f"]);
    }

    #[test]
    fn files_of_a_containers_root_have_no_name_outside() {
        let overlay = b"90 80 0:44 / / rw - overlay o rw,lowerdir=/etc,upperdir=/u,workdir=/w\n";
        assert_eq!(names(overlay, "/", "/passwd"), [""; 0]);
        let folder = b"90 80 8:1 /srv/a\\040b / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(names(folder, "/", "/passwd"), [""; 0]);
    }
}
