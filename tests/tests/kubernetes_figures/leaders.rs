//! The operator that acts is killed: what is confined stays confined, and the next one tells the truth.

use std::thread;
use std::time::{Duration, Instant};

use apiserver::Resource;
use e2e::cluster::node::{DENIED, EDOM, Node, no_mkdir, policy};
use e2e::{need_api_server, need_built, need_root, need_runtime, need_slow};
use kinds::ObjectKey;
use serde_json::{Value, json};

use super::{publish, repetitions, summary, tells_the_truth};

const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000"];
/// How long the next operator may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the operator that acts.
fn leader(node: &Node) -> Option<String> {
    let leases = Resource::new("coordination.k8s.io", "v1", "leases");
    let key = ObjectKey {
        namespace: "tollgate".to_owned(),
        name: "tollgate-operator".to_owned(),
    };
    let lease = node.server.client.get(&leases, &key).ok()?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

/// Waits until something is found; returns it with the milliseconds since `begin`.
fn found<T>(what: &str, begin: Instant, mut find: impl FnMut() -> Option<T>) -> (T, f64) {
    loop {
        if let Some(found) = find() {
            return (found, begin.elapsed().as_secs_f64() * 1000.0);
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// A policy that denies mkdir(2), and another call that says which version of the policy it is.
fn version(number: usize) -> Value {
    let call = ["sethostname", "setdomainname"][number % 2];
    let other = json!({ "names": [call], "action": "SCMP_ACT_ERRNO" });
    let protect = json!({ "syscallRawRules": [no_mkdir(EDOM), other] });
    policy(
        "web",
        &json!({ "kind": "Pod", "name": "web" }),
        "Seccomp",
        &protect,
    )
}

/// A new pod with the policy, whose attack is denied.
fn a_new_pod_is_confined(node: &mut Node, name: &str) {
    let mark = ("profile.tollgate.dev/varmor-prod-web", "target");
    let pod = node.cri.run_pod(name, "runc", &[mark]).expect("pods run");
    let container = node.cri.run_container(&pod, e2e::cluster::IMAGE, &SLEEP);
    assert_eq!(node.mkdir(&container.expect("it is confined")), DENIED);
    node.cri.remove_pod(&pod).expect("the pod runs");
}

#[test]
fn when_the_operator_that_acts_is_killed_enforcement_goes_on_and_the_next_one_tells_the_truth() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let rounds = repetitions("TOLLGATE_NODE_LEADERS", 1);
    let mut node = Node::start(&programs);
    node.start_operator("two");
    node.apply(&version(0));
    node.seen("web");
    let (_pod, container) = node.run("web");
    let container = container.expect("it is confined");
    let (mut taken, mut told) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let (before, _) = found("somebody acts", Instant::now(), || leader(&node));
        node.kill_operator(&before);
        let begin = Instant::now();
        // Nobody acts on this change yet.
        node.apply(&version(round));
        let policy = node
            .get("VarmorPolicy", "prod", "web")
            .expect("it was made");
        let generation = policy["metadata"]["generation"].clone();
        let claims = |policy: &Value| policy["status"]["observedGeneration"] == generation;
        assert!(!claims(&policy), "{policy}");
        assert_eq!(node.mkdir(&container), DENIED);
        a_new_pod_is_confined(&mut node, &format!("early{round}"));
        let (_, lease) = found("the other one acts", begin, || {
            leader(&node).filter(|name| *name != before)
        });
        let acts = Instant::now();
        let (_, status) = found("the status is right", acts, || {
            let policy = node.get("VarmorPolicy", "prod", "web").ok()?;
            let has_earlier = round % 2 == 1;
            tells_the_truth(&policy, &generation, has_earlier).then_some(())
        });
        taken.push(lease);
        told.push(status);
        assert_eq!(node.mkdir(&container), DENIED);
        a_new_pod_is_confined(&mut node, &format!("after{round}"));
        node.start_operator(&before);
    }
    println!("until the next operator acts: {}", summary(&taken));
    println!("then until the status is right: {}", summary(&told));
    publish(
        "leaders.json",
        &json!({ "until_the_next_acts_ms": taken, "then_until_the_status_is_right_ms": told }),
    );
}
