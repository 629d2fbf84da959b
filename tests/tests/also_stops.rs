//! What rules stop besides what they are about: each of 280 ordinary operations is done with and without each rule
//! under each enforcer. What fails only with the rule is what the rule is about, or the program lists it under
//! "also stops". The quick part leaves out rules on single capabilities; `TOLLGATE_TEST_SLOW=1` adds them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Fixture, Limited, Scratch, need_root, slow};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Files and mounts of the test's own, in a mount namespace that ends with the command.
const STAGE: &str = r#"
mount --make-rprivate / && mkdir -p "$W/mounted" "$W/etc" "$W/bin" "$W/.ssh" "$W/skills/a" &&
mount -t tmpfs none "$W/mounted" && mount -t tmpfs none "$W/etc" && cp -a /etc/. "$W/etc" && : > "$W/etc/own" &&
mount --move "$W/etc" /etc && mount -t tmpfs none /run && mkdir -p "/run$S" && echo t > "/run$S/token" &&
: > /run/other && echo k > "$W/.ssh/id" && echo s > "$W/skills/a/b" && echo p > "$W/plain" || exit 99
for name in busybox curl wget su sudo; do cp /bin/true "$W/bin/$name" || exit 99; done
exec "$@"
"#;
const SECRETS: &str = "/secrets/kubernetes.io/serviceaccount";

/// What operations a text of the program means: the text (or how it begins), and the operations, `*` at the end for
/// all that begin so.
const STOPS: &[(&str, &[&str])] = &[
    (
        "mounting and unmounting anything",
        &["mount_*", "bind_*", "remount", "only_umount"],
    ),
    (
        "tracing and inspecting processes outside",
        &["root_of_outside", "trace_outside"],
    ),
    ("POSIX message queues", &["message_queue"]),
    ("signals to processes outside", &["signal_outside"]),
    (
        "reading files that are made later directly in a folder above",
        &["make=*", "install=*", "append", "truncate_file"],
    ),
    ("ioctl(2) of devices that are made later", &[]),
    (
        "making, removing and renaming files directly in a folder above",
        WORK_FOLDER,
    ),
    (
        "executing files that are made later directly in a folder above",
        &["install=*", "script", "set_user_id"],
    ),
    (
        "set-user-ID programs and capabilities of files",
        &["set_user_id"],
    ),
    ("everything else that needs CAP_SYS_ADMIN", BY_SYS_ADMIN),
    (
        "everything else that needs CAP_SYS_MODULE or CAP_SYS_BOOT",
        &[],
    ),
    (
        "everything else that needs CAP_SYS_PTRACE or CAP_PERFMON",
        &[
            "root_of_outside",
            "trace_outside",
            "page_faults",
            "performance",
        ],
    ),
    ("calls of other architectures", &["other_architecture"]),
    ("io_uring", &["ring"]),
    ("clone3(2): fails with ENOSYS", &["clone3_child"]),
    ("openat2(2): fails with ENOSYS", &["open_with_memory_flags"]),
    (
        "setns(2) with arguments that could be about it",
        &["enter_any"],
    ),
    ("new user namespaces", &["new_user"]),
    (
        "unprivileged containers and the sandboxes of browsers",
        &["new_user"],
    ),
    ("tcpdump, dhclient", &["attach_filter"]),
    ("looking up the names of users", &["read=/etc/passwd"]),
    (
        "scripts that begin with one of them, system(3) and popen(3)",
        &["script", "calls_shell"],
    ),
    (
        "compilers and package managers",
        &["install=*", "script", "set_user_id", "open_x"],
    ),
    (
        "syslog, name service caches",
        &[
            "unix_*",
            "passes_descriptor",
            "reuse_address",
            "send_file",
            "attach_filter",
            "priority_of_socket",
        ],
    ),
    ("every raw internet socket", &["raw_tcp", "raw_icmp"]),
    ("looking up names in the DNS", &["udp*", "datagram4"]),
    (
        "sendfile; a filter cannot tell",
        &["send_file", "send_to_file"],
    ),
];

/// What needs files to be made in the work folder, which is above a denied one.
const WORK_FOLDER: &[&str] = &[
    "make=*",
    "make_folder=*",
    "install=*",
    "append",
    "truncate_file",
    "allocate",
    "rename_file",
    "move_*",
    "link_*",
    "symlink_file",
    "chmod_*",
    "open_x",
    "change_*",
    "attribute",
    "foreign_*",
    "nameless",
    "fifo",
    "device",
    "lock",
    "lease",
    "immutable",
    "maps_file",
    "sync_file",
    "copy_range",
    "send_*",
    "splices",
    "handle",
    "script",
    "set_user_id",
    "unix_path",
    "mount_*",
    "bind_*",
];

const BY_SYS_ADMIN: &[&str] = &[
    "mount_*",
    "bind_*",
    "remount",
    "only_umount",
    "clone_tree",
    "new_mounts",
    "new_pids",
    "new_net",
    "new_uts",
    "enter_*",
    "host_name",
    "bpf_*",
    "list_mounts",
    "lease",
    "terminal",
];

/// What rules are about, by how the name of the rule begins.
const ABOUT: &[(&str, &[&str])] = &[
    (
        "disallow-mount",
        &["mount_*", "bind_*", "remount", "clone_tree"],
    ),
    ("disallow-umount", &["only_umount"]),
    ("disallow-insmod", &["module_removed"]),
    ("disallow-load-bpf-prog", &["bpf_*"]),
    ("disallow-load-all-bpf-prog", &["bpf_program"]),
    ("disallow-load-bpf-via-setsockopt", &["attach_filter"]),
    ("disallow-access-procfs-root", &["root_of_outside"]),
    ("disallow-access-kallsyms", &["read=/proc/kallsyms"]),
    ("disallow-userfaultfd-creation", &["page_faults"]),
    ("disallow-create-user-ns", &["new_user"]),
    ("disallow-abuse-user-ns", BY_SYS_ADMIN),
    ("disable-cap-all", BY_CAPABILITY),
    ("disable-cap-privileged", BY_CAPABILITY),
    ("disable-cap-", BY_CAPABILITY),
    ("mitigate-sa-leak", &["read=/run/secrets/*"]),
    ("mitigate-disk-device-number-leak", &["list_mounts"]),
    ("mitigate-overlayfs-leak", &["list_mounts"]),
    (
        "disable-write-etc",
        &["write=/etc/*", "make=/etc", "make_folder=/etc"],
    ),
    ("disable-access-passwd", &["read=/etc/passwd"]),
    ("disable-access-shadow", &["read=/etc/shadow"]),
    (
        "disable-access-ssh-dir",
        &["read=.ssh/id", "write=.ssh/id", "make=.ssh"],
    ),
    ("disable-write-skills", &["write=skills/*", "make=skills/*"]),
    ("disable-busybox", &["run=bin/busybox"]),
    ("disable-wget", &["run=bin/wget"]),
    ("disable-curl", &["run=bin/curl"]),
    ("disable-chmod-x-bit", &["chmod_x", "open_x"]),
    ("disable-chmod-s-bit", &["chmod_s", "set_user_id"]),
    ("disable-chmod", &["run=/bin/chmod"]),
    (
        "disable-shell",
        &["run=/bin/sh", "run=/bin/bash", "run=/bin/dash"],
    ),
    ("disable-su-sudo", &["run=bin/su", "run=bin/sudo"]),
    ("disable-network", ANY_SOCKET),
    ("disable-inet6", &["tcp6", "udp6"]),
    (
        "disable-inet",
        &[
            "tcp4",
            "mptcp",
            "udp4",
            "udp_lite",
            "ping",
            "raw_*",
            "connect4",
            "datagram4",
            "low_port",
        ],
    ),
    ("disable-unix-domain-socket", &["unix_*"]),
    ("disable-icmp", &["ping", "raw_icmp"]),
    ("disable-tcp", &["tcp*", "mptcp", "connect4", "low_port"]),
    ("disable-udp", &["udp*", "datagram4"]),
    ("dirty-pipe-mitigation", &["splices", "tees"]),
    ("copy-fail-mitigation", &["algorithm"]),
];

const ANY_SOCKET: &[&str] = &[
    "tcp*",
    "udp*",
    "mptcp",
    "ping",
    "raw_*",
    "packet",
    "algorithm",
    "virtual_machine",
    "netlink",
    "unix_*",
    "connect4",
    "datagram4",
    "low_port",
    "reuse_address",
    "attach_filter",
    "priority_of_socket",
    "passes_descriptor",
    "send_file",
];

/// What needs one of the capabilities.
const BY_CAPABILITY: &[&str] = &[
    "mount_*",
    "bind_*",
    "remount",
    "only_umount",
    "clone_tree",
    "new_mounts",
    "new_pids",
    "new_net",
    "new_uts",
    "enter_*",
    "host_name",
    "bpf_*",
    "list_mounts",
    "lease",
    "change_owner",
    "foreign_*",
    "device",
    "immutable",
    "handle",
    "less_nice",
    "real_time",
    "set_user",
    "set_group",
    "set_groups",
    "set_user_id",
    "change_root",
    "drop_bounding",
    "root_of_outside",
    "trace_outside",
    "signal_outside",
    "raw_*",
    "packet",
    "ping",
    "low_port",
    "priority_of_socket",
    "sets_clock",
    "kernel_log",
    "performance",
    "page_faults",
    "module_removed",
    "raise_limit",
    "attribute",
    "chmod_s",
    "locks_memory",
    "read=*",
    "write=*",
    "list=*",
    "make=*",
    "make_folder=*",
    "install=*",
];

/// The enforcers of a policy, and the one that must have a part in the rule.
const ENFORCERS: [(&str, &str); 4] = [
    ("Seccomp", "seccomp"),
    ("Landlock", "landlock"),
    ("CapsSeccomp", "caps"),
    ("SeccompLandlockCaps", ""),
];

/// A folder for each run, and a process that no policy confines.
struct Lab {
    scratch: Scratch,
    program: PathBuf,
    workload: Fixture,
    outside: Child,
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It may have ended; then there is nothing to end.
        let _ = self.outside.kill();
        let _ = self.outside.wait();
    }
}

type Outcomes = BTreeMap<String, i32>;

impl Lab {
    fn new() -> Self {
        let outside = Command::new("sleep")
            .arg("3600")
            .stdin(Stdio::null())
            .spawn();
        Self {
            scratch: Scratch::new(),
            program: e2e::program(),
            workload: Fixture::compile("ordinary"),
            outside: outside.expect("there is a program `sleep`"),
        }
    }

    /// The error of each operation, under `verb` or without it.
    fn run(&self, verb: &[&str]) -> Outcomes {
        let work = self.scratch.path().join("work");
        // The folder of the run before, if there was one.
        let _ = fs::remove_dir_all(&work);
        self.scratch.file("work/.keep", 0o644, "");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&work, open).expect("it is ours");
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-ec", STAGE, "sh"])
            .args(verb)
            .arg(self.workload.program())
            .arg(&work)
            .arg(self.outside.id().to_string())
            .env("W", &work)
            .env("S", SECRETS)
            .env(
                "PATH",
                format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", work.display()),
            )
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{verb:?}: {}", finished.stderr);
        let line = |line: &str| {
            let (name, number) = line.rsplit_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        finished.stdout.lines().filter_map(line).collect()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .output();
        let output = output.expect("the program under test starts");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Checks one rule under some enforcers. Returns the texts whose operations failed; `None` if the enforcer has
    /// no part in the rule.
    fn check(
        &self,
        rule: &Value,
        enforcers: (&str, &str),
        free: &Outcomes,
    ) -> Option<BTreeSet<String>> {
        let (name, list) = (text(&rule["name"]), text(&rule["list"]));
        let rules = match list {
            "attackProtectionRules" => format!("[{{rules: [{name}]}}]"),
            _ => format!("[{name}]"),
        };
        let policy = format!(
            "policy:\n  enforcer: {}\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    {list}: {rules}\n",
            enforcers.0
        );
        let policy = self.scratch.file("policy.yaml", 0o644, policy);
        let policy = policy.to_str().expect("it is ours");
        let explained = self.json(&["policy", "explain", "--json", policy]);
        let parts = explained["policies"][0]["rules"][0]["enforcers"].as_object()?;
        let is_part = |part: &Value| part["grade"] != "none";
        let has_part = match enforcers.1 {
            "" => parts.values().any(is_part),
            kind => is_part(&parts[kind]),
        };
        if !has_part {
            return None;
        }
        let said = parts
            .values()
            .filter_map(|part| part["also_stops"].as_array());
        let said: BTreeSet<&str> = said.flatten().map(text).collect();
        let program = self.program.to_str().expect("it is ours");
        let bound = self.run(&[program, "enforce", "-q", "--policy", policy, "--"]);
        assert_eq!(bound.len(), free.len(), "{name} under {}", enforcers.0);
        let failed = bound
            .iter()
            .filter(|(operation, error)| **error != 0 && free[*operation] == 0);
        let failed: Vec<_> = failed
            .map(|(operation, error)| (operation.as_str(), *error))
            .collect();
        let about = ABOUT.iter().find(|(begin, _)| name.starts_with(begin));
        let about = about.map_or(&[][..], |(_, operations)| operations);
        let listed = |operation: &str| said.iter().any(|text| has(meaning(text), operation));
        let unlisted = failed
            .iter()
            .filter(|(operation, _)| !has(about, operation) && !listed(operation));
        let unlisted: Vec<_> = unlisted.collect();
        assert!(
            unlisted.is_empty(),
            "{name} under {} stops more than it is about and lists {said:?}: {unlisted:?}",
            enforcers.0
        );
        let happens = |text: &&&str| {
            failed
                .iter()
                .any(|(operation, _)| has(meaning(text), operation))
        };
        Some(
            said.iter()
                .filter(happens)
                .map(|text| (*text).to_owned())
                .collect(),
        )
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("it is a text")
}

/// The operations that a text of the program means.
fn meaning(text: &str) -> &'static [&'static str] {
    let known = STOPS.iter().find(|(begin, _)| text.starts_with(begin));
    known
        .unwrap_or_else(|| panic!("STOPS does not say what is meant by `{text}`"))
        .1
}

fn has(patterns: &[&str], operation: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => operation.starts_with(begin),
            None => operation == *pattern,
        })
}

/// Whether a rule is one of the 41 on single capabilities.
fn is_of_one_capability(name: &str) -> bool {
    let more = [
        "disable-cap-all",
        "disable-cap-privileged",
        "disable-cap-all-except-net-bind-service",
    ];
    name.starts_with("disable-cap-") && !more.contains(&name)
}

#[test]
fn what_a_rule_stops_besides_is_listed() {
    need_root!();
    let lab = Lab::new();
    let free = lab.run(&[]);
    let done = free.values().filter(|error| **error == 0).count();
    assert!(
        done >= 200,
        "{done} of {} operations can be done here",
        free.len()
    );
    let rules = lab.json(&["policy", "list", "--json"]);
    let rules = rules
        .as_array()
        .or_else(|| rules["rules"].as_array())
        .expect("it is a list");
    assert_eq!(rules.len(), 98);
    let mut seen = BTreeSet::new();
    let mut runs = 0;
    for rule in rules {
        if is_of_one_capability(text(&rule["name"])) && !slow() {
            continue;
        }
        for enforcers in ENFORCERS {
            // The default enforcers together differ only where rules are left to one of them.
            let is_quick = enforcers.1 != "" || text(&rule["name"]).starts_with("disallow-");
            if !is_quick && !slow() {
                continue;
            }
            let texts = lab.check(rule, enforcers, &free);
            runs += usize::from(texts.is_some());
            seen.extend(texts.into_iter().flatten());
        }
    }
    assert!(runs > 50, "{runs}");
    let is_seen = |begin: &str| seen.iter().any(|text| text.starts_with(begin));
    let never = STOPS
        .iter()
        .filter(|(begin, operations)| !operations.is_empty() && !is_seen(begin));
    let never: Vec<_> = never.map(|(begin, _)| begin).collect();
    assert!(
        never.is_empty(),
        "listed, and nothing of it fails: {never:?}"
    );
}

/// The default of policies that are not privileged denies files below /sys and /proc: folders stay listable.
#[test]
fn folders_are_listed_under_what_runtimes_deny() {
    need_root!();
    let lab = Lab::new();
    let free = lab.run(&[]);
    let policy = "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                  attackProtectionRules: [{rules: [mitigate-sa-leak, disable-access-shadow]}]\n";
    let policy = lab.scratch.file("policy.yaml", 0o644, policy);
    let policy = policy.to_str().expect("it is ours");
    let program = lab.program.to_str().expect("it is ours");
    let bound = lab.run(&[program, "enforce", "-q", "--policy", policy, "--"]);
    let lists = bound
        .iter()
        .filter(|(operation, _)| operation.starts_with("list="));
    let denied: Vec<_> = lists
        .clone()
        .filter(|(name, error)| **error != free[*name])
        .collect();
    assert!(lists.count() > 30 && denied.is_empty(), "{denied:?}");
    for denied in [
        "read=/etc/shadow",
        "read=/run/secrets/kubernetes.io/serviceaccount/token",
    ] {
        assert_eq!((free[denied], bound[denied]), (0, 13), "{denied}");
    }
}
