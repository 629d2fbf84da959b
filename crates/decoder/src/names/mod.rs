//! Names of a file that is about to be opened, whatever name the caller uses.
//!
//! A caller reaches a file by links, by `..`, by descriptors and by a root of its own; rules know it by one
//! name. So each open that rules ask about is resolved before it is made: the kernel resolves the path, and
//! device and inode show whether the file is one that rules name, under any other name.

mod inodes;
mod layers;
mod links;
mod mounts;
mod steps;
mod walk;

use std::sync::atomic::{AtomicBool, Ordering};

use abi::Syscall;
use bumpalo::Bump;
use event::{DescriptorSource, Name, Param, Tid};
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use self::inodes::Inodes;
pub use self::inodes::{FileIdentifier, Identity, LookupResult, NamedFile, look, plain};
pub use self::mounts::Mounts;
pub(crate) use self::mounts::UNIQUE_ID;
use self::walk::LookupFlags;
pub use self::walk::{Caller, ResolvedFile, file_type};
use crate::call::Call;
use crate::decode::Decoded;
use crate::process_inspector::ProcessInspector;

/// Names of the file that an open is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedName<'a> {
    /// No file, or the call opens none by a name.
    None,
    /// Absolute names: first those that rules use, last the path at which the file was found.
    Names(&'a [&'a [u8]]),
    /// The lookup failed.
    Unknown,
}

/// Resolver from files to the names that rules use for them.
#[derive(Debug, Default)]
pub struct Names {
    inodes: Inodes,
    mounts: Mounts,
    /// True if a watched process may have another root than this program, or other mounts.
    has_roots: AtomicBool,
}

impl Names {
    /// Replaces the paths that rules name.
    pub fn follow(&self, paths: &[Vec<u8>], inspector: &ProcessInspector) {
        let own = Tid(std::process::id().cast_signed());
        let own = Caller::new(own, inspector, &self.mounts, true);
        self.inodes.follow(paths, own);
    }

    /// Notes that callers may have roots of their own.
    pub fn expect_roots(&self) {
        self.has_roots.store(true, Ordering::Release);
    }

    /// Notes a call that gives its caller another root, or other mounts.
    pub fn note(&self, call: &Call) {
        if changes_root(call.syscall) {
            self.expect_roots();
            self.inodes.forget_looks();
            self.mounts.forget_views();
        }
    }

    fn caller<'c>(&'c self, tid: Tid, inspector: &'c ProcessInspector) -> Caller<'c> {
        let shares_root = !self.has_roots.load(Ordering::Acquire);
        Caller::new(tid, inspector, &self.mounts, shares_root)
    }

    /// Resolves the file that a call is about to open.
    pub fn find<'a>(
        &self,
        call: &Call,
        decoded: &Decoded<'a>,
        inspector: &ProcessInspector,
        arena: &'a Bump,
    ) -> ResolvedName<'a> {
        let Some(Name::Passed { raw, base }) = decoded.descriptor.map(|known| known.name) else {
            return ResolvedName::None;
        };
        let caller = self.caller(call.tid, inspector);
        let manner = manner(call, decoded);
        match walk::find_again(caller, raw, base, manner) {
            Ok(place) => self.names(caller, raw, &place, arena),
            Err(Errno::NOENT) if manner.creates => self.new_file(caller, raw, base, manner, arena),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::BADF) => {
                ResolvedName::None
            }
            Err(_) => ResolvedName::Unknown,
        }
    }

    /// Resolves the file behind an open descriptor of a thread.
    pub fn find_opened<'a>(
        &self,
        tid: Tid,
        number: i32,
        inspector: &ProcessInspector,
        arena: &'a Bump,
    ) -> ResolvedName<'a> {
        let caller = self.caller(tid, inspector);
        let place = inspector.open_descriptor(tid, number).and_then(|file| {
            let stat = walk::stat(&file)?;
            Ok(ResolvedFile {
                file,
                stat,
                is_direct: false,
                is_plain: false,
                is_own_proc: false,
            })
        });
        place.map_or(ResolvedName::Unknown, |place| {
            self.names(caller, b"", &place, arena)
        })
    }

    /// Returns all names of an existing file.
    fn names<'a>(
        &self,
        caller: Caller<'_>,
        raw: &'a [u8],
        place: &ResolvedFile,
        arena: &'a Bump,
    ) -> ResolvedName<'a> {
        let path = match place.is_direct && event::field::is_plain(raw) {
            true => raw,
            false => match path(place, caller) {
                Ok(path) => &*arena.alloc_slice_copy(&path),
                Err(_) => return ResolvedName::Unknown,
            },
        };
        if !path.starts_with(b"/") {
            // A pipe, a socket or the like, behind a descriptor.
            return ResolvedName::None;
        }
        let Ok(mut known) = self.inodes.names_of(caller, Identity::of(&place.stat)) else {
            return ResolvedName::Unknown;
        };
        let Ok(others) = self.names_elsewhere(caller, place, path) else {
            return ResolvedName::Unknown;
        };
        for name in others {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        let others = known.iter().filter(|name| *name != path);
        let mut names: Vec<&'a [u8]> = Vec::with_capacity(2);
        names.extend(others.map(|name| &*arena.alloc_slice_copy(name)));
        match known.len() == names.len() {
            true => names.push(path),
            // The file's own name is one that rules have.
            false => names.insert(0, path),
        }
        ResolvedName::Names(arena.alloc_slice_copy(&names))
    }

    /// Returns names by other mounts, or by the layers of an overlay, that rules may use.
    fn names_elsewhere(
        &self,
        caller: Caller<'_>,
        place: &ResolvedFile,
        path: &[u8],
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = self.mounts.other_names(place, path, caller)?;
        names.retain(|name| self.inodes.is_named(name));
        Ok(names)
    }

    /// Returns the name of a file that is about to be created.
    fn new_file<'a>(
        &self,
        caller: Caller<'_>,
        raw: &'a [u8],
        base: Option<i32>,
        manner: LookupFlags,
        arena: &'a Bump,
    ) -> ResolvedName<'a> {
        let (folder, name) = match raw.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (&b"/"[..], &raw[1..]),
            Some(end) => (&raw[..end], &raw[end + 1..]),
            None => (&b"."[..], raw),
        };
        if matches!(name, b"" | b"." | b"..") {
            return ResolvedName::None;
        }
        let stays = LookupFlags {
            stays_at_link: true,
            ..manner
        };
        if !matches!(walk::find(caller, raw, base, stays), Err(Errno::NOENT)) {
            // A dangling link, of which the kernel creates the target, or a lookup that failed.
            return ResolvedName::Unknown;
        }
        let below = LookupFlags {
            stays_at_link: false,
            ..manner
        };
        match walk::find(caller, folder, base, below) {
            Ok(place) => match path(&place, caller) {
                Ok(folder) => {
                    let folder = folder.strip_suffix(b"/").unwrap_or(&folder);
                    let whole: &'a [u8] = arena.alloc_slice_copy(&[folder, b"/", name].concat());
                    let Ok(others) = self.names_elsewhere(caller, &place, whole) else {
                        return ResolvedName::Unknown;
                    };
                    let copy = |name: &Vec<u8>| -> &'a [u8] { arena.alloc_slice_copy(name) };
                    let mut names: Vec<&'a [u8]> = others.iter().map(copy).collect();
                    names.push(whole);
                    ResolvedName::Names(arena.alloc_slice_copy(&names))
                }
                Err(_) => ResolvedName::Unknown,
            },
            Err(Errno::NOENT | Errno::NOTDIR) => ResolvedName::None,
            Err(_) => ResolvedName::Unknown,
        }
    }
}

fn path(place: &ResolvedFile, caller: Caller<'_>) -> Result<Vec<u8>, Errno> {
    let path = inodes::path_of(&place.file, caller)?;
    Ok(match place.is_own_proc && !path.starts_with(b"/proc/") {
        true => [b"/proc", &path[..]].concat(),
        false => path,
    })
}

/// Returns whether a call gives its caller another root, or other mounts. Such calls are always trapped.
pub fn changes_root(syscall: Syscall) -> bool {
    use Syscall as S;
    matches!(
        syscall,
        S::CHROOT | S::PIVOT_ROOT | S::SETNS | S::MOUNT | S::MOVE_MOUNT | S::UMOUNT | S::UMOUNT2
    )
}

fn manner(call: &Call, decoded: &Decoded<'_>) -> LookupFlags {
    let DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
        return LookupFlags::default();
    };
    let number = |position: Option<usize>| match decoded.params.get(position?) {
        Some(Param::Uint(number)) => Some(*number),
        _ => None,
    };
    let flags = number(Some(usize::from(flags))).unwrap_or(0);
    let resolve = number(call.kind.param_index("resolve")).unwrap_or(0);
    let has = |flag: OFlags| flags & u64::from(flag.bits()) != 0;
    let creates = has(OFlags::CREATE) || call.syscall == Syscall::CREAT;
    LookupFlags {
        stays_at_link: has(OFlags::NOFOLLOW) || creates && has(OFlags::EXCL),
        is_rooted: resolve & ResolveFlags::IN_ROOT.bits() != 0,
        creates,
    }
}

#[cfg(test)]
mod tests {
    use abi::FLOOR;

    use super::*;

    /// Calls that give no process another root and mount nothing into a tree that names lead through.
    const HARMLESS: &[Syscall] = &[
        Syscall::OPEN_TREE,
        Syscall::OPEN_TREE_ATTR,
        Syscall::FSOPEN,
        Syscall::FSMOUNT,
        Syscall::FSCONFIG,
        Syscall::FSPICK,
        Syscall::MOUNT_SETATTR,
        Syscall::UNSHARE,
    ];

    #[test]
    fn each_call_that_changes_a_view_of_files_is_taken_note_of_and_trapped() {
        let views = [
            "changes the view of the file system",
            "enters or makes a namespace",
        ];
        let mut noted = 0;
        for trap in FLOOR.iter().filter(|trap| views.contains(&trap.reason)) {
            assert_ne!(
                changes_root(trap.call),
                HARMLESS.contains(&trap.call),
                "{}",
                trap.call
            );
            noted += usize::from(changes_root(trap.call));
        }
        let all = Syscall::all().filter(|call| changes_root(*call)).count();
        assert_eq!(noted, all, "the floor traps each of them");
    }
}
