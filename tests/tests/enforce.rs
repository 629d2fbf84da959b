//! Policies in force: the attack that a rule is about is really made and fails with the error of its
//! enforcer, what is legitimate goes on, and without the rule the attack succeeds.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abi::Errno;
use e2e::attacks::{self, Tried};
use e2e::{Finished, Fixture, Limited, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const EPERM: i32 = Errno::EPERM.0;
const EACCES: i32 = Errno::EACCES.0;
const LIMIT: Duration = Duration::from_secs(180);

/// A rule, the enforcers that are to carry it, and what it comes to.
struct Row {
    rule: &'static str,
    enforcer: &'static str,
    /// What fails with which error; all of it is done where nothing is denied.
    denied: &'static [(&'static str, i32)],
    /// What goes on.
    still: &'static [&'static str],
}

/// `RULE by ENFORCER denies DEED: ERROR, ...; still DEED, ...`
const fn row(
    rule: &'static str,
    enforcer: &'static str,
    denied: &'static [(&'static str, i32)],
    still: &'static [&'static str],
) -> Row {
    Row {
        rule,
        enforcer,
        denied,
        still,
    }
}

const NEW_USER: &[(&str, i32)] = &[
    ("user_unshare", EPERM),
    ("user_clone", EPERM),
    ("user_clone3", Errno::ENOSYS.0),
    ("user_setns", EPERM),
    ("user_setns_any", EPERM),
    ("user_i386", EPERM),
    ("user_x32", EPERM),
];
const SERVICES: &[&str] = &["forks", "threads", "pipes", "own_status", "own_root"];
const MOUNT_CALLS: &[(&str, i32)] = &[
    ("mounts=%M", EPERM),
    ("binds_relative=%M", EPERM),
    ("opens_fs", EPERM),
    ("clones_tree", EPERM),
    ("moves_mount", EPERM),
    ("mounts_anew=%M", EPERM),
    ("changes_mount", EPERM),
    ("makes_writable=/", EPERM),
    ("pivots", EPERM),
];

/// What a filter carries for anybody.
const BY_SECCOMP: &[Row] = &[
    row("disallow-create-user-ns", "Seccomp", NEW_USER, SERVICES),
    row(
        "disallow-load-all-bpf-prog",
        "Seccomp",
        &[("bpf_load", EPERM)],
        SERVICES,
    ),
    row(
        "disallow-load-bpf-via-setsockopt",
        "Seccomp",
        &[("attach_filter", EPERM), ("attach_reuseport", EPERM)],
        &["reuse_address"],
    ),
    row(
        "disallow-userfaultfd-creation",
        "Seccomp",
        &[("page_faults", EPERM)],
        &["polls"],
    ),
    row(
        "disallow-insmod",
        "Seccomp",
        &[
            ("module_by_fd", EPERM),
            ("module_by_memory", EPERM),
            ("module_removed", EPERM),
            ("new_kernel", EPERM),
        ],
        &["reads_modules"],
    ),
    row("disallow-mount", "Seccomp", MOUNT_CALLS, &["opens_tree"]),
    row(
        "disallow-umount",
        "Seccomp",
        &[("unmounts=%M/mounted", EPERM)],
        SERVICES,
    ),
    row(
        "mitigate-disk-device-number-leak",
        "Seccomp",
        &[("stats_mounts", EPERM), ("lists_mounts", EPERM)],
        SERVICES,
    ),
    row(
        "mitigate-overlayfs-leak",
        "Seccomp",
        &[("stats_mounts", EPERM), ("lists_mounts", EPERM)],
        SERVICES,
    ),
    row(
        "disable-chmod-x-bit",
        "Seccomp",
        &[
            ("chmod_x", EPERM),
            ("fchmodat_x", EPERM),
            ("fchmodat2_x", EPERM),
            ("open_with_x", EPERM),
            ("creat_with_x", EPERM),
            ("openat2_any", Errno::ENOSYS.0),
        ],
        &["chmod_plain", "open_without_x"],
    ),
    row(
        "disable-chmod-s-bit",
        "Seccomp",
        &[
            ("chmod_s", EPERM),
            ("fchmod_s", EPERM),
            ("fchmodat_s", EPERM),
            ("fchmodat2_s", EPERM),
            ("mknod_with_s", EPERM),
            ("mknodat_with_s", EPERM),
            ("open_with_s", EPERM),
            ("openat_with_s", EPERM),
            ("openat2_with_s", Errno::ENOSYS.0),
            ("creat_with_s", EPERM),
            ("tmpfile_with_s", EPERM),
            ("mq_with_s", EPERM),
        ],
        &[
            "chmod_plain",
            "chmod_x",
            "open_with_x",
            "makes_folder_with_s",
        ],
    ),
    row(
        "disable-network",
        "Seccomp",
        &[
            ("tcp", EPERM),
            ("udp6", EPERM),
            ("local", EPERM),
            ("local_pair", EPERM),
            ("netlink", EPERM),
            ("ring", EPERM),
        ],
        SERVICES,
    ),
    row(
        "disable-inet",
        "Seccomp",
        &[("tcp", EPERM), ("udp", EPERM), ("ring", EPERM)],
        &["tcp6", "local"],
    ),
    row(
        "disable-inet6",
        "Seccomp",
        &[("tcp6", EPERM), ("udp6", EPERM)],
        &["tcp", "local"],
    ),
    row(
        "disable-unix-domain-socket",
        "Seccomp",
        &[("local", EPERM), ("local_pair", EPERM)],
        &["tcp", "pipes"],
    ),
    row(
        "disable-icmp",
        "Seccomp",
        &[("raw_icmp", EPERM), ("ping", EPERM)],
        &["tcp", "udp"],
    ),
    row(
        "disable-tcp",
        "Seccomp",
        &[
            ("tcp", EPERM),
            ("tcp_named", EPERM),
            ("tcp_multipath", EPERM),
            ("smc", EPERM),
            ("smc_inet", EPERM),
            ("tcp6", EPERM),
        ],
        &["udp", "local"],
    ),
    row(
        "disable-udp",
        "Seccomp",
        &[("udp", EPERM), ("udp_named", EPERM), ("udp6", EPERM)],
        &["tcp", "local"],
    ),
    row(
        "dirty-pipe-mitigation",
        "Seccomp",
        &[
            ("splices", EPERM),
            ("vmsplices", EPERM),
            ("tees", EPERM),
            ("sends_file", EPERM),
        ],
        &["copies"],
    ),
    row(
        "copy-fail-mitigation",
        "Seccomp",
        &[("crypto", EPERM)],
        &["tcp", "local"],
    ),
];

/// What Landlock carries. `%S`: the folder with a token, `%O`: a process outside, `%N`: a folder with second
/// names of files.
const BY_LANDLOCK: &[Row] = &[
    row(
        "disallow-mount",
        "Landlock",
        &[
            ("mounts=%M", EPERM),
            ("binds_relative=%M", EPERM),
            ("mounts_anew=%M", EPERM),
        ],
        SERVICES,
    ),
    row(
        "disallow-umount",
        "Landlock",
        &[("unmounts=%M/mounted", EPERM)],
        SERVICES,
    ),
    row(
        "disable-access-shadow",
        "Landlock",
        &[
            ("reads=/etc/shadow", EACCES),
            ("writes=/etc/shadow", EACCES),
            ("appends=/etc/shadow", EACCES),
            ("reads=%W/to-shadow", EACCES),
            ("reads_by_root=/etc/shadow", EACCES),
            ("reads_in_namespace=/etc/shadow", EACCES),
            ("reads_i386=/etc/shadow", EACCES),
            ("ring_opens=/etc/shadow", EACCES),
            ("reads=%N/bound/shadow", EACCES),
            ("reads=%N/one", EACCES),
            ("reads=%N/over/shadow", EACCES),
            ("reads=/etc/linked", EACCES),
            ("reads=/etc/links/far", EACCES),
            ("reads=%N/bound/links/far", EACCES),
        ],
        &[
            "reads=/etc/group",
            "reads=/etc/shadow-",
            "own_status",
            "lists=/etc",
            "lists=/",
            "reads=%N/bound/group",
            "reads=%N/over/group",
        ],
    ),
    row(
        "disable-access-ssh-dir",
        "Landlock",
        &[
            ("reads=%W/.ssh/id", EACCES),
            ("writes=%W/.ssh/id", EACCES),
            ("creates=%W/.ssh/new", EACCES),
        ],
        &["reads=%W/other/plain"],
    ),
    row(
        "disable-write-skills",
        "Landlock",
        &[
            ("writes=%W/skills/a/b", EACCES),
            ("creates=%W/skills/a/new", EACCES),
        ],
        &["reads=%W/skills/a/b"],
    ),
    row(
        "cgroups-lxcfs-escape-mitigation",
        "Landlock",
        &[
            ("writes=%W/devices/x/devices.allow", EACCES),
            ("appends=%W/devices/x/tasks", EACCES),
            ("truncates=%W/devices/release_agent", EACCES),
        ],
        &["reads=%W/devices/x/tasks"],
    ),
    row(
        "runc-override-mitigation",
        "Landlock",
        &[
            ("writes=%W/other/runc", EACCES),
            ("truncates_path=%W/other/runc", EACCES),
        ],
        &["reads=%W/other/runc"],
    ),
    row(
        "disable-busybox",
        "Landlock",
        &[("executes=/bin/busybox", EACCES)],
        &["executes=/bin/true", "executes=/bin/sh"],
    ),
    row(
        "disable-access-passwd",
        "Landlock",
        &[
            ("reads=/etc/passwd", EACCES),
            ("writes=/etc/passwd", EACCES),
        ],
        &["reads=/etc/passwd-", "reads=/etc/group"],
    ),
    row(
        "disable-write-etc",
        "Landlock",
        &[
            ("creates=/etc/new", EACCES),
            ("writes=/etc/hosts", EACCES),
            ("appends=/etc/hosts", EACCES),
            ("truncates=/etc/hosts", EACCES),
            ("truncates_path=/etc/hosts", EACCES),
            ("makes_folder=/etc/new", EACCES),
            ("links_symbolically=/etc/new", EACCES),
            ("removes=/etc/removable", EACCES),
        ],
        &["reads=/etc/hosts", "creates=%W/new", "lists=/etc"],
    ),
    row(
        "mitigate-sa-leak",
        "Landlock",
        &[
            ("reads=%S/token", EACCES),
            ("reads=/var%S/token", EACCES),
            ("reads=%S/..data/token", EACCES),
            ("reads_by_root=%S/token", EACCES),
            ("reads=%N/part/token", EACCES),
        ],
        &["reads=/run/other"],
    ),
    row(
        "disallow-access-procfs-root",
        "CapsLandlockSeccomp",
        &[("follows_root=%O", EACCES), ("traces_in_child=%O", EPERM)],
        &["own_root", "own_status", "traces_own_child"],
    ),
    row(
        "disable-shell",
        "Landlock",
        &[
            ("executes=/bin/sh", EACCES),
            ("executes_in_folder=/bin/sh", EACCES),
            ("executes_descriptor=/bin/sh", EACCES),
            ("executes=%W/to-sh", EACCES),
            ("executes=%W/script", EACCES),
            ("executes=/bin/bash", EACCES),
        ],
        &["executes=/bin/true", "own_status"],
    ),
    row(
        "disable-chmod",
        "Landlock",
        &[("executes=/bin/chmod", EACCES)],
        &["executes=/bin/true", "executes=/bin/sh"],
    ),
    row(
        "disable-wget",
        "Landlock",
        &[("executes=%W/bin/wget", EACCES)],
        &["executes=%W/bin/curl", "executes=/bin/sh"],
    ),
    row(
        "disable-curl",
        "Landlock",
        &[("executes=%W/bin/curl", EACCES)],
        &["executes=%W/bin/wget", "executes=/bin/sh"],
    ),
    row(
        "disallow-write-release-agent",
        "Landlock",
        &[("writes=/sys/fs/cgroup/tollgate-test/release_agent", EACCES)],
        &["reads=/sys/fs/cgroup/tollgate-test/release_agent"],
    ),
    row(
        "cgroups-lxcfs-escape-mitigation",
        "Landlock",
        &[("writes=/sys/fs/cgroup/devices/cgroup.procs", EACCES)],
        &["reads=/sys/fs/cgroup/devices/cgroup.procs"],
    ),
    row(
        "disable-su-sudo",
        "Landlock",
        &[("executes=/bin/su", EACCES)],
        &["executes=/bin/sh"],
    ),
];

/// What dropped capabilities carry, beyond that they are gone.
const BY_CAPS: &[Row] = &[
    row("disallow-mount", "Caps", MOUNT_CALLS, SERVICES),
    row(
        "disallow-umount",
        "Caps",
        &[("unmounts=%M/mounted", EPERM)],
        SERVICES,
    ),
    row(
        "disable-cap-net-raw",
        "CapsSeccomp",
        &[("packets", EPERM), ("user_unshare", EPERM)],
        &["tcp"],
    ),
    row(
        "disable-cap-privileged",
        "CapsSeccomp",
        &[
            ("sets_time", EPERM),
            ("nicer", EACCES),
            ("reads_kernel_log", EPERM),
            ("set_host_name", EPERM),
        ],
        &["changes_owner", "tcp"],
    ),
    row(
        "disable-cap-all",
        "CapsSeccomp",
        &[
            ("changes_owner", EPERM),
            ("changes_root", EPERM),
            ("makes_device", EPERM),
        ],
        SERVICES,
    ),
    row(
        "disable-cap-all-except-net-bind-service",
        "CapsSeccomp",
        &[("changes_owner", EPERM), ("capability=21", EPERM)],
        &["capability=10"],
    ),
    row(
        "disallow-abuse-user-ns",
        "CapsSeccomp",
        &[
            ("set_host_name", EPERM),
            ("user_unshare", EPERM),
            ("sheds_by_namespace", EPERM),
        ],
        SERVICES,
    ),
    row(
        "disallow-load-bpf-prog",
        "CapsSeccomp",
        &[("capability=39", EPERM), ("user_clone", EPERM)],
        SERVICES,
    ),
    row(
        "disallow-insmod",
        "CapsSeccomp",
        &[("capability=16", EPERM), ("module_by_memory", EPERM)],
        SERVICES,
    ),
];

/// Where policies are put in force: with the workload, files of its own in /etc and /run, and a folder to
/// mount on, in a mount namespace if this user can have one.
struct Lab {
    scratch: Scratch,
    program: PathBuf,
    workload: PathBuf,
    unprivileged: bool,
    /// Whether /etc and /run are the test's own.
    has_files: bool,
}

/// As `root`, in a mount namespace that is left behind with the command.
const STAGE: &str = r#"
mount --make-rprivate / && mkdir -p "$M/mounted" && mount -t tmpfs none "$M/mounted" || exit
[ "$FILES" ] || exec "$@"
mount -t tmpfs none "$W/etc" && cp -a /etc/. "$W/etc" && : > "$W/etc/removable" &&
: > "$W/etc/shadow-" && : > "$W/etc/passwd-" && mount --move "$W/etc" /etc && mount -t tmpfs none /run &&
mkdir -p "/run$S/..2024" && echo t > "/run$S/..2024/token" && ln -s ..2024 "/run$S/..data" &&
ln -s ..data/token "/run$S/token" && : > /run/other && mount -t tmpfs none /sys/fs/cgroup &&
mkdir /sys/fs/cgroup/tollgate-test && : > /sys/fs/cgroup/tollgate-test/release_agent &&
mkdir /sys/fs/cgroup/devices && mount -t cgroup2 none /sys/fs/cgroup/devices || exit
cd "$W/names" && mkdir -p bound part layer over && : > one && ln /etc/shadow /etc/linked && mkdir /etc/links &&
ln /etc/shadow /etc/links/far && mount --bind /etc bound && mount --bind /etc/shadow one &&
mount --bind "/run$S/..2024" part && mount -t overlay -o "lowerdir=/etc:$W/names/layer" none over && cd / &&
exec "$@"
"#;
/// Below /run.
const SECRETS: &str = "/secrets/kubernetes.io/serviceaccount";

impl Lab {
    fn new() -> Self {
        let scratch = Scratch::new();
        let program = scratch.program(&e2e::program(), "tollgate");
        let workload = Fixture::shared("violate");
        let workload = scratch.program(workload.program(), "violate");
        for folder in ["etc", "mount", "names", "work"] {
            let path = scratch.path().join(folder);
            std::fs::create_dir_all(&path).expect("the scratch folder is writable");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(&path, mode).expect("it is ours");
        }
        let link = |to: &str, name: &str| {
            let at = scratch.path().join("work").join(name);
            std::os::unix::fs::symlink(to, at).expect("the folder is ours");
        };
        link("/etc/shadow", "to-shadow");
        link("/bin/sh", "to-sh");
        let programs = scratch.path().join("work/bin");
        std::fs::create_dir_all(&programs).expect("the scratch folder is writable");
        for name in ["curl", "wget"] {
            testing::copy_program("/bin/true", programs.join(name))
                .expect("there is a program `true`");
        }
        scratch.file("work/script", 0o755, "#!/bin/sh\nexit 0\n");
        for folder in [".ssh", "skills/a", "devices/x", "other"] {
            let path = scratch.path().join("work").join(folder);
            std::fs::create_dir_all(path).expect("the scratch folder is writable");
        }
        for file in [
            ".ssh/id",
            "skills/a/b",
            "devices/x/devices.allow",
            "devices/x/tasks",
            "devices/release_agent",
            "other/runc",
            "other/plain",
        ] {
            scratch.file(&format!("work/{file}"), 0o666, "x\n");
        }
        Self {
            scratch,
            program,
            workload,
            unprivileged: false,
            has_files: false,
        }
    }

    /// With files to attack.
    fn with_files() -> Self {
        Self {
            has_files: true,
            ..Self::new()
        }
    }

    /// As a user without capabilities.
    fn unprivileged() -> Self {
        Self {
            unprivileged: true,
            ..Self::new()
        }
    }

    fn folder(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn policy(&self, text: &str) -> PathBuf {
        self.scratch.file("policy.yaml", 0o644, text)
    }

    fn words(&self, deeds: &[&str]) -> Vec<String> {
        let own = std::process::id().to_string();
        let fill = |deed: &&str| {
            deed.replace("%W", &self.folder("work"))
                .replace("%N", &self.folder("names"))
                .replace("%M", &self.folder("mount"))
                .replace("%S", &format!("/run{SECRETS}"))
                .replace("%O", &own)
        };
        deeds.iter().map(fill).collect()
    }

    /// `tollgate OPTIONS --policy FILE -- violate DEEDS`
    fn command(&self, verb: &[&str], policy: &Path, deeds: &[&str]) -> Command {
        let mut command = match self.unprivileged {
            true => {
                let mut command = Command::new(&self.program);
                command.uid(65534).gid(65534);
                // It may not look into the home of who runs the tests, and so could not tell what is configured there.
                command.env("HOME", self.scratch.path());
                command
            }
            false => {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-ec", STAGE, "sh"]);
                command.arg(&self.program);
                command
            }
        };
        command
            .env("FILES", if self.has_files { "1" } else { "" })
            .env("W", self.scratch.path())
            .env("S", SECRETS)
            .env("M", self.folder("mount"))
            .env("PATH", path(&self.folder("work/bin")))
            .args(verb)
            .arg("--policy")
            .arg(policy)
            .arg("--")
            .arg(&self.workload)
            .args(self.words(deeds))
            .stdin(Stdio::null());
        command
    }

    fn enforce(&self, options: &[&str], policy: &Path, deeds: &[&str]) -> Finished {
        let verb: Vec<&str> = ["enforce", "-q"].iter().chain(options).copied().collect();
        Limited::start(&mut self.command(&verb, policy, deeds), LIMIT).finish(b"")
    }

    /// What became of each deed, by its name and argument.
    fn outcomes(&self, policy: &Path, deeds: &[&str]) -> BTreeMap<String, i32> {
        let finished = self.enforce(&[], policy, deeds);
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        let found = outcomes(&finished.stdout);
        assert_eq!(found.len(), deeds.len(), "{}", finished.stdout);
        found
    }
}

/// The usual folders of programs, and one more.
fn path(folder: &str) -> String {
    let usual = std::env::var("PATH").unwrap_or_default();
    format!("{folder}:{usual}")
}

fn outcomes(printed: &str) -> BTreeMap<String, i32> {
    let lines = printed.lines().filter_map(|line| {
        let (name, number) = line.rsplit_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    lines.collect()
}

fn list_of(rule: &str) -> &'static str {
    if rule.starts_with("disallow") || rule.starts_with("disable-cap") {
        "hardeningRules: [RULE]"
    } else if rule.ends_with("-mitigation") {
        "vulMitigationRules: [RULE]"
    } else {
        "attackProtectionRules: [{rules: [RULE]}]"
    }
}

fn policy(rule: &str, enforcer: &str) -> String {
    policy_with(rule, enforcer, "")
}

fn policy_with(rule: &str, enforcer: &str, switches: &str) -> String {
    let rules = list_of(rule).replace("RULE", rule);
    format!(
        "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n{switches}    {rules}\n"
    )
}

const ALLOW: &str = "policy:\n  enforcer: SeccompLandlockCaps\n  mode: AlwaysAllow\n";

/// All that is done under a row's rule.
fn deeds(row: &Row) -> Vec<&'static str> {
    let denied = row.denied.iter().map(|(deed, _)| *deed);
    denied.chain(row.still.iter().copied()).collect()
}

/// What becomes of the deeds of all rows where nothing is denied, each done once.
fn outcomes_without_a_rule(lab: &Lab, rows: &[Row]) -> BTreeMap<String, i32> {
    let mut all: Vec<&str> = Vec::new();
    for deed in rows.iter().flat_map(deeds) {
        if !all.contains(&deed) {
            all.push(deed);
        }
    }
    lab.outcomes(&lab.policy(ALLOW), &all)
}

/// Goes through the rows; every mistake is told, not only the first.
fn check(lab: &Lab, rows: &[Row]) {
    let mut mistakes = Vec::new();
    let mut tried = Vec::new();
    let free = outcomes_without_a_rule(lab, rows);
    for row in rows {
        let policy = lab.policy(&policy(row.rule, row.enforcer));
        let bound = lab.outcomes(&policy, &deeds(row));
        let name = |deed: &str| lab.words(&[deed]).remove(0);
        let (rule, enforcer) = (row.rule, row.enforcer);
        let gave = |deed: &str| (deed.to_owned(), bound[&name(deed)], free[&name(deed)]);
        tried.push(Tried {
            rule: rule.to_owned(),
            enforcer: enforcer.to_owned(),
            attacks: row.denied.iter().map(|(deed, _)| gave(deed)).collect(),
            twins: row.still.iter().map(|deed| gave(deed)).collect(),
        });
        for (deed, expected) in row.denied {
            let (found, control) = (bound[&name(deed)], free[&name(deed)]);
            if found != *expected {
                mistakes.push(format!(
                    "{rule} by {enforcer}: {deed} gave {found} instead of {expected}"
                ));
            }
            if control == *expected {
                mistakes.push(format!(
                    "{rule}: {deed} gives {control} without the rule, too"
                ));
            }
        }
        for deed in row.still {
            let (found, control) = (bound[&name(deed)], free[&name(deed)]);
            if found != 0 || control != 0 {
                mistakes.push(format!(
                    "{rule} by {enforcer}: {deed} gave {found}, and {control} without"
                ));
            }
        }
    }
    attacks::note("host", &tried);
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn what_a_filter_carries_fails_with_its_error_and_nothing_else_does() {
    e2e::need_root!();
    check(&Lab::new(), BY_SECCOMP);
}

/// A rule as the only one of a policy.
fn graded(rule: &str, enforcer: ::policy::EnforcerKind) -> ::policy::compile::Assessment {
    let builtin = ::policy::builtin::find(rule).expect("there is such a rule");
    let machine = ::policy::compile::MachineFeatures {
        disks: vec!["sda".to_owned()],
        ..Default::default()
    };
    ::policy::compile::assess_builtin(builtin, enforcer, &machine)
}

#[test]
fn every_rule_that_is_graded_full_has_an_attack() {
    use ::policy::EnforcerKind;
    use ::policy::compile::Grade;
    let mut lacking = Vec::new();
    let mut full = 0;
    for builtin in ::policy::builtin::all() {
        let rule = builtin.name.as_str();
        for (enforcer, rows) in [
            (EnforcerKind::Seccomp, BY_SECCOMP),
            (EnforcerKind::Landlock, BY_LANDLOCK),
            (EnforcerKind::Caps, BY_CAPS),
        ] {
            if graded(rule, enforcer).grade != Grade::Full {
                continue;
            }
            full += 1;
            let name = enforcer.to_string();
            let is_attacked = |row: &&Row| row.rule == rule && row.enforcer.contains(&name);
            // Each capability has a test of its own.
            let is_each = enforcer == EnforcerKind::Caps
                && CAPABILITIES
                    .iter()
                    .any(|own| rule == format!("disable-cap-{own}"));
            let attacks = rows.iter().filter(is_attacked).map(|row| row.denied.len());
            if attacks.sum::<usize>() == 0 && !is_each {
                lacking.push(format!("{rule} by {name}"));
            }
        }
    }
    assert!(
        lacking.is_empty(),
        "graded full without an attack: {lacking:?}"
    );
    assert!(full > 50, "{full}");
}

/// A call whose arguments meet the tests, and the error that is expected of it.
fn meeting(rule: &::policy::compile::seccomp::CallRule) -> Option<(String, i32)> {
    let native = abi::Arch::native().expect("the tests' machine has calls");
    let mut args = [u64::MAX; 6];
    for test in &rule.when {
        args[usize::from(test.arg)] = match test.op {
            abi::TestOp::AnyBit => test.value & test.value.wrapping_neg(),
            _ => test.value,
        };
    }
    let words = args.map(|word| format!("{word:x}")).join(":");
    let errno = rule.action.errno()?.0;
    Some((
        format!("call={:x}:{words}", rule.call.number(native)?),
        errno,
    ))
}

/// What a rule compiles to is what the kernel denies: each line of each filter is tried.
#[test]
fn every_call_that_a_filter_is_compiled_to_deny_is_denied() {
    let lab = Lab::unprivileged();
    let mut tried = 0;
    for builtin in ::policy::builtin::all() {
        let rule = builtin.name.as_str();
        let (policies, problems) = ::policy::load("p.yaml", &policy(rule, "Seccomp"));
        assert!(problems.is_empty(), "{problems:?}");
        let profile = ::policy::compile::seccomp::Profile::compile(&policies[0]);
        let calls: BTreeMap<String, i32> = profile.rules.iter().filter_map(meeting).collect();
        if calls.is_empty() {
            continue;
        }
        let deeds: Vec<&str> = calls.keys().map(String::as_str).collect();
        let options = ["--accept-partial", rule];
        let finished = lab.enforce(&options, &lab.policy(&policy(rule, "Seccomp")), &deeds);
        let found = outcomes(&finished.stdout);
        assert_eq!(found, calls, "{rule}: {}", finished.stderr);
        tried += calls.len();
    }
    assert!(tried > 150, "{tried}");
}

#[test]
fn what_landlock_carries_fails_with_its_error_and_nothing_else_does() {
    e2e::need_root!();
    check(&Lab::with_files(), BY_LANDLOCK);
}

#[test]
fn what_capabilities_carry_fails_with_its_error_and_nothing_else_does() {
    e2e::need_root!();
    check(&Lab::new(), BY_CAPS);
}

/// Deeds that need a privilege, and so are not done by an ordinary user without the rule either.
const NEEDS_PRIVILEGE: [&str; 12] = [
    "mounts",
    "binds",
    "opens_fs",
    "clones",
    "mounts_anew",
    "bpf_load",
    "raw_icmp",
    "packets",
    "module",
    "new_kernel",
    "unmounts",
    "page_faults",
];

#[test]
fn filters_and_rulesets_need_no_privilege() {
    e2e::need_root!();
    let lab = Lab::unprivileged();
    let mut checked = 0;
    for table in [BY_SECCOMP, BY_LANDLOCK] {
        for row in table {
            let is_private = |deed: &str| {
                NEEDS_PRIVILEGE.iter().any(|name| deed.starts_with(name))
                    || deed.contains("/etc/")
                    || deed.contains("/sys/")
                    || deed.contains("%S")
                    || deed.contains("/run/")
                    || deed.contains("%O")
                    || deed.contains("%N")
                    || deed.contains("to-shadow")
            };
            let denied: Vec<_> = row
                .denied
                .iter()
                .filter(|(deed, _)| !is_private(deed))
                .collect();
            if denied.is_empty() {
                continue;
            }
            let deeds: Vec<&str> = denied.iter().map(|(deed, _)| *deed).collect();
            let bound = lab.outcomes(&lab.policy(&policy(row.rule, row.enforcer)), &deeds);
            for (deed, expected) in denied {
                let found = bound[&lab.words(&[deed])[0]];
                assert_eq!(found, *expected, "{} by {}: {deed}", row.rule, row.enforcer);
                checked += 1;
            }
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn each_of_the_41_capabilities_can_be_taken_away() {
    e2e::need_root!();
    let lab = Lab::new();
    let list = Limited::start(
        Command::new(e2e::program())
            .args(["policy", "list", "--json"])
            .stdin(Stdio::null()),
        LIMIT,
    )
    .finish(b"");
    let rules: Vec<Value> = serde_json::from_str(&list.stdout).expect("it prints JSON");
    for name in CAPABILITIES {
        let rule = format!("disable-cap-{name}");
        assert!(
            rules.iter().any(|known| known["name"] == rule.as_str()),
            "{rule}"
        );
    }
    let all: Vec<String> = (0..CAPABILITIES.len())
        .map(|number| format!("capability={number}"))
        .collect();
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    let free = lab.outcomes(&lab.policy(ALLOW), &words);
    // This machine's root may not have them all.
    let had: Vec<usize> = (0..CAPABILITIES.len())
        .filter(|number| free[words[*number]] == 0)
        .collect();
    assert!(had.len() >= 14, "{} of them", had.len());
    for &number in &had {
        let rule = format!("disable-cap-{}", CAPABILITIES[number]);
        let (own, other) = (words[number], words[(number + 1) % words.len()]);
        let deeds = [own, other, "user_unshare"];
        let bound = lab.outcomes(&lab.policy(&policy(&rule, "CapsSeccomp")), &deeds);
        assert_eq!(
            (bound[own], bound["user_unshare"]),
            (EPERM, EPERM),
            "{rule}"
        );
        assert_eq!(bound[other], free[other], "{rule}");
    }
}

const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac-override",
    "dac-read-search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux-immutable",
    "net-bind-service",
    "net-broadcast",
    "net-admin",
    "net-raw",
    "ipc-lock",
    "ipc-owner",
    "sys-module",
    "sys-rawio",
    "sys-chroot",
    "sys-ptrace",
    "sys-pacct",
    "sys-admin",
    "sys-boot",
    "sys-nice",
    "sys-resource",
    "sys-time",
    "sys-tty-config",
    "mknod",
    "lease",
    "audit-write",
    "audit-control",
    "setfcap",
    "mac-override",
    "mac-admin",
    "syslog",
    "wake-alarm",
    "block-suspend",
    "audit-read",
    "perfmon",
    "bpf",
    "checkpoint-restore",
];

/// A policy with one raw rule: this call fails.
fn without_call(call: &str) -> String {
    format!(
        "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
         syscallRawRules: [{{names: [{call}], action: SCMP_ACT_ERRNO}}]\n"
    )
}

#[test]
fn a_ring_does_nothing_that_is_denied_as_a_call() {
    let lab = Lab::unprivileged();
    let last = lab.outcomes(&lab.policy(ALLOW), &["ring_last"])["ring_last"];
    let known = abi::RING_OPERATIONS.len();
    assert!(
        (40..i32::try_from(known).expect("a table is small")).contains(&last),
        "the kernel knows operations up to {last}, and the table {known}"
    );
    let mut refused = 0;
    for operation in abi::RING_OPERATIONS {
        let deed = format!("ring_does={}", operation.number);
        // Under the last one: the program needs some calls for itself.
        let needed = [
            "read",
            "write",
            "close",
            "openat",
            "mmap",
            "fstat",
            "newfstatat",
            "ioctl",
        ];
        let mut calls = operation.calls.iter().map(|call| call.name());
        let Some(call) = calls.find(|call| !needed.contains(call)) else {
            continue;
        };
        let found = lab.outcomes(&lab.policy(&without_call(call)), &[&deed]);
        assert_eq!(found[&deed], EPERM, "{} under {call}", operation.name);
        refused += 1;
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_ring_that_was_made_elsewhere_cannot_be_used_and_one_stays_where_nothing_speaks_against_it() {
    let lab = Lab::unprivileged();
    let deeds = [
        "ring",
        "ring_enters=100",
        "ring_registers=100",
        "ring_received=101",
    ];
    let under = |text: &str| {
        let mut command = Command::new(&lab.workload);
        command.uid(65534).gid(65534).arg("--hand-over-ring");
        command.env("HOME", lab.scratch.path());
        command
            .arg(&lab.program)
            .args(["enforce", "-q", "--policy"]);
        command.arg(lab.policy(text)).arg("--").arg(&lab.workload);
        let finished = Limited::start(command.args(deeds).stdin(Stdio::null()), LIMIT).finish(b"");
        let found = outcomes(&finished.stdout);
        assert_eq!(found.len(), 4, "{}{}", finished.stdout, finished.stderr);
        deeds.map(|deed| found[deed])
    };
    let [made, entered, registered, received] = under(&without_call("mkdirat"));
    assert_eq!([made, entered, registered], [EPERM; 3]);
    // Since Linux 6.8 a ring cannot be sent.
    assert!(received == EPERM || received == 0, "{received}");
    for text in [ALLOW.to_owned(), without_call("getppid")] {
        assert_eq!(under(&text), [0; 4], "{text}");
    }
}

/// Alerts on the standard error; the standard output is the command's alone.
fn violations(finished: &Finished) -> Vec<Value> {
    assert!(!finished.stdout.contains("Policy violation"));
    let lines = finished.stderr.lines();
    let alerts = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    alerts
        .filter(|alert| alert["rule"] == "Policy violation")
        .collect()
}

const SWITCHES: [(&str, &str, i32, usize, &str); 4] = [
    ("false", "false", EPERM, 0, ""),
    ("false", "true", EPERM, 1, "denied"),
    ("true", "true", 0, 1, "audited"),
    ("true", "false", 0, 0, ""),
];

#[test]
fn the_two_switches_have_four_meanings() {
    let lab = Lab::unprivileged();
    for (allow, audit, errno, lines, action) in SWITCHES {
        let switches = format!("    allowViolations: {allow}\n    auditViolations: {audit}\n");
        let text = policy_with("disallow-create-user-ns", "Seccomp", &switches);
        let finished = lab.enforce(&["--json"], &lab.policy(&text), &["user_unshare"]);
        let found = outcomes(&finished.stdout);
        assert_eq!(
            found.get("user_unshare"),
            Some(&errno),
            "{}",
            finished.stdout
        );
        let told = violations(&finished);
        assert_eq!(told.len(), lines, "{allow} {audit}: {}", finished.stderr);
        for alert in told {
            assert_eq!(alert["output_fields"]["policy.action"], action);
        }
    }
}

/// Deeds that fail without a call that was denied: what they are not told by is their own answer.
const NO_CALL: [&str; 2] = ["capability=", "ring_opens="];

/// What is wrong with what was told of a row's deeds.
fn untold(lab: &Lab, row: &Row) -> Vec<String> {
    let audited = "    auditViolations: true\n";
    let policy = lab.policy(&policy_with(row.rule, row.enforcer, audited));
    let denied = row.denied.iter().map(|(deed, _)| *deed);
    let is_call = |deed: &&str| !NO_CALL.iter().any(|other| deed.starts_with(other));
    let denied: Vec<&str> = denied.filter(is_call).collect();
    let deeds: Vec<&str> = denied.iter().chain(row.still).copied().collect();
    let options = ["--json", "--accept-partial", row.rule];
    let finished = lab.enforce(&options, &policy, &deeds);
    let told = violations(&finished);
    let mut mistakes = Vec::new();
    let (rule, by) = (row.rule, row.enforcer);
    // Nothing but alerts is said.
    if finished.code() != 0 || finished.stderr.lines().count() != told.len() {
        mistakes.push(format!("{rule} by {by}: {}", finished.stderr));
    }
    if told.len() != denied.len() {
        let calls = told.iter().map(|alert| alert["output"].to_string());
        mistakes.push(format!(
            "{rule} by {by}: {} told of {denied:?}: {:#?}",
            told.len(),
            calls.collect::<Vec<_>>()
        ));
    }
    for alert in &told {
        let fields = &alert["output_fields"];
        let enforcer = fields["policy.enforcer"].as_str().unwrap_or_default();
        let is_right = fields["policy.rule"] == rule
            && by.contains(enforcer)
            && fields["policy.action"] == "denied"
            && fields["proc.name"] == "violate";
        if !is_right {
            mistakes.push(format!("{rule} by {by}: {fields}"));
        }
    }
    mistakes
}

#[test]
fn what_landlock_and_caps_deny_is_told_once_each_and_nothing_else_is() {
    e2e::need_root!();
    let (with_files, plain) = (Lab::with_files(), Lab::new());
    let by_landlock = BY_LANDLOCK.iter().flat_map(|row| untold(&with_files, row));
    let by_caps = BY_CAPS.iter().flat_map(|row| untold(&plain, row));
    let mistakes: Vec<String> = by_landlock.chain(by_caps).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// Runs `policy check` where a shell has made names for files of /etc, which is a file system of its own.
fn checked(lab: &Lab, rule: &str, stage: &str) -> String {
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs none \"$W/etc\" && cp -a /etc/. \"$W/etc\" && \
         mount --move \"$W/etc\" /etc && mkdir /etc/hidden && {stage} && exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-ec", &script, "sh"])
        .arg(&lab.program)
        .args(["policy", "check", "--long"])
        .arg(lab.policy(&policy(rule, "Landlock")))
        .env("W", lab.scratch.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    finished.stdout + &finished.stderr
}

#[test]
fn a_name_that_is_not_found_makes_the_rule_partial_and_one_that_is_found_does_not() {
    e2e::need_root!();
    let lab = Lab::new();
    for (stage, way) in [
        ("ln /etc/shadow /etc/found", ""),
        (
            "mount --bind /etc/hidden /mnt && mount --bind /etc /mnt",
            "",
        ),
        (
            "ln /etc/shadow /etc/hidden/x && mount -t tmpfs none /etc/hidden",
            "/etc/shadow has 2 names (hard links), of which 1 were found",
        ),
        (
            "mkdir /etc/a /etc/b && cd /etc/a && mount -t overlay -o lowerdir=../b:../hidden none /mnt",
            "layers of the overlay at /mnt have no absolute path",
        ),
    ] {
        let printed = checked(&lab, "disable-access-shadow", stage);
        let is_said = ["hard links", "no absolute path"].map(|part| printed.contains(part));
        assert_eq!(
            is_said.contains(&true),
            !way.is_empty(),
            "{stage}: {printed}"
        );
        assert!(printed.contains(way), "{stage}: {printed}");
        assert!(printed.contains("mode, owner"), "{stage}: {printed}");
    }
}

/// A way that is left is said before it is gone, and closed by what is advised.
#[test]
fn another_mount_namespace_is_a_way_that_is_said() {
    e2e::need_root!();
    let lab = Lab::new();
    let there = lab.folder("names");
    let script = format!(
        "mount --make-rprivate / && mount --bind /etc {there} && echo ready && exec sleep 100"
    );
    let mut other = Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is a program `unshare`");
    let mut ready = [0; 6];
    let stdout = other.stdout.as_mut().expect("it is a pipe");
    std::io::Read::read_exact(stdout, &mut ready).expect("it says so");
    let deed = format!("reads_by_namespaces={there}/shadow");
    let tried = |policy: &str| {
        let mut command = Command::new(&lab.program);
        let file = lab.policy(policy);
        command.arg("enforce").arg("--policy").arg(&file).arg("--");
        command.arg(&lab.workload).arg(&deed).stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        let is_said = finished.stderr.contains("in another mount namespace");
        (outcomes(&finished.stdout)[&deed], is_said, finished.stderr)
    };
    let (open, is_said, stderr) = tried(&policy("disable-access-shadow", "Landlock"));
    assert!(is_said, "{stderr}");
    let both = policy("disable-access-shadow", "LandlockCaps");
    let both = format!("{both}    hardeningRules: [disable-cap-sys-admin]\n");
    let (closed, is_said, stderr) = tried(&both);
    assert!(!is_said, "{stderr}");
    // Before Linux 6.12 there is no way from one namespace to the next.
    assert_ne!(closed, 0);
    assert!(open == 0 || open == Errno::ENOENT.0, "{open}");
    other.kill().expect("it is ours");
    other.wait().expect("it is ours");
}

#[test]
fn what_a_ruleset_takes_along_is_told_and_what_permissions_deny_is_not() {
    e2e::need_root!();
    let audited = "    auditViolations: true\n";
    let text = policy_with("disable-access-shadow", "Landlock", audited);
    let lab = Lab::with_files();
    let finished = lab.enforce(
        &["--json"],
        &lab.policy(&text),
        &["creates=/etc/new", "reads=/etc/shadow", "mounts=%M"],
    );
    let told = violations(&finished);
    let fields = |at: usize| &told[at]["output_fields"];
    assert_eq!(told.len(), 3, "{}", finished.stderr);
    assert_eq!(fields(0)["fd.name"], "/etc/new");
    assert_eq!(fields(1)["fd.name"], "/etc/shadow");
    assert_eq!(fields(1)["policy.errno"], "EACCES");
    assert_eq!(fields(2)["evt.type"], "mount");
    let other = Lab::unprivileged();
    let secret = other.scratch.file("work/other/secret", 0o000, "x\n");
    let deed = format!("reads={}", secret.display());
    let finished = other.enforce(&["--json"], &other.policy(&text), &[&deed]);
    assert_eq!(outcomes(&finished.stdout)[&deed], EACCES);
    assert!(violations(&finished).is_empty(), "{}", finished.stderr);
}

#[test]
fn rules_that_are_told_without_a_gap_are_graded_full() {
    let lab = Lab::unprivileged();
    let audited = "    auditViolations: true\n";
    for (rule, enforcer, gap) in [
        ("mitigate-sa-leak", "Landlock", None),
        ("disable-cap-sys-time", "CapsSeccomp", None),
        ("disable-cap-net-admin", "CapsSeccomp", Some("netlink")),
    ] {
        let policy = lab.policy(&policy_with(rule, enforcer, audited));
        let mut command = Command::new(e2e::program());
        command
            .args(["policy", "check", "--long"])
            .arg(&policy)
            .stdin(Stdio::null());
        let checked = Limited::start(&mut command, LIMIT).finish(b"");
        // Who has no capabilities misses none.
        let gap = gap.filter(|_| rustix::process::geteuid().is_root());
        let is_partial = checked.stdout.contains("POLICY_PARTIAL");
        assert_eq!(is_partial, gap.is_some(), "{rule}: {}", checked.stdout);
        assert!(
            checked.stdout.contains(gap.unwrap_or_default()),
            "{}",
            checked.stdout
        );
    }
}

#[test]
fn a_denial_is_one_line_with_rule_enforcer_process_and_arguments() {
    let lab = Lab::unprivileged();
    let switches = "    auditViolations: true\n";
    let text = policy_with("disable-tcp", "Seccomp", switches);
    let deeds = ["tcp", "udp", "tcp6"];
    let finished = lab.enforce(&["--json"], &lab.policy(&text), &deeds);
    let told = violations(&finished);
    assert_eq!(told.len(), 2, "{}", finished.stderr);
    let fields = &told[0]["output_fields"];
    assert_eq!(fields["policy.rule"], "disable-tcp");
    assert_eq!(fields["policy.enforcer"], "Seccomp");
    assert_eq!(fields["policy.errno"], "EPERM");
    assert_eq!(fields["evt.type"], "socket");
    assert_eq!(fields["proc.name"], "violate");
    assert_eq!(fields["user.uid"], 65534);
    assert_eq!(fields["container.id"], "host");
    let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
    assert!(text("proc.exepath").ends_with("/violate"), "{fields}");
    assert!(text("evt.args").contains("AF_INET"), "{fields}");
    assert!(
        fields["proc.pid"].as_i64().is_some_and(|pid| pid > 1),
        "{fields}"
    );
    assert_eq!(told[1]["output_fields"]["evt.type"], "socket");
}

#[test]
fn a_thousand_denials_are_a_thousand_lines() {
    let lab = Lab::unprivileged();
    let text = policy_with(
        "disallow-create-user-ns",
        "Seccomp",
        "    auditViolations: true\n",
    );
    let finished = lab.enforce(&["--json"], &lab.policy(&text), &["floods=1000"]);
    assert_eq!(outcomes(&finished.stdout)["floods=1000"], 0);
    assert_eq!(violations(&finished).len(), 1000, "{}", finished.stderr);
}

/// A rule that sees the call that the policy denies.
const RULES: &str = "\
- rule: New namespace
  desc: a user namespace is asked for
  condition: evt.type = unshare
  output: unshare gave %evt.res
  priority: NOTICE
";

#[test]
fn one_filter_serves_rules_and_policy() {
    let lab = Lab::unprivileged();
    let rules = lab.scratch.file("rules.yaml", 0o644, RULES);
    let rules = rules.display().to_string();
    for (audit, lines) in [("false", 0), ("true", 1)] {
        let switches = format!("    auditViolations: {audit}\n");
        let text = policy_with("disallow-create-user-ns", "Seccomp", &switches);
        let verb = ["run", "-q", "--json", "-r", rules.as_str()];
        let policy = lab.policy(&text);
        let mut command = lab.command(&verb, &policy, &["user_unshare", "user_clone"]);
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        let found = outcomes(&finished.stdout);
        assert_eq!((found["user_unshare"], found["user_clone"]), (EPERM, EPERM));
        let alerts: Vec<Value> = finished
            .stderr
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let seen: Vec<_> = alerts
            .iter()
            .filter(|a| a["rule"] == "New namespace")
            .collect();
        assert_eq!(seen.len(), 1, "{}", finished.stderr);
        assert_eq!(seen[0]["output_fields"]["evt.res"], "EPERM");
        let told = violations(&finished);
        // `unshare` and `clone`.
        assert_eq!(told.len(), 2 * lines, "{}", finished.stderr);
    }
}

/// The same call is looked at twice: for the policy, and for the rules.
#[test]
fn what_is_only_reported_goes_on_to_the_rules() {
    let lab = Lab::unprivileged();
    let rules = lab.scratch.file("rules.yaml", 0o644, RULES);
    let rules = rules.display().to_string();
    let policy = lab.policy(&policy("disallow-create-user-ns", "Seccomp"));
    let verb = ["run", "-q", "--json", "--audit", "-r", rules.as_str()];
    let mut command = lab.command(&verb, &policy, &["user_unshare"]);
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(outcomes(&finished.stdout)["user_unshare"], 0);
    assert_eq!(violations(&finished).len(), 1, "{}", finished.stderr);
    let seen = finished.stderr.matches("\"New namespace\"").count();
    assert_eq!(seen, 1, "{}", finished.stderr);
}

#[test]
fn what_was_learnt_passes_again_and_attacks_do_not() {
    let lab = Lab::unprivileged();
    let out = lab.folder("work/learnt.yaml");
    let model = lab.folder("work/model.json");
    let learn = |deeds: &[&str]| {
        let mut command = Command::new(&lab.program);
        command.uid(65534).gid(65534).stdin(Stdio::null());
        command.args(["learn", "-q", "-o", &out, "--model", &model, "--"]);
        command.arg(&lab.workload).args(lab.words(deeds));
        Limited::start(&mut command, LIMIT).finish(b"")
    };
    let done = ["tcp", "creates=%W/new", "reads=/etc/hosts", "forks"];
    let first = learn(&done);
    assert_eq!(first.code(), 0, "{}", first.stderr);
    // A second run adds to the first.
    let more = learn(&["udp", "pipes"]);
    assert_eq!(more.code(), 0, "{}", more.stderr);
    let policy = PathBuf::from(&out);
    let all = [
        "tcp",
        "udp",
        "pipes",
        "creates=%W/new",
        "reads=/etc/hosts",
        "forks",
    ];
    for (deed, number) in lab.outcomes(&policy, &all) {
        assert_eq!(number, 0, "{deed}");
    }
    let advise = ["policy", "advise", "--json", model.as_str()];
    let mut command = Command::new(e2e::program());
    let advice = Limited::start(command.args(advise).stdin(Stdio::null()), LIMIT).finish(b"");
    let rows: Vec<Value> = serde_json::from_str(&advice.stdout).expect("it prints JSON");
    let fits = |rule: &str| {
        rows.iter()
            .find(|row| row["rule"] == rule)
            .map(|row| row["fits"].clone())
    };
    assert_eq!(fits("disable-udp"), Some(Value::Bool(false)));
    assert_eq!(fits("disable-icmp"), Some(Value::Bool(true)));
    let attacks = [
        "user_unshare",
        "user_clone",
        "local",
        "ring",
        "splices",
        "page_faults",
        "traces_own_child",
    ];
    for (deed, number) in lab.outcomes(&policy, &attacks) {
        assert_eq!(number, EPERM, "{deed}");
    }
}

/// Whether this kernel tells of capabilities that are used.
fn tells_of_capabilities() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let known: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    known >= (6, 14)
}

/// Asserts that a policy allows what was learnt, and neither other capabilities nor other files.
fn assert_only_these_work(lab: &Lab, policy: &Path, done: &[&str]) {
    for (deed, number) in lab.outcomes(policy, done) {
        assert_eq!(number, 0, "{deed}");
    }
    for (deed, number) in lab.outcomes(
        policy,
        &[
            "capability=21",
            "capability=12",
            "local",
            "udp",
            "user_clone",
            "set_host_name",
        ],
    ) {
        assert_eq!(number, EPERM, "{deed}");
    }
    // No rule is about these; they were not used.
    for (deed, number) in lab.outcomes(
        policy,
        &[
            "reads=/etc/hostname",
            "lists=/root",
            "executes=/bin/true",
            "writes=/etc/hosts",
        ],
    ) {
        assert_eq!(number, EACCES, "{deed}");
    }
}

#[test]
fn capabilities_that_are_used_are_learnt_and_the_others_taken_away() {
    e2e::need_root!();
    let lab = Lab::new();
    let out = lab.folder("work/learnt.yaml");
    let model = lab.folder("work/model.json");
    let mut command = Command::new(&lab.program);
    command
        .args(["learn", "-o", &out, "--model", &model, "--"])
        .stdin(Stdio::null());
    let done = [
        "changes_owner",
        "binds_port=80",
        "tcp",
        "creates=%W/new",
        "forks",
    ];
    command.arg(&lab.workload).args(lab.words(&done));
    let learnt = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(learnt.code(), 0, "{}", learnt.stderr);
    if !tells_of_capabilities() {
        e2e::skip!("needs Linux 6.14 to record capabilities", || {
            match learnt.stderr.contains("cannot be recorded here") {
                true => Ok("`learn` says so".to_owned()),
                false => Err(format!("`learn` says: {}", learnt.stderr)),
            }
        });
    }
    let text = std::fs::read_to_string(&model).expect("it was written");
    let found: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(
        found["capabilities"], "CAP_CHOWN CAP_NET_BIND_SERVICE",
        "{found}"
    );
    assert_only_these_work(&lab, &PathBuf::from(&out), &done);
}

#[test]
fn a_killed_agent_takes_no_rule_with_it() {
    let lab = Lab::unprivileged();
    let text = policy_with(
        "disallow-create-user-ns",
        "Seccomp",
        "    auditViolations: true\n",
    );
    let policy = lab.policy(&text);
    let pidfile = lab.folder("work/pid");
    let rules = lab.scratch.file("rules.yaml", 0o644, RULES);
    let rules = rules.display().to_string();
    let verb = [
        "run",
        "-q",
        "--json",
        "-r",
        rules.as_str(),
        "-P",
        pidfile.as_str(),
    ];
    let mut command = lab.command(&verb, &policy, &["attempts=2500"]);
    let running = Limited::start(&mut command, LIMIT);
    let mut killed = Vec::new();
    let began = Instant::now();
    while killed.len() < 3 && began.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(100));
        let pid = std::fs::read_to_string(&pidfile).ok();
        let Some(pid) = pid.and_then(|text| text.trim().parse::<i32>().ok()) else {
            continue;
        };
        if !killed.contains(&pid) {
            let agent = Pid::from_raw(pid).expect("pids are positive");
            kill_process(agent, Signal::KILL).expect("it runs");
            killed.push(pid);
        }
    }
    let finished = running.finish(b"");
    assert_eq!(killed.len(), 3, "{}", finished.stderr);
    assert_eq!(outcomes(&finished.stdout)["attempts=2500"], 0);
    assert!(violations(&finished).len() > 100, "{}", finished.stderr);
}

/// What Landlock denies is recognized by what was decided at the start: the file of the policy is gone.
#[test]
fn denials_of_landlock_are_reported_by_the_agent_that_takes_over() {
    let lab = Lab::unprivileged();
    let text = format!(
        "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n    auditViolations: true\n    \
         bpfRawRules: {{files: [{{pattern: {}, permissions: [read]}}]}}\n",
        lab.folder("work/.ssh/id")
    );
    let policy = lab.policy(&text);
    let (pidfile, end) = (lab.folder("work/pid"), lab.folder("work/end"));
    let rules = lab.scratch.file("rules.yaml", 0o644, RULES);
    let rules = rules.display().to_string();
    let verb = ["run", "-q", "--json", "-r", &rules, "-P", &pidfile];
    let deeds = ["opens_for_long=%W/other/plain", "reads=%W/.ssh/id"];
    let mut command = lab.command(&verb, &policy, &deeds);
    command.env("VIOLATE_UNTIL", &end);
    let running = Limited::start(&mut command, LIMIT);
    let agent = |but: Option<i32>| {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let pid = std::fs::read_to_string(&pidfile).ok();
            let pid = pid.and_then(|text| text.trim().parse::<i32>().ok());
            if let Some(pid) = pid.filter(|pid| Some(*pid) != but) {
                return pid;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no agent but {but:?} wrote its pid");
    };
    let first = agent(None);
    std::fs::remove_file(&policy).expect("it is ours");
    let process = Pid::from_raw(first).expect("pids are positive");
    kill_process(process, Signal::KILL).expect("it runs");
    agent(Some(first));
    std::fs::write(&end, "").expect("the folder is writable");
    let finished = running.finish(b"");
    let denied = format!("reads={}", lab.folder("work/.ssh/id"));
    assert_eq!(
        outcomes(&finished.stdout)[&denied],
        EACCES,
        "{}",
        finished.stderr
    );
    let told = violations(&finished);
    assert_eq!(told.len(), 1, "{}", finished.stderr);
    assert_eq!(told[0]["output_fields"]["policy.enforcer"], "Landlock");
}

#[test]
fn of_20_starts_whose_command_is_the_attack_none_succeeds() {
    no_start_succeeds(20);
}

#[test]
fn of_200_starts_whose_command_is_the_attack_none_succeeds() {
    e2e::need_slow!();
    no_start_succeeds(200);
}

/// Starts the attack as the command so many times.
fn no_start_succeeds(starts: usize) {
    let lab = Lab::unprivileged();
    let policy = lab.policy(&policy("disallow-create-user-ns", "SeccompLandlockCaps"));
    for start in 0..starts {
        let found = lab.outcomes(&policy, &["user_clone"]);
        assert_eq!(found["user_clone"], EPERM, "start {start}");
    }
}

#[test]
fn nothing_runs_if_the_policy_cannot_be_put_in_force() {
    let lab = Lab::unprivileged();
    let cases = [
        (
            "disallow-mounts",
            "Seccomp",
            2,
            "did you mean `disallow-mount`?",
        ),
        (
            "disallow-access-kallsyms",
            "SeccompLandlockCaps",
            3,
            "disallow-access-kallsyms",
        ),
        ("disallow-mount", "BPF", 3, "  fix: "),
        (
            "disallow-mount",
            "AppArmor",
            3,
            "AppArmor: it cannot be used here",
        ),
        // What the peer ignores: targets, addresses, sockets with a path, single file systems.
        (
            "block-access-to-metadata-service",
            "SeccompLandlock",
            3,
            "an address is in memory",
        ),
        (
            "block-access-to-container-runtime",
            "SeccompLandlock",
            3,
            "by path",
        ),
        (
            "disallow-mount-procfs",
            "SeccompLandlock",
            3,
            "disallow-mount denies all",
        ),
    ];
    for (rule, enforcer, code, part) in cases {
        let finished = lab.enforce(&[], &lab.policy(&policy(rule, enforcer)), &["forks"]);
        assert_eq!(finished.code(), code, "{rule}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(part),
            "{rule}: {}",
            finished.stderr
        );
        assert_eq!(finished.stdout, "", "{rule} ran");
    }
    let text = policy("disallow-access-kallsyms", "SeccompLandlockCaps");
    let options = ["--accept-partial", "disallow-access-kallsyms"];
    let finished = lab.enforce(&options, &lab.policy(&text), &["forks"]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
}

#[test]
fn quiet_hides_no_way_past_that_was_not_accepted() {
    let lab = Lab::unprivileged();
    let rule = "disable-chmod-x-bit";
    // One becomes the command, the other watches it.
    for switches in ["", "    auditViolations: true\n"] {
        let file = lab.policy(&policy_with(rule, "Seccomp", switches));
        let open = lab.enforce(&[], &file, &["forks"]);
        assert_eq!(open.code(), 0, "{open:?}");
        let named = "[POLICY_PARTIAL]: enforced only partially: `disable-chmod-x-bit`;";
        assert!(open.stderr.contains(named), "{open:?}");
        assert_eq!(open.stderr.lines().count(), 1, "{open:?}");
        let accepted = lab.enforce(&["--accept-partial", rule], &file, &["forks"]);
        assert_eq!(
            (accepted.code(), accepted.stderr.as_str()),
            (0, ""),
            "{accepted:?}"
        );
    }
}

#[test]
fn audit_denies_nothing_and_tells_what_would_be() {
    let lab = Lab::unprivileged();
    let text = policy("disallow-create-user-ns", "SeccompLandlockCaps");
    let finished = lab.enforce(
        &["--audit", "--json"],
        &lab.policy(&text),
        &["user_unshare"],
    );
    assert_eq!(outcomes(&finished.stdout)["user_unshare"], 0);
    let told = violations(&finished);
    assert_eq!(told.len(), 1, "{}", finished.stderr);
    assert_eq!(
        told[0]["output_fields"]["policy.rule"],
        "disallow-create-user-ns"
    );
}

#[test]
fn engines_that_cannot_hold_a_call_enforce_and_say_that_they_cannot_report() {
    let lab = Lab::unprivileged();
    let quiet = policy("disallow-create-user-ns", "Seccomp");
    let policy = lab.policy(&quiet);
    let verb = ["run", "-q", "--engine", "ptrace"];
    let mut command = lab.command(&verb, &policy, &["user_unshare", "forks"]);
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    let found = outcomes(&finished.stdout);
    assert_eq!(
        (found["user_unshare"], found["forks"]),
        (EPERM, 0),
        "{}",
        finished.stderr
    );
    let text = policy_with(
        "disallow-create-user-ns",
        "Seccomp",
        "    auditViolations: true\n",
    );
    let policy = lab.policy(&text);
    let mut command = lab.command(&verb, &policy, &["forks"]);
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    assert!(finished.stderr.contains("notify"), "{}", finished.stderr);
}

#[test]
fn the_environment_of_processes_outside_is_out_of_reach_without_two_capabilities() {
    e2e::need_root!();
    let lab = Lab::new();
    let both = "policy:\n  enforcer: CapsLandlockSeccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                privileged: true\n    hardeningRules: [disallow-access-procfs-root, disable-cap-sys-admin]\n";
    let deed = lab.words(&["reads_environment=%O"]).remove(0);
    assert_eq!(lab.outcomes(&lab.policy(ALLOW), &[deed.as_str()])[&deed], 0);
    let deeds = [deed.as_str(), "own_status"];
    let bound = lab.outcomes(&lab.policy(both), &deeds);
    assert_eq!((bound[&deed], bound["own_status"]), (EACCES, 0));
}

/// D1 of the defects that the reference lists in the peer.
#[test]
fn disks_are_denied_though_their_rule_is_made_from_a_list() {
    e2e::need_root!();
    let table = std::fs::read_to_string("/proc/partitions").expect("proc is mounted");
    let names = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().nth(3));
    let disk = names
        .map(|name| format!("/dev/{name}"))
        .find(|path| std::fs::File::open(path).is_ok());
    let Some(disk) = disk else {
        e2e::skip!("needs a disk whose device file can be opened", || Ok(
            table.clone()
        ));
    };
    let lab = Lab::new();
    let deed = format!("reads={disk}");
    let deeds = [deed.as_str(), "writes=/dev/null"];
    assert_eq!(lab.outcomes(&lab.policy(ALLOW), &deeds)[&deed], 0);
    let text = policy("disallow-debug-disk-device", "Landlock");
    let bound = lab.outcomes(&lab.policy(&text), &deeds);
    assert_eq!((bound[&deed], bound["writes=/dev/null"]), (EACCES, 0));
}

/// D11: a raw rule that only reports does not undo what another one denies.
#[test]
fn a_rule_that_reports_does_not_weaken_one_that_denies() {
    let lab = Lab::unprivileged();
    let text = "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                privileged: true\n    hardeningRules: [disallow-create-user-ns]\n    \
                syscallRawRules:\n    - {names: [unshare], action: SCMP_ACT_LOG}\n";
    let found = lab.enforce(&["--json"], &lab.policy(text), &["user_unshare"]);
    assert_eq!(outcomes(&found.stdout)["user_unshare"], EPERM);
}

#[test]
fn raw_rules_kill_trap_and_refuse_as_they_say() {
    let lab = Lab::unprivileged();
    let cases = [
        ("action: SCMP_ACT_ERRNO, errnoRet: 95", 95),
        ("action: SCMP_ACT_KILL_PROCESS", 1031),
        ("action: SCMP_ACT_TRAP", 1031),
    ];
    for (action, expected) in cases {
        let text = format!(
            "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
             privileged: true\n    syscallRawRules:\n    - {{names: [unshare], {action}, args: \
             [{{index: 0, value: 268435456, valueTwo: 268435456, op: SCMP_CMP_MASKED_EQ}}]}}\n"
        );
        let found = lab.outcomes(&lab.policy(&text), &["user_unshare", "forks"]);
        assert_eq!(
            (found["user_unshare"], found["forks"]),
            (expected, 0),
            "{action}"
        );
    }
}
