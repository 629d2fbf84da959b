//! Introduces descriptors that the file has not described yet, by the calls that could have created
//! them.

use event::{
    Descriptor, DescriptorKind, DescriptorSource, Endpoint, Event, Known, Lookup, Name, Pid, Role,
    Socket, Transport,
};

use super::block::Values;
use super::{Moment, Writer};

/// Portable `O_RDONLY`, and with `O_DIRECTORY`.
const READ: u64 = 1;
const READ_DIRECTORY: u64 = 1 | 0x400;

impl Writer {
    pub(super) fn introduce_descriptor(
        &mut self,
        event: &Event<'_>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        let (Some(descriptor), true) = (&event.descriptor, is_open(event)) else {
            return;
        };
        let Known::Yes(number) = descriptor.number else {
            return;
        };
        let key = (event.process.pid, number);
        if event.kind.name() == "close" {
            // The next descriptor with this number is another one.
            let known = self.descriptors.remove(&key);
            if known.is_some() {
                return;
            }
        }
        self.tell(event.process.pid, number, descriptor, moment, out);
        if event.kind.name() == "close" {
            self.descriptors.remove(&key);
        }
    }

    /// Introduces the process's other descriptors that rules have used, for other readers. This
    /// program reads them from the note.
    pub(super) fn introduce_asked(&mut self, event: &Event<'_>, moment: Moment, out: &mut Vec<u8>) {
        let Some(asked) = event.live.descriptors.asked() else {
            return;
        };
        for (number, kind) in asked.types {
            let Lookup::Found(kind) = kind else { continue };
            let is = |(known, _): &&(i32, _)| *known == number;
            let name = match asked.names.iter().find(is) {
                Some((_, Lookup::Found(name))) => name.as_slice(),
                _ => b"",
            };
            let number = i64::from(number);
            let is_own = |own: Descriptor<'_>| own.number == Known::Yes(number);
            if event.descriptor.is_some_and(is_own) {
                continue;
            }
            let descriptor = named(number, kind, name);
            self.tell(event.process.pid, number, &descriptor, moment, out);
        }
    }

    /// Introduces a descriptor unless the file describes it already.
    fn tell(
        &mut self,
        pid: Pid,
        number: i64,
        descriptor: &Descriptor<'_>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        let digest = super::digest(&[format!("{descriptor:?}").as_bytes()]);
        if self.descriptors.insert((pid, number), digest) != Some(digest) {
            self.make(number, descriptor, moment, out);
        }
    }

    fn make(
        &mut self,
        number: i64,
        descriptor: &Descriptor<'_>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        let name = match descriptor.name {
            Name::Resolved(path) => path,
            _ => b"",
        };
        let Known::Yes(kind) = descriptor.kind else {
            return;
        };
        match (kind, &descriptor.socket) {
            (_, Some(socket)) => self.make_socket(number, kind, socket, moment, out),
            (DescriptorKind::File | DescriptorKind::Directory, None) => {
                let flags = if kind == DescriptorKind::Directory {
                    READ_DIRECTORY
                } else {
                    READ
                };
                self.values.clear();
                self.values.push(&number.to_le_bytes());
                self.values.push_text(name);
                self.values.push_number(flags, 4);
                self.values.push_number(0, 4);
                self.state_event("open", false, moment, out);
            }
            (DescriptorKind::Pipe, None) => {
                self.values.clear();
                self.values.push(&0_i64.to_le_bytes());
                self.values.push(&number.to_le_bytes());
                self.values.push(&number.to_le_bytes());
                let inode = match descriptor.inode {
                    Known::Yes(inode) => inode,
                    _ => 0,
                };
                self.values.push_number(inode, 8);
                self.state_event("pipe", false, moment, out);
            }
            (kind, None) => {
                if let Some(call) = maker(kind) {
                    self.values.clear();
                    self.values.push(&number.to_le_bytes());
                    self.state_event(call, false, moment, out);
                }
            }
        }
    }

    fn make_socket(
        &mut self,
        number: i64,
        kind: DescriptorKind,
        socket: &Socket<'_>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        self.values.clear();
        let (domain, ty, protocol) = socket_arguments(kind, socket.transport);
        for argument in [domain, ty, protocol] {
            self.values.push_number(argument, 4);
        }
        self.state_event("socket", true, moment, out);
        self.values.clear();
        self.values.push(&number.to_le_bytes());
        self.state_event("socket", false, moment, out);
        let mut tuple = Vec::new();
        if !push_tuple(&mut tuple, kind, socket) {
            return;
        }
        self.values.clear();
        self.values.push(&number.to_le_bytes());
        self.state_event("connect", true, moment, out);
        self.values.clear();
        self.values.push(&0_i64.to_le_bytes());
        self.values.push(&tuple);
        self.state_event("connect", false, moment, out);
    }
}

/// Returns true if the descriptor was open before the call, or is of a kind that its event does not
/// describe.
fn is_open(event: &Event<'_>) -> bool {
    matches!(
        event.kind.spec().descriptor,
        DescriptorSource::Argument(_)
            | DescriptorSource::Addressed { .. }
            | DescriptorSource::Message { .. }
    )
}

/// Creates a descriptor from its kind and its name, which is that of its file or its ends.
fn named(number: i64, kind: DescriptorKind, name: &[u8]) -> Descriptor<'_> {
    let is_socket = matches!(
        kind,
        DescriptorKind::Ipv4
            | DescriptorKind::Ipv6
            | DescriptorKind::Unix
            | DescriptorKind::Netlink
            | DescriptorKind::OtherSocket
    );
    let ends = std::str::from_utf8(name).ok().and_then(ends_of_name);
    let [local, remote] = ends.map_or([Known::Never; 2], |ends| ends.map(Known::Yes));
    Descriptor {
        number: Known::Yes(number),
        kind: Known::Yes(kind),
        name: Name::Resolved(name),
        socket: is_socket.then_some(Socket {
            transport: Known::Never,
            local,
            remote,
            role: Role::Unknown,
            unix_path: (kind == DescriptorKind::Unix).then_some(name),
            connected: Known::Yes(ends.is_some()),
            name_changed: Known::Yes(false),
            unspecified: None,
        }),
        device: Known::Never,
        inode: Known::Never,
    }
}

/// Parses both ends of a connection from `address:port->address:port`.
fn ends_of_name(name: &str) -> Option<[Endpoint; 2]> {
    let end = |text: &str| {
        let (ip, port) = text.rsplit_once(':')?;
        Some(Endpoint {
            ip: ip.parse().ok()?,
            port: port.parse().ok()?,
        })
    };
    let (from, to) = name.split_once("->")?;
    Some([end(from)?, end(to)?])
}

fn maker(kind: DescriptorKind) -> Option<&'static str> {
    Some(match kind {
        DescriptorKind::Event => "eventfd",
        DescriptorKind::Signal => "signalfd",
        DescriptorKind::Timer => "timerfd_create",
        DescriptorKind::Inotify => "inotify_init",
        DescriptorKind::Userfault => "userfaultfd",
        _ => return None,
    })
}

/// Returns the domain, type and protocol of the matching `socket` call.
fn socket_arguments(kind: DescriptorKind, transport: Known<Transport>) -> (u64, u64, u64) {
    let domain = match kind {
        DescriptorKind::Unix => 1,
        DescriptorKind::Ipv4 => 2,
        DescriptorKind::Ipv6 => 10,
        DescriptorKind::Netlink => 16,
        _ => 17,
    };
    match transport {
        Known::Yes(Transport::Tcp) => (domain, 1, 6),
        Known::Yes(Transport::Udp) => (domain, 2, 17),
        Known::Yes(Transport::Icmp) => (domain, 3, 1),
        Known::Yes(Transport::Raw) => (domain, 3, 255),
        _ => (domain, 1, 0),
    }
}

/// Appends both ends of a connection, the client's first unless the process made it.
pub(super) fn push_tuple(out: &mut Vec<u8>, kind: DescriptorKind, socket: &Socket<'_>) -> bool {
    if kind == DescriptorKind::Unix {
        let Some(path) = socket.unix_path else {
            return false;
        };
        out.push(1);
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(path);
        out.push(0);
        return true;
    }
    let (local, remote) = match (socket.local, socket.remote) {
        (Known::Yes(local), Known::Yes(remote)) => (local, remote),
        (Known::Yes(local), _) => (local, nowhere(local)),
        (_, Known::Yes(remote)) => (nowhere(remote), remote),
        _ => return false,
    };
    let (source, destination) = match socket.role {
        Role::Server => (remote, local),
        Role::Client | Role::Unknown => (local, remote),
    };
    push_ends(out, source, destination)
}

/// Appends both ends, the process's own first.
pub(super) fn push_ends(out: &mut Vec<u8>, source: Endpoint, destination: Endpoint) -> bool {
    if source.ip.is_ipv4() != destination.ip.is_ipv4() {
        return false;
    }
    out.push(if source.ip.is_ipv4() { 2 } else { 10 });
    push_end(out, source);
    push_end(out, destination);
    true
}

fn push_end(out: &mut Vec<u8>, end: Endpoint) {
    match end.ip {
        core::net::IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        core::net::IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&end.port.to_le_bytes());
}

/// Returns an unspecified end of the same family.
fn nowhere(other: Endpoint) -> Endpoint {
    let ip = if other.ip.is_ipv4() {
        core::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        core::net::Ipv6Addr::UNSPECIFIED.into()
    };
    Endpoint { ip, port: 0 }
}

/// Appends a single address, as in `bind`.
pub(super) fn push_address(values: &mut Values, kind: DescriptorKind, socket: &Socket<'_>) {
    let mut bytes = Vec::new();
    match (kind, socket.unix_path, socket.local) {
        (DescriptorKind::Unix, Some(path), _) => {
            bytes.push(1);
            bytes.extend_from_slice(path);
            bytes.push(0);
        }
        (_, _, Known::Yes(local)) => {
            bytes.push(if local.ip.is_ipv4() { 2 } else { 10 });
            push_end(&mut bytes, local);
        }
        _ => {}
    }
    values.push(&bytes);
}
