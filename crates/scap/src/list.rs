//! The lists before a capture's first event: machine, processes, descriptors, users.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use event::{Endpoint, Transport};

use crate::bytes::Bytes;

/// Description of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineInfo {
    /// Number of processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Maximum process id.
    pub max_pid: u64,
    /// Host name.
    pub hostname: String,
    /// Boot time in nanoseconds since the epoch; 0 if unknown.
    pub boot_ns: u64,
}

/// Length of the host name in its block, in bytes.
pub(crate) const HOSTNAME_LEN: usize = 128;

impl MachineInfo {
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes::new(body);
        let mut machine = Self {
            cpus: bytes.u32()?,
            memory_bytes: bytes.u64()?,
            max_pid: bytes.u64()?,
            ..Self::default()
        };
        let hostname = crate::bytes::until_nul(bytes.take(HOSTNAME_LEN)?);
        machine.hostname = String::from_utf8_lossy(hostname).into_owned();
        machine.boot_ns = bytes.u64().unwrap_or_default();
        Some(machine)
    }
}

/// An entry of the process list: one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadEntry<'b> {
    /// Thread id.
    pub tid: i64,
    /// Process id.
    pub pid: i64,
    /// Parent process id.
    pub ptid: i64,
    /// Session id; `None` if the capture does not contain it.
    pub sid: Option<i64>,
    /// Process group id in the process's own pid namespace.
    pub vpgid: Option<i64>,
    /// Process group id.
    pub pgid: Option<i64>,
    /// Thread id in the process's own pid namespace.
    pub vtid: Option<i64>,
    /// Process id in its own pid namespace.
    pub vpid: Option<i64>,
    /// Command name.
    pub comm: &'b [u8],
    /// `argv[0]`.
    pub exe: &'b [u8],
    /// Path of the program.
    pub exepath: &'b [u8],
    /// Further arguments, each ended by a NUL.
    pub args: &'b [u8],
    /// Environment, each variable ended by a NUL.
    pub env: &'b [u8],
    /// Working directory.
    pub cwd: &'b [u8],
    /// Control groups, `controller=path`, each ended by a NUL.
    pub cgroups: &'b [u8],
    /// Root directory.
    pub root: &'b [u8],
    /// Limit on open descriptors.
    pub fd_limit: i64,
    /// Portable flags of `clone`.
    pub flags: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Virtual memory in KiB.
    pub vm_size_kib: u32,
    /// Resident memory in KiB.
    pub vm_rss_kib: u32,
    /// Controlling terminal.
    pub tty: u32,
    /// Login user id.
    pub login_uid: Option<u32>,
    /// Start time of the first process of the pid namespace.
    pub pidns_start_ns: u64,
    /// The user can write the program's file.
    pub exe_writable: bool,
    /// The program's file is in the upper layer of an overlay.
    pub exe_upper_layer: bool,
    /// The program's file is in a lower layer of an overlay.
    pub exe_lower_layer: bool,
    /// The program's file is a memfd.
    pub exe_from_memfd: bool,
    /// Inheritable, permitted and effective capabilities; `None` if the capture does not contain
    /// them.
    pub capabilities: Option<[u64; 3]>,
    /// Inode, change time and modification time of the program's file.
    pub exe_file: Option<[u64; 3]>,
}

/// Version of a process list, which determines the fields of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListVersion(pub(crate) u8);

impl<'b> ThreadEntry<'b> {
    /// Parses all entries of a block.
    pub(crate) fn each(
        body: &'b [u8],
        version: ListVersion,
        mut see: impl FnMut(&Self),
    ) -> Option<()> {
        let mut bytes = Bytes::new(body);
        // Fewer than four remaining bytes are padding.
        while bytes.len() >= 4 {
            let entry = if version.0 >= 9 {
                let mut own = bytes.sized()?;
                if own.len() == 0 {
                    continue;
                }
                let mut entry = Self::parse(&mut own, version)?;
                entry.parse_later(own);
                entry
            } else {
                Self::parse(&mut bytes, version)?
            };
            see(&entry);
        }
        Some(())
    }

    /// Parses the fields that are always present or depend on the version.
    fn parse(bytes: &mut Bytes<'b>, ListVersion(version): ListVersion) -> Option<Self> {
        let mut entry = Self {
            tid: bytes.i64()?,
            pid: bytes.i64()?,
            ptid: bytes.i64()?,
            ..Self::default()
        };
        if version >= 6 {
            entry.sid = Some(bytes.i64()?);
        }
        if version >= 8 {
            entry.vpgid = Some(bytes.i64()?);
        }
        entry.comm = bytes.text()?;
        entry.exe = bytes.text()?;
        if version >= 7 {
            entry.exepath = bytes.text()?;
        }
        entry.args = bytes.text()?;
        entry.cwd = bytes.text()?;
        entry.fd_limit = bytes.i64()?;
        entry.flags = bytes.u32()?;
        entry.uid = bytes.u32()?;
        entry.gid = bytes.u32()?;
        if version >= 2 {
            entry.vm_size_kib = bytes.u32()?;
            entry.vm_rss_kib = bytes.u32()?;
            // Swapped memory, major and minor page faults.
            bytes.take(4 + 8 + 8)?;
        }
        if version >= 3 {
            entry.env = bytes.text()?;
        }
        if version >= 4 {
            entry.vtid = Some(bytes.i64()?);
            entry.vpid = Some(bytes.i64()?);
            entry.cgroups = bytes.text()?;
        }
        if version >= 5 {
            entry.root = bytes.text()?;
        }
        Some(entry)
    }

    /// Parses fields that were appended without a new version of the list. Two of them were
    /// inserted before existing ones: entries of that time are recognized by their length.
    fn parse_later(&mut self, mut bytes: Bytes<'b>) {
        /// Size in bytes of login uid, writable flag and three capability sets: the appended fields
        /// before libs 0.10.
        const BEFORE_0_10: usize = 4 + 1 + 3 * 8;
        if bytes.len() > BEFORE_0_10 {
            self.pidns_start_ns = bytes.u64().unwrap_or_default();
            self.tty = bytes.u32().unwrap_or_default();
        }
        self.login_uid = bytes.u32();
        let flag = |bytes: &mut Bytes<'b>| bytes.u8().is_some_and(|flag| flag != 0);
        self.exe_writable = flag(&mut bytes);
        let three = |bytes: &mut Bytes<'b>| Some([bytes.u64()?, bytes.u64()?, bytes.u64()?]);
        self.capabilities = three(&mut bytes);
        self.exe_upper_layer = flag(&mut bytes);
        self.exe_file = three(&mut bytes);
        self.exe_from_memfd = flag(&mut bytes);
        self.exe_lower_layer = flag(&mut bytes);
        self.pgid = bytes.i64();
    }
}

/// An entry of a descriptor list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorEntry<'b> {
    /// A file, with portable open flags and device where the capture contains them.
    File {
        /// Path.
        name: &'b [u8],
        /// Device.
        device: Option<u32>,
    },
    /// A connection with both ends, its own first.
    Connection {
        /// The process's own end or the client's: captures do not distinguish them.
        source: Endpoint,
        /// The other end.
        destination: Endpoint,
        /// Protocol.
        transport: Transport,
    },
    /// A listening socket.
    Server {
        /// Local address.
        local: Endpoint,
        /// Protocol.
        transport: Transport,
    },
    /// A unix socket.
    Unix {
        /// Path.
        path: &'b [u8],
    },
    /// A descriptor of another kind, which only has a name.
    Named {
        /// Kind, as numbered in captures.
        ty: u8,
        /// Name.
        name: &'b [u8],
    },
}

/// Descriptor kinds as numbered in captures.
pub(crate) mod kind {
    pub(crate) const FILE: u8 = 1;
    pub(crate) const DIRECTORY: u8 = 2;
    pub(crate) const IPV4: u8 = 3;
    pub(crate) const IPV6: u8 = 4;
    pub(crate) const IPV4_SERVER: u8 = 5;
    pub(crate) const IPV6_SERVER: u8 = 6;
    pub(crate) const FIFO: u8 = 7;
    pub(crate) const UNIX: u8 = 8;
    pub(crate) const EVENT: u8 = 9;
    pub(crate) const SIGNAL: u8 = 11;
    pub(crate) const EVENT_POLL: u8 = 12;
    pub(crate) const INOTIFY: u8 = 13;
    pub(crate) const TIMER: u8 = 14;
    pub(crate) const NETLINK: u8 = 15;
    pub(crate) const FILE_V2: u8 = 16;
    pub(crate) const BPF: u8 = 17;
    pub(crate) const USERFAULT: u8 = 18;
    pub(crate) const IO_URING: u8 = 19;
    pub(crate) const MEMFD: u8 = 20;
    pub(crate) const PIDFD: u8 = 21;
}

impl<'b> DescriptorEntry<'b> {
    /// Parses all descriptors of a block: thread, number, inode and entry.
    pub(crate) fn each(
        body: &'b [u8],
        is_sized: bool,
        mut see: impl FnMut(i64, i64, u64, Self),
    ) -> Option<()> {
        let mut bytes = Bytes::new(body);
        let tid = bytes.i64()?;
        while bytes.len() >= 4 {
            let (number, inode, entry) = if is_sized {
                let mut own = bytes.sized()?;
                if own.len() == 0 {
                    continue;
                }
                Self::parse(&mut own, true)?
            } else {
                Self::parse(&mut bytes, false)?
            };
            see(tid, number, inode, entry);
        }
        Some(())
    }

    fn parse(bytes: &mut Bytes<'b>, is_sized: bool) -> Option<(i64, u64, Self)> {
        let number = bytes.i64()?;
        let inode = bytes.u64()?;
        let ty = bytes.u8()?;
        let entry = match ty {
            kind::IPV4 => {
                let (from, to) = (ipv4(bytes)?, ipv4(bytes)?);
                connection(bytes, from, to)?
            }
            kind::IPV6 => {
                let (from, to) = (ipv6(bytes)?, ipv6(bytes)?);
                connection(bytes, from, to)?
            }
            kind::IPV4_SERVER => {
                let ip = ipv4(bytes)?;
                server(bytes, ip)?
            }
            kind::IPV6_SERVER => {
                let ip = ipv6(bytes)?;
                server(bytes, ip)?
            }
            kind::UNIX => {
                bytes.take(16)?;
                Self::Unix {
                    path: bytes.text()?,
                }
            }
            kind::FILE_V2 => {
                bytes.u32()?;
                Self::File {
                    name: bytes.text()?,
                    device: if is_sized { bytes.u32() } else { None },
                }
            }
            // A kind that is newer than this program, whose content is unknown.
            _ if ty > kind::PIDFD => Self::Named { ty, name: b"" },
            kind::FILE => Self::File {
                name: bytes.text()?,
                device: None,
            },
            _ => Self::Named {
                ty,
                name: bytes.text()?,
            },
        };
        Some((number, inode, entry))
    }
}

fn ipv4(bytes: &mut Bytes<'_>) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.take(4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn ipv6(bytes: &mut Bytes<'_>) -> Option<IpAddr> {
    let octets: [u8; 16] = bytes.take(16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

fn connection<'b>(bytes: &mut Bytes<'b>, from: IpAddr, to: IpAddr) -> Option<DescriptorEntry<'b>> {
    let (from_port, to_port) = (bytes.u16()?, bytes.u16()?);
    Some(DescriptorEntry::Connection {
        source: Endpoint {
            ip: from,
            port: from_port,
        },
        destination: Endpoint {
            ip: to,
            port: to_port,
        },
        transport: transport(bytes.u8()?),
    })
}

fn server<'b>(bytes: &mut Bytes<'b>, ip: IpAddr) -> Option<DescriptorEntry<'b>> {
    let local = Endpoint {
        ip,
        port: bytes.u16()?,
    };
    let transport = transport(bytes.u8()?);
    Some(DescriptorEntry::Server { local, transport })
}

fn transport(number: u8) -> Transport {
    match number {
        2 => Transport::Tcp,
        3 => Transport::Udp,
        4 => Transport::Icmp,
        5 => Transport::Raw,
        _ => Transport::Unknown,
    }
}

/// An entry of the user list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserEntry<'b> {
    /// A user.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Login name.
        name: &'b [u8],
        /// Home directory.
        home: &'b [u8],
        /// Login shell.
        shell: &'b [u8],
    },
    /// A group.
    Group {
        /// Group id.
        gid: u32,
        /// Name.
        name: &'b [u8],
    },
}

impl<'b> UserEntry<'b> {
    pub(crate) fn each(body: &'b [u8], is_sized: bool, mut see: impl FnMut(Self)) -> Option<()> {
        let mut bytes = Bytes::new(body);
        while bytes.len() >= 4 {
            let entry = if is_sized {
                let mut own = bytes.sized()?;
                if own.len() == 0 {
                    continue;
                }
                Self::parse(&mut own)?
            } else {
                Self::parse(&mut bytes)?
            };
            see(entry);
        }
        Some(())
    }

    fn parse(bytes: &mut Bytes<'b>) -> Option<Self> {
        Some(match bytes.u8()? {
            0 => Self::User {
                uid: bytes.u32()?,
                gid: bytes.u32()?,
                name: bytes.text()?,
                home: bytes.text()?,
                shell: bytes.text()?,
            },
            _ => Self::Group {
                gid: bytes.u32()?,
                name: bytes.text()?,
            },
        })
    }
}
