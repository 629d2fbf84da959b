//! The inotify watches on what rules call sensitive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use event::Tid;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::ledger::Key;
use process_info::procfs::Proc;

/// Watches at most; the kernel's limit may be lower (`fs.inotify.max_user_watches`).
const WATCH_LIMIT: usize = 2048;
/// Roots beside the agent's own.
const ROOT_LIMIT: usize = 64;
/// Folders below a folder that are watched too: so many levels.
const DEPTH: usize = 2;

/// What is done to a file that rules may be about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sensitive {
    /// Opening it at all.
    pub(crate) reads: bool,
    /// Opening it for writing.
    pub(crate) writes: bool,
}

impl Sensitive {
    pub(crate) fn is_any(self) -> bool {
        self.reads || self.writes
    }

    /// Closing keeps the kernel from telling of two opens at once.
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
    /// Absolute, as rules have it, without a slash at the end.
    pub(crate) path: Vec<u8>,
    /// If it is a file.
    pub(crate) itself: Sensitive,
    /// If it is a folder: files in it.
    pub(crate) below: Sensitive,
}

/// What an event of a watch is about.
#[derive(Debug, Default)]
struct Watch {
    itself: Sensitive,
    below: Sensitive,
    /// Where the watched file or folder is, as rules name it.
    path: Vec<u8>,
    /// Names in this folder that have to be watched anew when they appear.
    awaited: HashMap<Vec<u8>, Vec<Target>>,
    /// Folders that appear in it are watched to this depth.
    depth: usize,
    /// Until then the engine may have looked at an open before anybody asked for this.
    new_until_ns: u64,
}

/// A root that the workload has.
#[derive(Debug)]
enum Root {
    /// The agent's own.
    Own,
    /// Another one, which this keeps.
    Other { folder: OwnedFd, identity: Identity },
}

/// Device and inode, and the namespace in which mounts lie over it.
type Identity = (u64, u64, u64);

impl Root {
    /// What comes before an absolute path.
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
    /// By the path of a file or folder.
    by_path: HashMap<Vec<u8>, Vec<i32>>,
    /// The workload's roots.
    roots: Vec<Root>,
    targets: Vec<Target>,
    /// For watches that are made now; see [`Watch`].
    new_until_ns: u64,
    /// Watches that could not be had.
    pub(crate) refused: u64,
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
            refused: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether nothing is watched, because no rule wants to know.
    pub(crate) fn is_idle(&self) -> bool {
        self.targets.is_empty()
    }

    /// Watches all targets below the agent's own root, if they are not watched yet.
    pub(crate) fn arm(&mut self) {
        if !self.roots.iter().any(|root| matches!(root, Root::Own)) {
            self.arm_root(Root::Own);
        }
    }

    /// Watches all targets below the root of a process, too. One that is gone has none.
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
        for target in self.targets.clone() {
            self.arm_target(&prefix, &target);
        }
    }

    /// Watches what other rules want, too. What the engine looked at before this is not held against
    /// anybody: opens that new watches tell of count from `new_until_ns` on.
    pub(crate) fn extend(&mut self, targets: Vec<Target>, new_until_ns: u64) {
        self.new_until_ns = new_until_ns;
        for target in targets {
            if self.targets.contains(&target) {
                continue;
            }
            for root in self.prefixes() {
                self.arm_target(&root, &target);
            }
            self.targets.push(target);
        }
        self.new_until_ns = 0;
    }

    /// Whether what a watch tells may be older than the watch.
    pub(crate) fn is_new(&self, key: &Key, now_ns: u64) -> bool {
        let watch = self.watches.get(&key.0);
        watch.is_some_and(|watch| now_ns < watch.new_until_ns)
    }

    fn prefixes(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(Root::prefix).collect()
    }

    fn arm_target(&mut self, root: &[u8], target: &Target) {
        let place = [root, &target.path[..]].concat();
        let is_folder = Path::new(OsStr::from_bytes(&place)).is_dir();
        if is_folder && target.below.is_any() {
            self.add_folder(root, &target.path, target.below, DEPTH);
        }
        if !is_folder && target.itself.is_any() {
            self.add(root, &target.path, target.itself.flags(), |watch| {
                merge(&mut watch.itself, target.itself);
            });
        }
        self.await_name(root, target);
    }

    /// A file is often replaced by renaming another: its folder tells.
    fn await_name(&mut self, root: &[u8], target: &Target) {
        let Some(end) = target.path.iter().rposition(|byte| *byte == b'/') else {
            return;
        };
        let (folder, name) = (&target.path[..end], &target.path[end + 1..]);
        let folder = if folder.is_empty() { b"/" } else { folder };
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        self.add(root, folder, flags, |watch| {
            let awaited = watch.awaited.entry(name.to_vec()).or_default();
            if !awaited.contains(target) {
                awaited.push(target.clone());
            }
        });
    }

    fn add_folder(&mut self, root: &[u8], path: &[u8], below: Sensitive, depth: usize) {
        let flags = below.flags() | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let added = self.add(root, path, flags, |watch| {
            merge(&mut watch.below, below);
            watch.depth = watch.depth.max(depth);
        });
        if !added || depth == 0 {
            return;
        }
        let place = [root, path].concat();
        let Ok(entries) = std::fs::read_dir(OsStr::from_bytes(&place)) else {
            return;
        };
        for entry in entries.flatten() {
            // Not through links, which may lead out of it or round in circles.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let folder = [path, b"/", entry.file_name().as_bytes()].concat();
                self.add_folder(root, &folder, below, depth - 1);
            }
        }
    }

    fn add(
        &mut self,
        root: &[u8],
        path: &[u8],
        flags: WatchFlags,
        set: impl FnOnce(&mut Watch),
    ) -> bool {
        if self.watches.len() >= WATCH_LIMIT {
            self.refused += 1;
            return false;
        }
        let place = [root, path].concat();
        let flags = flags | WatchFlags::MASK_ADD;
        let id = match inotify::add_watch(&self.inotify, OsStr::from_bytes(&place), flags) {
            Ok(id) => id,
            // Not there; its folder tells when it is, if that is there.
            Err(Errno::NOENT | Errno::NOTDIR) => return false,
            Err(_) => {
                self.refused += 1;
                return false;
            }
        };
        let watch = self.watches.entry(id).or_default();
        if watch.path.is_empty() {
            watch.path = path.to_vec();
        }
        watch.new_until_ns = watch.new_until_ns.max(self.new_until_ns);
        set(watch);
        self.name(path, id);
        // Callers may come by the place that a link leads to.
        if let Ok(real) = std::fs::canonicalize(OsStr::from_bytes(&place))
            && root.is_empty()
        {
            self.name(real.as_os_str().as_bytes(), id);
        }
        true
    }

    fn name(&mut self, path: &[u8], id: i32) {
        let ids = self.by_path.entry(path.to_vec()).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }

    /// What watches tell about this path.
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

    /// The path that a key stands for.
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

    /// What rules may want to know of a file.
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

    /// A name appeared in a watched folder.
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
        for root in self.prefixes() {
            for target in &awaited {
                self.arm_target(&root, target);
            }
            if is_folder && below.is_any() && depth > 0 {
                self.add_folder(&root, &path, below, depth - 1);
            }
        }
    }

    /// The kernel has dropped a watch: its file is gone.
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

/// The root of a process, held, and what tells it from others.
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
