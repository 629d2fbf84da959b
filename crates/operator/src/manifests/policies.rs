//! What the API server refuses of policies besides what their definitions say: rules about the namespace, and rules that
//! compare lists, whose cost a definition cannot bound.

use kinds::MAX_NAME;
use serde_json::{Value, json};

use super::admission::deny;
use super::{Installation, of_cluster};

const NAME: &str = "tollgate-policies";

/// Characters that end a text in the configuration of vArmor's proxy, as a pattern in an expression.
const UNSAFE: &str = r#"r'[\x00-\x1f\x7f\x{85}\x{2028}\x{2029}"\\]'"#;

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    vec![policies(installation), deny(NAME)]
}

fn policies(installation: &Installation) -> Value {
    let validation =
        |expression: &str, message: &str| json!({ "expression": expression, "message": message });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": of_cluster(NAME),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["crd.varmor.org"],
                "apiVersions": ["v1beta1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["varmorpolicies", "varmorclusterpolicies"],
            }] },
            "variables": variables(installation),
            "validations": [
                validation(
                    // The target of a policy that exists cannot be changed.
                    "oldObject != null || variables.tests.all(t, t.operator in ['In', 'NotIn'] ? \
                     has(t.values) && t.values.size() > 0 : \
                     t.operator in ['Exists', 'DoesNotExist'] && (!has(t.values) || t.values.size() == 0))",
                    "each operator of the target's `matchExpressions` has to be In or NotIn, with `values`, or Exists or DoesNotExist, without",
                ),
                validation(
                    // A policy that exists with such a name can still be changed.
                    &format!("oldObject != null || variables.profile.size() <= {MAX_NAME}"),
                    &format!("the name is too long: the profile is named after it and its namespace, and {MAX_NAME} bytes are the limit"),
                ),
                validation(
                    "variables.mutations.all(m, m.domain in variables.mitm.domains)",
                    "each `domain` of `mitm.headerMutations` has to be one of `mitm.domains`",
                ),
                validation(
                    "variables.mutations.all(m, m.headers.all(h, (has(h.value) && h.value != '') != has(h.secretRef)))",
                    "each header of `mitm.headerMutations` needs one of `value` and `secretRef`, and not both",
                ),
                validation(
                    &safe_proxy(),
                    "names of `mitm` contain a control character, a quote or a backslash",
                ),
                validation(
                    &safe_rules(),
                    "rules of the proxy contain a control character, a quote or a backslash",
                ),
                validation(
                    "variables.limits.all(name, !(name in variables.requests) || \
                     quantity(string(variables.limits[name])).compareTo(quantity(string(variables.requests[name]))) >= 0)",
                    "a limit of `networkProxyConfig.resources` is less than its request",
                ),
            ],
        },
    })
}

fn variables(installation: &Installation) -> Value {
    let namespace = &installation.namespace;
    let variable = |name: &str, expression: &str| json!({ "name": name, "expression": expression });
    let within = |path: &str, key: &str, otherwise: &str| {
        format!("has({path}.{key}) ? {path}.{key} : {otherwise}")
    };
    let rules = |part: &str, key: &str| {
        let part = format!("object.spec.policy.{part}");
        let rules = format!("{part}.{key}");
        format!("(has({part}) && has({rules}) && has({rules}.egress) ? [{rules}.egress] : [])")
    };
    json!([
        variable(
            "profile",
            &format!(
                "object.kind == 'VarmorPolicy' ? 'varmor-' + object.metadata.namespace + '-' + object.metadata.name : \
             'varmor-cluster-{namespace}-' + object.metadata.name"
            )
        ),
        variable(
            "tests",
            "has(object.spec.target.selector) && has(object.spec.target.selector.matchExpressions) ? \
             object.spec.target.selector.matchExpressions : []",
        ),
        variable(
            "proxy",
            &within("object.spec.policy", "networkProxyConfig", "{}")
        ),
        variable("mitm", &within("variables.proxy", "mitm", "{}")),
        variable(
            "mutations",
            &within("variables.mitm", "headerMutations", "[]")
        ),
        variable("resources", &within("variables.proxy", "resources", "{}")),
        variable("requests", &within("variables.resources", "requests", "{}")),
        variable("limits", &within("variables.resources", "limits", "{}")),
        variable(
            "egress",
            &format!(
                "{} + {}",
                rules("enhanceProtect", "networkProxyRawRules"),
                rules("defenseInDepth", "networkProxy")
            )
        ),
    ])
}

/// Names of domains and headers of the proxy.
fn safe_proxy() -> String {
    format!(
        "(!has(variables.mitm.domains) || !variables.mitm.domains.exists(t, t.matches({UNSAFE}))) && \
         !variables.mutations.exists(m, m.headers.exists(h, h.name.matches({UNSAFE})))"
    )
}

/// Texts of the rules about connections.
fn safe_rules() -> String {
    let text = |of: &str, key: &str| format!("has({of}.{key}) && {of}.{key}.matches({UNSAFE})");
    let texts = |of: &str, key: &str| {
        format!("has({of}.{key}) && {of}.{key}.exists(t, t.matches({UNSAFE}))")
    };
    let any = |of: &str, list: &str, one: &str, tests: [String; 2]| {
        let [first, second] = tests;
        format!("has({of}.{list}) && {of}.{list}.exists({one}, {first} || {second})")
    };
    let paths = any(
        "r.match",
        "paths",
        "p",
        [text("p", "exact"), text("p", "prefix")],
    );
    let lists = format!(
        "{} || {}",
        texts("r.match", "hosts"),
        texts("r.match", "methods")
    );
    let requests = any("e", "httpRules", "r", [lists, paths]);
    let addresses = any("e", "rules", "r", [text("r", "ip"), text("r", "cidr")]);
    format!("!variables.egress.exists(e, {requests} || {addresses})")
}
