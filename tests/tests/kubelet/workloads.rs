//! Every kind of workload and container is confined from its first program on.

use std::fs;

use e2e::cluster::IMAGE;
use e2e::cluster::whole::{Cluster, NODE_NAME};
use e2e::need_cluster;
use serde_json::{Value, json};

use super::{
    ATTACK, DENIED, PROD, apply, container, exec, log, namespace, no_mkdir, pod, policy, ready,
};

/// Namespace of the same workloads without a policy.
const FREE: &str = "free";
/// What an attack without a policy writes.
const MADE: &str = "made\n";
/// The attack, and the end.
const SHORT: &str = "/bin/busybox mkdir /tmp/x && echo made; exit 0";

fn labels(name: &str) -> Value {
    json!({ "app": name })
}

/// A pod in a workload.
fn template(name: &str, line: &str, restart: &str) -> Value {
    json!({ "metadata": { "labels": labels(name) }, "spec": { "restartPolicy": restart,
        "terminationGracePeriodSeconds": 0, "containers": [container("app", line)] } })
}

fn workload(namespace: &str, version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": namespace,
        "labels": labels(name) }, "spec": spec })
}

/// The workloads, each named as its kind.
fn workloads(namespace: &str) -> Vec<Value> {
    let of_apps = |kind: &str, name: &str| {
        let mut spec = json!({ "selector": { "matchLabels": labels(name) }, "template": template(name, ATTACK, "Always") });
        if kind == "StatefulSet" {
            spec["serviceName"] = json!(name);
        }
        workload(namespace, "apps/v1", kind, name, spec)
    };
    let job = |name: &str| json!({ "template": template(name, SHORT, "Never") });
    let cron = json!({ "schedule": "* * * * *", "jobTemplate": { "spec": job("cronjob") } });
    let mut bare = pod(namespace, "bare", ATTACK);
    let mut sidecar = container("sidecar", ATTACK);
    sidecar["restartPolicy"] = json!("Always");
    bare["spec"]["initContainers"] = json!([container("init", SHORT), sidecar]);
    vec![
        workload(namespace, "batch/v1", "CronJob", "cronjob", cron),
        of_apps("Deployment", "deployment"),
        of_apps("StatefulSet", "statefulset"),
        of_apps("DaemonSet", "daemonset"),
        workload(namespace, "batch/v1", "Job", "job", job("job")),
        bare,
    ]
}

/// A policy for each: by kind and name, by labels, or by the name of the pod.
fn policies() -> Vec<Value> {
    let named = |kind: &str, name: &str| json!({ "kind": kind, "name": name });
    let labelled =
        |name: &str| json!({ "kind": "Pod", "selector": { "matchLabels": labels(name) } });
    let is_static = format!("static-{NODE_NAME}");
    [
        ("deployment", named("Deployment", "deployment")),
        ("statefulset", named("StatefulSet", "statefulset")),
        ("daemonset", named("DaemonSet", "daemonset")),
        ("job", labelled("job")),
        ("cronjob", labelled("cronjob")),
        ("bare", named("Pod", "bare")),
        ("static", named("Pod", &is_static)),
    ]
    .map(|(name, target)| policy(name, &target, &no_mkdir()))
    .to_vec()
}

/// Has the kubelet run a pod that no API server knows.
fn add_static(cluster: &Cluster, namespace: &str) {
    let pod = pod(namespace, "static", ATTACK);
    let path = cluster.node(&format!("var/lib/manifests/{namespace}.json"));
    fs::write(path, pod.to_string()).expect("the folder is ours");
}

/// Name of a pod of the last job of a CronJob.
fn pod_of_cron_job(cluster: &Cluster, namespace: &str) -> String {
    cluster.until("the CronJob has made a pod", || {
        let found = cluster.get(namespace, &["pods", "-l", "app=cronjob"]);
        let name = found["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).ok_or_else(|| found.to_string())
    })
}

fn all_say(cluster: &Cluster, namespace: &str, expected: &str) {
    for what in ["deployment", "statefulset", "daemonset", "job"] {
        let found = log(cluster, namespace, &format!("{what}/{what}"), "app");
        assert_eq!(found, expected, "{what}");
    }
    for container in ["init", "sidecar", "app"] {
        assert_eq!(
            log(cluster, namespace, "bare", container),
            expected,
            "{container}"
        );
    }
    let is_static = format!("static-{NODE_NAME}");
    assert_eq!(log(cluster, namespace, &is_static, "app"), expected);
}

/// What `kubectl debug` adds to a pod.
fn a_debug_container_says(cluster: &Cluster, namespace: &str, expected: &str) {
    let image = format!("--image={IMAGE}");
    let mut arguments = vec![
        "debug",
        "-n",
        namespace,
        "bare",
        "--container=debug",
        &image,
    ];
    arguments.extend([
        "--profile=general",
        "--",
        "/bin/busybox",
        "sh",
        "-c",
        ATTACK,
    ]);
    let added = cluster.kubectl(&arguments);
    added.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(log(cluster, namespace, "bare", "debug"), expected);
}

#[test]
fn containers_of_every_kind_and_workload_are_confined_from_their_first_program_on() {
    let programs = need_cluster!();
    let cluster = Cluster::start(&programs);
    for name in [PROD, FREE] {
        apply(&cluster, &namespace(name));
    }
    let policies = policies();
    policies.iter().for_each(|policy| apply(&cluster, policy));
    for policy in &policies {
        ready(
            &cluster,
            policy["metadata"]["name"].as_str().expect("it has a name"),
        );
    }
    for namespace in [PROD, FREE] {
        workloads(namespace)
            .iter()
            .for_each(|one| apply(&cluster, one));
        add_static(&cluster, namespace);
    }
    for (namespace, expected) in [(PROD, DENIED), (FREE, MADE)] {
        all_say(&cluster, namespace, expected);
        a_debug_container_says(&cluster, namespace, expected);
    }
    let denied = exec(&cluster, "bare", &["/bin/busybox", "mkdir", "/tmp/x"]);
    assert!(denied.starts_with(DENIED), "{denied}");
    for (namespace, expected) in [(PROD, DENIED), (FREE, MADE)] {
        let pod = pod_of_cron_job(&cluster, namespace);
        assert_eq!(log(&cluster, namespace, &pod, "app"), expected, "cronjob");
    }
}
