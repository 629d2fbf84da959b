//! Tests of what policies of the peer contain for parts that tollgate does not have.

use yaml::Code as _;

use super::tests::bare;
use super::*;
use crate::compile::MachineFeatures;
use crate::compile::tests::check;
use crate::enforcer::Enforcers;
use crate::policy::RuleAction;
use crate::restriction::Restriction;

/// The addresses of a proxy's rules become rules of enforcers; what only a proxy sees is an error by name.
#[test]
fn a_policy_for_a_proxy_loads_and_what_needs_one_is_named() {
    let text = "policy:\n  enforcer: NetworkProxy\n  mode: EnhanceProtect\n  networkProxyConfig: {proxyPort: 15001, \
        mitm: {domains: [a.example]}}\n  enhanceProtect:\n    privileged: true\n    networkProxyRawRules:\n      \
        egress:\n        defaultAction: deny\n        rules:\n        - {qualifiers: [deny, audit], ip: 10.0.0.1}\n        \
        - {qualifiers: [allow], cidr: 10.0.0.0/8, ports: [{port: 443}]}\n        httpRules: [{qualifiers: [deny]}]\n";
    let (policies, found) = load("p.yaml", text);
    assert_eq!(found, []);
    let policy = &policies[0];
    assert_eq!(policy.enforcers.joined(), "SeccompLandlockBPF");
    let of = |id: &str| {
        policy
            .rules
            .iter()
            .find(|rule| rule.id.ends_with(id))
            .unwrap()
    };
    assert_eq!(of("rules[0]").verdict, RuleAction::DenyAudit);
    assert!(matches!(
        of("rules[0]").restrictions[0],
        Restriction::Egress { .. }
    ));
    let Restriction::OnlyPeers(peers) = &of("defaultAction").restrictions[0] else {
        panic!("others are denied");
    };
    assert_eq!(peers.len(), 2, "the allowed network, and local sockets");
    let machine = MachineFeatures::default();
    let errors = |accepted: &[String]| -> Vec<String> {
        let problems = check(policy, accepted, &machine);
        let errors = problems.into_iter().filter(Diagnostic::is_error);
        errors.map(|problem| problem.message).collect()
    };
    let needs_proxy = [
        "networkProxyRawRules.egress.httpRules[0]",
        "networkProxyConfig.mitm",
    ];
    let found = errors(&[]);
    assert_eq!(found.len(), 2, "{found:?}");
    for id in needs_proxy {
        assert!(
            found.iter().any(|message| message.contains(id)),
            "{found:?}"
        );
    }
    assert_eq!(errors(&needs_proxy.map(str::to_owned)), [""; 0]);
}

#[test]
fn names_of_enforcers_may_have_anything_between_them() {
    let chosen = |text: &str| Enforcers::parse(text).map(Enforcers::joined);
    for text in [
        "BPF/AppArmor",
        "AppArmor, BPF",
        "apparmor-bpf",
        "AppArmor|BPF",
        "AppArmor & BPF;",
    ] {
        assert_eq!(chosen(text).as_deref(), Some("AppArmorBPF"), "{text}");
    }
    assert_eq!(chosen("AppArmor,,"), Some("AppArmor".to_owned()));
    assert_eq!(chosen("AppArmor and BPF"), None);
    assert_eq!(chosen(", "), None);
}

/// What only a cluster knows is an error that says so, and how to go on without one.
#[test]
fn services_and_pods_outside_a_cluster_are_errors_that_say_where_they_work() {
    for body in [
        "toServices: [{qualifiers: [deny], name: a}]",
        "toPods: [{qualifiers: [deny], podSelector: {matchLabels: {a: b}}}]",
        "toDestinations: [{qualifiers: [deny], ip: pod-self}]",
    ] {
        let text = bare(&format!(
            "    privileged: true\n    bpfRawRules: {{network: {{egress: {{{body}}}}}}}\n"
        ));
        let (policies, found) = load("p.yaml", &text);
        assert_eq!(found, []);
        let problems = check(&policies[0], &[], &MachineFeatures::default());
        assert_eq!(problems[0].code.name(), "POLICY_NO_ENFORCER", "{body}");
        let help = problems[0].help.as_deref().unwrap();
        assert!(
            help.contains("cluster") && help.contains("toDestinations"),
            "{help}"
        );
    }
}

/// What a rule of the proxy asks for is in the policy, or is an error.
#[test]
fn nothing_of_an_allowed_address_is_lost() {
    let load_egress = |default: &str, rule: &str| {
        let egress = format!("{{egress: {{defaultAction: {default}, rules: [{rule}]}}}}");
        let body = format!("    privileged: true\n    networkProxyRawRules: {egress}\n");
        load("p.yaml", &bare(&body))
    };
    for default in ["allow", "deny"] {
        let (policies, found) =
            load_egress(default, "{qualifiers: [allow, audit], cidr: 192.0.2.0/24}");
        assert_eq!(found, [], "{default}");
        let mut rules = policies[0].rules.iter();
        let rule = rules.find(|rule| rule.id.ends_with("rules[0]"));
        let rule = rule.expect("the report is asked for");
        assert_eq!(rule.verdict, RuleAction::Audit, "{default}");
        let is_listed = policies[0].rules.iter().any(|rule| {
            matches!(&rule.restrictions[..], [Restriction::OnlyPeers(peers)] if peers.len() == 2)
        });
        assert_eq!(is_listed, default == "deny");
    }
    let own_pod = "{qualifiers: [allow], ip: pod-self}";
    let (_, found) = load_egress("deny", own_pod);
    let problem = found.first().expect("it would stay denied");
    assert!(
        problem.is_error() && problem.message.contains("pod-self"),
        "{problem:?}"
    );
    let (_, found) = load_egress("allow", own_pod);
    assert_eq!(found, [], "everything is allowed");
}

/// A proxy stands for the enforcers of addresses, and these need no part of their own beside it.
#[test]
fn defense_in_depth_takes_the_rules_of_a_proxy_beside_profiles_or_alone() {
    let profile = "{profileType: Custom, customProfile: '{\"defaultAction\": \"SCMP_ACT_ALLOW\"}'}";
    let proxy = "networkProxy: {egress: {defaultAction: deny, rules: [{qualifiers: [allow], ip: 192.0.2.1}]}}";
    let text = |enforcer: &str, parts: &str| {
        format!(
            "policy:\n  enforcer: {enforcer}\n  mode: DefenseInDepth\n  defenseInDepth: {{{parts}}}\n"
        )
    };
    for (enforcer, parts) in [
        ("NetworkProxy", proxy.to_owned()),
        (
            "SeccompNetworkProxy",
            format!("{proxy}, seccomp: {profile}"),
        ),
    ] {
        let (policies, found) = load("p.yaml", &text(enforcer, &parts));
        assert_eq!(found, [], "{enforcer}");
        let mut rules = policies[0].rules.iter();
        assert!(rules.any(|rule| matches!(rule.restrictions[0], Restriction::OnlyPeers(_))));
    }
    // Without it they would do nothing.
    for (enforcer, parts) in [
        (
            "Seccomp",
            proxy.to_owned() + ", appArmor: {profileType: BehaviorModel}",
        ),
        ("SeccompLandlock", format!("seccomp: {profile}")),
    ] {
        assert_ne!(load("p.yaml", &text(enforcer, &parts)).1, [], "{enforcer}");
    }
}
