//! Parser of `bpfRawRules`.

use std::collections::BTreeMap;

use yaml::{Location, Node};

use super::body::Switches;
use super::network;
use super::reader::{Fields, Reader};
use crate::compile::process_files;
use crate::diagnostic::Code;
use crate::pattern::Pattern;
use crate::policy::{Rule, RuleAction, RuleOrigin};
use crate::restriction::{
    AllowedFile, AllowedPeer, FileAccess, MountMatch, PtraceAccess, PtraceScope, Restriction,
};

pub(super) fn read(reader: &mut Reader, node: &Node, switches: Switches, rules: &mut Vec<Rule>) {
    let known = ["files", "processes", "network", "ptrace", "mounts"];
    let fields = reader.fields(node, "bpfRawRules", &known);
    for list in ["files", "processes"] {
        for (index, item) in reader.items_of(&fields, list).iter().enumerate() {
            let id = format!("bpfRawRules.{list}[{index}]");
            rules.extend(read_file(reader, item, id, switches));
        }
    }
    if let Some(node) = fields.find("network") {
        network::read(reader, node, switches, rules);
    }
    if let Some(node) = fields.find("ptrace") {
        rules.extend(read_ptrace(reader, node, switches));
    }
    for (index, item) in reader.items_of(&fields, "mounts").iter().enumerate() {
        let id = format!("bpfRawRules.mounts[{index}]");
        rules.extend(read_mount(reader, item, id, switches));
    }
}

pub(super) fn raw_rule(
    id: String,
    location: &Location,
    verdict: RuleAction,
    restrictions: Vec<Restriction>,
) -> Rule {
    Rule {
        id,
        origin: RuleOrigin::Raw,
        location: location.clone(),
        verdict,
        restrictions,
        targets: Vec::new(),
        left_to: BTreeMap::new(),
    }
}

/// Parses `qualifiers: [deny, audit]`. The switches of the policy can remove the denial and add a report.
pub(super) fn read_verdict(
    reader: &mut Reader,
    fields: &Fields<'_>,
    what: &str,
    switches: Switches,
) -> Option<RuleAction> {
    // Before qualifiers existed, every rule denied.
    let mut deny = fields.find("qualifiers").is_none();
    let mut audit = false;
    for (node, word) in reader.words_of(fields, "qualifiers") {
        match word {
            "deny" => deny = true,
            "audit" => audit = true,
            other => {
                reader.unknown_value(&node.location, "qualifiers", other, &["deny", "audit"]);
                return None;
            }
        }
    }
    if !deny && !audit {
        let message = format!("`{what}` has no qualifier and does nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    Some(RuleAction::from_switches(
        switches.allow || !deny,
        switches.audit || audit,
    ))
}

pub(super) fn read_pattern(reader: &mut Reader, node: &Node, what: &str) -> Option<Pattern> {
    let text = reader.text(node, what)?;
    match Pattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            reader.problem(Code::UnknownValue, &node.location, error.to_string());
            None
        }
    }
}

/// Parses `landlockRawRules`, an extension to vArmor: the only files that stay accessible.
pub(super) fn read_only_files(
    reader: &mut Reader,
    node: &Node,
    switches: Switches,
) -> Option<Rule> {
    let what = "landlockRawRules.only";
    let fields = reader.fields(node, "landlockRawRules", &["only"]);
    let mut allowed = Vec::new();
    for (index, item) in reader.items_of(&fields, "only").iter().enumerate() {
        let id = format!("{what}[{index}]");
        let fields = reader.fields(item, &id, &["pattern", "permissions"]);
        let pattern = reader.required(&fields, &id, "pattern")?;
        let path = read_pattern(reader, pattern, "pattern")?;
        let is_one = path.literal().or_else(|| path.subtree()).is_some();
        if !is_one && !process_files::is_of_processes(&path) {
            let message = format!("`{path}` is neither a path nor a folder with `/**` after it");
            reader.problem(Code::UnknownValue, &pattern.location, message);
            return None;
        }
        reader.required(&fields, &id, "permissions")?;
        let (access, exec) = read_permissions(reader, &fields)?;
        allowed.push(AllowedFile { path, access, exec });
    }
    if allowed.is_empty() {
        let message = format!("`{what}` allows nothing, so no command could start");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    Some(raw_rule(
        what.to_owned(),
        &fields.location,
        switches.verdict(),
        vec![Restriction::OnlyFiles(allowed)],
    ))
}

/// Parses `connectRawRules`, an extension to vArmor: the only peers that may be connected to. The list may be
/// empty.
pub(super) fn read_only_peers(
    reader: &mut Reader,
    node: &Node,
    switches: Switches,
) -> Option<Rule> {
    let what = "connectRawRules.only";
    let fields = reader.fields(node, "connectRawRules", &["only"]);
    reader.required(&fields, "connectRawRules", "only")?;
    let mut allowed = Vec::new();
    for (node, text) in reader.words_of(&fields, "only") {
        match AllowedPeer::parse(text) {
            Ok(peer) => allowed.push(peer),
            Err(problem) => {
                reader.problem(Code::UnknownValue, &node.location, problem);
                return None;
            }
        }
    }
    Some(raw_rule(
        what.to_owned(),
        &fields.location,
        switches.verdict(),
        vec![Restriction::OnlyPeers(allowed)],
    ))
}

const PERMISSIONS: [&str; 11] = [
    "all", "*", "read", "r", "contents", "write", "w", "exec", "x", "append", "a",
];

fn read_file(reader: &mut Reader, node: &Node, id: String, switches: Switches) -> Option<Rule> {
    let fields = reader.fields(node, &id, &["qualifiers", "pattern", "permissions"]);
    let verdict = read_verdict(reader, &fields, &id, switches);
    let pattern = reader.required(&fields, &id, "pattern")?;
    let path = read_pattern(reader, pattern, "pattern");
    reader.required(&fields, &id, "permissions")?;
    let (access, exec) = read_permissions(reader, &fields)?;
    let path = path?;
    let mut restrictions = Vec::new();
    if !access.is_empty() {
        restrictions.push(Restriction::File {
            path: path.clone(),
            access,
        });
    }
    if exec {
        restrictions.push(Restriction::Exec { path });
    }
    if restrictions.is_empty() {
        let message = format!("`{id}` has no permission and does nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    Some(raw_rule(id, &fields.location, verdict?, restrictions))
}

/// Parses `permissions: [read, exec]`.
fn read_permissions(reader: &mut Reader, fields: &Fields<'_>) -> Option<(FileAccess, bool)> {
    let mut access = FileAccess::default();
    let mut exec = false;
    for (node, word) in reader.words_of(fields, "permissions") {
        let all = matches!(word, "all" | "*");
        if !PERMISSIONS.contains(&word) {
            reader.unknown_value(&node.location, "permissions", word, &PERMISSIONS);
            return None;
        }
        access.read |= all || matches!(word, "read" | "r");
        access.contents |= word == "contents";
        access.write |= all || matches!(word, "write" | "w");
        access.append |= all || matches!(word, "write" | "w" | "append" | "a");
        exec |= all || matches!(word, "exec" | "x");
    }
    Some((access, exec))
}

const PTRACE: [&str; 6] = ["all", "*", "trace", "traceby", "read", "readby"];

fn read_ptrace(reader: &mut Reader, node: &Node, switches: Switches) -> Option<Rule> {
    let what = "bpfRawRules.ptrace";
    let fields = reader.fields(node, what, &["qualifiers", "strictMode", "permissions"]);
    let verdict = read_verdict(reader, &fields, what, switches)?;
    let strict = reader.switch(&fields, "strictMode");
    reader.required(&fields, what, "permissions")?;
    let mut access = PtraceAccess::default();
    for (node, word) in reader.words_of(&fields, "permissions") {
        let more = match word {
            "all" | "*" => PTRACE[2..]
                .iter()
                .try_fold(access, |sum, name| sum.with(name)),
            name => access.with(name),
        };
        let Some(more) = more else {
            reader.unknown_value(&node.location, "permissions", word, &PTRACE);
            return None;
        };
        access = more;
    }
    if access == PtraceAccess::default() {
        let message = format!("`{what}` has no permission and does nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    let scope = match strict {
        true => PtraceScope::Any,
        false => PtraceScope::Outside,
    };
    let restriction = Restriction::Ptrace { access, scope };
    Some(raw_rule(
        what.to_owned(),
        &fields.location,
        verdict,
        vec![restriction],
    ))
}

/// The kernel's limit on the name of a file system, including the final zero.
const MAX_FSTYPE: usize = 16;

fn read_mount(reader: &mut Reader, node: &Node, id: String, switches: Switches) -> Option<Rule> {
    let known = ["qualifiers", "sourcePattern", "fstype", "flags"];
    let fields = reader.fields(node, &id, &known);
    let verdict = read_verdict(reader, &fields, &id, switches);
    let source = reader.required(&fields, &id, "sourcePattern")?;
    let from = match reader.text(source, "sourcePattern")? {
        "*" | "**" => Pattern::parse("/**").ok(),
        _ => read_pattern(reader, source, "sourcePattern"),
    };
    let fstype = match reader.text_of(&fields, "fstype") {
        None | Some("*") => None,
        Some(name) if name.len() < MAX_FSTYPE => Some(name.to_owned()),
        Some(name) => {
            let message = format!("`{name}` is longer than the name of any file system");
            reader.problem(Code::UnknownValue, &fields.location, message);
            None
        }
    };
    let mut names = Vec::new();
    for (node, word) in reader.words_of(&fields, "flags") {
        match word {
            "all" | "*" => {}
            word => match mount_flag(word) {
                Some(name) => names.push(name.to_owned()),
                None => reader.unknown_value(&node.location, "flags", word, &MOUNT_FLAGS),
            },
        }
    }
    let mount = MountMatch::Raw {
        from: from?,
        fstype,
        flags: names,
    };
    Some(raw_rule(
        id,
        &fields.location,
        verdict?,
        vec![Restriction::Mount(mount)],
    ))
}

/// The one name of a mount flag, which may be abbreviated or begin with `make-`.
fn mount_flag(word: &str) -> Option<&str> {
    let name = match word {
        "r" | "read-only" => "ro",
        "w" => "rw",
        "B" => "bind",
        "M" => "move",
        "R" => "rbind",
        word => match word.strip_prefix("make-") {
            Some(kind) if PROPAGATIONS.contains(&kind) => kind,
            Some(_) => return None,
            None => word,
        },
    };
    MOUNT_FLAGS.contains(&name).then_some(name)
}

/// Kinds of propagation, each also with `make-` in front.
const PROPAGATIONS: [&str; 8] = [
    "private",
    "rprivate",
    "rshared",
    "rslave",
    "runbindable",
    "shared",
    "slave",
    "unbindable",
];

/// Mount flags as mount(8) and AppArmor name them, and `umount`.
const MOUNT_FLAGS: [&str; 43] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "remount",
    "mand",
    "nomand",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "bind",
    "rbind",
    "move",
    "verbose",
    "silent",
    "loud",
    "acl",
    "noacl",
    "unbindable",
    "private",
    "slave",
    "shared",
    "runbindable",
    "rprivate",
    "rslave",
    "rshared",
    "relatime",
    "norelatime",
    "iversion",
    "noiversion",
    "strictatime",
    "user",
    "nouser",
    "nostrictatime",
    "umount",
];
