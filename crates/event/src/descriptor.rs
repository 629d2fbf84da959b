//! The object of a call: an open file, a socket, a pipe.

use core::net::IpAddr;

/// A fact that may become known at a later stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// Known.
    Yes(T),
    /// Not known at this stage of the event. At the last stage: not available.
    #[default]
    NotYet,
    /// Passed to the call, but unreadable. The kernel's own view replaces it only where that view proves what
    /// was passed.
    Unread,
    /// Does not exist. `Never` does not stand for an unavailable fact.
    Never,
}

/// A file name as the caller passed it. It is made absolute only when a rule asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// No name.
    None,
    /// The name was unreadable in the caller's memory.
    Unreadable,
    /// A path as passed.
    Passed {
        /// Path as the caller passed it.
        raw: &'a [u8],
        /// Directory descriptor that a relative path starts at; `None` for the working directory. Unused if
        /// the path is absolute.
        base: Option<i32>,
    },
    /// A path as passed, with the absolute path of the file that the kernel opened.
    Opened {
        /// Path as the caller passed it.
        raw: &'a [u8],
        /// Absolute path of the open file.
        path: &'a [u8],
    },
    /// A path as passed, whose target is unavailable.
    Unresolved {
        /// Path as the caller passed it.
        raw: &'a [u8],
    },
    /// An absolute path that the kernel reported, e.g. of an already open descriptor.
    Resolved(&'a [u8]),
}

/// Kind of a descriptor; Falco's `fd.type` and `fd.typechar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescriptorKind {
    /// Regular file, device or another object that is opened by path.
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
    /// Packet socket, or another socket without addresses that rules know.
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

impl DescriptorKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 19] = [
        Self::File,
        Self::Directory,
        Self::Ipv4,
        Self::Ipv6,
        Self::Unix,
        Self::Netlink,
        Self::OtherSocket,
        Self::Pipe,
        Self::Event,
        Self::EventPoll,
        Self::Signal,
        Self::Timer,
        Self::Inotify,
        Self::Memfd,
        Self::Pidfd,
        Self::Userfault,
        Self::IoUring,
        Self::Bpf,
        Self::Other,
    ];
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, or a protocol over TCP: Multipath TCP and SMC.
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
    /// Returns the transport of an IPv4 or IPv6 socket, by the type and protocol that `socket(2)` takes.
    /// Protocol 0 stands for the type's default protocol; flags in the type are ignored.
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

/// Role of the watched process in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process connected.
    Client,
    /// The process accepted or listens.
    Server,
    /// Not known.
    Unknown,
}

/// Facts about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket<'a> {
    /// Transport protocol.
    pub transport: Known<Transport>,
    /// Local end.
    pub local: Known<Endpoint>,
    /// Remote end.
    pub remote: Known<Endpoint>,
    /// Role of the watched process.
    pub role: Role,
    /// Path of a unix socket; `None` if it has no path or its address was unreadable.
    pub unix_path: Option<&'a [u8]>,
    /// Whether the socket is connected (`fd.connected`).
    pub connected: Known<bool>,
    /// Whether this call changed the descriptor's name (`fd.name_changed`).
    pub name_changed: Known<bool>,
    /// Address that was passed without a family (`AF_UNSPEC`). The kernel takes it for IPv4 if the socket is
    /// an IPv4 socket, which is not known yet.
    pub unspecified: Option<Endpoint>,
}

impl Socket<'_> {
    /// Returns true if the call passed an address that was unreadable.
    #[must_use]
    pub fn has_unread_address(&self) -> bool {
        self.local == Known::Unread || self.remote == Known::Unread
    }
}

/// The descriptor that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Descriptor number; -1 for a failed open.
    pub number: Known<i64>,
    /// Kind of the open object.
    pub kind: Known<DescriptorKind>,
    /// File name.
    pub name: Name<'a>,
    /// Socket facts, if the object is a socket.
    pub socket: Option<Socket<'a>>,
    /// Device number.
    pub device: Known<u64>,
    /// Inode number.
    pub inode: Known<u64>,
}
