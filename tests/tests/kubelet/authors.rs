//! What an author of pods tries so that a policy does not hold.

use e2e::cluster::whole::Cluster;
use e2e::need_cluster;
use serde_json::{Value, json};

use super::{ATTACK, DENIED, PROD, apply, exec, log, namespace, no_mkdir, pod, policy, ready};

/// The attempts: name of the pod, and what is merged into it.
fn attempts() -> Vec<(&'static str, Value)> {
    let security = |value: Value| json!({ "spec": { "securityContext": value } });
    let of_container =
        |value: Value| json!({ "spec": { "containers": { "0": { "securityContext": value } } } });
    let annotations = |all: Value| json!({ "metadata": { "annotations": all } });
    let unconfined = json!({ "seccompProfile": { "type": "Unconfined" } });
    vec![
        ("plain", json!({})),
        ("pod-unconfined", security(unconfined.clone())),
        ("container-unconfined", of_container(unconfined)),
        (
            "runtime-default",
            security(json!({ "seccompProfile": { "type": "RuntimeDefault" } })),
        ),
        ("privileged", of_container(json!({ "privileged": true }))),
        (
            "no-new-privileges",
            of_container(json!({ "allowPrivilegeEscalation": false })),
        ),
        (
            "all-capabilities",
            of_container(json!({ "capabilities": { "add": ["ALL"] } })),
        ),
        ("host-pid", json!({ "spec": { "hostPID": true } })),
        ("host-network", json!({ "spec": { "hostNetwork": true } })),
        ("host-ipc", json!({ "spec": { "hostIPC": true } })),
        (
            "other-class",
            json!({ "spec": { "runtimeClassName": "other" } }),
        ),
        (
            "our-class",
            json!({ "spec": { "runtimeClassName": "tollgate" } }),
        ),
        (
            "annotated",
            annotations(json!({
            "container.seccomp.security.beta.varmor.org/app": "unconfined",
            "container.bpf.security.beta.varmor.org/app": "unconfined",
            "container.tollgate.dev/app": "unconfined",
            "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
            "tollgate.dev/fail-mode": "open",
            "tollgate.policy": "none" })),
        ),
        (
            "host-pid-privileged",
            json!({ "spec": { "hostPID": true, "hostIPC": true, "hostNetwork": true,
            "containers": { "0": { "securityContext": { "privileged": true } } } } }),
        ),
    ]
}

/// Puts values into a pod: objects are merged, and numbers are places in lists.
fn merge(into: &mut Value, what: &Value) {
    let Value::Object(what) = what else {
        *into = what.clone();
        return;
    };
    for (key, value) in what {
        match (key.parse::<usize>(), into.is_array()) {
            (Ok(place), true) => merge(&mut into[place], value),
            _ => merge(&mut into[key], value),
        }
    }
}

/// The pod of an attempt.
fn attempt(name: &str, what: &Value) -> Value {
    let mut pod = pod(PROD, name, ATTACK);
    pod["metadata"]["labels"] = json!({ "app": "all" });
    merge(&mut pod, what);
    pod
}

fn what_the_api_server_refuses(cluster: &Cluster) {
    let tolerating =
        json!({ "metadata": { "annotations": { "tollgate.dev/tolerate-missing": "true" } } });
    let error = cluster.apply(&attempt("tolerating", &tolerating));
    let error = error.expect_err("its annotation is not allowed");
    assert!(error.contains("tollgate.dev/tolerate-missing"), "{error}");
    let mark = "profile.tollgate.dev/varmor-prod-all-";
    let error = cluster.kubectl(&["annotate", "pod", "-n", PROD, "plain", mark]);
    let error = error.expect_err("marks stay");
    assert!(error.contains("marks of tollgate stay"), "{error}");
}

/// A label that is taken away later changes nothing of a container that is made then.
fn labels_that_are_taken_away_change_nothing(cluster: &Cluster) {
    let labelled = ["label", "pod", "-n", PROD, "plain", "app-"];
    cluster
        .kubectl(&labelled)
        .unwrap_or_else(|error| panic!("{error}"));
    let denied = exec(cluster, "plain", &["/bin/busybox", "mkdir", "/tmp/x"]);
    assert!(denied.starts_with(DENIED), "{denied}");
    let debug = [
        "debug",
        "-n",
        PROD,
        "plain",
        "--container=debug",
        "--profile=sysadmin",
    ];
    let image = format!("--image={}", e2e::cluster::IMAGE);
    let mut arguments = debug.to_vec();
    arguments.extend([&image, "--", "/bin/busybox", "sh", "-c", ATTACK]);
    cluster
        .kubectl(&arguments)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(log(cluster, PROD, "plain", "debug"), DENIED);
}

#[test]
fn nothing_that_an_author_of_pods_writes_switches_confinement_off() {
    let programs = need_cluster!();
    let cluster = Cluster::start(&programs);
    apply(&cluster, &namespace(PROD));
    let other = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "other" },
        "handler": "other" });
    apply(&cluster, &other);
    let selector = json!({ "kind": "Pod", "selector": { "matchLabels": { "app": "all" } } });
    apply(&cluster, &policy("all", &selector, &no_mkdir()));
    ready(&cluster, "all");
    for (name, what) in attempts() {
        apply(&cluster, &attempt(name, &what));
    }
    let found = attempts()
        .into_iter()
        .map(|(name, _)| (name, log(&cluster, PROD, name, "app")));
    let wrong: Vec<_> = found.filter(|(_, log)| log != DENIED).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", cluster.state());
    what_the_api_server_refuses(&cluster);
    labels_that_are_taken_away_change_nothing(&cluster);
}
