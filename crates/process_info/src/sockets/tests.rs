use super::*;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

fn own() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn look(socket: &impl AsFd) -> ResolvedDescriptor {
    let proc = Proc::open().unwrap();
    let number = socket.as_fd().as_raw_fd();
    resolve(&proc, own(), own(), number, &Deadline::new(1)).unwrap()
}

fn by_table(socket: &impl AsFd) -> ResolvedSocket {
    let inode = rustix::fs::fstat(socket).unwrap().st_ino;
    table::look_up(&Proc::open().unwrap(), own(), inode).unwrap()
}

fn end(address: std::net::SocketAddr) -> Endpoint {
    Endpoint {
        ip: address.ip(),
        port: address.port(),
    }
}

#[test]
fn tcp_ends_are_found_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();

    let listening = look(&listener);
    assert_eq!(listening.kind, DescriptorKind::Ipv4);
    let socket = listening.socket.unwrap();
    assert!(socket.listening);
    assert_eq!(
        (socket.connected, socket.remote),
        (Some(false), Known::Never)
    );
    assert_eq!(by_table(&listener), socket);

    for stream in [&client, &server] {
        let socket = look(stream).socket.unwrap();
        assert_eq!(socket.transport, Some(Transport::Tcp));
        assert_eq!(socket.local, Known::Yes(end(stream.local_addr().unwrap())));
        assert_eq!(socket.remote, Known::Yes(end(stream.peer_addr().unwrap())));
        assert_eq!(socket.connected, Some(true));
        assert_eq!(by_table(stream), socket);
    }
}

#[test]
fn a_v6_socket_with_v4_traffic_is_v4() {
    let Ok(listener) = TcpListener::bind("[::]:0") else {
        testing::skip!("needs IPv6", || Ok("[::] cannot be bound".to_owned()));
    };
    let port = listener.local_addr().unwrap().port();
    assert_eq!(look(&listener).kind, DescriptorKind::Ipv6);
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (server, _) = listener.accept().unwrap();
    let resolved = look(&server);
    assert_eq!(resolved.kind, DescriptorKind::Ipv4);
    let socket = resolved.socket.unwrap();
    assert_eq!(socket.remote, Known::Yes(end(client.local_addr().unwrap())));
    assert_eq!(by_table(&server), socket);
}

#[test]
fn udp_is_told_from_tcp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let resolved = look(&socket).socket.unwrap();
    assert_eq!(resolved.transport, Some(Transport::Udp));
    assert_eq!(by_table(&socket), resolved);
}

#[test]
fn unix_sockets_have_paths() {
    let directory = std::env::temp_dir().join(format!("sockets-test-{}", own()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("with blank");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let wanted = path.clone().into_os_string().into_encoded_bytes();
    let resolved = look(&listener);
    assert_eq!(resolved.kind, DescriptorKind::Unix);
    let socket = resolved.socket.unwrap();
    assert!(socket.listening);
    assert_eq!(socket.unix_path.as_deref(), Some(wanted.as_slice()));
    assert_eq!(by_table(&listener), socket);
    assert_eq!(look(&client).socket.unwrap().unix_path, Some(wanted));
    let (one, _other) = UnixDatagram::pair().unwrap();
    assert_eq!(look(&one).socket.unwrap().unix_path, None);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn files_directories_and_pipes_are_told_apart() {
    let directory = std::fs::File::open("/proc/self").unwrap();
    assert_eq!(look(&directory).kind, DescriptorKind::Directory);
    let exe = std::env::current_exe().unwrap();
    let file = std::fs::File::open(&exe).unwrap();
    let resolved = look(&file);
    assert_eq!(resolved.kind, DescriptorKind::File);
    assert_eq!(resolved.name, exe.into_os_string().into_encoded_bytes());
    assert_eq!(
        resolved.inode,
        Some(rustix::fs::fstat(&file).unwrap().st_ino)
    );
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(look(&reader).kind, DescriptorKind::Pipe);
    let this = rustix::process::Pid::from_raw(own()).unwrap();
    let pidfd = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty()).unwrap();
    assert_eq!(look(&pidfd).kind, DescriptorKind::Pidfd);
    let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(look(&memfd).kind, DescriptorKind::Memfd);
}

#[test]
fn a_descriptor_that_is_not_open_is_gone() {
    let proc = Proc::open().unwrap();
    let result = resolve(&proc, own(), own(), 1_000_000, &Deadline::new(1));
    assert_eq!(
        result,
        Err(ProcError::Gone {
            pid: own(),
            file: "fd"
        })
    );
}

#[test]
fn a_lingering_socket_does_not_hold_the_caller() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let time = Some(Duration::from_secs(30));
    rustix::net::sockopt::set_socket_linger(&client, time).unwrap();
    let deadline = Deadline::new(1);
    let proc = Proc::open().unwrap();
    resolve(&proc, own(), own(), client.as_raw_fd(), &deadline).unwrap();
    assert_eq!(
        deadline.counts().runs,
        1,
        "the close must be left to the pool"
    );
}

#[test]
fn addresses_parse_or_are_refused() {
    let v4 = [2, 0, 0x1f, 0x90, 127, 0, 0, 1];
    let parsed = parse_address(&v4).unwrap().endpoint().unwrap();
    assert_eq!(
        (parsed.ip.to_string(), parsed.port),
        ("127.0.0.1".to_owned(), 8080)
    );
    assert_eq!(parse_address(&v4[..7]), None);
    let mut v6 = vec![10, 0, 0, 53, 0, 0, 0, 0];
    v6.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
    let mapped = parse_address(&v6).unwrap().endpoint().unwrap();
    assert_eq!(
        (mapped.ip.to_string(), mapped.port),
        ("10.1.2.3".to_owned(), 53)
    );
    let unix = |name: &[u8]| [&[1, 0], name].concat();
    assert_eq!(
        parse_address(&unix(b"/run/x\0junk"))
            .unwrap()
            .unix_path()
            .unwrap(),
        b"/run/x"
    );
    assert_eq!(
        parse_address(&unix(b"\0a\0b"))
            .unwrap()
            .unix_path()
            .unwrap(),
        b"@a\0b"
    );
    assert_eq!(parse_address(&unix(b"")).unwrap().unix_path(), None);
    let netlink = [16, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(
        parse_address(&netlink),
        Some(SocketAddress::Netlink { port: 7, groups: 1 })
    );
    assert_eq!(
        parse_address(&[38, 0]),
        Some(SocketAddress::Other { family: 38 })
    );
    assert_eq!(
        parse_address(&[0, 0]),
        Some(SocketAddress::Unspecified(None))
    );
    assert_eq!(
        parse_address(&[0, 0, 0, 9, 127, 0, 0, 7]),
        Some(SocketAddress::Unspecified(Some(Endpoint {
            ip: Ipv4Addr::new(127, 0, 0, 7).into(),
            port: 9,
        })))
    );
    assert_eq!(parse_address(&[2]), None);
    assert_eq!(parse_address(&[]), None);
}

#[test]
fn a_name_alone_says_no_less_than_what_a_descriptor_is() {
    let (proc, own) = (Proc::open().unwrap(), own());
    let folder = std::env::temp_dir();
    let fifo = folder.join(format!("fifo-{own}"));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let both = std::fs::File::options().read(true).write(true).clone();
    let named = both.open(&fifo).unwrap();
    std::fs::remove_file(&fifo).unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(pipe));
    let directory = std::fs::File::open(folder).unwrap();
    let null = both.open("/dev/null").unwrap();
    for opened in [directory, null, named, pipe] {
        let number = opened.as_raw_fd();
        let DescriptorLink::File(link) = read_link(&proc, own, number) else {
            panic!("{number} is a file");
        };
        let whole = resolve_file(&proc, own, number, &link);
        let each = kinds_of_link(&link);
        let same = |found: &&ResolvedDescriptor| found.kind == whole.kind;
        assert_eq!(each.iter().filter(same).count(), 1, "{whole:?}");
        for found in each {
            assert_eq!(found.name, whole.name);
            assert_eq!((found.device, found.inode), (None, None));
        }
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let of_socket = read_link(&proc, own, socket.as_raw_fd());
    assert_eq!(of_socket, DescriptorLink::Socket);
    assert_eq!(read_link(&proc, own, -1), DescriptorLink::Unreadable);
}
