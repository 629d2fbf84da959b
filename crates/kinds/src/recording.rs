//! What containers did, with the members of vArmor's ArmorProfileModel.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// `dynamicResult` of an ArmorProfileModel, as far as our agents can report it. vArmor's part about AppArmor is none of it.
///
/// ```
/// let text = r#"{"seccomp": {"syscalls": ["bind"]}, "bpf": {"files": [{"path": "/a", "permissions": ["read"]}]}}"#;
/// let recording: kinds::Recording = serde_json::from_str(text).unwrap();
/// assert!(recording.seccomp.unwrap().syscalls.contains("bind"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recording {
    /// Files, programs, capabilities and sockets; `None` if nobody watched them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpf: Option<FilesAndSockets>,
    /// System calls; `None` if nobody watched them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Calls>,
}

/// System calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calls {
    /// Names of calls.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub syscalls: BTreeSet<String>,
}

/// Files, programs, capabilities and sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesAndSockets {
    /// Programs that were executed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub executions: BTreeSet<String>,
    /// Files that were used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileUse>,
    /// Capabilities that were used, such as `net_bind_service`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub capabilities: BTreeSet<String>,
    /// Sockets and addresses.
    pub network: Network,
}

/// How a file was used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileUse {
    /// The file; it may have wildcards.
    pub path: String,
    /// Such as `read`.
    pub permissions: BTreeSet<String>,
}

/// Sockets and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Sockets that were made.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub sockets: BTreeSet<Socket>,
    /// Addresses that were contacted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egresses: Vec<Egress>,
}

/// A kind of socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Such as `AF_INET`.
    #[serde(default)]
    pub domain: String,
    /// Such as `SOCK_STREAM`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Such as `IPPROTO_TCP`.
    #[serde(default)]
    pub protocol: String,
}

/// An address that was contacted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// The address.
    pub ip: String,
    /// The ports.
    pub ports: BTreeSet<u16>,
}

/// One thing that a container did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BehaviorItem {
    /// Somebody watched files, programs, capabilities and sockets.
    WatchedFiles,
    /// Somebody watched system calls.
    WatchedCalls,
    /// A program was executed.
    Execution(String),
    /// A file was used with a permission.
    File(String, String),
    /// A capability was used.
    Capability(String),
    /// A socket was made.
    Socket(Socket),
    /// A port of an address was contacted.
    Egress(String, u16),
    /// A system call was made.
    Call(String),
}

impl Recording {
    /// The single things that were done.
    #[must_use]
    pub fn items(&self) -> BTreeSet<BehaviorItem> {
        let mut items = BTreeSet::new();
        if let Some(calls) = &self.seccomp {
            items.insert(BehaviorItem::WatchedCalls);
            items.extend(calls.syscalls.iter().cloned().map(BehaviorItem::Call));
        }
        let Some(bpf) = &self.bpf else {
            return items;
        };
        items.insert(BehaviorItem::WatchedFiles);
        items.extend(bpf.executions.iter().cloned().map(BehaviorItem::Execution));
        items.extend(
            bpf.capabilities
                .iter()
                .cloned()
                .map(BehaviorItem::Capability),
        );
        items.extend(
            bpf.network
                .sockets
                .iter()
                .cloned()
                .map(BehaviorItem::Socket),
        );
        for file in &bpf.files {
            let uses = file.permissions.iter();
            items.extend(uses.map(|word| BehaviorItem::File(file.path.clone(), word.clone())));
        }
        for egress in &bpf.network.egresses {
            let ports = egress.ports.iter();
            items.extend(ports.map(|port| BehaviorItem::Egress(egress.ip.clone(), *port)));
        }
        items
    }
}

impl<'a> FromIterator<&'a BehaviorItem> for Recording {
    fn from_iter<I: IntoIterator<Item = &'a BehaviorItem>>(items: I) -> Self {
        let mut recording = Self::default();
        let mut files: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut egresses: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
        for item in items {
            if let BehaviorItem::WatchedCalls | BehaviorItem::Call(_) = item {
                let calls = recording.seccomp.get_or_insert_default();
                if let BehaviorItem::Call(name) = item {
                    calls.syscalls.insert(name.clone());
                }
                continue;
            }
            let bpf = recording.bpf.get_or_insert_default();
            match item {
                BehaviorItem::Execution(path) => drop(bpf.executions.insert(path.clone())),
                BehaviorItem::Capability(name) => drop(bpf.capabilities.insert(name.clone())),
                BehaviorItem::Socket(socket) => drop(bpf.network.sockets.insert(socket.clone())),
                BehaviorItem::File(path, word) => {
                    files.entry(path).or_default().insert(word.clone());
                }
                BehaviorItem::Egress(ip, port) => {
                    egresses.entry(ip).or_default().insert(*port);
                }
                BehaviorItem::WatchedFiles | BehaviorItem::WatchedCalls | BehaviorItem::Call(_) => {
                }
            }
        }
        if let Some(bpf) = &mut recording.bpf {
            let file = |(path, permissions): (&str, BTreeSet<String>)| FileUse {
                path: path.to_owned(),
                permissions,
            };
            bpf.files = files.into_iter().map(file).collect();
            let egress = |(ip, ports): (&str, BTreeSet<u16>)| Egress {
                ip: ip.to_owned(),
                ports,
            };
            bpf.network.egresses = egresses.into_iter().map(egress).collect();
        }
        recording
    }
}
