//! tollgate as its manifests install it on a whole cluster: real control plane, scheduler, kubelet and containerd.
//!
//! `make test-cluster` runs these. `tests/cluster/build` builds Kubernetes and containerd into the cache.

mod authors;
mod detection;
mod modes;
mod outages;
mod refusals;
mod workloads;

use e2e::cluster::IMAGE;
use e2e::cluster::whole::{Cluster, NAMESPACE as INSTALLATION};
use serde_json::{Value, json};

/// Namespace of the pods that policies are about.
const PROD: &str = "prod";
/// What busybox says of EDOM, with which nothing but the policy makes mkdir fail.
const DENIED: &str = "mkdir: can't create directory '/tmp/x': Numerical argument out of domain\n";
/// The attack, and then nothing.
const ATTACK: &str = "/bin/busybox mkdir /tmp/x && echo made; exec /bin/busybox sleep 1000";

/// A part of a policy that denies mkdir(2) with an error of its own.
fn no_mkdir() -> Value {
    let call = json!({ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 33 });
    json!({ "enforcer": "Seccomp", "mode": "EnhanceProtect", "enhanceProtect": { "syscallRawRules": [call] } })
}

/// A policy of the namespace [`PROD`].
fn policy(name: &str, target: &Value, policy: &Value) -> Value {
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": name, "namespace": PROD }, "spec": { "target": target, "policy": policy } })
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// A container that runs a line of shell.
fn container(name: &str, line: &str) -> Value {
    json!({ "name": name, "image": IMAGE, "command": ["/bin/busybox", "sh", "-c", line] })
}

/// A pod of one container `app` that runs a line of shell.
fn pod(namespace: &str, name: &str, line: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [container("app", line)] } })
}

/// Writes a policy for the pod of its name, and waits until the node has it.
fn protect(cluster: &Cluster, name: &str, part: &Value) {
    let target = json!({ "kind": "Pod", "name": name });
    apply(cluster, &policy(name, &target, part));
    ready(cluster, name);
}

fn apply(cluster: &Cluster, object: &Value) {
    let applied = cluster.apply(object);
    applied.unwrap_or_else(|error| panic!("{error}\n{object:#}"));
}

/// Waits until a policy is in force, as the how-to says.
fn ready(cluster: &Cluster, name: &str) {
    let policy = format!("varmorpolicy/{name}");
    let wait = [
        "wait",
        "--for=condition=Ready",
        "-n",
        PROD,
        "--timeout=60s",
        &policy,
    ];
    let waited = cluster.kubectl(&wait);
    waited.unwrap_or_else(|error| panic!("{error}\n{}", cluster.state()));
}

/// Waits until the log of a container is not empty, and returns it.
fn log(cluster: &Cluster, namespace: &str, what: &str, container: &str) -> String {
    let what = &["logs", "-n", namespace, what, "-c", container];
    cluster.until(&format!("{what:?}"), || match cluster.kubectl(what) {
        Ok(text) if text.is_empty() => Err("the log is empty".to_owned()),
        other => other,
    })
}

/// Runs a program in a container by `kubectl exec`; returns what it writes to standard error.
fn exec(cluster: &Cluster, name: &str, command: &[&str]) -> String {
    let mut arguments = vec!["exec", "-n", PROD, name, "-c", "app", "--"];
    arguments.extend(command);
    let done = cluster.kubectl_output(&arguments);
    String::from_utf8_lossy(&done.stderr).into_owned()
}
