//! Policies that vArmor's webhook refuses are refused by the API server, and by the library that the operator uses.

use apiserver::real::until;
use e2e::need_api_server;
use kinds::validate::{Installation, policy};
use kinds::{MAX_NAME, PolicyObject};
use serde_json::{Value, json};

use super::installed::{Installed, NAMESPACE, of, text};

const HERE: Installation<'_> = Installation {
    namespace: NAMESPACE,
    behavior_modeling: true,
};

/// A policy with every part, that is taken.
fn good(kind: &str) -> Value {
    let headers = json!([{ "name": "x", "value": "y" }, { "name": "z", "secretRef": { "name": "s", "key": "k" } }]);
    let egress = json!({ "defaultAction": "Deny", "rules": [{ "qualifiers": ["allow"], "ip": "10.0.0.1" }],
        "httpRules": [{ "qualifiers": ["allow"], "match": { "hosts": ["a.example"], "methods": ["GET"],
            "paths": [{ "exact": "/x" }, { "prefix": "/y" }] } }] });
    let mut policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": kind, "metadata": { "name": "whole" },
        "spec": {
            "target": { "kind": "Deployment", "name": "web" },
            "policy": {
                "enforcer": "AppArmorSeccompNetworkProxy",
                "mode": "EnhanceProtect",
                "enhanceProtect": { "networkProxyRawRules": { "egress": egress } },
                "defenseInDepth": { "networkProxy": { "egress": egress } },
                "modelingOptions": { "duration": 1 },
                "networkProxyConfig": {
                    "proxyUID": 1337, "proxyPort": 15001, "proxyAdminPort": 15000,
                    "resources": { "requests": { "memory": "100Mi", "cpu": 1 }, "limits": { "memory": "0.1Gi", "cpu": "1" } },
                    "mitm": { "domains": ["a.example"], "headerMutations": [{ "domain": "a.example", "headers": headers }] },
                },
            },
        } });
    if kind == "VarmorPolicy" {
        policy["metadata"]["namespace"] = json!("demo");
    }
    policy
}

/// The policy with other values at these paths; `null` takes the value out.
fn with(mut policy: Value, changes: &[(&str, Value)]) -> Value {
    for (path, new) in changes {
        let (parent, last) = path.rsplit_once('/').expect("it is a path");
        let parent = policy
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("there is no {path}"));
        match (parent, new) {
            (Value::Object(parent), Value::Null) => drop(parent.remove(last)),
            (Value::Array(parent), new) => {
                parent[last.parse::<usize>().expect("a number")] = new.clone()
            }
            (parent, new) => parent[last] = new.clone(),
        }
    }
    policy
}

const ENFORCER: &str = "/spec/policy/enforcer";
const MODE: &str = "/spec/policy/mode";
const PROXY: &str = "/spec/policy/networkProxyConfig";

/// Changes of the spec of the good policy, as PATH JSON, and a part of what the API server says of them; `null` takes a value
/// out. The first three are about the target.
const REFUSED: &str = r#"
/target/kind "Job" -- the kind has to be Deployment
/target/name null -- one of `name` and `selector`
/target/selector {} -- one of `name` and `selector`
/policy/enhanceProtect null -- needs `enhanceProtect`
/policy/mode "DefenseInDepth" & /policy/defenseInDepth null -- needs `defenseInDepth`
/policy/mode "DefenseInDepth" & /policy/enforcer "AppArmorBPF" -- DefenseInDepth cannot use the enforcer BPF
/policy/mode "BehaviorModeling" & /policy/enforcer "Seccomp" & /policy/modelingOptions null -- needs `modelingOptions`
/policy/mode "BehaviorModeling" -- BehaviorModeling cannot use the enforcer NetworkProxy
/policy/networkProxyConfig/proxyPort 15000 -- have to differ
/policy/networkProxyConfig/mitm/domains [] -- mitm.domains
/policy/networkProxyConfig/mitm/domains/0 "b.example" -- has to be one of `mitm.domains`
/policy/networkProxyConfig/mitm/domains ["a.example", "a\""] -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers [] -- headers
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "" -- headers[0].name
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/value null -- one of `value` and `secretRef`
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/value "" -- one of `value` and `secretRef`
/policy/networkProxyConfig/mitm/headerMutations/0/headers/1/value "y" -- one of `value` and `secretRef`
/policy/networkProxyConfig/mitm/headerMutations/0/headers/1/secretRef/key "" -- secretRef.key
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u0000" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u001f" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u007f" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u0085" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u2028" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\u2029" -- names of `mitm` contain
/policy/networkProxyConfig/mitm/headerMutations/0/headers/0/name "a\\" -- names of `mitm` contain
/policy/networkProxyConfig/resources/limits/memory "100M" -- less than its request
/policy/networkProxyConfig/resources/limits/cpu "999m" -- less than its request
/policy/enhanceProtect/networkProxyRawRules/egress/defaultAction "denny" -- has to be allow or deny
/policy/enhanceProtect/networkProxyRawRules/egress/rules/0/ip "a\n" -- rules of the proxy contain
/policy/enhanceProtect/networkProxyRawRules/egress/rules/0/cidr "a\"b" -- rules of the proxy contain
/policy/enhanceProtect/networkProxyRawRules/egress/httpRules/0/match/hosts/0 "a\n" -- rules of the proxy contain
/policy/enhanceProtect/networkProxyRawRules/egress/httpRules/0/match/methods/0 "a\n" -- rules of the proxy contain
/policy/enhanceProtect/networkProxyRawRules/egress/httpRules/0/match/paths/0/exact "a\n" -- rules of the proxy contain
/policy/enhanceProtect/networkProxyRawRules/egress/httpRules/0/match/paths/1/prefix "a\n" -- rules of the proxy contain
/policy/defenseInDepth/networkProxy/egress/defaultAction "denny" -- has to be allow or deny
/policy/defenseInDepth/networkProxy/egress/rules/0/ip "a\n" -- rules of the proxy contain
/policy/defenseInDepth/networkProxy/egress/httpRules/0/match/methods/0 "a\n" -- rules of the proxy contain
"#;

/// Changes that a policy which exists may not have.
const REFUSED_LATER: &str = r#"
/target/name "other" -- the target cannot be changed
/target/containers ["c"] -- the target cannot be changed
/policy/enforcer "SeccompNetworkProxy" -- AppArmor cannot be removed
/policy/enforcer "AppArmorNetworkProxy" -- Seccomp cannot be removed
/policy/enforcer "AppArmorSeccomp" -- NetworkProxy cannot be removed
/policy/networkProxyConfig/proxyUID 1 -- `proxyUID` cannot be changed
/policy/networkProxyConfig/proxyUID null -- `proxyUID` cannot be changed
/policy/networkProxyConfig/proxyPort 1 -- `proxyPort` cannot be changed
/policy/networkProxyConfig/proxyPort null -- `proxyPort` cannot be changed
/policy/networkProxyConfig/proxyAdminPort 1 -- `proxyAdminPort` cannot be changed
/policy/networkProxyConfig/proxyAdminPort null -- `proxyAdminPort` cannot be changed
"#;

/// The rows of a table: the policy, changed, and what is said of it.
fn changed(table: &'static str, kind: &str) -> Vec<(Value, &'static str)> {
    let row = |row: &'static str| {
        let (changes, expected) = row.split_once(" -- ").expect("a row has a message");
        let changes = changes.split(" & ").map(|change| {
            let (path, new) = change.split_once(' ').expect("a change has a value");
            let new = serde_json::from_str(new).unwrap_or_else(|error| panic!("{change}: {error}"));
            (format!("/spec{path}"), new)
        });
        let policy = changes.fold(good(kind), |policy, (path, new)| {
            with(policy, &[(path.as_str(), new)])
        });
        (policy, expected)
    };
    table
        .lines()
        .filter(|line| !line.is_empty())
        .map(row)
        .collect()
}

/// Selectors that nobody can read: vArmor takes them and applies them to nothing.
fn unreadable_selectors() -> Vec<Value> {
    let test = |operator: &str, values: Value| {
        let mut test = json!({ "key": "a", "operator": operator });
        if !values.is_null() {
            test["values"] = values;
        }
        json!({ "matchExpressions": [{ "key": "b", "operator": "Exists" }, test] })
    };
    vec![
        test("Within", json!(["x"])),
        test("in", json!(["x"])),
        test("In", Value::Null),
        test("NotIn", json!([])),
        test("Exists", json!(["x"])),
        test("DoesNotExist", json!(["x"])),
    ]
}

fn object(value: &Value) -> PolicyObject {
    serde_json::from_value(value.clone()).expect("it is a policy")
}

/// Both the API server and the library refuse the policy, which replaces `old` if there is one.
fn is_refused(installed: &Installed, new: &Value, old: Option<&Value>, expected: &str) {
    let tried = match old {
        Some(_) => installed.try_apply(new),
        None => installed.try_create(new),
    };
    let error = tried.expect_err(expected).to_string();
    assert!(error.contains(expected), "{expected}: {error}");
    assert!(error.contains(": 422 "), "{error}");
    let old = old.map(object);
    let found = policy(&object(new), old.as_ref(), HERE);
    assert!(
        !found.is_empty(),
        "the library takes what has to be refused: {expected}"
    );
}

fn wrong_policies_are_not_created(installed: &Installed, kind: &str) {
    for (wrong, expected) in changed(REFUSED, kind) {
        is_refused(installed, &wrong, None, expected);
    }
    for selector in unreadable_selectors() {
        let wrong = with(
            good(kind),
            &[
                ("/spec/target/name", Value::Null),
                ("/spec/target/selector", selector),
            ],
        );
        let error = installed
            .try_create(&wrong)
            .expect_err("nobody can read it")
            .to_string();
        assert!(
            error.contains("`matchExpressions` has to be In or NotIn"),
            "{error}"
        );
    }
    let prefix = match kind {
        "VarmorPolicy" => "varmor-demo-".len(),
        _ => format!("varmor-cluster-{NAMESPACE}-").len(),
    };
    let named = |length: usize| with(good(kind), &[("/metadata/name", json!("a".repeat(length)))]);
    is_refused(
        installed,
        &named(MAX_NAME - prefix + 1),
        None,
        "the name is too long",
    );
    let longest = named(MAX_NAME - prefix);
    installed.try_create(&longest).expect("it is not too long");
    assert_eq!(policy(&object(&longest), None, HERE), []);
}

fn wrong_changes_are_refused(installed: &Installed, kind: &str) {
    let old = installed.apply(&good(kind)).expect("the policy is right");
    for (wrong, expected) in changed(REFUSED_LATER, kind) {
        is_refused(installed, &wrong, Some(&old), expected);
    }
    // What is refused at first is refused later, too; it may break another rule besides.
    for (wrong, expected) in changed(REFUSED, kind) {
        let error = installed.try_apply(&wrong).expect_err(expected);
        assert_eq!(error.code(), Some(422), "{expected}: {error}");
    }
    for changes in [
        vec![(MODE, json!("AlwaysAllow"))],
        vec![(ENFORCER, json!("bpf networkproxy SECCOMP apparmor"))],
        vec![(PROXY, Value::Null)],
    ] {
        let new = with(good(kind), &changes);
        installed
            .try_apply(&new)
            .unwrap_or_else(|error| panic!("{changes:?}: {error}"));
        assert_eq!(
            policy(&object(&new), Some(&object(&old)), HERE),
            [],
            "{changes:?}"
        );
    }
}

fn the_proxy_is_not_set_later(installed: &Installed, kind: &str) {
    let named = |name: &str, changes: &[(&str, Value)]| {
        let mut all = vec![("/metadata/name", json!(name))];
        all.extend(changes.iter().cloned());
        with(good(kind), &all)
    };
    let old = installed.apply(&named("bare", &[(PROXY, Value::Null)]));
    let old = old.expect("the policy is right");
    is_refused(
        installed,
        &named("bare", &[]),
        Some(&old),
        "cannot be set later",
    );
    let others = json!({ "resources": { "limits": { "memory": "1Gi" } } });
    installed
        .try_apply(&named("bare", &[(PROXY, others)]))
        .expect("nothing of it is fixed");
}

fn a_recording_is_not_interrupted(installed: &Installed, kind: &str) {
    let modeling = |enforcer: &str, mode: &str| {
        let changes = [
            ("/metadata/name", json!("models")),
            (MODE, json!(mode)),
            (ENFORCER, json!(enforcer)),
        ];
        with(good(kind), &changes)
    };
    let recording = modeling("Seccomp", "BehaviorModeling");
    installed.apply(&recording).expect("the policy is right");
    let phase = |phase: &str| {
        let mut object = recording.clone();
        object["status"] = json!({ "profileName": "p", "ready": false, "phase": phase });
        if let Some(object) = object.as_object_mut() {
            object.remove("spec");
        }
        let written = installed.client().apply_status(&of(kind), &object);
        written.expect("the status is right")
    };
    let old = phase("Modeling");
    is_refused(
        installed,
        &modeling("Seccomp", "EnhanceProtect"),
        Some(&old),
        "the mode cannot be changed",
    );
    is_refused(
        installed,
        &modeling("SeccompAppArmor", "BehaviorModeling"),
        Some(&old),
        "the enforcer cannot be changed",
    );
    phase("Completed");
    let changed = installed.try_apply(&modeling("Seccomp", "EnhanceProtect"));
    changed.expect("the recording is complete");
}

#[test]
fn what_the_webhook_of_the_peer_refuses_is_refused_without_one() {
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
    // Policies of admission come into force some time after they were written.
    let canary = with(
        good("VarmorPolicy"),
        &[("/metadata/name", json!("a".repeat(60)))],
    );
    until(|| match installed.try_create(&canary) {
        Ok(_) => Err("it is allowed".to_owned()),
        Err(error) => Ok(error),
    })
    .expect("it comes into force");
    for kind in ["VarmorPolicy", "VarmorClusterPolicy"] {
        let taken = installed
            .try_create(&good(kind))
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(text(&taken["kind"]), kind);
        assert_eq!(policy(&object(&good(kind)), None, HERE), []);
        wrong_policies_are_not_created(&installed, kind);
        wrong_changes_are_refused(&installed, kind);
        the_proxy_is_not_set_later(&installed, kind);
        a_recording_is_not_interrupted(&installed, kind);
    }
}
