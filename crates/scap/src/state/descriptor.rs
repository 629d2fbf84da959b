//! Open descriptors of a process.

use std::collections::HashMap;
use std::rc::Rc;

use bumpalo::Bump;
use event::field::connection_name;
use event::{Descriptor, DescriptorKind, Endpoint, Known, Name, Role, Socket, Transport};

use crate::list::{DescriptorEntry, kind};

/// An open descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Open {
    pub(crate) kind: Option<DescriptorKind>,
    /// Path of a file or unix socket.
    pub(crate) name: Vec<u8>,
    pub(crate) device: Option<u64>,
    pub(crate) inode: Option<u64>,
    pub(crate) socket: Option<SocketEnds>,
}

/// Known properties of a socket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SocketEnds {
    pub(crate) transport: Transport,
    pub(crate) local: Option<Endpoint>,
    pub(crate) remote: Option<Endpoint>,
    pub(crate) role: Role,
    pub(crate) connected: bool,
}

impl SocketEnds {
    pub(crate) const NONE: Self = Self {
        transport: Transport::Unknown,
        local: None,
        remote: None,
        role: Role::Unknown,
        connected: false,
    };
}

impl Open {
    pub(crate) fn new(kind: DescriptorKind, name: &[u8]) -> Self {
        Self {
            kind: Some(kind),
            name: name.into(),
            device: None,
            inode: None,
            socket: None,
        }
    }

    /// Turns the descriptor into a file and reuses its memory.
    pub(crate) fn become_file(
        &mut self,
        kind: DescriptorKind,
        name: &[u8],
        [device, inode]: [Option<u64>; 2],
    ) {
        self.kind = Some(kind);
        self.name.clear();
        self.name.extend_from_slice(name);
        self.device = device;
        self.inode = inode;
        self.socket = None;
    }

    /// Creates a descriptor from the list before the events.
    pub(crate) fn of_entry(entry: &DescriptorEntry<'_>, inode: u64) -> Self {
        let mut open = match *entry {
            DescriptorEntry::File { name, device } => Self {
                device: device.map(u64::from),
                ..Self::new(DescriptorKind::File, name)
            },
            DescriptorEntry::Unix { path } => Self {
                socket: Some(SocketEnds::NONE),
                ..Self::new(DescriptorKind::Unix, path)
            },
            DescriptorEntry::Connection {
                source,
                destination,
                transport,
            } => Self {
                socket: Some(SocketEnds {
                    transport,
                    local: Some(source),
                    remote: Some(destination),
                    role: Role::Unknown,
                    connected: true,
                }),
                ..Self::new(kind_of(source), b"")
            },
            DescriptorEntry::Server { local, transport } => Self {
                socket: Some(SocketEnds {
                    transport,
                    local: Some(local),
                    role: Role::Server,
                    ..SocketEnds::NONE
                }),
                ..Self::new(kind_of(local), b"")
            },
            DescriptorEntry::Named { ty, name } => Self {
                kind: kind_of_number(ty),
                ..Self::new(DescriptorKind::Other, name)
            },
        };
        open.inode = (inode != 0).then_some(inode);
        open
    }

    /// Returns the descriptor as events show it.
    pub(crate) fn show<'a>(&'a self, number: i64, renamed: bool) -> Descriptor<'a> {
        let known = |fact: Option<Endpoint>| fact.map_or(Known::Never, Known::Yes);
        let socket = self.socket.map(|ends| Socket {
            transport: Known::Yes(ends.transport),
            local: known(ends.local),
            remote: known(ends.remote),
            role: ends.role,
            unix_path: (!self.name.is_empty()).then_some(&*self.name),
            connected: Known::Yes(ends.connected),
            name_changed: Known::Yes(renamed),
            unspecified: None,
        });
        let name = match self.kind {
            Some(DescriptorKind::Unix) => Name::None,
            // A descriptor other than a file has a kernel-made name, or none.
            _ => Name::Resolved(&self.name),
        };
        Descriptor {
            number: Known::Yes(number),
            kind: self.kind.map_or(Known::Never, Known::Yes),
            name,
            socket,
            device: self.device.map_or(Known::Never, Known::Yes),
            inode: self.inode.map_or(Known::Never, Known::Yes),
        }
    }

    /// Returns the value of `fd.name`.
    pub(crate) fn full_name<'a>(&self, arena: &'a Bump) -> &'a [u8] {
        let shown = self.show(0, false);
        match (shown.kind, shown.socket) {
            (Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6), Some(socket)) => {
                // Each end may be absent.
                connection_name(&socket, arena).unwrap_or_default()
            }
            _ => arena.alloc_slice_copy(&self.name),
        }
    }

    /// Returns the memory use in bytes.
    fn weight(&self) -> usize {
        size_of::<Self>() + self.name.capacity()
    }
}

pub(crate) fn kind_of(end: Endpoint) -> DescriptorKind {
    if end.ip.is_ipv4() {
        DescriptorKind::Ipv4
    } else {
        DescriptorKind::Ipv6
    }
}

fn kind_of_number(number: u8) -> Option<DescriptorKind> {
    Some(match number {
        kind::FILE | kind::FILE_V2 => DescriptorKind::File,
        kind::DIRECTORY => DescriptorKind::Directory,
        kind::FIFO => DescriptorKind::Pipe,
        kind::EVENT => DescriptorKind::Event,
        kind::SIGNAL => DescriptorKind::Signal,
        kind::EVENT_POLL => DescriptorKind::EventPoll,
        kind::INOTIFY => DescriptorKind::Inotify,
        kind::TIMER => DescriptorKind::Timer,
        kind::NETLINK => DescriptorKind::Netlink,
        kind::BPF => DescriptorKind::Bpf,
        kind::USERFAULT => DescriptorKind::Userfault,
        kind::IO_URING => DescriptorKind::IoUring,
        kind::MEMFD => DescriptorKind::Memfd,
        kind::PIDFD => DescriptorKind::Pidfd,
        _ => return None,
    })
}

/// Descriptors of a process, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Descriptors {
    small: Vec<Option<Rc<Open>>>,
    large: HashMap<i64, Rc<Open>>,
    weight: usize,
}

/// Numbers below this are indexed directly.
const SMALL: usize = 1024;
/// Maximum number per process, as in Falco.
const LIMIT: usize = 4096;

impl Descriptors {
    pub(crate) fn get(&self, number: i64) -> Option<&Rc<Open>> {
        match usize::try_from(number) {
            Ok(at) if at < SMALL => self.small.get(at)?.as_ref(),
            Ok(_) => self.large.get(&number),
            Err(_) => None,
        }
    }

    /// Inserts a descriptor. Returns the previous one, or the new one as an error if there are too
    /// many.
    pub(crate) fn insert(
        &mut self,
        number: i64,
        open: Rc<Open>,
    ) -> Result<Option<Rc<Open>>, Rc<Open>> {
        let Ok(at) = usize::try_from(number) else {
            return Ok(Some(open));
        };
        self.weight += open.weight();
        let before = if at < SMALL {
            if self.small.len() <= at {
                self.small.resize(at + 1, None);
            }
            self.small[at].replace(open)
        } else if self.large.len() < LIMIT || self.large.contains_key(&number) {
            self.large.insert(number, open)
        } else {
            self.weight -= open.weight();
            return Err(open);
        };
        self.weight -= before.as_ref().map_or(0, |open| open.weight());
        Ok(before)
    }

    pub(crate) fn remove(&mut self, number: i64) -> Option<Rc<Open>> {
        let removed = match usize::try_from(number) {
            Ok(at) if at < SMALL => self.small.get_mut(at).and_then(Option::take),
            _ => self.large.remove(&number),
        };
        self.weight -= removed.as_ref().map_or(0, |open| open.weight());
        removed
    }

    /// Returns the numbers in ascending order.
    pub(crate) fn numbers(&self) -> Vec<i32> {
        let small = self.small.iter().enumerate();
        let small = small.filter(|(_, open)| open.is_some());
        let small = small.filter_map(|(at, _)| i32::try_from(at).ok());
        let large = self.large.keys();
        let mut large: Vec<i32> = large.filter_map(|n| i32::try_from(*n).ok()).collect();
        large.sort_unstable();
        small.chain(large).collect()
    }

    /// Returns the total memory use in bytes, counting descriptors shared between processes in
    /// full.
    pub(crate) fn weight(&self) -> usize {
        self.weight + self.small.len() * size_of::<usize>()
    }
}
