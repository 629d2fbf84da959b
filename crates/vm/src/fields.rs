//! Table of the parts of a container's configuration and their treatment in a machine: implemented,
//! implemented in another way, ignored with a warning, or refused. Parts that are not in the table
//! are ignored with a warning.

use serde_json::Value;

use super::mounts::TYPES;

/// Treatment of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartOutcome {
    /// Implemented as specified, possibly with a restriction.
    Done(&'static str),
    /// Its purpose is reached in another way, or does not apply.
    Otherwise(&'static str),
    /// Ignored. The creator gets a warning.
    LeftOut(&'static str),
    /// The container is refused.
    Refused(&'static str),
}

use PartOutcome::{Done, LeftOut, Otherwise, Refused};

/// Parts of `config.json` (OCI runtime specification 1.2), each with everything below it. The
/// longest matching name counts.
const FIELDS: &[(&str, PartOutcome)] = &[
    ("ociVersion", Done("")),
    ("annotations", Done("")),
    (
        "root.path",
        Done("a copy: nothing that is written comes back"),
    ),
    ("root.readonly", Done("")),
    (
        "mounts[].destination",
        Done("links are followed inside the root"),
    ),
    (
        "mounts[].type",
        Done("bind, proc, sysfs, tmpfs, devpts, mqueue, cgroup; others are refused"),
    ),
    (
        "mounts[].source",
        Done(
            "bound files, and folders that are bound read-only, are copies; other folders are refused, but for \
             `/dev/shm`, which is the machine's own",
        ),
    ),
    (
        "mounts[].options",
        Done("no other mount namespace to propagate to"),
    ),
    ("mounts[].uidMappings", Refused("users are not mapped")),
    ("mounts[].gidMappings", Refused("groups are not mapped")),
    ("process.args", Done("")),
    (
        "process.env",
        Done("with HOME, if it is not there, as runc does"),
    ),
    ("process.cwd", Done("")),
    ("process.user.uid", Done("")),
    ("process.user.gid", Done("")),
    ("process.user.additionalGids", Done("")),
    ("process.user.umask", Done("")),
    (
        "process.user.username",
        Otherwise("it is for Windows alone"),
    ),
    ("process.commandLine", Otherwise("it is for Windows alone")),
    ("process.capabilities", Done("")),
    ("process.noNewPrivileges", Done("")),
    ("process.rlimits[]", Done("")),
    (
        "process.oomScoreAdj",
        Done("among the processes of the machine"),
    ),
    ("process.terminal", Refused("terminals are not supported")),
    ("process.consoleSize", Otherwise("there is no terminal")),
    ("process.scheduler", LeftOut("")),
    ("process.ioPriority", LeftOut("")),
    (
        "process.execCPUAffinity",
        Otherwise("a machine has one processor"),
    ),
    (
        "process.apparmorProfile",
        LeftOut("policies of tollgate apply in the machine"),
    ),
    ("process.selinuxLabel", LeftOut("")),
    ("hostname", Done("")),
    ("domainname", Done("")),
    (
        "hooks",
        Refused("a hook expects the container's processes on the host"),
    ),
    (
        "linux.namespaces[].type",
        Otherwise(
            "a container always has its own pid, mount, uts and ipc namespaces; the machine isolates the rest",
        ),
    ),
    (
        "linux.namespaces[].path",
        LeftOut("a virtual machine shares no namespaces with other machines"),
    ),
    ("linux.uidMappings", Refused("users are not mapped")),
    ("linux.gidMappings", Refused("groups are not mapped")),
    ("linux.timeOffsets", LeftOut("")),
    (
        "linux.devices[]",
        Done("nodes for devices of the machine, which has no device of the host"),
    ),
    ("linux.netDevices", Refused("a machine has no network")),
    (
        "linux.cgroupsPath",
        Otherwise("the group is in the machine; the machine's own processes stay in the caller's"),
    ),
    (
        "linux.rootfsPropagation",
        Otherwise("no other mount namespace to propagate to"),
    ),
    (
        "linux.resources.devices",
        Otherwise("a machine has no device of the host"),
    ),
    (
        "linux.resources.memory.limit",
        Done("the machine gets that much more memory"),
    ),
    ("linux.resources.memory.reservation", Done("")),
    (
        "linux.resources.memory.swap",
        Otherwise("a machine swaps nothing out"),
    ),
    (
        "linux.resources.memory.swappiness",
        Otherwise("a machine swaps nothing out"),
    ),
    ("linux.resources.memory.kernel", LeftOut("")),
    ("linux.resources.memory.kernelTCP", LeftOut("")),
    ("linux.resources.memory.disableOOMKiller", LeftOut("")),
    (
        "linux.resources.memory.useHierarchy",
        Otherwise("it is always in effect"),
    ),
    (
        "linux.resources.memory.checkBeforeUpdate",
        Otherwise("there is no update"),
    ),
    ("linux.resources.cpu.shares", Done("")),
    ("linux.resources.cpu.quota", Done("of one processor")),
    ("linux.resources.cpu.period", Done("")),
    ("linux.resources.cpu.burst", Done("")),
    ("linux.resources.cpu.idle", Done("")),
    (
        "linux.resources.cpu.cpus",
        LeftOut("a machine has one processor, which runs on any of the host's"),
    ),
    ("linux.resources.cpu.mems", LeftOut("")),
    ("linux.resources.cpu.realtimeRuntime", LeftOut("")),
    ("linux.resources.cpu.realtimePeriod", LeftOut("")),
    ("linux.resources.pids.limit", Done("")),
    ("linux.resources.unified", Done("")),
    (
        "linux.resources.blockIO",
        Otherwise("a machine has no disk"),
    ),
    ("linux.resources.hugepageLimits", LeftOut("")),
    (
        "linux.resources.network",
        Otherwise("a machine has no network"),
    ),
    (
        "linux.resources.rdma",
        Otherwise("a machine has no such device"),
    ),
    ("linux.intelRdt", LeftOut("")),
    ("linux.memoryPolicy", LeftOut("")),
    ("linux.sysctl", Done("")),
    (
        "linux.seccomp",
        Done("combined with the filter of tollgate; the stricter action wins"),
    ),
    (
        "linux.seccomp.listenerPath",
        Refused("a listener on the host cannot read a virtual machine"),
    ),
    (
        "linux.seccomp.listenerMetadata",
        Otherwise("there is no listener"),
    ),
    ("linux.maskedPaths", Done("")),
    ("linux.readonlyPaths", Done("")),
    ("linux.mountLabel", LeftOut("")),
    (
        "linux.personality.domain",
        Refused("programs have the usual personality"),
    ),
    (
        "vm",
        Refused("the configuration of `tollgate runtime` describes the virtual machine"),
    ),
    ("windows", Refused("this is Linux")),
    ("solaris", Refused("this is Linux")),
    ("zos", Refused("this is Linux")),
    ("freebsd", Refused("this is Linux")),
];
/// Values of parts that ask for what is the case anyway.
const SO_ANYWAY: &[(&str, &str)] = &[("linux.personality.domain", "LINUX")];
const UNKNOWN: PartOutcome = LeftOut("tollgate does not know it");

/// Returns the reason to refuse the container, if there is one.
pub(super) fn refusal(config: &Value) -> Option<String> {
    let refused = found(config)
        .into_iter()
        .find_map(|(name, fate)| match fate {
            Refused(why) => Some(format!("{name}: {why}")),
            _ => None,
        });
    refused.or_else(|| of_mounts(config))
}

fn of_mounts(config: &Value) -> Option<String> {
    let mounts = config["mounts"].as_array().into_iter().flatten();
    let others = mounts.filter(|mount| super::image::BindMount::of(mount).is_none());
    // A mount without a type could only be a bind mount; it is refused as one without type.
    let mut types = others.map(|mount| mount["type"].as_str().unwrap_or_default());
    let unknown = types.find(|name| !TYPES.contains(name))?;
    Some(format!(
        "mounts: a virtual machine does not support type `{unknown}`"
    ))
}

/// Returns a warning line for each ignored part.
pub(super) fn warnings(config: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, fate) in found(config) {
        let LeftOut(why) = fate else { continue };
        let colon = if why.is_empty() { "" } else { ": " };
        let line = format!("{name} is ignored in a virtual machine{colon}{why}");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns the parts that are set, with their treatment.
fn found(config: &Value) -> Vec<(String, PartOutcome)> {
    let mut found = Vec::new();
    visit(config, String::new(), &mut found);
    found
}

fn visit(value: &Value, name: String, found: &mut Vec<(String, PartOutcome)>) {
    let has_parts = FIELDS.iter().any(|(known, _)| {
        let rest = known.strip_prefix(&*name);
        name.is_empty() || rest.is_some_and(|rest| rest.starts_with(['.', '[']))
    });
    match value {
        Value::Object(parts) if has_parts => {
            for (part, value) in parts {
                let dot = if name.is_empty() { "" } else { "." };
                visit(value, format!("{name}{dot}{part}"), found);
            }
        }
        Value::Array(items) if has_parts => {
            for item in items {
                visit(item, format!("{name}[]"), found);
            }
        }
        Value::String(text) if SO_ANYWAY.contains(&(&*name, &**text)) => {}
        value if says_something(value) => {
            let fate = fate(&name);
            found.push((name, fate));
        }
        _ => {}
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => items.iter().any(says_something),
        Value::Object(parts) => parts.values().any(says_something),
    }
}

/// Returns the treatment of the longest name that is a prefix of this one.
fn fate(name: &str) -> PartOutcome {
    let fits = |known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let fitting = FIELDS.iter().filter(|(known, _)| fits(known));
    fitting
        .max_by_key(|(known, _)| known.len())
        .map_or(UNKNOWN, |(_, fate)| *fate)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    const PAGE: &str = "../../docs/reference/oci-vm.md";
    const BEGIN: &str = "<!-- fields: begin -->\n";
    const END: &str = "<!-- fields: end -->\n";

    fn table() -> String {
        let mut table = String::from("| part | in a machine | |\n|---|---|---|\n");
        for (name, fate) in FIELDS {
            let (word, why) = match fate {
                Done(why) => ("carried out", why),
                Otherwise(why) => ("not needed", why),
                LeftOut(why) => ("**left out, with a warning**", why),
                Refused(why) => ("**refused**", why),
            };
            writeln!(table, "| `{name}` | {word} | {why} |").unwrap();
        }
        table
    }

    #[test]
    fn the_page_has_the_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        let old = std::fs::read_to_string(&page).unwrap();
        let (before, rest) = old.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let new = format!("{before}{BEGIN}{}{END}{after}", table());
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&page, &new).unwrap();
        }
        let is = std::fs::read_to_string(&page).unwrap();
        assert_eq!(is, new, "BLESS=1 writes the table of {PAGE} anew");
    }

    #[test]
    fn each_part_is_named_once() {
        for (at, (name, _)) in FIELDS.iter().enumerate() {
            assert!(
                FIELDS[..at].iter().all(|(other, _)| other != name),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_left_out_is_told_once_and_by_its_name() {
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"args": ["sh"], "scheduler": {"policy": "SCHED_FIFO"}, "selinuxLabel": "",
                "ioPriority": null, "new": 7},
            "annotations": {"hooks": "x", "linux.intelRdt": "y"},
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "network", "path": "/run/netns/a"},
                    {"type": "uts", "path": "/proc/1/ns/uts"}],
                "resources": {"cpu": {"shares": 7, "cpus": "0"}, "memory": {"limit": 7, "more": 8}},
                "personality": {"domain": "LINUX"},
                "sysctl": {"net.ipv4.ip_forward": "1"},
            },
            "future": {"a": [1]},
        });
        assert_eq!(refusal(&config), None);
        let expected = [
            "future is ignored in a virtual machine: tollgate does not know it",
            "linux.namespaces[].path is ignored in a virtual machine: a virtual machine shares no \
            namespaces with other machines",
            "linux.resources.cpu.cpus is ignored in a virtual machine: a machine has one processor, which runs \
             on any of the host's",
            "linux.resources.memory.more is ignored in a virtual machine: tollgate does not know it",
            "process.new is ignored in a virtual machine: tollgate does not know it",
            "process.scheduler is ignored in a virtual machine",
        ];
        let mut lines = warnings(&config);
        lines.sort();
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_a_container_would_be_wrong_without_is_refused() {
        for (config, why) in [
            (
                json!({"hooks": {"prestart": [{"path": "/bin/x"}]}}),
                "hooks",
            ),
            (
                json!({"linux": {"uidMappings": [{"size": 1}]}}),
                "users are not mapped",
            ),
            (
                json!({"linux": {"personality": {"domain": "LINUX32"}}}),
                "personality",
            ),
            (
                json!({"linux": {"seccomp": {"listenerPath": "/x"}}}),
                "a listener",
            ),
            (
                json!({"mounts": [{"destination": "/a", "type": "ext4", "source": "/dev/sda"}]}),
                "`ext4`",
            ),
            (
                json!({"mounts": [{"destination": "/a", "type": "tmpfs", "uidMappings": [{"size": 1}]}]}),
                "mounts[].uidMappings",
            ),
            (json!({"process": {"terminal": true}}), "terminals are not"),
        ] {
            let said = refusal(&config).unwrap_or_else(|| panic!("taken: {config}"));
            assert!(said.contains(why), "{config}: {said:?}");
        }
        let empty = json!({"hooks": {"prestart": []}, "process": {"terminal": false}});
        assert_eq!(refusal(&empty), None);
    }
}
