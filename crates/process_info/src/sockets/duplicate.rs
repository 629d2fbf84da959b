//! Information on sockets of another process, read through a duplicate descriptor.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use event::{Endpoint, Known, Transport};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketAddrV4, SocketAddrV6, sockopt,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::ResolvedSocket;

/// Flag to open a pidfd of one thread (`PIDFD_THREAD`, Linux 6.9).
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// Duplicates a socket of another process; `None` if that is refused or the socket has another inode.
pub(super) fn duplicate(pid: i32, tid: i32, number: i32, inode: u64) -> Option<OwnedFd> {
    let is_meant =
        |socket: &OwnedFd| rustix::fs::fstat(socket).is_ok_and(|metadata| metadata.st_ino == inode);
    let from = |id: i32, flags| {
        let process = pidfd_open(Pid::from_raw(id)?, flags).ok()?;
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        Some(socket).filter(is_meant)
    };
    // Threads nearly always share the descriptor table of their process; a thread with its own table needs a
    // pidfd of its own.
    from(pid, PidfdFlags::empty()).or_else(|| (pid != tid).then(|| from(tid, PIDFD_THREAD))?)
}

/// Reads all information on a socket. None of the calls blocks.
pub(super) fn ask(socket: &OwnedFd) -> ResolvedSocket {
    let domain = sockopt::socket_domain(socket).ok();
    let local = rustix::net::getsockname(socket);
    let peer = rustix::net::getpeername(socket);
    let connected = peer.is_ok();
    let local_path = local.as_ref().ok().and_then(unix_path);
    let peer_path = peer
        .as_ref()
        .ok()
        .and_then(|peer| unix_path(peer.as_ref()?));
    ResolvedSocket {
        domain: domain.map(AddressFamily::as_raw),
        transport: domain.and_then(|domain| transport(socket, domain)),
        local: local.map_or(Known::NotYet, end),
        connected: Some(connected),
        remote: match peer {
            Ok(peer) => peer.map_or(Known::Never, end),
            // The socket is not connected, or of a kind that never connects.
            Err(Errno::NOTCONN | Errno::OPNOTSUPP) => Known::Never,
            Err(_) => Known::NotYet,
        },
        unix_path: local_path.or_else(|| peer_path.clone()),
        peer_path,
        listening: sockopt::socket_acceptconn(socket).unwrap_or(false),
    }
}

fn transport(socket: &OwnedFd, domain: AddressFamily) -> Option<Transport> {
    if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
        return Some(Transport::Unknown);
    }
    let protocol = sockopt::socket_protocol(socket).ok()?;
    let protocol = protocol.map_or(0, |protocol| protocol.as_raw().get());
    let kind = sockopt::socket_type(socket).ok()?;
    Some(Transport::of(kind.as_raw().into(), protocol.into()))
}

/// Converts an address to an endpoint; addresses of other families have none.
fn end(address: SocketAddrAny) -> Known<Endpoint> {
    endpoint(address).map_or(Known::Never, Known::Yes)
}

fn endpoint(address: SocketAddrAny) -> Option<Endpoint> {
    if let Ok(v4) = SocketAddrV4::try_from(address.clone()) {
        return Some(Endpoint {
            ip: IpAddr::V4(*v4.ip()),
            port: v4.port(),
        });
    }
    let v6 = SocketAddrV6::try_from(address).ok()?;
    Some(Endpoint {
        ip: v6.ip().to_canonical(),
        port: v6.port(),
    })
}

fn unix_path(address: &SocketAddrAny) -> Option<Vec<u8>> {
    let unix = SocketAddrUnix::try_from(address.clone()).ok()?;
    match unix.abstract_name().filter(|name| !name.is_empty()) {
        Some(name) => Some([&b"@"[..], name].concat()),
        None => unix
            .path_bytes()
            .map(<[u8]>::to_vec)
            .filter(|path| !path.is_empty()),
    }
}
