//! The files and folders that rules name, by device and inode.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::Statx;
use rustix::io::Errno;
use sys::time::{Clock, now_ns};

use super::walk::{self, Caller, Manner};

/// A file that rules name and that was made or replaced is known by other names after this time.
const FRESH_NS: u64 = 50_000_000;
/// Roots whose files are known at once.
const ROOT_LIMIT: usize = 64;

/// Device and inode.
pub(super) type Identity = (u32, u32, u64);

pub(super) fn identity(stat: &Statx) -> Identity {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
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
    names: HashMap<Identity, Vec<usize>>,
}

impl Inodes {
    /// Other paths are named from now on.
    pub(super) fn follow(&self, paths: &[Vec<u8>]) {
        let mut known = self.known();
        let plain = |path: &Vec<u8>| path.strip_suffix(b"/").unwrap_or(path).to_vec();
        known.paths = paths.iter().map(plain).collect();
        known.paths.retain(|path| !path.is_empty());
        known.paths.sort_unstable();
        known.paths.dedup();
        known.roots.clear();
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
        let mut names = self.in_root(own, (0, 0), file);
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
        let now = now_ns(Clock::Monotonic);
        let is_fresh = |found: &Found| now.saturating_sub(found.at_ns) < FRESH_NS;
        if !known.roots.get(&root).is_some_and(is_fresh) {
            let names = look(caller, &known.paths);
            if known.roots.len() >= ROOT_LIMIT {
                known.roots.clear();
            }
            let at_ns = now_ns(Clock::Monotonic);
            known.roots.insert(root, Found { at_ns, names });
        }
        let numbers = known.roots[&root].names.get(&file);
        let names = numbers.into_iter().flatten();
        let mut names: Vec<_> = names.map(|number| known.paths[*number].clone()).collect();
        drop(known);
        // It may have been moved away since.
        let is_there = |name: &Vec<u8>| {
            let found = walk::find(caller, name, None, Manner::default());
            found.is_ok_and(|place| identity(&place.stat) == file)
        };
        names.retain(is_there);
        names
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of `paths` is there. What cannot be seen is not, and is looked for again.
fn look(caller: Caller<'_>, paths: &[Vec<u8>]) -> HashMap<Identity, Vec<usize>> {
    let mut names: HashMap<Identity, Vec<usize>> = HashMap::new();
    for (number, path) in paths.iter().enumerate() {
        let found = walk::find(caller, path, None, Manner::default());
        if let Ok(place) = found {
            names.entry(identity(&place.stat)).or_default().push(number);
        }
    }
    names
}

/// The path that the kernel has for an open file, and that this program sees.
pub(super) fn path_of(file: &OwnedFd, caller: Caller<'_>) -> Result<Vec<u8>, Errno> {
    let mut path = caller.census.own_descriptor(file)?;
    if let Some(whole) = path.strip_suffix(b" (deleted)") {
        path.truncate(whole.len());
    }
    Ok(path)
}
