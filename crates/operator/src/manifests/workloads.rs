//! The operator, the agents, and what is about their pods.

use serde_json::{Value, json};

use super::values::Values;
use super::webhook::WEBHOOK_PORT;
use super::{Installation, NODE, OPERATOR, in_namespace, labels, of_cluster};

/// Port of metrics and health.
const PORT: u16 = 9580;
/// Annotation of pods that a runtime creates without the agent, where it requires one: it is set in the runtime's
/// `tolerate_missing_plugins_annotation`.
pub(super) const TOLERATE: &str = "tollgate.dev/tolerate-missing";
/// Option of operator and agents.
const MODELING: &str = "--behavior-modeling";
/// User of the operator.
const NOBODY: u32 = 65532;

pub(super) fn objects(installation: &Installation, values: &Values) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": of_cluster("tollgate"),
            "handler": "tollgate",
        }),
        operator(installation, values),
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": in_namespace(installation, OPERATOR),
            "spec": { "minAvailable": values.available, "selector": { "matchLabels": labels(OPERATOR) } },
        }),
        agents(installation, values),
        network(installation, OPERATOR),
        network(installation, NODE),
    ]
}

/// What every container of ours has: no capability, no way to get one, and a file system that it cannot write to.
fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

fn from_field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
}

/// Asks for `/healthz` every 20 seconds, and takes so many failures.
fn probe(failures: u32) -> Value {
    json!({ "httpGet": { "path": "/healthz", "port": PORT }, "periodSeconds": 20, "failureThreshold": failures })
}

fn operator(installation: &Installation, values: &Values) -> Value {
    let mut security = confined();
    security["runAsNonRoot"] = json!(true);
    security["runAsUser"] = json!(NOBODY);
    let mut command = json!([
        "tollgate-operator",
        "run",
        "--listen",
        format!("0.0.0.0:{PORT}")
    ]);
    let options = [
        (installation.behavior_modeling, MODELING),
        (installation.update_workloads, "--update-workloads"),
    ];
    let listen = format!("0.0.0.0:{WEBHOOK_PORT}");
    let set = options.iter().filter(|(is_set, _)| *is_set);
    let mut further: Vec<&str> = set.map(|(_, option)| *option).collect();
    if installation.webhook {
        further.extend(["--webhook", &listen]);
        let names = installation.webhook_names.iter();
        further.extend(names.flat_map(|name| ["--webhook-name", name]));
    }
    if let Some(words) = command.as_array_mut() {
        words.extend(further.into_iter().map(Value::from));
    }
    let mut pod = json!({
        "serviceAccountName": OPERATOR,
        "containers": [{
            "name": "operator",
            "image": installation.image,
            "command": command,
            "ports": [{ "name": "metrics", "containerPort": PORT, "protocol": "TCP" }],
            "livenessProbe": probe(3),
            "env": [from_field("POD_NAMESPACE", "metadata.namespace"), from_field("POD_NAME", "metadata.name")],
            "securityContext": security,
        }],
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": labels(OPERATOR) },
        }],
    });
    values.put_in(&values.operator, &mut pod);
    if installation.webhook {
        serve_webhook(&mut pod["containers"][0]);
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": in_namespace(installation, OPERATOR),
        "spec": {
            "replicas": values.replicas,
            "selector": { "matchLabels": labels(OPERATOR) },
            "template": { "metadata": { "labels": labels(OPERATOR), "annotations": { TOLERATE: "true" } }, "spec": pod },
        },
    })
}

/// An operator is asked when it knows all policies. No kubelet looks at its certificate.
fn serve_webhook(container: &mut Value) {
    container["readinessProbe"] = json!({ "httpGet": { "path": "/readyz", "port": WEBHOOK_PORT, "scheme": "HTTPS" },
        "periodSeconds": 5, "failureThreshold": 2 });
    if let Some(ports) = container["ports"].as_array_mut() {
        ports.push(json!({ "name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP" }));
    }
}

/// A folder of the node: name, path, and whether the agent only reads it.
const FOLDERS: [(&str, &str, bool); 4] = [
    // The socket belongs to root, as whom the agent runs: without capabilities.
    ("nri", "/var/run/nri", true),
    ("state", "/var/lib/tollgate/node", false),
    ("policies", "/etc/tollgate/policies", false),
    ("runtime", "/run/tollgate/runtime", true),
];

/// Folders of an agent that follows violations: the alerts of `tollgate runtime`, and the log.
const LOGS: [(&str, &str, bool); 2] = [
    ("alerts", "/var/log/tollgate", true),
    ("violations", "/var/log/varmor", false),
];

/// Folders of an agent that enforces by the kernel: where it keeps programs and tables, and control groups.
const KERNEL: [(&str, &str, bool); 2] = [
    ("bpf", "/sys/fs/bpf", false),
    ("groups", "/sys/fs/cgroup", true),
];

/// Options of what an installation may have.
fn further_options(installation: &Installation) -> impl Iterator<Item = &'static str> {
    let detect = installation.detect.then_some(&["--detect"][..]);
    let modeling = installation.behavior_modeling.then_some(&[MODELING][..]);
    let events = installation.events.then_some(&["--events"][..]);
    let bpf = installation.bpf.then_some(&["--bpf"][..]);
    let violations = installation.violations.then_some(
        &[
            "--violations",
            "/var/log/tollgate/alerts.jsonl",
            "--violations-log",
            "/var/log/varmor/violations.log",
        ][..],
    );
    [detect, modeling, events, bpf, violations]
        .into_iter()
        .flatten()
        .flatten()
        .copied()
}

/// What an agent needs to load programs into the kernel (`SYS_ADMIN`, and `BPF` and `PERFMON` since Linux 5.8), to keep their
/// maps in memory (`SYS_RESOURCE`, before 5.11), and to read what processes of other users are and have open (`SYS_PTRACE`,
/// `DAC_READ_SEARCH`).
const CAPABILITIES: [&str; 6] = [
    "SYS_ADMIN",
    "BPF",
    "PERFMON",
    "SYS_RESOURCE",
    "SYS_PTRACE",
    "DAC_READ_SEARCH",
];

/// Lets an agent watch its node.
fn let_watch(security: &mut Value) {
    security["capabilities"]["add"] = json!(CAPABILITIES);
    // The API server refuses the opposite beside SYS_ADMIN.
    security["allowPrivilegeEscalation"] = json!(true);
}

/// Returns true if agents run an engine, for rules or for models.
fn has_engine(installation: &Installation) -> bool {
    installation.detect || installation.behavior_modeling
}

/// Returns true if agents load programs into the kernel.
fn loads_programs(installation: &Installation) -> bool {
    has_engine(installation) || installation.bpf
}

/// Mounts and volumes of an agent.
fn folders(installation: &Installation) -> (Vec<Value>, Vec<Value>) {
    let logs = installation.violations.then_some(&LOGS[..]);
    let kernel = installation.bpf.then_some(&KERNEL[..]);
    let further = [logs, kernel].into_iter().flatten().flatten();
    let folders = FOLDERS.iter().chain(further);
    let both = folders.map(|(name, path, reads)| {
        (
            json!({ "name": name, "mountPath": path, "readOnly": reads }),
            json!({ "name": name, "hostPath": { "path": path, "type": "DirectoryOrCreate" } }),
        )
    });
    both.unzip()
}

fn agents(installation: &Installation, values: &Values) -> Value {
    let mut security = confined();
    security["runAsUser"] = json!(0);
    let port = format!("0.0.0.0:{PORT}");
    let mut command = json!([
        "tollgate",
        "node",
        "--runtime-handler",
        "tollgate",
        "--listen",
        port
    ]);
    if loads_programs(installation) {
        let_watch(&mut security);
    }
    if let Some(words) = command.as_array_mut() {
        words.extend(further_options(installation).map(Value::from));
    }
    let (mounts, volumes) = folders(installation);
    let mut pod = json!({
        "serviceAccountName": NODE,
        "containers": [{
            "name": "agent",
            "image": installation.image,
            "command": command,
            "env": [from_field("NODE_NAME", "spec.nodeName"), from_field("POD_NAMESPACE", "metadata.namespace")],
            "ports": [{ "name": "metrics", "containerPort": PORT, "protocol": "TCP" }],
            "readinessProbe": probe(1),
            // It connects again by itself; a new one helps if it does not.
            "livenessProbe": probe(15),
            "securityContext": security,
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    });
    values.put_in(&values.agent, &mut pod);
    if loads_programs(installation) {
        // Processes of the node are known by their pids.
        pod["hostPID"] = json!(true);
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": in_namespace(installation, NODE),
        "spec": {
            "selector": { "matchLabels": labels(NODE) },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": { "metadata": { "labels": labels(NODE), "annotations": { TOLERATE: "true" } }, "spec": pod },
        },
    })
}

/// Nobody reaches the pods but for metrics, and they reach nothing but an API server, whose address is not known here.
fn network(installation: &Installation, name: &str) -> Value {
    let port = |port: u16| json!({ "port": port, "protocol": "TCP" });
    let mut ingress = vec![port(PORT)];
    if installation.webhook && name == OPERATOR {
        ingress.push(port(WEBHOOK_PORT));
    }
    let spec = json!({
        "podSelector": { "matchLabels": labels(name) },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "ports": ingress }],
        "egress": [{ "ports": [port(443), port(6443)] }],
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": in_namespace(installation, name),
        "spec": spec,
    })
}
