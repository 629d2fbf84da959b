//! The inotify watches on sensitive files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::DirEntry;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use event::Tid;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::ledger::Key;
use process_info::procfs::Proc;

/// Maximum number of watches; the kernel's limit may be lower (`fs.inotify.max_user_watches`).
const WATCH_LIMIT: usize = 2048;
/// Maximum number of roots beside the agent's own.
const ROOT_LIMIT: usize = 64;
/// Depth to which folders below a folder are watched too.
const DEPTH: usize = 2;

/// Operations on a file that rules may match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sensitive {
    /// Any open.
    pub(crate) reads: bool,
    /// An open for writing.
    pub(crate) writes: bool,
}

impl Sensitive {
    pub(crate) fn is_any(self) -> bool {
        self.reads || self.writes
    }

    /// Returns the events to watch. Watching closes too keeps the kernel from merging two opens into one event.
    fn flags(self) -> WatchFlags {
        let mut flags = WatchFlags::empty();
        if self.reads {
            flags |= WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        }
        if self.writes {
            flags |= WatchFlags::CLOSE_WRITE;
        }
        flags
    }
}

/// A path that rules name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Absolute path, as in the rules, without a slash at the end.
    pub(crate) path: Vec<u8>,
    /// Sensitive operations if the path is a file.
    pub(crate) itself: Sensitive,
    /// Sensitive operations on files in it, if the path is a folder.
    pub(crate) below: Sensitive,
}

/// State of one inotify watch.
#[derive(Debug, Default)]
struct Watch {
    itself: Sensitive,
    below: Sensitive,
    /// Path of the watched file or folder, as in the rules.
    path: Vec<u8>,
    /// Names in this folder that must be watched anew when they appear.
    awaited: HashMap<Vec<u8>, Vec<Target>>,
    /// Depth to which folders that appear in it are watched.
    depth: usize,
    /// Time, in nanoseconds, until which the engine may have inspected an open before the watch was requested.
    new_until_ns: u64,
}

/// Root directory of processes of the workload.
#[derive(Debug)]
enum Root {
    /// The agent's own root.
    Own,
    /// Another root, held open by `folder`.
    Other { folder: OwnedFd, identity: Identity },
}

/// Device and inode of a root, and the mount namespace.
type Identity = (u64, u64, u64);

impl Root {
    /// Returns the prefix for absolute paths in this root.
    fn prefix(&self) -> Vec<u8> {
        match self {
            Self::Own => Vec::new(),
            Self::Other { folder, .. } => {
                format!("/proc/self/fd/{}", folder.as_raw_fd()).into_bytes()
            }
        }
    }
}

/// All watches.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: OwnedFd,
    watches: HashMap<i32, Watch>,
    /// Watches by the path of a file or folder.
    by_path: HashMap<Vec<u8>, Vec<i32>>,
    /// Roots of the workload.
    roots: Vec<Root>,
    targets: Vec<Target>,
    /// Time for new watches; see [`Watch`].
    new_until_ns: u64,
    /// Watches of this pass over the targets, many of which share a folder, by path with prefix.
    pass: HashMap<Vec<u8>, Requested>,
    /// Folders in the folders that this pass has read, by path without links.
    inner: HashMap<PathBuf, Vec<OsString>>,
    /// Number of watches that failed.
    pub(crate) refused: u64,
}

/// A file or folder to watch.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Prefix of its root.
    root: &'a [u8],
    /// Path in the root, as in the rules.
    path: &'a [u8],
    /// Path without links, if it is known.
    real: Option<&'a Path>,
}

impl<'a> Place<'a> {
    fn new(root: &'a [u8], path: &'a [u8]) -> Self {
        Self {
            root,
            path,
            real: None,
        }
    }

    fn whole(&self) -> Vec<u8> {
        [self.root, self.path].concat()
    }
}

/// A watch that the kernel has been asked for.
#[derive(Clone, Debug)]
struct Requested {
    id: i32,
    flags: WatchFlags,
    /// Path without links, in the agent's own root.
    real: Option<PathBuf>,
}

impl Watches {
    pub(crate) fn new(targets: Vec<Target>) -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            inotify,
            watches: HashMap::new(),
            by_path: HashMap::new(),
            roots: Vec::new(),
            targets,
            new_until_ns: 0,
            pass: HashMap::new(),
            inner: HashMap::new(),
            refused: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    /// Returns whether nothing is watched, because no rule asks.
    pub(crate) fn is_idle(&self) -> bool {
        self.targets.is_empty()
    }

    /// Watches all targets below the agent's own root, if they are not watched yet.
    pub(crate) fn arm(&mut self) {
        if !self.roots.iter().any(|root| matches!(root, Root::Own)) {
            self.arm_root(Root::Own);
        }
    }

    /// Watches all targets below the root of a process, too. A process that is gone has no root.
    pub(crate) fn arm_other(&mut self, tid: Tid) {
        let Some((folder, identity)) = root_of(tid) else {
            return;
        };
        let is_it =
            |root: &Root| matches!(root, Root::Other { identity: known, .. } if *known == identity);
        if self.roots.iter().any(is_it) {
            return;
        }
        if self.roots.len() >= ROOT_LIMIT {
            self.refused += 1;
            return;
        }
        self.arm_root(Root::Other { folder, identity });
    }

    fn arm_root(&mut self, root: Root) {
        let prefix = root.prefix();
        self.roots.push(root);
        self.end_pass();
        for target in self.targets.clone() {
            self.arm_target(&prefix, &target);
        }
        self.end_pass();
    }

    /// Adds targets of new rules. Calls that the engine inspected earlier must not count as unseen: opens
    /// that new watches report count from `new_until_ns` on.
    pub(crate) fn extend(&mut self, targets: Vec<Target>, new_until_ns: u64) {
        self.new_until_ns = new_until_ns;
        self.end_pass();
        for target in targets {
            if self.targets.contains(&target) {
                continue;
            }
            for root in self.prefixes() {
                self.arm_target(&root, &target);
            }
            self.targets.push(target);
        }
        self.end_pass();
        self.new_until_ns = 0;
    }

    /// Returns whether an event of a watch may be about an earlier call than the watch.
    pub(crate) fn is_new(&self, key: &Key, now_ns: u64) -> bool {
        let watch = self.watches.get(&key.0);
        watch.is_some_and(|watch| now_ns < watch.new_until_ns)
    }

    /// Forgets what this pass has seen: by the next one it may be something else.
    fn end_pass(&mut self) {
        self.pass.clear();
        self.inner.clear();
    }

    fn prefixes(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(Root::prefix).collect()
    }

    fn arm_target(&mut self, root: &[u8], target: &Target) {
        let place = [root, &target.path[..]].concat();
        let is_folder = Path::new(OsStr::from_bytes(&place)).is_dir();
        if is_folder && target.below.is_any() {
            self.add_folder(Place::new(root, &target.path), target.below, DEPTH);
        }
        if !is_folder && target.itself.is_any() {
            let place = Place::new(root, &target.path);
            self.add(place, target.itself.flags(), |watch| {
                merge(&mut watch.itself, target.itself);
            });
        }
        self.await_name(root, target);
    }

    /// Watches a file's folder: files are often replaced by renaming another.
    fn await_name(&mut self, root: &[u8], target: &Target) {
        let Some(end) = target.path.iter().rposition(|byte| *byte == b'/') else {
            return;
        };
        let (folder, name) = (&target.path[..end], &target.path[end + 1..]);
        let folder = if folder.is_empty() { b"/" } else { folder };
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        self.add(Place::new(root, folder), flags, |watch| {
            let awaited = watch.awaited.entry(name.to_vec()).or_default();
            if !awaited.contains(target) {
                awaited.push(target.clone());
            }
        });
    }

    fn add_folder(&mut self, place: Place<'_>, below: Sensitive, depth: usize) {
        let flags = below.flags() | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let added = self.add(place, flags, |watch| {
            merge(&mut watch.below, below);
            watch.depth = watch.depth.max(depth);
        });
        let Some(Requested { real, .. }) = added else {
            return;
        };
        if depth == 0 {
            return;
        }
        for name in self.folders_in(place, real.as_deref()) {
            let path = [place.path, b"/", name.as_bytes()].concat();
            let real = real.as_ref().map(|real| real.join(&name));
            let inner = Place {
                root: place.root,
                path: &path,
                real: real.as_deref(),
            };
            self.add_folder(inner, below, depth - 1);
        }
    }

    /// Returns the names of the folders in a folder. Does not follow links, which may lead out of it or form a cycle.
    fn folders_in(&mut self, place: Place<'_>, real: Option<&Path>) -> Vec<OsString> {
        if let Some(known) = real.and_then(|real| self.inner.get(real)) {
            return known.clone();
        }
        let Ok(entries) = std::fs::read_dir(OsStr::from_bytes(&place.whole())) else {
            return Vec::new();
        };
        let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let folders = entries.flatten().filter(is_folder);
        let names: Vec<_> = folders.map(|entry| entry.file_name()).collect();
        if let Some(real) = real {
            self.inner.insert(real.to_owned(), names.clone());
        }
        names
    }

    /// Watches a file or folder for these events, beside those that it is watched for.
    fn add(
        &mut self,
        place: Place<'_>,
        flags: WatchFlags,
        set: impl FnOnce(&mut Watch),
    ) -> Option<Requested> {
        let whole = place.whole();
        let known = match place.real {
            Some(real) => self.pass.get(real.as_os_str().as_bytes()),
            None => self.pass.get(&whole),
        };
        let requested = match known.filter(|known| known.flags.contains(flags)) {
            Some(known) => known.clone(),
            None => self.request(place, &whole, flags)?,
        };
        let watch = self.watches.entry(requested.id).or_default();
        if watch.path.is_empty() {
            watch.path = place.path.to_vec();
        }
        watch.new_until_ns = watch.new_until_ns.max(self.new_until_ns);
        set(watch);
        self.name(place.path, requested.id);
        // Callers may use the path that a link leads to.
        if let Some(real) = &requested.real {
            self.name(real.as_os_str().as_bytes(), requested.id);
        }
        Some(requested)
    }

    /// Asks the kernel for a watch. One that it refuses is counted.
    fn request(&mut self, place: Place<'_>, whole: &[u8], flags: WatchFlags) -> Option<Requested> {
        if self.watches.len() >= WATCH_LIMIT {
            self.refused += 1;
            return None;
        }
        let name = OsStr::from_bytes(whole);
        let id = match inotify::add_watch(&self.inotify, name, flags | WatchFlags::MASK_ADD) {
            Ok(id) => id,
            // Missing; its folder reports when it appears, if the folder exists. Not remembered: it may appear before
            // its folder is watched.
            Err(Errno::NOENT | Errno::NOTDIR) => return None,
            Err(_) => {
                self.refused += 1;
                return None;
            }
        };
        let known = self.pass.get(whole).filter(|known| known.id == id);
        let requested = Requested {
            id,
            flags: known.map_or(flags, |known| known.flags | flags),
            real: match place.real {
                Some(real) => Some(real.to_owned()),
                None if place.root.is_empty() => std::fs::canonicalize(name).ok(),
                None => None,
            },
        };
        if let Some(real) = &requested.real {
            let real = real.as_os_str().as_bytes().to_vec();
            self.pass.insert(real, requested.clone());
        }
        self.pass.insert(whole.to_vec(), requested.clone());
        Some(requested)
    }

    fn name(&mut self, path: &[u8], id: i32) {
        let ids = self.by_path.entry(path.to_vec()).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }

    /// Returns the keys under which watches report this path.
    pub(crate) fn keys(&self, path: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for id in self.by_path.get(path).into_iter().flatten() {
            if self
                .watches
                .get(id)
                .is_some_and(|watch| watch.itself.is_any())
            {
                keys.push((*id, Vec::new()));
            }
        }
        if let Some(end) = path.iter().rposition(|byte| *byte == b'/') {
            let name = &path[end + 1..];
            for id in self.by_path.get(&path[..end]).into_iter().flatten() {
                if self
                    .watches
                    .get(id)
                    .is_some_and(|watch| watch.below.is_any())
                {
                    keys.push((*id, name.to_vec()));
                }
            }
        }
        keys
    }

    /// Returns the path of a key.
    pub(crate) fn path(&self, key: &Key) -> Vec<u8> {
        let folder = self
            .watches
            .get(&key.0)
            .map_or(&b"?"[..], |watch| &watch.path);
        if key.1.is_empty() {
            folder.to_vec()
        } else {
            [folder, b"/", &key.1[..]].concat()
        }
    }

    /// Returns the operations on a file that rules may match.
    pub(crate) fn sensitive(&self, key: &Key) -> Sensitive {
        let Some(watch) = self.watches.get(&key.0) else {
            return Sensitive::default();
        };
        if key.1.is_empty() {
            watch.itself
        } else {
            watch.below
        }
    }

    /// Handles a name that appeared in a watched folder.
    pub(crate) fn appeared(&mut self, id: i32, name: &[u8], is_folder: bool) {
        let Some(watch) = self.watches.get(&id) else {
            return;
        };
        let (awaited, below, depth) = (
            watch.awaited.get(name).cloned().unwrap_or_default(),
            watch.below,
            watch.depth,
        );
        let path = [&watch.path[..], b"/", name].concat();
        // It may be another file than before.
        self.end_pass();
        for root in self.prefixes() {
            for target in &awaited {
                self.arm_target(&root, target);
            }
            if is_folder && below.is_any() && depth > 0 {
                self.add_folder(Place::new(&root, &path), below, depth - 1);
            }
        }
        self.end_pass();
    }

    /// Handles a watch that the kernel has dropped: its file is gone.
    pub(crate) fn ended(&mut self, id: i32) {
        self.watches.remove(&id);
        for ids in self.by_path.values_mut() {
            ids.retain(|other| *other != id);
        }
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Opens the root of a process and returns it with its identity.
fn root_of(tid: Tid) -> Option<(OwnedFd, Identity)> {
    let proc = Proc::open().ok()?;
    let folder = proc.open_path(tid.0, "root").ok()?;
    let stat = rustix::fs::fstat(&folder).ok()?;
    let mounts = proc.namespace(tid.0, "ns/mnt").ok()?;
    Some((folder, (stat.st_dev, stat.st_ino, mounts)))
}

fn merge(known: &mut Sensitive, more: Sensitive) {
    known.reads |= more.reads;
    known.writes |= more.writes;
}

#[cfg(test)]
mod tests;
