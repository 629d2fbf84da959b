//! Resolution of open descriptors of a watched process.
//!
//! Descriptors are not tracked from call to call: a descriptor is resolved when an event needs it. The link
//! in `/proc/TID/fd` has the kind and, for files, the path; a socket is duplicated into the agent for a
//! moment to read its addresses. Where that is refused, the socket tables below `/proc/PID/net` have most of
//! the information, by inode number.

mod address;
mod duplicate;
mod table;

use bumpalo::Bump;
use event::field::connection_name;
use event::{Descriptor, DescriptorKind, Endpoint, Known, Lookup, Name, Role, Socket, Transport};
use rustix::fs::{FileType, Statx};

use crate::deadline::Deadline;
use crate::procfs::{LINK_LIMIT, Proc, ProcError, bracketed_number};

pub use address::{SocketAddress, parse_address};

/// A resolved descriptor, which owns its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedDescriptor {
    /// Kind of the descriptor.
    pub kind: DescriptorKind,
    /// Absolute path of a file; the link's text for anything else (`pipe:[12]`).
    pub name: Vec<u8>,
    /// Device number in the kernel's 32-bit form, if known.
    pub device: Option<u64>,
    /// Inode number, if known.
    pub inode: Option<u64>,
    /// Information on a socket; `None` for other kinds.
    pub socket: Option<ResolvedSocket>,
}

/// A resolved socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedSocket {
    /// Address family (`AF_*`), if known.
    pub domain: Option<u16>,
    /// Transport protocol, if known.
    pub transport: Option<Transport>,
    /// Local endpoint.
    pub local: Known<Endpoint>,
    /// Remote endpoint.
    pub remote: Known<Endpoint>,
    /// Path of a Unix socket: its own, or that of the socket it is connected to.
    pub unix_path: Option<Vec<u8>>,
    /// Path of the Unix socket that it is connected to, if it is known separately.
    pub peer_path: Option<Vec<u8>>,
    /// Set if the socket listens.
    pub listening: bool,
    /// Whether the socket is connected; `None` if unknown.
    pub connected: Option<bool>,
}

/// Resolves an open descriptor of thread `tid` of process `pid`.
///
/// Does not wait for the process: the only step that could block, closing the last reference of a socket that
/// lingers, runs in `deadline`.
pub fn resolve(
    proc: &Proc,
    pid: i32,
    tid: i32,
    number: i32,
    deadline: &Deadline,
) -> Result<ResolvedDescriptor, ProcError> {
    let mut buffer = [0; LINK_LIMIT];
    let link = proc.descriptor_link(tid, number, &mut buffer)?;
    let Some(inode) = socket_inode(link) else {
        return Ok(resolve_file(proc, tid, number, link));
    };
    let socket = resolve_socket(proc, (pid, tid), number, inode, deadline);
    Ok(ResolvedDescriptor {
        kind: socket_kind(&socket),
        name: link.to_vec(),
        device: None,
        inode: Some(inode),
        socket: Some(socket),
    })
}

/// What the link of a descriptor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorLink {
    /// A socket.
    Socket,
    /// The link cannot be read: nothing is known about the descriptor.
    Unreadable,
    /// Anything else, with the text of the link.
    File(Vec<u8>),
}

/// Reads the link of a descriptor. Needs no access to a process.
pub fn read_link(proc: &Proc, tid: i32, number: i32) -> DescriptorLink {
    let mut buffer = [0; LINK_LIMIT];
    match proc.descriptor_link(tid, number, &mut buffer) {
        Ok(link) if socket_inode(link).is_some() => DescriptorLink::Socket,
        Ok(link) => DescriptorLink::File(link.to_vec()),
        Err(_) => DescriptorLink::Unreadable,
    }
}

/// Returns what a file with this link may be, without device and inode: once for each kind that has such links.
pub fn kinds_of_link(link: &[u8]) -> Vec<ResolvedDescriptor> {
    let mut found: Vec<ResolvedDescriptor> = Vec::with_capacity(MODES.len());
    for kind in MODES.map(|mode| kind_of_link(link, mode)) {
        if found.iter().all(|known| known.kind != kind) {
            found.push(ResolvedDescriptor {
                kind,
                name: link.to_vec(),
                device: None,
                inode: None,
                socket: None,
            });
        }
    }
    found
}

/// Resolves a descriptor with this link, which is no socket. Needs no access to a process.
pub fn resolve_file(proc: &Proc, tid: i32, number: i32, link: &[u8]) -> ResolvedDescriptor {
    let metadata = proc.stat_descriptor(tid, number).ok();
    ResolvedDescriptor {
        kind: file_kind(link, metadata.as_ref()),
        name: link.to_vec(),
        device: metadata.as_ref().map(device_number),
        inode: metadata.as_ref().map(|metadata| metadata.stx_ino),
        socket: None,
    }
}

/// The kind of a thread's descriptor, without addresses.
pub fn kind(
    proc: &Proc,
    tid: i32,
    number: i32,
    deadline: &Deadline,
) -> Result<DescriptorKind, ProcError> {
    let mut buffer = [0; LINK_LIMIT];
    let link = proc.descriptor_link(tid, number, &mut buffer)?;
    if let Some(inode) = socket_inode(link) {
        let pid = proc.status(tid)?.tgid;
        return Ok(socket_kind(&resolve_socket(
            proc,
            (pid, tid),
            number,
            inode,
            deadline,
        )));
    }
    let metadata = link
        .starts_with(b"/")
        .then(|| proc.stat_descriptor(tid, number).ok());
    Ok(file_kind(link, metadata.flatten().as_ref()))
}

impl ResolvedDescriptor {
    /// The descriptor in the form of events.
    pub fn as_descriptor(&self, number: i64) -> Descriptor<'_> {
        let name = match self.kind {
            DescriptorKind::File | DescriptorKind::Directory | DescriptorKind::Memfd => {
                Name::Resolved(&self.name)
            }
            DescriptorKind::Pipe if self.name.starts_with(b"/") => Name::Resolved(&self.name),
            _ => Name::None,
        };
        Descriptor {
            number: Known::Yes(number),
            kind: match &self.socket {
                Some(socket) if socket.domain.is_none() => Known::NotYet,
                _ => Known::Yes(self.kind),
            },
            name,
            socket: self.socket.as_ref().map(ResolvedSocket::as_socket),
            device: match self.socket {
                Some(_) => Known::Never,
                None => known(self.device),
            },
            inode: known(self.inode),
        }
    }

    /// The name in the form of `fd.name`: a path, or the endpoints of a connection.
    pub fn name_in<'a>(&self, arena: &'a Bump) -> Lookup<&'a [u8]> {
        let descriptor = self.as_descriptor(0);
        let name = match (descriptor.kind, descriptor.socket, descriptor.name) {
            (Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6), Some(socket), _) => {
                return connection_name(&socket, arena).map_or(Lookup::Unknown, Lookup::Found);
            }
            (Known::Yes(DescriptorKind::Unix), Some(socket), _) => {
                // An unbound socket has the empty name.
                &*arena.alloc_slice_copy(socket.unix_path.unwrap_or_default())
            }
            (Known::NotYet | Known::Unread, ..) => return Lookup::Unknown,
            (_, _, Name::Resolved(path)) => &*arena.alloc_slice_copy(path),
            _ => return Lookup::Missing,
        };
        Lookup::Found(name)
    }
}

impl ResolvedSocket {
    /// The role of the socket in its connection. The kernel does not keep the role; the side with a port from
    /// the ephemeral range is the client, and if both have one, the process itself is the client: a server
    /// rarely listens there, while the peer of a reverse shell often does.
    fn role(&self) -> Role {
        match (self.local, self.remote) {
            _ if self.listening => Role::Server,
            (Known::Yes(local), Known::Yes(remote)) => {
                let is_server = local.port < FIRST_CLIENT_PORT && remote.port >= FIRST_CLIENT_PORT;
                if is_server {
                    Role::Server
                } else {
                    Role::Client
                }
            }
            _ => Role::Unknown,
        }
    }

    /// The socket in the form of events.
    pub fn as_socket(&self) -> Socket<'_> {
        Socket {
            transport: known(self.transport),
            local: self.local,
            remote: self.remote,
            role: self.role(),
            unix_path: self.unix_path.as_deref(),
            connected: known(self.connected),
            name_changed: Known::Never,
            unspecified: None,
        }
    }
}

/// Start of the kernel's default `net.ipv4.ip_local_port_range`.
const FIRST_CLIENT_PORT: u16 = 32768;

/// Maps `None` to unknown.
fn known<T>(value: Option<T>) -> Known<T> {
    value.map_or(Known::NotYet, Known::Yes)
}

fn resolve_socket(
    proc: &Proc,
    (pid, tid): (i32, i32),
    number: i32,
    inode: u64,
    deadline: &Deadline,
) -> ResolvedSocket {
    let look_up = || table::look_up(proc, pid, inode).unwrap_or_default();
    if deadline.is_exhausted() {
        // Without the pool, nothing could close the duplicate later.
        return look_up();
    }
    match duplicate::duplicate(pid, tid, number, inode) {
        Some(socket) => {
            let facts = duplicate::ask(&socket);
            // Closing the last reference blocks for up to the linger time that the owner chose.
            if rustix::net::sockopt::socket_linger(&socket).is_ok_and(|time| time.is_some()) {
                // If the pool refuses, the socket is closed here.
                let _ = deadline.leave(move || drop(socket));
            }
            facts
        }
        None => look_up(),
    }
}

fn socket_inode(link: &[u8]) -> Option<u64> {
    link.starts_with(b"socket:[")
        .then(|| bracketed_number(link))?
}

/// The descriptor kind of a socket with these endpoints.
pub fn socket_kind(socket: &ResolvedSocket) -> DescriptorKind {
    use rustix::net::AddressFamily;
    let endpoints = || {
        let ends = [socket.local, socket.remote];
        ends.into_iter().filter_map(|end| match end {
            Known::Yes(end) => Some(end),
            _ => None,
        })
    };
    match socket.domain.map(AddressFamily::from_raw) {
        Some(AddressFamily::INET) => DescriptorKind::Ipv4,
        // Falco shows v4 traffic over a v6 socket as v4.
        Some(AddressFamily::INET6) if endpoints().any(|end| end.ip.is_ipv4()) => {
            DescriptorKind::Ipv4
        }
        Some(AddressFamily::INET6) => DescriptorKind::Ipv6,
        Some(AddressFamily::UNIX) => DescriptorKind::Unix,
        Some(AddressFamily::NETLINK) => DescriptorKind::Netlink,
        _ => DescriptorKind::OtherSocket,
    }
}

/// Prefixes of the kernel's link texts for descriptors without a path.
const UNNAMED: [(&[u8], DescriptorKind); 19] = [
    (b"anon_inode:[eventfd", DescriptorKind::Event),
    (b"anon_inode:[eventpoll", DescriptorKind::EventPoll),
    (b"anon_inode:[fanotify", DescriptorKind::Inotify),
    (b"anon_inode:[io_uring", DescriptorKind::IoUring),
    (b"anon_inode:[pidfd", DescriptorKind::Pidfd),
    (b"anon_inode:[signalfd", DescriptorKind::Signal),
    (b"anon_inode:[timerfd", DescriptorKind::Timer),
    (b"anon_inode:[userfaultfd", DescriptorKind::Userfault),
    (b"anon_inode:bpf", DescriptorKind::Bpf),
    (b"anon_inode:[bpf", DescriptorKind::Bpf),
    (b"anon_inode:inotify", DescriptorKind::Inotify),
    (b"anon_inode:", DescriptorKind::Other),
    (b"pidfd:[", DescriptorKind::Pidfd),
    (b"pipe:[", DescriptorKind::Pipe),
    (b"/memfd:", DescriptorKind::Memfd),
    (b"net:[", DescriptorKind::Other),
    (b"mnt:[", DescriptorKind::Other),
    (b"pid:[", DescriptorKind::Other),
    (b"user:[", DescriptorKind::Other),
];

/// Modes that stand for all that [`kind_of_link`] distinguishes: unknown, a folder, a named pipe.
const MODES: [u32; 3] = [0, 0o040_000, 0o010_000];

fn file_kind(link: &[u8], metadata: Option<&Statx>) -> DescriptorKind {
    kind_of_link(
        link,
        metadata.map_or(0, |metadata| metadata.stx_mode.into()),
    )
}

/// The descriptor kind of a link in `/proc` and a mode, which is 0 if unknown.
pub fn kind_of_link(link: &[u8], mode: u32) -> DescriptorKind {
    if let Some((_, kind)) = UNNAMED.iter().find(|(prefix, _)| link.starts_with(prefix)) {
        return *kind;
    }
    match (mode != 0).then(|| FileType::from_raw_mode(mode)) {
        Some(FileType::Directory) => DescriptorKind::Directory,
        Some(FileType::Fifo) => DescriptorKind::Pipe,
        _ if link.starts_with(b"/") => DescriptorKind::File,
        _ => DescriptorKind::Other,
    }
}

/// `st_dev` as the kernel encodes it in 32 bits (`new_encode_dev`), which Falco prints.
pub fn device_number(metadata: &Statx) -> u64 {
    let (major, minor) = (metadata.stx_dev_major, metadata.stx_dev_minor);
    u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

#[cfg(test)]
mod tests;
