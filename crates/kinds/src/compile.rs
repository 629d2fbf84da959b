//! From an object to what crate `policy` loads.

use policy::{Policy, Restriction};
use serde_json::{Map, Value};

use crate::policy_object::PolicyObject;

/// The parts of a policy that belong to one mode.
const PARTS: [(&str, &str); 3] = [
    ("enhanceProtect", "EnhanceProtect"),
    ("modelingOptions", "BehaviorModeling"),
    ("defenseInDepth", "DefenseInDepth"),
];

/// A policy that nodes can take.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// The policy.
    pub policy: Policy,
    /// The document that `policy` was read from: JSON with keys in order of their names, so that equal policies have
    /// equal texts.
    pub text: String,
    /// Rules that need a proxy which terminates connections. tollgate has none: the policy cannot be ready.
    pub needs_proxy: Vec<String>,
}

/// The policy of an object cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot load the policy: {}", problems.join("; "))]
pub struct NotLoaded {
    /// All problems.
    pub problems: Vec<String>,
}

/// Loads the policy of an object. Parts that belong to another mode are left out: objects keep them for a later
/// change of the mode.
///
/// # Errors
///
/// If crate `policy` reports an error.
pub fn load(object: &PolicyObject) -> Result<Compiled, NotLoaded> {
    load_part(&object.metadata.name, object.spec.policy.clone())
}

/// Loads the part `policy` of an object, after a change such as the expansion of Services.
///
/// # Errors
///
/// If crate `policy` reports an error.
pub fn load_part(name: &str, mut part: Map<String, Value>) -> Result<Compiled, NotLoaded> {
    let mode = part
        .get("mode")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    for (key, of_mode) in PARTS {
        if mode != of_mode {
            part.remove(key);
        }
    }
    let mut document = Value::Object(Map::from_iter([("policy".to_owned(), Value::Object(part))]));
    document.sort_all_objects();
    let text = document.to_string();
    let (policies, diagnostics) = policy::load(name, &text);
    let errors = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error());
    let problems: Vec<String> = errors.map(|problem| problem.message.clone()).collect();
    let policy = policies.into_iter().next().filter(|_| problems.is_empty());
    let policy = policy.ok_or(NotLoaded { problems })?;
    Ok(Compiled {
        needs_proxy: needs_proxy(&policy),
        policy,
        text,
    })
}

fn needs_proxy(policy: &Policy) -> Vec<String> {
    let inside = |restriction: &Restriction| matches!(restriction, Restriction::InsideConnections);
    let rules = policy
        .rules
        .iter()
        .filter(|rule| rule.restrictions.iter().any(inside));
    rules.map(|rule| rule.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(policy: Value) -> PolicyObject {
        serde_json::from_value(json!({
            "apiVersion": "crd.varmor.org/v1beta1",
            "kind": "VarmorPolicy",
            "metadata": { "name": "web", "namespace": "demo" },
            "spec": { "target": { "kind": "Deployment", "name": "web" }, "policy": policy },
        }))
        .unwrap()
    }

    #[test]
    fn parts_of_other_modes_are_left_out() {
        let both = json!({
            "enforcer": "BPFSeccomp",
            "mode": "AlwaysAllow",
            "enhanceProtect": { "hardeningRules": ["disallow-mount"] },
            "modelingOptions": { "duration": 3 },
        });
        let compiled = load(&object(both)).unwrap();
        assert_eq!(
            compiled.text,
            r#"{"policy":{"enforcer":"BPFSeccomp","mode":"AlwaysAllow"}}"#
        );
        assert_eq!(compiled.policy.rules, []);
        assert_eq!(compiled.policy.name, "web");
    }

    #[test]
    fn the_order_of_keys_does_not_change_the_text() {
        let one = json!({ "mode": "EnhanceProtect", "enforcer": "BPF",
            "enhanceProtect": { "privileged": true, "hardeningRules": ["disallow-mount"] } });
        let other = json!({ "enhanceProtect": { "hardeningRules": ["disallow-mount"], "privileged": true },
            "enforcer": "BPF", "mode": "EnhanceProtect" });
        let text = |policy| load(&object(policy)).unwrap().text;
        assert_eq!(text(one), text(other));
    }

    #[test]
    fn every_problem_of_a_policy_is_named() {
        let wrong = json!({ "enforcer": "BPF", "mode": "EnhanceProtect",
            "enhanceProtect": { "hardeningRules": ["disallow-mont", "disallow-nothing-at-all"] } });
        let error = load(&object(wrong)).unwrap_err();
        let expected = [
            "no such rule: `disallow-mont`",
            "no such rule: `disallow-nothing-at-all`",
        ];
        assert_eq!(error.problems, expected);
    }

    #[test]
    fn rules_inside_connections_are_named() {
        let proxied = json!({ "enforcer": "NetworkProxy", "mode": "EnhanceProtect", "enhanceProtect": {
            "privileged": true, "networkProxyRawRules": { "egress": { "defaultAction": "allow",
                "rules": [{ "qualifiers": ["deny"], "ip": "10.0.0.1" }],
                "httpRules": [{ "qualifiers": ["deny"], "match": { "hosts": ["a.example"] } }] } } } });
        let compiled = load(&object(proxied)).unwrap();
        assert_eq!(
            compiled.needs_proxy,
            ["networkProxyRawRules.egress.httpRules[0]"]
        );
    }
}
