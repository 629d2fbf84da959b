//! The webhook, in place of MutatingAdmissionPolicies: for Kubernetes before 1.36, and for many policies in a namespace.

use serde_json::{Value, json};

use super::{Installation, OPERATOR, in_namespace, labels, of_cluster};

/// Name of the Service, the Secret, and the configurations.
pub const WEBHOOK: &str = "tollgate-webhook";
/// Path that gives workloads their marks.
pub const MUTATE: &str = "/mutate";
/// Path that says whether policies are valid.
pub const VALIDATE: &str = "/validate";
/// Port of the operator's pods.
pub(super) const WEBHOOK_PORT: u16 = 9443;

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    if !installation.webhook {
        return Vec::new();
    }
    let configuration = |kind: &str, webhooks: Value| {
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": of_cluster(WEBHOOK),
            "webhooks": webhooks })
    };
    let pods = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
        "scope": "Namespaced" });
    let workloads = json!({ "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments", "statefulsets", "daemonsets"], "scope": "Namespaced" });
    let policies = json!({ "apiGroups": ["crd.varmor.org"], "apiVersions": ["v1beta1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["varmorpolicies", "varmorclusterpolicies"], "scope": "*" });
    vec![
        // Empty: the leader fills it. It may create none, because a right to create cannot be bound to a name.
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": in_namespace(installation, WEBHOOK),
            "type": "Opaque",
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": in_namespace(installation, WEBHOOK),
            "spec": {
                "selector": labels(OPERATOR),
                "ports": [{ "name": "webhook", "port": 443, "targetPort": WEBHOOK_PORT, "protocol": "TCP" }],
            },
        }),
        configuration(
            "MutatingWebhookConfiguration",
            json!([
                marking(installation, "pods.marks.tollgate.dev", pods),
                marking(installation, "workloads.marks.tollgate.dev", workloads),
            ]),
        ),
        configuration(
            "ValidatingWebhookConfiguration",
            json!([webhook(
                installation,
                "policies.tollgate.dev",
                VALIDATE,
                policies
            )]),
        ),
    ]
}

/// Refuses an object if no operator answers: an object without its marks would run without its policies, and nobody would see it.
/// The operators' own pods and those of the control plane are not asked about, so that they can come up.
fn marking(installation: &Installation, name: &str, rule: Value) -> Value {
    let mut marking = webhook(installation, name, MUTATE, rule);
    marking["reinvocationPolicy"] = json!("IfNeeded");
    // By name, which the API server writes itself: whoever may label a namespace must not switch marks off by it.
    let mut exempt = vec![installation.namespace.as_str(), "kube-system"];
    exempt.extend(installation.webhook_exempt.iter().map(String::as_str));
    marking["namespaceSelector"] = json!({ "matchExpressions": [
        { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt },
    ] });
    marking
}

fn webhook(installation: &Installation, name: &str, path: &str, rule: Value) -> Value {
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": { "service": { "name": WEBHOOK, "namespace": installation.namespace, "path": path, "port": 443 } },
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": 5,
    })
}
