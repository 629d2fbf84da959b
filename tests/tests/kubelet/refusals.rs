//! What becomes of a pod whose policy cannot be enforced.

use std::time::{Duration, Instant};

use e2e::cluster::whole::Cluster;
use e2e::need_cluster;
use serde_json::{Value, json};

use super::{
    ATTACK, DENIED, INSTALLATION, PROD, apply, log, namespace, no_mkdir, pod, policy, protect,
};

/// What keeps the container of a pod waiting: reason and message.
fn waits(cluster: &Cluster, name: &str, reason: &str) -> String {
    cluster.until(&format!("{name} waits because of {reason}"), || {
        let found = cluster.get(PROD, &["pod", name]);
        let waiting = &found["status"]["containerStatuses"][0]["state"]["waiting"];
        match waiting["reason"] == reason {
            true => Ok(waiting["message"].to_string()),
            false => Err(found["status"].to_string()),
        }
    })
}

/// A rule about a file, which a filter of calls cannot enforce.
fn about_a_file(enforcer: &str) -> Value {
    json!({ "enforcer": enforcer, "mode": "EnhanceProtect",
        "enhanceProtect": { "hardeningRules": ["disallow-write-core-pattern"] } })
}

fn the_kubelet_says_which_rule_it_is_until_the_policy_can_be_enforced(cluster: &Cluster) {
    protect(cluster, "strict", &about_a_file("BPFSeccomp"));
    apply(cluster, &pod(PROD, "strict", ATTACK));
    let message = waits(cluster, "strict", "CreateContainerError");
    assert!(
        message.contains("tollgate: prod/varmor-prod-strict:"),
        "{message}"
    );
    assert!(message.contains("disallow-write-core-pattern"), "{message}");
    // An Event says it, too: kubectl describe shows it.
    cluster.until("the kubelet writes an Event", || {
        let described = cluster.kubectl(&["describe", "pod", "-n", PROD, "strict"])?;
        match described.contains("tollgate: prod/varmor-prod-strict:") {
            true => Ok(()),
            false => Err(described),
        }
    });
    let target = json!({ "kind": "Pod", "name": "strict" });
    let begin = Instant::now();
    apply(cluster, &policy("strict", &target, &no_mkdir()));
    assert_eq!(log(cluster, PROD, "strict", "app"), DENIED);
    println!(
        "the container ran {:?} after its policy could be enforced",
        begin.elapsed()
    );
    let found = cluster.get(PROD, &["pod", "strict"]);
    assert_eq!(found["status"]["containerStatuses"][0]["restartCount"], 0);
}

fn a_pod_whose_fail_mode_is_open_runs_and_its_policy_is_not_ready(cluster: &Cluster) {
    let target = json!({ "kind": "Pod", "name": "open" });
    let mut open = policy("open", &target, &about_a_file("BPFSeccomp"));
    open["metadata"]["annotations"] = json!({ "tollgate.dev/fail-mode": "open" });
    apply(cluster, &open);
    super::ready(cluster, "open");
    apply(cluster, &pod(PROD, "open", ATTACK));
    assert_eq!(log(cluster, PROD, "open", "app"), "made\n");
    cluster.until("the policy says that a container runs without it", || {
        let found = cluster.get(PROD, &["varmorpolicy", "open"]);
        let status = found["status"].to_string();
        match status.contains("disallow-write-core-pattern") && status.contains("Unprotected") {
            true => Ok(()),
            false => Err(status),
        }
    });
}

fn scale_operators(cluster: &Cluster, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    let arguments = [
        "scale",
        "-n",
        INSTALLATION,
        "deployment/tollgate-operator",
        &replicas,
    ];
    let scaled = cluster.kubectl(&arguments);
    scaled.unwrap_or_else(|error| panic!("{error}"));
}

fn operators_end_by_a_signal_and_give_up_their_lease(cluster: &Cluster) {
    let begin = Instant::now();
    scale_operators(cluster, 0);
    cluster.until("the operators have ended", || {
        let label = "app.kubernetes.io/name=tollgate-operator";
        match cluster.kubectl(&["get", "pods", "-n", INSTALLATION, "-l", label, "-o", "name"])? {
            pods if pods.is_empty() => Ok(()),
            pods => Err(pods),
        }
    });
    // A kubelet kills what a signal does not end after 30 s.
    let ended = begin.elapsed();
    assert!(ended < Duration::from_secs(25), "{ended:?}");
    println!("both operators had ended after {ended:?}");
    let lease = cluster.get(INSTALLATION, &["lease", "tollgate-operator"]);
    assert_eq!(
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default(),
        "",
        "{lease}"
    );
}

/// A policy that is written while its pod waits for it: the mark names it before it is there.
fn a_pod_with_the_mark_of_a_policy_that_the_operator_has_not_compiled_waits_for_it(
    cluster: &Cluster,
) {
    operators_end_by_a_signal_and_give_up_their_lease(cluster);
    let target = json!({ "kind": "Pod", "name": "early" });
    apply(cluster, &policy("early", &target, &no_mkdir()));
    // The policies of admission see a new policy some time after it was written.
    cluster.until("the pod is marked", || {
        cluster.kubectl(&[
            "delete",
            "pod",
            "-n",
            PROD,
            "early",
            "--ignore-not-found",
            "--now",
        ])?;
        apply(cluster, &pod(PROD, "early", ATTACK));
        let found = cluster.get(PROD, &["pod", "early"]);
        match found["metadata"]["annotations"]
            .to_string()
            .contains("varmor-prod-early")
        {
            true => Ok(()),
            false => Err(found["metadata"].to_string()),
        }
    });
    let message = waits(cluster, "early", "CreateContainerError");
    assert!(
        message.contains("there is no ArmorProfile varmor-prod-early"),
        "{message}"
    );
    scale_operators(cluster, 2);
    assert_eq!(log(cluster, PROD, "early", "app"), DENIED);
}

#[test]
fn a_pod_that_cannot_be_confined_says_why_and_starts_by_itself_when_it_can() {
    let programs = need_cluster!();
    let cluster = Cluster::start(&programs);
    apply(&cluster, &namespace(PROD));
    the_kubelet_says_which_rule_it_is_until_the_policy_can_be_enforced(&cluster);
    a_pod_whose_fail_mode_is_open_runs_and_its_policy_is_not_ready(&cluster);
    a_pod_with_the_mark_of_a_policy_that_the_operator_has_not_compiled_waits_for_it(&cluster);
}
