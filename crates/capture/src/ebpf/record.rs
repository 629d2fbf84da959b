//! Decodes the records that the programs in `bpf/` write (bpf/record.h).

use event::{
    Comm, Credentials, Endpoint, Known, PathGap, Pid, StartTime, Stat, Status, Tid, Transport,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use decoder::open_fields::FileFlags;
use process_info::sockets::{ResolvedDescriptor, ResolvedSocket};

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A call has returned.
    Call,
    /// A program was executed.
    Exec,
    /// A process was created.
    Fork,
    /// A process has ended.
    Exit,
    /// An io_uring made a call that is no event.
    Ring,
}

impl RecordKind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Exec,
            3 => Self::Fork,
            4 => Self::Exit,
            5 => Self::Ring,
            _ => return None,
        })
    }
}

/// Size of `struct header`.
pub(super) const HEADER_SIZE: usize = 296;
const PIECE_SIZE: usize = 16;
const FACTS_SIZE: usize = 120;
/// The agent has not yet identified this place.
const FLAG_NEW_PLACE: u8 = 2;
/// Unit of start times in `/proc`, in nanoseconds (`nsec_to_clock_t`).
const TICK_NS: u64 = 10_000_000;

/// `struct header`.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) kind: RecordKind,
    pub(super) abi: u8,
    /// True if the place is unknown; the record then contains its cgroups.
    pub(super) is_new_place: bool,
    pub(super) boot_time: u64,
    pub(super) start_boot: u64,
    pub(super) exec_id: u64,
    pub(super) cgroup: u64,
    pub(super) parent_start: u64,
    pub(super) result: i64,
    pub(super) ip: u64,
    pub(super) args: [u64; 6],
    pub(super) number: u32,
    pub(super) cpu: u32,
    pub(super) tid: Tid,
    pub(super) pid: Pid,
    pub(super) ppid: Pid,
    pub(super) socketcall: u32,
    /// Number of its arguments that could be read.
    pub(super) socketcall_args: usize,
    pub(super) login_uid: u32,
    pub(super) fs_uid: u32,
    pub(super) fs_gid: u32,
    pub(super) pid_level: u8,
    pub(super) mount_namespace: u32,
    pub(super) cgroup_namespace: u32,
    pub(super) stat: Stat,
    pub(super) status: Status,
    pub(super) comm: Comm,
    pub(super) root: Root,
}

/// Root directory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Root {
    pub(super) inode: u64,
    /// Mount id; unique for ever since Linux 6.8.
    pub(super) mount: u64,
    /// Mount id as in statx(2).
    pub(super) mount_id: u32,
    /// Device number as in stat(2).
    pub(super) device: u64,
}

/// Converts a kernel-internal device number to that of stat(2).
fn told_device(inside: u32) -> u64 {
    let (major, minor) = (inside >> 20, inside & 0xf_ffff);
    u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// Reads consecutive integers in native byte order.
struct Reader<'r> {
    bytes: &'r [u8],
}

impl<'r> Reader<'r> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_ne_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn u64s<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut all = [0; N];
        for one in &mut all {
            *one = self.u64()?;
        }
        Some(all)
    }

    fn comm(&mut self) -> Option<Comm> {
        let comm: [u8; 16] = self.take()?;
        let name = comm.split(|byte| *byte == 0).next();
        Some(Comm::new(name.unwrap_or(&[])))
    }

    fn root(&mut self) -> Option<Root> {
        Some(Root {
            inode: self.u64()?,
            mount: self.u64()?,
            mount_id: self.u32()?,
            device: told_device(self.u32()?),
        })
    }

    /// Reads what `/proc/PID/stat` and `/proc/PID/status` have. `pages`: virtual and resident memory; `caps`:
    /// the inheritable, permitted, effective and bounding set.
    fn process(&mut self, ppid: Pid, pages: [u64; 2], caps: [u64; 4]) -> Option<ProcessState> {
        let credentials = Credentials {
            uid: self.u32()?,
            gid: self.u32()?,
        };
        let (real_uid, fs_uid, fs_gid) = (self.u32()?, self.u32()?, self.u32()?);
        let login_uid = self.u32()?;
        let page_kib = u64::try_from(rustix::param::page_size()).unwrap_or(4096) / 1024;
        let stat = Stat {
            ppid,
            pgid: self.i32()?,
            sid: self.i32()?,
            tty: self.u32()?,
            tpgid: self.i32()?,
            threads: self.u32()?,
            vm_size_kib: pages[0] * page_kib,
            vm_rss_kib: pages[1] * page_kib,
        };
        let status = Status {
            credentials,
            real_uid,
            cap_inheritable: caps[0],
            cap_permitted: caps[1],
            cap_effective: caps[2],
            cap_bounding: caps[3],
            vpid: self.i32()?,
            vtid: self.i32()?,
            vpgid: self.i32()?,
            vsid: self.i32()?,
        };
        Some(ProcessState {
            stat,
            status,
            fs_uid,
            fs_gid,
            login_uid,
        })
    }
}

/// State of the calling process in a header.
struct ProcessState {
    stat: Stat,
    status: Status,
    fs_uid: u32,
    fs_gid: u32,
    login_uid: u32,
}

/// Offset of the pid.
const PID_AT: usize = 172;

impl Header {
    /// Reads only the pid.
    pub(super) fn pid(record: &[u8]) -> Option<i32> {
        let bytes = record.get(PID_AT..)?.first_chunk()?;
        Some(i32::from_ne_bytes(*bytes))
    }

    /// Parses the header; returns it with the remaining parts.
    pub(super) fn parse(record: &[u8]) -> Option<(Self, RecordParts<'_>)> {
        let pieces = RecordParts {
            rest: record.get(HEADER_SIZE..)?,
        };
        let mut from = Reader { bytes: record };
        let _size = from.u32()?;
        let kind = RecordKind::from_number(from.u8()?)?;
        let (abi, flags, pid_level) = (from.u8()?, from.u8()?, from.u8()?);
        let [boot_time, start_boot, exec_id] = from.u64s()?;
        let [cgroup, parent_start] = from.u64s()?;
        let (result, ip) = (from.u64()?.cast_signed(), from.u64()?);
        let (pages, args, caps) = (from.u64s()?, from.u64s()?, from.u64s()?);
        let (number, cpu) = (from.u32()?, from.u32()?);
        let (tid, pid, ppid) = (Tid(from.i32()?), Pid(from.i32()?), Pid(from.i32()?));
        let process = from.process(ppid, pages, caps)?;
        let (mount_namespace, cgroup_namespace) = (from.u32()?, from.u32()?);
        let (_row, socketcall) = (from.u32()?, from.u32()?);
        let socketcall_args = usize::from(u16::try_from(socketcall >> 16).unwrap_or(0));
        let header = Self {
            kind,
            abi,
            is_new_place: flags & FLAG_NEW_PLACE != 0,
            boot_time,
            start_boot,
            exec_id,
            cgroup,
            parent_start,
            result,
            ip,
            args,
            number,
            cpu,
            tid,
            pid,
            ppid,
            socketcall: socketcall & 0xffff,
            socketcall_args,
            login_uid: process.login_uid,
            fs_uid: process.fs_uid,
            fs_gid: process.fs_gid,
            pid_level,
            mount_namespace,
            cgroup_namespace,
            stat: process.stat,
            status: process.status,
            comm: from.comm()?,
            root: from.root()?,
        };
        Some((header, pieces))
    }

    /// Returns whether the call's arguments are an array that could not be read.
    pub(super) fn lacks_arguments(&self) -> bool {
        self.socketcall_args < abi::Syscall::socketcall_words(self.socketcall)
    }

    /// Returns the start time of the process, as in `/proc`.
    pub(super) fn start(&self) -> StartTime {
        StartTime(self.start_boot / TICK_NS)
    }

    /// Returns the start time of its parent.
    pub(super) fn parent_start(&self) -> StartTime {
        StartTime(self.parent_start / TICK_NS)
    }
}

/// Content of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordPartKind {
    Memory,
    File,
    Directory,
    Arguments,
    Environment,
    Executable,
    Filename,
    AbsentMemory,
    Cgroup,
    Stream,
    Named,
    WholePath,
}

/// Part of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPart<'r> {
    pub(super) kind: RecordPartKind,
    pub(super) status: u32,
    pub(super) address: u64,
    pub(super) bytes: &'r [u8],
}

/// Flag: truncated.
pub(super) const PIECE_CUT: u32 = 1;
/// Flag: a string that ends in its NUL.
pub(super) const PIECE_STRING: u32 = 2;

/// Parts of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordParts<'r> {
    rest: &'r [u8],
}

impl<'r> Iterator for RecordParts<'r> {
    type Item = RecordPart<'r>;

    fn next(&mut self) -> Option<RecordPart<'r>> {
        let mut from = Reader { bytes: self.rest };
        let kind = match from.u16()? {
            1 => RecordPartKind::Memory,
            2 => RecordPartKind::File,
            3 => RecordPartKind::Directory,
            4 => RecordPartKind::Arguments,
            5 => RecordPartKind::Environment,
            6 => RecordPartKind::Executable,
            7 => RecordPartKind::Filename,
            8 => RecordPartKind::AbsentMemory,
            9 => RecordPartKind::Cgroup,
            10 => RecordPartKind::Stream,
            11 => RecordPartKind::Named,
            12 => RecordPartKind::WholePath,
            _ => return None,
        };
        let len = usize::from(from.u16()?);
        let (status, address) = (from.u32()?, from.u64()?);
        let bytes = self.rest.get(PIECE_SIZE..PIECE_SIZE + len)?;
        let next = (PIECE_SIZE + len).next_multiple_of(8);
        self.rest = self.rest.get(next..).unwrap_or(&[]);
        Some(RecordPart {
            kind,
            status,
            address,
            bytes,
        })
    }
}

const FILE_DELETED: u32 = 1;
const FILE_OVERLAY_UPPER: u32 = 2;
const FILE_SOCKET: u32 = 4;
const FILE_UNREACHABLE: u32 = 8;
const FILE_PATH_CUT: u32 = 16;
const FILE_CREATED: u32 = 64;

/// Returns why a path with these flags is incomplete. Below a detached mount a path begins at the mount, as
/// `/proc/PID/fd` shows it, and is complete.
pub(super) fn path_gap(flags: u32) -> Option<PathGap> {
    match flags {
        _ if flags & FILE_PATH_CUT != 0 => Some(PathGap::Cut),
        _ if flags & FILE_UNREACHABLE != 0 => Some(PathGap::Unreachable),
        _ => None,
    }
}

/// `struct file_facts` and the path after it.
#[derive(Clone, Debug)]
pub(super) struct FileFacts {
    pub(super) inode: u64,
    pub(super) ctime_ns: u64,
    pub(super) mtime_ns: u64,
    /// Device in the kernel's format: 12 bits major, 20 bits minor.
    device: u32,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    open_flags: u32,
    magic: u32,
    flags: u32,
    pub(super) inode_flags: u32,
    pub(super) super_flags: u32,
    pub(super) mount_flags: u32,
    socket: Option<SocketFacts>,
    /// Path from the root of the process, without the kernel's suffix for deleted files.
    path: Vec<u8>,
}

#[derive(Clone, Debug)]
struct SocketFacts {
    family: u16,
    socket_type: u16,
    protocol: u16,
    state: u16,
    local_port: u16,
    remote_port: u16,
    local: [u8; 16],
    remote: [u8; 16],
    unix_path: Vec<u8>,
    has_peer: bool,
}

const OVERLAYFS: u32 = 0x794c_7630;
const ANON_INODES: u32 = 0x0904_1934;
const PIPES: u32 = 0x5049_5045;
const TMPFS: u32 = 0x0102_1994;
const NAMESPACES: u32 = 0x6e73_6673;
const PIDFDS: u32 = 0x5049_4446;

impl FileFacts {
    pub(super) fn parse(piece: &RecordPart<'_>) -> Option<Self> {
        let mut from = Reader { bytes: piece.bytes };
        let (inode, ctime, mtime) = (from.u64()?, from.u64()?, from.u64()?);
        let (ctime_ns, mtime_ns) = (from.u32()?, from.u32()?);
        let nanoseconds = |seconds: u64, rest: u32| {
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(u64::from(rest))
        };
        let (device, mode, uid, gid) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let (open_flags, magic, flags, inode_flags) =
            (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let (super_flags, mount_flags) = (from.u32()?, from.u32()?);
        let (family, socket_type) = (from.u16()?, from.u16()?);
        let (protocol, state) = (from.u16()?, from.u16()?);
        let (local_port, remote_port) = (from.u16()?, from.u16()?);
        let (local, remote) = (from.take()?, from.take()?);
        let (_unix_len, has_peer, _pad) = (from.u8()?, from.u8()?, from.u16()?);
        let rest = piece.bytes.get(FACTS_SIZE..)?;
        let is_socket = flags & FILE_SOCKET != 0;
        let socket = is_socket.then(|| SocketFacts {
            family,
            socket_type,
            protocol,
            state,
            local_port,
            remote_port,
            local,
            remote,
            unix_path: rest.to_vec(),
            has_peer: has_peer != 0,
        });
        Some(Self {
            inode,
            ctime_ns: nanoseconds(ctime, ctime_ns),
            mtime_ns: nanoseconds(mtime, mtime_ns),
            device,
            mode,
            uid,
            gid,
            open_flags,
            magic,
            flags,
            inode_flags,
            super_flags,
            mount_flags,
            socket,
            path: if is_socket { Vec::new() } else { rest.to_vec() },
        })
    }

    /// Returns the absolute path, or for an object without one the text that `/proc` shows.
    pub(super) fn link(&self) -> Vec<u8> {
        let name = || self.path.strip_prefix(b"/").unwrap_or(&self.path);
        let bracketed = |kind: &[u8]| {
            let number = self.inode.to_string();
            [kind, b":[", number.as_bytes(), b"]"].concat()
        };
        match self.magic {
            _ if self.socket.is_some() => bracketed(b"socket"),
            PIPES => bracketed(b"pipe"),
            PIDFDS => b"anon_inode:[pidfd]".to_vec(),
            NAMESPACES => bracketed(b"ns"),
            ANON_INODES => [b"anon_inode:", name()].concat(),
            _ if self.flags & FILE_DELETED != 0 => [&self.path, &b" (deleted)"[..]].concat(),
            _ => self.path.clone(),
        }
    }

    /// Returns the path; `None` if it is incomplete.
    pub(super) fn path(&self) -> Option<&[u8]> {
        (self.gap().is_none() && self.socket.is_none()).then_some(&self.path)
    }

    /// Returns why the path is incomplete.
    pub(super) fn gap(&self) -> Option<PathGap> {
        path_gap(self.flags).filter(|gap| *gap == PathGap::Cut || !self.is_memfd())
    }

    pub(super) fn is_memfd(&self) -> bool {
        self.magic == TMPFS
            && self.flags & FILE_UNREACHABLE != 0
            && self.path.starts_with(b"/memfd:")
    }

    /// Returns the flags that the file was opened with, as far as the kernel keeps them.
    pub(super) fn opened_with(&self) -> FileFlags {
        FileFlags {
            flags: self.open_flags.into(),
            is_created: self.flags & FILE_CREATED != 0,
        }
    }

    /// Returns whether the file is in an upper layer; `None` if it is on no overlay.
    pub(super) fn upper_layer(&self) -> Option<bool> {
        (self.magic == OVERLAYFS).then_some(self.flags & FILE_OVERLAY_UPPER != 0)
    }

    /// Returns the descriptor in the form of engines that read `/proc`.
    pub(super) fn resolved(&self) -> ResolvedDescriptor {
        let link = self.link();
        let device = told_device(self.device);
        let socket = self.socket.as_ref().map(SocketFacts::resolved);
        ResolvedDescriptor {
            kind: match &socket {
                Some(socket) => process_info::sockets::socket_kind(socket),
                None => process_info::sockets::kind_of_link(&link, self.mode),
            },
            name: link,
            device: socket.is_none().then_some(device),
            inode: Some(self.inode),
            socket,
        }
    }
}

/// Returns the bytes up to the first NUL.
pub(super) fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
}

/// Joins components in reverse order, each ended by NUL, to a path.
pub(super) fn reversed_path(components: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(components.len() + 1);
    let named = components.strip_suffix(b"\0").unwrap_or(components);
    if !named.is_empty() {
        for component in named.rsplit(|byte| *byte == 0) {
            path.push(b'/');
            path.extend_from_slice(component);
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

const AF_UNIX: u16 = abi::constant::AF_UNIX.u16();
const AF_INET: u16 = abi::constant::AF_INET.u16();
const AF_INET6: u16 = abi::constant::AF_INET6.u16();
const TCP_LISTEN: u16 = 10;
const TCP_SYN_SENT: u16 = 2;
const TCP_CLOSE: u16 = 7;

impl SocketFacts {
    fn resolved(&self) -> ResolvedSocket {
        let local = self.endpoint(self.local, self.local_port);
        // As getpeername(2) sees it.
        let has_peer = self.remote_port != 0 && !matches!(self.state, TCP_CLOSE | TCP_SYN_SENT);
        let remote = self.endpoint(self.remote, self.remote_port);
        let remote = match remote {
            Known::Yes(_) if !has_peer => Known::Never,
            remote => remote,
        };
        let unix_path = (self.family == AF_UNIX && !self.unix_path.is_empty()).then(|| match self
            .unix_path
            .split_first()
        {
            Some((0, name)) => [b"@", name].concat(),
            _ => text(&self.unix_path).to_vec(),
        });
        ResolvedSocket {
            domain: Some(self.family),
            transport: self.transport(),
            local,
            remote,
            unix_path,
            // The kernel provides one path only.
            peer_path: None,
            listening: self.state == TCP_LISTEN,
            connected: Some(match self.family {
                AF_UNIX => self.has_peer,
                _ => has_peer,
            }),
        }
    }

    fn endpoint(&self, address: [u8; 16], port: u16) -> Known<Endpoint> {
        let ip = match self.family {
            AF_INET => {
                let [a, b, c, d, ..] = address;
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            AF_INET6 => {
                let ip = Ipv6Addr::from(address);
                ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
            }
            _ => return Known::Never,
        };
        Known::Yes(Endpoint { ip, port })
    }

    fn transport(&self) -> Option<Transport> {
        let is_inet = matches!(self.family, AF_INET | AF_INET6);
        is_inet.then(|| Transport::of(self.socket_type.into(), self.protocol.into()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds a record of this kind about process `pid`, which started at this tick and runs its `exec_id`th program.
    pub(in crate::ebpf) fn record(kind: u8, pid: i32, start: u64, exec_id: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(4, &[kind]);
        put(16, &(start * TICK_NS).to_ne_bytes());
        put(24, &exec_id.to_ne_bytes());
        put(168, &pid.to_ne_bytes());
        put(172, &pid.to_ne_bytes());
        put(256, b"name\0rest");
        bytes
    }

    fn piece(kind: u16, address: u64, bytes: &[u8]) -> Vec<u8> {
        let mut piece = Vec::new();
        piece.extend(kind.to_ne_bytes());
        piece.extend(u16::try_from(bytes.len()).unwrap().to_ne_bytes());
        piece.extend(0_u32.to_ne_bytes());
        piece.extend(address.to_ne_bytes());
        piece.extend(bytes);
        piece.resize(piece.len().next_multiple_of(8), 0);
        piece
    }

    #[test]
    fn headers_and_pieces_are_read_where_the_programs_write_them() {
        let mut bytes = record(2, 77, 5, 3);
        bytes.extend(piece(4, 0, b"a\0bc\0"));
        bytes.extend(piece(3, 7, b"/tmp"));
        let (header, pieces) = Header::parse(&bytes).expect("a record");
        assert_eq!(header.kind, RecordKind::Exec);
        assert_eq!(
            (header.pid, header.start(), header.exec_id),
            (Pid(77), StartTime(5), 3)
        );
        assert_eq!(Header::pid(&bytes), Some(77));
        assert_eq!(header.comm.as_bytes(), b"name");
        let pieces: Vec<_> = pieces
            .map(|piece| (piece.kind, piece.address, piece.bytes))
            .collect();
        assert_eq!(
            pieces,
            [
                (RecordPartKind::Arguments, 0, &b"a\0bc\0"[..]),
                (RecordPartKind::Directory, 7, b"/tmp")
            ]
        );
    }

    #[test]
    fn what_is_cut_or_no_record_is_refused_and_does_not_panic() {
        let mut bytes = record(2, 77, 5, 3);
        bytes.extend(piece(4, 0, b"a\0bc\0"));
        for len in 0..bytes.len() {
            let parsed = Header::parse(&bytes[..len]);
            assert_eq!(parsed.is_some(), len >= HEADER_SIZE, "{len}");
            if let Some((_, pieces)) = parsed {
                assert!(pieces.count() <= 1);
            }
        }
        assert!(Header::parse(&record(9, 77, 5, 3)).is_none());
    }

    #[test]
    fn reversed_components_make_a_path() {
        assert_eq!(reversed_path(b"c\0b\0a\0"), b"/a/b/c");
        assert_eq!(reversed_path(b""), b"/");
    }
}
