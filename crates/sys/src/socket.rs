//! Socket information, and descriptor passing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Result, SyscallError};
use crate::kernel::own;

/// Maximum size of an address of any family, `struct sockaddr_storage`.
const MAX_ADDRESS: usize = 128;

/// A socket address in the kernel's form: two bytes of family, then the data of the family.
#[derive(Clone, Copy, Debug)]
pub struct RawAddress {
    bytes: [u8; MAX_ADDRESS],
    len: usize,
}

impl RawAddress {
    /// The bytes; empty for an unnamed socket of some families.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// `AF_*`; `None` if there are no bytes.
    #[must_use]
    pub fn family(&self) -> Option<u16> {
        let family = self.as_bytes().first_chunk::<2>()?;
        Some(u16::from_ne_bytes(*family))
    }
}

/// Local address of a socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn local_address(fd: BorrowedFd<'_>) -> Result<RawAddress> {
    address("getsockname", libc::SYS_getsockname, fd)
}

/// Address of the peer.
///
/// # Errors
/// ENOTCONN, ENOTSOCK, EBADF.
pub fn peer_address(fd: BorrowedFd<'_>) -> Result<RawAddress> {
    address("getpeername", libc::SYS_getpeername, fd)
}

/// Makes getsockname(2) or getpeername(2).
fn address(name: &'static str, number: libc::c_long, fd: BorrowedFd<'_>) -> Result<RawAddress> {
    let mut address = RawAddress {
        bytes: [0; MAX_ADDRESS],
        len: 0,
    };
    let mut len = MAX_ADDRESS as u32;
    // SAFETY: both calls write at most `len` bytes and then the address's length.
    unsafe { syscall!(name, number, fd, address.bytes.as_mut_ptr(), &raw mut len) }?;
    address.len = (len as usize).min(MAX_ADDRESS);
    Ok(address)
}

/// Connects a socket to an address in the kernel's form.
///
/// # Errors
/// EACCES, ECONNREFUSED, EINPROGRESS and others of connect(2).
pub fn connect(fd: BorrowedFd<'_>, address: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `address.len()` bytes.
    unsafe {
        syscall!(
            "connect",
            libc::SYS_connect,
            fd,
            address.as_ptr(),
            address.len()
        )
    }
    .map(drop)
}

/// Address family (`AF_*`) of a socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn domain(fd: BorrowedFd<'_>) -> Result<i32> {
    integer(fd, libc::SO_DOMAIN)
}

/// Type (`SOCK_*`) of a socket, without flags.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn kind(fd: BorrowedFd<'_>) -> Result<i32> {
    integer(fd, libc::SO_TYPE)
}

/// Protocol number of a socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn protocol(fd: BorrowedFd<'_>) -> Result<i32> {
    integer(fd, libc::SO_PROTOCOL)
}

/// Returns true if the socket listens.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn is_listening(fd: BorrowedFd<'_>) -> Result<bool> {
    Ok(integer(fd, libc::SO_ACCEPTCONN)? != 0)
}

/// Cookie of a socket: its number in its network namespace, never reused while the host runs.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn cookie(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut value = [0; 8];
    option(fd, libc::SO_COOKIE, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

fn integer(fd: BorrowedFd<'_>, name: i32) -> Result<i32> {
    let mut value = [0; 4];
    option(fd, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

fn option(fd: BorrowedFd<'_>, name: i32, value: &mut [u8]) -> Result<()> {
    let mut len = value.len() as u32;
    // SAFETY: the kernel writes at most `len` bytes to `value` and then their number.
    unsafe {
        syscall!(
            "getsockopt",
            libc::SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr(),
            &raw mut len
        )
    }?;
    Ok(())
}

/// Creates two connected close-on-exec Unix sockets of this type (`libc::SOCK_SEQPACKET` keeps message
/// boundaries).
///
/// # Errors
/// EMFILE, EPROTONOSUPPORT.
pub fn pair(kind: i32) -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1_i32; 2];
    // SAFETY: the kernel writes two descriptors to `ends`.
    unsafe {
        syscall!(
            "socketpair",
            libc::SYS_socketpair,
            libc::AF_UNIX,
            kind | libc::SOCK_CLOEXEC,
            0_i32,
            ends.as_mut_ptr()
        )
    }?;
    // SAFETY: socketpair succeeded, so this is a new descriptor.
    let left = unsafe { own(ends[0] as usize) };
    // SAFETY: as above.
    let right = unsafe { own(ends[1] as usize) };
    Ok((left, right))
}

/// A control message with one descriptor: `struct cmsghdr`, the data and its padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct DescriptorMessage {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    padding: i32,
}

/// Length of the header and one descriptor, without the padding, as CMSG_LEN counts.
const DESCRIPTOR_LEN: usize = std::mem::offset_of!(DescriptorMessage, padding);

/// Sends bytes and, optionally, a copy of a descriptor over a Unix socket. Allocates nothing.
///
/// # Errors
/// EINVAL for no bytes (a stream would lose the descriptor), EPIPE without SIGPIPE, EAGAIN, ETOOMANYREFS.
pub fn send_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize> {
    if bytes.is_empty() {
        return Err(SyscallError::new("sendmsg", libc::EINVAL));
    }
    let mut control = DescriptorMessage {
        len: DESCRIPTOR_LEN,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        padding: 0,
    };
    let mut area = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = empty_message(&mut area);
    if fd.is_some() {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<DescriptorMessage>() as _;
    }
    // SAFETY: `message` describes `bytes` and `control`, which the kernel only reads.
    unsafe {
        syscall!(
            "sendmsg",
            libc::SYS_sendmsg,
            socket,
            &raw const message,
            libc::MSG_NOSIGNAL
        )
    }
}

/// Receives bytes and at most one descriptor, made close-on-exec; 0 bytes mean the end of the stream.
///
/// # Errors
/// EMSGSIZE if more than one descriptor was sent (all are closed), EAGAIN, EINTR.
pub fn receive_fd(socket: BorrowedFd<'_>, buf: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut control = DescriptorMessage {
        len: 0,
        level: 0,
        kind: 0,
        fd: -1,
        padding: -1,
    };
    let mut area = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let mut message = empty_message(&mut area);
    message.msg_control = (&raw mut control).cast();
    // Room for one descriptor: the kernel closes others and sets MSG_CTRUNC. The padding has room for a
    // second one, so it is not offered.
    message.msg_controllen = DESCRIPTOR_LEN as _;
    // SAFETY: `message` describes `buf` and `control`, which the kernel fills within their sizes.
    let len = unsafe {
        syscall!(
            "recvmsg",
            libc::SYS_recvmsg,
            socket,
            &raw mut message,
            libc::MSG_CMSG_CLOEXEC
        )
    }?;
    let has_fd = control.len == DESCRIPTOR_LEN
        && control.level == libc::SOL_SOCKET
        && control.kind == libc::SCM_RIGHTS;
    // SAFETY: a complete SCM_RIGHTS message holds a descriptor that the kernel made for us.
    let fd = has_fd.then(|| unsafe { own(control.fd as usize) });
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(SyscallError::new("recvmsg", libc::EMSGSIZE));
    }
    Ok((len, fd))
}

fn empty_message(area: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which zero bytes are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = area;
    message.msg_iovlen = 1;
    message
}

/// Pid, uid and gid of the process that created or connected the peer of a Unix socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> Result<(i32, u32, u32)> {
    let mut value = [0; 12];
    option(fd, libc::SO_PEERCRED, &mut value)?;
    let [pid, uid, gid] = [0, 4, 8].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&value[at..at + 4]);
        u32::from_ne_bytes(word)
    });
    Ok((pid.cast_signed(), uid, gid))
}

/// `SO_PEERPIDFD`, which libc does not define for all targets.
const PEER_PIDFD: i32 = 77;

/// Opens a pidfd of the process that created or connected the peer of a Unix socket. Unlike a pid, it cannot
/// mean another process later.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5; ESRCH, EINVAL or ENODATA if the process is gone.
pub fn peer_pidfd(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let raw = integer(fd, PEER_PIDFD)?;
    // SAFETY: the kernel has made this descriptor for the call.
    Ok(unsafe { own(raw.cast_unsigned() as usize) })
}

/// Shuts down a listening or connected socket: its readers wake up with the end of the stream.
///
/// # Errors
/// ENOTCONN, ENOTSOCK.
pub fn shutdown(fd: &impl AsFd) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe { syscall!("shutdown", libc::SYS_shutdown, fd.as_fd(), libc::SHUT_RDWR) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn addresses_and_kinds_of_a_loopback_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        let peer = peer_address(stream.as_fd()).expect("connected");
        assert_eq!(peer.family(), Some(libc::AF_INET as u16));
        assert_eq!(peer.as_bytes()[2..4], port.to_be_bytes());
        assert_eq!(peer.as_bytes()[4..8], [127, 0, 0, 1]);
        let own = local_address(listener.as_fd()).expect("bound");
        assert_eq!(own.as_bytes()[2..4], port.to_be_bytes());
        let fd = stream.as_fd();
        assert_eq!(domain(fd), Ok(libc::AF_INET));
        assert_eq!(kind(fd), Ok(libc::SOCK_STREAM));
        assert_eq!(protocol(fd), Ok(libc::IPPROTO_TCP));
        assert_eq!(is_listening(fd), Ok(false));
        assert_eq!(is_listening(listener.as_fd()), Ok(true));
        assert_ne!(
            cookie(fd).expect("5.12"),
            cookie(listener.as_fd()).expect("5.12")
        );
        let unconnected = peer_address(listener.as_fd());
        assert!(unconnected.is_err_and(|e| e.is(libc::ENOTCONN)));
        let null = std::fs::File::open("/dev/null").expect("a device");
        assert!(domain(null.as_fd()).is_err_and(|e| e.is(libc::ENOTSOCK)));
    }

    #[test]
    fn descriptors_travel_and_are_close_on_exec() {
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
            let (left, right) = pair(kind).expect("socketpair");
            let (reader, writer) = crate::fd::pipe(0).expect("pipe");
            assert_eq!(send_fd(left.as_fd(), b"take", Some(writer.as_fd())), Ok(4));
            drop(writer);
            let mut buf = [0; 16];
            let (len, fd) = receive_fd(right.as_fd(), &mut buf).expect("sent");
            assert_eq!(&buf[..len], b"take");
            let fd = fd.expect("a descriptor came with it");
            crate::fd::write(fd.as_fd(), b"x").expect("the pipe is open");
            assert_eq!(crate::fd::read(reader.as_fd(), &mut buf), Ok(1));
            assert_eq!(send_fd(left.as_fd(), b"plain", None), Ok(5));
            let (len, none) = receive_fd(right.as_fd(), &mut buf).expect("sent");
            assert!(none.is_none());
            assert_eq!(&buf[..len], b"plain");
            let (pid, ..) = peer_credentials(left.as_fd()).expect("a unix socket");
            assert_eq!(pid, crate::syscall::getpid());
            shutdown(&left).expect("connected");
            assert!(matches!(receive_fd(right.as_fd(), &mut buf), Ok((0, None))));
        }
        let (left, right) = pair(libc::SOCK_STREAM).expect("socketpair");
        // Closing would not do: children of tests that run beside this one may hold copies.
        shutdown(&right).expect("connected");
        assert!(send_fd(left.as_fd(), b"x", None).is_err_and(|e| e.is(libc::EPIPE)));
        assert!(send_fd(left.as_fd(), b"", None).is_err_and(|e| e.is(libc::EINVAL)));
    }
}
