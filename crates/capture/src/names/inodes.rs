//! The files and folders that rules name, by device and inode.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event::Tid;
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use sys::time::{Clock, now_ns};

use super::layers::Layers;
use super::walk::{self, Caller, Manner, Place};
use crate::live::census::Census;

/// A file that rules name and that was made or replaced is known by other names after this time.
const FRESH_NS: u64 = 50_000_000;
/// Roots whose files are known at once.
const ROOT_LIMIT: usize = 64;

/// What tells a file from all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Tells the file from those that had its number before; 0: nothing does.
    pub(crate) generation: u64,
}

impl Identity {
    /// By statx(2). The generation is the time of birth.
    pub(crate) fn of(stat: &Statx) -> Self {
        let seconds = stat.stx_btime.tv_sec.cast_unsigned();
        let born = seconds.wrapping_mul(1_000_000_000) + u64::from(stat.stx_btime.tv_nsec);
        let is_told = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
        Self {
            device: u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor),
            inode: stat.stx_ino,
            generation: if is_told { born } else { 0 },
        }
    }
}

/// How an engine tells files from each other. A file that lies in several layers has several identities.
pub(crate) trait Identify {
    fn identities(&mut self, place: &Place) -> Result<Vec<Identity>, Errno>;
}

/// By statx(2).
struct ByStat;

impl Identify for ByStat {
    fn identities(&mut self, place: &Place) -> Result<Vec<Identity>, Errno> {
        Ok(vec![Identity::of(&place.stat)])
    }
}

/// What a path that rules name leads to, or did when it was last there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) identities: Vec<Identity>,
    /// It is a folder, and no link leads to it.
    pub(crate) is_folder: bool,
    /// It was there when it was last looked for.
    pub(crate) is_there: bool,
    /// What statx(2) said then.
    stat: Identity,
}

/// Paths without a slash at the end, each once.
pub(crate) fn plain(paths: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let plain = |path: &Vec<u8>| path.strip_suffix(b"/").unwrap_or(path).to_vec();
    let mut paths: Vec<_> = paths.iter().map(plain).collect();
    paths.retain(|path| !path.is_empty());
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// What `paths` lead to now. A file that was moved away is remembered until another one has its name, or nothing
/// could tell it from a later file of its number.
pub(crate) fn look(
    caller: Caller<'_>,
    paths: &[Vec<u8>],
    before: &[Named],
    identify: &mut dyn Identify,
) -> Vec<Named> {
    let mut is_late = false;
    let look_one = |(number, path): (usize, &Vec<u8>)| {
        let known = || before.get(number).cloned().unwrap_or_default();
        if is_late {
            return known();
        }
        match walk::find(caller, path, None, Manner::default()) {
            Ok(place) => named(&place, known(), identify),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let known = known();
                let mut identities = known.identities;
                identities.retain(|one| one.generation != 0);
                Named {
                    identities,
                    is_there: false,
                    ..known
                }
            }
            // What cannot be seen is what it was. Whoever does not answer is not asked again.
            Err(errno) => {
                is_late |= errno == Errno::TIMEDOUT;
                known()
            }
        }
    };
    paths.iter().enumerate().map(look_one).collect()
}

fn named(place: &Place, known: Named, identify: &mut dyn Identify) -> Named {
    let stat = Identity::of(&place.stat);
    if known.is_there && known.stat == stat && stat.generation != 0 {
        return known;
    }
    let mode = u32::from(place.stat.stx_mode);
    Named {
        // What cannot be told apart is not known by other names.
        identities: identify.identities(place).unwrap_or_default(),
        is_folder: place.is_plain && FileType::from_raw_mode(mode) == FileType::Directory,
        is_there: true,
        stat,
    }
}

/// The names that rules have for files, in each root.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    paths: Vec<Vec<u8>>,
    /// By mount and inode of a root.
    roots: HashMap<(u64, u64), Found>,
}

#[derive(Debug, Default)]
struct Found {
    at_ns: u64,
    files: Vec<Named>,
    layers: Layers,
    names: HashMap<Identity, Vec<usize>>,
    /// Those that overlays show.
    shown: HashMap<Identity, Vec<usize>>,
}

/// This program's own root.
const OWN_ROOT: (u64, u64) = (0, 0);

impl Inodes {
    /// Other paths are named from now on. What is there is known at once.
    pub(super) fn follow(&self, paths: &[Vec<u8>], census: &Census) {
        let mut known = self.known();
        let paths = plain(paths);
        let number = |path| known.paths.binary_search(path).ok();
        let numbers: Vec<_> = paths.iter().map(number).collect();
        for found in known.roots.values_mut() {
            let file = |number: &Option<usize>| found.files.get((*number)?).cloned();
            found.files = numbers
                .iter()
                .map(|one| file(one).unwrap_or_default())
                .collect();
            found.at_ns = 0;
        }
        known.paths = paths;
        let caller = Caller {
            tid: Tid(std::process::id().cast_signed()),
            census,
            shares_root: true,
        };
        known.look(caller, OWN_ROOT);
    }

    /// The names that rules have for a file, as seen from this program's root and from the caller's.
    pub(super) fn names_of(
        &self,
        caller: Caller<'_>,
        file: Identity,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let own = Caller {
            shares_root: true,
            ..caller
        };
        let mut names = self.in_root(own, OWN_ROOT, file);
        if !caller.shares_root {
            let root = caller.census.root(caller.tid).ok_or(Errno::SRCH)?;
            for name in self.in_root(caller, root, file) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn in_root(&self, caller: Caller<'_>, root: (u64, u64), file: Identity) -> Vec<Vec<u8>> {
        let mut known = self.known();
        known.look(caller, root);
        let found = &known.roots[&root];
        let paths = |names: &HashMap<Identity, Vec<usize>>| -> Vec<_> {
            let numbers = names.get(&file).into_iter().flatten();
            numbers.map(|number| known.paths[*number].clone()).collect()
        };
        let (mut names, shown) = (paths(&found.names), paths(&found.shown));
        drop(known);
        // It may have another file by now. One that was moved away keeps the name.
        let is_its = |name: &Vec<u8>| match walk::find(caller, name, None, Manner::default()) {
            Ok(place) => Identity::of(&place.stat) == file,
            Err(Errno::NOENT | Errno::NOTDIR) => file.generation != 0,
            Err(_) => false,
        };
        names.retain(is_its);
        names.extend(shown);
        names
    }

    /// Mounts are others than before: what is there is looked for anew.
    pub(super) fn forget_looks(&self) {
        for found in self.known().roots.values_mut() {
            found.at_ns = 0;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Looks what is there in a root, unless that was done a moment ago.
    fn look(&mut self, caller: Caller<'_>, root: (u64, u64)) {
        let now = now_ns(Clock::Monotonic);
        let mut found = self.roots.remove(&root).unwrap_or_default();
        if now.saturating_sub(found.at_ns) < FRESH_NS && found.at_ns != 0 {
            self.roots.insert(root, found);
            return;
        }
        found.files = look(caller, &self.paths, &found.files, &mut ByStat);
        found.names.clear();
        for (number, file) in found.files.iter().enumerate() {
            for identity in &file.identities {
                found.names.entry(*identity).or_default().push(number);
            }
        }
        found.shown.clear();
        for (identity, number) in found.layers.files(caller, &self.paths) {
            found.shown.entry(identity).or_default().push(number);
        }
        if self.roots.len() >= ROOT_LIMIT {
            // What was moved away there is known no more. That of this program's own root is.
            self.roots.retain(|root, _| *root == OWN_ROOT);
        }
        found.at_ns = now_ns(Clock::Monotonic);
        self.roots.insert(root, found);
    }
}

/// The path that the kernel has for an open file, and that this program sees.
pub(super) fn path_of(file: &OwnedFd, caller: Caller<'_>) -> Result<Vec<u8>, Errno> {
    let mut path = caller.census.own_descriptor(file)?;
    if let Some(whole) = path.strip_suffix(b" (deleted)") {
        path.truncate(whole.len());
    }
    Ok(path)
}
