//! `tollgate node` with the real containerd, API server and operator: from a policy to a denied call.
//!
//! `tests/cluster/build` builds Kubernetes and containerd into the cache.

use apiserver::real::until;
use e2e::cluster::node::{DENIED, Node};
use e2e::{need_api_server, need_built, need_root, need_runtime, need_slow};
use serde_json::json;

#[test]
fn a_policy_of_the_cluster_holds_on_a_node_and_what_cannot_be_enforced_is_refused() {
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs);
    a_call_is_denied_in_the_pod_of_a_policy_and_stays_denied_when_the_agent_dies(&mut node);
    a_rule_that_cannot_be_enforced_refuses_a_container_unless_the_policy_is_open(&mut node);
}

fn a_call_is_denied_in_the_pod_of_a_policy_and_stays_denied_when_the_agent_dies(node: &mut Node) {
    node.policy("web", "Seccomp", "closed");
    let (pod, web) = node.run("web");
    let web = web.unwrap_or_else(|error| panic!("{error} {}", node.log()));
    assert_eq!(node.mkdir(&web), DENIED);
    let (twin, other) = node.run("other");
    assert_eq!(node.mkdir(&other.expect("the node works")), "");
    // The policy was ready before the container was there: the report about it comes later.
    until(|| {
        let covered = node.coverage("web", "True");
        let found = (&covered["containers"], &covered["enforced"]);
        match found == (&json!(1), &json!(1)) {
            true => Ok(()),
            false => Err(covered.to_string()),
        }
    })
    .expect("the container is counted");

    // Killed, and a container begins meanwhile.
    node.policy("late", "Seccomp", "closed");
    node.kill_agent();
    assert_eq!(node.mkdir(&web), DENIED);
    let (late, missed) = node.run("late");
    assert_eq!(node.mkdir(&missed.expect("the node works")), "");
    node.start_agent();
    let covered = node.coverage("late", "False");
    assert_eq!(covered["unprotected"], 1, "{covered}");
    let reasons = covered["reasons"].to_string();
    assert!(reasons.contains("ran before the agent"), "{covered}");
    // What the one before has confined is known to be.
    let covered = node.coverage("web", "True");
    assert_eq!(covered["enforced"], 1, "{covered}");
    node.cri.remove_pod(&late).expect("the node works");
    node.coverage("late", "True");
    for pod in [pod, twin] {
        node.cri.remove_pod(&pod).expect("the node works");
    }
}

fn a_rule_that_cannot_be_enforced_refuses_a_container_unless_the_policy_is_open(node: &mut Node) {
    node.policy("strict", "BPF", "closed");
    let (strict, container) = node.run("strict");
    let error = container.expect_err("it is refused");
    assert!(
        error.contains("tollgate: prod/varmor-prod-strict:"),
        "{error}"
    );
    assert!(error.contains("disallow-write-core-pattern"), "{error}");
    node.policy("open", "BPF", "open");
    let (open, container) = node.run("open");
    assert!(container.is_ok(), "{container:?}");
    let covered = node.coverage("open", "False");
    assert_eq!(covered["unprotected"], 1, "{covered}");
    assert!(
        covered["reasons"]
            .to_string()
            .contains("disallow-write-core-pattern"),
        "{covered}"
    );
    for pod in [strict, open] {
        node.cri.remove_pod(&pod).expect("the node works");
    }
}

#[test]
fn a_pod_of_the_runtime_class_gets_its_policy_from_the_runtime_and_no_other() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs);
    node.policy("boxed", "Seccomp", "closed");
    let (pod, web) = node.run_by("boxed", "tollgate");
    let web = web.unwrap_or_else(|error| panic!("{error} {}", node.log()));
    assert_eq!(node.mkdir(&web), DENIED);
    assert_eq!(node.coverage("boxed", "True")["enforced"], 1);
    node.cri.remove_pod(&pod).expect("the node works");
    // The handler is said to be tollgate's, and is runc.
    node.policy("fake", "Seccomp", "closed");
    let (fake, container) = node.run_by("fake", "other");
    let error = container.expect_err("it is refused");
    assert!(
        error.contains("the runtime that has created it is not tollgate's"),
        "{error}"
    );
    node.cri.remove_pod(&fake).expect("the node works");
}
