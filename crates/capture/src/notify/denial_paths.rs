//! Finds calls that failed because of an enforcer that does not report denials.
//!
//! Inspected while the caller is stopped after the call, or when it has gone on; its names are resolved as it
//! would have resolved them.

use std::os::fd::{AsRawFd, OwnedFd};

use abi::{Capabilities, Errno, Syscall};
use event::{Known, Outcome, Param, ParamSource, Tid};
use policy::compile::denial_classifier::{
    Attempt, DenialCause, DenialClassifier, DeniedObject, NamedFile, PathKind,
};
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, StatxFlags};

use super::argument_check;
use crate::tripwire;
use decoder::call::Call;
use decoder::decode::Decoded;
use decoder::process_inspector::ProcessInspector;
use process_info::procfs::LINK_LIMIT;

/// `AT_FDCWD`.
const AT_FDCWD: i32 = -100;
/// Calls that do not follow a link in the last component. linkat(2) can be asked to, which does not change
/// which process may make a name in that folder.
const NOT_FOLLOWED: [Syscall; 17] = [
    Syscall::BIND,
    Syscall::LINK,
    Syscall::LINKAT,
    Syscall::MKDIR,
    Syscall::MKDIRAT,
    Syscall::MKNOD,
    Syscall::MKNODAT,
    Syscall::RENAME,
    Syscall::RENAMEAT,
    Syscall::RENAMEAT2,
    Syscall::RMDIR,
    Syscall::SYMLINK,
    Syscall::SYMLINKAT,
    Syscall::UNLINK,
    Syscall::UNLINKAT,
    Syscall::READLINK,
    Syscall::READLINKAT,
];
/// The error of moves between mounts (`EXDEV`), with which Landlock refuses moves to other folders, too.
const BETWEEN_MOUNTS: Errno = Errno(18);
/// Number of interpreters of interpreters that the kernel follows, and the loader of the last.
const CHAIN: usize = 6;

/// A call that an enforcer denied.
pub(super) struct Denial<'w> {
    pub(super) cause: DenialCause<'w>,
    pub(super) errno: Errno,
    /// The file that it was about.
    pub(super) object: Option<DeniedObject>,
}

/// Returns the rule that a call failed by, the error, and the file.
pub(super) fn blame<'w>(
    classifier: &'w DenialClassifier,
    call: &Call,
    decoded: &Decoded<'_>,
    outcome: Outcome,
    inspector: &ProcessInspector,
    lacked: Capabilities,
) -> Option<Denial<'w>> {
    let Outcome::Returned(result) = outcome else {
        return None;
    };
    let errno = Errno(i32::try_from(-result).ok().filter(|errno| *errno > 0)?);
    if !classifier.may_be(errno) {
        return None;
    }
    let paths = named(call, decoded, inspector);
    let attempt = Attempt {
        call: call.syscall,
        args: call.args,
        errno,
        paths: &paths,
        port: port(decoded),
        is_root: inspector.is_root(call.tid),
        lacked,
        is_one_mount: match errno {
            BETWEEN_MOUNTS => is_one_mount(call, decoded, inspector),
            _ => None,
        },
    };
    let (cause, object) = (classifier.classify(&attempt)?, classifier.object(&attempt));
    let is_beyond = |object: &DeniedObject| is_unreachable(&object.path, inspector);
    if classifier.is_list(cause.rule) && object.as_ref().is_some_and(is_beyond) {
        return None;
    }
    Some(Denial {
        cause,
        errno,
        object,
    })
}

/// Returns whether the modes of folders keep this user from a file: a search along `PATH` meets such files, and
/// no policy denies them.
fn is_unreachable(path: &str, inspector: &ProcessInspector) -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    let path = path.to_owned();
    let look = move || rustix::fs::access(path, Access::EXISTS);
    inspector.within_deadline(look) == Some(Err(rustix::io::Errno::ACCESS))
}

fn port(decoded: &Decoded<'_>) -> Option<u16> {
    match decoded.descriptor?.socket?.remote {
        Known::Yes(endpoint) => Some(endpoint.port),
        _ => None,
    }
}

/// Returns the files that a call names.
fn named(call: &Call, decoded: &Decoded<'_>, inspector: &ProcessInspector) -> Vec<NamedFile> {
    let tid = call.tid;
    let follows = !NOT_FOLLOWED.contains(&call.syscall.base());
    let written = as_passed(call, decoded);
    let mut found: Vec<NamedFile> = written
        .map(|(raw, base)| place(tid, raw, base, follows, inspector))
        .collect();
    let socket = decoded.descriptor.and_then(|descriptor| descriptor.socket);
    if let Some(path) = socket.and_then(|socket| socket.unix_path)
        && path.starts_with(b"/")
    {
        found.push(place(tid, path, None, false, inspector));
    }
    if matches!(call.syscall.base(), Syscall::EXECVE | Syscall::EXECVEAT)
        && let Some(program) = found.first().filter(|program| program.is == PathKind::File)
    {
        let opened = interpreters(tid, &program.path, inspector);
        found.extend(opened);
    }
    found
}

/// Returns the paths that a call passes, each with the descriptor of the folder that it starts at.
fn as_passed<'a>(
    call: &'a Call,
    decoded: &'a Decoded<'_>,
) -> impl Iterator<Item = (&'a [u8], Option<i32>)> {
    let specs = call.kind.spec().params.iter();
    specs.zip(decoded.params).filter_map(|(spec, param)| {
        let (ParamSource::Path { base, .. }, Param::Text(raw)) = (spec.source, param) else {
            return None;
        };
        let base = base.map(|position| call.int(position));
        Some((&**raw, base.filter(|number| *number != AT_FDCWD)))
    })
}

/// Returns whether the two names of a move or link are on one mount, as the kernel compares them before it asks Landlock;
/// `None` if that cannot be found out.
fn is_one_mount(call: &Call, decoded: &Decoded<'_>, inspector: &ProcessInspector) -> Option<bool> {
    let mounts = as_passed(call, decoded).map(|(raw, base)| {
        let (raw, base) = match through_proc(raw, false, call.tid, inspector) {
            Some(path) => (path, None),
            None => without_self(raw, base, call.tid, inspector),
        };
        let folder = split(&raw).0;
        mount(&argument_check::find(call.tid, folder, base, inspector).ok()?)
    });
    let [from, to] = mounts.collect::<Option<Vec<u64>>>()?.try_into().ok()?;
    if from != to || !matches!(call.syscall.base(), Syscall::LINK | Syscall::LINKAT) {
        return Some(from == to);
    }
    // A file can be a mount of its own. That of a symbolic link is unknown: `find` follows it, and linkat(2) may not.
    let (raw, base) = as_passed(call, decoded).next()?;
    let (raw, base) = match through_proc(raw, true, call.tid, inspector) {
        Some(path) => (path, None),
        None => without_self(raw, base, call.tid, inspector),
    };
    let file = argument_check::find(call.tid, &raw, base, inspector).ok()?;
    (mount(&file)? == to).then_some(true)
}

/// The id of the mount that a file is on. File systems are not asked: one that hangs could not answer.
fn mount(file: &OwnedFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID).ok()?;
    let has_mount = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::MNT_ID);
    has_mount.then_some(status.stx_mnt_id)
}

/// Splits a path into the folder and the name in it.
fn split(raw: &[u8]) -> (&[u8], &[u8]) {
    let trimmed = raw.strip_suffix(b"/").unwrap_or(raw);
    match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", &trimmed[1..]),
        Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
        None => (b".", trimmed),
    }
}

/// Resolves a name. If that fails, returns the name as written.
fn place(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    follows: bool,
    inspector: &ProcessInspector,
) -> NamedFile {
    let direct = through_proc(raw, follows, tid, inspector);
    let (raw, base) = match direct {
        Some(path) => (path, None),
        None => without_self(raw, base, tid, inspector),
    };
    let whole = argument_check::find(tid, &raw, base, inspector);
    if let (Ok(found), true) = (&whole, follows) {
        return described(found, inspector)
            .unwrap_or_else(|| as_written(tid, &raw, base, PathKind::Unknown, inspector));
    }
    let is = match &whole {
        Ok(found) => kind(found),
        Err(rustix::io::Errno::NOENT) => PathKind::Missing,
        Err(_) => PathKind::Unknown,
    };
    // The folder exists, or the call would have failed with another error.
    let (folder, name) = split(&raw);
    let folder = argument_check::find(tid, folder, base, inspector);
    let folder = folder.ok().and_then(|folder| described(&folder, inspector));
    match folder {
        Some(folder) if !matches!(name, b"." | b".." | b"") => NamedFile {
            path: format!(
                "{}/{}",
                folder.path.trim_end_matches('/'),
                String::from_utf8_lossy(name)
            ),
            is,
        },
        _ => as_written(tid, &raw, base, is, inspector),
    }
}

/// Replaces a link of the caller below `/proc` by the path of the file that it leads to. A last component that the call
/// does not follow stays, and so does a link of another process: a policy can deny following it.
pub(super) fn through_proc(
    raw: &[u8],
    follows: bool,
    tid: Tid,
    inspector: &ProcessInspector,
) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(raw).ok()?;
    let text = match text.strip_prefix("/dev/fd/") {
        Some(rest) => format!("/proc/self/fd/{rest}"),
        None => text.to_owned(),
    };
    let mut words = text.strip_prefix("/proc/")?.split('/');
    let own = inspector.thread_group(tid).map_or(tid.0, |pid| pid.0);
    let pid = match words.next()? {
        "self" => own,
        "thread-self" => tid.0,
        number => number.parse().ok()?,
    };
    if pid != own && pid != tid.0 {
        return None;
    }
    let mut link = words.next()?;
    if link == "task" {
        words.next()?;
        link = words.next()?;
    }
    let place = match link {
        "root" | "cwd" | "exe" => format!("/proc/{pid}/{link}"),
        "fd" => format!("/proc/{pid}/fd/{}", words.next()?.parse::<u32>().ok()?),
        _ => return None,
    };
    let rest: Vec<&str> = words.collect();
    if rest.is_empty() && !follows {
        return None;
    }
    let target = std::fs::read_link(place)
        .ok()?
        .into_os_string()
        .into_encoded_bytes();
    // A pipe or socket has no path.
    let target = target.starts_with(b"/").then_some(target)?;
    Some(match rest.is_empty() {
        true => target,
        false => [&target[..], b"/", rest.join("/").as_bytes()].concat(),
    })
}

/// Replaces `/proc/self`, which means the caller and not this process.
fn without_self(
    raw: &[u8],
    base: Option<i32>,
    tid: Tid,
    inspector: &ProcessInspector,
) -> (Vec<u8>, Option<i32>) {
    if let (b"", Some(number)) = (raw, base) {
        // The descriptor alone names it (`AT_EMPTY_PATH`).
        let mut buffer = [0; LINK_LIMIT];
        let link = inspector.descriptor_link(tid, number, &mut buffer);
        return link.map_or((Vec::new(), base), |link| (link.to_vec(), None));
    }
    let rest = [&b"/proc/self/"[..], b"/proc/thread-self/"]
        .iter()
        .find_map(|prefix| raw.strip_prefix(*prefix));
    let Some(rest) = rest else {
        return (raw.to_vec(), base);
    };
    if let Some(below) = rest.strip_prefix(b"root/") {
        return ([b"/", below].concat(), None);
    }
    if let Some(below) = rest.strip_prefix(b"cwd/") {
        return (below.to_vec(), None);
    }
    let pid = inspector.thread_group(tid).map_or(tid.0, |pid| pid.0);
    let folder = match raw.starts_with(b"/proc/thread-self/") {
        true => format!("/proc/{pid}/task/{}/", tid.0),
        false => format!("/proc/{pid}/"),
    };
    ([folder.as_bytes(), rest].concat(), base)
}

fn as_written(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    is: PathKind,
    inspector: &ProcessInspector,
) -> NamedFile {
    let path = tripwire::joined(raw, base, tid, inspector);
    let path = path.unwrap_or_else(|| raw.to_vec());
    NamedFile {
        path: match path.is_empty() {
            true => "/".to_owned(),
            false => String::from_utf8_lossy(&path).into_owned(),
        },
        is,
    }
}

fn described(found: &OwnedFd, inspector: &ProcessInspector) -> Option<NamedFile> {
    let path = inspector.own_descriptor(found).ok()?;
    Some(NamedFile {
        path: String::from_utf8_lossy(&path).into_owned(),
        is: kind(found),
    })
}

fn kind(found: &OwnedFd) -> PathKind {
    match decoder::names::file_type(found) {
        Ok(FileType::Directory) => PathKind::Folder,
        Ok(_) => PathKind::File,
        Err(_) => PathKind::Unknown,
    }
}

/// Returns what is executed with a program: the interpreters of scripts, and the loader. The kernel gets to none of them if
/// modes or a mount (`noexec`) keep this user from executing the program.
fn interpreters(tid: Tid, program: &str, inspector: &ProcessInspector) -> Vec<NamedFile> {
    let mut found: Vec<NamedFile> = Vec::new();
    while found.len() < CHAIN {
        let next = found.last().map_or(program, |named| &named.path);
        match interpreter(tid, next, inspector) {
            Some(raw) => found.push(place(tid, &raw, None, true, inspector)),
            None => break,
        }
    }
    found
}

fn interpreter(tid: Tid, path: &str, inspector: &ProcessInspector) -> Option<Vec<u8>> {
    let found = argument_check::find(tid, path.as_bytes(), None, inspector).ok()?;
    if decoder::names::file_type(&found) != Ok(FileType::RegularFile) {
        return None;
    }
    let read = move || {
        let own = format!("/proc/self/fd/{}", found.as_raw_fd());
        rustix::fs::access(&own, Access::EXEC_OK).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(own, flags, Mode::empty()).ok()?;
        let file = file.into();
        let read = |offset, size| sys::file::read_up_to(&file, offset, size);
        policy::executable::interpreter(read).ok()?
    };
    let path = inspector.within_deadline(read)??;
    path.starts_with(b"/").then_some(path)
}
