//! Tests with a corpus of our own: a row for each kind of rule.

use policy::compile::{Grade, MachineFeatures, NarrowedPolicy};

use super::*;

/// A KubeArmorPolicy with this part `spec`.
fn armor(spec: &str) -> String {
    format!(
        "apiVersion: security.kubearmor.com/v1\nkind: KubeArmorPolicy\nmetadata: {{name: web, namespace: prod}}\nspec:\n  \
         selector: {{matchLabels: {{app: web}}}}\n{spec}\n"
    )
}

fn profile(kind: &str, spec: &str) -> String {
    format!(
        "apiVersion: security-profiles-operator.x-k8s.io/v1beta1\nkind: {kind}\nmetadata: {{name: web, namespace: \
         prod}}\nspec:\n{spec}\n"
    )
}

fn one(text: &str) -> Conversion {
    let mut all = convert("f.yaml", text, &Options::default()).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Loads what came out, with the only reader of policies; returns the policy.
fn load(conversion: &Conversion) -> policy::Policy {
    let text = crate::yaml_text::stream(std::slice::from_ref(&conversion.object));
    let (policies, problems) = policy::load("f", &text);
    let errors: Vec<_> = problems
        .iter()
        .filter(|problem| problem.is_error())
        .collect();
    assert!(errors.is_empty(), "{errors:?}\n{text}");
    policies.into_iter().next().unwrap()
}

/// Converts one rule, and returns how the named rule of the source is carried, and the rules of the policy.
fn carried(text: &str, source: &str) -> (Carried, Vec<String>) {
    let conversion = one(text);
    let mut rules = conversion.rules.iter();
    let rule = rules.find(|rule| rule.source == source);
    let rule = rule.unwrap_or_else(|| panic!("no {source} in {:?}", conversion.rules));
    if !conversion.is_empty() {
        let loaded = load(&conversion);
        for name in &rule.becomes {
            let is_there = loaded.rules.iter().any(|rule| rule.id == *name)
                || *name == "defenseInDepth.appArmor" && !loaded.profiles.is_empty();
            assert!(is_there, "{name} in {:?}", loaded.rules);
        }
    }
    (rule.carried.clone(), rule.becomes.clone())
}

/// Section, rule, name of the source, and the restriction that it becomes as `policy` shows it.
const CARRIED: [(&str, &str, &str, &str); 15] = [
    (
        "process",
        "matchPaths: [{path: /bin/sh}]",
        "matchPaths[0]",
        "exec /bin/sh",
    ),
    (
        "process",
        "matchDirectories: [{dir: /tmp/}]",
        "matchDirectories[0]",
        "exec /tmp/*",
    ),
    (
        "process",
        "matchDirectories: [{dir: /tmp/, recursive: true}]",
        "matchDirectories[0]",
        "exec /tmp/**",
    ),
    (
        "process",
        "matchPatterns: [{pattern: /usr/*/nc}]",
        "matchPatterns[0]",
        "exec /usr/*/nc",
    ),
    (
        "process",
        "matchPaths: [{path: /bin/sh, fromSource: [{path: /bin/a}]}]",
        "matchPaths[0]",
        "deny /bin/sh x,",
    ),
    (
        "file",
        "matchPaths: [{path: /etc/shadow}]",
        "matchPaths[0]",
        "file rwa /etc/shadow",
    ),
    (
        "file",
        "matchPaths: [{path: /etc/hosts, readOnly: true}]",
        "matchPaths[0]",
        "file wa /etc/hosts",
    ),
    (
        "file",
        "matchDirectories: [{dir: /etc/, readOnly: true, recursive: true}]",
        "matchDirectories[0]",
        "file wa /etc/**",
    ),
    (
        "file",
        "matchPatterns: [{pattern: /**/id_rsa}]",
        "matchPatterns[0]",
        "id_rsa",
    ),
    (
        "file",
        "matchPaths: [{path: /k, fromSource: [{path: /bin/a}]}]",
        "matchPaths[0]",
        "deny /k rw,",
    ),
    (
        "network",
        "matchProtocols: [{protocol: TCP}]",
        "matchProtocols[0]",
        "socket inet,inet6 stream",
    ),
    (
        "network",
        "matchProtocols: [{protocol: raw}]",
        "matchProtocols[0]",
        "raw",
    ),
    (
        "network",
        "matchProtocols: [{protocol: udp, fromSource: [{path: /bin/a}]}]",
        "matchProtocols[0]",
        "deny network udp,",
    ),
    (
        "capabilities",
        "matchCapabilities: [{capability: net_raw}]",
        "matchCapabilities[0]",
        "net_raw",
    ),
    (
        "capabilities",
        "matchCapabilities: [{capability: sys_admin, fromSource: [{path: /bin/a}]}]",
        "matchCapabilities[0]",
        "deny capability sys_admin,",
    ),
];

#[test]
fn each_kind_of_rule_of_kubearmor_becomes_a_rule_that_denies_the_same() {
    for (section, rule, source, expected) in CARRIED {
        let text = armor(&format!("  {section}: {{{rule}}}\n  action: Block"));
        let source = format!("spec.{section}.{source}");
        let (carried, becomes) = carried(&text, &source);
        assert_eq!(carried, Carried::Whole, "{rule}");
        let loaded = load(&one(&text));
        let rule = loaded
            .rules
            .iter()
            .find(|rule| rule.id == becomes[0])
            .unwrap();
        let shown: Vec<String> = rule.restrictions.iter().map(ToString::to_string).collect();
        assert!(
            shown.join("; ").contains(expected),
            "{source}: {shown:?} lacks {expected}"
        );
        assert!(
            rule.verdict.denies() && rule.verdict.audits(),
            "{:?}",
            rule.verdict
        );
        // Nothing besides, as KubeArmor has no default denials.
        assert_eq!(loaded.rules.len(), 1, "{:?}", loaded.rules);
        let narrowed = NarrowedPolicy::new(&loaded, &MachineFeatures::default());
        assert_ne!(narrowed.grade(&narrowed.rules[0]), Grade::None, "{source}");
    }
}

/// Section, rule, name of the source, and a part of the reason.
const REFUSED: [(&str, &str, &str, &str); 17] = [
    (
        "process",
        "matchPaths: [{path: /bin/sh, ownerOnly: true}]",
        "matchPaths[0]",
        "ownerOnly",
    ),
    (
        "process",
        "matchPaths: [{path: bin/sh}]",
        "matchPaths[0]",
        "no absolute path",
    ),
    (
        "process",
        "matchPaths: [{path: /bin/*}]",
        "matchPaths[0]",
        "write a pattern",
    ),
    (
        "process",
        "matchPaths: [{path: /a, action: Allow}]",
        "matchPaths[0]",
        "posture",
    ),
    (
        "process",
        "matchPaths: [{path: /a, wen: night}]",
        "matchPaths[0]",
        "`wen` is not known",
    ),
    ("process", "matchPaths: {path: /a}", "matchPaths", "no list"),
    ("process", "matchNames: [a]", "matchNames", "not known"),
    (
        "process",
        "matchPatterns: [{pattern: '/bin/[ab]'}]",
        "matchPatterns[0]",
        "cannot be carried",
    ),
    (
        "process",
        "matchPatterns: [{pattern: '/*/*/*/a'}]",
        "matchPatterns[0]",
        "wildcards",
    ),
    (
        "file",
        "matchPaths: [{path: /a, action: Audit, fromSource: [{path: /bin/a}]}]",
        "matchPaths[0]",
        "single programs",
    ),
    (
        "file",
        "matchPaths: [{path: /a, fromSource: [{dir: /bin/}]}]",
        "matchPaths[0]",
        "`dir` is not known",
    ),
    (
        "network",
        "matchProtocols: [{protocol: sctp}]",
        "matchProtocols[0]",
        "`sctp` is not known",
    ),
    (
        "capabilities",
        "matchCapabilities: [{capability: fly}]",
        "matchCapabilities[0]",
        "`fly` is not known",
    ),
    (
        "capabilities",
        "matchCapabilities: [{capability: net_raw, action: Audit}]",
        "matchCapabilities[0]",
        "reported",
    ),
    (
        "syscalls",
        "matchPaths: [{path: /a, syscall: [unlink]}]",
        "matchPaths[0]",
        "paths of calls",
    ),
    (
        "syscalls",
        "matchSyscalls: [{syscall: [mount], fromSource: [{path: /bin/a}]}]",
        "matchSyscalls[0]",
        "fromSource",
    ),
    (
        "syscalls",
        "matchSyscalls: [{}]",
        "matchSyscalls[0]",
        "no system call",
    ),
];

#[test]
fn what_cannot_be_carried_is_refused_by_name_and_reason() {
    for (section, rule, source, expected) in REFUSED {
        let text = armor(&format!("  {section}: {{{rule}}}"));
        let source = format!("spec.{section}.{source}");
        let (carried, becomes) = carried(&text, &source);
        let Carried::Refused(cause) = carried else {
            panic!("{rule} is {carried:?}");
        };
        assert!(
            cause.contains(expected) && becomes.is_empty(),
            "{rule}: {cause}"
        );
        let conversion = one(&text);
        assert!(conversion.is_empty());
        assert_eq!(conversion.refused(&[]).count(), 1);
        assert_eq!(conversion.refused(&[source]).count(), 0);
    }
}

#[test]
fn actions_of_rules_sections_and_policies_are_taken_in_this_order() {
    let text = armor(
        "  action: Audit\n  file: {matchPaths: [{path: /a}, {path: /b, action: Block}]}\n  process: {action: Block, \
         matchPaths: [{path: /c}, {path: /d, action: Audit}]}\n  syscalls: {matchSyscalls: [{syscall: [mount, umount2]}]}",
    );
    let loaded = load(&one(&text));
    let verdict = |id: &str| {
        loaded
            .rules
            .iter()
            .find(|rule| rule.id == id)
            .unwrap()
            .verdict
            .denies()
    };
    for (id, denies) in [
        ("bpfRawRules.files[0]", false),
        ("bpfRawRules.files[1]", true),
        ("bpfRawRules.processes[0]", true),
        ("bpfRawRules.processes[1]", false),
    ] {
        assert_eq!(verdict(id), denies, "{id}");
    }
    let calls = loaded
        .rules
        .iter()
        .find(|rule| rule.id == "syscallRawRules[0]")
        .unwrap();
    assert_eq!(calls.restrictions.len(), 2);
}

#[test]
fn labels_choose_pods_and_containers_and_a_target_replaces_them() {
    let spec = "  file: {matchPaths: [{path: /a}]}";
    let text = armor(spec).replace(
        "{app: web}",
        "{app: web, kubearmor.io/container.name: '[a, b]'}",
    );
    let conversion = one(&text);
    assert_eq!(
        conversion.object["spec"]["target"],
        json!({ "kind": "Pod", "selector": { "matchLabels": { "app": "web" } }, "containers": ["a", "b"] })
    );
    let options = Options {
        enforcers: Some("BPF".to_owned()),
        target: serde_json::from_value(json!({ "kind": "Deployment", "name": "shop" })).unwrap(),
    };
    let other = convert("f", &text, &options).unwrap().remove(0);
    assert_eq!(
        other.object["spec"]["target"],
        json!({ "kind": "Deployment", "name": "shop" })
    );
    assert_eq!(other.object["spec"]["policy"]["enforcer"], "BPF");
    let none = one(&armor(spec).replace("{app: web}", "{}"));
    let refused: Vec<_> = none
        .refused(&[])
        .map(|(rule, _)| rule.source.as_str())
        .collect();
    assert_eq!(refused, ["spec.selector"]);
    let inactive = one(&armor(&format!("{spec}\n  status: Inactive")));
    assert_eq!(inactive.refused(&[]).count(), 1);
    let read = |readable: bool| {
        format!("  file: {{matchDirectories: [{{dir: /a/, readOnly: {readable}}}]}}")
    };
    let of = |text: &str| carried(&armor(text), "spec.file.matchDirectories[0]").0;
    assert!(matches!(of(&read(false)), Carried::Partly(_)));
    assert_eq!(of(&read(true)), Carried::Whole);
}

#[test]
fn a_seccomp_profile_denies_what_it_does_not_allow() {
    let text = profile(
        "SeccompProfile",
        "  defaultAction: SCMP_ACT_ERRNO\n  architectures: [SCMP_ARCH_X86_64]\n  syscalls:\n  - {names: [read, write, \
         not_a_call], action: SCMP_ACT_ALLOW}\n  - {names: [mount], action: SCMP_ACT_ERRNO, errnoRet: '38'}\n  - {names: \
         [personality], action: SCMP_ACT_ALLOW, args: [{index: 0, value: 8, op: SCMP_CMP_EQ}, {index: 1, op: \
         SCMP_CMP_MASKED_EQ, value: 255, valueTwo: 3}]}\n  - {names: [bpf], action: SCMP_ACT_NOTIFY}\n  listenerPath: /a",
    );
    let conversion = one(&text);
    let refused: Vec<_> = conversion
        .refused(&[])
        .map(|(rule, _)| rule.source.as_str())
        .collect();
    assert_eq!(refused, ["spec.listenerPath", "spec.syscalls[3]"]);
    assert_eq!(conversion.object["policy"]["mode"], "DefenseInDepth");
    let loaded = load(&conversion);
    let rule = loaded
        .rules
        .iter()
        .find(|rule| rule.id == "defenseInDepth.seccomp")
        .unwrap();
    let shown: Vec<String> = rule.restrictions.iter().map(ToString::to_string).collect();
    let shown = shown.join("; ");
    assert!(
        shown.contains("mount") && shown.contains("personality") && !shown.contains(" read("),
        "{shown}"
    );
    for (spec, expected) in [
        ("  defaultAction: SCMP_ACT_TRACE", "tracer"),
        ("  syscalls: []", "`defaultAction` is missing"),
        (
            "  defaultAction: SCMP_ACT_LOG\n  baseProfileName: b",
            "base",
        ),
        (
            "  defaultAction: SCMP_ACT_LOG\n  disabled: true",
            "disabled",
        ),
        ("  defaultAction: SCMP_ACT_LOG\n  later: true", "not known"),
        (
            "  defaultAction: SCMP_ACT_LOG\n  syscalls: [{names: [a], action: SCMP_ACT_LOG, errnoRet: '1'}]",
            "no meaning",
        ),
        (
            "  defaultAction: SCMP_ACT_LOG\n  syscalls: [{names: [], action: SCMP_ACT_LOG}]",
            "names no",
        ),
    ] {
        let conversion = one(&profile("SeccompProfile", spec));
        let causes: Vec<_> = conversion.refused(&[]).map(|(_, cause)| cause).collect();
        assert!(
            causes.len() == 1 && causes[0].contains(expected),
            "{spec}: {causes:?}"
        );
    }
}

#[test]
fn an_apparmor_profile_allows_what_it_lists() {
    let text = profile(
        "AppArmorProfile",
        "  abstract:\n    executable: {allowedExecutables: [/bin/a], allowedLibraries: [/lib/**]}\n    filesystem: \
         {readOnlyPaths: [/etc/a, /proc/**], writeOnlyPaths: [/log], readWritePaths: [/data/**, 'no path']}\n    network: \
         {allowRaw: false, allowedProtocols: {allowTcp: true, allowUdp: false}}\n    capability: {allowedCapabilities: \
         [NET_BIND_SERVICE, cap_chown, fly]}",
    );
    let conversion = one(&text);
    let refused: Vec<_> = conversion
        .refused(&[])
        .map(|(rule, _)| rule.source.as_str())
        .collect();
    assert_eq!(
        refused,
        [
            "spec.abstract.filesystem.readWritePaths[1]",
            "spec.abstract.capability.allowedCapabilities[2]"
        ]
    );
    let partly: Vec<_> = conversion
        .rules
        .iter()
        .filter(|rule| matches!(rule.carried, Carried::Partly(_)))
        .collect();
    assert_eq!(partly.len(), 1);
    assert_eq!(
        partly[0].source,
        "spec.abstract.filesystem.readOnlyPaths[1]"
    );
    let loaded = load(&conversion);
    let text = loaded.profiles[0].text.as_deref().unwrap();
    for line in [
        "/bin/a ix,",
        "/lib/** mr,",
        "/etc/a r,",
        "deny /etc/a wl,",
        "/log wl,",
        "deny /log r,",
        "/data/** rwl,",
        "deny network raw,",
        "network inet tcp,",
        "capability net_bind_service,",
        "capability chown,",
    ] {
        assert!(text.contains(&format!("  {line}\n")), "{line} in {text}");
    }
    assert!(!text.contains("udp") && !text.contains("fly"), "{text}");
    let complaining = one(&profile(
        "AppArmorProfile",
        "  complainMode: true\n  abstract: {}",
    ));
    assert_eq!(
        complaining.object["policy"]["defenseInDepth"]["allowViolations"],
        true
    );
}

#[test]
fn objects_of_other_kinds_are_refused_with_their_line() {
    let host = armor("").replace("KubeArmorPolicy", "KubeArmorHostPolicy");
    let other = "kind: Pod\napiVersion: v1\n";
    for (text, line, expected) in [
        (host, 1, "KubeArmorHostPolicy is not converted"),
        (format!("{}---\n{other}", armor("")), 6, "none of"),
        ("a: [".to_owned(), 1, ""),
        (String::new(), 1, "empty"),
    ] {
        let error = convert("f.yaml", &text, &Options::default()).unwrap_err();
        assert!(error.problem.contains(expected), "{error}");
        assert!(error.line >= line, "{error}");
    }
}
