//! Tests of validation: each case is one change of a policy that is accepted.

use serde_json::json;

use super::*;

const HERE: Installation<'_> = Installation {
    namespace: "tollgate",
    behavior_modeling: true,
};

fn good() -> Value {
    json!({
        "apiVersion": "crd.varmor.org/v1beta1",
        "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": {
            "target": { "kind": "Deployment", "name": "web" },
            "policy": {
                "enforcer": "AppArmorBPFSeccomp",
                "mode": "EnhanceProtect",
                "enhanceProtect": {},
                "networkProxyConfig": { "proxyUID": 1337, "proxyPort": 15001, "proxyAdminPort": 15000 },
            },
        },
    })
}

fn object(value: Value) -> PolicyObject {
    serde_json::from_value(value).unwrap()
}

/// The policy with the value at a path replaced; `null` removes it.
fn with(mut value: Value, path: &str, new: Value) -> Value {
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap();
    match new.is_null() {
        true => drop(parent.as_object_mut().unwrap().remove(key)),
        false => parent[key] = new,
    }
    value
}

fn problems(value: Value) -> Vec<String> {
    let found = policy(&object(value), None, HERE);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn a_policy_with_each_single_mistake_is_refused_for_it() {
    assert_eq!(problems(good()), [""; 0]);
    let selector = json!({ "matchLabels": { "a": "b" } });
    for (path, new, expected) in [
        ("/kind", json!("Pod"), "the kind has to be VarmorPolicy"),
        ("/spec/target/kind", json!("Job"), "found `Job`"),
        (
            "/spec/target/name",
            json!(null),
            "one of `name` and `selector`",
        ),
        (
            "/spec/target/name",
            json!(""),
            "one of `name` and `selector`",
        ),
        ("/spec/target/selector", selector, "and not both"),
        (
            "/spec/policy/enhanceProtect",
            json!(null),
            "EnhanceProtect needs `enhanceProtect`",
        ),
        (
            "/spec/policy/mode",
            json!("BehaviorModeling"),
            "needs `modelingOptions`",
        ),
        ("/metadata/name", json!("a".repeat(60)), "63 are the limit"),
        (
            "/spec/policy/networkProxyConfig/proxyPort",
            json!(15000),
            "has to differ",
        ),
        (
            "/spec/policy/networkProxyConfig/mitm",
            json!({}),
            "needs at least one name",
        ),
    ] {
        let found = problems(with(good(), path, new));
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].contains(expected), "{path}: {found:?}");
    }
}

#[test]
fn modes_refuse_enforcers_that_cannot_serve_them() {
    let modeling = with(good(), "/spec/policy/mode", json!("BehaviorModeling"));
    let modeling = with(
        modeling,
        "/spec/policy/modelingOptions",
        json!({ "duration": 1 }),
    );
    assert_eq!(problems(modeling.clone()), [""; 0]);
    let disabled = Installation {
        behavior_modeling: false,
        ..HERE
    };
    assert_eq!(
        policy(&object(modeling.clone()), None, disabled),
        [Invalid::ModelingDisabled]
    );
    let proxied = with(
        modeling,
        "/spec/policy/enforcer",
        json!("seccompNETWORKPROXY"),
    );
    assert_eq!(
        problems(proxied),
        ["the mode BehaviorModeling cannot use the enforcer NetworkProxy"]
    );
    let depth = with(good(), "/spec/policy/mode", json!("DefenseInDepth"));
    let depth = with(depth, "/spec/policy/defenseInDepth", json!({}));
    assert_eq!(
        problems(depth),
        ["the mode DefenseInDepth cannot use the enforcer BPF"]
    );
}

#[test]
fn changes_that_running_workloads_could_not_follow_are_refused() {
    let old = object(good());
    let changed =
        |path: &str, new: Value| policy(&object(with(good(), path, new)), Some(&old), HERE);
    assert_eq!(
        changed("/spec/policy/enforcer", json!("Seccomp AppArmor")),
        [],
        "BPF can go"
    );
    let enforcer = "AppArmor";
    assert_eq!(
        changed("/spec/policy/enforcer", json!("BPFSeccomp")),
        [Invalid::EnforcerRemoved { enforcer }]
    );
    assert_eq!(
        changed("/spec/target/containers", json!(["c1"])),
        [Invalid::Immutable { field: "target" }]
    );
    for (key, field) in [
        ("proxyUID", "networkProxyConfig.proxyUID"),
        ("proxyPort", "networkProxyConfig.proxyPort"),
        ("proxyAdminPort", "networkProxyConfig.proxyAdminPort"),
    ] {
        let path = format!("/spec/policy/networkProxyConfig/{key}");
        assert_eq!(changed(&path, json!(7)), [Invalid::Immutable { field }]);
        assert_eq!(changed(&path, json!(null)), [Invalid::Immutable { field }]);
    }
    let without = with(good(), "/spec/policy/networkProxyConfig", json!(null));
    let (old, without) = (&old, object(without));
    assert_eq!(policy(&without, Some(old), HERE), []);
    assert_eq!(policy(old, Some(&without), HERE).len(), 3, "set later");
}

#[test]
fn a_recording_is_not_interrupted() {
    let modeling = with(good(), "/spec/policy/mode", json!("BehaviorModeling"));
    let modeling = with(
        modeling,
        "/spec/policy/modelingOptions",
        json!({ "duration": 1 }),
    );
    let mut old = object(modeling.clone());
    let status = crate::PolicyStatus {
        phase: Some(Phase::Modeling),
        ..crate::PolicyStatus::default()
    };
    let changed = |old: &PolicyObject, new: Value| policy(&object(new), Some(old), HERE);
    let other = with(modeling, "/spec/policy/enforcer", json!("AppArmorSeccomp"));
    assert_eq!(changed(&old, good()), []);
    old.status = Some(status);
    assert_eq!(changed(&old, good()), [Invalid::Modeling { field: "mode" }]);
    assert_eq!(
        changed(&old, other),
        [Invalid::Modeling { field: "enforcer" }]
    );
}

#[test]
fn settings_of_the_proxy_are_checked_by_field() {
    let of = |config: Value| problems(with(good(), "/spec/policy/networkProxyConfig", config));
    let mitm = |headers: Value| {
        json!({ "mitm": { "domains": ["a.example"],
            "headerMutations": [{ "domain": "a.example", "headers": headers }] } })
    };
    assert_eq!(of(mitm(json!([{ "name": "x", "value": "y" }]))), [""; 0]);
    let what = "`networkProxyConfig.mitm.headerMutations[0].headers";
    for (headers, expected) in [
        (json!([]), format!("{what}` needs at least one header")),
        (json!([{ "name": "x" }]), format!("{what}[0]` needs one of")),
        (
            json!([{ "name": "x", "value": "y", "secretRef": { "name": "s", "key": "k" } }]),
            format!("{what}[0]` needs one of"),
        ),
        (
            json!([{ "name": "x\ny", "value": "y" }]),
            format!("{what}[0].name` contains"),
        ),
        (
            json!([{ "name": "x", "secretRef": { "name": "s" } }]),
            format!("{what}[0].secretRef.key` is empty"),
        ),
    ] {
        let found = of(mitm(headers));
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{found:?}"
        );
    }
    let resources = |limit: &str| json!({ "resources": { "requests": { "memory": "100Mi", "cpu": 1 }, "limits": { "memory": limit, "cpu": "1" } } });
    assert_eq!(of(resources("0.1Gi")), [""; 0]);
    let field = "`networkProxyConfig.resources.limits.memory`";
    assert_eq!(
        of(resources("100M")),
        [format!("{field} is less than the request")]
    );
    assert_eq!(
        of(resources("much")),
        [format!("{field} or its request is no quantity")]
    );
}

#[test]
fn rules_of_the_proxy_cannot_end_a_text_of_its_configuration() {
    let of = |egress: Value| {
        let part = json!({ "networkProxyRawRules": { "egress": egress } });
        problems(with(good(), "/spec/policy/enhanceProtect", part))
    };
    assert_eq!(of(json!({ "defaultAction": "Deny" })), [""; 0]);
    let what = "`enhanceProtect.networkProxyRawRules.egress";
    for (egress, expected) in [
        (
            json!({ "defaultAction": "denny" }),
            "defaultAction` has to be allow or deny, found `denny`",
        ),
        (
            json!({ "defaultAction": "deny", "rules": [{ "ip": "1\"" }] }),
            "rules[0].ip` contains",
        ),
        (
            json!({ "defaultAction": "deny", "httpRules": [{ "match": { "paths": [{ "exact": "a\\" }] } }] }),
            "httpRules[0].match.paths[0].exact` contains",
        ),
    ] {
        let found = of(egress);
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("{what}.{expected}")),
            "{found:?}"
        );
    }
}
