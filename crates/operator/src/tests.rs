//! Tests with an API server in memory.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use apiserver::Client;
use apiserver::fake::FakeApiserver;
use cluster::Event;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::silence::Silences;

mod claims;
mod modeling;
mod restarts;
mod webhook;

const POLICY: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/varmorpolicies/web";
const PROFILE: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofiles/varmor-demo-web";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/tollgate/leases/tollgate-operator";

fn settings(identity: &str) -> Settings {
    Settings {
        lease: Duration::from_secs(1),
        pause: Duration::from_millis(50),
        ..Settings::new("tollgate", identity)
    }
}

type Running = (
    JoinHandle<Result<(), OperatorError>>,
    Arc<Mutex<Vec<String>>>,
);

/// Starts an operator; its messages are collected.
fn start(server: &FakeApiserver, settings: Settings) -> Running {
    let client = Client::new(&server.access(), "tollgate-operator").unwrap();
    let operator = Operator::new(client, settings);
    let said = Arc::new(Mutex::new(Vec::new()));
    let of_operator = Arc::clone(&said);
    let handle = thread::spawn(move || operator.run(|text| of_operator.lock().unwrap().push(text)));
    (handle, said)
}

fn policy(body: Value) -> Value {
    json!({
        "apiVersion": "crd.varmor.org/v1beta1",
        "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": { "target": { "kind": "Deployment", "name": "web" }, "policy": body },
    })
}

fn simple() -> Value {
    policy(json!({ "enforcer": "BPF", "mode": "RuntimeDefault" }))
}

fn report(observed: &str, boot: &str) -> Value {
    json!({ "metadata": { "name": "n1" }, "status": { "agentVersion": "1", "bootID": boot,
        "observedVersion": observed, "renewTime": Timestamp::now().to_string() } })
}

/// Waits until an object has what is wanted.
fn wait(server: &FakeApiserver, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let object = server.get(path).unwrap_or_default();
        if wanted(&object) {
            return object;
        }
        assert!(Instant::now() < end, "{path}: {object:#}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn ready(object: &Value) -> &Value {
    let conditions = object["status"]["conditions"].as_array();
    let ready =
        conditions.and_then(|all| all.iter().find(|condition| condition["type"] == "Ready"));
    ready.unwrap_or(&Value::Null)
}

#[test]
fn a_policy_becomes_a_profile_and_is_ready_when_the_node_has_seen_it() {
    let server = FakeApiserver::start().unwrap();
    server.put(
        "/api/v1/nodes/n1",
        json!({ "metadata": { "name": "n1" }, "status": { "nodeInfo": { "bootID": "b1" } } }),
    );
    start(&server, settings("one"));
    server.put(POLICY, simple());
    let profile = wait(&server, PROFILE, Value::is_object);
    let owner = &profile["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("VarmorPolicy"), &json!("web"))
    );
    assert_eq!(owner["uid"], server.get(POLICY).unwrap()["metadata"]["uid"]);
    assert_eq!(
        profile["spec"]["profile"]["hash"].as_str().unwrap().len(),
        64
    );
    let pending = wait(&server, POLICY, |object| {
        ready(object)["message"] == "1 of 1 nodes are unknown"
    });
    assert_eq!(ready(&pending)["status"], "Unknown");
    assert_eq!(pending["status"]["phase"], "Pending");
    // Its status is written later, and gives it newer versions, which the node need not have seen.
    wait(&server, PROFILE, |object| {
        object["status"]["desiredNumberLoaded"] == 1
    });
    let version = profile["metadata"]["resourceVersion"].as_str().unwrap();
    server.put(
        "/apis/tollgate.dev/v1alpha1/nodereports/n1",
        report(version, "b1"),
    );
    let done = wait(&server, POLICY, |object| ready(object)["status"] == "True");
    assert_eq!(
        (&done["status"]["ready"], &done["status"]["phase"]),
        (&json!(true), &json!("Protecting"))
    );
    assert_eq!(
        done["status"]["observedGeneration"],
        done["metadata"]["generation"]
    );
    assert_eq!(done["status"]["coverage"]["nodes"], 1);
    // Nothing is written when nothing changes.
    let writes = || {
        server
            .requests()
            .iter()
            .filter(|request| request.starts_with("PATCH"))
            .count()
    };
    thread::sleep(Duration::from_millis(300));
    let before = writes();
    thread::sleep(Duration::from_millis(600));
    assert_eq!(writes(), before);
}

#[test]
fn a_wrong_change_leaves_the_profile_in_force_and_a_deleted_policy_takes_it_along() {
    let server = FakeApiserver::start().unwrap();
    start(&server, settings("one"));
    server.put(POLICY, simple());
    let before = wait(&server, PROFILE, Value::is_object);
    server.put(
        POLICY,
        policy(json!({ "enforcer": "BPF", "mode": "DefenseInDepth" })),
    );
    let refused = wait(&server, POLICY, |object| {
        ready(object)["reason"] == "Forbidden"
    });
    assert_eq!(refused["status"]["phase"], "Error");
    assert!(
        ready(&refused)["message"]
            .as_str()
            .unwrap()
            .contains("needs `defenseInDepth`")
    );
    assert_eq!(server.get(PROFILE).unwrap()["spec"], before["spec"]);
    server.remove(POLICY);
    wait(&server, PROFILE, Value::is_null);
}

#[test]
fn profiles_whose_policies_went_while_no_operator_ran_are_deleted() {
    let server = FakeApiserver::start().unwrap();
    let (first, _) = start(&server, settings("one"));
    server.put(POLICY, simple());
    wait(&server, PROFILE, Value::is_object);
    // Another one takes the lease away.
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("two");
    server.put(LEASE, lease);
    let error = first.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "another operator has become leader: two");
    server.remove(POLICY);
    assert!(server.get(PROFILE).is_some());
    start(&server, settings("two"));
    wait(&server, PROFILE, Value::is_null);
}

#[test]
fn a_second_operator_waits_until_the_lease_has_expired() {
    let server = FakeApiserver::start().unwrap();
    let held = json!({ "metadata": { "name": "tollgate-operator", "namespace": "tollgate" },
        "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 2 } });
    server.put(LEASE, held);
    server.put(POLICY, simple());
    let begin = Instant::now();
    start(&server, settings("two"));
    wait(&server, PROFILE, Value::is_object);
    assert!(
        begin.elapsed() > Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(server.get(LEASE).unwrap()["spec"]["holderIdentity"], "two");
}

#[test]
fn an_operator_that_cannot_renew_its_lease_ends_before_another_one_begins() {
    let server = FakeApiserver::start().unwrap();
    let (operator, said) = start(&server, settings("one"));
    wait(&server, LEASE, Value::is_object);
    server.fail(10_000);
    let begin = Instant::now();
    let error = operator.join().unwrap().unwrap_err();
    assert!(
        error.to_string().starts_with("cannot renew the lease"),
        "{error}"
    );
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
    assert!(said.lock().unwrap()[0].starts_with("leader of the installation in tollgate"));
}

#[test]
fn services_are_watched_only_if_a_policy_is_about_them() {
    let server = FakeApiserver::start().unwrap();
    start(&server, settings("one"));
    server.put(POLICY, simple());
    wait(&server, PROFILE, Value::is_object);
    let asked = |what: &str| {
        server
            .requests()
            .iter()
            .any(|request| request.contains(what))
    };
    assert!(!asked("/services") && !asked("/pods"));
    let egress = json!({ "toServices": [{ "qualifiers": ["deny"], "name": "api" }] });
    server.put(
        "/api/v1/namespaces/demo/services/api",
        json!({ "metadata": { "name": "api", "namespace": "demo" },
            "spec": { "clusterIPs": ["10.0.0.7"], "ports": [{ "port": 443 }] } }),
    );
    server.put(
        POLICY,
        policy(json!({ "enforcer": "BPF", "mode": "EnhanceProtect",
        "enhanceProtect": { "bpfRawRules": { "network": { "egress": egress } } } })),
    );
    wait(&server, PROFILE, |object| {
        object["spec"]["profile"]["policy"]
            .as_str()
            .is_some_and(|text| text.contains("10.0.0.7"))
    });
    assert!(asked("/services") && asked("/endpointslices") && !asked("/pods"));
}

#[test]
fn a_report_that_is_old_when_it_is_seen_first_is_silent_at_once() {
    let limit = Duration::from_secs(120);
    let (now, wall) = (Instant::now(), Timestamp::now());
    let report = |age: i64| {
        let time = wall
            .checked_sub(jiff::SignedDuration::from_secs(age))
            .unwrap();
        serde_json::from_value(
            json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport",
            "metadata": { "name": "n1" }, "status": { "agentVersion": "1", "bootID": "b",
            "observedVersion": "1", "renewTime": time.to_string() } }),
        )
        .unwrap()
    };
    let is_silent = |age: i64, after: u64| {
        let mut silences = Silences::default();
        silences.see(&report(age), now, wall);
        let found = silences.silent(now + Duration::from_secs(after), limit);
        found
            .iter()
            .any(|event| matches!(event, Event::Silent { node, .. } if node == "n1"))
    };
    assert!(!is_silent(100, 10));
    assert!(is_silent(100, 30));
    assert!(is_silent(130, 0));
    // A clock that is ahead does not make a report live for ever.
    assert!(!is_silent(-1000, 100));
    assert!(is_silent(-1000, 130));
}

#[test]
fn a_rulesfile_is_programmed_when_its_nodes_report_it() {
    let server = FakeApiserver::start().unwrap();
    let path = "/apis/artifact.falcosecurity.dev/v1alpha1/namespaces/tollgate/rulesfiles/r";
    let other = "/apis/artifact.falcosecurity.dev/v1alpha1/namespaces/demo/rulesfiles/r";
    for (path, namespace) in [(path, "tollgate"), (other, "demo")] {
        let metadata = json!({ "name": "r", "namespace": namespace });
        server.put(
            path,
            json!({ "metadata": metadata, "spec": { "inlineRules": [] } }),
        );
    }
    server.put(
        "/api/v1/nodes/n1",
        json!({ "metadata": { "name": "n1" }, "status": { "nodeInfo": { "bootID": "b" } } }),
    );
    let _running = start(&server, settings("one"));
    let programmed =
        |object: &Value, status: &str| object["status"]["conditions"][0]["status"] == status;
    wait(&server, path, |object| programmed(object, "Unknown"));
    let mut report = report("0", "b");
    for (is_programmed, expected) in [(true, "True"), (false, "False")] {
        report["status"]["renewTime"] = json!(Timestamp::now().to_string());
        report["status"]["detection"] = json!({ "running": true, "rules": 0, "artifacts": [{
            "kind": "Rulesfile", "namespace": "tollgate", "name": "r", "generation": 1,
            "programmed": is_programmed, "reason": "ProgramFailed", "message": "why" }] });
        server.put("/apis/tollgate.dev/v1alpha1/nodereports/n1", report.clone());
        let object = wait(&server, path, |object| programmed(object, expected));
        let condition = &object["status"]["conditions"][0];
        assert!(condition["lastTransitionTime"].is_string(), "{condition}");
        assert_eq!(object["status"]["observedGeneration"], 1);
    }
    // One of another namespace is none of this installation's.
    assert_eq!(server.get(other).unwrap()["status"], Value::Null);
}

#[test]
fn policies_that_change_all_the_time_are_written_after_those_that_wait() {
    let id = |name: &str| cluster::PolicyId {
        scope: kinds::Scope::Namespace,
        key: kinds::ObjectKey {
            namespace: "demo".to_owned(),
            name: name.to_owned(),
        },
    };
    let now = Instant::now();
    let written = [("a", 3), ("b", 1), ("c", 2)]
        .map(|(name, seconds)| (id(name), now + Duration::from_secs(seconds)));
    let pending = ["a", "b", "c", "never"].map(id);
    let order = crate::operator::longest_waiting(pending.into(), &written.into());
    let names: Vec<&str> = order.iter().map(|id| id.key.name.as_str()).collect();
    assert_eq!(names, ["never", "b", "c", "a"]);
}
