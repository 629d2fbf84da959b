//! Resolves a path step by step, where the kernel would follow a link below `/proc` as this program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use event::Tid;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Statx};
use rustix::io::Errno;

use super::walk::{Caller, ResolvedFile, Way, open, stat, type_of};

/// Inode of the root of `/proc` (`PROC_ROOT_INO`), which no other folder there has.
const PROC_ROOT: u64 = 1;
/// Maximum number of links that the kernel follows for one path (`MAXSYMLINKS`).
const LINK_LIMIT: usize = 40;
/// Maximum number of steps for one path: half of the maximum length, and as many for each link.
const STEP_LIMIT: usize = 4096;

impl Way<'_> {
    /// Resolves a path step by step.
    pub(super) fn step_along(&self, raw: &[u8]) -> Result<ResolvedFile, Errno> {
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

    /// Continues with the target of a link.
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

    /// Follows a link in `/proc`: `self` and `thread-self` are the caller; links of a process have no usable text.
    fn follow_in_proc(&mut self, name: &[u8], link: OwnedFd, at: &Statx) -> Result<(), Errno> {
        let tid = self.caller.tid;
        let inspector = self.caller.inspector;
        if at.stx_ino != PROC_ROOT {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            self.at = rustix::fs::openat(&self.at, name, flags, Mode::empty())?;
            self.left_for_own_proc = None;
            return Ok(());
        }
        if !matches!(name, b"self" | b"thread-self") {
            return self.follow(link);
        }
        let pid = inspector.thread_group(tid).ok_or(Errno::SRCH)?;
        let process = inspector.open_folder(Tid(pid.0))?;
        self.left_for_own_proc = Some(std::mem::replace(&mut self.at, process));
        if name == b"thread-self" {
            self.left.push_front(tid.0.to_string().into_bytes());
            self.left.push_front(b"task".to_vec());
        }
        Ok(())
    }
}

pub(super) fn copy(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(file, 0)
}

/// Returns whether a path ends in a folder, so that a link at its end is followed whatever the call's flags say.
fn ends_in_folder(raw: &[u8]) -> bool {
    raw.ends_with(b"/") || raw.ends_with(b"/.")
}

/// Splits a path into its components.
fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(<[u8]>::to_vec)
        .collect()
}

fn is_link(stat: &Statx) -> bool {
    type_of(stat) == FileType::Symlink
}

fn is_same(one: &Statx, other: &Statx) -> bool {
    let key = |stat: &Statx| (stat.stx_ino, stat.stx_mnt_id);
    key(one) == key(other)
}
