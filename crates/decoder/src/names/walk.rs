//! Where a name leads, from a caller's root and folder.
//!
//! The kernel is asked first, and from its cache alone: nothing waits for a file system that the workload
//! serves. Links below `/proc` mean another thing to each process, so where the kernel meets one the name is
//! gone along step by step here, and `self` is the caller.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use event::Tid;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::mounts::Mounts;
use crate::process_inspector::ProcessInspector;

/// `PROC_ROOT_INO`: of no other folder of it.
const PROC_ROOT: u64 = 1;
/// Links that the kernel follows for one name (`MAXSYMLINKS`).
const LINK_LIMIT: usize = 40;
/// Steps of one name: half of its longest, and as many for each link.
const STEP_LIMIT: usize = 4096;
/// How long all file systems on the way may take together.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// What a call says of a name beside its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookupFlags {
    /// A symbolic link at the end is opened itself.
    pub stays_at_link: bool,
    /// The folder that the name starts at is its root.
    pub is_rooted: bool,
    /// A file is made where there is none.
    pub creates: bool,
}

/// Who asks, and where its names start.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The thread.
    pub tid: Tid,
    /// Reads about it.
    pub census: &'a ProcessInspector,
    pub(super) mounts: &'a Mounts,
    /// Its root is that of this program.
    pub shares_root: bool,
    /// When the look is given up.
    pub(super) end: Instant,
}

impl<'a> Caller<'a> {
    /// A caller that looks from now on.
    pub fn new(
        tid: Tid,
        census: &'a ProcessInspector,
        mounts: &'a Mounts,
        shares_root: bool,
    ) -> Self {
        Self {
            tid,
            census,
            mounts,
            shares_root,
            end: end_of_look(),
        }
    }

    /// The same, with as much time as any other.
    pub(super) fn anew(self) -> Self {
        Self {
            end: end_of_look(),
            ..self
        }
    }

    /// Does what a file system may never answer.
    pub(super) fn ask<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let answer = self.census.within(left, work);
        answer.unwrap_or(Err(Errno::TIMEDOUT))
    }

    /// The thread whose view of `/proc` is the caller's: a caller that shares this program's root may have ended.
    pub(super) fn reader(&self) -> Tid {
        match self.shares_root {
            true => Tid(std::process::id().cast_signed()),
            false => self.tid,
        }
    }
}

/// When a look that begins now is given up.
fn end_of_look() -> Instant {
    Instant::now() + TIME_LIMIT
}

/// What a name leads to.
#[derive(Debug)]
pub struct ResolvedFile {
    /// The file, opened with `O_PATH`.
    pub file: OwnedFd,
    pub(super) stat: Statx,
    /// No link was followed on the way from this program's own root.
    pub(super) is_direct: bool,
    /// No link was followed on the way.
    pub(super) is_plain: bool,
    /// Found in this program's own view of `/proc`.
    pub is_own_proc: bool,
}

/// Finds what a name leads to now. `NOENT`: nothing.
pub(super) fn find(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
) -> Result<ResolvedFile, Errno> {
    let (folder, scope) = start(caller, raw, base, manner)?;
    let way = Way {
        caller,
        folder: folder.as_ref(),
        manner,
    };
    let direct = way.open(raw, scope | ResolveFlags::NO_SYMLINKS);
    match direct {
        // By `..`, or by a link to an absolute path: the caller's root is that of nobody else.
        Err(Errno::XDEV) => way.step_along(raw),
        Err(Errno::LOOP) => match way.open(raw, scope | ResolveFlags::NO_MAGICLINKS) {
            Ok(file) => match place(file)? {
                place if caller.mounts.is_proc(&place.file, &place.stat, caller)? => {
                    way.step_along(raw)
                }
                place => Ok(place),
            },
            Err(Errno::LOOP | Errno::NOENT | Errno::XDEV | Errno::ACCESS) => way.step_along(raw),
            Err(errno) => Err(errno),
        },
        Ok(file) => Ok(ResolvedFile {
            is_direct: way.folder.is_none(),
            is_plain: true,
            ..place(file)?
        }),
        Err(errno) => Err(errno),
    }
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

/// The folder that a name starts at, unless that is this program's own root, and how far it leads.
fn start(
    caller: Caller<'_>,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupFlags,
) -> Result<(Option<OwnedFd>, ResolveFlags), Errno> {
    let census = caller.census;
    let folder = || match base {
        Some(number) => census.open_descriptor(caller.tid, number),
        None => census.open_link(caller.tid, "cwd"),
    };
    if manner.is_rooted {
        return Ok((Some(folder()?), ResolveFlags::IN_ROOT));
    }
    if raw.starts_with(b"/") && caller.shares_root {
        return Ok((None, ResolveFlags::empty()));
    }
    if raw.starts_with(b"/") {
        let root = census.open_link(caller.tid, "root")?;
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

/// What is asked of a file: who it is, and how many names it has.
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

/// The number of a file's mount in tables of mounts, which the kernel gives again after an unmount.
pub(super) fn mount_number(file: &OwnedFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID).map(|stat| stat.stx_mnt_id)
}

fn is_link(stat: &Statx) -> bool {
    type_of(stat) == FileType::Symlink
}

fn type_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

/// What kind of file one is, without asking a file system that may be the workload's own.
pub fn file_type(file: &OwnedFd) -> Result<FileType, Errno> {
    stat(file).map(|stat| type_of(&stat))
}

fn is_same(one: &Statx, other: &Statx) -> bool {
    let key = |stat: &Statx| (stat.stx_ino, stat.stx_mnt_id);
    key(one) == key(other)
}

struct Way<'a> {
    caller: Caller<'a>,
    /// Where the name starts; `None`: it is absolute, from this program's own root.
    folder: Option<&'a OwnedFd>,
    manner: LookupFlags,
}

impl Way<'_> {
    fn open(&self, path: &[u8], resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let last = match self.manner.stays_at_link {
            true => OFlags::NOFOLLOW,
            false => OFlags::empty(),
        };
        // Of an absolute path the folder is not looked at.
        let folder = self.folder.map_or(rustix::fs::CWD, OwnedFd::as_fd);
        open(folder, path, last, resolve, self.caller)
    }

    /// The root that absolute links lead from, and above which `..` does not lead.
    fn root(&self) -> Result<OwnedFd, Errno> {
        match (self.folder, self.caller.shares_root) {
            (Some(folder), _) if self.manner.is_rooted => copy(folder),
            (_, true) => own_root(),
            (_, false) => self.caller.census.open_link(self.caller.tid, "root"),
        }
    }

    /// Goes along a name step by step.
    fn step_along(&self, raw: &[u8]) -> Result<ResolvedFile, Errno> {
        let root = self.root()?;
        let start = self.folder.filter(|_| !raw.starts_with(b"/"));
        let mut steps = Steps {
            caller: self.caller,
            at: copy(start.unwrap_or(&root))?,
            root_stat: stat(&root)?,
            root,
            left: names(raw),
            links: 0,
            left_for_own_proc: None,
        };
        let stays = self.manner.stays_at_link && !ends_in_folder(raw);
        for _ in 0..STEP_LIMIT {
            let Some(name) = steps.left.pop_front() else {
                let stat = stat(&steps.at)?;
                return Ok(ResolvedFile {
                    file: steps.at,
                    stat,
                    is_direct: false,
                    is_plain: false,
                    is_own_proc: steps.left_for_own_proc.is_some(),
                });
            };
            let is_last = steps.left.is_empty();
            steps.step(&name, is_last && stays)?;
        }
        Err(Errno::LOOP)
    }
}

struct Steps<'a> {
    caller: Caller<'a>,
    at: OwnedFd,
    root: OwnedFd,
    root_stat: Statx,
    left: VecDeque<Vec<u8>>,
    links: usize,
    /// The root of the caller's `/proc`, while the steps lead through this program's own.
    left_for_own_proc: Option<OwnedFd>,
}

impl Steps<'_> {
    fn step(&mut self, name: &[u8], stays_at_link: bool) -> Result<(), Errno> {
        if name == b".." {
            return self.step_up();
        }
        let next = self.look(name)?;
        if stays_at_link || !is_link(&stat(&next)?) {
            self.at = next;
            return Ok(());
        }
        self.links += 1;
        if self.links > LINK_LIMIT {
            return Err(Errno::LOOP);
        }
        let at = stat(&self.at)?;
        match self.caller.mounts.is_proc(&self.at, &at, self.caller)? {
            true => self.follow_in_proc(name, next, &at),
            false => self.follow(next),
        }
    }

    fn step_up(&mut self) -> Result<(), Errno> {
        if is_same(&stat(&self.at)?, &self.root_stat) {
            return Ok(());
        }
        let above = self.look(b"..")?;
        let is_top = stat(&above)?.stx_ino == PROC_ROOT;
        self.at = match self.left_for_own_proc.take_if(|_| is_top) {
            Some(root_of_proc) => root_of_proc,
            None => above,
        };
        Ok(())
    }

    fn look(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::empty();
        let at = self.at.as_fd();
        open(at, name, OFlags::NOFOLLOW, resolve, self.caller)
    }

    /// Goes on along what the link says.
    fn follow(&mut self, link: OwnedFd) -> Result<(), Errno> {
        let read = move || rustix::fs::readlinkat(link, c"", Vec::new());
        let target = self.caller.ask(read)?.into_bytes();
        if target.starts_with(b"/") {
            self.at = copy(&self.root)?;
            self.left_for_own_proc = None;
        }
        for name in names(&target).into_iter().rev() {
            self.left.push_front(name);
        }
        Ok(())
    }

    /// `self` and `thread-self` are the caller; links of a process lead where no text says.
    fn follow_in_proc(&mut self, name: &[u8], link: OwnedFd, at: &Statx) -> Result<(), Errno> {
        let tid = self.caller.tid;
        let census = self.caller.census;
        if at.stx_ino != PROC_ROOT {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            self.at = rustix::fs::openat(&self.at, name, flags, Mode::empty())?;
            self.left_for_own_proc = None;
            return Ok(());
        }
        if !matches!(name, b"self" | b"thread-self") {
            return self.follow(link);
        }
        let pid = census.thread_group(tid).ok_or(Errno::SRCH)?;
        let process = census.open_folder(Tid(pid.0))?;
        self.left_for_own_proc = Some(std::mem::replace(&mut self.at, process));
        if name == b"thread-self" {
            self.left.push_front(tid.0.to_string().into_bytes());
            self.left.push_front(b"task".to_vec());
        }
        Ok(())
    }
}

fn copy(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(file, 0)
}

/// Whether a name means what a link at its end leads to, which is a folder, whatever the call says of links.
fn ends_in_folder(raw: &[u8]) -> bool {
    raw.ends_with(b"/") || raw.ends_with(b"/.")
}

/// The steps of a name.
fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(<[u8]>::to_vec)
        .collect()
}

/// The caller has just been there, or will be, so what is on the way is in the kernel's cache as a rule. Some
/// file systems do not answer from it (overlayfs, at links), and some may never answer.
fn open(
    folder: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
    caller: Caller<'_>,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let cached = resolve | ResolveFlags::CACHED;
    match rustix::fs::openat2(folder, path, flags, Mode::empty(), cached) {
        // Linux before 5.12 does not know the flag.
        Err(Errno::AGAIN | Errno::INVAL) => {
            let folder = match path.starts_with(b"/") && !resolve.contains(ResolveFlags::IN_ROOT) {
                true => None,
                false => Some(rustix::io::fcntl_dupfd_cloexec(folder, 0)?),
            };
            let path = path.to_vec();
            let open = move || {
                let folder = folder.as_ref().map_or(rustix::fs::CWD, OwnedFd::as_fd);
                rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
            };
            caller.ask(open)
        }
        found => found,
    }
}
