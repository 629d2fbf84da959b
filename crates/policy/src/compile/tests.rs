//! Tests of compiled policies. The defects `D1` to `D11` were found in another enforcer of the same language.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use abi::{Capabilities, Errno, Syscall};
use proptest::prelude::*;
use yaml::Code as _;

use super::bpf::Key;
use super::landlock::{DeniedPath, DirectoryEntry, Tree, grants};
use super::seccomp::{Action, Profile};
use super::*;
use crate::restriction::{MountMatch, SocketMatch};

pub(super) fn policy(enforcer: &str, rules: &str) -> Policy {
    let text = format!(
        "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n{rules}"
    );
    let (mut policies, problems) = crate::load("p.yaml", &text);
    assert_eq!(problems, [], "{text}");
    policies.remove(0)
}

/// A policy of built-in rules, each in the list that it belongs to.
pub(super) fn of_builtins(enforcer: &str, names: &[&str]) -> Policy {
    let mut text = String::new();
    for class in [builtin::Class::Hardening, builtin::Class::Vulnerability] {
        let own = names
            .iter()
            .filter(|name| builtin::find(name).unwrap().class == class);
        let own: Vec<_> = own.copied().collect();
        text.push_str(&format!("    {}: [{}]\n", class.key(), own.join(", ")));
    }
    let attack = names
        .iter()
        .filter(|name| builtin::find(name).unwrap().class == builtin::Class::Attack);
    let attack: Vec<_> = attack.copied().collect();
    if !attack.is_empty() {
        text.push_str(&format!(
            "    attackProtectionRules: [{{rules: [{}]}}]\n",
            attack.join(", ")
        ));
    }
    policy(enforcer, &text)
}

pub(crate) fn check(
    policy: &Policy,
    accepted: &[String],
    machine: &MachineFeatures,
) -> Vec<Diagnostic> {
    NarrowedPolicy::new(policy, machine).check(accepted)
}

fn narrowed(policy: &Policy, machine: &MachineFeatures) -> Policy {
    (*NarrowedPolicy::new(policy, machine)).clone()
}

fn disks() -> MachineFeatures {
    MachineFeatures {
        disks: vec!["sda".to_owned(), "sda1".to_owned()],
        ..MachineFeatures::default()
    }
}

fn keys(name: &str) -> Vec<(RuleAction, Key)> {
    let profile = bpf::Profile::compile(&of_builtins("BPF", &[name]), &disks());
    let entries = profile.entries.into_iter();
    entries.map(|entry| (entry.verdict, entry.key)).collect()
}

#[test]
fn d1_rules_about_disks_deny() {
    for name in ["disallow-debug-disk-device", "disallow-mount-disk-device"] {
        let keys = keys(name);
        assert!(!keys.is_empty());
        assert!(
            keys.iter().all(|(verdict, _)| *verdict == RuleAction::Deny),
            "{name}"
        );
        let policy = of_builtins("AppArmor", &[name]);
        let text = apparmor::profile(&policy, &disks());
        for disk in ["\"/dev/sda\"", "\"/dev/sda1\""] {
            let denied = text
                .lines()
                .any(|l| l.trim().starts_with("deny ") && l.contains(disk));
            assert!(denied, "{text}");
        }
        let without = check(&policy, &[], &MachineFeatures::default());
        assert_eq!(without[0].code, Code::NoEnforcer, "no disk is no silence");
    }
}

#[test]
fn d2_no_key_is_a_namespace_and_new_user_namespaces_are_refused_with_capabilities() {
    let profile = Profile::compile(&of_builtins("SeccompCaps", &["disable-cap-net-raw"]));
    let new_user = [0x1000_0000, 0, 0, 0, 0, 0];
    for call in [Syscall::UNSHARE, Syscall::CLONE] {
        assert_eq!(
            profile.decide(call, &new_user).unwrap().action,
            Action::Refuse(Errno::EPERM)
        );
        assert_eq!(profile.decide(call, &[0; 6]), None);
    }
    let clone3 = profile.decide(Syscall::CLONE3, &[0; 6]).unwrap();
    assert_eq!(
        clone3.action,
        Action::Refuse(Errno::ENOSYS),
        "threads fall back to clone"
    );
    let alone = of_builtins("Caps", &["disable-cap-net-raw"]);
    let problem = &check(&alone, &[], &MachineFeatures::default())[0];
    assert_eq!(problem.code, Code::Partial);
    assert!(
        problem.message.contains("user namespace"),
        "{}",
        problem.message
    );
}

#[test]
fn d3_the_sockets_of_runtimes_are_denied_where_programs_connect() {
    let keys = keys("block-access-to-container-runtime");
    assert_eq!(keys.len(), 3);
    for (_, key) in keys {
        assert!(matches!(key, Key::Connect { .. }));
        assert!(key.hooks().contains(&"unix_stream_connect"));
        assert!(key.hooks().contains(&"unix_may_send"));
    }
}

#[test]
fn d4_tcp_and_udp_are_denied_whatever_protocol_the_caller_gives() {
    let tcp = Profile::compile(&of_builtins("Seccomp", &["disable-tcp"]));
    let udp = Profile::compile(&of_builtins("Seccomp", &["disable-udp"]));
    let refuses = |profile: &Profile, domain, kind, protocol| {
        profile
            .decide(Syscall::SOCKET, &[domain, kind, protocol, 0, 0, 0])
            .is_some()
    };
    for domain in [2, 10] {
        for protocol in [0, 6, 262] {
            assert!(refuses(&tcp, domain, 1 | 0x80000, protocol));
            assert!(!refuses(&udp, domain, 1, protocol));
        }
        for protocol in [0, 17, 136] {
            assert!(refuses(&udp, domain, 2 | 0x800, protocol));
            assert!(!refuses(&tcp, domain, 2, protocol));
        }
    }
    assert!(!refuses(&tcp, 1, 1, 0), "local sockets are another matter");
    let Key::Socket(socket) = &keys("disable-tcp")[0].1 else {
        panic!("it is about sockets");
    };
    assert!(socket.matches(2, 1, 0));
}

#[test]
fn d5_a_path_is_that_path_and_not_all_that_begin_with_it() {
    let Key::File { path, .. } = &keys("disable-access-passwd")[0].1 else {
        panic!("it is about files");
    };
    assert_eq!((path.prefix.as_str(), &path.suffix), ("/etc/passwd", &None));
    assert!(!path.pattern.matches("/etc/passwd-"));
}

#[test]
fn d6_programs_are_judged_by_what_is_executed_not_by_what_the_caller_says() {
    for (_, key) in keys("disable-shell") {
        assert!(matches!(key, Key::Exec { .. }));
        assert!(
            key.hooks().contains(&"mmap_file"),
            "ld.so maps what it runs"
        );
    }
    let text = apparmor::profile(&of_builtins("AppArmor", &["disable-shell"]), &disks());
    assert!(text.contains("deny \"/{,**/}sh\" mx,"), "{text}");
}

#[test]
fn d7_addresses_match_in_every_form_and_at_every_way_to_send() {
    let keys = keys("block-access-to-metadata-service");
    let hits = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        keys.iter().any(|(_, key)| key.matches_address(address, 80))
    };
    for address in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "100.96.0.96",
    ] {
        assert!(hits(address), "{address}");
    }
    for address in [
        "169.254.169.253",
        "::169.254.169.254",
        "fd00:ec2::255",
        "127.0.0.1",
    ] {
        assert!(!hits(address), "{address}");
    }
    let hooks = keys[0].1.hooks();
    assert_eq!(hooks, ["socket_connect", "socket_sendmsg"]);
}

#[test]
fn d8_capabilities_are_denied_whatever_else_the_task_has() {
    let [(RuleAction::Deny, Key::Capabilities(set))] = keys("disallow-abuse-user-ns")[..] else {
        panic!("one entry");
    };
    assert_eq!(set, Capabilities(1 << 21));
    let dropped = caps::Profile::compile(&of_builtins("Auto", &["disable-cap-privileged"]));
    assert_eq!(dropped.dropped.0.count_ones(), 27);
    assert!(dropped.no_new_privs);
}

#[test]
fn d9_writing_is_also_removing_and_changing_mode_owner_and_attributes() {
    let keys = keys("disable-write-etc");
    let hooks = keys[0].1.hooks();
    for hook in [
        "path_unlink",
        "path_truncate",
        "path_chmod",
        "path_chown",
        "inode_setxattr",
    ] {
        assert!(hooks.contains(&hook), "{hook}");
    }
    let policy = of_builtins("Landlock", &["disable-write-etc"]);
    let assessment = assess(&policy, &policy.rules[0], EnforcerKind::Landlock, &disks());
    assert_eq!(assessment.grade, Grade::Partial);
    assert!(
        assessment.notes[0].contains("owner"),
        "{:?}",
        assessment.notes
    );
}

#[test]
fn d10_mounts_are_judged_by_what_is_mounted_and_however_it_is_made() {
    let keys = keys("disallow-mount-cgroupfs");
    for fstype in ["cgroup", "cgroup2"] {
        let (_, key) = keys
            .iter()
            .find(|(_, key)| *key == Key::Mount(MountMatch::FileSystem(fstype.to_owned())))
            .unwrap();
        assert!(
            key.hooks().contains(&"sb_kern_mount"),
            "fsopen has no call of mount(2)"
        );
    }
    let all = Profile::compile(&of_builtins("Seccomp", &["disallow-mount"]));
    for name in [
        "mount",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
        "pivot_root",
    ] {
        let call = Syscall::from_name(name).unwrap();
        let args = [0, 0, 1, 0, 0, 0];
        assert!(all.decide(call, &args).is_some(), "{name}");
    }
    assert_eq!(
        all.decide(Syscall::OPEN_TREE, &[0; 6]),
        None,
        "without a clone nothing is mounted"
    );
}

#[test]
fn d11_a_rule_that_reports_does_not_undo_one_that_denies() {
    let policy = policy(
        "BPF",
        "    hardeningRules: [disallow-access-procfs-root]\n    bpfRawRules:\n      \
         ptrace: {qualifiers: [audit], permissions: [all]}\n",
    );
    let entries = bpf::Profile::compile(&policy, &disks()).entries;
    let verdicts: Vec<_> = entries.iter().map(|entry| entry.verdict).collect();
    assert_eq!(verdicts, [RuleAction::Deny, RuleAction::Audit]);
}

#[test]
fn every_rule_has_an_enforcer_and_those_without_kubernetes_say_so() {
    for rule in builtin::all() {
        let best = EnforcerKind::ALL
            .into_iter()
            .map(|e| assess_builtin(rule, e, &disks()).grade)
            .max();
        let asks_kubernetes = rule
            .restrictions
            .iter()
            .any(|r| r.to_string().contains("egress service"));
        assert_eq!(best == Some(Grade::None), asks_kubernetes, "{}", rule.name);
    }
}

/// The rules that `docs` list as available without privilege.
#[test]
fn rules_that_need_no_privilege_are_full_without_it() {
    for name in [
        "disallow-abuse-user-ns",
        "disallow-load-all-bpf-prog",
        "disallow-userfaultfd-creation",
        "disallow-mount",
        "disallow-umount",
        "mitigate-sa-leak",
        "disable-chmod-s-bit",
        "disable-network",
        "disable-inet6",
        "disable-unix-domain-socket",
        "disable-icmp",
        "disable-tcp",
        "disable-udp",
        "copy-fail-mitigation",
        "disable-cap-all",
        "dirty-pipe-mitigation",
    ] {
        let policy = of_builtins("SeccompLandlockCaps", &[name]);
        assert_eq!(check(&policy, &[], &disks()), [], "{name}");
    }
}

/// Observed: with CAP_SYS_ADMIN, the environment of an outside process can be read across the domain.
#[test]
fn processes_outside_are_out_of_reach_only_without_sys_admin() {
    let name = "disallow-access-procfs-root";
    let alone = of_builtins("SeccompLandlockCaps", &[name]);
    assert_eq!(check(&alone, &[], &disks()).len(), 1);
    let both = of_builtins("SeccompLandlockCaps", &[name, "disable-cap-sys-admin"]);
    assert_eq!(check(&both, &[], &disks()), []);
}

#[test]
fn what_nobody_carries_is_an_error_until_it_is_accepted_by_name() {
    let policy = of_builtins("Seccomp", &["disallow-access-kallsyms"]);
    let codes = |accepted: &[&str]| -> Vec<&'static str> {
        let accepted: Vec<String> = accepted.iter().map(|name| (*name).to_owned()).collect();
        let problems = check(&policy, &accepted, &disks());
        problems.iter().map(|problem| problem.code.name()).collect()
    };
    assert_eq!(codes(&[]), ["POLICY_NO_ENFORCER"]);
    assert_eq!(codes(&["disallow_access_kallsyms"]), ["POLICY_ACCEPTED"]);
    assert_eq!(
        codes(&["disable-shell"]),
        ["POLICY_NO_ENFORCER", "POLICY_NOT_ACCEPTED"]
    );
    let help = check(&policy, &[], &disks())[0].help.clone().unwrap();
    assert!(
        help.contains("AppArmor (partial)") && help.contains("BPF (full)"),
        "{help}"
    );
}

#[test]
fn an_enforcer_that_does_not_work_is_named_and_not_recommended() {
    let machine = MachineFeatures {
        unavailable: [EnforcerKind::Bpf, EnforcerKind::AppArmor]
            .map(|enforcer| Unavailable {
                enforcer,
                why: "there is no such thing".to_owned(),
            })
            .into(),
        ..disks()
    };
    let without = |mut policy: Policy| {
        policy.enforcers = Enforcers::default();
        check(&policy, &[], &machine).remove(0)
    };
    let problem = without(of_builtins("BPF", &["disallow-mount"]));
    assert_eq!(
        problem.message,
        "cannot enforce `disallow-mount`: BPF: it cannot be used here: there is no such thing. \
         AppArmor: it cannot be used here: there is no such thing"
    );
    let help = problem.help.unwrap();
    assert!(help.contains("Seccomp (full)"), "{help}");
    assert!(
        !help.contains("BPF") && !help.contains("AppArmor"),
        "{help}"
    );
    let rules = "    attackProtectionRules: [{rules: [disable-curl], targets: [/bin/sh]}]\n";
    let problem = without(policy("AppArmor", rules));
    assert_eq!(problem.code, Code::TargetsIgnored);
    assert!(
        problem
            .message
            .ends_with("cannot be used here: there is no such thing")
    );
}

#[test]
fn what_no_failed_call_shows_is_listed_once() {
    let rules = "    hardeningRules: [disable-cap-privileged]\n    auditViolations: true\n";
    let machine = MachineFeatures {
        watches: true,
        held: Some(Capabilities::ALL),
        ..disks()
    };
    let problem = &check(&policy("SeccompCaps", rules), &[], &machine)[0];
    assert_eq!(problem.code, Code::Partial);
    let (_, list) = problem.message.split_once("Caps: ").unwrap();
    let mut parts: Vec<&str> = list
        .strip_prefix("a denial is not reported ")
        .unwrap()
        .split("; ")
        .collect();
    assert!(parts.len() > 5, "{list}");
    assert!(parts.iter().all(|part| part.starts_with("of ")), "{list}");
    let all = parts.len();
    parts.dedup();
    assert_eq!(parts.len(), all, "{list}");
}

#[test]
fn names_that_lead_past_an_enforcer_make_a_rule_partial() {
    let of = |kind, enforcer, rule: &str| {
        let name = OtherName {
            kind,
            text: "/x is it".to_owned(),
        };
        let machine = MachineFeatures {
            other_names: BTreeMap::from([(rule.to_owned(), BTreeSet::from([name]))]),
            ..disks()
        };
        let found = assess_builtin(builtin::find(rule).unwrap(), enforcer, &machine);
        match found.notes.contains(&"/x is it".to_owned()) {
            true => Grade::Partial,
            false => Grade::Full,
        }
    };
    use Grade::{Full, Partial};
    for (kind, landlock, apparmor, bpf) in [
        (NameKind::Mount, Full, Partial, Full),
        (NameKind::Layer, Full, Partial, Partial),
        (NameKind::Link, Full, Partial, Partial),
        (NameKind::Unknown, Partial, Partial, Partial),
        (NameKind::Namespace, Partial, Partial, Full),
    ] {
        let grade = |enforcer| of(kind, enforcer, "disable-access-shadow");
        assert_eq!(grade(EnforcerKind::Landlock), landlock, "{kind:?}");
        assert_eq!(grade(EnforcerKind::AppArmor), apparmor, "{kind:?}");
        assert_eq!(grade(EnforcerKind::Bpf), bpf, "{kind:?}");
    }
    // A filter does not enforce anything about files, and stays unchanged.
    assert_eq!(
        of(NameKind::Link, EnforcerKind::Seccomp, "disable-network"),
        Full
    );
}

/// The grade of mitigate-sa-leak together with other rules, for one of these enforcers.
fn token_beside(
    enforcers: &str,
    others: &[&str],
    by: EnforcerKind,
    machine: &MachineFeatures,
) -> Grade {
    let rules: Vec<&str> = others.iter().copied().chain(["mitigate-sa-leak"]).collect();
    let policy = of_builtins(enforcers, &rules);
    let mut own = policy.rules.iter();
    let rule = own.find(|rule| rule.id == "mitigate-sa-leak").unwrap();
    assess(&policy, rule, by, machine).grade
}

#[test]
fn a_path_holds_where_nothing_can_be_mounted() {
    let of = |enforcers: &str, others: &[&str]| {
        token_beside(enforcers, others, EnforcerKind::AppArmor, &disks())
    };
    assert_eq!(of("AppArmor", &[]), Grade::Partial);
    // AppArmor does not observe all ways to mount.
    assert_eq!(of("AppArmor", &["disallow-mount"]), Grade::Partial);
    assert_eq!(of("AppArmorSeccomp", &["disallow-mount"]), Grade::Full);
    assert_eq!(of("AppArmorSeccomp", &["disallow-umount"]), Grade::Partial);
}

#[test]
fn links_of_what_a_pattern_means_are_a_way_past_rules_by_path() {
    let is_said = |name: &str, enforcer| {
        let found = assess_builtin(builtin::find(name).unwrap(), enforcer, &disks());
        let is_said = found.notes.concat().contains("hard link");
        assert!(!is_said || found.grade == Grade::Partial, "{name}");
        is_said
    };
    for enforcer in [EnforcerKind::Bpf, EnforcerKind::AppArmor] {
        for name in ["disable-access-ssh-dir", "runc-override-mitigation"] {
            assert!(is_said(name, enforcer), "{name}");
        }
        // One file, whose links are searched; and files that have none.
        for name in [
            "disable-access-shadow",
            "mitigate-overlayfs-leak",
            "disallow-write-release-agent",
        ] {
            assert!(!is_said(name, enforcer), "{name}");
        }
    }
    assert!(!is_said("disable-access-ssh-dir", EnforcerKind::Landlock));
}

#[test]
fn directories_above_a_path_keep_their_names_under_apparmor() {
    let text = |name: &str| apparmor::profile(&of_builtins("AppArmor", &[name]), &disks());
    let token = text("mitigate-sa-leak");
    for folder in [
        "/run/",
        "/run/secrets/",
        "/var/run/secrets/kubernetes.io/serviceaccount/",
    ] {
        assert!(token.contains(&format!("deny \"{folder}\" w,")), "{token}");
    }
    let shadow = text("disable-access-shadow");
    assert!(
        shadow.contains("deny \"/etc/\" w,") && !shadow.contains("\"/\""),
        "{shadow}"
    );
    let renamed = |name: &str| {
        let builtin = builtin::find(name).unwrap();
        let notes = assess_builtin(builtin, EnforcerKind::AppArmor, &disks()).notes;
        notes.concat().contains("can be renamed")
    };
    assert!(renamed("disable-access-ssh-dir") && renamed("cgroups-lxcfs-escape-mitigation"));
    assert!(!renamed("runc-override-mitigation") && !renamed("disallow-write-release-agent"));
}

#[test]
fn another_mount_namespace_is_a_way_for_those_who_can_enter_it() {
    let name = OtherName {
        kind: NameKind::Namespace,
        text: "/x".to_owned(),
    };
    let rule = "mitigate-sa-leak".to_owned();
    let of = |enforcers: &str, others: &[&str], held| {
        let machine = MachineFeatures {
            held,
            other_names: BTreeMap::from([(rule.clone(), BTreeSet::from([name.clone()]))]),
            ..disks()
        };
        token_beside(enforcers, others, EnforcerKind::Landlock, &machine)
    };
    let all = Some(Capabilities::ALL);
    assert_eq!(of("Landlock", &[], all), Grade::Partial);
    assert_eq!(of("Landlock", &[], None), Grade::Partial);
    assert_eq!(of("Landlock", &[], Some(Capabilities(1))), Grade::Full);
    assert_eq!(
        of("LandlockCaps", &["disable-cap-sys-admin"], all),
        Grade::Full
    );
    assert_eq!(
        of("LandlockCaps", &["disable-cap-chown"], all),
        Grade::Partial
    );
}

#[test]
fn targets_need_an_enforcer_that_tells_programs_apart() {
    let rules = "    attackProtectionRules: [{rules: [disable-curl], targets: [/bin/sh]}]\n";
    let problems = check(&policy("SeccompBPF", rules), &[], &disks());
    assert_eq!(problems[0].code, Code::TargetsIgnored);
    let with = policy("AppArmorBPF", rules);
    assert!(
        check(&with, &[], &disks())
            .iter()
            .all(|p| p.code == Code::Partial)
    );
    let text = apparmor::profile(&with, &disks());
    let (general, own) = text.split_once("profile target0").unwrap();
    assert!(!general.contains("curl") && own.contains("curl"), "{text}");
}

/// Enforcer, rule, the switches `allowViolations` and `auditViolations`; the grade, and part of what is compiled.
const MEANINGS: &[(&str, &str, bool, bool, Grade, &str)] = &[
    (
        "Seccomp",
        "copy-fail-mitigation",
        false,
        false,
        Grade::Full,
        "-> EPERM",
    ),
    (
        "Seccomp",
        "copy-fail-mitigation",
        false,
        true,
        Grade::Full,
        "-> EPERM and report",
    ),
    (
        "Seccomp",
        "copy-fail-mitigation",
        true,
        true,
        Grade::Full,
        "-> report",
    ),
    (
        "Seccomp",
        "copy-fail-mitigation",
        true,
        false,
        Grade::Full,
        "",
    ),
    (
        "AppArmor",
        "disable-access-shadow",
        false,
        false,
        Grade::Partial,
        "deny \"/etc/shadow",
    ),
    (
        "AppArmor",
        "disable-access-shadow",
        false,
        true,
        Grade::Partial,
        "audit deny \"/etc/shadow",
    ),
    (
        "AppArmor",
        "disable-access-shadow",
        true,
        true,
        Grade::Partial,
        "audit \"/etc/shadow",
    ),
    (
        "AppArmor",
        "disable-access-shadow",
        true,
        false,
        Grade::Full,
        "",
    ),
    (
        "BPF",
        "disable-access-shadow",
        false,
        false,
        Grade::Full,
        "deny file",
    ),
    (
        "BPF",
        "disable-access-shadow",
        false,
        true,
        Grade::Full,
        "deny and audit file",
    ),
    (
        "BPF",
        "disable-access-shadow",
        true,
        true,
        Grade::Full,
        "audit file",
    ),
    ("BPF", "disable-access-shadow", true, false, Grade::Full, ""),
    (
        "Landlock",
        "disable-access-shadow",
        false,
        false,
        Grade::Partial,
        "withhold",
    ),
    (
        "Landlock",
        "disable-access-shadow",
        false,
        true,
        Grade::Partial,
        "withhold",
    ),
    (
        "Landlock",
        "disable-access-shadow",
        true,
        true,
        Grade::None,
        "",
    ),
    (
        "Landlock",
        "disable-access-shadow",
        true,
        false,
        Grade::Full,
        "",
    ),
    ("Caps", "disable-cap-all", true, true, Grade::None, ""),
    ("Caps", "disable-cap-all", true, false, Grade::Full, ""),
];

/// Rows: enforcer, verdict, grade, and a part of what it compiles to.
#[test]
fn the_four_meanings_hold_on_every_enforcer() {
    let rule = |enforcer: &str, name: &str, allow: bool, audit: bool| {
        let mut policy = of_builtins(enforcer, &[name]);
        policy.rules[0].verdict = RuleAction::from_switches(allow, audit);
        let enforcer = policy.enforcers.iter().next().unwrap();
        assess(&policy, &policy.rules[0], enforcer, &disks())
    };
    for &(enforcer, name, allow, audit, grade, output) in MEANINGS {
        let found = rule(enforcer, name, allow, audit);
        assert_eq!(found.grade, grade, "{enforcer} {allow} {audit}");
        match output {
            "" => assert_eq!(found.output, [""; 0], "{enforcer} {allow} {audit}"),
            part => assert!(found.output[0].contains(part), "{:?}", found.output),
        }
        if let ("Seccomp", "-> EPERM") = (enforcer, output) {
            assert!(found.output[0].ends_with("EPERM"));
        }
    }
}

/// The filter of a policy that denies one call for all arguments.
fn without(call: Syscall, switches: &str) -> Profile {
    let rule = format!(
        "{switches}    syscallRawRules:\n    - {{names: [{call}], action: SCMP_ACT_ERRNO}}\n"
    );
    Profile::compile(&policy("Seccomp", &rule))
}

/// The calls for rings that a filter refuses.
fn refused_rings(profile: &Profile) -> usize {
    let is_refused = |call: &Syscall| {
        let rule = profile.decide(*call, &[0; 6]);
        rule.is_some_and(|rule| rule.action == Action::Refuse(Errno::EPERM))
    };
    abi::RING_CALLS
        .iter()
        .filter(|call| is_refused(call))
        .count()
}

#[test]
fn no_ring_does_what_the_filter_refuses() {
    let profile = Profile::compile(&of_builtins("Seccomp", &["disable-network"]));
    assert!(profile.refuse_foreign);
    assert_eq!(refused_rings(&profile), 3);
    let mut denied = 0;
    for operation in abi::RING_OPERATIONS {
        for call in operation.calls {
            let rings = refused_rings(&without(*call, ""));
            assert_eq!(rings, 3, "{} does {call}", operation.name);
            denied += 1;
        }
    }
    assert!(denied > 90, "{denied}");
    // No opcode loads a module today; a newer kernel's may.
    let other = Profile::compile(&of_builtins("Seccomp", &["disallow-insmod"]));
    assert_eq!(refused_rings(&other), 3);
}

#[test]
fn rings_stay_where_nothing_is_denied_that_one_could_do() {
    let mut spared = Vec::new();
    for call in Syscall::all().filter(|call| !abi::RING_CALLS.contains(call)) {
        match refused_rings(&without(call, "")) {
            0 => spared.push(call),
            rings => assert_eq!(rings, 3, "{call}"),
        }
    }
    assert!(spared.iter().all(|call| abi::is_harmless(*call, None)));
    assert!(spared.contains(&Syscall::GETPID));
    let audited = "    allowViolations: true\n    auditViolations: true\n";
    assert_eq!(refused_rings(&without(Syscall::SOCKET, audited)), 0);
}

#[test]
fn profiles_that_allow_are_taken_as_written_or_said_to_be_missing() {
    let load = |part: &str, enforcer: &str| {
        let text = format!(
            "policy:\n  enforcer: {enforcer}\n  mode: DefenseInDepth\n  defenseInDepth:\n    {part}\n"
        );
        let (mut policies, problems) = crate::load("p.yaml", &text);
        assert_eq!(problems, []);
        policies.remove(0)
    };
    let custom = load(
        "appArmor: {profileType: Custom, customProfile: 'profile x { file, }', \
         appArmorRawRules: [{rules: 'deny /a r,'}]}",
        "AppArmor",
    );
    assert_eq!(check(&custom, &[], &disks()), []);
    let text = apparmor::profile(&custom, &disks());
    assert!(text.starts_with("profile x { file, "), "{text}");
    assert!(text.contains("deny /a r,\n}"), "{text}");
    let model = load("seccomp: {profileType: BehaviorModel}", "Seccomp");
    let problem = check(&model, &[], &disks()).remove(0);
    assert_eq!(problem.code, Code::NoEnforcer);
    let help = problem.help.unwrap();
    assert!(
        help.contains("ArmorProfileModel") && help.contains("tollgate learn"),
        "{help}"
    );
    // A profile without its enforcer confines nothing.
    let without = MachineFeatures {
        unavailable: vec![Unavailable {
            enforcer: EnforcerKind::AppArmor,
            why: "it is a test".to_owned(),
        }],
        ..disks()
    };
    let problem = check(&custom, &[], &without).remove(0);
    assert_eq!(problem.code, Code::NoEnforcer, "{problem:?}");
}

/// The profile of a policy in the mode `DefenseInDepth`, with further documents before it.
fn of_profile(documents: &str, seccomp: &str) -> Profile {
    let text = format!(
        "{documents}policy:\n  enforcer: Seccomp\n  mode: DefenseInDepth\n  defenseInDepth:\n    seccomp: {{{seccomp}}}\n"
    );
    let (policies, problems) = crate::load("p.yaml", &text);
    assert_eq!(problems, [], "{text}");
    assert_eq!(check(&policies[0], &[], &disks()), [], "{text}");
    Profile::compile(&policies[0])
}

#[test]
fn a_custom_seccomp_profile_denies_what_it_does_not_allow() {
    let custom = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
        {"names": ["read", "execve", "a_call_of_tomorrow"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]}"#
        .replace('\n', " ");
    let raw = "syscallRawRules: [{names: [mount], action: SCMP_ACT_ALLOW}]";
    let profile = of_profile(
        "",
        &format!("profileType: Custom, customProfile: '{custom}', {raw}"),
    );
    let denied = |call: Syscall, first: u64| {
        let rule = profile.decide(call, &[first, 0, 0, 0, 0, 0]);
        rule.map(|rule| rule.action)
    };
    let refused = |errno| Some(Action::RefuseAndReport(Errno(errno)));
    assert_eq!(denied(Syscall::READ, 0), None);
    assert_eq!(denied(Syscall::EXECVE, 0), None);
    assert_eq!(denied(Syscall::MOUNT, 0), None, "the policy adds it");
    assert_eq!(denied(Syscall::WRITE, 0), refused(38));
    assert_eq!(denied(Syscall::UMOUNT2, 0), refused(38));
    assert_eq!(denied(Syscall::PERSONALITY, 0), None);
    assert_eq!(denied(Syscall::PERSONALITY, 8), None);
    assert_eq!(denied(Syscall::PERSONALITY, 9), refused(38));
    assert_eq!(denied(Syscall::CLONE, 0x11), None);
    assert_eq!(denied(Syscall::CLONE, 0x1000_0011), refused(38));
    assert_eq!(denied(Syscall::PTRACE, 0), refused(13));
    // A profile that cannot be read is an error, not an empty one.
    for broken in [
        "no profile",
        r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_TRACE"}]}"#,
        r#"{"defaultAction": "SCMP_ACT_ERRNO", "listenerPath": "/x"}"#,
        r#"{"syscalls": []}"#,
    ] {
        let text = format!(
            "policy:\n  enforcer: Seccomp\n  mode: DefenseInDepth\n  defenseInDepth:\n    \
             seccomp: {{profileType: Custom, customProfile: '{broken}'}}\n"
        );
        let (_, problems) = crate::load("p.yaml", &text);
        assert!(problems.iter().any(Diagnostic::is_error), "{broken}");
        assert!(
            problems.iter().all(|problem| problem.location.line == 5),
            "{problems:?}"
        );
    }
}

#[test]
fn a_profile_of_a_model_allows_what_was_recorded() {
    let model = |name: &str, data: &str| {
        format!(
            "apiVersion: crd.varmor.org/v1beta1\nkind: ArmorProfileModel\nmetadata: {{name: {name}}}\n\
             storageType: CRDInternal\ndata: {{{data}}}\n---\n"
        )
    };
    let recorded = "dynamicResult: {seccomp: {syscalls: [accept4, listen]}}";
    let profile = of_profile(
        &model("varmor-ns-web", recorded),
        "profileType: BehaviorModel",
    );
    let is_denied = |profile: &Profile, call| profile.decide(call, &[0; 6]).is_some();
    for call in [
        Syscall::ACCEPT4,
        Syscall::LISTEN,
        Syscall::OPENAT,
        Syscall::FUTEX,
    ] {
        assert!(!is_denied(&profile, call), "{call}");
    }
    assert!(is_denied(&profile, Syscall::PTRACE) && is_denied(&profile, Syscall::ACCEPT));
    // The profile that vArmor made of it, where there is one.
    let made = r#"profile: {name: varmor-ns-p, enforcer: AppArmorSeccomp, mode: enforce, seccomp: '{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["listen"], "action": "SCMP_ACT_ALLOW"}]}'}"#;
    let of_others = model("varmor-ns-other", recorded);
    let both = of_others + &model("varmor-ns-p", made);
    let profile = of_profile(&both, "profileType: BehaviorModel");
    assert!(!is_denied(&profile, Syscall::LISTEN));
    assert!(is_denied(&profile, Syscall::ACCEPT4), "another workload's");
    let elsewhere = model("x", "").replace("CRDInternal", "LocalDisk");
    let (_, problems) = crate::load("p.yaml", &elsewhere);
    assert!(problems[0].message.contains("LocalDisk"), "{problems:?}");
}

#[test]
fn patterns_cannot_leave_their_place_in_a_profile() {
    let policy = policy(
        "AppArmor",
        "    bpfRawRules:\n      files:\n      - {qualifiers: [deny], permissions: [r], \
         pattern: '/a} capability, {b#c'}\n",
    );
    let text = apparmor::profile(&policy, &disks());
    assert!(
        text.contains(r#"deny "/a\} capability\, \{b#c" r,"#),
        "{text}"
    );
}

/// Reference implementation of each rule, written by hand from the meaning of the calls.
fn violates(name: &str, call: Syscall, args: &[u64; 6]) -> bool {
    let low = |index: usize| args[index] & 0xffff_ffff;
    let makes_socket = matches!(call.name(), "socket" | "socketpair");
    let socket = |domains: &[u64], kinds: &[u64], protocols: &[u64]| {
        let has = |list: &[u64], value| list.is_empty() || list.contains(&value);
        makes_socket && has(domains, low(0)) && has(kinds, low(1) % 16) && has(protocols, low(2))
    };
    let mode = |bits: u64| match call.name() {
        "chmod" | "fchmod" | "creat" | "mknod" => low(1) & bits != 0,
        "fchmodat" | "fchmodat2" | "mknodat" => low(2) & bits != 0,
        "mq_open" => low(1) & 0o20_000_100 != 0 && low(2) & bits != 0,
        "open" => low(1) & 0o20_000_100 != 0 && low(2) & bits != 0,
        "openat" => low(2) & 0o20_000_100 != 0 && low(3) & bits != 0,
        "openat2" => true,
        _ => false,
    };
    match name {
        "disable-network" => makes_socket,
        // SMC, RDS and RxRPC go over IPv6, TCP and UDP.
        "disable-inet6" => socket(&[10, 21, 33, 43], &[], &[]),
        "disable-tcp" => socket(&[2, 10], &[1], &[0, 6, 256, 262]) || socket(&[21, 43], &[], &[]),
        "disable-udp" => socket(&[2, 10], &[2], &[0, 17, 136]) || socket(&[33], &[], &[]),
        "disable-icmp" => socket(&[2, 10], &[3], &[]) || socket(&[2, 10], &[2], &[1, 58]),
        "disable-chmod-x-bit" => mode(0o111),
        "disable-chmod-s-bit" => mode(0o6000),
        "disallow-create-user-ns" => match call.name() {
            "unshare" | "clone" => low(0) & 0x1000_0000 != 0,
            "setns" => low(1) & 0x1000_0000 != 0 || low(1) == 0,
            "clone3" => true,
            _ => false,
        },
        "disallow-load-bpf-via-setsockopt" => {
            call.name() == "setsockopt"
                && (low(1) == 1 && matches!(low(2), 26 | 50 | 51 | 52)
                    || low(1) == 263 && low(2) == 22)
        }
        other => panic!("{other} has no meaning here"),
    }
}

const RULES: [&str; 9] = [
    "disable-network",
    "disable-inet6",
    "disable-tcp",
    "disable-udp",
    "disable-icmp",
    "disable-chmod-x-bit",
    "disable-chmod-s-bit",
    "disallow-create-user-ns",
    "disallow-load-bpf-via-setsockopt",
];

const CALLS: [&str; 18] = [
    "mq_open",
    "socket",
    "socketpair",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "creat",
    "mknod",
    "mknodat",
    "open",
    "openat",
    "openat2",
    "unshare",
    "clone",
    "clone3",
    "setns",
    "setsockopt",
];

/// Values near those of the rules, sometimes with random bits in the upper half.
fn register() -> impl Strategy<Value = u64> {
    let low = prop_oneof![
        Just(0_u64),
        Just(1),
        Just(2),
        Just(10),
        Just(0x801),
        Just(0x80002),
        Just(3),
        Just(6),
        Just(17),
        Just(26),
        Just(33),
        Just(43),
        Just(50),
        Just(58),
        Just(262),
        Just(263),
        Just(22),
        Just(0o100),
        Just(0o755),
        Just(0o644),
        Just(0o4644),
        Just(0o20_200_000),
        Just(0x1000_0000),
        any::<u32>().prop_map(u64::from),
    ];
    (
        low,
        prop_oneof![3 => Just(0_u64), 1 => any::<u32>().prop_map(u64::from)],
    )
        .prop_map(|(low, high)| low | high << 32)
}

proptest! {
    /// The filter refuses a call exactly if some rule denies it.
    #[test]
    fn a_filter_means_what_its_rules_mean(
        chosen in prop::sample::subsequence(RULES.to_vec(), 1..4),
        name in prop::sample::select(CALLS.to_vec()),
        args in prop::array::uniform6(register()),
    ) {
        let profile = Profile::compile(&of_builtins("Seccomp", &chosen));
        let call = Syscall::from_name(name).unwrap();
        let expected = chosen.iter().any(|rule| violates(rule, call, &args));
        prop_assert_eq!(profile.decide(call, &args).is_some(), expected);
    }

    /// OCI: comparisons of different arguments must all hold; if any argument comes twice, each
    /// comparison stands alone.
    #[test]
    fn raw_rules_mean_what_the_oci_specification_says(
        tests in prop::collection::vec((0_usize..3, 0_usize..7, 0_u64..5, 0_u64..5), 1..4),
        args in prop::array::uniform6(0_u64..6),
    ) {
        let operators = ["NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"];
        let texts: Vec<_> = tests.iter().map(|(index, op, value, second)| format!(
            "{{index: {index}, op: SCMP_CMP_{}, value: {value}, valueTwo: {second}}}", operators[*op]
        )).collect();
        let text = format!(
            "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
             privileged: true\n    syscallRawRules:\n    - {{names: [kcmp], action: SCMP_ACT_ERRNO, \
             args: [{}]}}\n", texts.join(", ")
        );
        let holds = |(index, op, value, second): &(usize, usize, u64, u64)| {
            let register = args[*index];
            match operators[*op] {
                "NE" => register != *value,
                "LT" => register < *value,
                "LE" => register <= *value,
                "EQ" => register == *value,
                "GE" => register >= *value,
                "GT" => register > *value,
                _ => register & value == second & value,
            }
        };
        let twice = (0..3).any(|i| tests.iter().filter(|(index, ..)| *index == i).count() > 1);
        let expected = if twice { tests.iter().any(holds) } else { tests.iter().all(holds) };
        let (policies, problems) = crate::load("p.yaml", &text);
        if problems.is_empty() {
            let profile = Profile::compile(&policies[0]);
            prop_assert_eq!(profile.decide(Syscall::KCMP, &args).is_some(), expected);
        } else {
            // Only comparisons that can never hold are refused.
            prop_assert!(!expected, "{:?}", problems);
        }
    }

    /// Every path outside of the holes has all rights, and no path in a hole has a right that the hole
    /// withholds.
    #[test]
    fn grants_leave_out_the_holes_and_nothing_beside_them(
        holes in prop::collection::vec((0_usize..FILES.len(), 1_u64..=0xffff), 0..4),
    ) {
        let denied: Vec<DeniedPath> = holes
            .iter()
            .map(|(at, rights)| DeniedPath { path: FILES[*at].to_owned(), rights: *rights })
            .collect();
        let given = grants(&denied, &Files);
        for path in FILES.iter().filter(|path| Files.is_file(path)) {
            let rights = given
                .iter()
                .filter(|grant| below(path, &grant.path))
                .fold(0, |sum, grant| sum | grant.rights);
            let taken = denied
                .iter()
                .filter(|hole| below(path, &hole.path))
                .fold(0, |sum, hole| sum | hole.rights);
            prop_assert_eq!(rights & taken, 0, "{} reaches into a hole", path);
            // Execute, write, read, truncate, ioctl: the rights that a file can have.
            prop_assert_eq!(rights & 0xc007, 0xc007 & !taken, "{} lost a right", path);
        }
    }
}

/// A small file system: files, and the folders above them.
const FILES: [&str; 9] = [
    "/",
    "/etc",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/ssh/key",
    "/etc/ssh",
    "/bin/sh",
    "/run/x",
    "/run/y/z",
];

struct Files;

impl Files {
    fn is_file(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        !FILES
            .iter()
            .any(|other| other.starts_with(&folder) && *other != path)
    }
}

impl Tree for Files {
    fn entries(&self, folder: &str) -> Vec<DirectoryEntry> {
        let folder = format!("{}/", folder.trim_end_matches('/'));
        let below = FILES.iter().filter_map(|path| path.strip_prefix(&folder));
        let mut names: Vec<&str> = below.filter_map(|rest| rest.split('/').next()).collect();
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        names.dedup();
        let entry = |name: &str| DirectoryEntry {
            name: name.to_owned(),
            is_folder: !self.is_file(&format!("{folder}{name}")),
        };
        names.into_iter().map(entry).collect()
    }
}

fn below(path: &str, folder: &str) -> bool {
    path == folder || folder == "/" || path.starts_with(&format!("{folder}/"))
}

#[test]
fn a_socket_matches_by_each_of_its_lists() {
    let socket = SocketMatch {
        domains: Some(vec![2]),
        types: None,
        protocols: Some(vec![0]),
    };
    assert!(socket.matches(2, 3, 0));
    assert!(!socket.matches(10, 3, 0));
    assert!(!socket.matches(2, 3, 1));
}

#[test]
fn bpf_tells_mounts_by_every_flag_of_mount_but_sees_some_in_part() {
    let of_flags = |flags: &str| {
        let text = format!(
            "policy:\n  enforcer: BPF\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             bpfRawRules: {{mounts: [{{qualifiers: [deny], sourcePattern: /x, flags: [{flags}]}}]}}\n"
        );
        let (policies, problems) = crate::load("p.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}");
        let policy = &policies[0];
        assess(
            policy,
            &policy.rules[0],
            EnforcerKind::Bpf,
            &MachineFeatures::default(),
        )
        .grade
    };
    for flags in ["all", "bind", "rbind", "move, umount", "remount"] {
        assert_eq!(of_flags(flags), Grade::Full, "{flags}");
    }
    for flags in [
        "ro",
        "r",
        "w",
        "nosuid",
        "bind, ro",
        "private",
        "make-rshared",
        "nostrictatime",
    ] {
        assert_eq!(of_flags(flags), Grade::Partial, "{flags}");
    }
    for flags in ["B", "M", "R, umount"] {
        assert_eq!(of_flags(flags), Grade::Full, "{flags}");
    }
    assert_eq!(of_flags("user"), Grade::None);
}

/// `ls /` fails if a rule withholds listing from any path: the folders above it lack the same right.
#[test]
fn no_rule_withholds_listing_folders() {
    let rules = "    attackProtectionRules: [{rules: [mitigate-sa-leak, disable-access-ssh-dir]}]\n    \
                 bpfRawRules: {files: [{pattern: /srv/secret/**, permissions: [all]}]}\n";
    let mut unprivileged = policy("Landlock", rules);
    let based = crate::load(
        "p.yaml",
        "policy: {enforcer: Landlock, mode: RuntimeDefault}\n",
    );
    unprivileged.rules.extend(based.0[0].rules.clone());
    let handled = landlock::Profile::compile(&unprivileged, &disks()).entries;
    let mut withheld = 0;
    for entry in handled {
        if let landlock::Entry::Hole { rights, path, .. } = entry {
            assert_eq!(rights & landlock::LISTING, 0, "{path}");
            withheld += usize::from(rights & landlock::READ_FILE != 0);
        }
    }
    assert!(withheld > 3);
    let said = check(&unprivileged, &[], &disks());
    let about = |id: &str| {
        let mut said = said.iter();
        said.any(|problem| problem.message.contains(id) && problem.message.contains("be listed"))
    };
    assert!(about("bpfRawRules.files[0]") && about("disable-access-ssh-dir"));
    assert!(!about("mitigate-sa-leak"), "its names are public");
}

/// The enforcers with a part in a rule of a policy of built-in rules.
fn users(
    enforcers: &str,
    names: &[&str],
    rule: &str,
    machine: &MachineFeatures,
) -> Vec<EnforcerKind> {
    let policy = narrowed(&of_builtins(enforcers, names), machine);
    assert_eq!(policy, narrowed(&policy, machine), "it is repeatable");
    let mut rules = policy.rules.iter();
    let rule = rules.find(|own| own.id == rule).unwrap();
    let of = |kind: &EnforcerKind| !assess(&policy, rule, *kind, machine).output.is_empty();
    policy.enforcers.iter().filter(of).collect()
}

#[test]
fn a_rule_is_left_to_the_narrowest_enforcer_that_enforces_it_in_full() {
    use EnforcerKind::{Bpf, Caps, Landlock, Seccomp};
    let alone = |enforcers: &str, machine| {
        users(enforcers, &["disallow-umount"], "disallow-umount", machine)
    };
    let here = &disks();
    assert_eq!(alone("SeccompLandlockCaps", here), [Seccomp]);
    assert_eq!(alone("LandlockCaps", here), [Landlock]);
    assert_eq!(alone("LandlockBPF", here), [Bpf]);
    assert_eq!(alone("Caps", here), [Caps]);
    let away = &MachineFeatures {
        is_elsewhere: true,
        ..disks()
    };
    assert_eq!(
        alone("LandlockBPF", away),
        [Landlock, Bpf],
        "BPF may not work there"
    );
    assert_eq!(alone("SeccompLandlockBPF", away), [Seccomp, Bpf]);
    let broken = &MachineFeatures {
        unavailable: vec![Unavailable {
            enforcer: Bpf,
            why: "it is a test".to_owned(),
        }],
        ..disks()
    };
    assert_eq!(alone("LandlockBPF", broken), [Landlock, Bpf]);
}

/// Reading the environment of others needs CAP_SYS_ADMIN, which only disallow-mount drops here.
#[test]
fn what_another_rule_relies_on_stays_dropped() {
    let names = ["disallow-mount", "disallow-access-procfs-root"];
    let of = |names: &[&str]| users("SeccompLandlockCaps", names, "disallow-mount", &disks());
    assert!(of(&names).contains(&EnforcerKind::Caps));
    assert!(!of(&names[..1]).contains(&EnforcerKind::Caps));
}

/// A new user namespace would give back what Caps drops: Seccomp keeps its part although Caps is graded full.
#[test]
fn seccomp_keeps_refusing_user_namespaces_for_caps() {
    let name = "disable-cap-net-raw";
    let policy = narrowed(&of_builtins("SeccompLandlockCaps", &[name]), &disks());
    let profile = Profile::compile(&policy);
    let refused = profile.decide(Syscall::UNSHARE, &[0x1000_0000, 0, 0, 0, 0, 0]);
    assert!(refused.is_some_and(|rule| rule.action.denies()));
    assert!(caps::Profile::compile(&policy).no_new_privs);
}

/// Landlock is full about processes outside because Caps drops what reads them nevertheless.
#[test]
fn caps_keeps_dropping_what_reads_processes_past_landlock() {
    let names = ["disallow-access-procfs-root", "disable-cap-sys-admin"];
    let policy = narrowed(&of_builtins("SeccompLandlockCaps", &names), &disks());
    let dropped = caps::Profile::compile(&policy).dropped;
    for name in ["perfmon", "sys_ptrace"] {
        let number = abi::capability::from_name(name).unwrap();
        assert!(dropped.contains(number), "{name}");
    }
}

/// Linux 5.17 to 6.0 have BPF LSM and no hook at new user namespaces.
#[test]
fn a_rule_stays_with_seccomp_where_the_kernel_lacks_the_hook_of_bpf() {
    use EnforcerKind::{Bpf, Seccomp};
    let rule = "disallow-create-user-ns";
    let here = disks();
    assert_eq!(users("SeccompBPF", &[rule], rule, &here), [Bpf]);
    let older = MachineFeatures {
        missing_hooks: BTreeSet::from(["userns_create".to_owned()]),
        ..disks()
    };
    assert_eq!(users("SeccompBPF", &[rule], rule, &older), [Seccomp]);
    let alone = check(&of_builtins("BPF", &[rule]), &[], &older).remove(0);
    assert_eq!(alone.code, Code::NoEnforcer, "{alone:?}");
    assert!(alone.message.contains("hook userns_create"), "{alone:?}");
}

/// Each hook of each built-in rule lowers the grade of BPF where a kernel lacks it, unless another hook decides
/// the same calls.
#[test]
fn no_rule_is_graded_full_with_bpf_if_none_of_its_hooks_exists() {
    let mut graded = 0;
    for builtin in builtin::all() {
        let (policy, rule) = alone(builtin, Enforcers::ALL);
        let grade = |missing: &BTreeSet<String>| {
            let machine = MachineFeatures {
                missing_hooks: missing.clone(),
                ..disks()
            };
            assess(&policy, &rule, EnforcerKind::Bpf, &machine)
        };
        let lowered = bpf::lower(&rule, &disks());
        let hooks = lowered.entries.iter().flat_map(|entry| entry.key.hooks());
        let hooks: BTreeSet<String> = hooks.map(str::to_owned).collect();
        if hooks.is_empty() {
            continue;
        }
        graded += 1;
        assert_eq!(grade(&hooks).grade, Grade::None, "{}", builtin.name);
        for entry in &lowered.entries {
            // `capable` decides what the other hooks of an operation do.
            if let Key::Hook(_) = entry.key {
                continue;
            }
            for hook in entry.key.hooks() {
                let without = grade(&BTreeSet::from([hook.to_owned()]));
                assert_ne!(
                    without.grade,
                    Grade::Full,
                    "{} without {hook}",
                    builtin.name
                );
                assert!(without.notes.concat().contains(hook), "{}", builtin.name);
            }
        }
    }
    assert!(graded > 60, "{graded}");
}

/// A domain without rights on files scopes signals instead, which no rule is about.
#[test]
fn landlock_keeps_a_rule_on_files_beside_a_domain() {
    let names = ["disallow-umount", "disallow-access-procfs-root"];
    let enforcers = "SeccompLandlockCaps";
    let policy = NarrowedPolicy::new(&of_builtins(enforcers, &names), &disks());
    let profile = landlock::Profile::compile(&policy, policy.machine());
    assert!(profile.entries.contains(&landlock::Entry::Domain));
    assert_eq!(profile.handled, landlock::ALL_RIGHTS, "{policy:?}");
    let stops = |policy: &NarrowedPolicy, name: &str| -> Vec<String> {
        let mut rules = policy.rules.iter();
        let rule = rules.find(|rule| rule.id == name).unwrap();
        policy.assess(rule, EnforcerKind::Landlock).breaks
    };
    let signals = |policy: &NarrowedPolicy| {
        let stopped = stops(policy, names[1]);
        stopped.iter().any(|text| text.contains("signals"))
    };
    assert!(!signals(&policy));
    let alone = NarrowedPolicy::new(&of_builtins(enforcers, &names[1..]), &disks());
    assert!(signals(&alone));
    // Before scopes, a domain forbids mounts whether or not another rule is on files.
    let older = MachineFeatures {
        landlock_version: Some(5),
        ..disks()
    };
    let alone = NarrowedPolicy::new(&of_builtins(enforcers, &names[1..]), &older);
    assert!(!signals(&alone));
    assert!(stops(&alone, names[1]).contains(&"mounting and unmounting anything".to_owned()));
    let both = NarrowedPolicy::new(&of_builtins(enforcers, &names), &older);
    assert!(stops(&both, names[0]).is_empty(), "left to Seccomp");
}

/// No rule has a worse grade than it has if no enforcer leaves anything to another.
#[test]
fn narrowing_lowers_no_grade() {
    let names: Vec<&str> = builtin::all()
        .iter()
        .map(|rule| rule.name.as_str())
        .collect();
    for enforcers in [
        "SeccompLandlockCaps",
        "LandlockCaps",
        "SeccompBPF",
        "SeccompLandlockCapsAppArmorBPF",
    ] {
        for first in &names {
            for second in [
                "disallow-access-procfs-root",
                "disable-cap-sys-admin",
                "disallow-mount",
            ] {
                if *first == second {
                    continue;
                }
                let policy = of_builtins(enforcers, &[first, second]);
                let narrow = NarrowedPolicy::new(&policy, &disks());
                let wide = NarrowedPolicy::wide(&policy, &disks());
                for (rule, wider) in narrow.rules.iter().zip(&wide.rules) {
                    let (after, before) = (narrow.grade(rule), wide.grade(wider));
                    assert!(after >= before, "{enforcers} {first} {second}: {}", rule.id);
                }
            }
        }
    }
}

/// Landlock cannot deny listing: each rule that asks for it has the gap, and no other rule has.
#[test]
fn each_landlock_rule_that_denies_listing_says_that_folders_can_be_listed() {
    let is_told = |pattern: &str, permissions: &str, machine: &MachineFeatures| {
        let rules = format!(
            "    bpfRawRules: {{files: [{{pattern: \"{pattern}\", permissions: [{permissions}]}}]}}\n"
        );
        let policy = policy("Landlock", &rules);
        let notes = assess(&policy, &policy.rules[0], EnforcerKind::Landlock, machine).notes;
        notes.concat().contains("can still be listed")
    };
    let here = disks();
    for pattern in [
        "/srv/secret/**",
        "/srv/*/keys",
        "/srv/sec*",
        "/**/keys",
        "keys",
    ] {
        assert!(is_told(pattern, "read", &here), "{pattern}");
        assert!(is_told(pattern, "all", &here), "{pattern}");
        assert!(!is_told(pattern, "contents", &here), "{pattern}");
        assert!(!is_told(pattern, "write", &here), "{pattern}");
    }
    // On this machine the path is looked up; in a container nobody knows yet what it is.
    let away = MachineFeatures {
        is_elsewhere: true,
        ..disks()
    };
    assert!(!is_told("/srv/secret", "read", &here));
    assert!(is_told("/srv/secret", "read", &away));
    assert!(!is_told("/srv/secret", "contents", &away));
    let (of_builtin, rule) = alone(
        builtin::find("disable-access-shadow").unwrap(),
        Enforcers::ALL,
    );
    let notes = assess(&of_builtin, &rule, EnforcerKind::Landlock, &away).notes;
    assert!(!notes.concat().contains("can still be listed"), "{notes:?}");
}
