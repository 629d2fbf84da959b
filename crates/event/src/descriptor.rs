//! The object a call acts on: an open file, a socket, a pipe.

use core::net::IpAddr;

/// Something that may be known only later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// Known.
    Yes(T),
    /// Not known at this stage of the event. At the last stage: it could not be learnt.
    #[default]
    NotYet,
    /// It was passed to the call, but could not be read. The kernel's own view replaces it only where that
    /// proves what was passed.
    Unread,
    /// Does not exist. Never stands for what could not be learnt.
    Never,
}

/// A file name as the caller gave it, made absolute only when a rule asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// No name.
    None,
    /// The name could not be read from the caller's memory.
    Unreadable,
    /// A path as passed. `base` is the directory descriptor, `None` = working directory;
    /// unused when the path is absolute.
    Passed {
        /// As passed by the caller.
        raw: &'a [u8],
        /// Directory descriptor that a relative path starts at.
        base: Option<i32>,
    },
    /// A path as passed, and the absolute path of what the kernel opened by it.
    Opened {
        /// As passed by the caller.
        raw: &'a [u8],
        /// Of the open file.
        path: &'a [u8],
    },
    /// A path as passed; where it leads could not be found out.
    Unresolved {
        /// As passed by the caller.
        raw: &'a [u8],
    },
    /// An absolute path learnt from the kernel, e.g. of an already open descriptor.
    Resolved(&'a [u8]),
}

/// What a descriptor is; Falco's `fd.type` and `fd.typechar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescriptorKind {
    /// Regular file, device or anything else that is opened by path.
    File,
    /// Directory.
    Directory,
    /// IPv4 socket.
    Ipv4,
    /// IPv6 socket.
    Ipv6,
    /// Unix socket.
    Unix,
    /// Netlink socket.
    Netlink,
    /// Packet or other socket without addresses that rules know.
    OtherSocket,
    /// Pipe or FIFO.
    Pipe,
    /// eventfd.
    Event,
    /// epoll.
    EventPoll,
    /// signalfd.
    Signal,
    /// timerfd.
    Timer,
    /// inotify or fanotify.
    Inotify,
    /// memfd.
    Memfd,
    /// pidfd.
    Pidfd,
    /// userfaultfd.
    Userfault,
    /// io_uring.
    IoUring,
    /// BPF object.
    Bpf,
    /// Anything else.
    Other,
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, and what is TCP underneath: Multipath TCP and SMC.
    Tcp,
    /// UDP and UDP-Lite.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// Raw sockets.
    Raw,
    /// Anything else or not known.
    Unknown,
}

impl Transport {
    /// What a socket of IPv4 or IPv6 uses, by the type and protocol that `socket(2)` takes; protocol 0 stands for
    /// the usual one of the type. Flags in the type do not count.
    #[must_use]
    pub fn of(socket_type: u64, protocol: u64) -> Self {
        match (socket_type & 0xf, protocol) {
            (_, 1 | 58) => Self::Icmp,
            (3, _) => Self::Raw,
            (1, 0 | 6 | 256 | 262) => Self::Tcp,
            (2, 0 | 17 | 136) => Self::Udp,
            _ => Self::Unknown,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address.
    pub ip: IpAddr,
    /// Port in host byte order.
    pub port: u16,
}

/// Which end the watched process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connected.
    Client,
    /// It accepted or listens.
    Server,
    /// Not known.
    Unknown,
}

/// What is known of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket<'a> {
    /// Transport protocol.
    pub transport: Known<Transport>,
    /// Own end.
    pub local: Known<Endpoint>,
    /// Other end.
    pub remote: Known<Endpoint>,
    /// Client or server.
    pub role: Role,
    /// Path of a unix socket; `None` if it has none, unless an address could not be read.
    pub unix_path: Option<&'a [u8]>,
    /// Whether a connection exists (`fd.connected`).
    pub connected: Known<bool>,
    /// Whether this call changed the descriptor's name (`fd.name_changed`).
    pub name_changed: Known<bool>,
    /// The address that was passed, if it has no family (`AF_UNSPEC`) and the kernel may take it for IPv4: it does
    /// so where the socket is one of IPv4, which is not known yet.
    pub unspecified: Option<Endpoint>,
}

impl Socket<'_> {
    /// Whether the call passed an address that could not be read.
    #[must_use]
    pub fn has_unread_address(&self) -> bool {
        self.local == Known::Unread || self.remote == Known::Unread
    }
}

/// The descriptor an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Its number; that of a failed open is -1.
    pub number: Known<i64>,
    /// What it is.
    pub kind: Known<DescriptorKind>,
    /// File name.
    pub name: Name<'a>,
    /// Socket facts.
    pub socket: Option<Socket<'a>>,
    /// Device number.
    pub device: Known<u64>,
    /// Inode number.
    pub inode: Known<u64>,
}
