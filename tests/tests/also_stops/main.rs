//! What rules stop besides what they are about: each of 280 ordinary operations is done with and without each rule
//! under each enforcer. What fails only with the rule is what the rule is about, or the program lists it under
//! "also stops". The quick part leaves out rules on single capabilities and others that resemble one another;
//! `TOLLGATE_TEST_SLOW=1` adds them.

mod expected;
mod guest;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Fixture, Limited, Scratch, need_root, slow};
use serde_json::Value;

use self::expected::Expected;

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

/// Folders of the machine, which the stage does not replace, in which operations make files.
const SHARED: [&str; 6] = [
    "/",
    "/dev/shm",
    "/tmp",
    "/usr/local",
    "/usr/local/bin",
    "/var/tmp",
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
    expected: Expected,
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
        let (program, workload) = (e2e::program(), Fixture::compile("ordinary"));
        let outside = Command::new("sleep")
            .arg("3600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            scratch: Scratch::new(),
            program,
            workload,
            outside: outside.expect("there is a program `sleep`"),
            expected: Expected::read(),
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
        self.remove_kept();
        assert_eq!(finished.code(), 0, "{verb:?}: {}", finished.stderr);
        outcomes(&finished.stdout)
    }

    /// Removes files that a policy let operations make and not remove.
    fn remove_kept(&self) {
        let begin = format!(".ordinary-{}-", self.outside.id());
        for folder in SHARED {
            let entries = fs::read_dir(folder).expect("it is there");
            for entry in entries.filter_map(Result::ok) {
                if entry.file_name().to_string_lossy().starts_with(&begin) {
                    let path = entry.path();
                    let removed = if path.is_dir() {
                        fs::remove_dir(&path)
                    } else {
                        fs::remove_file(&path)
                    };
                    removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                }
            }
        }
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
        let name = text(&rule["name"]);
        let policy = policy_of(rule, enforcers.0);
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
        let said = listed_by(parts.values());
        let program = self.program.to_str().expect("it is ours");
        let bound = self.run(&[program, "enforce", "-q", "--policy", policy, "--"]);
        let failed = failed(free, &bound);
        let unlisted = self.expected.unlisted(name, &said, &failed);
        assert!(
            unlisted.is_empty(),
            "{name} under {} stops more than it is about and lists {said:?}: {unlisted:?}",
            enforcers.0
        );
        Some(self.expected.shown(&said, &failed))
    }
}

/// A policy of one built-in rule.
fn policy_of(rule: &Value, enforcer: &str) -> String {
    let (name, list) = (text(&rule["name"]), text(&rule["list"]));
    let rules = match list {
        "attackProtectionRules" => format!("[{{rules: [{name}]}}]"),
        _ => format!("[{name}]"),
    };
    format!(
        "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    {list}: {rules}\n"
    )
}

/// The texts under "also stops" of enforcers that have a part in a rule.
fn listed_by<'p>(parts: impl Iterator<Item = &'p Value>) -> BTreeSet<String> {
    let lists = parts.filter_map(|part| part["also_stops"].as_array());
    lists.flatten().map(|said| text(said).to_owned()).collect()
}

/// The operations that fail only under a policy, with their errors.
fn failed<'o>(free: &Outcomes, bound: &'o Outcomes) -> Vec<(&'o str, i32)> {
    assert!(bound.keys().eq(free.keys()), "{bound:?}");
    let only_bound = bound
        .iter()
        .filter(|(name, error)| **error != 0 && free[*name] == 0);
    only_bound
        .map(|(name, error)| (name.as_str(), *error))
        .collect()
}

/// Parses what the workload prints.
fn outcomes(printed: &str) -> Outcomes {
    let line = |line: &str| {
        let (name, number) = line.rsplit_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    printed.lines().filter_map(line).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("it is a text")
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

/// Rules that compile to the same kind of entries as another rule.
const ALIKE: [&str; 12] = [
    "copy-fail-mitigation",
    "disable-busybox",
    "disable-cap-all-except-net-bind-service",
    "disable-cap-privileged",
    "disable-inet6",
    "disable-su-sudo",
    "disable-wget",
    "disable-write-skills",
    "disallow-abuse-user-ns",
    "disallow-write-release-agent",
    "mitigate-overlayfs-leak",
    "runc-override-mitigation",
];

/// Rules that one of the default enforcers leaves to another.
const LEFT: [&str; 4] = [
    "disable-network",
    "disallow-access-procfs-root",
    "disallow-mount",
    "disallow-umount",
];

/// Checks every second rule. Returns the number of runs, and the texts whose operations failed.
fn check_half(half: usize) -> (usize, BTreeSet<String>) {
    let lab = Lab::new();
    let free = lab.run(&[]);
    let done = free.values().filter(|error| **error == 0).count();
    assert!(done >= 200, "{done} of {} operations work here", free.len());
    let rules = lab.json(&["policy", "list", "--json"]);
    let rules = rules.as_array().or_else(|| rules["rules"].as_array());
    let rules = rules.expect("it is a list");
    assert_eq!(rules.len(), 98);
    let mut seen = BTreeSet::new();
    let mut runs = 0;
    for rule in rules.iter().skip(half).step_by(2) {
        let name = text(&rule["name"]);
        let is_quick = !is_of_one_capability(name) && !ALIKE.contains(&name);
        for enforcers in ENFORCERS {
            let is_quick = is_quick && (!enforcers.1.is_empty() || LEFT.contains(&name));
            if !is_quick && !slow() {
                continue;
            }
            let texts = lab.check(rule, enforcers, &free);
            runs += usize::from(texts.is_some());
            seen.extend(texts.into_iter().flatten());
        }
    }
    (runs, seen)
}

#[test]
fn what_a_rule_stops_besides_is_listed() {
    need_root!();
    let (runs, seen) = std::thread::scope(|scope| {
        let other = scope.spawn(|| check_half(1));
        let (runs, mut seen) = check_half(0);
        match other.join() {
            Ok((more, others)) => {
                seen.extend(others);
                (runs + more, seen)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    assert!(runs > 30, "{runs}");
    let is_seen = |begin: &str| seen.iter().any(|text| text.starts_with(begin));
    let stops = Expected::read().stops;
    // A domain scopes signals since Linux 6.12; before, it forbids mounts, as other rules do.
    let is_possible = |begin: &str| scopes_signals() || !begin.starts_with("signals");
    let mut stops = stops
        .iter()
        .filter(|(begin, operations)| !operations.is_empty() && is_possible(begin));
    let never = stops.find(|(begin, _)| !is_seen(begin));
    assert_eq!(never, None, "listed, and nothing of it fails");
}

fn scopes_signals() -> bool {
    let version = sys::landlock::version().expect("these tests need Landlock");
    version >= policy::compile::landlock::SCOPES
}

/// The rule on unmounting is left to Seccomp, but for Landlock's part in it: a domain that handles no files would stop
/// signals, which neither rule is about.
#[test]
fn a_policy_about_processes_and_mounts_stops_no_signals() {
    need_root!();
    let lab = Lab::new();
    let free = lab.run(&[]);
    let policy = "policy:\n  enforcer: SeccompLandlockCaps\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                  privileged: true\n    hardeningRules: [disallow-umount, disallow-access-procfs-root]\n";
    let policy = lab.scratch.file("policy.yaml", 0o644, policy);
    let policy = policy.to_str().expect("it is ours");
    let program = lab.program.to_str().expect("it is ours");
    let bound = lab.run(&[program, "enforce", "-q", "--policy", policy, "--"]);
    let of = |operation: &str| (free[operation], bound[operation] != 0);
    assert_eq!(of("signal_outside"), (0, false));
    assert_eq!(of("root_of_outside"), (0, true));
    assert_eq!(of("only_umount"), (0, true));
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
