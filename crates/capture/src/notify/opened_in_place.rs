//! Opens files in the caller's place that a policy allows and no ruleset of Landlock can: files of processes below `/proc`,
//! because a process of later has no folder there yet, and nameless files, because a rule for them is one for all files of
//! their folder.
//!
//! The name is read once, decided on and opened here, so it does not matter that the caller's memory can change.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use abi::Syscall;
use event::{Param, Tid};
use policy::compile::denial_classifier::{DenialClassifier, NamedFile, PathKind};
use policy::compile::process_files;
use rustix::fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Uid};

use super::proc_entries::is_procfs;
use decoder::call::Call;
use decoder::decode::Decoded;
use decoder::process_inspector::ProcessInspector;

/// Bits of a file's mode that allow its group, and all others, what the same bits of the owner allow.
const GROUP_SHIFT: u32 = 3;
const OWNER_SHIFT: u32 = 6;
const READ_BIT: u32 = 4;
const WRITE_BIT: u32 = 2;
const EXECUTE_BIT: u32 = 1;
/// Mode bits that open(2) takes.
const MODE_BITS: u64 = 0o7777;

/// Returns whether a call may be about such a file, as far as the call alone shows.
pub(super) fn may_be_asked(call: &Call, decoded: &Decoded<'_>) -> bool {
    let is_nameless = flags(call).contains(OFlags::TMPFILE);
    flags_position(call).is_some()
        && path(decoded).is_some_and(|path| is_nameless || path.starts_with(b"/proc/"))
}

/// Returns `O_CLOEXEC` if the caller asks for it.
pub(super) fn descriptor_flags(call: &Call) -> u32 {
    flags(call).intersection(OFlags::CLOEXEC).bits()
}

/// Opens the file that the call names; `None` if it is another file, if the policy does not allow it, or if it cannot be
/// opened. The kernel then answers the call.
pub(super) fn open(
    call: &Call,
    decoded: &Decoded<'_>,
    classifier: &DenialClassifier,
    inspector: &ProcessInspector,
) -> Option<OwnedFd> {
    let path = std::str::from_utf8(path(decoded)?).ok()?.to_owned();
    let (tid, wanted) = (call.tid, flags(call));
    let args = std::array::from_fn(|position| u8::try_from(position).map_or(0, |at| call.raw(at)));
    if wanted.contains(OFlags::TMPFILE) {
        let position = usize::from(flags_position(call)?) + 1;
        let mode = Mode::from_raw_mode(u32::try_from(args[position] & MODE_BITS).ok()?);
        let is_allowed = classifier.makes_nameless(call.syscall, args, &path);
        let work = move || Caller::read(tid)?.make_nameless(&path, wanted, mode);
        return is_allowed.then(|| inspector.within_deadline(work))??;
    }
    let work = move || {
        let caller = Caller::read(tid)?;
        let name = caller.name(&path)?;
        let file = caller.open(&name, wanted)?;
        Some((name, file))
    };
    let (name, (file, is)) = inspector.within_deadline(work)??;
    let named = NamedFile { path: name, is };
    classifier
        .opens_own_file(call.syscall, args, &named)
        .then_some(file)
}

fn flags_position(call: &Call) -> Option<u8> {
    match call.syscall {
        Syscall::OPEN => Some(1),
        Syscall::OPENAT => Some(2),
        _ => None,
    }
}

/// The flags of the call. The upper half of the register means nothing.
fn flags(call: &Call) -> OFlags {
    let bits = flags_position(call).map_or(0, |position| call.int(position));
    OFlags::from_bits_retain(bits.cast_unsigned())
}

fn path<'a>(decoded: &Decoded<'a>) -> Option<&'a [u8]> {
    decoded.params.iter().find_map(|param| match param {
        Param::Text(path) => Some(*path),
        _ => None,
    })
}

/// What decides which files are a caller's own.
struct Caller {
    tid: Tid,
    /// Its process, as the agent numbers it.
    pid: i32,
    /// Its thread and process, as it numbers them itself.
    own_tid: i32,
    own_pid: i32,
    user: u32,
    group: u32,
    umask: u32,
}

impl Caller {
    /// `None` if the caller is gone, or in another user namespace, where ids and capabilities mean something else.
    fn read(tid: Tid) -> Option<Self> {
        let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        if space(&tid.0.to_string())? != space("self")? {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", tid.0)).ok()?;
        // The last id of a line is that for the file system, or that of the innermost namespace.
        let last = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_ascii_whitespace().next_back()
        };
        let number = |key| last(key)?.parse::<i32>().ok();
        Some(Self {
            tid,
            pid: number("Tgid:")?,
            own_tid: number("NSpid:")?,
            own_pid: number("NStgid:")?,
            user: last("Uid:")?.parse().ok()?,
            group: last("Gid:")?.parse().ok()?,
            umask: u32::from_str_radix(last("Umask:")?, 8).ok()?,
        })
    }

    /// Returns the name `/proc/self/...` of a file of the caller, or `/proc/NUMBER/...` of another process; `None` if it is
    /// another file.
    fn name(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix("/proc/")?;
        let is_odd = |word: &str| matches!(word, "" | "." | "..");
        if rest.split('/').any(is_odd) {
            return None;
        }
        if let Some(rest) = rest.strip_prefix("thread-self/") {
            return Some(format!("/proc/self/task/{}/{rest}", self.own_tid));
        }
        let by_number = rest
            .strip_prefix(&self.own_pid.to_string())
            .and_then(|rest| rest.strip_prefix('/'));
        match by_number {
            Some(rest) => Some(format!("/proc/self/{rest}")),
            None => process_files::named(path).or_else(|| {
                let (number, _) = rest.split_once('/')?;
                number.parse::<u32>().is_ok().then(|| path.to_owned())
            }),
        }
    }

    /// Opens `/proc/self/...` of the caller, or a file of another process, in its own `/proc`, following no link, if its
    /// user may.
    fn open(&self, name: &str, wanted: OFlags) -> Option<(OwnedFd, PathKind)> {
        let root = format!("/proc/{}/root/proc", self.tid.0);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(root, flags, Mode::empty()).ok()?;
        if !is_procfs(&proc) {
            return None;
        }
        let (folder, rest) = match name.strip_prefix("/proc/self/") {
            Some(rest) => (self.folder(&proc)?, rest),
            None => (proc, name.strip_prefix("/proc/")?),
        };
        let passed = OFlags::ACCMODE | OFlags::APPEND | OFlags::TRUNC | OFlags::NONBLOCK;
        let passed = passed | OFlags::DIRECTORY;
        let safe = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let how = wanted.intersection(passed) | safe;
        let file = rustix::fs::openat2(&folder, rest, how, Mode::empty(), resolve).ok()?;
        let file = fs::File::from(file);
        let data = file.metadata().ok()?;
        let is = match FileType::from_raw_mode(data.mode()) {
            FileType::Directory => PathKind::Folder,
            FileType::RegularFile => PathKind::File,
            _ => return None,
        };
        self.may(&data, wanted).then(|| (file.into(), is))
    }

    /// Makes a nameless file in a folder, as the caller would have made it, if its user may.
    fn make_nameless(&self, folder: &str, wanted: OFlags, mode: Mode) -> Option<OwnedFd> {
        let root = format!("/proc/{}/root", self.tid.0);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty()).ok()?;
        let links = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let folder = rustix::fs::openat2(&root, folder, flags, Mode::empty(), links).ok()?;
        let data = fs::File::from(folder.try_clone().ok()?).metadata().ok()?;
        let needed = WRITE_BIT | EXECUTE_BIT;
        // Sticky folders give new files to whoever makes them; others may give them to their group.
        let gives_group = data.mode() & Mode::SGID.bits() != 0;
        if !self.has(&data, needed) || gives_group {
            return None;
        }
        let passed = OFlags::ACCMODE | OFlags::APPEND | OFlags::EXCL | OFlags::NONBLOCK;
        let how = wanted.intersection(passed) | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, ".", how, Mode::RUSR | Mode::WUSR).ok()?;
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        rustix::fs::fchown(&file, Some(user), Some(group)).ok()?;
        let mode = mode.difference(Mode::from_raw_mode(self.umask));
        rustix::fs::fchmod(&file, mode).ok()?;
        Some(file)
    }

    /// Opens the folder of the caller in its own `/proc`, whose numbers may be those of another namespace.
    fn folder(&self, proc: &OwnedFd) -> Option<OwnedFd> {
        let device = |data: rustix::fs::Stat| data.st_dev;
        let theirs = device(rustix::fs::fstat(proc).ok()?);
        let ours = device(rustix::fs::stat("/proc").ok()?);
        let number = match theirs == ours {
            true => self.pid,
            false => self.own_pid,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(proc, number.to_string(), flags, Mode::empty()).ok()?;
        let here = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let there = read_at(&folder, "stat")?;
        // The same number in a namespace between ours and the caller's is another process.
        (start_time(&here)? == start_time(&there)?).then_some(folder)
    }

    /// Returns whether the mode of a file allows the caller's user what the agent may do. Supplementary groups and
    /// capabilities do not count: files of a process belong to its user, or to root.
    fn may(&self, data: &fs::Metadata, wanted: OFlags) -> bool {
        let needed = match wanted.intersection(OFlags::ACCMODE) {
            OFlags::RDONLY => READ_BIT,
            OFlags::WRONLY => WRITE_BIT,
            _ => READ_BIT | WRITE_BIT,
        };
        self.has(data, needed)
    }

    fn has(&self, data: &fs::Metadata, needed: u32) -> bool {
        const ROOT: u32 = 0;
        let shift = match (data.uid() == self.user, data.gid() == self.group) {
            (true, _) => OWNER_SHIFT,
            (false, true) => GROUP_SHIFT,
            (false, false) => 0,
        };
        self.user == ROOT && data.uid() == ROOT || data.mode() >> shift & needed == needed
    }
}

fn read_at(folder: &OwnedFd, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder.as_fd(), name, flags, Mode::empty()).ok()?;
    std::io::read_to_string(fs::File::from(file)).ok()
}

/// Time at which a process started, since the system did (proc_pid_stat(5), field 22; two come before the name's end).
fn start_time(stat: &str) -> Option<&str> {
    const AFTER_NAME: usize = 19;
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(AFTER_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn myself() -> Caller {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        Caller::read(Tid(tid)).expect("this thread lives")
    }

    #[test]
    fn files_of_processes_have_one_name_and_other_files_none() {
        let caller = myself();
        let (pid, tid) = (caller.own_pid, caller.own_tid);
        for (path, expected) in [
            ("/proc/self/stat".to_owned(), "/proc/self/stat".to_owned()),
            (format!("/proc/{pid}/stat"), "/proc/self/stat".to_owned()),
            (
                "/proc/thread-self/comm".to_owned(),
                format!("/proc/self/task/{tid}/comm"),
            ),
            ("/proc/net/tcp".to_owned(), "/proc/self/net/tcp".to_owned()),
            ("/proc/mounts".to_owned(), "/proc/self/mounts".to_owned()),
            ("/proc/1/stat".to_owned(), "/proc/1/stat".to_owned()),
            (format!("/proc/{pid}1/stat"), format!("/proc/{pid}1/stat")),
        ] {
            assert_eq!(caller.name(&path).as_deref(), Some(&*expected), "{path}");
        }
        for path in [
            "/proc/self/../1/environ".to_owned(),
            "/proc/self//stat".to_owned(),
            "/proc/sys/kernel/hostname".to_owned(),
            "/etc/passwd".to_owned(),
        ] {
            assert_eq!(caller.name(&path), None, "{path}");
        }
    }

    #[test]
    fn no_link_is_followed_and_the_mode_counts() {
        let caller = myself();
        let opened = |name: &str, flags| caller.open(&format!("/proc/self/{name}"), flags);
        let (_, is) = opened("stat", OFlags::RDONLY).expect("it is ours");
        assert_eq!(is, PathKind::File);
        let (_, is) = opened("fd", OFlags::RDONLY | OFlags::DIRECTORY).expect("it is ours");
        assert_eq!(is, PathKind::Folder);
        for link in ["exe", "root/etc/hostname", "cwd", "fd/0", "ns/user"] {
            assert!(opened(link, OFlags::RDONLY).is_none(), "{link}");
        }
        let file = opened("stat", OFlags::RDONLY).expect("it is ours").0;
        let data = fs::File::from(file).metadata().expect("it is open");
        let other = Caller {
            user: data.uid() + 1,
            group: data.gid() + 1,
            ..myself()
        };
        assert!(other.may(&data, OFlags::RDONLY), "everybody reads it");
        assert!(!other.may(&data, OFlags::RDWR));
        let (file, _) = opened("environ", OFlags::RDONLY).expect("it is ours");
        let data = fs::File::from(file).metadata().expect("it is open");
        assert!(caller.may(&data, OFlags::RDONLY) && !other.may(&data, OFlags::RDONLY));
    }
}
