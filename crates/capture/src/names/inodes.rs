//! The files and folders that rules name, by device and inode.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Statx;
use rustix::io::Errno;
use sys::time::{Clock, now_ns};

use super::walk::{self, Caller, Manner};

/// A file that rules name and that was made or replaced is known by other names after this time.
const FRESH_NS: u64 = 50_000_000;
/// A look that found no end is not repeated before this many times as much has passed.
const LOOK_SHARE: u64 = 20;
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
    paths: Arc<Vec<Vec<u8>>>,
    /// By mount and inode of a root.
    roots: HashMap<(u64, u64), Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Until when it holds.
    until_ns: u64,
    names: HashMap<Identity, Vec<usize>>,
    /// Of some paths it could not be found out whether they are there, and as what.
    has_unknown: bool,
}

impl Inodes {
    /// Other paths are named from now on.
    pub(super) fn follow(&self, paths: &[Vec<u8>]) {
        let mut known = self.known();
        let plain = |path: &Vec<u8>| path.strip_suffix(b"/").unwrap_or(path).to_vec();
        let mut paths: Vec<_> = paths.iter().map(plain).collect();
        paths.retain(|path| !path.is_empty());
        paths.sort_unstable();
        paths.dedup();
        known.paths = Arc::new(paths);
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
        let mut names = self.in_root(own, (0, 0), file)?;
        if !caller.shares_root {
            let root = caller.census.root(caller.tid).ok_or(Errno::SRCH)?;
            for name in self.in_root(caller, root, file)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn in_root(
        &self,
        caller: Caller<'_>,
        root: (u64, u64),
        file: Identity,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let mut known = self.known();
        let begun = now_ns(Clock::Monotonic);
        let holds = |found: &Found| begun < found.until_ns;
        if !known.roots.get(&root).is_some_and(holds) {
            let paths = Arc::clone(&known.paths);
            // Others are not to wait while the caller's file systems are asked.
            drop(known);
            let (names, has_unknown) = look(caller.anew(), &paths);
            let now = now_ns(Clock::Monotonic);
            // What stays unknown is not asked for again and again.
            let pause = match has_unknown {
                true => now.saturating_sub(begun) * LOOK_SHARE,
                false => 0,
            };
            let until_ns = now + FRESH_NS.max(pause);
            known = self.known();
            if !Arc::ptr_eq(&known.paths, &paths) {
                // Rules name others since.
                return Err(Errno::AGAIN);
            }
            if known.roots.len() >= ROOT_LIMIT {
                known.roots.clear();
            }
            let found = Found {
                until_ns,
                names,
                has_unknown,
            };
            known.roots.insert(root, found);
        }
        let found = &known.roots[&root];
        let has_unknown = found.has_unknown;
        let numbers = found.names.get(&file).into_iter().flatten();
        let names: Vec<_> = numbers.map(|number| known.paths[*number].clone()).collect();
        drop(known);
        let mut still = Vec::with_capacity(names.len());
        for name in names {
            // It may have been moved away since.
            match walk::find(caller, &name, None, Manner::default()) {
                Ok(place) if identity(&place.stat) == file => still.push(name),
                Ok(_) => {}
                Err(errno) if is_absence(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        match has_unknown && still.is_empty() {
            true => Err(Errno::TIMEDOUT),
            false => Ok(still),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of `paths` is there, and whether that could not be found out of some.
fn look(caller: Caller<'_>, paths: &[Vec<u8>]) -> (HashMap<Identity, Vec<usize>>, bool) {
    let mut names: HashMap<Identity, Vec<usize>> = HashMap::new();
    let mut has_unknown = false;
    for (number, path) in paths.iter().enumerate() {
        match walk::find(caller, path, None, Manner::default()) {
            Ok(place) => names.entry(identity(&place.stat)).or_default().push(number),
            Err(errno) => has_unknown |= !is_absence(errno),
        }
    }
    (names, has_unknown)
}

/// Whether the error says that there is no such file, or none for this program and so for nobody whom it
/// watches without privileges. Others say that it was not found out.
fn is_absence(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::ACCESS
    )
}

/// The path that the kernel has for an open file, and that this program sees.
pub(super) fn path_of(file: &OwnedFd, caller: Caller<'_>) -> Result<Vec<u8>, Errno> {
    let mut path = caller.census.own_descriptor(file)?;
    if let Some(whole) = path.strip_suffix(b" (deleted)") {
        path.truncate(whole.len());
    }
    Ok(path)
}
