//! Look-up of sockets by inode in the tables below `/proc/PID/net`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use event::{Endpoint, Known, Transport};
use rustix::net::AddressFamily;

use super::ResolvedSocket;
use crate::procfs::{Proc, parse_number};

/// Maximum number of bytes of one table that are searched: some 25,000 sockets.
const TABLE_LIMIT: usize = 4 * 1024 * 1024;

const INET: [(&str, AddressFamily, Transport); 6] = [
    ("net/tcp", AddressFamily::INET, Transport::Tcp),
    ("net/tcp6", AddressFamily::INET6, Transport::Tcp),
    ("net/udp", AddressFamily::INET, Transport::Udp),
    ("net/udp6", AddressFamily::INET6, Transport::Udp),
    ("net/raw", AddressFamily::INET, Transport::Raw),
    ("net/raw6", AddressFamily::INET6, Transport::Raw),
];

/// The socket with this inode in the network namespace of process `pid`.
pub(super) fn look_up(proc: &Proc, pid: i32, inode: u64) -> Option<ResolvedSocket> {
    for (file, family, transport) in INET {
        let Ok((text, _)) = proc.read_all(pid, file, TABLE_LIMIT) else {
            continue;
        };
        let found = text
            .split(|byte| *byte == b'\n')
            .find_map(|line| inet_line(line, inode));
        if let Some((local, remote, state)) = found {
            let connected = remote.port != 0 || !remote.ip.is_unspecified();
            return Some(ResolvedSocket {
                domain: Some(family.as_raw()),
                transport: Some(transport),
                local: Known::Yes(local),
                remote: if connected {
                    Known::Yes(remote)
                } else {
                    Known::Never
                },
                unix_path: None,
                peer_path: None,
                // TCP_LISTEN in include/net/tcp_states.h.
                listening: transport == Transport::Tcp && state == b"0A",
                connected: Some(connected),
            });
        }
    }
    let (text, _) = proc.read_all(pid, "net/unix", TABLE_LIMIT).ok()?;
    text.split(|byte| *byte == b'\n')
        .find_map(|line| unix_line(line, inode))
}

/// Local endpoint, remote endpoint and state of a line, if the line belongs to the inode.
fn inet_line(line: &[u8], inode: u64) -> Option<(Endpoint, Endpoint, &[u8])> {
    let mut fields = words(line);
    fields.next()?;
    let local = fields.next()?;
    let remote = fields.next()?;
    let state = fields.next()?;
    // Queues, timer, retransmissions, uid, timeout.
    let found = parse_number(fields.nth(5)?)?;
    (found == inode).then_some((hex_endpoint(local)?, hex_endpoint(remote)?, state))
}

fn unix_line(line: &[u8], inode: u64) -> Option<ResolvedSocket> {
    let mut fields = words(line);
    // Num RefCount Protocol Flags Type St Inode Path
    let flags = fields.nth(3)?;
    let state = fields.nth(1)?;
    if parse_number(fields.next()?)? != inode {
        return None;
    }
    // The path is the rest of the line: it may contain blanks.
    let digits = inode.to_string();
    let marker = [b" ", digits.as_bytes(), b" "].concat();
    let path = line
        .windows(marker.len())
        .position(|window| window == marker)
        .map(|at| line[at + marker.len()..].to_vec());
    Some(ResolvedSocket {
        domain: Some(AddressFamily::UNIX.as_raw()),
        transport: Some(Transport::Unknown),
        unix_path: path.filter(|path| !path.is_empty()),
        // __SO_ACCEPTCON in include/uapi/linux/net.h.
        listening: flags == b"00010000",
        // SS_CONNECTED in the same file.
        connected: Some(state == b"03"),
        peer_path: None,
        local: Known::Never,
        remote: Known::Never,
    })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty())
}

/// Parses `0100007F:0050`: the address as 32-bit words in the host's byte order, the port in plain
/// hexadecimal.
fn hex_endpoint(text: &[u8]) -> Option<Endpoint> {
    let text = std::str::from_utf8(text).ok()?;
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(Endpoint { ip, port })
}
