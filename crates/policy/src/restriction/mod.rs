//! Restrictions: what a rule denies, independent of enforcers.

mod peer;
mod read;

use std::fmt;

use abi::{Arch, Capabilities, Errno, RegisterTest, Syscall, flags};
use ipnet::IpNet;

use crate::operation::Operation;
use crate::pattern::Pattern;

pub use peer::{AllowedPeer, PeerHost};
pub(crate) use read::{read_network, read_restriction, socket_domain, socket_type};

/// One denied operation or access.
#[derive(Clone, Debug, PartialEq)]
pub enum Restriction {
    /// Access to files. Writing includes every change of a file, of its name and of its metadata.
    File {
        /// The files.
        path: Pattern,
        /// The kinds of access.
        access: FileAccess,
    },
    /// Execution of a file.
    Exec {
        /// The files.
        path: Pattern,
    },
    /// Connecting or sending to a Unix socket that has a path.
    Connect {
        /// The path of the socket.
        path: Pattern,
    },
    /// Access to the device files of disks and partitions, under any name.
    Disk {
        /// The kinds of access.
        access: FileAccess,
    },
    /// Creation of sockets.
    Socket(SocketMatch),
    /// Connecting or sending to a network address.
    Egress {
        /// The destination.
        to: Destination,
        /// The destination ports; empty means all.
        ports: Vec<PortRange>,
    },
    /// Some mounts. The operation `mount` denies all mounts.
    Mount(MountMatch),
    /// Tracing and inspection of other processes.
    Ptrace {
        /// The kinds of access.
        access: PtraceAccess,
        /// The processes concerned.
        scope: PtraceScope,
    },
    /// Possession of capabilities.
    Capabilities(Capabilities),
    /// Setting file permissions that include one of these bits.
    Mode {
        /// The permission bits.
        bits: u32,
    },
    /// An operation of `data/operations.txt`.
    Operation(&'static Operation),
    /// A system call, selected by number and register arguments.
    Syscall(SyscallMatch),
    /// Access to any files other than these.
    OnlyFiles(Vec<AllowedFile>),
    /// Connecting to any peers other than these.
    OnlyPeers(Vec<AllowedPeer>),
    /// Rules in AppArmor's language.
    AppArmorText(String),
    /// What connections carry, such as requests of HTTP. Only a proxy sees it.
    InsideConnections,
}

/// A file that stays accessible where [`Restriction::OnlyFiles`] denies all others.
#[derive(Clone, Debug, PartialEq)]
pub struct AllowedFile {
    /// A path, or everything below a folder.
    pub path: Pattern,
    /// The kinds of access that are allowed.
    pub access: FileAccess,
    /// Set if the file may be executed.
    pub exec: bool,
}

/// Kinds of access to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// Opening for reading.
    pub read: bool,
    /// Opening for writing, truncating, creating, removing, renaming, linking, and changing mode,
    /// owner, times and attributes.
    pub write: bool,
    /// Opening for appending.
    pub append: bool,
    /// Opening files for reading, without listing folders.
    pub contents: bool,
}

impl FileAccess {
    /// Parses the letters `r`, `w`, `a` and `c`.
    #[must_use]
    pub fn from_letters(letters: &str) -> Option<Self> {
        let known = letters.chars().all(|c| "rwac".contains(c));
        (known && !letters.is_empty()).then(|| Self {
            read: letters.contains('r'),
            write: letters.contains('w'),
            append: letters.contains('a'),
            contents: letters.contains('c'),
        })
    }

    /// The kinds of access as letters.
    #[must_use]
    pub fn letters(self) -> String {
        [
            (self.read, 'r'),
            (self.write, 'w'),
            (self.append, 'a'),
            (self.contents, 'c'),
        ]
        .into_iter()
        .filter_map(|(set, letter)| set.then_some(letter))
        .collect()
    }

    /// Returns true if no kind of access is selected.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Matches sockets by the arguments of `socket(2)`. An absent list matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketMatch {
    /// Address families.
    pub domains: Option<Vec<u16>>,
    /// Socket types, without the flags that share the argument.
    pub types: Option<Vec<u16>>,
    /// Protocol numbers as the caller passes them: TCP is 6, and also 0 with type stream.
    pub protocols: Option<Vec<u16>>,
}

impl SocketMatch {
    /// Returns true if a call with these arguments creates a matching socket.
    #[must_use]
    pub fn matches(&self, domain: u32, kind: u32, protocol: u32) -> bool {
        let has = |list: &Option<Vec<u16>>, value: u32| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|item| u32::from(*item) == value))
        };
        has(&self.domains, domain) && has(&self.types, kind & 0xf) && has(&self.protocols, protocol)
    }
}

/// Destination of network traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A network of addresses.
    Network(IpNet),
    /// The workload's own addresses.
    OwnPod,
    /// A Kubernetes service, by its name or labels.
    Service {
        /// Kubernetes namespace of the service.
        namespace: String,
        /// Name of the service, or labels as `key=value,...`.
        name: String,
    },
    /// Kubernetes pods, selected by labels.
    Pods {
        /// Kubernetes namespace of the pods.
        namespace: String,
        /// Labels as `key=value,...`.
        selector: String,
    },
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// Matches mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountMatch {
    /// A new instance of a file system of this type, by any call.
    FileSystem(String),
    /// A bind, move, remount or unmount of something below a path, after resolution of the path.
    From(Pattern),
    /// A file system on a disk.
    Disk,
    /// A mount as a raw rule describes it.
    Raw {
        /// The source path.
        from: Pattern,
        /// The file system type; `None` matches any.
        fstype: Option<String>,
        /// Names of flags, such as `bind`, without the `MS_`; empty means any.
        flags: Vec<String>,
    },
}

/// Kinds of access to other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtraceAccess {
    /// Tracing another process.
    pub trace: bool,
    /// Being traced by another process.
    pub traceby: bool,
    /// Reading another process.
    pub read: bool,
    /// Being read by another process.
    pub readby: bool,
}

impl PtraceAccess {
    /// The names of the selected kinds of access.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.trace, "trace"),
            (self.traceby, "traceby"),
            (self.read, "read"),
            (self.readby, "readby"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect()
    }

    /// Adds a kind of access by name. Returns `None` for an unknown name.
    #[must_use]
    pub fn with(mut self, name: &str) -> Option<Self> {
        match name {
            "trace" => self.trace = true,
            "traceby" => self.traceby = true,
            "read" => self.read = true,
            "readby" => self.readby = true,
            _ => return None,
        }
        Some(self)
    }
}

/// The other processes that a [`Restriction::Ptrace`] covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtraceScope {
    /// Processes that are not confined by the same policy instance.
    Outside,
    /// All processes.
    Any,
}

/// A raw rule on one system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallMatch {
    /// The system call.
    pub call: Syscall,
    /// Groups of tests. The call matches if all tests of at least one group hold.
    pub any_of: Vec<Vec<RegisterTest>>,
    /// The action on a match.
    pub action: SyscallAction,
}

/// Action of a raw rule on a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallAction {
    /// The call fails with this error.
    Errno(Errno),
    /// The kernel ends the thread.
    KillThread,
    /// The kernel ends the process.
    KillProcess,
    /// The process receives SIGSYS.
    Trap,
    /// The call is made and reported.
    Log,
    /// The call is made; for profiles that deny all other calls.
    Allow,
}

/// Formats the restriction as one line, for `policy list` and `policy explain`.
impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, access } => write!(f, "file {} {path}", access.letters()),
            Self::Exec { path } => write!(f, "exec {path}"),
            Self::Connect { path } => write!(f, "connect {path}"),
            Self::Disk { access } => write!(f, "disk {}", access.letters()),
            Self::Socket(socket) => write!(f, "socket {socket}"),
            Self::Egress { to, ports } => {
                write!(f, "egress {to}")?;
                let mut separator = " ports ";
                for port in ports {
                    write!(f, "{separator}{port}")?;
                    separator = ",";
                }
                Ok(())
            }
            Self::Mount(mount) => write!(f, "mount {mount}"),
            Self::Ptrace { access, scope } => {
                let scope = match scope {
                    PtraceScope::Outside => "outside",
                    PtraceScope::Any => "any",
                };
                write!(f, "ptrace {} {scope}", access.names().join(","))
            }
            Self::Capabilities(set) => write!(f, "capability {}", capability_words(*set)),
            Self::Mode { bits } => write!(f, "mode {bits:o}"),
            Self::Operation(operation) => write!(f, "operation {}", operation.name),
            Self::Syscall(syscall) => write!(f, "call {}", syscall.call),
            Self::OnlyFiles(files) => write!(f, "file any but {} allowed", files.len()),
            Self::OnlyPeers(peers) => write!(f, "connect any but {} allowed", peers.len()),
            Self::InsideConnections => f.write_str("requests inside of connections"),
            Self::AppArmorText(text) => write!(f, "apparmor {}", text.trim()),
        }
    }
}

/// Short names of the capabilities; `all-except` and the missing ones if at most 15 are missing.
fn capability_words(set: Capabilities) -> String {
    let names = |bits: u64| {
        Capabilities(bits)
            .to_string()
            .to_lowercase()
            .replace("cap_", "")
    };
    let rest = Capabilities::ALL.0 & !set.0;
    match rest.count_ones() {
        0 => "all".to_owned(),
        1..=15 => format!("all-except {}", names(rest)),
        _ => names(set.0),
    }
}

impl fmt::Display for SocketMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &Option<Vec<u16>>, name: &dyn Fn(u16) -> String| match list {
            None => "any".to_owned(),
            Some(list) => list.iter().map(|n| name(*n)).collect::<Vec<_>>().join(","),
        };
        write!(
            f,
            "{} {} {}",
            list(&self.domains, &socket_domain_name),
            list(&self.types, &socket_type_name),
            list(&self.protocols, &|number| number.to_string())
        )
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                write!(f, "{}", network.addr())
            }
            Self::Network(network) => write!(f, "{network}"),
            Self::OwnPod => f.write_str("pod-self"),
            Self::Service { namespace, name } => write!(f, "service {namespace}/{name}"),
            Self::Pods {
                namespace,
                selector,
            } => write!(f, "pods {namespace}/{selector}"),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl fmt::Display for MountMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(name) => write!(f, "fstype={name}"),
            Self::From(path) => write!(f, "from={path}"),
            Self::Disk => f.write_str("disk"),
            Self::Raw {
                from,
                fstype,
                flags,
            } => {
                write!(f, "from={from}")?;
                if let Some(fstype) = fstype {
                    write!(f, " fstype={fstype}")?;
                }
                match flags.is_empty() {
                    true => Ok(()),
                    false => write!(f, " flags={}", flags.join(",")),
                }
            }
        }
    }
}

/// The name of an address family, as [`socket_domain`] reads it.
pub(crate) fn socket_domain_name(number: u16) -> String {
    flag_name("socket_domain", "AF_", number)
}

/// The name of a type of socket, as [`socket_type`] reads it.
pub(crate) fn socket_type_name(number: u16) -> String {
    flag_name("socket_type", "SOCK_", number)
}

fn flag_name(set: &str, prefix: &str, number: u16) -> String {
    flags::FlagSet::from_name(set)
        .and_then(|set| set.name_of(Arch::X86_64, u64::from(number)))
        .map_or_else(
            || number.to_string(),
            |name| name.trim_start_matches(prefix).to_lowercase(),
        )
}
