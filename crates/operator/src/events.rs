//! Events: what `kubectl describe` shows of a policy.

use apiserver::{ApiError, Client, Resource};
use cluster::{DesiredProfile, Release};
use jiff::Timestamp;
use kinds::crd::Definition;
use kinds::{Condition, ConditionStatus, PolicyObject, PolicyStatus};
use serde_json::{Value, json};

/// Namespace of Events about objects of the cluster, as of all of Kubernetes.
const OF_CLUSTER: &str = "default";
/// Maximum length in bytes of a note, which the API server limits.
const MAX_NOTE: usize = 1000;

/// Conditions whose changes are Events.
const TOLD: [&str; 2] = ["Ready", "WorkloadsUpdated"];

fn find<'s>(status: Option<&'s PolicyStatus>, kind: &str) -> Option<&'s Condition> {
    let mut conditions = status?.conditions.iter();
    conditions.find(|condition| condition.kind == kind)
}

/// The Events of a change of status: that the policy is enforced, and that its workloads are restarted.
pub(crate) fn of_change(
    policy: &PolicyObject,
    status: &PolicyStatus,
    instance: &str,
) -> Vec<Value> {
    let told = TOLD.iter().filter_map(|kind| {
        let now = find(Some(status), kind)?;
        let before = find(policy.status.as_ref(), kind);
        let is_same =
            |before: &Condition| before.status == now.status && before.reason == now.reason;
        (!before.is_some_and(is_same)).then(|| of_condition(policy, now, instance))
    });
    told.collect()
}

fn of_condition(policy: &PolicyObject, now: &Condition, instance: &str) -> Value {
    let note = match now.message.is_empty() {
        true => format!("{} is {:?}", now.kind, now.status),
        false => cut(&now.message),
    };
    let reason = match now.reason.is_empty() {
        true => &now.kind,
        false => &now.reason,
    };
    let kind = match now.status {
        ConditionStatus::False => "Warning",
        ConditionStatus::True | ConditionStatus::Unknown => "Normal",
    };
    event(regarding(policy), [kind, reason, &note], instance)
}

/// The Event of a policy on which another installation acts.
pub(crate) fn of_inactive(policy: &PolicyObject, condition: &Condition, instance: &str) -> Value {
    let note = cut(&condition.message);
    event(
        regarding(policy),
        ["Warning", &condition.reason, &note],
        instance,
    )
}

/// A text that is no longer than a note may be.
fn cut(text: &str) -> String {
    let mut note = text.to_owned();
    while note.len() > MAX_NOTE {
        note.pop();
    }
    note
}

/// The Event of a profile that was written for a policy.
pub(crate) fn of_profile(policy: &PolicyObject, profile: &DesiredProfile, instance: &str) -> Value {
    let (namespace, name) = (&profile.namespace, &profile.name);
    let hash: String = profile.spec.profile.hash.chars().take(16).collect();
    let note = format!("the ArmorProfile {namespace}/{name} has the policy {hash}");
    let text = ["Normal", "ProfileWritten", &note];
    event(regarding(policy), text, instance)
}

/// The Event of a profile that goes, and whose marks stay in workloads.
pub(crate) fn of_marks_left(release: &Release, cause: &str, instance: &str) -> Value {
    let note = cut(&format!(
        "the marks of the profile stay in the templates of workloads: {cause}"
    ));
    event(
        of_profile_object(release),
        ["Warning", "MarksLeft", &note],
        instance,
    )
}

/// The Event of a profile that is gone.
pub(crate) fn of_release(release: &Release, instance: &str) -> Value {
    let (kind, note) = match release.is_seen {
        true => ("Normal", "all nodes have seen the deletion"),
        false => (
            "Warning",
            "not all nodes have seen the deletion in two minutes: those that are late confine by it until they do",
        ),
    };
    event(
        of_profile_object(release),
        [kind, "ProfileDeleted", note],
        instance,
    )
}

/// A reference to a profile that goes.
fn of_profile_object(release: &Release) -> Value {
    let definition = Definition::of_kind("ArmorProfile").expect("the kind is in the table");
    json!({
        "apiVersion": definition.api_version(),
        "kind": "ArmorProfile",
        "name": release.key.name,
        "namespace": release.key.namespace,
        "uid": release.uid,
    })
}

/// A reference to a policy.
fn regarding(policy: &PolicyObject) -> Value {
    let metadata = &policy.metadata;
    let mut regarding = json!({
        "apiVersion": policy.api_version,
        "kind": policy.kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    });
    if let Some(namespace) = metadata.namespace.as_deref() {
        regarding["namespace"] = json!(namespace);
    }
    regarding
}

/// An Event: type, reason and note.
fn event(regarding: Value, [kind, reason, note]: [&str; 3], instance: &str) -> Value {
    let time = Timestamp::now();
    let name = regarding["name"].as_str().unwrap_or_default();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{name}.{:x}", time.as_nanosecond()),
            "namespace": regarding["namespace"].as_str().unwrap_or(OF_CLUSTER),
        },
        "eventTime": time.strftime("%FT%T.%6fZ").to_string(),
        "reportingController": "tollgate.dev/operator",
        "reportingInstance": instance,
        "action": "Enforce",
        "reason": reason,
        "type": kind,
        "regarding": regarding,
        "note": note,
    })
}

/// Writes an Event. One that is lost is no loss of state: the status has the same.
pub(crate) fn write(client: &Client, event: &Value) -> Result<(), ApiError> {
    let resource = Resource::new("events.k8s.io", "v1", "events");
    client.create(&resource, event).map(drop)
}
