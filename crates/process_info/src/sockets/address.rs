//! Parser of socket addresses in system call arguments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use event::Endpoint;
use rustix::net::AddressFamily;

/// A socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAddress<'a> {
    /// `AF_UNSPEC`: dissolves a connection in connect(2). In bind(2) and sendto(2) on an IPv4 socket, an
    /// address of sufficient length is taken as this IPv4 endpoint.
    Unspecified(Option<Endpoint>),
    /// `AF_INET` and `AF_INET6`; IPv4-mapped IPv6 addresses are IPv4 addresses, as in Falco.
    Inet(Endpoint),
    /// `AF_UNIX`: a path, an abstract name with its leading NUL, or nothing for an unnamed socket.
    Unix(&'a [u8]),
    /// `AF_NETLINK`.
    Netlink {
        /// Port id, usually the pid; 0 for the kernel.
        port: u32,
        /// Multicast groups.
        groups: u32,
    },
    /// `AF_PACKET`.
    Packet {
        /// Ethernet protocol.
        protocol: u16,
        /// Interface index.
        interface: i32,
    },
    /// Any other family.
    Other {
        /// `AF_*`.
        family: u16,
    },
}

impl SocketAddress<'_> {
    /// The endpoint of an internet address.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match self {
            SocketAddress::Inet(endpoint) => Some(*endpoint),
            _ => None,
        }
    }

    /// Path of a Unix socket as Falco prints it: an abstract name begins with `@`.
    pub fn unix_path(&self) -> Option<Vec<u8>> {
        match self {
            SocketAddress::Unix([0, name @ ..]) => Some([&b"@"[..], name].concat()),
            SocketAddress::Unix([]) => None,
            SocketAddress::Unix(path) => Some(path.to_vec()),
            _ => None,
        }
    }
}

/// Size of `sun_path` in bytes.
const UNIX_PATH_LIMIT: usize = 108;

/// Parses the bytes of a `struct sockaddr`; `None` if they are too few for their family.
pub fn parse_address(bytes: &[u8]) -> Option<SocketAddress<'_>> {
    let family = u16::from_ne_bytes(array(bytes, 0)?);
    let address = match AddressFamily::from_raw(family) {
        AddressFamily::UNSPEC => SocketAddress::Unspecified(ipv4_end(bytes)),
        AddressFamily::INET => SocketAddress::Inet(ipv4_end(bytes)?),
        AddressFamily::INET6 => SocketAddress::Inet(Endpoint {
            ip: Ipv6Addr::from(array::<16>(bytes, 8)?).to_canonical(),
            port: u16::from_be_bytes(array(bytes, 2)?),
        }),
        AddressFamily::UNIX => SocketAddress::Unix(unix_name(&bytes[2..])),
        AddressFamily::NETLINK => SocketAddress::Netlink {
            port: u32::from_ne_bytes(array(bytes, 4)?),
            groups: u32::from_ne_bytes(array(bytes, 8)?),
        },
        AddressFamily::PACKET => SocketAddress::Packet {
            protocol: u16::from_be_bytes(array(bytes, 2)?),
            interface: i32::from_ne_bytes(array(bytes, 4)?),
        },
        _ => SocketAddress::Other { family },
    };
    Some(address)
}

fn ipv4_end(bytes: &[u8]) -> Option<Endpoint> {
    Some(Endpoint {
        ip: IpAddr::V4(Ipv4Addr::from(array::<4>(bytes, 4)?)),
        port: u16::from_be_bytes(array(bytes, 2)?),
    })
}

/// The name in a Unix address: a path ends at the first NUL, an abstract name at the end of the address.
fn unix_name(path: &[u8]) -> &[u8] {
    let path = &path[..path.len().min(UNIX_PATH_LIMIT)];
    match path {
        [0, ..] => path,
        _ => path.split(|byte| *byte == 0).next().unwrap_or_default(),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
