//! Compares what the kernel really did with what the caller's memory had said.
//!
//! The facts are read while the caller is stopped after the call: the open file behind the new descriptor,
//! the other end of the socket, the name that the kernel noted for the new program. Other threads run on
//! meanwhile and may have replaced the descriptor; it then differs from what was read too, unless they put
//! the same file there.

use std::os::fd::OwnedFd;

use abi::Syscall;
use bumpalo::Bump;
use event::{DescriptorSource, Endpoint, Known, Name, Outcome, Param, ParamSource, Pid, Tid};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use decoder::call::Call;
use decoder::decode::{self, Decoded, OwnedDecoded};
use decoder::process_inspector::ProcessInspector;
use process_info::memory::Memory;
use process_info::procfs::{LINK_LIMIT, ProcError};

use super::proc_entries::{self, EntryComparison};

/// `-EINPROGRESS`: a connect that continues.
const CONNECTING: i64 = -115;

/// Result of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ArgumentComparison {
    /// The kernel used what had been read, or the call had no effect.
    Same,
    /// The kernel used something else.
    Changed(CallObject),
    /// Undecidable: the name leads through `/proc/self` or the like, which differs for each process.
    Unclear(CallObject),
    /// The kernel's side could not be read.
    Unlearnt,
}

/// Object that a call was really about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallObject {
    /// The file that was opened or executed.
    Path(Vec<u8>),
    /// The address that the socket was connected to.
    Remote(Endpoint),
    /// The present names in memory. They may be those that the kernel read, or the earlier ones.
    Arguments(Box<OwnedDecoded>, String),
}

impl std::fmt::Display for CallObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", String::from_utf8_lossy(path)),
            Self::Arguments(_, names) => f.write_str(names),
            Self::Remote(Endpoint { ip, port }) if ip.is_ipv6() => write!(f, "[{ip}]:{port}"),
            Self::Remote(Endpoint { ip, port }) => write!(f, "{ip}:{port}"),
        }
    }
}

/// Compares what was read with what the kernel did.
pub(crate) fn compare(
    call: &Call,
    decoded: &Decoded<'_>,
    outcome: Outcome,
    pid: Pid,
    inspector: &ProcessInspector,
) -> ArgumentComparison {
    let Outcome::Returned(result) = outcome else {
        return ArgumentComparison::Same;
    };
    match call.syscall.base() {
        _ if call.replaces_program() && result == 0 => executed(call, decoded, pid, inspector),
        Syscall::CONNECT if result == 0 || result == CONNECTING => {
            connected(call, decoded, pid, inspector)
        }
        _ => match (call.kind.spec().descriptor, i32::try_from(result)) {
            (DescriptorSource::Opened { .. }, Ok(number)) if number >= 0 => {
                opened(call, decoded, number, pid, inspector)
            }
            _ => ArgumentComparison::Same,
        },
    }
}

/// Compares what was read with the content of the memory after the call.
pub(crate) fn read_again(
    call: &Call,
    decoded: &Decoded<'_>,
    memory: &Memory,
    arena: &Bump,
) -> ArgumentComparison {
    let again = decode::decode(call, memory, arena);
    let is_path = |source| matches!(source, ParamSource::Path { .. });
    let sources = call.kind.spec().params.iter().map(|spec| spec.source);
    let before_and_now = decoded.params.iter().zip(again.params).zip(sources);
    let mut paths = before_and_now.filter(|(_, source)| is_path(*source));
    if paths.any(|((before, now), _)| *now == Param::Unreadable && before != now) {
        return ArgumentComparison::Unlearnt;
    }
    let sources = call.kind.spec().params.iter().map(|spec| spec.source);
    let mut now = decoded.params.iter().zip(again.params).zip(sources);
    let has_other_path = now.any(|((before, now), source)| is_path(source) && before != now);
    let end = remote(&again);
    if has_other_path || end.is_some() && remote(decoded) != end {
        return ArgumentComparison::Unclear(CallObject::Arguments(
            Box::new(again.detach()),
            names(call, &again),
        ));
    }
    ArgumentComparison::Same
}

/// Formats the paths that a call passes, or the address, for a message.
pub(crate) fn names(call: &Call, decoded: &Decoded<'_>) -> String {
    let sources = call.kind.spec().params.iter().map(|spec| spec.source);
    let params = decoded.params.iter().zip(sources);
    let paths = params.filter_map(|(param, source)| match (param, source) {
        (Param::Text(path), ParamSource::Path { .. }) => Some(String::from_utf8_lossy(path)),
        _ => None,
    });
    let paths: Vec<_> = paths.collect();
    match (paths.is_empty(), remote(decoded)) {
        (true, Some(end)) => CallObject::Remote(end).to_string(),
        _ => paths.join(" "),
    }
}

/// Returns the object that was read, for a message.
pub(crate) fn given(decoded: &Decoded<'_>) -> Option<CallObject> {
    let path = decoded.params.iter().find_map(|param| match param {
        Param::Text(text) => Some(CallObject::Path(text.to_vec())),
        _ => None,
    });
    path.or_else(|| remote(decoded).map(CallObject::Remote))
}

/// Replaces what had been read with the actual object.
pub(crate) fn correct<'a>(
    mut decoded: Decoded<'a>,
    call: &Call,
    what: &CallObject,
    arena: &'a Bump,
) -> Decoded<'a> {
    match what {
        CallObject::Path(path) => {
            let path: &'a [u8] = arena.alloc_slice_copy(path);
            let sources = call.kind.spec().params.iter().map(|spec| spec.source);
            let params = decoded.params.iter().zip(sources);
            decoded.params =
                arena.alloc_slice_fill_iter(params.map(|(param, source)| match source {
                    ParamSource::Path { .. } => Param::Text(path),
                    _ => *param,
                }));
            if let Some(descriptor) = &mut decoded.descriptor {
                descriptor.name = Name::Resolved(path);
            }
        }
        // The names read before are as likely.
        CallObject::Arguments(..) => {}
        CallObject::Remote(endpoint) => {
            if let Some(descriptor) = &mut decoded.descriptor {
                // The kind was derived from the address that was read.
                descriptor.kind = Known::NotYet;
                descriptor.name = Name::None;
                if let Some(socket) = &mut descriptor.socket {
                    socket.remote = Known::Yes(*endpoint);
                    socket.unix_path = None;
                }
            }
        }
    }
    decoded
}

/// Returns the name that the call passed, where that is known.
fn as_passed<'a>(name: Name<'a>, call: &Call) -> Name<'a> {
    match name {
        Name::Opened { raw, .. } | Name::Unresolved { raw } => Name::Passed {
            raw,
            base: decode::base(call),
        },
        name => name,
    }
}

fn opened(
    call: &Call,
    decoded: &Decoded<'_>,
    number: i32,
    pid: Pid,
    inspector: &ProcessInspector,
) -> ArgumentComparison {
    let Some(descriptor) = decoded.descriptor else {
        return ArgumentComparison::Same;
    };
    let mut buffer = [0; LINK_LIMIT];
    let Ok(link) = inspector.descriptor_link(call.tid, number, &mut buffer) else {
        // Another thread has closed it.
        return ArgumentComparison::Unlearnt;
    };
    let file = link.strip_suffix(b" (deleted)").unwrap_or(link);
    let changed = || ArgumentComparison::Changed(CallObject::Path(file.to_vec()));
    let unclear = || ArgumentComparison::Unclear(CallObject::Path(file.to_vec()));
    match as_passed(descriptor.name, call) {
        _ if matches!(descriptor.name, Name::Opened { path, .. } if path == file) => {
            ArgumentComparison::Same
        }
        Name::Passed { raw, .. } if is_plain(raw) && raw == file => ArgumentComparison::Same,
        Name::Passed { raw, base } => {
            if is_temporary(decoded) {
                return temporary(raw, file);
            }
            let mode = LookupMode::of(call, decoded);
            match resolve(call.tid, raw, base, mode, inspector) {
                Ok((path, _)) if path == file => ArgumentComparison::Same,
                Ok((path, found)) if proc_entries::is_procfs(&found) => {
                    let is_foreign = may_mean_self(raw) && !inspector.is_own_procfs(&found);
                    match proc_entries::compare(&path, file, pid) {
                        EntryComparison::Callers => ArgumentComparison::Same,
                        EntryComparison::Numbers if is_foreign => unclear(),
                        EntryComparison::Numbers | EntryComparison::Other => changed(),
                    }
                }
                Ok(_) => changed(),
                // A pipe or the like behind a descriptor: only paths like this one lead to it.
                Err(_) if may_mean_self(raw) && !file.starts_with(b"/") => ArgumentComparison::Same,
                // In another pid namespace the agent has no folder of that name.
                Err(Errno::NOENT) if may_mean_self(raw) => unclear(),
                Err(Errno::NOENT) if is_plain(raw) => changed(),
                Err(Errno::NOENT) if link.len() != file.len() => ArgumentComparison::Same,
                Err(Errno::NOENT | Errno::NOTDIR) => changed(),
                Err(_) => unclear(),
            }
        }
        // It could not be read before the call; now it is known.
        Name::Unreadable => changed(),
        Name::None | Name::Resolved(_) | Name::Opened { .. } | Name::Unresolved { .. } => {
            ArgumentComparison::Same
        }
    }
}

/// `O_TMPFILE` without `O_DIRECTORY`, which it includes.
const TEMPORARY: u64 = 0o20_000_000;

fn is_temporary(decoded: &Decoded<'_>) -> bool {
    let flags = decoded.params.iter().find_map(|param| match param {
        Param::Uint(flags) => Some(*flags),
        _ => None,
    });
    flags.is_some_and(|flags| flags & TEMPORARY != 0)
}

/// Compares the names of a temporary file, which the kernel calls `/folder/#123`.
fn temporary(folder: &[u8], file: &[u8]) -> ArgumentComparison {
    let parent = file.iter().rposition(|byte| *byte == b'/');
    match parent.map(|end| &file[..end]) {
        Some(parent) if parent == folder.strip_suffix(b"/").unwrap_or(folder) => {
            ArgumentComparison::Same
        }
        _ => ArgumentComparison::Unclear(CallObject::Path(file.to_vec())),
    }
}

/// Returns whether a path is absolute and normal, so that it is exact unless a link is on the way.
fn is_plain(path: &[u8]) -> bool {
    path.starts_with(b"/")
        && path[1..]
            .split(|byte| *byte == b'/')
            .all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Rules for the resolution of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LookupMode {
    /// A symbolic link at the end is opened itself.
    stays_at_link: bool,
    /// The folder that the name starts at is its root.
    is_rooted: bool,
}

impl LookupMode {
    fn of(call: &Call, decoded: &Decoded<'_>) -> Self {
        let DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
            return Self::default();
        };
        let number = |position: Option<usize>| match decoded.params.get(position?) {
            Some(Param::Uint(number)) => Some(*number),
            _ => None,
        };
        let flags = number(Some(usize::from(flags))).unwrap_or(0);
        let resolve = number(call.kind.param_index("resolve")).unwrap_or(0);
        Self {
            stays_at_link: flags & u64::from(OFlags::NOFOLLOW.bits()) != 0,
            is_rooted: resolve & ResolveFlags::IN_ROOT.bits() != 0,
        }
    }
}

/// Returns the file that a name resolves to now, with its path.
fn resolve(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupMode,
    inspector: &ProcessInspector,
) -> Result<(Vec<u8>, OwnedFd), Errno> {
    let found = find_as(tid, raw, base, manner, inspector)?;
    Ok((inspector.own_descriptor(&found)?, found))
}

/// Resolves a name now, from the caller's root and folder, without waiting for a file system and without
/// following a link that differs for each process.
pub(super) fn find(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    inspector: &ProcessInspector,
) -> Result<OwnedFd, Errno> {
    find_as(tid, raw, base, LookupMode::default(), inspector)
}

fn find_as(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupMode,
    inspector: &ProcessInspector,
) -> Result<OwnedFd, Errno> {
    if manner.is_rooted {
        let folder = open_folder(tid, base, inspector)?;
        return open_below(
            folder,
            raw.to_vec(),
            ResolveFlags::IN_ROOT,
            manner,
            inspector,
        );
    }
    if raw.starts_with(b"/") {
        let root = inspector.open_link(tid, "root")?;
        return open_below(root, raw.to_vec(), ResolveFlags::IN_ROOT, manner, inspector);
    }
    // The folder itself: its path may lead elsewhere, or nowhere.
    let folder = open_folder(tid, base, inspector)?;
    match open_below(
        folder,
        raw.to_vec(),
        ResolveFlags::BENEATH,
        manner,
        inspector,
    ) {
        // The name leaves the folder by `..` or by a link: continue through the caller's root.
        Err(Errno::XDEV) => find_from_root(tid, raw, base, manner, inspector),
        found => found,
    }
}

/// Opens the folder that a relative name starts at.
fn open_folder(
    tid: Tid,
    base: Option<i32>,
    inspector: &ProcessInspector,
) -> Result<OwnedFd, Errno> {
    match base {
        Some(number) => inspector.open_descriptor(tid, number),
        None => inspector.open_link(tid, "cwd"),
    }
}

/// Resolves a relative name that leaves its folder.
fn find_from_root(
    tid: Tid,
    raw: &[u8],
    base: Option<i32>,
    manner: LookupMode,
    inspector: &ProcessInspector,
) -> Result<OwnedFd, Errno> {
    let root = inspector.open_link(tid, "root")?;
    let mut buffer = [0; LINK_LIMIT];
    let folder = match base {
        Some(number) => inspector.descriptor_link(tid, number, &mut buffer),
        None => inspector.link(tid, "cwd", &mut buffer),
    };
    let folder = folder.map_err(ProcError::errno)?;
    let mut root_buffer = [0; LINK_LIMIT];
    let root_path = inspector
        .link(tid, "root", &mut root_buffer)
        .map_err(ProcError::errno)?;
    let folder = match root_path {
        b"/" => folder,
        root => folder.strip_prefix(root).ok_or(Errno::ACCESS)?,
    };
    let path = [folder, b"/", raw].concat();
    open_below(root, path, ResolveFlags::IN_ROOT, manner, inspector)
}

/// Opens a file below a folder. The caller has just used the path, so it is in the kernel's cache. Some file
/// systems do not answer from the cache (overlayfs, at links), and some may never answer.
fn open_below(
    folder: OwnedFd,
    path: Vec<u8>,
    scope: ResolveFlags,
    manner: LookupMode,
    inspector: &ProcessInspector,
) -> Result<OwnedFd, Errno> {
    let open = move |folder: &OwnedFd, path: &[u8], more| {
        let last = match manner.stays_at_link {
            true => OFlags::NOFOLLOW,
            false => OFlags::empty(),
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC | last;
        let resolve = scope | ResolveFlags::NO_MAGICLINKS | more;
        rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
    };
    match open(&folder, &path, ResolveFlags::CACHED) {
        // Linux before 5.12 does not know the flag.
        Err(Errno::AGAIN | Errno::INVAL) => inspector
            .within_deadline(move || open(&folder, &path, ResolveFlags::empty()))
            .unwrap_or(Err(Errno::TIMEDOUT)),
        found => found,
    }
}

fn may_mean_self(raw: &[u8]) -> bool {
    raw.split(|byte| *byte == b'/')
        .any(|name| matches!(name, b"self" | b"thread-self" | b"fd"))
}

fn connected(
    call: &Call,
    decoded: &Decoded<'_>,
    pid: Pid,
    inspector: &ProcessInspector,
) -> ArgumentComparison {
    let Some(found) = inspector.descriptor(pid, call.tid, call.int(0)) else {
        return ArgumentComparison::Unlearnt;
    };
    let Some(Known::Yes(remote)) = found.socket.map(|socket| socket.remote) else {
        // An address of another family, a dissolved connection, or a call refused already.
        return ArgumentComparison::Same;
    };
    match self::remote(decoded) {
        Some(given) if is_same_end(given, remote) => ArgumentComparison::Same,
        _ => ArgumentComparison::Changed(CallObject::Remote(remote)),
    }
}

fn remote(decoded: &Decoded<'_>) -> Option<Endpoint> {
    match decoded.descriptor?.socket?.remote {
        Known::Yes(endpoint) => Some(endpoint),
        _ => None,
    }
}

/// Returns whether two addresses are the same to the kernel, which takes the unspecified address for the host's own.
fn is_same_end(given: Endpoint, found: Endpoint) -> bool {
    let (ip, other) = (given.ip.to_canonical(), found.ip.to_canonical());
    given.port == found.port && (ip == other || ip.is_unspecified() && other.is_loopback())
}

/// Compares the name of an executed program, also of scripts: the kernel keeps the given name on the new stack.
fn executed(
    call: &Call,
    decoded: &Decoded<'_>,
    pid: Pid,
    inspector: &ProcessInspector,
) -> ArgumentComparison {
    let Some(name) = noted_name(pid, inspector) else {
        return ArgumentComparison::Unlearnt;
    };
    let Some(CallObject::Path(given)) = given(decoded) else {
        return ArgumentComparison::Changed(CallObject::Path(name));
    };
    let from_descriptor = call.syscall.base() == Syscall::EXECVEAT
        && name.starts_with(b"/dev/fd/")
        && (given.is_empty() || name.ends_with(&[b"/", &given[..]].concat()));
    if name == given || from_descriptor {
        ArgumentComparison::Same
    } else {
        ArgumentComparison::Changed(CallObject::Path(name))
    }
}

/// Reads `AT_EXECFN` of the auxiliary vector (getauxval(3)). Its page is fresh, so the read does not block.
fn noted_name(pid: Pid, inspector: &ProcessInspector) -> Option<Vec<u8>> {
    const AT_EXECFN: u64 = 31;
    let (bytes, _) = inspector.auxiliary_vector(pid)?;
    // The first value is an address: 32-bit programs have it in the upper half of the first word.
    let first = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    let width = if first > u64::from(u32::MAX) { 4 } else { 8 };
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let address = bytes.chunks_exact(2 * width).find_map(|pair| {
        let (kind, value) = pair.split_at(width);
        (number(kind) == AT_EXECFN).then(|| number(value))
    })?;
    let mut name = Vec::new();
    sys::process_memory::read_c_string(pid.0, address, &mut name, LINK_LIMIT).ok()?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn only_names_that_say_what_they_are_are_plain() {
        for path in [&b"/etc/shadow"[..], b"/a", b"/usr/lib/x.so"] {
            assert!(is_plain(path), "{}", String::from_utf8_lossy(path));
        }
        for path in [
            &b"etc/shadow"[..],
            b"/etc//shadow",
            b"/etc/../a",
            b"/a/",
            b"/./a",
            b"",
            b"/",
        ] {
            assert!(!is_plain(path), "{}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn ends_are_compared_as_the_kernel_takes_them() {
        let end = |ip: &str, port| Endpoint {
            ip: ip.parse::<IpAddr>().expect("an address"),
            port,
        };
        assert!(is_same_end(end("0.0.0.0", 80), end("127.0.0.1", 80)));
        assert!(is_same_end(end("::", 80), end("::1", 80)));
        assert!(is_same_end(end("::ffff:10.0.0.1", 80), end("10.0.0.1", 80)));
        assert!(!is_same_end(end("10.0.0.1", 80), end("10.0.0.1", 81)));
        assert!(!is_same_end(end("10.0.0.1", 80), end("10.0.0.2", 80)));
        assert!(!is_same_end(end("0.0.0.0", 80), end("10.0.0.2", 80)));
    }

    #[test]
    fn the_kernel_notes_the_name_of_this_program() {
        let pid = Pid(std::process::id().cast_signed());
        let inspector = ProcessInspector::new().expect("procfs");
        let name = noted_name(pid, &inspector).expect("readable");
        let first = std::env::args_os().next().expect("a name");
        // Cargo starts tests by their full path.
        assert_eq!(name, first.as_encoded_bytes());
    }
}
