//! Device and inode numbers of the files and folders that rules name.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use sys::time::{Clock, now_ns};

use super::layers::Layers;
use super::walk::{self, Caller, LookupFlags, ResolvedFile};

/// Time, in nanoseconds, after which a new or replaced file that rules name is recognised by its other names.
const FRESH_NS: u64 = 50_000_000;
/// An incomplete lookup is repeated after this many times the time that it has waited for file systems.
const LOOK_SHARE: u32 = 20;
/// Maximum number of roots whose files are known at once.
const ROOT_LIMIT: usize = 64;

/// Identity that distinguishes a file from all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number, major in the upper half.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Distinguishes the file from earlier ones with its inode number; 0 if nothing does.
    pub generation: u64,
}

impl Identity {
    /// Reads the identity from statx(2). The generation is the birth time.
    pub fn of(stat: &Statx) -> Self {
        let seconds = stat.stx_btime.tv_sec.cast_unsigned();
        let born = seconds.wrapping_mul(1_000_000_000) + u64::from(stat.stx_btime.tv_nsec);
        let is_known = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
        Self {
            device: u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor),
            inode: stat.stx_ino,
            generation: if is_known { born } else { 0 },
        }
    }
}

/// Identifies files for an engine. A file in several layers has several identities.
pub trait FileIdentifier {
    /// Returns the identities of a file.
    fn identities(&mut self, place: &ResolvedFile) -> Result<Vec<Identity>, Errno>;
}

/// Identifier by statx(2).
struct StatIdentifier;

impl FileIdentifier for StatIdentifier {
    fn identities(&mut self, place: &ResolvedFile) -> Result<Vec<Identity>, Errno> {
        Ok(vec![Identity::of(&place.stat)])
    }
}

/// File that a path in rules resolves to, or last resolved to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFile {
    /// Identities of the file.
    pub identities: Vec<Identity>,
    /// True if the path resolves to a folder without following a link.
    pub is_folder: bool,
    /// True if the file existed at the last lookup.
    pub is_there: bool,
    /// Identity from statx(2) at the last lookup.
    stat: Identity,
}

/// Strips trailing slashes and drops duplicates. Of `/etc/.`, with which the names of hidden files begin, the folder is left;
/// of `/.` nothing, for all files are below the root.
pub fn plain(paths: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let ends: [&[u8]; 3] = [b"/", b"/.", b"/.."];
    let plain = |path: &Vec<u8>| {
        let stripped = ends.iter().find_map(|end| path.strip_suffix(*end));
        stripped.unwrap_or(path).to_vec()
    };
    let mut paths: Vec<_> = paths.iter().map(plain).collect();
    paths.retain(|path| !path.is_empty());
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Files that `paths` resolve to.
#[derive(Debug, Default)]
pub struct LookupResult {
    /// The files, by index of the path.
    pub files: Vec<NamedFile>,
    /// True if for some paths the lookup failed, so their files are unknown.
    pub has_unknown: bool,
    /// True if the caller has ended meanwhile. Another caller may find what is unknown.
    pub has_ended: bool,
}

/// Resolves `paths` now. A file that was moved away is remembered until another file has its path, or if
/// nothing could distinguish it from a later file with its number.
pub fn look(
    caller: Caller<'_>,
    paths: &[Vec<u8>],
    before: &[NamedFile],
    identify: &mut dyn FileIdentifier,
) -> LookupResult {
    let (mut has_unknown, mut has_ended) = (false, false);
    // A failed lookup keeps the earlier result; nothing is known about a path that was not looked up before.
    let known = |number| before.get(number).cloned().unwrap_or_default();
    let mut files: Vec<_> = (0..paths.len()).map(known).collect();
    let absolute: Vec<_> = paths.iter().map(Vec::as_slice).collect();
    let _late = walk::find_each(caller, &absolute, &mut |number, found| {
        let known = std::mem::take(&mut files[number]);
        let found = match found {
            // `/proc/self` is that of the caller, which has ended. Nobody opens its files any more, so those of this
            // program stand in for them.
            Err(Errno::SRCH) if caller.shares_root => {
                let reader = Caller {
                    tid: caller.reader(),
                    ..caller
                };
                walk::find(reader, absolute[number], None, LookupFlags::default())
            }
            found => found,
        };
        files[number] = match found {
            Ok(place) => named(&place, known, identify),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let mut identities = known.identities;
                identities.retain(|one| one.generation != 0);
                NamedFile {
                    identities,
                    is_there: false,
                    ..known
                }
            }
            Err(errno) => {
                has_unknown |= !is_absence(errno);
                has_ended |= errno == Errno::SRCH;
                files[number] = known;
                // A file system that does not answer is not asked again.
                return match errno {
                    Errno::TIMEDOUT => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                };
            }
        };
        ControlFlow::Continue(())
    });
    LookupResult {
        files,
        has_unknown,
        has_ended,
    }
}

fn named(place: &ResolvedFile, known: NamedFile, identify: &mut dyn FileIdentifier) -> NamedFile {
    let stat = Identity::of(&place.stat);
    if known.is_there && known.stat == stat && stat.generation != 0 {
        return known;
    }
    let mode = u32::from(place.stat.stx_mode);
    NamedFile {
        // A file without an identity has no other names; `identify` keeps the reason, which the engine reports.
        identities: identify.identities(place).unwrap_or_default(),
        is_folder: place.is_plain && FileType::from_raw_mode(mode) == FileType::Directory,
        is_there: true,
        stat,
    }
}

/// Names that rules have for files, in each root.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    paths: Arc<Vec<Vec<u8>>>,
    /// Results by mount and inode of a root.
    roots: HashMap<(u64, u64), Found>,
    /// Number of mount changes.
    changes: u64,
}

#[derive(Debug, Default)]
struct Found {
    /// Time until which the result is valid, in nanoseconds.
    until_ns: u64,
    files: Vec<NamedFile>,
    layers: Layers,
    names: HashMap<Identity, Vec<usize>>,
    /// Paths by identity of the file that overlays show.
    shown: HashMap<Identity, Vec<usize>>,
    /// True if the files of some paths or overlays are unknown.
    has_unknown: bool,
    /// True if the caller of the lookup has ended meanwhile.
    has_ended: bool,
}

/// Key of this program's own root.
const OWN_ROOT: (u64, u64) = (0, 0);
/// Maximum number of lookups in this program's own root when rules are loaded, until all succeed: the
/// workload does not control a slow disk.
const FIRST_LOOKS: u32 = 20;

impl Inodes {
    /// Replaces the named paths and resolves them in this program's own root at once.
    pub(super) fn follow(&self, paths: &[Vec<u8>], own: Caller<'_>) {
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
            found.until_ns = 0;
        }
        known.paths = Arc::new(paths);
        drop(known);
        for _ in 0..FIRST_LOOKS {
            let Ok(mut known) = self.looked(own, OWN_ROOT) else {
                return;
            };
            match known.roots.get_mut(&OWN_ROOT) {
                Some(found) if found.has_unknown => found.until_ns = 0,
                _ => return,
            }
        }
    }

    /// Returns the names that rules have for a file, seen from this program's root and from the caller's.
    pub(super) fn names_of(
        &self,
        caller: Caller<'_>,
        file: Identity,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let own = Caller {
            shares_root: true,
            ..caller
        };
        let mut names = self.in_root(own, OWN_ROOT, file)?;
        if !caller.shares_root {
            let root = caller.inspector.root(caller.tid).ok_or(Errno::SRCH)?;
            for name in self.in_root(caller, root, file)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Returns whether rules name a path or a prefix of it.
    pub(super) fn is_named(&self, path: &[u8]) -> bool {
        let known = self.known();
        let is_one = |start: &[u8]| {
            let found = known.paths.binary_search_by(|path| path[..].cmp(start));
            found.is_ok()
        };
        (1..=path.len()).any(|end| is_one(&path[..end]))
    }

    fn in_root(
        &self,
        caller: Caller<'_>,
        root: (u64, u64),
        file: Identity,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let known = self.looked(caller, root)?;
        let found = &known.roots[&root];
        let has_unknown = found.has_unknown;
        let paths = |names: &HashMap<Identity, Vec<usize>>| -> Vec<_> {
            let numbers = names.get(&file).into_iter().flatten();
            numbers.map(|number| known.paths[*number].clone()).collect()
        };
        let (names, shown) = (paths(&found.names), paths(&found.shown));
        drop(known);
        let mut still = Vec::with_capacity(names.len() + shown.len());
        for name in names {
            match walk::find(caller, &name, None, LookupFlags::default()) {
                Ok(place) if Identity::of(&place.stat) == file => still.push(name),
                // The path has another file by now.
                Ok(_) => {}
                // A file that was moved away keeps the name.
                Err(Errno::NOENT | Errno::NOTDIR) if file.generation != 0 => still.push(name),
                Err(errno) if is_absence(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        still.extend(shown);
        match has_unknown && still.is_empty() {
            true => Err(Errno::TIMEDOUT),
            false => Ok(still),
        }
    }

    /// Returns the files in a root, looked up unless a recent result is valid.
    fn looked(&self, caller: Caller<'_>, root: (u64, u64)) -> Result<MutexGuard<'_, Known>, Errno> {
        let mut known = self.known();
        let former = known.roots.get_mut(&root);
        let is_valid = |found: &&mut Found| now_ns(Clock::Monotonic) < found.until_ns;
        if former.as_ref().is_some_and(is_valid) {
            return Ok(known);
        }
        let (before, layers) = former
            .map(|found| (found.files.clone(), std::mem::take(&mut found.layers)))
            .unwrap_or_default();
        let (paths, changes) = (Arc::clone(&known.paths), known.changes);
        // Release the lock: other threads must not wait while the caller's file systems are asked.
        drop(known);
        let begun = walk::waited();
        let mut found = Found::look(caller.anew(paths.len()), &paths, &before, layers);
        let now = now_ns(Clock::Monotonic);
        // Unknown files are not looked up again and again.
        let pause = match found.has_unknown {
            true => (walk::waited() - begun) * LOOK_SHARE,
            false => Duration::ZERO,
        };
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let mut known = self.known();
        if !Arc::ptr_eq(&known.paths, &paths) {
            // Rules name other paths since.
            return Err(Errno::AGAIN);
        }
        // What an ended caller could not find, the next one looks up.
        if known.changes == changes && !found.has_ended {
            found.until_ns = now.saturating_add(FRESH_NS.max(pause));
        }
        if known.roots.len() >= ROOT_LIMIT && !known.roots.contains_key(&root) {
            // Files that were moved away are forgotten there, but not those of this program's own root.
            known.roots.retain(|root, _| *root == OWN_ROOT);
        }
        known.roots.insert(root, found);
        Ok(known)
    }

    /// Notes that mounts have changed: files are looked up again.
    pub(super) fn forget_looks(&self) {
        let mut known = self.known();
        known.changes += 1;
        for found in known.roots.values_mut() {
            found.until_ns = 0;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    fn look(
        caller: Caller<'_>,
        paths: &[Vec<u8>],
        before: &[NamedFile],
        mut layers: Layers,
    ) -> Self {
        let result = look(caller, paths, before, &mut StatIdentifier);
        let LookupResult {
            files,
            has_unknown,
            has_ended,
        } = result;
        let mut names: HashMap<Identity, Vec<usize>> = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            for identity in &file.identities {
                names.entry(*identity).or_default().push(number);
            }
        }
        let mut shown: HashMap<Identity, Vec<usize>> = HashMap::new();
        let overlays = layers.files(caller, paths);
        for (identity, number) in overlays.files {
            shown.entry(identity).or_default().push(number);
        }
        Self {
            until_ns: 0,
            files,
            layers,
            names,
            shown,
            has_unknown: has_unknown || overlays.has_unknown,
            has_ended,
        }
    }
}

/// Returns whether the error proves that the file does not exist, or that this program may not reach it, and
/// so no process that it watches without privileges may. Other errors leave the answer unknown.
pub(super) fn is_absence(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::ACCESS
    )
}

/// Suffix that the kernel adds to the path of a file that was deleted. A file's own name may end in it.
const DELETED: &[u8] = b" (deleted)";

/// Returns the path that the kernel has for an open file, as this program sees it, without the suffix for deleted ones.
pub(super) fn path_of(file: &OwnedFd, caller: Caller<'_>) -> Result<Vec<u8>, Errno> {
    let mut path = caller.inspector.own_descriptor(file)?;
    if path.ends_with(DELETED) && !is_named(file, &path, caller)? {
        path.truncate(path.len() - DELETED.len());
    }
    Ok(path)
}

/// Returns whether a file has this path in this program's own root. A deleted file may have other names left.
fn is_named(file: &OwnedFd, path: &[u8], caller: Caller<'_>) -> Result<bool, Errno> {
    let stat = walk::stat(file)?;
    if stat.stx_nlink == 0 {
        return Ok(false);
    }
    let own = Caller {
        shares_root: true,
        ..caller
    };
    let itself = LookupFlags {
        stays_at_link: true,
        ..LookupFlags::default()
    };
    match walk::find(own, path, None, itself) {
        Ok(found) => Ok(Identity::of(&found.stat) == Identity::of(&stat)),
        Err(errno) if is_absence(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests;
