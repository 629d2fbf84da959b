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
    FieldSpec::absent("k8s.rs.name", TEXT, API, "Name of the replica set."),
    FieldSpec::absent("k8s.rs.id", TEXT, API, "Id of the replica set."),
    FieldSpec::absent("k8s.rs.label", TEXT, API, "One label of the replica set.").with(LABEL),
    FieldSpec::absent("k8s.rs.labels", TEXT, API, "All labels of the replica set."),
    FieldSpec::absent("k8s.deployment.name", TEXT, API, "Name of the deployment."),
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

fn pod<'a>(event: &Event<'a>, part: fn(&(String, String, String)) -> &String) -> Value<'a> {
    Value::or_absent(
        event
            .container()
            .pod
            .as_ref()
            .map(|pod| Value::text(part(pod))),
    )
}
