//! `k8s.*`: the pod the process runs in.

use super::container::{label, labels};
use super::{ArgumentKind, Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{self};
use crate::{Event, Value};

pub(super) const CLASS: Class = Class {
    name: "k8s",
    description: "The Kubernetes pod the process runs in.",
};

const TEXT: ValueType = ValueType::Text;
const POD: Source = Source::Process(Fact::Container);
const LABEL: ArgumentKind = ArgumentKind::Label;
const RUNTIME: &str = "tollgate does not query the container runtime";
const API: &str = "tollgate does not query the Kubernetes API";

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "k8s.pod.name",
        TEXT,
        POD,
        |e, _| pod(e, |(name, _, _)| name),
        "Name of the pod.",
    ),
    FieldSpec::new(
        "k8s.ns.name",
        TEXT,
        POD,
        |e, _| pod(e, |(_, namespace, _)| namespace),
        "Namespace of the pod.",
    ),
    FieldSpec::new(
        "k8s.pod.uid",
        TEXT,
        POD,
        |e, _| pod(e, |(_, _, uid)| uid),
        "Unique id of the pod.",
    ),
    FieldSpec::new(
        "k8s.pod.id",
        TEXT,
        POD,
        |e, _| pod(e, |(_, _, uid)| uid),
        "The same as k8s.pod.uid.",
    ),
    FieldSpec::new(
        "k8s.pod.sandbox_id",
        TEXT,
        POD,
        |e, _| sandbox(e, Some(12)),
        "First 12 characters of the id of the pod's sandbox.",
    ),
    FieldSpec::new(
        "k8s.pod.full_sandbox_id",
        TEXT,
        POD,
        |e, _| sandbox(e, None),
        "Id of the pod's sandbox.",
    ),
    FieldSpec::new(
        "k8s.pod.label",
        TEXT,
        POD,
        |e, a| label(&e.container().details.pod_labels, a),
        "One label of the pod.",
    )
    .with(LABEL),
    FieldSpec::new(
        "k8s.pod.labels",
        TEXT,
        POD,
        |e, _| labels(e, &e.container().details.pod_labels),
        "All labels of the pod: key:value, separated by commas.",
    ),
    FieldSpec::new(
        "k8s.pod.ip",
        TEXT,
        POD,
        |e, _| Value::or_absent(e.container().details.pod_ip.as_deref().map(Value::text)),
        "Address of the pod; known where the container runtime tells it to `tollgate node`.",
    ),
    FieldSpec::absent(
        "k8s.pod.cni.json",
        TEXT,
        RUNTIME,
        "Result of the network plugin.",
    ),
    FieldSpec::absent(
        "k8s.rc.name",
        TEXT,
        API,
        "Name of the replication controller.",
    ),
    FieldSpec::absent("k8s.rc.id", TEXT, API, "Id of the replication controller."),
    FieldSpec::absent(
        "k8s.rc.label",
        TEXT,
        API,
        "One label of the replication controller.",
    )
    .with(LABEL),
    FieldSpec::absent(
        "k8s.rc.labels",
        TEXT,
        API,
        "All labels of the replication controller.",
    ),
    FieldSpec::absent("k8s.svc.name", TEXT, API, "Name of the service."),
    FieldSpec::absent("k8s.svc.id", TEXT, API, "Id of the service."),
    FieldSpec::absent("k8s.svc.label", TEXT, API, "One label of the service.").with(LABEL),
    FieldSpec::absent("k8s.svc.labels", TEXT, API, "All labels of the service."),
    FieldSpec::absent("k8s.ns.id", TEXT, API, "Id of the namespace."),
    FieldSpec::absent("k8s.ns.label", TEXT, API, "One label of the namespace.").with(LABEL),
    FieldSpec::absent("k8s.ns.labels", TEXT, API, "All labels of the namespace."),
    FieldSpec::new(
        "k8s.rs.name",
        TEXT,
        POD,
        |e, _| replica_set(e),
        "Name of the replica set, where labels and name of the pod tell it; else unknown.",
    ),
    FieldSpec::absent("k8s.rs.id", TEXT, API, "Id of the replica set."),
    FieldSpec::absent("k8s.rs.label", TEXT, API, "One label of the replica set.").with(LABEL),
    FieldSpec::absent("k8s.rs.labels", TEXT, API, "All labels of the replica set."),
    FieldSpec::new(
        "k8s.deployment.name",
        TEXT,
        POD,
        |e, _| deployment(e),
        "Name of the deployment, by the labels and the name that its controllers give to a pod; unknown where these do not fit.",
    ),
    FieldSpec::absent("k8s.deployment.id", TEXT, API, "Id of the deployment."),
    FieldSpec::absent(
        "k8s.deployment.label",
        TEXT,
        API,
        "One label of the deployment.",
    )
    .with(LABEL),
    FieldSpec::absent(
        "k8s.deployment.labels",
        TEXT,
        API,
        "All labels of the deployment.",
    ),
];

fn sandbox<'a>(event: &Event<'a>, length: Option<usize>) -> Value<'a> {
    let id = event.container().details.sandbox_id.as_deref();
    let short = |id: &'a str| length.and_then(|length| id.get(..length)).unwrap_or(id);
    Value::or_absent(id.map(short).map(Value::text))
}

/// The label that the controller of Deployments gives to pods and replica sets.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Labels that other controllers give to their pods.
const OTHER_CONTROLLERS: [&str; 3] = [
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "job-name",
];
/// What Kubernetes draws random names and encodes hashes with: no vowels, and nothing that looks like one
/// (`k8s.io/apimachinery/pkg/util/rand`).
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Bytes at the end of a generated name.
const RANDOM: usize = 5;

/// Replica set and deployment of a pod; `None` unless its name is `DEPLOYMENT-HASH-RANDOM`. The API server cuts what comes before
/// the random end at 58 bytes: a name with the whole hash is not cut.
fn made_by_deployment<'p>(pod: &'p str, hash: &str) -> Option<(&'p str, &'p str)> {
    let is_drawn =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| ALPHABET.contains(&byte));
    let (replica_set, random) = pod.rsplit_once('-')?;
    let deployment = replica_set.strip_suffix(hash)?.strip_suffix('-')?;
    let fits = random.len() == RANDOM && is_drawn(random) && is_drawn(hash);
    (fits && !deployment.is_empty()).then_some((replica_set, deployment))
}

fn deployment<'a>(event: &Event<'a>) -> Value<'a> {
    let container = event.container();
    let Some((name, ..)) = &container.pod else {
        return Value::Absent;
    };
    let labels = &container.details.pod_labels;
    match labels.get(TEMPLATE_HASH) {
        Some(hash) => made_by_deployment(name, hash)
            .map_or(Value::Unknown, |(_, deployment)| Value::text(deployment)),
        // The labels are not known.
        None if labels.is_empty() && container.undescribed.is_some() => Value::Unknown,
        None => Value::Absent,
    }
}

fn replica_set<'a>(event: &Event<'a>) -> Value<'a> {
    let container = event.container();
    let Some((name, ..)) = &container.pod else {
        return Value::Absent;
    };
    let labels = &container.details.pod_labels;
    let has_other = OTHER_CONTROLLERS
        .iter()
        .any(|label| labels.contains_key(*label));
    match labels.get(TEMPLATE_HASH) {
        Some(hash) => made_by_deployment(name, hash)
            .map_or(Value::Unknown, |(replica_set, _)| Value::text(replica_set)),
        None if has_other => Value::Absent,
        // Replica sets without a deployment give no label of their own.
        None => Value::Unknown,
    }
}

fn pod<'a>(event: &Event<'a>, part: fn(&(String, String, String)) -> &String) -> Value<'a> {
    Value::or_absent(
        event
            .container()
            .pod
            .as_ref()
            .map(|pod| Value::text(part(pod))),
    )
}
