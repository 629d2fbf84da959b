//! `tollgate policy`: what it says of policies, and that what it compiles is taken.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, Scratch};
use serde_json::Value;

fn tollgate(arguments: &[&str]) -> Finished {
    let mut command = Command::new(e2e::program());
    command.args(arguments).stdin(Stdio::null());
    Limited::start(&mut command, Duration::from_secs(60)).finish(b"")
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).expect("it prints JSON")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// A policy of vArmor with these enforcers and the body of `enhanceProtect`.
fn policy(enforcer: &str, body: &str) -> String {
    format!(
        "apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {{name: demo}}\nspec:\n  \
         target: {{kind: Pod, name: demo}}\n  policy:\n    enforcer: {enforcer}\n    \
         mode: EnhanceProtect\n    enhanceProtect:\n{body}"
    )
}

#[test]
fn a_good_policy_is_exit_0_a_wrong_one_2_and_one_that_nobody_carries_3() {
    let scratch = Scratch::new();
    let good = policy("Seccomp", "      hardeningRules: [disallow-mount]\n");
    let cases = [
        ("good.yaml", good.clone(), 0, "good.yaml: Ok"),
        (
            "name.yaml",
            good.replace("disallow-mount", "disalow-mount"),
            2,
            "did you mean `disallow-mount`?",
        ),
        (
            "field.yaml",
            good.replace("hardeningRules", "hardeningRule"),
            2,
            "field.yaml:10:7: error[POLICY_UNKNOWN_FIELD]",
        ),
        (
            "nobody.yaml",
            good.replace("disallow-mount", "disallow-access-kallsyms"),
            3,
            "add to `enforcer`: AppArmor (full), BPF (full)",
        ),
        (
            "targets.yaml",
            policy(
                "SeccompBPF",
                "      attackProtectionRules: [{rules: [disable-curl], targets: [/bin/sh]}]\n",
            ),
            3,
            "error[POLICY_TARGETS_IGNORED]",
        ),
    ];
    for (file, text, code, part) in cases {
        let path = scratch.file(file, 0o644, text);
        let finished = tollgate(&["policy", "check", name(&path)]);
        assert_eq!(finished.code(), code, "{file}: {}", finished.stdout);
        assert!(
            finished.stdout.contains(part),
            "{file}: {}",
            finished.stdout
        );
        assert_eq!(finished.stderr, "", "{file}");
    }
    let missing = tollgate(&["policy", "check", name(&scratch.path().join("none.yaml"))]);
    assert_eq!(missing.code(), 2);
    assert!(
        missing.stdout.contains("POLICY_FILE_READ"),
        "{}",
        missing.stdout
    );
}

#[test]
fn less_is_accepted_by_name_alone() {
    let scratch = Scratch::new();
    let text = policy(
        "Seccomp",
        "      hardeningRules: [disallow-access-kallsyms]\n",
    );
    let path = scratch.file("p.yaml", 0o644, text);
    let check = |rule: &str| {
        tollgate(&[
            "policy",
            "check",
            "--json",
            "--accept-partial",
            rule,
            name(&path),
        ])
    };
    let accepted = check("disallow-access-kallsyms");
    assert_eq!(accepted.code(), 0, "{}", accepted.stdout);
    let warnings = &json(&accepted)["files"][0]["warnings"];
    assert_eq!(warnings[0]["code"], "POLICY_ACCEPTED");
    let other = check("disallow-mount");
    assert_eq!(other.code(), 2, "{}", other.stdout);
    let errors = &json(&other)["files"][0]["errors"];
    assert!(
        errors.to_string().contains("POLICY_NOT_ACCEPTED"),
        "{errors}"
    );
}

#[test]
fn a_policy_accepts_what_is_partial_and_nothing_that_is_missing() {
    let scratch = Scratch::new();
    let accepting = |rule: &str, accepted: &str| {
        let body = format!("      attackProtectionRules: [{{rules: [{rule}]}}]\n");
        let accept = format!("    mode: EnhanceProtect\n    acceptPartial: [{accepted}]\n");
        let text = policy("Landlock", &body).replace("    mode: EnhanceProtect\n", &accept);
        assert!(text.contains("acceptPartial"), "{text}");
        let path = scratch.file("p.yaml", 0o644, text);
        tollgate(&["policy", "check", "--json", name(&path)])
    };
    let partial = accepting("disable-shell", "disable-shell");
    assert_eq!(partial.code(), 0, "{}", partial.stdout);
    assert_eq!(
        json(&partial)["files"][0]["warnings"],
        serde_json::json!([])
    );
    for (rule, accepted, code, problem) in [
        // No enforcer of the policy has a part in it.
        ("disable-tcp", "disable-tcp", 3, "POLICY_NO_ENFORCER"),
        ("disable-shell", "disable-shel", 2, "POLICY_NOT_ACCEPTED"),
    ] {
        let refused = accepting(rule, accepted);
        assert_eq!(refused.code(), code, "{}", refused.stdout);
        assert!(refused.stdout.contains(problem), "{}", refused.stdout);
    }
}

#[test]
fn a_policy_that_init_writes_starts_without_a_warning() {
    let scratch = Scratch::new();
    for kind in ["command", "service", "build", "untrusted"] {
        let path = scratch.path().join(format!("{kind}.yaml"));
        let init = tollgate(&["policy", "init", "--kind", kind, name(&path)]);
        assert_eq!(init.code(), 0, "{init:?}");
        let printed = tollgate(&["policy", "init", "--kind", kind, "-"]);
        let written = std::fs::read_to_string(&path).expect("it was written");
        assert_eq!(printed.stdout, written);
        let again = tollgate(&["policy", "init", "--kind", kind, name(&path)]);
        assert_eq!(again.code(), 2, "{again:?}");
        assert!(
            again.stderr.contains("replace it with --force"),
            "{again:?}"
        );
        let checked = tollgate(&["policy", "check", name(&path)]);
        assert_eq!(checked.stdout, format!("{}: Ok\n", name(&path)));
        // Nothing to execute but a program that needs no shell.
        let started = tollgate(&["enforce", "--policy", name(&path), "--", "true"]);
        assert_eq!(started.code(), 0, "{started:?}");
        assert!(!started.stderr.contains("warning"), "{started:?}");
        let denied = tollgate(&[
            "enforce",
            "-q",
            "--policy",
            name(&path),
            "--",
            "cat",
            "/etc/shadow",
        ]);
        assert_ne!(denied.code(), 0, "{denied:?}");
        let told = denied.stdout.clone() + &denied.stderr;
        assert!(told.contains("disable-access-shadow"), "{told}");
    }
}

#[test]
fn the_first_policy_of_the_how_to_starts_without_a_warning() {
    let page = e2e::repository().join("docs/howto/confine-a-command.md");
    let page = std::fs::read_to_string(page).expect("it is in the repository");
    let shown = page
        .lines()
        .skip_while(|line| *line != "    $ cat web.yaml")
        .skip(1);
    let lines = shown.take_while(|line| !line.trim_start().starts_with('$'));
    let text: String = lines.map(|line| line[4..].to_owned() + "\n").collect();
    assert!(text.starts_with("policy:"), "{text}");
    let scratch = Scratch::new();
    let path = scratch.file("web.yaml", 0o644, text);
    let started = tollgate(&["enforce", "--policy", name(&path), "--", "true"]);
    assert_eq!(started.code(), 0, "{started:?}");
    assert!(!started.stderr.contains("warning"), "{started:?}");
    assert!(started.stderr.contains("Seccomp"), "{started:?}");
}

#[test]
fn explain_and_check_are_short_unless_asked() {
    let scratch = Scratch::new();
    let body = "      attackProtectionRules: [{rules: [disable-shell, disable-tcp]}]\n";
    let path = scratch.file("p.yaml", 0o644, policy("LandlockSeccomp", body));
    let short = tollgate(&["policy", "explain", name(&path)]);
    let line = |rule: &str| {
        let found = short
            .stdout
            .lines()
            .find(|line| line.trim_start().starts_with(rule));
        let words = found.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.unwrap_or_else(|| panic!("no {rule} in {}", short.stdout))
    };
    assert_eq!(
        line("disable-shell"),
        "disable-shell partial deny: Landlock partial"
    );
    assert_eq!(line("disable-tcp"), "disable-tcp full deny: Seccomp full");
    assert_eq!(short.stderr, "");
    let checked = tollgate(&["policy", "check", name(&path)]);
    assert_eq!(checked.stdout.lines().count(), 2, "{}", checked.stdout);
    assert!(!checked.stdout.contains("Gaps"), "{}", checked.stdout);
    let long = tollgate(&["policy", "check", "--long", name(&path)]);
    assert!(long.stdout.contains("Gaps"), "{}", long.stdout);
}

#[test]
fn the_list_has_every_rule_with_a_grade_for_each_enforcer() {
    let list = json(&tollgate(&["policy", "list", "--json"]));
    let rules = list.as_array().expect("it is a list");
    assert_eq!(rules.len(), 98);
    for rule in rules {
        let enforcers = rule["enforcers"].as_object().expect("it has enforcers");
        assert_eq!(enforcers.len(), 5, "{rule}");
        for (enforcer, assessment) in enforcers {
            let is_full = assessment["grade"] == "full";
            let notes = assessment["not_covered"].as_array().expect("it has notes");
            assert_eq!(is_full, notes.is_empty(), "{enforcer} {rule}");
        }
    }
    let one = tollgate(&["policy", "list", "disable_ipv4"]);
    assert!(one.stdout.contains("::ffff:a.b.c.d"), "{}", one.stdout);
    let none = tollgate(&["policy", "list", "disable-ipv5"]);
    assert_eq!(none.code(), 2);
    assert!(none.stderr.contains("did you mean"), "{}", none.stderr);
}

/// Every built-in rule in one policy, for the programs of the enforcer to load.
fn everything(switches: &str, targets: &str) -> String {
    let list = json(&tollgate(&["policy", "list", "--json"]));
    let rules = list.as_array().expect("it is a list");
    let names = |key: &str| {
        let own = rules.iter().filter(|rule| rule["list"] == key);
        let names: Vec<_> = own
            .map(|rule| rule["name"].as_str().expect("a name"))
            .collect();
        names.join(", ")
    };
    policy(
        "Auto",
        &format!(
            "      hardeningRules: [{}]\n      attackProtectionRules:\n      - rules: [{}]\n        \
             targets: [{targets}]\n      vulMitigationRules: [{}]\n{switches}      bpfRawRules:\n        \
             files:\n        - {{qualifiers: [deny], pattern: '/o d#d/{{x,y}}/*.k', permissions: [all]}}\n        \
             mounts:\n        - {{qualifiers: [deny], sourcePattern: '/a/**', fstype: ext4, flags: [bind, ro, umount]}}\n",
            names("hardeningRules"),
            names("attackProtectionRules"),
            names("vulMitigationRules"),
        ),
    )
}

/// The parser needs no kernel that has AppArmor: it is told not to load.
fn parse_profile(text: &str) -> Result<(), String> {
    let mut child = Command::new("/usr/sbin/apparmor_parser")
        .args(["--skip-kernel-load", "--skip-cache"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            format!("cannot start apparmor_parser, which ./x test installs: {error}")
        })?;
    let mut input = child.stdin.take().expect("it is a pipe");
    input
        .write_all(text.as_bytes())
        .map_err(|error| error.to_string())?;
    drop(input);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn apparmor_takes_the_profile_of_every_rule_in_every_meaning() {
    let scratch = Scratch::new();
    for (audit, allow) in [(false, false), (true, false), (true, true), (false, true)] {
        for targets in ["", "/usr/bin/python3, /opt/a b/c"] {
            let switches =
                format!("      auditViolations: {audit}\n      allowViolations: {allow}\n");
            let path = scratch.file("all.yaml", 0o644, everything(&switches, targets));
            let explained = tollgate(&["policy", "explain", "--json", name(&path)]);
            let profile = &json(&explained)["policies"][0]["profiles"]["apparmor"];
            let profile = profile.as_str().expect("it is a text");
            // What is allowed in silence is in no profile.
            let is_there = profile.contains("# disable-cap-all");
            assert_eq!(is_there, audit || !allow, "{profile}");
            if let Err(problem) = parse_profile(profile) {
                panic!("audit {audit}, allow {allow}, for {targets:?}: {problem}\n{profile}");
            }
        }
    }
    let broken = "profile x { file, deny /a r }";
    assert!(
        parse_profile(broken).is_err(),
        "the parser finds what is wrong"
    );
}

#[test]
fn explain_shows_what_a_rule_compiles_to_for_each_enforcer() {
    let scratch = Scratch::new();
    let body = "      privileged: true\n      attackProtectionRules: [{rules: [disable-tcp]}]\n";
    let path = scratch.file("p.yaml", 0o644, policy("AppArmorBPFSeccomp", body));
    let explained = tollgate(&["policy", "explain", "--long", name(&path)]);
    assert_eq!(explained.code(), 0, "{}", explained.stderr);
    for part in [
        "policy demo: EnhanceProtect by Seccomp, AppArmor, BPF",
        "disable-tcp (built in): deny",
        "> socket(family == 2, type & 0xf == 0x1, protocol == 0) -> EPERM",
        "left to Seccomp, which enforces the rule in full",
        "> deny socket inet,inet6 stream 0,6,256,262",
    ] {
        assert!(
            explained.stdout.contains(part),
            "no {part:?} in {}",
            explained.stdout
        );
    }
    let only = tollgate(&["policy", "explain", "--enforcer", "landlock", name(&path)]);
    assert!(only.stdout.contains("Landlock: none"), "{}", only.stdout);
    assert!(!only.stdout.contains("AppArmor:"), "{}", only.stdout);
}
