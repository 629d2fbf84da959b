//! Rule compiler for `BPF`: entries of the tables that programs at the hooks of BPF LSM look up.
//!
//! Each policy has an id that the kernel keeps with the task and passes on at fork. The tables are
//! independent of namespaces: a process that leaves a namespace keeps its rules.

mod mounts;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use abi::Capabilities;
use ipnet::IpNet;
use serde_json::{Value, json};

pub use self::mounts::{MOUNT_FLAGS, MountFlag};
use super::compiler::{Request, RuleCompiler, lines, strings};
use super::part::possible_links;
use super::part::{Assessment, CompiledPart, lower_rule, supporters};
use super::{MachineFeatures, NameKind};
use crate::enforcer::EnforcerKind;
use crate::operation::Operation;
use crate::pattern::Pattern;
use crate::policy::{Policy, Rule, RuleAction};
use crate::restriction::{
    Destination, FileAccess, MountMatch, PortRange, PtraceAccess, PtraceScope, Restriction,
    SocketMatch,
};

/// One table entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Id of the rule.
    pub rule: String,
    /// Action on a match. Entries are evaluated independently: no entry reverts the denial of another.
    pub verdict: RuleAction,
    /// The match condition.
    pub key: Key,
}

/// The match condition of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// A file, by the path that the kernel resolved.
    File {
        /// The paths.
        path: PathKey,
        /// The kinds of access.
        access: FileAccess,
    },
    /// A program: by its resolved path, by the name that the caller gave joined to its folder, and by the
    /// inodes that have the path when the table is built. Interpreters are programs too.
    Exec {
        /// The paths.
        path: PathKey,
    },
    /// A Unix socket by the path that it was bound to, at connecting and at sending.
    Connect {
        /// The paths.
        path: PathKey,
    },
    /// Block devices of disks, by device number.
    Disk {
        /// The kinds of access.
        access: FileAccess,
    },
    /// Sockets, by the arguments of their creation.
    Socket(SocketMatch),
    /// Network addresses in IPv6 form: IPv4 has the prefix `::ffff:0:0/96`.
    Egress {
        /// The address.
        address: [u8; 16],
        /// Number of significant bits.
        prefix: u8,
        /// Destination ports; empty means all.
        ports: Vec<PortRange>,
    },
    /// Mounts.
    Mount(MountMatch),
    /// Tracing and inspection of other processes.
    Ptrace {
        /// The kinds of access.
        access: PtraceAccess,
        /// The processes concerned; "outside" means a different policy id.
        scope: PtraceScope,
    },
    /// Capabilities, regardless of the capability sets of the task.
    Capabilities(Capabilities),
    /// Permission bits that cannot be set on files.
    Mode(u32),
    /// A hook that always matches. Text after `:` names the object to which the hook is limited.
    Hook(String),
}

/// A pattern split at its wildcards, for tables of prefixes and of reversed suffixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathKey {
    /// The whole pattern, for reports.
    pub pattern: Pattern,
    /// The text before the first wildcard.
    pub prefix: String,
    /// The text between two wildcards.
    pub middle: Option<String>,
    /// The text after the last wildcard; `None` without a wildcard.
    pub suffix: Option<String>,
    /// Set if the wildcard is `*`, which stops at `/`.
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

/// The table entries of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Entries in the order of the policy.
    pub entries: Vec<Entry>,
}

impl Profile {
    /// Compiles a policy.
    #[must_use]
    pub fn compile(policy: &Policy, machine: &MachineFeatures) -> Self {
        let lowered = policy.rules.iter().map(|rule| lower(rule, machine));
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
    /// The kernel hooks to which programs are attached for the entry.
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

    /// Returns true if the entry matches an address and port.
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

/// Hooks that observe the opening or renaming of a file.
const OPENS: [&str; 3] = ["file_open", "path_link", "path_rename"];

/// Hooks that observe a change of a file by means other than opening it.
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

/// Groups of hooks that together cover one operation. Calls without a hook check a capability first.
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

/// An address in the form that the hooks compare.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Rule compiler for `BPF`.
pub(super) struct Compiler;

impl RuleCompiler for Compiler {
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment {
        lower(request.rule, request.machine).assess(names, ToString::to_string)
    }

    /// The tables also identify files by their path within their file system.
    fn covers(&self, kind: NameKind) -> bool {
        matches!(
            kind,
            NameKind::Mount | NameKind::Namespace | NameKind::Listing
        )
    }

    fn possible_names(&self, request: &Request<'_>) -> Vec<String> {
        possible_links(request.rule).into_iter().collect()
    }

    fn text(&self, policy: &Policy, machine: &MachineFeatures) -> String {
        let profile = Profile::compile(policy, machine);
        let entries = lines(&profile.entries);
        format!("{entries}hooks: {}\n", profile.hooks().join(" "))
    }

    fn json(&self, policy: &Policy, machine: &MachineFeatures) -> Value {
        let profile = Profile::compile(policy, machine);
        json!({ "entries": strings(&profile.entries), "hooks": profile.hooks() })
    }
}

/// Lowers a rule. An entry has a gap for each of its hooks that the kernel lacks; an entry without any hook
/// enforces nothing.
#[must_use]
pub fn lower(rule: &Rule, machine: &MachineFeatures) -> CompiledPart<Entry> {
    lower_rule(rule, EnforcerKind::Bpf, |restriction| {
        let missing = &machine.missing_hooks;
        with_hooks(lower_one(rule, restriction, missing), missing)
    })
}

/// Removes entries that no hook would enforce, and adds the gaps of the others.
fn with_hooks(part: CompiledPart<Entry>, missing: &BTreeSet<String>) -> CompiledPart<Entry> {
    let mut kept = CompiledPart {
        entries: Vec::new(),
        ..part
    };
    for entry in part.entries {
        let hooks = entry.key.hooks();
        let (lacking, present): (Vec<&str>, Vec<&str>) =
            hooks.iter().partition(|hook| missing.contains(**hook));
        let text = match &lacking[..] {
            [] => None,
            [one] => Some(format!(
                "no program can be attached to the hook {one} of this kernel"
            )),
            many => Some(format!(
                "no program can be attached to the hooks {} of this kernel",
                many.join(", ")
            )),
        };
        let mut more = CompiledPart::default();
        match present.is_empty() {
            true => more.missing.extend(text),
            false => {
                // The calls that such a hook would have decided are gaps already (`lower_operation`).
                let is_counted = matches!(&entry.key, Key::Hook(name) if !name.contains(':'));
                more.gaps.extend(text.filter(|_| !is_counted));
                more.entries.push(entry);
            }
        }
        kept.add(more);
    }
    kept
}

fn lower_one(
    rule: &Rule,
    restriction: &Restriction,
    missing: &BTreeSet<String>,
) -> CompiledPart<Entry> {
    let entry = |key| Entry {
        rule: rule.id.clone(),
        verdict: rule.verdict,
        key,
    };
    let one = |key| CompiledPart::one(entry(key));
    match restriction {
        Restriction::File { access, .. } if access.contents => {
            CompiledPart::missing("only Landlock denies reading without listing")
        }
        Restriction::File { path, access } => {
            let lowered = one(Key::File {
                path: PathKey::new(path),
                access: *access,
            });
            lowered.with_folders_of(path, rule.verdict.denies())
        }
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
                CompiledPart::missing(format!("only Kubernetes knows the addresses of {to}"))
            }
        },
        Restriction::Mount(mount) => mounts::lower(mount, entry),
        Restriction::Ptrace { access, scope } => one(Key::Ptrace {
            access: *access,
            scope: *scope,
        }),
        Restriction::Capabilities(set) => one(Key::Capabilities(*set)),
        Restriction::Mode { bits } => one(Key::Mode(*bits)),
        Restriction::Operation(operation) => lower_operation(operation, missing, &entry),
        Restriction::Syscall(_) => CompiledPart::missing("hooks see operations, not system calls"),
        Restriction::InsideConnections => CompiledPart::missing(super::part::NEEDS_PROXY),
        Restriction::OnlyPeers(_) | Restriction::OnlyFiles(_) => {
            CompiledPart::missing(supporters(restriction))
        }
        Restriction::AppArmorText(_) => {
            CompiledPart::missing("the rule is in the language of AppArmor")
        }
    }
}

/// Lowers an operation to its hooks, and notes the calls that pass none of the attached hooks.
fn lower_operation(
    operation: &Operation,
    missing: &BTreeSet<String>,
    entry: &dyn Fn(Key) -> Entry,
) -> CompiledPart<Entry> {
    if let Some(reason) = operation.none.get(&EnforcerKind::Bpf) {
        return CompiledPart::missing(reason.clone());
    }
    let hooks = operation.hooks.iter();
    let keys: Vec<Key> = hooks.map(|hook| Key::Hook(hook.clone())).collect();
    let hooks = keys.iter().flat_map(Key::hooks);
    let attached: Vec<&str> = hooks.filter(|hook| !missing.contains(*hook)).collect();
    let decides = |hook: &str| match hook.split_once(':') {
        Some(("capable", _)) => attached.contains(&"capable"),
        _ => {
            let is_own = operation.hooks.iter().any(|own| own == hook);
            attached.contains(&hook) || is_own && !missing.contains(hook)
        }
    };
    let coverage = operation.coverage(decides);
    if keys.is_empty() {
        return CompiledPart::missing("no hook sees it");
    }
    CompiledPart {
        gaps: coverage
            .gaps
            .into_iter()
            .chain(operation.weak(EnforcerKind::Bpf))
            .collect(),
        ..CompiledPart::many(keys.into_iter().map(entry))
    }
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
