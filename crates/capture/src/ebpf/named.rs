//! Files and directories that rules name, by inode: the table that the programs use (`struct inode_key`,
//! `struct inode_name` of bpf/record.h), and the agent's names for the files that they found.
//!
//! The kernel itself provides the identity of a file: the agent opens the file and a program reads its
//! identity through the descriptor. The numbers of stat(2) differ on overlays and btrfs.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::Syscall;
use event::{Interest, PathPattern, Tid};
use rustix::io::Errno;

use super::error::Error;
use super::hooks::Attached;
use super::maps::Maps;
use super::record::Root;
use super::tables::Tables;
use decoder::names::{
    Caller, FileIdentifier, Identity, LookupResult, Mounts, NamedFile, ResolvedFile, look, plain,
};
use decoder::process_inspector::ProcessInspector;
use process_info::procfs::ProcError;

/// `struct inode_key` without the bank.
pub(super) const KEY_SIZE: usize = 24;
/// `INODE_TEXT`.
const TEXT: usize = 64;
/// Maximum number of roots whose files are known at once, beside this program's own.
const ROOT_LIMIT: usize = 64;
/// Interval at which the files are looked up again.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of lookups that a workload can cause in that interval.
const LOOK_LIMIT: usize = 20;
/// After an incomplete lookup in another root, the next one waits this many times its duration.
const LOOK_SHARE: u32 = 20;

/// Time for which a name that a file had stays a name of it in records.
const FORMER_TIME: Duration = Duration::from_secs(10);

/// Calls that give a file another name.
pub(super) const RENAMES: [Syscall; 5] = [
    Syscall::RENAME,
    Syscall::RENAMEAT,
    Syscall::RENAMEAT2,
    Syscall::LINK,
    Syscall::LINKAT,
];

/// Returns the interest in such a call: one of the paths takes part.
pub(super) fn interest(paths: &[Vec<u8>]) -> Interest {
    let exact = plain(paths).into_iter().map(PathPattern::Exact);
    Interest {
        failed: false,
        paths: Some(exact.collect()),
        ..Interest::in_any(vec![Vec::new()])
    }
}

/// Identifies files through the kernel.
struct Shown<'a> {
    attached: &'a mut Attached,
    maps: &'a Maps,
    /// Error for a file that the kernel could not identify.
    trouble: Option<Error>,
}

impl<'a> Shown<'a> {
    fn new(attached: &'a mut Attached, maps: &'a Maps) -> Self {
        Self {
            attached,
            maps,
            trouble: None,
        }
    }

    fn ask(&mut self, place: &ResolvedFile) -> Result<Vec<Identity>, Error> {
        let count = self.attached.show(place.file.as_raw_fd())?;
        let keys = self.maps.shown()?;
        let keys = keys.as_chunks::<KEY_SIZE>().0.iter().take(count);
        Ok(keys.filter_map(|key| identity(key)).collect())
    }

    fn done(self) -> Result<(), Error> {
        self.trouble.map_or(Ok(()), Err)
    }
}

impl FileIdentifier for Shown<'_> {
    fn identities(&mut self, place: &ResolvedFile) -> Result<Vec<Identity>, Errno> {
        if place.is_own_proc {
            // The file belongs to this program only.
            return Ok(Vec::new());
        }
        self.ask(place).map_err(|error| {
            self.trouble = Some(error);
            Errno::IO
        })
    }
}

/// Returns the identity that a key stands for.
pub(super) fn identity(key: &[u8]) -> Option<Identity> {
    let (inode, rest) = key.split_first_chunk()?;
    let (device, rest) = rest.split_first_chunk()?;
    let (generation, _) = rest.split_first_chunk()?;
    Some(Identity {
        device: u32::from_ne_bytes(*device).into(),
        inode: u64::from_ne_bytes(*inode),
        generation: u32::from_ne_bytes(*generation).into(),
    })
}

fn key(identity: Identity, bank: u32) -> Vec<u8> {
    let mut key = identity.inode.to_ne_bytes().to_vec();
    // Both come from 32-bit fields of a key.
    for word in [identity.device, identity.generation] {
        key.extend(u32::try_from(word).unwrap_or(u32::MAX).to_ne_bytes());
    }
    key.extend(bank.to_ne_bytes());
    key.resize(KEY_SIZE, 0);
    key
}

/// Returns the bit of an inode in `inode_bits`.
pub(super) fn bit(key: &[u8]) -> usize {
    let Some(identity) = identity(key) else {
        return 0;
    };
    let hash = (identity.inode ^ identity.device << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(hash >> 48).unwrap_or(0)
}

/// Known files that rules name.
pub(super) struct NamedFiles {
    inspector: ProcessInspector,
    mounts: Mounts,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Paths that rules name, and the directories that contain them.
    paths: Vec<Vec<u8>>,
    /// By index of a path: true if rules name it.
    is_named: Vec<bool>,
    own: Vec<NamedFile>,
    roots: HashMap<Root, (Instant, Vec<NamedFile>)>,
    /// Oldest first.
    order: VecDeque<Root>,
    /// Indices of paths by the kernel's identity of the file.
    names: HashMap<Identity, BTreeSet<usize>>,
    /// Entries that left `names`: records that the programs wrote before are still to be evaluated.
    former: HashMap<Identity, Vec<FormerName>>,
    looked: Option<Instant>,
    /// Number of lookups since.
    looks: usize,
    /// Time until which only this program's own root is looked at.
    pause_until: Option<Instant>,
    /// True after the report that files in this program's own root could not be looked up.
    is_reported: bool,
    /// Error to report.
    trouble: Option<Error>,
}

/// Name that a file had at the last lookup but not at this one.
struct FormerName {
    left: Instant,
    path: Vec<u8>,
    is_named: bool,
}

impl FormerName {
    fn is_recent(&self) -> bool {
        self.left.elapsed() < FORMER_TIME
    }
}

impl NamedFiles {
    pub(super) fn new() -> Result<Self, ProcError> {
        Ok(Self {
            inspector: ProcessInspector::new()?,
            mounts: Mounts::default(),
            known: Mutex::default(),
        })
    }

    /// Replaces the named paths.
    pub(super) fn follow(
        &self,
        paths: &[Vec<u8>],
        attached: &mut Attached,
        maps: &Maps,
    ) -> Result<(), Error> {
        let mut known = self.known();
        let named = plain(paths);
        let parent = |path: &Vec<u8>| {
            let end = path.iter().rposition(|byte| *byte == b'/')?;
            path.get(..end)
                .filter(|path| !path.is_empty())
                .map(<[u8]>::to_vec)
        };
        let all: BTreeSet<_> = named
            .iter()
            .cloned()
            .chain(named.iter().filter_map(parent))
            .collect();
        let all: Vec<_> = all.into_iter().collect();
        let before: HashMap<&Vec<u8>, usize> = known.paths.iter().zip(0..).collect();
        let numbers: Vec<_> = all.iter().map(|path| before.get(path).copied()).collect();
        let moved = |files: &[NamedFile]| -> Vec<NamedFile> {
            let file = |number: &Option<usize>| files.get((*number)?).cloned();
            numbers
                .iter()
                .map(|number| file(number).unwrap_or_default())
                .collect()
        };
        let own = moved(&known.own);
        let roots = known.roots.iter();
        let roots = roots
            .map(|(root, (at, files))| (*root, (*at, moved(files))))
            .collect();
        known.forget_names();
        known.is_named = all
            .iter()
            .map(|path| named.binary_search(path).is_ok())
            .collect();
        known.own = own;
        known.roots = roots;
        known.paths = all;
        // Indices of paths have changed.
        let looked = known.look_own(&self.inspector, &self.mounts, attached, maps);
        known.index();
        looked.map(|_| ())
    }

    /// Looks the files up again if it is time, or if one of them has another name. Returns whether the result
    /// differs.
    pub(super) fn refresh(
        &self,
        is_at_once: bool,
        attached: &mut Attached,
        maps: &Maps,
    ) -> Result<bool, Error> {
        let mut known = self.known();
        let is_due = known
            .looked
            .is_none_or(|looked| looked.elapsed() >= INTERVAL);
        if !is_due && (!is_at_once || known.looks >= LOOK_LIMIT) {
            return Ok(false);
        }
        if is_due {
            known.looked = Some(Instant::now());
            known.looks = 0;
        }
        known.looks += 1;
        known.look_own(&self.inspector, &self.mounts, attached, maps)
    }

    /// Looks up the named files as a thread sees them, if it has another root that has not been looked at.
    /// Returns whether the result differs.
    pub(super) fn learn_root(
        &self,
        tid: Tid,
        root: Root,
        attached: &mut Attached,
        maps: &Maps,
    ) -> Result<bool, Error> {
        let mut known = self.known();
        let is_fresh = |(at, _): &(Instant, _)| at.elapsed() < INTERVAL;
        let begun = Instant::now();
        if known.looks >= LOOK_LIMIT
            || known.pause_until.is_some_and(|until| begun < until)
            || known.roots.get(&root).is_some_and(is_fresh)
        {
            return Ok(false);
        }
        known.looks += 1;
        let is_its = || self.inspector.root(tid) == Some((root.mount_id.into(), root.inode));
        if !is_its() {
            return Ok(false);
        }
        let caller = Caller::new(tid, &self.inspector, &self.mounts, false);
        let before = known.roots.get(&root).map_or(&[][..], |(_, files)| files);
        let mut shown = Shown::new(attached, maps);
        let LookupResult {
            files, has_unknown, ..
        } = look(caller, &known.paths, before, &mut shown);
        if has_unknown {
            known.pause_until = Some(Instant::now() + begun.elapsed() * LOOK_SHARE);
        }
        // What cannot be resolved below the root of a process that has ended is no file system's fault.
        if !is_its() {
            return Ok(false);
        }
        if has_unknown {
            known.trouble = Some(Error::UnknownFiles { pid: tid.0 });
        }
        let former = known.roots.insert(root, (Instant::now(), files));
        if former.is_none() {
            known.order.push_back(root);
        }
        if known.order.len() > ROOT_LIMIT
            && let Some(oldest) = known.order.pop_front()
        {
            known.roots.remove(&oldest);
        }
        known.index();
        shown.done().map(|()| true)
    }

    /// Takes the error of the lookups since the last call.
    pub(super) fn take_trouble(&self) -> Option<Error> {
        self.known().trouble.take()
    }

    /// Returns the names that rules have for a file at the relative path `way` below a file that they name, and those
    /// that they had when the record was written.
    pub(super) fn names(&self, identity: Identity, way: &[u8]) -> Vec<Vec<u8>> {
        self.known().names_of(identity, way)
    }

    /// Returns keys and values of the table, for the slots of a plan.
    pub(super) fn entries(&self, tables: &Tables, bank: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let known = self.known();
        let entries = known.names.iter().map(|(identity, numbers)| {
            let (mut own, mut below, mut texts) = (0, 0, Vec::new());
            for number in numbers {
                let path = &known.paths[*number];
                if known.is_named[*number] {
                    own |= tables.slots_of_path(path);
                }
                if known.is_folder(*number) {
                    below |= tables.slots_below(path);
                    texts.push(path);
                }
            }
            // For a file with several names, no text says that all of them were evaluated.
            let text = match &texts[..] {
                [text] if text.len() <= TEXT => text.as_slice(),
                _ => &[],
            };
            let mut value = [own, below].map(u64::to_ne_bytes).concat();
            let len = u32::try_from(text.len()).unwrap_or(0);
            value.extend([len, 0].into_iter().flat_map(u32::to_ne_bytes));
            value.extend(text);
            value.resize(24 + TEXT, 0);
            (key(*identity, bank), value)
        });
        entries.collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn look_own(
        &mut self,
        inspector: &ProcessInspector,
        mounts: &Mounts,
        attached: &mut Attached,
        maps: &Maps,
    ) -> Result<bool, Error> {
        let own = Tid(std::process::id().cast_signed());
        let caller = Caller::new(own, inspector, mounts, true);
        let mut shown = Shown::new(attached, maps);
        let LookupResult {
            files, has_unknown, ..
        } = look(caller, &self.paths, &self.own, &mut shown);
        if has_unknown && !self.is_reported {
            self.trouble = Some(Error::UnknownFiles { pid: own.0 });
        }
        self.is_reported = has_unknown;
        let is_other = files != self.own;
        self.own = files;
        if is_other {
            self.index();
        }
        shown.done().map(|()| is_other)
    }

    fn all(&self) -> impl Iterator<Item = &Vec<NamedFile>> {
        std::iter::once(&self.own).chain(self.roots.values().map(|(_, files)| files))
    }

    fn names_of(&self, identity: Identity, way: &[u8]) -> Vec<Vec<u8>> {
        let is_wanted = |is_named: bool| is_named || !way.is_empty();
        let numbers = self.names.get(&identity).into_iter().flatten();
        let now = numbers
            .filter(|number| is_wanted(self.is_named[**number]))
            .map(|number| &self.paths[*number]);
        let former = self.former.get(&identity).into_iter().flatten();
        let former = former.filter(|former| is_wanted(former.is_named) && former.is_recent());
        let all: BTreeSet<_> = now.chain(former.map(|former| &former.path)).collect();
        all.into_iter().map(|path| [path, way].concat()).collect()
    }

    /// Makes all names former ones, before indices of paths change.
    fn forget_names(&mut self) {
        for (identity, numbers) in std::mem::take(&mut self.names) {
            for number in numbers {
                self.leave(identity, number);
            }
        }
    }

    fn leave(&mut self, identity: Identity, number: usize) {
        self.former.entry(identity).or_default().push(FormerName {
            left: Instant::now(),
            path: self.paths[number].clone(),
            is_named: self.is_named[number],
        });
    }

    fn is_folder(&self, number: usize) -> bool {
        self.all()
            .any(|files| files.get(number).is_some_and(|file| file.is_folder))
    }

    /// Adds the directory of a missing file that rules name, even if rules do not name the directory: the
    /// file may be created by another name.
    fn index(&mut self) {
        let mut names: HashMap<Identity, BTreeSet<usize>> = HashMap::new();
        for files in self.all() {
            for (number, file) in files.iter().enumerate() {
                let path = &self.paths[number];
                let is_in = |other: &[u8]| {
                    let rest = other
                        .strip_prefix(&path[..])
                        .and_then(|rest| rest.strip_prefix(b"/"));
                    rest.is_some_and(|name| !name.contains(&b'/'))
                };
                let lacks = || {
                    let mut others = self.paths.iter().zip(files).zip(&self.is_named);
                    others.any(|((path, file), named)| *named && !file.is_there && is_in(path))
                };
                if self.is_named[number] || file.is_folder && lacks() {
                    for identity in &file.identities {
                        names.entry(*identity).or_default().insert(number);
                    }
                }
            }
        }
        self.former.retain(|_, names| {
            names.retain(FormerName::is_recent);
            !names.is_empty()
        });
        for (identity, numbers) in std::mem::replace(&mut self.names, names) {
            for number in numbers {
                let still = self.names.get(&identity);
                if !still.is_some_and(|numbers| numbers.contains(&number)) {
                    self.leave(identity, number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
