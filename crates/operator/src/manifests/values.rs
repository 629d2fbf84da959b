//! What whoever installs decides about the pods: literals in plain manifests, expressions of Helm in a chart.

use serde_json::{Value, json};

use super::Installation;

/// What is decided about the pods of a part of the installation.
pub(super) struct PodValues {
    pub(super) priority: Value,
    pub(super) resources: Value,
    pub(super) node_selector: Value,
    pub(super) affinity: Value,
    pub(super) tolerations: Value,
}

pub(super) struct Values {
    pub(super) replicas: Value,
    /// Operators that stay while nodes are drained.
    pub(super) available: Value,
    pub(super) pull_secrets: Value,
    pub(super) operator: PodValues,
    pub(super) agent: PodValues,
}

/// Begins a text that [`expressions`] makes an expression of Helm.
const BEGIN: &str = "@helm ";
const END: &str = "@";

impl Values {
    /// The usual values.
    pub(super) fn usual(installation: &Installation) -> Self {
        let resources = |memory: &str| json!({ "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": memory } });
        Self {
            replicas: json!(2),
            available: json!(1),
            pull_secrets: json!([]),
            operator: PodValues {
                priority: json!("system-cluster-critical"),
                resources: resources("128Mi"),
                node_selector: json!({}),
                affinity: json!({}),
                tolerations: json!([]),
            },
            agent: PodValues {
                priority: json!("system-node-critical"),
                resources: resources(memory_limit(installation)),
                node_selector: json!({}),
                affinity: json!({}),
                tolerations: json!([{ "operator": "Exists" }]),
            },
        }
    }

    /// Expressions that read `values.yaml`.
    pub(super) fn of_chart() -> Self {
        let value = |path: &str| json!(format!("{BEGIN}toJson .Values.{path}{END}"));
        let pods = |part: &str| PodValues {
            priority: value(&format!("{part}.priorityClassName")),
            resources: value(&format!("{part}.resources")),
            node_selector: value(&format!("{part}.nodeSelector")),
            affinity: value(&format!("{part}.affinity")),
            tolerations: value(&format!("{part}.tolerations")),
        };
        Self {
            replicas: value("manager.replicaCount"),
            available: value("podDisruptionBudget.minAvailable"),
            pull_secrets: value("imagePullSecrets"),
            operator: pods("manager"),
            agent: pods("agent"),
        }
    }

    /// Puts what is decided about a part into its pod, which has one container.
    pub(super) fn put_in(&self, part: &PodValues, pod: &mut Value) {
        pod["containers"][0]["resources"] = part.resources.clone();
        for (key, value) in [
            ("priorityClassName", &part.priority),
            ("nodeSelector", &part.node_selector),
            ("affinity", &part.affinity),
            ("tolerations", &part.tolerations),
            ("imagePullSecrets", &self.pull_secrets),
        ] {
            pod[key] = value.clone();
        }
    }

    /// These values by the names that they have in `values.yaml`: vArmor's, where they mean the same.
    pub(super) fn file(&self, installation: &Installation) -> Value {
        let pods = |part: &PodValues| {
            json!({ "priorityClassName": part.priority, "resources": part.resources, "nodeSelector": part.node_selector,
                "affinity": part.affinity, "tolerations": part.tolerations })
        };
        let mut manager = pods(&self.operator);
        manager["replicaCount"] = self.replicas.clone();
        let mut file = json!({
            "image": { "reference": installation.image },
            "imagePullSecrets": self.pull_secrets,
            "manager": manager,
            "agent": pods(&self.agent),
            "podDisruptionBudget": { "minAvailable": self.available },
        });
        for (name, _, is_set) in features(installation) {
            file[name] = json!({ "enabled": is_set });
        }
        for (name, is_set, _) in WITHOUT_EFFECT {
            file[name] = json!({ "enabled": is_set });
        }
        file["bpfExclusiveMode"] = json!({ "enabled": false });
        file
    }
}

/// Features of an installation: name of the value, option of `tollgate-operator manifests`, and whether the chart has it. A feature
/// changes rights, so that a chart is written with it.
pub(super) fn features(installation: &Installation) -> [(&'static str, &'static str, bool); 7] {
    [
        ("bpfLsmEnforcer", "--bpf", installation.bpf),
        (
            "behaviorModeling",
            "--behavior-modeling",
            installation.behavior_modeling,
        ),
        (
            "restartExistWorkloads",
            "--update-workloads",
            installation.update_workloads,
        ),
        ("detection", "--detect", installation.detect),
        ("events", "--events", installation.events),
        ("violations", "--violations", installation.violations),
        ("webhook", "--webhook", installation.webhook),
    ]
}

/// Values of vArmor's chart that change nothing here: the name, what it is here in effect, and why.
pub(super) const WITHOUT_EFFECT: [(&str, bool, &str); 6] = [
    (
        "appArmorLsmEnforcer",
        true,
        "tollgate runtime uses AppArmor where a node has it",
    ),
    (
        "serviceEgressControl",
        true,
        "rules about Services are expanded when a policy has some",
    ),
    (
        "podEgressControl",
        true,
        "rules about Pods are expanded when a policy has some",
    ),
    ("metrics", true, "metrics are always served, at port 9580"),
    (
        "unloadAllAaProfiles",
        false,
        "tollgate loads no AppArmor profile that outlives its containers",
    ),
    (
        "removeAllSeccompProfiles",
        false,
        "tollgate writes no seccomp profiles into folders of the kubelet",
    ),
];

/// With BPF the tables of each container count, which take up to 1.7 MB.
fn memory_limit(installation: &Installation) -> &'static str {
    let has_engine = installation.detect || installation.behavior_modeling;
    match (installation.bpf, has_engine) {
        (true, _) => "1Gi",
        (false, true) => "512Mi",
        (false, false) => "128Mi",
    }
}

/// Makes expressions of Helm of the texts that [`Values::of_chart`] has put in.
pub(super) fn expressions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let begin = format!("\"{BEGIN}");
    while let Some((before, after)) = rest.split_once(&begin) {
        out.push_str(before);
        let (expression, after) = after.split_once("@\"").unwrap_or((after, ""));
        out.push_str(&format!("{{{{ {expression} }}}}"));
        rest = after;
    }
    out.push_str(rest);
    out
}
