//! AppArmor and BPF LSM in an emulated machine, whose kernel has both: each attack is really made and
//! fails with the error of its enforcer, what is legitimate goes on, and nothing of it fails where the
//! policy allows all.
//!
//! A machine takes half a minute to start, and its processor is a fraction of this one's: everything is
//! one script, and its output is taken apart afterwards.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use e2e::attacks::{self, Tried};
use e2e::{Fixture, Guest, GuestRun, Identity, need_slow};
use serde_json::Value;

const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";

/// File systems that the guest lacks, and files to attack.
const STAGE: &str = r#"
busybox mount -t securityfs none /sys/kernel/security || exit 90
busybox mount -t bpf bpf /sys/fs/bpf || exit 91
mkdir -p /p /mnt /srv/mount /srv/mounted /root/.ssh /srv/skills/a /srv/devices/x /srv/bin /srv/other
: > /etc/removable; : > /etc/passwd-; : > /etc/shadow-; echo k > /root/.ssh/id; echo s > /srv/skills/a/b
: > /srv/devices/x/devices.allow; : > /srv/devices/x/tasks; : > /srv/devices/x/other
: > /srv/other/runc; cp /usr/bin/true /srv/bin/runc; cp /usr/bin/true /srv/bin/tool
S=/run/secrets/kubernetes.io/serviceaccount
mkdir -p $S/..2024 /var/run; echo t > $S/..2024/token; ln -s ..2024 $S/..data; ln -s ..data/token $S/token
: > /run/other
printf '#!/bin/sh\nexit 0\n' > /srv/script; chmod 755 /srv/script
ln -s /etc/shadow /srv/to-shadow; ln -s /usr/bin/busybox /srv/busybox; ln -s /bin/sh /srv/to-sh
insmod /loop.ko || exit 93
busybox dd if=/dev/zero of=/disk bs=1024 count=2048 2> /dev/null && mke2fs -q -F -t ext2 /disk &&
busybox losetup /dev/loop0 /disk || exit 94
for name in wget curl su sudo shred; do cp /usr/bin/true /srv/bin/$name; done
busybox mount -t tmpfs none /srv/mounted
busybox mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/old &&
busybox mount -t cgroup -o none,name=old none /sys/fs/cgroup/old || exit 92
mkdir -p /srv/part /srv/y && busybox mount -t tmpfs none /srv/part && mkdir /srv/part/sub &&
: > /srv/part/sub/shadow && : > /srv/part/sub/other && busybox mount --bind /srv/part/sub /srv/y &&
busybox umount /srv/part || exit 96
for address in 100.96.0.96 192.0.0.192; do ip addr add $address/32 dev lo; done
ip addr add 169.254.169.254/32 dev lo; ip addr add 169.254.169.253/32 dev lo; ip addr add 100.100.100.200/32 dev lo
sleep 1000 & OUT=$!
"#;

/// A rule and what comes of it: under BPF and under AppArmor, or only one of them.
struct Row {
    rule: &'static str,
    /// What fails, and with which errors: BPF's, AppArmor's. A zero: that enforcer does not carry it.
    denied: &'static [(&'static str, i32, i32)],
    /// What goes on.
    still: &'static [&'static str],
}

const fn row(
    rule: &'static str,
    denied: &'static [(&'static str, i32, i32)],
    still: &'static [&'static str],
) -> Row {
    Row {
        rule,
        denied,
        still,
    }
}

const P: i32 = 1;
const A: i32 = 13;
/// Not carried by this enforcer: the deed is not tried.
const NONE: i32 = 0;

/// Deeds that everybody must be able to do.
const SERVICES: &[&str] = &["forks", "threads", "pipes", "own_status", "own_root"];

const ROWS: &[Row] = &[
    row(
        "disable-access-shadow",
        &[
            ("reads=/etc/shadow", P, A),
            ("writes=/etc/shadow", P, A),
            ("appends=/etc/shadow", P, A),
            ("reads=/srv/to-shadow", P, A),
            ("reads_by_root=/etc/shadow", P, A),
            ("reads_in_namespace=/etc/shadow", P, A),
            ("reads_after_setns=/etc/shadow", P, A),
            ("reads_i386=/etc/shadow", P, A),
            ("ring_opens=/etc/shadow", P, A),
            ("reads_below_root=/etc/shadow", P, A),
            ("reads_bound=/etc/shadow", P, NONE),
            ("links=/etc/shadow", P, A),
            ("renames=/etc/shadow", P, A),
            ("overwrites=/etc/shadow", P, A),
            ("renames_folder=/etc/shadow", P, A),
            ("truncates_path=/etc/shadow", P, A),
            ("changes_mode=/etc/shadow", P, A),
            ("changes_owner_of=/etc/shadow", P, A),
            ("removes=/etc/shadow", P, A),
        ],
        &["reads=/etc/shadow-", "reads=/etc/group", "ring_rests"],
    ),
    row(
        "disable-access-passwd",
        &[("reads=/etc/passwd", P, A), ("writes=/etc/passwd", P, A)],
        &["reads=/etc/passwd-", "reads=/etc/group"],
    ),
    row(
        "disable-write-etc",
        &[
            ("creates=/etc/new", P, A),
            ("writes=/etc/hosts", P, A),
            ("appends=/etc/hosts", P, A),
            ("truncates=/etc/hosts", P, A),
            ("truncates_reading=/etc/hosts", P, A),
            ("truncates_path=/etc/hosts", P, A),
            ("makes_folder=/etc/new", P, A),
            ("links_symbolically=/etc/new", P, A),
            ("removes=/etc/removable", P, A),
            ("changes_mode=/etc/hosts", P, A),
            ("changes_owner_of=/etc/hosts", P, A),
        ],
        &["reads=/etc/hosts", "creates=/srv/new", "lists=/etc"],
    ),
    row(
        "disable-access-ssh-dir",
        &[
            ("reads=/root/.ssh/id", P, A),
            ("writes=/root/.ssh/id", P, A),
            ("creates=/root/.ssh/new", P, A),
        ],
        &["creates=/root/new"],
    ),
    row(
        "disable-write-skills",
        &[
            ("writes=/srv/skills/a/b", P, A),
            ("creates=/srv/skills/a/new", P, A),
        ],
        &["reads=/srv/skills/a/b"],
    ),
    row(
        "mitigate-sa-leak",
        &[
            (
                "reads=/run/secrets/kubernetes.io/serviceaccount/token",
                P,
                A,
            ),
            (
                "reads=/run/secrets/kubernetes.io/serviceaccount/..data/token",
                P,
                A,
            ),
            (
                "links_out=/run/secrets/kubernetes.io/serviceaccount/..2024/token",
                P,
                A,
            ),
            (
                "renames_folder=/run/secrets/kubernetes.io/serviceaccount/token",
                P,
                A,
            ),
        ],
        &["reads=/run/other"],
    ),
    row(
        "cgroups-lxcfs-escape-mitigation",
        &[
            ("writes=/srv/devices/x/devices.allow", P, A),
            ("appends=/srv/devices/x/tasks", P, A),
        ],
        &["writes=/srv/devices/x/other", "reads=/srv/devices/x/tasks"],
    ),
    row(
        "runc-override-mitigation",
        &[
            ("writes=/srv/other/runc", P, A),
            ("truncates_path=/srv/other/runc", P, A),
        ],
        &["executes=/srv/bin/runc"],
    ),
    row(
        "disallow-write-core-pattern",
        &[("writes=/proc/sys/kernel/core_pattern", P, A)],
        &[
            "reads=/proc/sys/kernel/core_pattern",
            "adjusts_memory_killer",
        ],
    ),
    row(
        "disallow-access-kallsyms",
        &[
            ("reads=/proc/kallsyms", P, A),
            ("reads=/proc/thread-self/../../../kallsyms", P, A),
        ],
        &["reads=/proc/version"],
    ),
    row(
        "mitigate-overlayfs-leak",
        &[
            ("reads=/proc/self/mountinfo", P, A),
            ("reads=/proc/1/mounts", P, A),
            ("reads=/proc/thread-self/mountinfo", P, A),
        ],
        &["own_status"],
    ),
    row(
        "mitigate-host-ip-leak",
        &[("reads=/proc/self/net/arp", P, A)],
        &["reads=/proc/self/net/dev"],
    ),
    row(
        "disable-shell",
        &[
            ("executes=/bin/sh", P, A),
            ("executes_in_folder=/bin/sh", P, A),
            ("executes_descriptor=/bin/sh", P, A),
            ("executes=/srv/to-sh", P, A),
            ("executes=/srv/script", P, NONE),
            ("executes=/bin/bash", P, A),
            ("executes_by_loader=/bin/bash", A, A),
        ],
        &["executes=/bin/true", "executes=/srv/bin/tool"],
    ),
    row(
        "disable-chmod",
        &[("executes_version=/bin/chmod", P, A)],
        &["executes=/bin/true", "executes=/bin/sh"],
    ),
    row(
        "disable-busybox",
        &[
            ("executes=/bin/busybox", P, A),
            ("executes=/srv/busybox", P, A),
        ],
        &["executes=/bin/true"],
    ),
    row(
        "disable-cap-sys-admin",
        &[
            ("set_host_name", P, P),
            ("mounts=/srv/mount", P, NONE),
            ("sheds_by_namespace", P, P),
        ],
        &["changes_owner", "forks"],
    ),
    row("disable-cap-net-raw", &[("packets", P, P)], &["tcp", "udp"]),
    row(
        "disable-cap-chown",
        &[("changes_owner", P, P)],
        &["set_host_name"],
    ),
    row(
        "disable-cap-all",
        &[
            ("changes_owner", P, P),
            ("changes_root", P, P),
            ("makes_device", P, P),
        ],
        SERVICES,
    ),
    row(
        "disallow-mount",
        &[
            ("mounts=/srv/mount", P, A),
            ("binds_relative=/srv/mount", P, A),
            ("opens_fs", P, NONE),
            ("clones_tree", P, NONE),
            ("mounts_anew=/srv/mount", P, NONE),
            ("changes_mount", P, NONE),
        ],
        &["opens_tree", "forks"],
    ),
    row(
        "disallow-mount-procfs",
        &[
            ("mounts_type=proc:/srv/mount", P, A),
            ("binds=/proc/sys:/srv/mount", P, A),
            ("binds=/proc:/srv/mount", P, A),
            ("binds_relative=/srv/mount", P, A),
            ("binds_by_link=/proc:/srv/mount", P, A),
            ("binds_privately=/proc:/srv/mount", P, NONE),
            ("binds_far=/proc:/srv/mount", P, NONE),
            ("remounts=/proc", P, NONE),
            ("mounts_anew=/srv/mount", P, NONE),
        ],
        &[
            "mounts=/srv/mount",
            "binds=/srv:/srv/mount",
            "binds_privately=/srv:/srv/mount",
            "binds_deep=/srv/mount",
            "binds_then_links=/srv:/srv/mount",
            "remounts=/srv/mounted",
        ],
    ),
    row(
        "disallow-mount-cgroupfs",
        &[
            ("mounts_type=cgroup2:/srv/mount", P, A),
            ("binds=/sys/fs:/srv/mount", P, A),
        ],
        &["mounts=/srv/mount"],
    ),
    row(
        "disallow-mount-securityfs",
        &[("mounts_type=securityfs:/srv/mount", P, A)],
        &["mounts=/srv/mount"],
    ),
    row(
        "disallow-create-user-ns",
        &[
            ("user_unshare", P, NONE),
            ("user_clone", P, NONE),
            ("user_clone3", P, NONE),
            ("user_i386", P, NONE),
        ],
        SERVICES,
    ),
    row(
        "disallow-load-all-bpf-prog",
        &[("bpf_load", P, NONE)],
        &["bpf_map"],
    ),
    row(
        "disallow-load-bpf-via-setsockopt",
        &[("attach_filter", P, NONE), ("attach_reuseport", P, NONE)],
        &["reuse_address"],
    ),
    row(
        "disallow-userfaultfd-creation",
        &[("page_faults", P, NONE)],
        &["polls"],
    ),
    row(
        "disallow-insmod",
        &[
            ("module_by_fd", P, P),
            ("module_by_memory", P, P),
            ("module_removed", P, P),
        ],
        &["reads_modules"],
    ),
    row(
        "disallow-access-procfs-root",
        &[
            ("follows_root=%O", A, A),
            ("traces_in_child=%O", NONE, NONE),
        ],
        &["own_root", "own_status"],
    ),
    row(
        "block-access-to-metadata-service",
        &[
            ("contacts=169.254.169.254", P, NONE),
            ("contacts_mapped=169.254.169.254", P, NONE),
            ("sends_datagram=169.254.169.254", P, NONE),
            ("sends_mapped=169.254.169.254", P, NONE),
            ("sends_unspecified=169.254.169.254", P, NONE),
            ("sends_first=169.254.169.254", P, NONE),
            ("ring_contacts=169.254.169.254", P, NONE),
        ],
        &[
            "contacts=169.254.169.253",
            "contacts=127.0.0.1",
            "sends_datagram=127.0.0.1",
        ],
    ),
    row(
        "block-access-to-alibaba-metadata-service",
        &[("contacts=100.100.100.200", P, NONE)],
        &["contacts=169.254.169.254"],
    ),
    row(
        "block-access-to-container-runtime",
        &[
            ("connects_own=/run/docker.sock", P, NONE),
            ("sends_own=/srv/containerd.sock", P, NONE),
        ],
        &["connects_own=/run/app.sock", "sends_own=/srv/app.sock"],
    ),
    row(
        "disable-chmod-x-bit",
        &[
            ("chmod_x", P, NONE),
            ("fchmodat_x", P, NONE),
            ("open_with_x", P, NONE),
            ("creat_with_x", P, NONE),
        ],
        &["chmod_plain", "open_without_x", "makes_folder=/srv/folder"],
    ),
    row(
        "disable-chmod-s-bit",
        &[
            ("chmod_s", P, NONE),
            ("fchmod_s", P, NONE),
            ("fchmodat_s", P, NONE),
            ("mknod_with_s", P, NONE),
            ("open_with_s", P, NONE),
            ("openat2_with_s", P, NONE),
            ("creat_with_s", P, NONE),
            ("tmpfile_with_s", P, NONE),
            ("mq_with_s", P, NONE),
        ],
        &["chmod_plain", "chmod_x", "makes_folder_with_s"],
    ),
    row(
        "disable-network",
        &[
            ("tcp", P, A),
            ("udp6", P, A),
            ("local", P, A),
            ("netlink", P, A),
            ("tcp_i386", P, A),
        ],
        &["pipes", "forks"],
    ),
    row(
        "disable-inet",
        &[
            ("tcp", P, A),
            ("udp", P, A),
            ("contacts_mapped=127.0.0.1", P, NONE),
        ],
        &["tcp6", "local"],
    ),
    row(
        "disable-inet6",
        &[("tcp6", P, A), ("udp6", P, A)],
        &["tcp", "local"],
    ),
    row(
        "disable-unix-domain-socket",
        &[("local", P, A), ("local_pair", P, A)],
        &["tcp"],
    ),
    row(
        "disable-tcp",
        &[
            ("tcp", P, A),
            ("tcp_named", P, A),
            ("tcp6", P, A),
            ("smc", P, A),
            ("smc_inet", P, A),
        ],
        &["udp", "local"],
    ),
    row(
        "disable-udp",
        &[("udp", P, A), ("udp_named", P, A), ("udp6", P, A)],
        &["tcp", "local"],
    ),
    row("disable-icmp", &[("raw_icmp", P, A)], &["tcp", "udp"]),
    row(
        "copy-fail-mitigation",
        &[("crypto", P, A)],
        &["tcp", "local"],
    ),
    row(
        "disable-wget",
        &[("executes=/srv/bin/wget", P, A)],
        &["executes=/srv/bin/curl"],
    ),
    row(
        "disable-curl",
        &[("executes=/srv/bin/curl", P, A)],
        &["executes=/srv/bin/wget"],
    ),
    row(
        "disable-su-sudo",
        &[
            ("executes=/srv/bin/su", P, A),
            ("executes=/srv/bin/sudo", P, A),
        ],
        &["executes=/srv/bin/shred", "executes=/bin/sh"],
    ),
    row(
        "mitigate-disk-device-number-leak",
        &[
            ("reads=/proc/partitions", P, A),
            ("reads=/proc/self/mountinfo", P, A),
        ],
        &["own_status"],
    ),
    row(
        "disallow-write-release-agent",
        &[("writes=/sys/fs/cgroup/old/release_agent", P, A)],
        &["reads=/sys/fs/cgroup/old/release_agent"],
    ),
    row(
        "disallow-debug-disk-device",
        &[("reads=/dev/loop0", P, A), ("writes=/dev/loop0", P, A)],
        &["writes=/dev/null"],
    ),
    row(
        "disallow-mount-disk-device",
        &[("mounts_device=/dev/loop0:/srv/mount", P, A)],
        &["mounts=/srv/mount"],
    ),
    row(
        "disallow-umount",
        &[("unmounts=/srv/mounted", P, A)],
        SERVICES,
    ),
    row(
        "disallow-load-bpf-prog",
        &[("bpf_load", P, P), ("set_host_name", P, P)],
        SERVICES,
    ),
    row(
        "disallow-abuse-user-ns",
        &[("set_host_name", P, P), ("sheds_by_namespace", P, P)],
        SERVICES,
    ),
    row(
        "disable-cap-privileged",
        &[
            ("sets_time", P, P),
            ("nicer", A, A),
            ("reads_kernel_log", P, P),
            ("set_host_name", P, P),
        ],
        &["changes_owner", "tcp"],
    ),
    row(
        "disable-cap-all-except-net-bind-service",
        &[
            ("changes_owner", P, P),
            ("changes_root", P, P),
            ("makes_device", P, P),
        ],
        &["binds_port=80"],
    ),
    row(
        "block-access-to-aws-metadata-service",
        &[("contacts=169.254.169.254", P, NONE)],
        &["contacts=100.100.100.200"],
    ),
    row(
        "block-access-to-volc-metadata-service",
        &[("contacts=100.96.0.96", P, NONE)],
        &["contacts=169.254.169.254"],
    ),
    row(
        "block-access-to-oci-metadata-service",
        &[("contacts=192.0.0.192", P, NONE)],
        &["contacts=169.254.169.254"],
    ),
    row(
        LOOPBACK,
        &[
            ("contacts=127.0.0.1", P, NONE),
            ("contacts=0.0.0.0", P, NONE),
            ("contacts_mapped=0.0.0.0", P, NONE),
            ("contacts_v6=::", P, NONE),
            ("sends_datagram=0.0.0.0", P, NONE),
            ("sends_mapped=0.0.0.0", P, NONE),
            ("sends_unspecified=0.0.0.0", P, NONE),
            ("contacts_own=127.0.0.1", P, NONE),
        ],
        &["contacts=169.254.169.254", "contacts_v6=::1"],
    ),
    row(
        OWN_ADDRESS,
        &[
            ("contacts_own=169.254.169.253", P, NONE),
            ("contacts_by_device=lo", P, NONE),
        ],
        &["contacts_own=127.0.0.1", "contacts=0.0.0.0"],
    ),
    row(
        PART,
        &[
            ("reads=/srv/y/shadow", P, NONE),
            ("reads_bound=/srv/y/shadow", P, NONE),
        ],
        &["reads=/srv/y/other", "reads_bound=/srv/y/other"],
    ),
];

/// Rules of one's own, each told by what is in the policy.
const LOOPBACK: &str = "bpfRawRules: {network: {egress: {toDestinations: [{qualifiers: [deny], cidr: 127.0.0.1/32}]}}}";
const OWN_ADDRESS: &str = "bpfRawRules: {network: {egress: {toDestinations: [{qualifiers: [deny], cidr: 169.254.169.253/32}]}}}";
/// Of a file system that is mounted in part.
const PART: &str =
    "bpfRawRules: {files: [{qualifiers: [deny], pattern: /srv/y/shadow, permissions: [read]}]}";

/// Rules that every run of the tests tries, one or two of each kind.
const SHORT: [&str; 11] = [
    "disable-access-shadow",
    "disable-shell",
    "disable-network",
    "disable-cap-sys-admin",
    "disallow-mount-procfs",
    "disallow-debug-disk-device",
    "block-access-to-metadata-service",
    "disable-chmod-x-bit",
    LOOPBACK,
    OWN_ADDRESS,
    PART,
];

fn list_of(rule: &str) -> &'static str {
    if rule.starts_with("bpfRawRules") {
        "RULE"
    } else if rule.starts_with("disallow") || rule.starts_with("disable-cap") {
        "hardeningRules: [RULE]"
    } else if rule.ends_with("-mitigation") {
        "vulMitigationRules: [RULE]"
    } else {
        "attackProtectionRules: [{rules: [RULE]}]"
    }
}

fn policy(rule: &str, enforcer: &str, switches: &str) -> String {
    policy_of(&list_of(rule).replace("RULE", rule), enforcer, switches)
}

fn policy_of(rules: &str, enforcer: &str, switches: &str) -> String {
    format!(
        "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n{switches}    {rules}\n"
    )
}

/// `tollgate enforce` of a policy, announced by a line with a name.
fn enforce(script: &mut String, name: &str, policy: &str, options: &str, deeds: &[&str]) {
    let deeds = deeds.join(" ").replace("%O", "$OUT");
    let _ = write!(
        script,
        "cat > /p/p.yaml <<'EOF'\n{policy}EOF\necho '### {name}'\n\
         tollgate enforce -q {options} --policy /p/p.yaml -- violate {deeds} 2>&1\n"
    );
}

/// What was printed after each name.
fn sections(text: &str) -> BTreeMap<String, String> {
    let parts = text.split("### ").skip(1);
    let part = |part: &str| {
        let (name, rest) = part.split_once('\n').unwrap_or((part, ""));
        (name.to_owned(), rest.to_owned())
    };
    parts.map(part).collect()
}

/// The number of each deed.
fn outcomes(text: &str) -> BTreeMap<String, i32> {
    let lines = text.lines().filter_map(|line| {
        let (name, number) = line.rsplit_once(' ')?;
        // The process outside has another number each time.
        let name = match name.split_once('=') {
            Some((deed @ ("follows_root" | "traces_in_child"), _)) => format!("{deed}=%O"),
            _ => name.to_owned(),
        };
        Some((name, number.parse().ok()?))
    });
    lines.collect()
}

fn guest(violate: &Fixture) -> Guest {
    Guest::new()
        .option(LSM)
        .packaged("apparmor", "/sbin/apparmor_parser")
        .limit(Duration::from_secs(2400))
        .module("drivers/block/loop.ko")
        .file(violate.program(), "/usr/local/bin/violate")
}

fn run(script: &str) -> GuestRun {
    let violate = Fixture::compile("violate");
    guest(&violate).run(0, Identity::Root, &format!("{STAGE}{script}"))
}

/// The deeds of a row that an enforcer carries, with its error.
fn denied(row: &Row, enforcer: &str) -> Vec<(&'static str, i32)> {
    let pick = |(deed, by_bpf, by_apparmor): &(&'static str, i32, i32)| {
        let errno = if enforcer == "BPF" {
            *by_bpf
        } else {
            *by_apparmor
        };
        (errno != NONE).then_some((*deed, errno))
    };
    row.denied.iter().filter_map(pick).collect()
}

#[test]
fn every_rule_that_is_graded_full_here_has_an_attack() {
    use ::policy::compile::{Grade, MachineFeatures, assess_builtin};
    let machine = MachineFeatures {
        disks: vec!["loop0".to_owned()],
        ..MachineFeatures::default()
    };
    let mut lacking = Vec::new();
    let mut full = 0;
    for builtin in ::policy::builtin::all() {
        let rule = builtin.name.as_str();
        // Those of one capability are one mechanism; `disable-cap-all` is tried.
        let is_one = |set: &::policy::Restriction| matches!(set, ::policy::Restriction::Capabilities(set) if set.0.count_ones() == 1);
        if builtin.restrictions.iter().all(is_one) {
            continue;
        }
        for enforcer in [
            ::policy::EnforcerKind::Bpf,
            ::policy::EnforcerKind::AppArmor,
        ] {
            if assess_builtin(builtin, enforcer, &machine).grade != Grade::Full {
                continue;
            }
            full += 1;
            let rows = ROWS.iter().filter(|row| row.rule == rule);
            let attacks = rows.map(|row| denied(row, &enforcer.to_string()).len());
            if attacks.sum::<usize>() == 0 {
                lacking.push(format!("{rule} by {enforcer}"));
            }
        }
    }
    assert!(
        lacking.is_empty(),
        "graded full without an attack: {lacking:?}"
    );
    assert!(full > 40, "{full}");
}

#[test]
fn attacks_of_each_kind_fail_under_bpf_and_under_apparmor() {
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let (run, expected) = usual_run();
    check(run, expected);
}

/// What `usual_run` has: all output, and the attempts of the table.
type Usual = (GuestRun, Vec<Attempt>);

/// What the tests of the usual tier do in the machine, which starts once for all: what `TOLD` tells, and the attempts of
/// `SHORT`, which end with what is removed.
fn usual_run() -> &'static Usual {
    static RUN: OnceLock<Usual> = OnceLock::new();
    RUN.get_or_init(|| {
        let rows: Vec<&Row> = ROWS
            .iter()
            .filter(|row| SHORT.contains(&row.rule))
            .collect();
        assert_eq!(rows.len(), SHORT.len());
        let (attacks, expected) = attack_script(&rows);
        (run(&format!("{}{attacks}", told_script())), expected)
    })
}

#[test]
fn each_attack_fails_under_bpf_and_under_apparmor_and_nothing_else_does() {
    need_slow!();
    let (script, expected) = attack_script(&ROWS.iter().collect::<Vec<_>>());
    check(&run(&script), &expected);
}

/// A row of the table under one enforcer: the name of its section, the enforcer, and what that denies.
type Attempt = (String, &'static str, &'static Row, Vec<(&'static str, i32)>);

/// Returns the script of all attempts, each in a section, with the section `free` as the last.
fn attack_script(rows: &[&'static Row]) -> (String, Vec<Attempt>) {
    let mut script = String::new();
    let mut expected = Vec::new();
    let allow = "policy:\n  enforcer: SeccompLandlockCaps\n  mode: AlwaysAllow\n";
    let mut all: Vec<&str> = Vec::new();
    for (index, row) in rows.iter().copied().enumerate() {
        let own = row.denied.iter().map(|(deed, ..)| *deed);
        for deed in own.chain(row.still.iter().copied()) {
            if !all.contains(&deed) {
                all.push(deed);
            }
        }
        for enforcer in ["BPF", "AppArmor"] {
            let denied = denied(row, enforcer);
            if denied.is_empty() {
                continue;
            }
            let deeds: Vec<&str> = denied
                .iter()
                .map(|(deed, _)| *deed)
                .chain(row.still.iter().copied())
                .collect();
            let options = match row.rule.starts_with("bpfRawRules") {
                true => String::new(),
                false => format!("--accept-partial {}", row.rule),
            };
            let policy = policy(row.rule, enforcer, "");
            let name = format!("{index} {enforcer}");
            enforce(&mut script, &name, &policy, &options, &deeds);
            expected.push((name, enforcer, row, denied));
        }
    }
    // Last, because what is removed is gone.
    enforce(&mut script, "free", allow, "", &all);
    (script, expected)
}

/// Compares what an enforcer denied with what it has to deny, and with the same without it.
fn mistakes_in(
    row: &Row,
    enforcer: &str,
    denied: &[(&str, i32)],
    text: &str,
    free: &BTreeMap<String, i32>,
) -> Vec<String> {
    let bound = outcomes(text);
    let mut mistakes = Vec::new();
    for (deed, errno) in denied.iter().copied() {
        match bound.get(deed) {
            Some(found) if *found == errno => {}
            found => mistakes.push(format!(
                "{} by {enforcer}: {deed} gave {found:?} instead of {errno}: {text}",
                row.rule
            )),
        }
        if free.get(deed).is_none_or(|found| *found == errno) {
            mistakes.push(format!(
                "{}: {deed} fails so without the rule, too",
                row.rule
            ));
        }
    }
    for deed in row.still {
        if bound.get(*deed) != Some(&0) {
            mistakes.push(format!("{} by {enforcer}: {deed} failed: {text}", row.rule));
        }
    }
    mistakes
}

/// Looks at what became of each attack, under each enforcer and without.
fn check(run: &GuestRun, expected: &[Attempt]) {
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    let free = outcomes(&sections["free"]);
    let mut mistakes = Vec::new();
    let mut tried = Vec::new();
    for (name, enforcer, row, denied) in expected {
        let text = &sections[name];
        let bound = outcomes(text);
        let unknown = -1;
        let of =
            |found: &BTreeMap<String, i32>, deed: &str| found.get(deed).copied().unwrap_or(unknown);
        let gave = |deed: &str| (deed.to_owned(), of(&bound, deed), of(&free, deed));
        tried.push(Tried {
            rule: row.rule.to_owned(),
            enforcer: (*enforcer).to_owned(),
            attacks: denied.iter().map(|(deed, _)| gave(deed)).collect(),
            twins: row.still.iter().map(|deed| gave(deed)).collect(),
        });
        mistakes.extend(mistakes_in(row, enforcer, denied, text, &free));
    }
    attacks::note("guest", &tried);
    assert!(
        mistakes.is_empty(),
        "{}\n{}",
        mistakes.join("\n"),
        run.stderr
    );
}

/// Alerts about violations.
fn violations(text: &str) -> Vec<Value> {
    let lines = text.lines();
    let alerts = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    alerts
        .filter(|alert| alert["rule"] == "Policy violation")
        .collect()
}

const REPORT: &str = "    auditViolations: true\n";
const ONLY_REPORT: &str = "    auditViolations: true\n    allowViolations: true\n";
const BOTH: [&str; 2] = ["BPF", "AppArmor"];

/// What is told of a deed under a policy of BPF's: the rules that are to be accepted with their gaps, the
/// number of the deed, and of each alert the rule, what was done, what became of it and the file.
struct Told {
    name: &'static str,
    rules: &'static str,
    switches: &'static str,
    accept: &'static str,
    deed: &'static str,
    number: i32,
    alerts: &'static [[&'static str; 4]],
}

const SHADOW: &str = "attackProtectionRules: [{rules: [disable-access-shadow]}]";

const TOLD: [Told; 4] = [
    // Linux 6.1 asks for the path of a file that is emptied once more; later ones do not.
    Told {
        name: "emptied",
        rules: "attackProtectionRules: [{rules: [disable-write-etc]}]",
        switches: REPORT,
        accept: "disable-write-etc",
        deed: "truncates_reading=/etc/hosts",
        number: P,
        alerts: &[["disable-write-etc", "open", "denied", "/etc/hosts"]],
    },
    Told {
        name: "deep",
        rules: SHADOW,
        switches: REPORT,
        accept: "disable-access-shadow",
        deed: "creates_deep=/srv",
        number: P,
        alerts: &[["unknown-path", "path", "denied", ""]],
    },
    Told {
        name: "deep, only told",
        rules: SHADOW,
        switches: ONLY_REPORT,
        accept: "disable-access-shadow",
        deed: "creates_deep=/srv",
        number: 0,
        alerts: &[["unknown-path", "path", "audited", ""]],
    },
    Told {
        name: "script",
        rules: "bpfRawRules: {processes: [{qualifiers: [audit], pattern: /srv/script, permissions: [exec]}]}",
        switches: "",
        accept: "'bpfRawRules.processes[0]'",
        deed: "executes=/srv/script",
        number: 0,
        alerts: &[["bpfRawRules.processes[0]", "exec", "audited", "/srv/script"]],
    },
];

/// Returns the script of `TOLD`, each in a section.
fn told_script() -> String {
    let mut script = String::new();
    for told in &TOLD {
        let text = policy_of(told.rules, "BPF", told.switches);
        let options = format!("--json --accept-partial {}", told.accept);
        enforce(&mut script, told.name, &text, &options, &[told.deed]);
    }
    script
}

#[test]
fn what_is_violated_is_told_as_what_it_is_and_a_policy_that_only_reports_denies_nothing() {
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let (run, _) = usual_run();
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    let mut mistakes = Vec::new();
    for told in &TOLD {
        let section = &sections[told.name];
        let number = outcomes(section).get(told.deed).copied();
        let alerts = violations(section);
        let mut found: Vec<[&str; 4]> = Vec::new();
        for alert in &alerts {
            let fields = &alert["output_fields"];
            let names = ["rule", "operation", "action"].map(|name| format!("policy.{name}"));
            let [rule, operation, action] = names.map(|name| fields[&name].as_str().unwrap_or(""));
            let file = fields["fd.name"].as_str().unwrap_or("");
            found.push([rule, operation, action, file]);
        }
        // What is deep is made folder by folder, and each one that is too deep is told.
        found.dedup();
        let is_once = told.name.starts_with("deep") || alerts.len() == told.alerts.len();
        if (number, &found[..]) != (Some(told.number), told.alerts) || !is_once {
            mistakes.push(format!("{}: {section}", told.name));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// The same policy with a name, by which it can be exchanged.
fn named(text: &str, name: &str) -> String {
    let head = format!(
        "apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
         target: {{kind: Pod, name: x}}\n"
    );
    let body: String = text.lines().map(|line| format!("  {line}\n")).collect();
    format!("{head}{body}")
}

/// Exchanges a policy under load, and one that is not loaded.
fn exchange(script: &mut String, enforcer: &str, shadow: &str) {
    // Two policies of one name: the first denies, the second does not, and they are exchanged while a
    // process opens the file as fast as it can.
    let first = named(shadow, "load");
    // With one rule more.
    let second = first.replace(
        "rules: [disable-access-shadow]",
        "rules: [disable-access-shadow, disable-access-passwd]",
    );
    let free = first.replace("disable-access-shadow", "disable-access-passwd");
    let _ = write!(
        script,
        "cat > /p/first.yaml <<'EOF'\n{first}EOF\ncat > /p/second.yaml <<'EOF'\n{second}EOF\n\
         cat > /p/free.yaml <<'EOF'\n{free}EOF\necho '### load {enforcer}'\n\
         rm -f /run/end; VIOLATE_UNTIL=/run/end tollgate enforce -q --policy /p/first.yaml -- \
             violate opens_for_long=/etc/shadow 2>&1 &\n\
         loaded=$!; sleep 5; exchanged=0\n\
         for turn in 1 2 3; do for file in second first; do\n\
             tollgate policy replace /p/$file.yaml >> /run/replaced 2>&1 && exchanged=$((exchanged + 1))\n\
         done; done\n: > /run/end; wait $loaded; echo exchanged $exchanged\n\
         echo '### freed {enforcer}'\n\
         rm -f /run/end; VIOLATE_UNTIL=/run/end tollgate enforce -q --policy /p/first.yaml -- \
             violate opens_for_long=/etc/shadow 2>&1 &\n\
         loaded=$!; sleep 5; tollgate policy replace /p/free.yaml 2>&1; sleep 1; : > /run/end; wait $loaded\n\
         echo '### unknown {enforcer}'\ntollgate policy replace /p/p.yaml 2>&1; echo code $?\n"
    );
}

/// What the rest of the test is about: reports, exchange under load, ends.
fn life(enforcer: &str) -> String {
    let mut script = String::new();
    let shadow = |switches: &str| policy("disable-access-shadow", enforcer, switches);
    let deeds = ["reads=/etc/shadow", "reads=/etc/group"];
    let name = |what: &str| format!("{what} {enforcer}");
    enforce(
        &mut script,
        &name("report"),
        &shadow(REPORT),
        "--json",
        &deeds,
    );
    enforce(
        &mut script,
        &name("allow"),
        &shadow(ONLY_REPORT),
        "--json",
        &deeds,
    );
    exchange(&mut script, enforcer, &shadow(""));
    // The agent is killed while it is needed; what it guarded stays so.
    let report = named(&shadow(REPORT), "killed");
    let _ = write!(
        script,
        "cat > /p/killed.yaml <<'EOF'\n{report}EOF\necho '[]' > /p/none.yaml; echo '### killed {enforcer}'\n\
         rm -f /run/end /run/pid; VIOLATE_UNTIL=/run/end tollgate run -q --json -P /run/pid -r /p/none.yaml \
             --policy /p/killed.yaml -- violate opens_for_long=/srv/to-shadow > /run/killed 2>&1 &\n\
         guarded=$!; waited=0\n\
         until grep -q 'Policy violation' /run/killed || [ $waited = 60 ]; do sleep 1; waited=$((waited + 1)); done\n\
         kill -9 $(cat /run/pid); echo killed $?; sleep 8; : > /run/end; wait $guarded\n\
         grep -a 'opens_for_long' /run/killed | grep -av rule; grep -ac '\"Policy violation\"' /run/killed\n"
    );
    let _ = write!(
        script,
        "echo '### sweep {enforcer}'\ntollgate policy loaded --sweep; ls /sys/fs/bpf/tollgate-*; echo end\n"
    );
    script
}

#[test]
fn violations_are_told_policies_are_exchanged_at_one_moment_and_nothing_is_left() {
    need_slow!();
    let script: String = BOTH.into_iter().map(life).collect();
    let run = run(&script);
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    for enforcer in BOTH {
        let section = |what: &str| sections[&format!("{what} {enforcer}")].as_str();
        let errno = if enforcer == "BPF" { "EPERM" } else { "EACCES" };
        let told = violations(section("report"));
        assert_eq!(told.len(), 1, "{run:?}");
        let fields = &told[0]["output_fields"];
        assert_eq!(fields["policy.rule"], "disable-access-shadow", "{fields}");
        assert_eq!(fields["policy.enforcer"], enforcer);
        assert_eq!(fields["policy.action"], "denied");
        assert_eq!(fields["policy.errno"], errno);
        assert_eq!(fields["fd.name"], "/etc/shadow");
        assert_eq!(fields["proc.name"], "violate");
        assert_eq!(fields["user.uid"], 0);
        assert!(fields["proc.pid"].as_i64().is_some_and(|pid| pid > 1));
        let allowed = section("allow");
        assert_eq!(outcomes(allowed)["reads=/etc/shadow"], 0, "{allowed}");
        let told = violations(allowed);
        assert_eq!(told.len(), 1, "{allowed}");
        assert_eq!(told[0]["output_fields"]["policy.action"], "audited");

        let load = section("load");
        assert_eq!(outcomes(load)["opens_for_long=/etc/shadow"], 0, "{load}");
        assert!(load.contains("exchanged 6"), "{load}");
        let tries = load
            .split("violate: ")
            .nth(1)
            .and_then(|text| text.split(' ').next());
        let tries: u64 = tries.and_then(|text| text.parse().ok()).unwrap_or(0);
        assert!(tries >= 10_000, "{load}");
        assert!(
            outcomes(section("freed"))["opens_for_long=/etc/shadow"] > 0,
            "{run:?}"
        );
        assert!(section("unknown").contains("code 2"), "{run:?}");

        let killed = section("killed");
        assert!(killed.contains("killed 0"), "{killed}");
        assert_eq!(
            outcomes(killed)["opens_for_long=/srv/to-shadow"],
            0,
            "{killed}"
        );
        let told: u64 = killed
            .lines()
            .filter_map(|line| line.trim().parse::<u64>().ok())
            .sum();
        assert!(told > 100, "{killed}");
        let sweep = section("sweep");
        assert!(!sweep.contains(&format!("{enforcer} ")), "{sweep}");
        assert!(!sweep.contains("link-"), "{sweep}");
    }
}

/// What a command does first is reported, on a machine that is busy with other things.
#[test]
fn no_denial_of_a_short_command_is_lost() {
    need_slow!();
    const STARTS: usize = 10;
    let mut script = String::from("busybox yes > /dev/null &\n");
    for enforcer in BOTH {
        let report = policy("disable-access-shadow", enforcer, REPORT);
        let _ = write!(
            script,
            "cat > /p/p.yaml <<'EOF'\n{report}EOF\necho '### {enforcer}'\n\
             for start in $(busybox seq {STARTS}); do\n\
                 tollgate enforce -q --json --policy /p/p.yaml -- violate reads=/etc/shadow 2>&1; done\n"
        );
    }
    let run = run(&script);
    let sections = sections(&run.stdout);
    for enforcer in BOTH {
        let found = violations(&sections[enforcer]).len();
        assert_eq!(found, STARTS, "{enforcer}: {}", sections[enforcer]);
    }
}

/// Starts that fail, and a policy of many rules that is in force, swept around and exchanged.
fn starts_and_exchanges(shadow: &str, many: &str, exchanges: usize) -> String {
    format!(
        "cat > /p/shadow.yaml <<'EOF'\n{shadow}EOF\ncat > /p/many.yaml <<'EOF'\n{many}EOF\n\
         echo '### failed'\n\
         tollgate run -q --policy /p/shadow.yaml -w /nowhere/x.scap -- true > /dev/null 2>&1; echo code $?\n\
         tollgate enforce -q --policy /p/shadow.yaml -- /nowhere/program > /dev/null 2>&1; echo code $?\n\
         tollgate policy loaded --sweep; ls /sys/fs/bpf/tollgate-*; echo end\n\
         echo '### held'\n\
         rm -f /run/end; VIOLATE_UNTIL=/run/end tollgate enforce -q --policy /p/many.yaml -- \
             violate opens_for_long=/etc/shadow 2>&1 &\n\
         held=$!; waited=0\n\
         until tollgate policy loaded | grep -q '1 tasks' || [ $waited = 120 ]; do\n\
             sleep 1; waited=$((waited + 1)); done\n\
         tollgate policy loaded --sweep\n\
         echo '### exchanged'; turn=0; exchanged=0\n\
         while [ $turn -lt {exchanges} ]; do turn=$((turn + 1))\n\
             tollgate policy replace /p/many.yaml > /run/replaced 2>&1 && exchanged=$((exchanged + 1)) || \
                 cat /run/replaced; done\n\
         echo exchanged $exchanged\n\
         tollgate enforce -q --policy /p/shadow.yaml -- violate reads=/etc/shadow 2>&1\n\
         : > /run/end; wait $held\n"
    )
}

#[test]
fn starts_that_fail_leave_no_policy_and_exchanged_policies_no_names() {
    need_slow!();
    // The names of so many rules fill the kernel's table after sixteen versions.
    const RULES: usize = 4000;
    const EXCHANGES: usize = 20;
    let shadow = policy("disable-access-shadow", "BPF", "");
    let rule = "{qualifiers: [deny], pattern: /etc/shadow, permissions: [read]}, ";
    let many = format!("bpfRawRules: {{files: [{}]}}", rule.repeat(RULES));
    let many = named(&policy_of(&many, "BPF", ""), "many");
    let script = starts_and_exchanges(&shadow, &many, EXCHANGES);
    let run = run(&script);
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    let failed = &sections["failed"];
    assert_eq!(failed.matches("code ").count(), 2, "{failed}");
    assert!(!failed.contains("code 0"), "{failed}");
    assert!(!failed.contains("BPF "), "{failed}");
    assert!(!failed.contains("link-"), "{failed}");
    let held = &sections["held"];
    assert!(held.contains("many: 1 tasks"), "{held}");
    let exchanged = &sections["exchanged"];
    assert!(
        exchanged.contains(&format!("exchanged {EXCHANGES}\n")),
        "{exchanged}"
    );
    let outcomes = outcomes(exchanged);
    assert_eq!(outcomes.get("reads=/etc/shadow"), Some(&P), "{exchanged}");
    assert_eq!(
        outcomes.get("opens_for_long=/etc/shadow"),
        Some(&0),
        "{exchanged}"
    );
}

#[test]
fn of_200_starts_whose_command_is_the_attack_none_succeeds() {
    need_slow!();
    let mut script = String::new();
    for enforcer in BOTH {
        let policy = policy("disable-access-shadow", enforcer, "");
        let _ = write!(
            script,
            "cat > /p/p.yaml <<'EOF'\n{policy}EOF\necho '### starts {enforcer}'\nn=0\n\
             while [ $n -lt 200 ]; do tollgate enforce -q --policy /p/p.yaml -- \
                 violate reads=/etc/shadow 2>&1; n=$((n + 1)); done\n"
        );
    }
    let run = run(&script);
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    for (enforcer, errno) in [("BPF", P), ("AppArmor", A)] {
        let section = &sections[&format!("starts {enforcer}")];
        let line = format!("reads=/etc/shadow {errno}");
        let failed = section.lines().filter(|found| **found == line).count();
        assert_eq!(failed, 200, "{enforcer}: {section}");
    }
}

/// What containers need beside the stage: a runtime, groups, and a root file system of their own.
const CONTAINERS: &str = r#"
busybox umount /sys/fs/cgroup/old; busybox umount /sys/fs/cgroup; busybox mount -t cgroup2 none /sys/fs/cgroup || exit 95
mkdir -p /t/policies /t/rootfs/bin /t/rootfs/etc /t/rootfs/proc /t/rootfs/dev /t/rootfs/tmp /t/rootfs/run
cp /usr/bin/busybox /t/rootfs/bin/busybox; ln -s busybox /t/rootfs/bin/sleep; ln -s busybox /t/rootfs/bin/cat
cp /usr/local/bin/violate /t/rootfs/bin/violate
for name in shadow group; do echo $name > /t/rootfs/etc/$name; done
export TOLLGATE_RUNTIME_STATE=/t/state TOLLGATE_RUNTIME_CONFIG=/t/tollgate.yaml
rt() { tollgate runtime --runtime /usr/sbin/runc --root /t/root "$@" < /dev/null; }
echo '[]' > /t/rules.yaml
cat > /t/tollgate.yaml <<'EOF'
rules_files: [/t/rules.yaml]
json_output: true
file_output: {enabled: true, filename: /t/alerts}
runtime: {policies: /t/policies, watch: none, accept_partial: [disable-access-shadow, disable-cap-sys-time]}
EOF
"#;

/// The configuration of a container.
fn bundle(policy: Option<&str>, words: &[&str]) -> Value {
    let namespaces = ["pid", "mount", "ipc", "uts", "network"];
    let namespaces = namespaces.map(|kind| serde_json::json!({"type": kind}));
    let mut config = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": words, "env": ["PATH=/bin"], "cwd": "/"},
        "root": {"path": "/t/rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {"namespaces": namespaces},
    });
    if let Some(policy) = policy {
        config["annotations"] = serde_json::json!({ "tollgate.policy": policy });
    }
    config
}

/// The first is denied in containers with a policy.
const CONTAINER_DEEDS: [&str; 3] = ["reads=/etc/shadow", "reads=/etc/group", "forks"];

/// Runs containers without a policy and with one by each enforcer, as first program and in a session.
fn container_script() -> String {
    let words: Vec<&str> = ["violate"].into_iter().chain(CONTAINER_DEEDS).collect();
    let mut script = format!("{STAGE}{CONTAINERS}");
    let mut container = |name: &str, policy: Option<&str>, words: &[&str]| {
        let config = bundle(policy, words);
        let _ = write!(
            script,
            "mkdir -p /t/{name}; cat > /t/{name}/config.json <<'EOF'\n{config}\nEOF\n"
        );
    };
    container("free", None, &words);
    for enforcer in BOTH {
        let name = enforcer.to_lowercase();
        container(&name, Some(&name), &words);
        container(&format!("{name}-long"), Some(&name), &["sleep", "1000"]);
    }
    script.push_str("echo '### free'; rt run --bundle /t/free free 2>&1\n");
    for enforcer in BOTH {
        let name = enforcer.to_lowercase();
        let policy = policy("disable-access-shadow", enforcer, REPORT);
        let _ = write!(
            script,
            "cat > /t/policies/{name}.yaml <<'EOF'\n{policy}EOF\n\
             echo '### first {enforcer}'; rt run --bundle /t/{name} {name} 2>&1\n\
             echo '### exec {enforcer}'; rt create --bundle /t/{name}-long {name}-long > /t/log 2>&1; cat /t/log\n\
             rt start {name}-long; rt exec {name}-long {words} 2>&1\n\
             rt kill {name}-long KILL; sleep 3; rt delete --force {name}-long\n",
            words = words.join(" "),
        );
    }
    script.push_str(
        "echo '### outside'; violate reads=/etc/shadow\necho '### alerts'; sleep 3; cat /t/alerts\n\
         echo '### sweep'; tollgate policy loaded --sweep; ls -d /sys/fs/bpf/tollgate-*/link-*; echo end\n",
    );
    script
}

#[test]
fn containers_are_confined_by_bpf_and_by_apparmor_from_their_first_program_on() {
    need_slow!();
    let runc = std::path::Path::new("/usr/sbin/runc");
    if !runc.exists() {
        e2e::skip!("has no runc", || Ok(
            "/usr/sbin/runc is not there".to_owned()
        ));
    }
    let script = container_script();
    let violate = Fixture::compile("violate");
    let mut guest = guest(&violate).file(runc, "/usr/sbin/runc");
    for library in ["libseccomp.so.2", "libm.so.6"] {
        let path = format!("/usr/lib/x86_64-linux-gnu/{library}");
        guest = guest.file(std::path::Path::new(&path), &path);
    }
    let run = guest.run(0, Identity::Root, &script);
    assert_eq!(run.code, 0, "{run:?}");
    let sections = sections(&run.stdout);
    assert_eq!(
        outcomes(&sections["free"])["reads=/etc/shadow"],
        0,
        "{run:?}"
    );
    let alerts = violations(&sections["alerts"]);
    for (enforcer, errno) in [("BPF", P), ("AppArmor", A)] {
        let name = enforcer.to_lowercase();
        for (what, id) in [("first", name.clone()), ("exec", format!("{name}-long"))] {
            let found = outcomes(&sections[&format!("{what} {enforcer}")]);
            for (deed, expected) in CONTAINER_DEEDS.into_iter().zip([errno, 0, 0]) {
                assert_eq!(
                    found.get(deed),
                    Some(&expected),
                    "{what} {enforcer}: {deed}: {run:?}"
                );
            }
            let told = alerts.iter().filter(|alert| {
                let fields = &alert["output_fields"];
                fields["policy.enforcer"] == enforcer && fields["container.id"] == id.as_str()
            });
            assert_eq!(told.count(), 1, "{id}: {}", sections["alerts"]);
        }
    }
    assert_eq!(
        outcomes(&sections["outside"])["reads=/etc/shadow"],
        0,
        "{run:?}"
    );
    assert!(
        !sections["sweep"].contains("link-"),
        "{}",
        sections["sweep"]
    );
}
