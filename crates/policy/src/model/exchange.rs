//! A model in the form of vArmor's ArmorProfileModel: what of it can be written there, and how a model is made of what such an
//! object has.

use std::collections::{BTreeMap, BTreeSet};

use abi::{Arch, Capabilities, Syscall, capability};
use serde_json::{Value, json};

use super::{ALWAYS, CATALOGUE, DECIDING, MOST_VALUES, Model, classes};
use crate::restriction::{
    Restriction, socket_domain, socket_domain_name, socket_type, socket_type_name,
};

/// Characters that may stand for others in a recorded path (AppArmor's globbing). In a path as it is they do no harm: more
/// built-in rules are left out.
pub const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// A part of a workload's behaviour that an object does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecorded {
    /// Files that were used, and programs that were executed.
    Files,
    /// Addresses that were contacted.
    Addresses,
    /// Paths of Unix sockets that were contacted.
    LocalPeers,
    /// Sockets that were made.
    Sockets,
    /// What was mounted, and where: there were mounts.
    Mounts,
    /// Which processes were looked into.
    Processes,
    /// System calls with their arguments.
    Calls,
}

impl Unrecorded {
    /// Returns true if a restriction is about this behaviour.
    fn is_about(self, restriction: &Restriction) -> bool {
        match self {
            Self::Files => matches!(
                restriction,
                Restriction::File { .. } | Restriction::Exec { .. } | Restriction::Disk { .. }
            ),
            Self::Addresses => matches!(restriction, Restriction::Egress { .. }),
            Self::LocalPeers => matches!(restriction, Restriction::Connect { .. }),
            Self::Sockets => matches!(restriction, Restriction::Socket(_)),
            Self::Mounts => matches!(restriction, Restriction::Mount(_)),
            Self::Processes => matches!(restriction, Restriction::Ptrace { .. }),
            Self::Calls => matches!(
                restriction,
                Restriction::Mount(_)
                    | Restriction::Ptrace { .. }
                    | Restriction::Mode { .. }
                    | Restriction::Operation(_)
                    | Restriction::Syscall(_)
            ),
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Addresses => "addresses",
            Self::LocalPeers => "Unix sockets",
            Self::Sockets => "sockets",
            Self::Mounts => "mounts",
            Self::Processes => "other processes",
            Self::Calls => "system calls",
        }
    }
}

/// Names of protocols in `network.sockets`, by number (include/uapi/linux/in.h).
const PROTOCOLS: [(u64, &str); 25] = [
    (0, "ip"),
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (8, "egp"),
    (12, "pup"),
    (17, "udp"),
    (22, "idp"),
    (29, "tp"),
    (33, "dccp"),
    (41, "ipv6"),
    (46, "rsvp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (92, "mtp"),
    (94, "beetph"),
    (98, "encap"),
    (103, "pim"),
    (108, "comp"),
    (132, "sctp"),
    (136, "udplite"),
    (137, "mpls"),
    (255, "raw"),
];

impl Model {
    /// The part `data` of an ArmorProfileModel: what was recorded as `dynamicResult`, and as `profile` a seccomp profile
    /// that allows it. `name` is the name of the profile.
    ///
    /// The form has no member for examples of violated rules, for paths of Unix sockets that were contacted, and for values
    /// of arguments, which are in the profile alone. If capabilities are not known, all are listed.
    #[must_use]
    pub fn to_recorded(&self, name: &str) -> Value {
        let capabilities = match self.had_capabilities {
            true => Capabilities::ALL,
            false => self.capabilities,
        };
        let capabilities = capabilities.to_string().to_lowercase();
        let capabilities = capabilities.split_whitespace();
        let capabilities: Vec<&str> = capabilities
            .map(|name| name.trim_start_matches("cap_"))
            .collect();
        json!({
            "dynamicResult": {
                "bpf": {
                    "executions": self.programs,
                    "files": self.file_uses(),
                    "capabilities": capabilities,
                    "network": { "sockets": self.socket_uses(), "egresses": self.egresses() },
                },
                "seccomp": { "syscalls": self.calls },
            },
            "profile": {
                "name": name,
                "enforcer": "Seccomp",
                "mode": "enforce",
                "seccomp": self.allow_profile().to_string(),
            },
        })
    }

    /// Paths of Unix sockets that the workload contacted.
    pub fn local_peers(&self) -> impl Iterator<Item = &str> {
        let peers = self.peers.iter().map(String::as_str);
        peers.filter(|peer| peer.starts_with('/'))
    }

    fn file_uses(&self) -> Vec<Value> {
        let mut uses: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut add = |path: String, permission| uses.entry(path).or_default().push(permission);
        for path in &self.reads {
            add(path.clone(), "read");
        }
        for path in &self.writes {
            add(path.clone(), "write");
        }
        for folder in &self.makes {
            add(format!("{folder}/*"), "create");
        }
        let row = |(path, permissions)| json!({ "path": path, "permissions": permissions });
        uses.into_iter().map(row).collect()
    }

    fn socket_uses(&self) -> Vec<Value> {
        let small = |number: u64, name: fn(u16) -> String| {
            u16::try_from(number).map_or_else(|_| number.to_string(), name)
        };
        let with_prefix = |prefix: &str, name: String| match name.parse::<u64>() {
            Ok(_) => name,
            Err(_) => format!("{prefix}{}", name.to_uppercase()),
        };
        let row = |(domain, kind, protocol): &(u64, u64, u64)| {
            json!({
                "domain": with_prefix("AF_", small(*domain, socket_domain_name)),
                "type": with_prefix("SOCK_", small(*kind, socket_type_name)),
                "protocol": with_prefix("IPPROTO_", protocol_name(*protocol)),
            })
        };
        self.sockets.iter().map(row).collect()
    }

    fn egresses(&self) -> Vec<Value> {
        let mut ports: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
        let peers = self.peers.iter().filter(|peer| !peer.starts_with('/'));
        for (address, port) in peers.filter_map(|peer| peer.rsplit_once(' ')) {
            ports
                .entry(address)
                .or_default()
                .extend(port.parse::<u16>());
        }
        let row = |(ip, ports)| json!({ "ip": ip, "ports": ports });
        ports.into_iter().map(row).collect()
    }

    /// The calls that a policy of this model allows, as `linux.seccomp` of the OCI runtime specification.
    fn allow_profile(&self) -> Value {
        let native = Arch::native().unwrap_or(Arch::X86_64);
        let needed = classes::calls(&self.calls);
        let is_allowed = |call: &Syscall| ALWAYS.contains(call) || needed.contains(call.name());
        let mut names = Vec::new();
        let mut entries = Vec::new();
        for call in Syscall::all().filter(|call| call.number(native).is_some() && is_allowed(call))
        {
            let values = self.allowed_values(call);
            if values.is_empty() {
                names.push(call.name());
            }
            let (_, index) = DECIDING
                .iter()
                .find(|(known, _)| *known == call)
                .copied()
                .unwrap_or((call, 0));
            entries.extend(values.into_iter().map(|value| {
                json!({ "names": [call.name()], "action": "SCMP_ACT_ALLOW",
                    "args": [{ "index": index, "value": value, "op": "SCMP_CMP_EQ" }] })
            }));
        }
        entries.insert(0, json!({ "names": names, "action": "SCMP_ACT_ALLOW" }));
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": entries })
    }

    /// The values of the selecting argument that a policy allows; empty if it allows all.
    pub(super) fn allowed_values(&self, call: Syscall) -> BTreeSet<u64> {
        let none = BTreeSet::new();
        let is_deciding = DECIDING.iter().any(|(known, _)| *known == call);
        let used = self.values.get(call.name());
        // A call whose values nobody has recorded.
        if !is_deciding || (used.is_none() && self.calls.contains(call.name())) {
            return none;
        }
        let values = classes::values(call.name(), used.unwrap_or(&none));
        match values.len() <= MOST_VALUES {
            true => values,
            false => none,
        }
    }

    /// Records a call whose arguments are not known. Built-in rules that deny it with some arguments are taken to be violated.
    pub fn note_call_without_arguments(&mut self, call: Syscall) {
        self.calls.insert(call.name().to_owned());
        for rule in CATALOGUE.iter().filter(|rule| rule.call == call) {
            let case = format!("calls {}, and nobody recorded how", call.name());
            self.violated.entry(rule.rule.clone()).or_insert(case);
        }
    }

    /// Records a call by its name, without its arguments. Returns false if this program does not know it.
    pub fn note_call_name(&mut self, name: &str) -> bool {
        let call = Syscall::from_name(name);
        match call {
            // Its arguments are those of the sockets that are recorded beside it.
            Some(Syscall::SOCKET) => drop(self.calls.insert(name.to_owned())),
            Some(call) => self.note_call_without_arguments(call),
            None => {}
        }
        call.is_some()
    }

    /// Records that a part of the behaviour is not known: every built-in rule about it is taken to be violated.
    pub fn note_unrecorded(&mut self, part: Unrecorded) {
        let what = format!("{} that nobody recorded", part.noun());
        self.refuse("may use", &what, |restriction| part.is_about(restriction));
        match part {
            Unrecorded::Mounts => self.note_call_without_arguments(Syscall::MOUNT),
            Unrecorded::Sockets if self.calls.contains(Syscall::SOCKET.name()) => {
                self.note_call_without_arguments(Syscall::SOCKET);
            }
            _ => {}
        }
    }

    /// Records a socket by the names that AppArmor or BPF programs give: `inet` and `tcp`, or `AF_INET` and `IPPROTO_TCP`.
    /// Without a known protocol, rules about sockets are taken to be violated.
    ///
    /// # Errors
    ///
    /// The name that is not known.
    pub fn note_socket(&mut self, domain: &str, kind: &str, protocol: &str) -> Result<(), String> {
        let number = |text: &str, prefix: &str, named: &dyn Fn(&str) -> Option<u64>| {
            let word = text.to_lowercase();
            let word = word.strip_prefix(prefix).unwrap_or(&word);
            word.parse().ok().or_else(|| named(word))
        };
        let unknown = |text: &str| text.to_owned();
        let domain = number(domain, "af_", &|word| socket_domain(word).map(u64::from))
            .ok_or_else(|| unknown(domain))?;
        let kind = number(kind, "sock_", &|word| socket_type(word).map(u64::from))
            .ok_or_else(|| unknown(kind))?;
        let protocol = number(protocol, "ipproto_", &|word| {
            let known = PROTOCOLS.iter().find(|(_, name)| *name == word);
            known.map(|(number, _)| *number)
        });
        let args = [domain, kind, protocol.unwrap_or_default(), 0, 0, 0];
        self.note_call(Syscall::SOCKET, &args);
        if protocol.is_none() {
            self.note_call_without_arguments(Syscall::SOCKET);
        }
        Ok(())
    }

    /// Records a capability by its name. Returns false if there is none of this name.
    pub fn note_capability(&mut self, name: &str) -> bool {
        let number = capability::from_name(name);
        if let Some(number) = number {
            self.capabilities.0 |= 1 << number;
        }
        number.is_some()
    }

    /// Records the use of a file with a permission by a word of BPF programs (`read`) or a letter of AppArmor (`r`). The path
    /// may have wildcards: built-in rules about what it may match are taken to be violated. Returns false if there is no such
    /// permission.
    pub fn note_file_use(&mut self, path: &str, permission: &str) -> bool {
        // AppArmor writes folders with a slash at their end.
        let path = match path.strip_suffix('/') {
            None | Some("") => path,
            Some(folder) => folder,
        };
        match permission {
            // A lock needs an open file, and a mapping too.
            "read" | "r" | "m" | "k" => self.note_read(path),
            "write" | "append" | "a" => self.note_write(path),
            // AppArmor's log has creation and removal as `w`.
            "w" | "rename" => {
                self.note_write(path);
                self.note_make(path);
            }
            "create" | "link" | "l" => self.note_make(path),
            "exec" | "x" => self.note_program(path),
            _ => return false,
        }
        if permission != "create" {
            self.refuse_what_may_match(path);
        }
        true
    }

    /// Records an executed program, whose path may have wildcards.
    pub fn note_execution(&mut self, path: &str) {
        self.note_program(path);
        self.refuse_what_may_match(path);
    }

    fn refuse_what_may_match(&mut self, path: &str) {
        let Some((fixed, _)) = path.split_once(WILDCARDS) else {
            return;
        };
        let may_match = |other: &str| {
            let other = other.split('*').next().unwrap_or_default();
            other.starts_with(fixed) || fixed.starts_with(other)
        };
        self.refuse("may use", path, |restriction| match restriction {
            Restriction::File { path, .. } | Restriction::Exec { path } => may_match(path.text()),
            Restriction::Disk { .. } => may_match("/dev/*"),
            _ => false,
        });
    }
}

fn protocol_name(number: u64) -> String {
    let known = PROTOCOLS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
