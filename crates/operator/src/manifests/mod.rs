//! Everything that an installation consists of, as objects of Kubernetes.
//!
//! One source makes the plain manifests and the Helm chart: a chart is the same objects with Helm's expressions in place
//! of [`Installation`]'s values.

mod admission;
mod authors;
mod chart;
mod dashboard;
mod policies;
mod rbac;
mod values;
mod webhook;
mod workloads;

use serde_json::{Value, json};

use values::Values;

pub use chart::{ChartError, write_chart};
pub use dashboard::dashboard;
pub use rbac::{Access, NODE, OPERATOR};
pub use webhook::{MUTATE, VALIDATE, WEBHOOK};

/// What differs between installations.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Namespace of operator and agents.
    pub namespace: String,
    /// Image with the programs `tollgate` and `tollgate-operator`.
    pub image: String,
    /// Agents watch their nodes. They need capabilities then, and read Rulesfiles, Configs and ConfigMaps of the namespace.
    pub detect: bool,
    /// Agents write Events of pods. They need the right to create Events then.
    pub events: bool,
    /// Agents follow violations that `tollgate runtime` reports, and write vArmor's log of them.
    pub violations: bool,
    /// Agents observe containers of policies in the mode BehaviorModeling. They need capabilities then, and the operator the right
    /// to write models.
    pub behavior_modeling: bool,
    /// The operator restarts existing workloads of policies that ask for it. It needs the right to list and change workloads then.
    pub update_workloads: bool,
    /// Agents enforce by BPF LSM in the containers of every runtime. They need capabilities then.
    pub bpf: bool,
    /// Operators give workloads their marks by a webhook, not the API server by itself. They need the right to keep its certificates
    /// then.
    pub webhook: bool,
    /// Further namespaces that the webhook is not asked about, by name: those without whose pods no operator can run.
    pub webhook_exempt: Vec<String>,
    /// Names in the webhook's certificates besides that of its Service.
    pub webhook_names: Vec<String>,
}

/// All objects, in the order in which they can be applied.
#[must_use]
pub fn all(installation: &Installation) -> Vec<Value> {
    let mut objects = kinds::crd::all();
    objects.push(namespace(installation));
    objects.extend(without_definitions(
        installation,
        &Values::usual(installation),
    ));
    objects
}

/// All objects but the kinds and the namespace.
fn without_definitions(installation: &Installation, values: &Values) -> Vec<Value> {
    let mut objects = rbac::objects(installation);
    objects.extend(admission::objects(installation));
    objects.extend(authors::objects(installation));
    objects.extend(policies::objects(installation));
    objects.extend(workloads::objects(installation, values));
    objects.extend(webhook::objects(installation));
    objects
}

/// The namespace. Agents mount folders of their node, which only the level `privileged` allows.
fn namespace(installation: &Installation) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": installation.namespace,
            "labels": { "pod-security.kubernetes.io/enforce": "privileged" },
        },
    })
}

/// Labels of everything of a part of the installation.
fn labels(name: &str) -> Value {
    json!({ "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "tollgate" })
}

/// `metadata` of an object in the namespace of the installation.
fn in_namespace(installation: &Installation, name: &str) -> Value {
    json!({ "name": name, "namespace": installation.namespace, "labels": labels(name) })
}

/// `metadata` of an object of the cluster.
fn of_cluster(name: &str) -> Value {
    json!({ "name": name, "labels": labels(name) })
}
