//! Readers of `/proc/PID`.
//!
//! Another process controls all content here: names contain brackets and newlines, files vanish during a
//! read, a pid means another process a moment later. No reader panics, trusts a length or grows beyond its
//! limit. Two groups of files differ in whether a read can block:
//!
//! - `stat`, `status`, `comm`, `cgroup`, `mountinfo`, `loginuid` and all links come from kernel memory and
//!   never wait for the process or for its file systems: they are read in place.
//! - `cmdline` and `environ` copy the process's own pages, which may lie behind userfaultfd. They belong in
//!   [`crate::deadline::Deadline::run`], except right after exec, when the new image has had no chance to
//!   arrange that.

mod cgroup;
mod detached;
mod mountinfo;
mod start_time;
mod stat;
mod status;
mod strings;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use event::{Comm, CommandLine, Lookup, StartTime};
use rustix::fs::{Access, AtFlags, Dir, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use sys::resource::Limit;

pub use cgroup::{CgroupLine, cgroup_lines};
pub use mountinfo::{MountLine, mount_lines, unescape};
pub use start_time::{clock_was_set, start_ns, start_time_now};
pub use stat::{ProcessStat, parse_stat};
pub use status::{ThreadStatus, parse_status};
pub use strings::split_command_line;

/// Maximum number of bytes of `cmdline`. Falco keeps 4 KiB of arguments, and attackers hide behind longer
/// ones.
pub const COMMAND_LINE_LIMIT: usize = 64 * 1024;
/// Maximum number of bytes of `environ`.
pub const ENVIRONMENT_LIMIT: usize = 64 * 1024;
/// Maximum number of bytes of `cgroup`, and of files below `/proc` by path.
const TABLE_LIMIT: usize = 1024 * 1024;
/// Maximum number of bytes of `mountinfo` where it is read for each program: 10,000 mounts of containers.
const MOUNTINFO_LIMIT: usize = 4 * 1024 * 1024;
/// Size of 100,000 mounts (`fs.mount-max`) with lines of 600 bytes.
const MOUNTS_LIMIT: usize = 60_000_000;
/// Maximum length of a link: the kernel formats links in one page.
pub const LINK_LIMIT: usize = 4096;

/// The reason why a read of `/proc` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcError {
    /// The process, thread or descriptor does not exist (any more).
    #[error("cannot read {file} of process {pid}: it is gone")]
    Gone {
        /// Process id.
        pid: i32,
        /// File below `/proc/PID`.
        file: &'static str,
    },
    /// The agent lacks permission: other user, not dumpable, Yama.
    #[error("cannot read {file} of process {pid}: access refused")]
    Denied {
        /// Process id.
        pid: i32,
        /// File below `/proc/PID`.
        file: &'static str,
    },
    /// The pid now means another process.
    #[error("cannot read {file} of process {pid}: the pid was reused")]
    Reused {
        /// Process id.
        pid: i32,
        /// File below `/proc/PID`.
        file: &'static str,
    },
    /// The content violates the format in proc(5).
    #[error("cannot parse {file} of process {pid}")]
    Malformed {
        /// Process id.
        pid: i32,
        /// File below `/proc/PID`.
        file: &'static str,
    },
    /// Any other error.
    #[error("cannot read {file} of process {pid}")]
    System {
        /// Process id.
        pid: i32,
        /// File below `/proc/PID`.
        file: &'static str,
        /// The kernel's error.
        source: Errno,
    },
}

impl ProcError {
    fn new(pid: i32, file: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::SRCH => ProcError::Gone { pid, file },
            Errno::ACCESS | Errno::PERM => ProcError::Denied { pid, file },
            source => ProcError::System { pid, file, source },
        }
    }

    /// The closest error number.
    pub fn errno(self) -> Errno {
        match self {
            Self::Gone { .. } | Self::Reused { .. } => Errno::SRCH,
            Self::Denied { .. } => Errno::ACCESS,
            Self::Malformed { .. } => Errno::IO,
            Self::System { source, .. } => source,
        }
    }

    /// Converts the error to a look-up result. No failure proves that a fact does not exist: a process that
    /// is gone had a name, too.
    pub fn into_lookup<T>(self) -> Lookup<T> {
        Lookup::Unknown
    }
}

/// Attributes that most requests ask for.
const BASIC: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

/// An open `/proc`. If this program has the privileges, nobody can mount over parts of it: see `detached`.
#[derive(Debug)]
pub struct Proc {
    directory: OwnedFd,
}

/// The instance that [`Proc::open`] returns in the process with this id. A forked process may be in another
/// pid namespace.
static OPENED: Mutex<Option<(u32, Proc)>> = Mutex::new(None);

impl Proc {
    /// The `/proc` of this process. The first call opens it; later calls return the same instance, regardless
    /// of later mounts.
    pub fn open() -> Result<Self, ProcError> {
        let own = std::process::id();
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let proc = match opened.take() {
            Some((process, proc)) if process == own => proc,
            _ => Self {
                directory: detached::open().map_err(|errno| ProcError::new(0, "/proc", errno))?,
            },
        };
        let copy = proc.directory.try_clone();
        *opened = Some((own, proc));
        let directory = copy.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            ProcError::new(0, "/proc", errno)
        })?;
        Ok(Self { directory })
    }

    /// Opens a file by its path below `/proc`.
    pub fn file(&self, path: &str) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, path, flags, Mode::empty())?.into())
    }

    /// Reads a file by its path below `/proc`.
    pub fn contents(&self, path: &str) -> std::io::Result<String> {
        let mut bytes = Vec::new();
        self.file(path)?
            .take(TABLE_LIMIT as u64)
            .read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The numeric names in a folder below `/proc`: processes, threads, descriptors.
    pub fn numbers(&self, folder: &str) -> std::io::Result<impl Iterator<Item = i32> + use<>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.directory, folder, flags, Mode::empty())?;
        let entries = Dir::new(folder)?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()))
    }

    /// Returns true if a path exists below `/proc`.
    pub fn exists(&self, path: &str) -> bool {
        rustix::fs::accessat(&self.directory, path, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    /// Reads a link below `/proc`.
    pub fn target(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&self.directory, path, Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Reads `/proc/PID/stat`.
    pub fn stat(&self, pid: i32) -> Result<ProcessStat, ProcError> {
        // A field has at most a 20-digit number and a sign, so one read returns all.
        let mut buffer = [0; 2048];
        let text = self.read_once(pid, "stat", &mut buffer)?;
        parse_stat(text).ok_or(ProcError::Malformed { pid, file: "stat" })
    }

    /// Reads `/proc/PID/stat`, and checks that the pid still means the process with this start time.
    pub fn stat_of(&self, pid: i32, start: StartTime) -> Result<ProcessStat, ProcError> {
        let stat = self.stat(pid)?;
        if stat.start == start {
            Ok(stat)
        } else {
            Err(ProcError::Reused { pid, file: "stat" })
        }
    }

    /// Reads `/proc/TID/status`.
    pub fn status(&self, tid: i32) -> Result<ThreadStatus, ProcError> {
        let file = self.open_file(tid, "status")?;
        parse_status(|buffer| {
            rustix::io::read(&file, buffer).map_err(|errno| ProcError::new(tid, "status", errno))
        })?
        .ok_or(ProcError::Malformed {
            pid: tid,
            file: "status",
        })
    }

    /// Reads `/proc/PID/comm`, without the newline that the kernel adds.
    pub fn comm(&self, pid: i32) -> Result<Comm, ProcError> {
        let mut buffer = [0; 64];
        let text = self.read_once(pid, "comm", &mut buffer)?;
        Ok(Comm::new(text.strip_suffix(b"\n").unwrap_or(text)))
    }

    /// Reads `/proc/PID/cmdline`. May block: see the module.
    pub fn command_line(&self, pid: i32) -> Result<CommandLine, ProcError> {
        let (bytes, truncated) = self.read_all(pid, "cmdline", COMMAND_LINE_LIMIT)?;
        Ok(split_command_line(&bytes, truncated))
    }

    /// Reads `/proc/PID/environ`. May block: see the module.
    pub fn environment(&self, pid: i32) -> Result<Vec<u8>, ProcError> {
        Ok(self.read_all(pid, "environ", ENVIRONMENT_LIMIT)?.0)
    }

    /// Reads `/proc/PID/cgroup`; parse with [`cgroup_lines`].
    pub fn cgroup(&self, pid: i32) -> Result<Vec<u8>, ProcError> {
        Ok(self.read_all(pid, "cgroup", TABLE_LIMIT)?.0)
    }

    /// Reads `/proc/PID/mountinfo`; parse with [`mount_lines`].
    ///
    /// # Errors
    /// Also if the table has more than 4 MiB: a mount that is missing in a part of it may exist.
    pub fn mountinfo(&self, pid: i32) -> Result<Vec<u8>, ProcError> {
        let file = "mountinfo";
        match self.read_all(pid, file, MOUNTINFO_LIMIT)? {
            (table, false) => Ok(table),
            (_, true) => Err(ProcError::new(pid, file, Errno::FBIG)),
        }
    }

    /// Reads `/proc/PID/mountinfo`; `None` if it exceeds the default maximum of a namespace's mounts.
    pub fn whole_mountinfo(&self, pid: i32) -> Result<Option<Vec<u8>>, ProcError> {
        let (table, is_cut) = self.read_all(pid, "mountinfo", MOUNTS_LIMIT)?;
        Ok((!is_cut).then_some(table))
    }

    /// Reads `/proc/PID/loginuid`; `None` if never set.
    pub fn login_uid(&self, pid: i32) -> Result<Option<u32>, ProcError> {
        let mut buffer = [0; 32];
        let text = self.read_once(pid, "loginuid", &mut buffer)?;
        let uid = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.trim_end().parse().ok());
        let uid: u32 = uid.ok_or(ProcError::Malformed {
            pid,
            file: "loginuid",
        })?;
        Ok((uid != u32::MAX).then_some(uid))
    }

    /// Reads the limit on file locks from `/proc/PID/limits`, which is readable for everybody.
    pub fn lock_limit(&self, pid: i32) -> Option<Limit> {
        let (text, _) = self.read_all(pid, "limits", 8192).ok()?;
        let text = String::from_utf8(text).ok()?;
        let mut lines = text.lines();
        let numbers = lines.find_map(|line| line.strip_prefix("Max file locks"))?;
        let mut numbers = numbers.split_whitespace().map(|number| match number {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some(Limit {
            soft: numbers.next()??,
            hard: numbers.next()??,
        })
    }

    /// Reads a link below `/proc/PID`: `exe`, `cwd`, `root`.
    pub fn link<'b>(
        &self,
        pid: i32,
        file: &'static str,
        buffer: &'b mut [u8; LINK_LIMIT],
    ) -> Result<&'b [u8], ProcError> {
        let path = ShortPath::new(pid, file, None);
        self.read_link(pid, file, &path, buffer)
    }

    /// Reads `/proc/TID/fd/N`.
    pub fn descriptor_link<'b>(
        &self,
        tid: i32,
        number: i32,
        buffer: &'b mut [u8; LINK_LIMIT],
    ) -> Result<&'b [u8], ProcError> {
        let path = ShortPath::new(tid, "fd", Some(number));
        self.read_link(tid, "fd", &path, buffer)
    }

    /// Inode number of a namespace, e.g. of `ns/pid`.
    pub fn namespace(&self, pid: i32, file: &'static str) -> Result<u64, ProcError> {
        let mut buffer = [0; LINK_LIMIT];
        let link = self.link(pid, file, &mut buffer)?;
        bracketed_number(link).ok_or(ProcError::Malformed { pid, file })
    }

    /// Calls `statx` through a link below `/proc/PID`. Requests cached attributes only: a FUSE or NFS server
    /// behind the link is not contacted, so this does not block.
    pub fn stat_link(&self, pid: i32, file: &'static str) -> Result<Statx, ProcError> {
        self.stat_link_for(pid, file, BASIC)
    }

    /// As [`Proc::stat_link`], for these attributes.
    pub fn stat_link_for(
        &self,
        pid: i32,
        file: &'static str,
        attributes: StatxFlags,
    ) -> Result<Statx, ProcError> {
        self.statx(pid, file, &ShortPath::new(pid, file, None), attributes)
    }

    /// Calls `statx` for `/proc/TID/fd/N` as [`Proc::stat_link`] does.
    pub fn stat_descriptor(&self, tid: i32, number: i32) -> Result<Statx, ProcError> {
        self.statx(tid, "fd", &ShortPath::new(tid, "fd", Some(number)), BASIC)
    }

    /// Reads any small file below `/proc/PID`, e.g. `net/tcp`, up to a limit. Returns true if the content was
    /// cut off.
    pub fn read_all(
        &self,
        pid: i32,
        file: &'static str,
        limit: usize,
    ) -> Result<(Vec<u8>, bool), ProcError> {
        let handle = self.open_file(pid, file)?;
        let mut bytes = Vec::with_capacity(4096.min(limit));
        let mut chunk = [0; 8192];
        loop {
            let count = match rustix::io::read(&handle, &mut chunk) {
                Ok(0) => return Ok((bytes, false)),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(ProcError::new(pid, file, errno)),
            };
            let kept = count.min(limit - bytes.len());
            bytes.extend_from_slice(&chunk[..kept]);
            if kept < count {
                return Ok((bytes, true));
            }
        }
    }

    /// Opens the file behind a link below `/proc/PID` as a path only (`O_PATH`), which does not involve its
    /// file system.
    pub fn open_path(&self, pid: i32, file: &'static str) -> Result<OwnedFd, ProcError> {
        let path = ShortPath::new(pid, file, None);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, path.as_bytes(), flags, Mode::empty())
            .map_err(|errno| ProcError::new(pid, file, errno))
    }

    /// Opens the file behind a thread's descriptor as [`Proc::open_path`] does.
    pub fn open_descriptor(&self, tid: i32, number: i32) -> Result<OwnedFd, ProcError> {
        let path = ShortPath::new(tid, "fd", Some(number));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, path.as_bytes(), flags, Mode::empty())
            .map_err(|errno| ProcError::new(tid, "fd", errno))
    }

    /// Opens a file below `/proc/PID` for reading.
    pub fn open_file(&self, pid: i32, file: &'static str) -> Result<OwnedFd, ProcError> {
        let path = ShortPath::new(pid, file, None);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, path.as_bytes(), flags, Mode::empty())
            .map_err(|errno| ProcError::new(pid, file, errno))
    }

    /// Reads a single-record file, which the kernel returns in one read.
    fn read_once<'b>(
        &self,
        pid: i32,
        file: &'static str,
        buffer: &'b mut [u8],
    ) -> Result<&'b [u8], ProcError> {
        let handle = self.open_file(pid, file)?;
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&handle, &mut *buffer))
            .map_err(|errno| ProcError::new(pid, file, errno))?;
        Ok(&buffer[..count])
    }

    fn read_link<'b>(
        &self,
        pid: i32,
        file: &'static str,
        path: &ShortPath,
        buffer: &'b mut [u8; LINK_LIMIT],
    ) -> Result<&'b [u8], ProcError> {
        let count = rustix::fs::readlinkat_raw(&self.directory, path.as_bytes(), &mut buffer[..])
            .map_err(|errno| ProcError::new(pid, file, errno))?;
        Ok(&buffer[..count])
    }

    fn statx(
        &self,
        pid: i32,
        file: &'static str,
        path: &ShortPath,
        attributes: StatxFlags,
    ) -> Result<Statx, ProcError> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        rustix::fs::statx(&self.directory, path.as_bytes(), flags, attributes)
            .map_err(|errno| ProcError::new(pid, file, errno))
    }
}

impl AsFd for Proc {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Parses the number in `pid:[4026531836]` or `socket:[123]`.
pub fn bracketed_number(link: &[u8]) -> Option<u64> {
    let open = link.iter().position(|byte| *byte == b'[')?;
    let digits = link[open + 1..].strip_suffix(b"]")?;
    parse_number(digits)
}

/// Parses a decimal number without a sign or surrounding characters.
pub fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The path `PID/FILE` or `PID/FILE/N`, built without allocation.
struct ShortPath {
    bytes: [u8; 64],
    len: usize,
}

impl ShortPath {
    fn new(pid: i32, file: &'static str, number: Option<i32>) -> Self {
        let mut bytes = [0; 64];
        let size = bytes.len();
        let mut rest = &mut bytes[..];
        // Names below /proc/PID are compiled in and short; if one did not fit, the truncated path would not
        // exist and the read would report that.
        let _ = match number {
            Some(number) => write!(rest, "{pid}/{file}/{number}"),
            None => write!(rest, "{pid}/{file}"),
        };
        let len = size - rest.len();
        Self { bytes, len }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests;
