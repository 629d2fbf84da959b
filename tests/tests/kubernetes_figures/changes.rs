//! How long it takes from a change of a policy until a container that is created then has it.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::node::{Node, no_mkdir, policy};
use e2e::{need_api_server, need_built, need_root, need_runtime, need_slow};
use serde_json::{Value, json};

use super::{publish, repetitions, summary, tells_the_truth};

/// Errors that the policy has mkdir(2) fail with in turn, and what busybox says of them.
const ERRORS: [(i32, &str); 2] = [
    (33, "Numerical argument out of domain"),
    (34, "Numerical result out of range"),
];
/// How long a change may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The hash of the policy that the agent gives to the next container.
fn in_force(body: &Path) -> Value {
    let text = fs::read(body).expect("a container has asked for the policy");
    let body: Value = serde_json::from_slice(&text).expect("files are replaced whole");
    body["hash"].clone()
}

/// Milliseconds until something holds.
fn time_until(what: &str, begin: Instant, mut holds: impl FnMut() -> bool) -> f64 {
    while !holds() {
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
    begin.elapsed().as_secs_f64() * 1000.0
}

/// A policy that has mkdir(2) fail with this error.
fn failing_with(error: i32) -> Value {
    let protect = json!({ "syscallRawRules": [no_mkdir(error)] });
    policy(
        "web",
        &json!({ "kind": "Pod", "name": "web" }),
        "Seccomp",
        &protect,
    )
}

#[test]
fn a_container_after_a_change_of_its_policy_has_the_new_one() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let count = repetitions("TOLLGATE_NODE_CHANGES", 4);
    let mut node = Node::start(&programs);
    node.apply(&failing_with(ERRORS[0].0));
    node.seen("web");
    // With a pod that has the policy the agent keeps it.
    let (_resident, container) = node.run("web");
    container.expect("it is confined");
    let body = node.path("agent/bodies/prod~varmor-prod-web.json");
    let mut enforced = Vec::new();
    let mut told = Vec::new();
    for number in 1..=count {
        let (error, message) = ERRORS[number % ERRORS.len()];
        let before = in_force(&body);
        let begin = Instant::now();
        node.apply(&failing_with(error));
        enforced.push(time_until("the agent has the policy", begin, || {
            in_force(&body) != before
        }));
        let policy = node
            .get("VarmorPolicy", "prod", "web")
            .expect("it was made");
        let generation = &policy["metadata"]["generation"];
        told.push(time_until("the status is right", begin, || {
            let found = node.get("VarmorPolicy", "prod", "web");
            // Every other version is that of the container which runs.
            tells_the_truth(&found.expect("it was made"), generation, number % 2 == 1)
        }));
        let name = format!("marked{number}");
        let mark = ("profile.tollgate.dev/varmor-prod-web", "target");
        let pod = node.cri.run_pod(&name, "runc", &[mark]).expect("pods run");
        let sleep = ["/bin/busybox", "sleep", "1000"];
        let container = node.cri.run_container(&pod, e2e::cluster::IMAGE, &sleep);
        let said = node.mkdir(&container.expect("it is confined"));
        assert!(said.contains(message), "change {number}: {said}");
        node.cri.remove_pod(&pod).expect("the pod runs");
    }
    println!(
        "change to what the next container gets: {}",
        summary(&enforced)
    );
    println!("change to a status that is right: {}", summary(&told));
    publish(
        "changes.json",
        &json!({ "until_the_next_container_has_it_ms": enforced, "until_the_status_is_right_ms": told }),
    );
}
