//! Rules as entries of the tables that programs at the hooks of BPF LSM look up.
//!
//! The tables belong to a policy id that is kept with the task and inherited at fork. They know no
//! namespace: leaving one leaves no rule behind.

use std::fmt;
use std::net::IpAddr;

use abi::Capabilities;
use ipnet::IpNet;

use super::{CompiledPart, lower_rule};
use crate::operation::Operation;
use crate::pattern::Pattern;
use crate::policy::{Enforcer, Policy, Rule, RuleAction};
use crate::restriction::{
    Destination, FileAccess, MountMatch, PortRange, PtraceAccess, PtraceScope, Restriction,
    SocketMatch,
};

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The rule.
    pub rule: String,
    /// What becomes of a match. Entries are judged one by one: a denial is not undone by another.
    pub verdict: RuleAction,
    /// What matches.
    pub key: Key,
}

/// What an entry matches.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// A file, by the path that the kernel resolved.
    File {
        /// Which.
        path: PathKey,
        /// How.
        access: FileAccess,
    },
    /// A program: by its resolved path, by the name that the caller gave joined to its folder, and by
    /// the inodes that have the path when the table is made. Interpreters are programs too.
    Exec {
        /// Which.
        path: PathKey,
    },
    /// A socket by the path it was bound to, at connecting and at sending.
    Connect {
        /// Which.
        path: PathKey,
    },
    /// Block devices that are disks, by device number.
    Disk {
        /// How.
        access: FileAccess,
    },
    /// Sockets, by what they are made with.
    Socket(SocketMatch),
    /// Addresses, in the form of IPv6: IPv4 has the prefix `::ffff:0:0/96`.
    Egress {
        /// The address.
        address: [u8; 16],
        /// How many bits of it count.
        prefix: u8,
        /// Which ports; none means all.
        ports: Vec<PortRange>,
    },
    /// Mounts.
    Mount(MountMatch),
    /// Tracing.
    Ptrace {
        /// What.
        access: PtraceAccess,
        /// Of whom; outside means of another policy id.
        scope: PtraceScope,
    },
    /// Capabilities, whatever else the task has.
    Capabilities(Capabilities),
    /// Permission bits that files cannot be given.
    Mode(u32),
    /// A hook that always matches; after `:` the object that is meant.
    Hook(String),
}

/// A pattern cut at its wildcards, for tables of prefixes and of reversed suffixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathKey {
    /// What was cut, for reports.
    pub pattern: Pattern,
    /// The text before the first wildcard.
    pub prefix: String,
    /// The text between two.
    pub middle: Option<String>,
    /// The text after the last; without a wildcard there is none.
    pub suffix: Option<String>,
    /// Whether a wildcard is `*`, which stops at `/`.
    pub within_folder: bool,
}

impl PathKey {
    fn new(pattern: &Pattern) -> Self {
        let text = pattern.text();
        let parts: Vec<&str> = text.split('*').filter(|part| !part.is_empty()).collect();
        let ends_open = text.ends_with('*');
        let (prefix, rest) = parts
            .split_first()
            .map_or(("", &[][..]), |(p, rest)| (*p, rest));
        let (middle, suffix) = match (rest, ends_open) {
            ([], false) => (None, None),
            ([], true) => (None, Some("")),
            ([one], false) => (None, Some(*one)),
            ([one, ..], true) => (Some(*one), Some("")),
            ([one, last, ..], false) => (Some(*one), Some(*last)),
        };
        Self {
            pattern: pattern.clone(),
            prefix: prefix.to_owned(),
            middle: middle.map(str::to_owned),
            suffix: suffix.map(str::to_owned),
            within_folder: text.replace("**", "").contains('*'),
        }
    }
}

/// The tables of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// In the order of the policy.
    pub entries: Vec<Entry>,
}

impl Profile {
    /// The tables of a policy.
    #[must_use]
    pub fn compile(policy: &Policy) -> Self {
        let lowered = policy.rules.iter().map(lower);
        Self {
            entries: lowered.flat_map(|lowered| lowered.entries).collect(),
        }
    }

    /// The hooks that the entries need, each once.
    #[must_use]
    pub fn hooks(&self) -> Vec<&str> {
        let mut hooks: Vec<&str> = self
            .entries
            .iter()
            .flat_map(|entry| entry.key.hooks())
            .collect();
        hooks.sort_unstable();
        hooks.dedup();
        hooks
    }
}

impl Key {
    /// The hooks of the kernel that programs are attached to for the entry.
    #[must_use]
    pub fn hooks(&self) -> Vec<&str> {
        match self {
            Self::File { access, .. } => {
                let mut hooks = OPENS.to_vec();
                if access.write {
                    hooks.extend(CHANGES);
                }
                hooks
            }
            Self::Exec { .. } => vec!["bprm_check_security", "mmap_file"],
            Self::Connect { .. } => vec!["unix_stream_connect", "unix_may_send"],
            Self::Disk { .. } => vec!["file_open"],
            Self::Socket(_) => vec!["socket_create"],
            Self::Egress { .. } => vec!["socket_connect", "socket_sendmsg"],
            Self::Mount(MountMatch::FileSystem(_) | MountMatch::Disk) => vec!["sb_kern_mount"],
            Self::Mount(MountMatch::From(_) | MountMatch::Raw { .. }) => {
                vec!["sb_mount", "move_mount", "inode_follow_link", "sb_umount"]
            }
            Self::Ptrace { .. } => vec!["ptrace_access_check", "ptrace_traceme"],
            Self::Capabilities(_) => vec!["capable"],
            Self::Mode(_) => vec![
                "path_chmod",
                "path_mknod",
                "inode_create",
                "file_open",
                "inode_setxattr",
                "inode_set_acl",
            ],
            Self::Hook(name) => match name.split_once(':') {
                Some(_) => OPENS.to_vec(),
                None => hooks_with(name),
            },
        }
    }

    /// Whether an address and port are meant.
    #[must_use]
    pub fn matches_address(&self, address: IpAddr, port: u16) -> bool {
        let Self::Egress {
            address: own,
            prefix,
            ports,
        } = self
        else {
            return false;
        };
        let given = octets(address);
        let prefix = usize::from(*prefix);
        let same = (0..prefix).all(|bit| {
            let mask = 0x80 >> (bit % 8);
            own[bit / 8] & mask == given[bit / 8] & mask
        });
        let in_range = |range: &PortRange| (range.first..=range.last).contains(&port);
        same && (ports.is_empty() || ports.iter().any(in_range))
    }
}

/// Hooks that see a file opened, or given another name.
const OPENS: [&str; 3] = ["file_open", "path_link", "path_rename"];

/// Hooks that see a file changed other than by opening it.
const CHANGES: [&str; 11] = [
    "path_truncate",
    "path_unlink",
    "path_rmdir",
    "path_mkdir",
    "path_mknod",
    "path_symlink",
    "path_chmod",
    "path_chown",
    "inode_setxattr",
    "inode_removexattr",
    "inode_set_acl",
];

/// Hooks that are the ways to one operation. Calls for which there is no hook ask for a capability first.
const WAYS: [&[&str]; 2] = [
    &[
        "sb_mount",
        "move_mount",
        "sb_remount",
        "sb_pivotroot",
        "capable",
    ],
    &[
        "kernel_read_file",
        "kernel_load_data",
        "kernel_module_request",
        "capable",
    ],
];

fn hooks_with(name: &str) -> Vec<&str> {
    let ways = WAYS.iter().find(|ways| ways.contains(&name));
    ways.map_or_else(|| vec![name], |ways| ways.to_vec())
}

/// An address as the hooks compare it.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// What a rule compiles to.
#[must_use]
pub fn lower(rule: &Rule) -> CompiledPart<Entry> {
    lower_rule(rule, Enforcer::Bpf, |restriction| {
        lower_one(rule, restriction)
    })
}

fn lower_one(rule: &Rule, restriction: &Restriction) -> CompiledPart<Entry> {
    let entry = |key| Entry {
        rule: rule.id.clone(),
        verdict: rule.verdict,
        key,
    };
    let one = |key| CompiledPart::one(entry(key));
    match restriction {
        Restriction::File { path, access } => one(Key::File {
            path: PathKey::new(path),
            access: *access,
        }),
        Restriction::Exec { path } => one(Key::Exec {
            path: PathKey::new(path),
        })
        .gap("a copy of the program under another name runs"),
        Restriction::Connect { path } => one(Key::Connect {
            path: PathKey::new(path),
        }),
        Restriction::Disk { access } => one(Key::Disk { access: *access }),
        Restriction::Socket(socket) => one(Key::Socket(socket.clone())),
        Restriction::Egress { to, ports } => match to {
            Destination::Network(network) => one(egress(network, ports)),
            Destination::OwnPod | Destination::Service { .. } | Destination::Pods { .. } => {
                CompiledPart::missing(format!(
                    "the addresses of {to} are known to Kubernetes alone"
                ))
            }
        },
        Restriction::Mount(mount) => match unknown_flag(mount) {
            Some(flag) => {
                CompiledPart::missing(format!("mounts are not told by the flag `{flag}`"))
            }
            None => one(Key::Mount(mount.clone())),
        },
        Restriction::Ptrace { access, scope } => one(Key::Ptrace {
            access: *access,
            scope: *scope,
        }),
        Restriction::Capabilities(set) => one(Key::Capabilities(*set)),
        Restriction::Mode { bits } => one(Key::Mode(*bits)),
        Restriction::Operation(operation) => lower_operation(operation, &entry),
        Restriction::Syscall(_) => CompiledPart::missing("hooks see operations, not system calls"),
        Restriction::OnlyFiles(_) => {
            CompiledPart::missing("a list of all files that may be used is for Landlock")
        }
        Restriction::AppArmorText(_) => {
            CompiledPart::missing("the rule is in the language of AppArmor")
        }
    }
}

/// The hooks of an operation, and the calls that pass none of those that programs are attached to.
fn lower_operation(operation: &Operation, entry: &dyn Fn(Key) -> Entry) -> CompiledPart<Entry> {
    if let Some(reason) = operation.none.get(&Enforcer::Bpf) {
        return CompiledPart::missing(reason.clone());
    }
    let hooks = operation.hooks.iter();
    let keys: Vec<Key> = hooks.map(|hook| Key::Hook(hook.clone())).collect();
    let attached: Vec<&str> = keys.iter().flat_map(Key::hooks).collect();
    let decides = |hook: &str| match hook.split_once(':') {
        Some(("capable", _)) => attached.contains(&"capable"),
        _ => attached.contains(&hook) || operation.hooks.iter().any(|own| own == hook),
    };
    let coverage = operation.coverage(decides);
    if keys.is_empty() {
        return CompiledPart::missing("no hook sees it");
    }
    CompiledPart {
        gaps: coverage
            .gaps
            .into_iter()
            .chain(operation.weak(Enforcer::Bpf))
            .collect(),
        ..CompiledPart::many(keys.into_iter().map(entry))
    }
}

/// The flags of mount(2) that mounts are told by, by the names of raw rules.
pub const MOUNT_FLAGS: [(&str, u32); 4] = [
    ("bind", 1 << 12),
    ("move", 1 << 13),
    ("rbind", 1 << 12),
    ("remount", 1 << 5),
];

/// A flag of a raw rule that is none of those, nor about unmounting.
fn unknown_flag(mount: &MountMatch) -> Option<&str> {
    let MountMatch::Raw { flags, .. } = mount else {
        return None;
    };
    let is_known =
        |flag: &str| flag == "umount" || MOUNT_FLAGS.iter().any(|(name, _)| *name == flag);
    let mut flags = flags.iter().map(String::as_str);
    flags.find(|flag| !is_known(flag))
}

fn egress(network: &IpNet, ports: &[PortRange]) -> Key {
    let offset = match network {
        IpNet::V4(_) => 96,
        IpNet::V6(_) => 0,
    };
    Key::Egress {
        address: octets(network.network()),
        prefix: network.prefix_len() + offset,
        ports: ports.to_vec(),
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verdict.name(), self.key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, access } => write!(f, "file {} {}", access.letters(), path.pattern),
            Self::Exec { path } => write!(f, "program {}", path.pattern),
            Self::Connect { path } => write!(f, "socket at {}", path.pattern),
            Self::Disk { access } => write!(f, "disk {}", access.letters()),
            Self::Socket(socket) => write!(f, "socket {socket}"),
            Self::Egress {
                address,
                prefix,
                ports,
            } => {
                write!(f, "address {}/{prefix}", std::net::Ipv6Addr::from(*address))?;
                for port in ports {
                    write!(f, " port {port}")?;
                }
                Ok(())
            }
            Self::Mount(mount) => write!(f, "mount {mount}"),
            Self::Ptrace { access, scope } => {
                let restriction = Restriction::Ptrace {
                    access: *access,
                    scope: *scope,
                };
                write!(f, "{restriction}")
            }
            Self::Capabilities(set) => write!(f, "{}", Restriction::Capabilities(*set)),
            Self::Mode(bits) => write!(f, "mode {bits:o}"),
            Self::Hook(name) => write!(f, "at {name}"),
        }
    }
}
