//! Resolves a path from a caller's root and folder.
//!
//! The kernel resolves first, from its cache alone: nothing waits for a file system that the workload serves.
//! Links below `/proc` differ for each process, so where the kernel meets one this module resolves the path
//! step by step, with `self` as the caller.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::Tid;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;
use sys::resource::{self, UsageOf};

use super::links;
use super::mounts::Mounts;
use super::steps::copy;
use crate::process_inspector::{ProcessInspector, WORK_LIMIT};

/// Maximum time that all file systems on the way may take together.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// Time that a lookup of many paths may take for each, beyond [`TIME_LIMIT`]: on a busy machine each takes long because
/// others have the processors. A file system that does not answer is waited for no longer.
const PATH_TIME: Duration = Duration::from_millis(1);

/// Flags of a file that is only looked at.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Maximum number of paths that one request opens.
const TOGETHER: usize = 64;

thread_local! {
    /// Time that this thread has waited for file systems. On a busy machine a lookup takes longer than that, because
    /// others have the processors and disks; no file system is blamed for it.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns how long this thread has waited for file systems, without what it lacked a processor or a disk for.
pub(super) fn waited() -> Duration {
    WAITED.get()
}

/// Flags of a call that affect the resolution of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookupFlags {
    /// A symbolic link at the end is opened itself.
    pub stays_at_link: bool,
    /// The folder that the path starts at is its root.
    pub is_rooted: bool,
    /// The call creates a missing file.
    pub creates: bool,
}

/// The caller, with its root and folder, for the resolution of paths.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The calling thread.
    pub tid: Tid,
    /// Reader of information about processes.
    pub inspector: &'a ProcessInspector,
    pub(super) mounts: &'a Mounts,
    /// True if the caller's root is this program's.
    pub shares_root: bool,
    /// Time that the thread will have waited for file systems when the lookup is abandoned.
    pub(super) waited_at_end: Duration,
}

impl<'a> Caller<'a> {
    /// Creates a caller whose time limit begins now.
    pub fn new(
        tid: Tid,
        inspector: &'a ProcessInspector,
        mounts: &'a Mounts,
        shares_root: bool,
    ) -> Self {
        Self {
            tid,
            inspector,
            mounts,
            shares_root,
            waited_at_end: WAITED.get() + TIME_LIMIT,
        }
    }

    /// Returns a copy with a new time limit, for the lookup of so many paths.
    pub(super) fn anew(self, paths: usize) -> Self {
        let paths = u32::try_from(paths).unwrap_or(u32::MAX);
        Self {
            waited_at_end: WAITED.get() + TIME_LIMIT + PATH_TIME.saturating_mul(paths),
            ..self
        }
    }

    /// Runs work to which a file system may never answer.
    pub(super) fn ask<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let left = self.waited_at_end.saturating_sub(WAITED.get());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let begun = Instant::now();
        let answer = self.inspector.within(left.min(TIME_LIMIT), || timed(work));
        let (result, waited) = answer.unwrap_or_else(|| (Err(Errno::TIMEDOUT), begun.elapsed()));
        // What took longer than the limit of one access lacked a processor or a disk.
        WAITED.set(WAITED.get() + waited.min(WORK_LIMIT));
        result
    }

    /// Returns the thread whose view of `/proc` is the caller's: a caller that shares this program's root may
    /// have ended.
    pub(super) fn reader(&self) -> Tid {
        match self.shares_root {
            true => Tid(std::process::id().cast_signed()),
            false => self.tid,
        }
    }
}

/// Does work, and returns how long it took. Of a thread that never gave up its processor only the time counts that it had
/// one: the rest was that of others.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let used = || {
        let usage = resource::usage(UsageOf::Thread).ok()?;
        Some((usage.voluntary_switches, usage.user + usage.system))
    };
    let (before, begun) = (used(), Instant::now());
    let result = work();
    let took = match (before, used()) {
        (Some((before, begin)), Some((after, end))) if before == after => end.saturating_sub(begin),
        _ => begun.elapsed(),
    };
    (result, took)
}

/// File that a path resolves to.
#[derive(Debug)]
pub struct ResolvedFile {
    /// The file, opened with `O_PATH`.
    pub file: OwnedFd,
    pub(super) stat: Statx,
    /// True if no link was followed from this program's own root.
    pub(super) is_direct: bool,
    /// True if no link was followed.
    pub(super) is_plain: bool,
    /// True if the file was found in this program's own view of `/proc`.
    pub is_own_proc: bool,
}

/// Resolves a path now. Fails with `NOENT` if there is no such file.
pub(super) fn find(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
) -> Result<ResolvedFile, Errno> {
    from_start(caller, raw, base, manner, |way, scope| {
        let direct = way.open(raw, scope | ResolveFlags::NO_SYMLINKS);
        way.resolve(raw, scope, direct)
    })
}

/// As [`find`], for an open: most programs open the same libraries through the same link. Where the last attempt without
/// links met one, none is made unless there is no file. Of a file that is found otherwise `is_direct` and `is_plain` are
/// false, whatever its path is by now, so that its name is read from the kernel.
pub(super) fn find_again(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
) -> Result<ResolvedFile, Errno> {
    from_start(caller, raw, base, manner, |way, scope| {
        let linked = match links::was_met(raw) {
            true => Some(way.open(raw, scope | ResolveFlags::NO_MAGICLINKS)),
            false => None,
        };
        if let Some(linked) = linked.filter(|linked| !matches!(linked, Err(Errno::NOENT))) {
            return way.follow(raw, linked);
        }
        let direct = way.open(raw, scope | ResolveFlags::NO_SYMLINKS);
        match direct {
            Err(Errno::LOOP) => links::note(raw),
            // No link is there.
            Ok(_) | Err(Errno::NOENT) => links::forget(raw),
            Err(_) => {}
        }
        way.resolve(raw, scope, direct)
    })
}

/// Opens the folder that a path starts at, and resolves from there.
fn from_start(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
    resolve: impl FnOnce(&Way<'_>, ResolveFlags) -> Result<ResolvedFile, Errno>,
) -> Result<ResolvedFile, Errno> {
    let (folder, scope) = start(caller, raw, base, manner)?;
    let way = Way {
        caller,
        folder: folder.as_ref(),
        manner,
    };
    resolve(&way, scope)
}

/// Resolves absolute paths from the caller's root, and calls `found` with the index of each until it breaks. One
/// request opens many of those that the kernel's cache does not have; that cache never knows
/// what is missing in `/proc`, `/sys` and `/dev`.
pub(super) fn find_each(
    caller: Caller<'_>,
    paths: &[&[u8]],
    found: &mut dyn FnMut(usize, Result<ResolvedFile, Errno>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let manner = LookupFlags::default();
    let (folder, scope) = match start(caller, b"/", None, manner) {
        Ok(start) => start,
        Err(errno) => return (0..paths.len()).try_for_each(|number| found(number, Err(errno))),
    };
    let way = Way {
        caller,
        folder: folder.as_ref(),
        manner,
    };
    let resolve = scope | ResolveFlags::NO_SYMLINKS;
    for (chunk, some) in paths.chunks(TOGETHER).enumerate() {
        for (number, (path, opened)) in some.iter().zip(way.open_each(some, resolve)).enumerate() {
            let direct = opened.unwrap_or_else(|| way.open(path, resolve));
            found(chunk * TOGETHER + number, way.resolve(path, scope, direct))?;
        }
    }
    ControlFlow::Continue(())
}

fn place(file: OwnedFd) -> Result<ResolvedFile, Errno> {
    Ok(ResolvedFile {
        stat: stat(&file)?,
        file,
        is_direct: false,
        is_plain: false,
        is_own_proc: false,
    })
}

/// Opens the folder that a path starts at, unless that is this program's own root, and returns the flags for
/// resolving below it.
fn start(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
) -> Result<(Option<OwnedFd>, ResolveFlags), Errno> {
    let inspector = caller.inspector;
    let folder = || match base {
        Some(number) => inspector.open_descriptor(caller.tid, number),
        None => inspector.open_link(caller.tid, "cwd"),
    };
    if manner.is_rooted {
        return Ok((Some(folder()?), ResolveFlags::IN_ROOT));
    }
    if raw.starts_with(b"/") && caller.shares_root {
        return Ok((None, ResolveFlags::empty()));
    }
    if raw.starts_with(b"/") {
        let root = inspector.open_link(caller.tid, "root")?;
        return Ok((Some(root), ResolveFlags::IN_ROOT));
    }
    let scope = match caller.shares_root {
        true => ResolveFlags::empty(),
        false => ResolveFlags::BENEATH,
    };
    Ok((Some(folder()?), scope))
}

fn own_root() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty())
}

/// Reads a file's identity and number of links.
pub(super) fn stat(file: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let mask = StatxFlags::INO
        .union(StatxFlags::TYPE)
        .union(StatxFlags::NLINK)
        .union(StatxFlags::BTIME)
        .union(StatxFlags::MNT_ID)
        .union(super::mounts::UNIQUE_ID);
    rustix::fs::statx(file, c"", flags, mask)
}

/// Reads the id of a file's mount in mount tables. The kernel reuses it after an unmount.
pub(super) fn mount_number(file: &OwnedFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID).map(|stat| stat.stx_mnt_id)
}

pub(super) fn type_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

/// Reads the type of a file without asking a file system that the workload may serve.
pub fn file_type(file: &OwnedFd) -> Result<FileType, Errno> {
    stat(file).map(|stat| type_of(&stat))
}

pub(super) struct Way<'a> {
    pub(super) caller: Caller<'a>,
    /// Folder that the path starts at; `None` for an absolute path from this program's own root.
    pub(super) folder: Option<&'a OwnedFd>,
    pub(super) manner: LookupFlags,
}

impl Way<'_> {
    fn open(&self, path: &[u8], resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let last = match self.manner.stays_at_link {
            true => OFlags::NOFOLLOW,
            false => OFlags::empty(),
        };
        // An absolute path ignores the folder.
        let folder = self.folder.map_or(rustix::fs::CWD, OwnedFd::as_fd);
        open(folder, path, last, resolve, self.caller)
    }

    /// Opens paths with as few requests as possible; `None` for those that must be opened one by one.
    fn open_each(
        &self,
        paths: &[&[u8]],
        resolve: ResolveFlags,
    ) -> Vec<Option<Result<OwnedFd, Errno>>> {
        let folder = self.folder.map_or(rustix::fs::CWD, OwnedFd::as_fd);
        let cached = |path: &&[u8]| open_cached(folder, path, PATH_FLAGS, resolve);
        let mut opened: Vec<_> = paths.iter().map(cached).collect();
        let missing = |number: &usize| opened[*number].is_none();
        let missing: Vec<_> = (0..paths.len()).filter(missing).collect();
        // The kernel opens one as fast alone.
        if missing.len() < 2 {
            return opened;
        }
        let Ok(folder) = self.folder.map(copy).transpose() else {
            return opened;
        };
        let asked: Vec<_> = missing
            .iter()
            .map(|number| paths[*number].to_vec())
            .collect();
        let answers = Arc::new(Mutex::new(Vec::with_capacity(asked.len())));
        let given = Arc::clone(&answers);
        // Where a file system does not answer, what was opened before is kept.
        let _late = self.caller.ask(move || {
            let folder = folder.as_ref().map_or(rustix::fs::CWD, OwnedFd::as_fd);
            for path in asked {
                let found = rustix::fs::openat2(folder, path, PATH_FLAGS, Mode::empty(), resolve);
                given
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(found);
            }
            Ok(())
        });
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, answer) in missing.into_iter().zip(answers.drain(..)) {
            opened[number] = Some(answer);
        }
        opened
    }

    /// Resolves a path whose opening without links gave `direct`.
    fn resolve(
        &self,
        raw: &[u8],
        scope: ResolveFlags,
        direct: Result<OwnedFd, Errno>,
    ) -> Result<ResolvedFile, Errno> {
        match direct {
            // The path left the folder by `..`, or by a link to an absolute path, and the caller's root is its own.
            Err(Errno::XDEV) => self.step_along(raw),
            Err(Errno::LOOP) => {
                self.follow(raw, self.open(raw, scope | ResolveFlags::NO_MAGICLINKS))
            }
            Ok(file) => Ok(ResolvedFile {
                is_direct: self.folder.is_none(),
                is_plain: true,
                ..place(file)?
            }),
            Err(errno) => Err(errno),
        }
    }

    /// Resolves a path that leads through a link, and whose opening with links gave `linked`.
    fn follow(&self, raw: &[u8], linked: Result<OwnedFd, Errno>) -> Result<ResolvedFile, Errno> {
        let place = match linked {
            Ok(file) => place(file)?,
            Err(Errno::LOOP | Errno::NOENT | Errno::XDEV | Errno::ACCESS) => {
                return self.step_along(raw);
            }
            Err(errno) => return Err(errno),
        };
        let mounts = self.caller.mounts;
        match mounts.is_proc(&place.file, &place.stat, self.caller)? {
            true => self.step_along(raw),
            false => Ok(place),
        }
    }

    /// Opens the root that absolute links start from and `..` cannot leave.
    pub(super) fn root(&self) -> Result<OwnedFd, Errno> {
        match (self.folder, self.caller.shares_root) {
            (Some(folder), _) if self.manner.is_rooted => copy(folder),
            (_, true) => own_root(),
            (_, false) => self.caller.inspector.open_link(self.caller.tid, "root"),
        }
    }
}

/// Opens a path component. The caller has just used the path, or will, so it is normally in the kernel's
/// cache. Some file systems do not answer from the cache (overlayfs, at links), and some may never answer.
pub(super) fn open(
    folder: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
    caller: Caller<'_>,
) -> Result<OwnedFd, Errno> {
    let flags = flags | PATH_FLAGS;
    if let Some(found) = open_cached(folder, path, flags, resolve) {
        return found;
    }
    let folder = match path.starts_with(b"/") && !resolve.contains(ResolveFlags::IN_ROOT) {
        true => None,
        false => Some(rustix::io::fcntl_dupfd_cloexec(folder, 0)?),
    };
    let path = path.to_vec();
    caller.ask(move || {
        let folder = folder.as_ref().map_or(rustix::fs::CWD, OwnedFd::as_fd);
        rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
    })
}

/// Opens a path from the kernel's cache alone; `None` if a file system must be asked.
fn open_cached(
    folder: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Option<Result<OwnedFd, Errno>> {
    let cached = resolve | ResolveFlags::CACHED;
    match rustix::fs::openat2(folder, path, flags, Mode::empty(), cached) {
        // Linux before 5.12 does not know the flag.
        Err(Errno::AGAIN | Errno::INVAL) => None,
        found => Some(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_the_time_that_it_has_a_processor_or_sleeps() {
        const PAUSE: Duration = Duration::from_millis(20);
        let cpu = || resource::usage(UsageOf::Thread).map(|usage| usage.user + usage.system);
        let spin = || {
            let begun = cpu().unwrap();
            while cpu().unwrap() < begun + PAUSE {}
        };
        let (begun, took) = (Instant::now(), timed(spin).1);
        assert!(took >= PAUSE && took <= begun.elapsed(), "{took:?}");
        assert!(timed(|| std::thread::sleep(PAUSE)).1 >= PAUSE);
    }
}
