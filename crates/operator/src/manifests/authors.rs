//! What authors of pods may not write: annotations that switch confinement off.

use kinds::annotations::{MARK, OF_POLICY};
use serde_json::{Value, json};

use super::admission::deny;
use super::workloads::TOLERATE;
use super::{Installation, of_cluster};

/// Policy about [`TOLERATE`].
const NO_TOLERATION: &str = "tollgate-no-toleration";
/// Policy about marks of pods that exist.
const MARKS_STAY: &str = "tollgate-marks-stay";

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    vec![
        no_toleration(installation),
        deny(NO_TOLERATION),
        marks_stay(),
        deny(MARKS_STAY),
    ]
}

/// A pod with the annotation is created by a runtime without the agent. Whoever may label a namespace allows it there.
/// It is refused in an update, too: the sandbox of a pod is made anew with the annotations that the pod has then.
fn no_toleration(installation: &Installation) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": of_cluster(NO_TOLERATION),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": { "matchExpressions": [
                    { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [installation.namespace] },
                    { "key": TOLERATE, "operator": "NotIn", "values": ["allow"] },
                ] },
                "resourceRules": [pods(&["CREATE", "UPDATE"])],
            },
            "variables": [
                { "name": "now", "expression": annotation("object") },
                { "name": "before", "expression": format!("oldObject == null ? '' : ({})", annotation("oldObject")) },
            ],
            "validations": [{
                "expression": "variables.now == '' || variables.now == variables.before",
                "message": format!(
                    "the annotation {TOLERATE} has the pod created without tollgate: the namespace needs the label {TOLERATE}=allow"
                ),
                "reason": "Forbidden",
            }],
        },
    })
}

/// The annotation with a letter in front, or nothing if it is missing: an empty value is one, too.
fn annotation(object: &str) -> String {
    let annotations = format!("{object}.metadata.annotations");
    format!(
        "has({annotations}) && '{TOLERATE}' in {annotations} ? '=' + {annotations}['{TOLERATE}'] : ''"
    )
}

/// Marks are written when a pod is created, and stay as they are.
fn marks_stay() -> Value {
    let marks = |object: &str| {
        let annotations = format!("{object}.metadata.annotations");
        format!(
            "has({annotations}) ? {annotations}.transformMap(k, v, k.startsWith('{MARK}') || \
             k.startsWith('{OF_POLICY}'), v) : {{}}"
        )
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": of_cluster(MARKS_STAY),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [pods(&["UPDATE"])] },
            "variables": [
                { "name": "now", "expression": marks("object") },
                { "name": "before", "expression": marks("oldObject") },
            ],
            "validations": [{
                "expression": "variables.now == variables.before",
                "message": "marks of tollgate stay as they were when the pod was created",
                "reason": "Forbidden",
            }],
        },
    })
}

fn pods(operations: &[&str]) -> Value {
    json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": operations,
        // An update of the status can change annotations, too.
        "resources": ["pods", "pods/status"] })
}
