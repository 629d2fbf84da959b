use proptest::prelude::*;
use yaml::Code as _;

use super::*;
use crate::enforcer::EnforcerKind;
use crate::policy::{Mode, RuleAction, RuleOrigin};
use crate::restriction::{Restriction, SyscallAction};

/// A Kubernetes policy that uses most features.
const FULL: &str = r#"
apiVersion: crd.varmor.org/v1beta1
kind: VarmorPolicy
metadata:
  name: demo
  namespace: test
  labels: {a: b}
spec:
  updateExistingWorkloads: false
  target:
    kind: Deployment
    selector:
      matchLabels: {app: demo}
      matchExpressions:
      - {key: tier, operator: In, values: [web, api]}
    containers: [main]
  policy:
    enforcer: AppArmorBPFSeccomp
    mode: EnhanceProtect
    enhanceProtect:
      hardeningRules: [disallow-write-core-pattern, DISABLE_CAP_SYS_ADMIN]
      attackProtectionRules:
      - rules: [mitigate-sa-leak]
      - rules: [disable-curl]
        targets: [/usr/bin/python3]
      vulMitigationRules: [copy-fail-mitigation]
      appArmorRawRules:
      - rules: |
          deny /data/{a,b} r,  # braces are alternatives
        targets: []
      bpfRawRules:
        files:
        - {qualifiers: [deny, audit], pattern: "/data/**", permissions: [read, write]}
        processes:
        - {qualifiers: [audit], pattern: "nc", permissions: [exec]}
        network:
          sockets:
          - {qualifiers: [deny], domains: [inet, inet6], types: [raw]}
          - {qualifiers: [deny], protocols: [tcp]}
          egress:
            toDestinations:
            - {qualifiers: [deny], ip: unspecified}
            - {qualifiers: [deny], cidr: 10.0.0.0/8, ports: [{port: 1, endPort: 9}, {port: 443}]}
        ptrace: {qualifiers: [deny], strictMode: true, permissions: [all]}
        mounts:
        - {qualifiers: [deny], sourcePattern: "/proc/**", fstype: "*", flags: [bind, move]}
      syscallRawRules:
      - names: [fchmodat]
        action: SCMP_ACT_ERRNO
        errnoRet: 13
        args:
        - {index: 2, value: 0x40, valueTwo: 0x40, op: SCMP_CMP_MASKED_EQ}
        - {index: 2, value: 0x8, valueTwo: 0x8, op: SCMP_CMP_MASKED_EQ}
      privileged: true
      auditViolations: true
"#;

pub(super) fn bare(body: &str) -> String {
    format!("policy:\n  enforcer: Auto\n  mode: EnhanceProtect\n  enhanceProtect:\n{body}")
}

/// Code, line and column of each problem.
fn problems(text: &str) -> Vec<(&'static str, u32, u32)> {
    let (_, problems) = load("p.yaml", text);
    let place = |d: &Diagnostic| (d.code.name(), d.location.line, d.location.column);
    problems.iter().map(place).collect()
}

#[test]
fn a_policy_of_varmor_loads_unchanged() {
    let (policies, problems) = load("p.yaml", FULL);
    assert_eq!(problems, []);
    let policy = &policies[0];
    assert_eq!(
        (policy.name.as_str(), policy.mode),
        ("demo", Mode::EnhanceProtect)
    );
    assert!(policy.privileged);
    assert!(!policy.enforcers.contains(EnforcerKind::Landlock));
    let ids: Vec<_> = policy.rules.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "disallow-write-core-pattern",
            "disable-cap-sys-admin",
            "copy-fail-mitigation",
            "mitigate-sa-leak",
            "disable-curl",
            "appArmorRawRules[0]",
            "bpfRawRules.files[0]",
            "bpfRawRules.processes[0]",
            "bpfRawRules.network.sockets[0]",
            "bpfRawRules.network.sockets[1]",
            "bpfRawRules.network.egress.toDestinations[0]",
            "bpfRawRules.network.egress.toDestinations[1]",
            "bpfRawRules.ptrace",
            "bpfRawRules.mounts[0]",
            "syscallRawRules[0]",
        ]
    );
    assert_eq!(policy.rules[4].targets, ["/usr/bin/python3"]);
    let Restriction::Syscall(syscall) = &policy.rules[14].restrictions[0] else {
        panic!("it is about a system call");
    };
    assert_eq!(syscall.action, SyscallAction::Errno(abi::Errno::EACCES));
    assert_eq!(
        syscall.any_of.len(),
        2,
        "one argument twice: each is a rule of its own"
    );
}

#[test]
fn a_cluster_policy_and_several_documents_load() {
    let cluster = FULL.replace("kind: VarmorPolicy", "kind: VarmorClusterPolicy");
    let (policies, problems) = load("p.yaml", &format!("{cluster}\n---\n{FULL}"));
    assert_eq!(problems, []);
    assert_eq!(policies.len(), 2);
}

#[test]
fn other_resources_in_the_file_are_left_alone_and_misspelt_policies_are_not() {
    let workload = "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 1}\n";
    let (policies, found) = load("p.yaml", &format!("{workload}---\n{FULL}"));
    assert_eq!((policies.len(), found), (1, Vec::new()));
    assert_ne!(problems(workload), [], "a file without a policy");
    let misspelt = FULL.replace("apiVersion: crd.varmor.org", "apiVersion: crd.vamor.org");
    assert_ne!(problems(&misspelt), []);
}

#[test]
fn rules_without_qualifiers_deny_as_they_always_did() {
    let (policies, found) = load("p.yaml", &FULL.replace("qualifiers: [deny, audit], ", ""));
    assert_eq!(found, []);
    assert_eq!(
        policies[0].rules[6].verdict,
        RuleAction::DenyAudit,
        "auditViolations is set"
    );
    let (policies, _) = load(
        "p.yaml",
        &FULL.replace("qualifiers: [audit]", "qualifiers: []"),
    );
    assert_eq!(policies[0].rules.len(), 14, "an empty list says nothing");
}

#[test]
fn a_policy_that_is_not_privileged_stands_on_what_runtimes_deny() {
    let (policies, _) = load(
        "dir/web.yaml",
        &bare("    hardeningRules: [disallow-insmod]\n"),
    );
    assert_eq!(policies[0].name, "web");
    let (base, own): (Vec<_>, Vec<_>) = policies[0]
        .rules
        .iter()
        .partition(|rule| matches!(rule.origin, RuleOrigin::Base(_)));
    assert_eq!((base.len(), own.len()), (6, 1));
}

#[test]
fn each_mode_reads_what_belongs_to_it() {
    for (mode, part) in [
        ("AlwaysAllow", ""),
        ("RuntimeDefault", ""),
        ("BehaviorModeling", "  modelingOptions: {duration: 3}\n"),
        (
            "DefenseInDepth",
            "  defenseInDepth: {seccomp: {profileType: BehaviorModel}}\n",
        ),
    ] {
        let text = format!("policy:\n  enforcer: Seccomp\n  mode: {mode}\n{part}");
        let (policies, problems) = load("p.yaml", &text);
        assert_eq!(problems, [], "{mode}");
        assert_eq!(policies[0].mode.name(), mode);
    }
    for (mode, part) in [
        ("AlwaysAllow", "  modelingOptions: {duration: 3}\n"),
        ("EnhanceProtect", ""),
        ("BehaviorModeling", "  modelingOptions: {duration: 0}\n"),
        ("BehaviorModeling", ""),
        ("DefenseInDepth", "  defenseInDepth: {}\n"),
        ("DefenceInDepth", ""),
    ] {
        let text = format!("policy:\n  enforcer: Seccomp\n  mode: {mode}\n{part}");
        assert_ne!(problems(&text), [], "{mode} {part}");
    }
}

#[test]
fn the_two_switches_have_four_meanings() {
    for (allow, audit, verdict) in [
        (false, false, RuleAction::Deny),
        (false, true, RuleAction::DenyAudit),
        (true, true, RuleAction::Audit),
        (true, false, RuleAction::Allow),
    ] {
        let text = bare(&format!(
            "    hardeningRules: [disallow-insmod]\n    privileged: true\n    \
             allowViolations: {allow}\n    auditViolations: {audit}\n"
        ));
        let (policies, problems) = load("p.yaml", &text);
        assert_eq!(problems, []);
        assert_eq!(policies[0].rules[0].verdict, verdict);
    }
}

/// Policy fragments, each with its problem, line and column.
const MISTAKES: &[(&str, &str, u32, u32)] = &[
    (
        "    hardeningRules: [disable-cap-privilege]\n",
        "POLICY_UNKNOWN_RULE",
        5,
        22,
    ),
    ("    hardningRules: []\n", "POLICY_UNKNOWN_FIELD", 5, 5),
    (
        "    hardeningRules: disallow-mount\n",
        "POLICY_SHAPE",
        5,
        21,
    ),
    (
        "    hardeningRules: [disallow-mount, disallow_mount]\n",
        "POLICY_CONTRADICTION",
        5,
        38,
    ),
    (
        "    hardeningRules: [disable-shell]\n",
        "POLICY_CONTRADICTION",
        5,
        22,
    ),
    ("    privileged: yes\n", "POLICY_UNKNOWN_VALUE", 5, 17),
    (
        "    privileged: true\n    privileged: true\n",
        "POLICY_SHAPE",
        6,
        5,
    ),
    (
        "    attackProtectionRules:\n    - {rules: []}\n",
        "POLICY_CONTRADICTION",
        6,
        7,
    ),
    (
        "    attackProtectionRules:\n    - {rules: [disable-su-sudo], targets: [sh]}\n",
        "POLICY_UNKNOWN_VALUE",
        6,
        44,
    ),
    (
        "    bpfRawRules: {network: {egresses: {}}}\n",
        "POLICY_UNKNOWN_FIELD",
        5,
        29,
    ),
    (
        "    syscallRawRules: [{names: [opn], action: SCMP_ACT_KILL}]\n",
        "POLICY_UNKNOWN_VALUE",
        5,
        32,
    ),
    (
        "    syscallRawRules: [{names: [open], action: SCMP_ACT_ALLOW}]\n",
        "POLICY_CONTRADICTION",
        5,
        47,
    ),
    (
        "    appArmorRawRules: [{rules: 'deny /x r, }'}]\n",
        "POLICY_UNKNOWN_VALUE",
        5,
        32,
    ),
    (
        "    appArmorRawRules: [{rules: 'deny /x r'}]\n",
        "POLICY_UNKNOWN_VALUE",
        5,
        32,
    ),
    (
        "    networkProxyRawRules: {egress: {defaultAction: perhaps}}\n",
        "POLICY_UNKNOWN_VALUE",
        5,
        52,
    ),
    (
        "    networkProxyRawRules: {egress: {defaultAction: deny, rules: [{ip: 10.0.0.1}]}}\n",
        "POLICY_CONTRADICTION",
        5,
        66,
    ),
    (
        "    bpfRawRules: {mounts: [{sourcePattern: /x, flags: [make-ro]}]}\n",
        "POLICY_UNKNOWN_VALUE",
        5,
        56,
    ),
    (
        "    bpfRawRules: {network: {egress: {toDestinations: [{ip: 10.0.0.1}]}}}\n",
        "POLICY_SHAPE",
        5,
        55,
    ),
    (
        "    bpfRawRules: {network: {sockets: [{qualifiers: [deny]}]}}\n",
        "POLICY_CONTRADICTION",
        5,
        39,
    ),
];

#[test]
fn whatever_is_wrong_is_named_with_its_place() {
    for &(body, code, line, column) in MISTAKES {
        assert_eq!(problems(&bare(body)), [(code, line, column)], "{body}");
    }
}

#[test]
fn raw_rules_that_do_nothing_are_errors() {
    for body in [
        "    syscallRawRules: [{names: [], action: SCMP_ACT_KILL}]\n",
        "    syscallRawRules: [{names: [open], action: SCMP_ACT_KILL, args: [{index: 0, value: 0, op: SCMP_CMP_LT}]}]\n",
        "    bpfRawRules: {network: {sockets: [{qualifiers: [deny], protocols: []}]}}\n",
        "    bpfRawRules: {network: {egress: {toDestinations: [{qualifiers: [deny]}]}}}\n",
        "    bpfRawRules: {ptrace: {qualifiers: [deny], permissions: []}}\n",
        "    bpfRawRules: {files: [{qualifiers: [deny], pattern: /a, permissions: []}]}\n",
        "    bpfRawRules: {files: [{qualifiers: [], pattern: /a, permissions: [r]}]}\n",
    ] {
        let found = problems(&bare(body));
        assert_eq!(found.len(), 1, "{body} {found:?}");
        assert_eq!(found[0].0, "POLICY_CONTRADICTION", "{body}");
    }
    let broken = "policy:\n  enforcer: AppArmor\n  mode: DefenseInDepth\n  defenseInDepth:\n    \
        appArmor: {profileType: Custom, customProfile: 'deny /a r,'}\n";
    assert_eq!(problems(broken), [("POLICY_UNKNOWN_VALUE", 5, 52)]);
}

#[test]
fn suggestions_name_what_was_meant() {
    let help = |text: &str| load("p.yaml", text).1[0].help.clone().unwrap();
    assert_eq!(
        help(&bare("    hardningRules: []\n")),
        "did you mean `hardeningRules`?"
    );
    assert_eq!(
        help(&bare("    hardeningRules: [disable-shell]\n")),
        "move it to `attackProtectionRules`"
    );
    assert_eq!(
        help(&bare("    bpfRawRules: {network: {egresses: {}}}\n")),
        "did you mean `egress`?"
    );
    assert!(help("policy: {enforcer: AppArmour, mode: AlwaysAllow}\n").contains("AppArmor"));
}

#[test]
fn the_name_of_a_policy_and_its_envelope_are_checked() {
    for (from, to) in [
        ("v1beta1", "v2"),
        ("kind: VarmorPolicy", "kind: ArmorProfile"),
        ("kind: Deployment", "kind: CronJob"),
        ("    containers: [main]", "    name: x"),
        ("mode: EnhanceProtect", "mode: enhance"),
    ] {
        assert_ne!(problems(&FULL.replace(from, to)), [], "{to}");
    }
    assert_ne!(problems(""), []);
    assert_ne!(problems("- a\n"), []);
    assert_ne!(problems("policy: [\n"), []);
}

#[test]
fn raw_rules_say_themselves_whether_they_deny() {
    let (policies, _) = load("p.yaml", &FULL.replace("      auditViolations: true\n", ""));
    let verdict = |id: &str| {
        let rule = policies[0].rules.iter().find(|rule| rule.id == id);
        rule.unwrap().verdict
    };
    assert_eq!(verdict("bpfRawRules.files[0]"), RuleAction::DenyAudit);
    assert_eq!(verdict("bpfRawRules.processes[0]"), RuleAction::Audit);
    assert_eq!(verdict("bpfRawRules.ptrace"), RuleAction::Deny);
}

proptest! {
    /// Any corruption of a policy yields a policy or a problem, and no panic.
    #[test]
    fn corrupted_policies_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_usize..40), 1..12),
    ) {
        let mut bytes = FULL.as_bytes().to_vec();
        for (at, byte, cut) in edits {
            let at = at.index(bytes.len());
            if cut > 20 && bytes.len() > 2 * cut {
                let end = (at + cut).min(bytes.len());
                bytes.drain(at..end);
            } else {
                bytes[at] = byte;
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let (policies, problems) = load("p.yaml", &text);
        prop_assert!(!policies.is_empty() || !problems.is_empty());
        for policy in &policies {
            let machine = crate::compile::MachineFeatures::default();
            let _ = crate::compile::NarrowedPolicy::new(policy, &machine).check(&[]);
            let _ = crate::compile::apparmor::profile(policy, &machine);
            let _ = crate::compile::bpf::Profile::compile(policy, &machine);
            let _ = crate::compile::seccomp::Profile::compile(policy);
        }
    }

    /// Words of the language in odd places cause no panic either.
    #[test]
    fn shuffled_lines_never_panic(order in Just(FULL.lines().collect::<Vec<_>>()).prop_shuffle()) {
        let (policies, problems) = load("p.yaml", &order.join("\n"));
        prop_assert!(!policies.is_empty() || !problems.is_empty());
    }
}
