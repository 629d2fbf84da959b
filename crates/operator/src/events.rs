//! Events: what `kubectl describe` shows of a policy.

use apiserver::{ApiError, Client, Resource};
use jiff::Timestamp;
use kinds::{Condition, ConditionStatus, PolicyObject, PolicyStatus};
use serde_json::{Value, json};

/// Namespace of Events about objects of the cluster, as of all of Kubernetes.
const OF_CLUSTER: &str = "default";
/// Maximum length in bytes of a note, which the API server limits.
const MAX_NOTE: usize = 1000;

/// The condition that says whether a policy is enforced.
fn ready(status: Option<&PolicyStatus>) -> Option<&Condition> {
    let mut conditions = status?.conditions.iter();
    conditions.find(|condition| condition.kind == "Ready")
}

/// The Event of a change of readiness; `None` if it has not changed.
pub(crate) fn of_change(
    policy: &PolicyObject,
    status: &PolicyStatus,
    instance: &str,
) -> Option<Value> {
    let now = ready(Some(status))?;
    let before = ready(policy.status.as_ref());
    let is_same = |before: &Condition| before.status == now.status && before.reason == now.reason;
    if before.is_some_and(is_same) {
        return None;
    }
    let mut note = match now.message.is_empty() {
        true => format!("Ready is {:?}", now.status),
        false => now.message.clone(),
    };
    while note.len() > MAX_NOTE {
        note.pop();
    }
    let time = Timestamp::now();
    let (metadata, namespace) = (&policy.metadata, policy.metadata.namespace.as_deref());
    let mut regarding = json!({
        "apiVersion": policy.api_version,
        "kind": policy.kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    });
    if let Some(namespace) = namespace {
        regarding["namespace"] = json!(namespace);
    }
    Some(json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:x}", metadata.name, time.as_nanosecond()),
            "namespace": namespace.unwrap_or(OF_CLUSTER),
        },
        "eventTime": time.strftime("%FT%T.%6fZ").to_string(),
        "reportingController": "tollgate.dev/operator",
        "reportingInstance": instance,
        "action": "Enforce",
        "reason": match now.reason.is_empty() {
            true => "Ready",
            false => &now.reason,
        },
        "type": match now.status {
            ConditionStatus::False => "Warning",
            ConditionStatus::True | ConditionStatus::Unknown => "Normal",
        },
        "regarding": regarding,
        "note": note,
    }))
}

/// Writes an Event. One that is lost is no loss of state: the status has the same.
pub(crate) fn write(client: &Client, event: &Value) -> Result<(), ApiError> {
    let resource = Resource::new("events.k8s.io", "v1", "events");
    client.create(&resource, event).map(drop)
}
