//! Restarts of workloads that ran before their policy.

use super::*;
use crate::restarts::{Restarts, Undone};

const MARK: &str = "profile.tollgate.dev/varmor-demo-web";
const RESTARTED: &str = "restart.tollgate.dev/varmor-demo-web";

fn asking() -> Value {
    let mut policy = policy(json!({ "enforcer": "BPF", "mode": "RuntimeDefault" }));
    policy["spec"]["target"] =
        json!({ "kind": "Deployment", "selector": { "matchLabels": { "app": "web" } } });
    policy["spec"]["updateExistingWorkloads"] = json!(true);
    policy
}

fn path(name: &str) -> String {
    format!("/apis/apps/v1/namespaces/demo/deployments/{name}")
}

fn deployment(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "demo", "labels": { "app": "web" } },
        "spec": { "replicas": 1, "template": { "metadata": { "annotations": { "own": "x" } } } },
        "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
    })
}

fn annotations(server: &FakeApiserver, name: &str) -> Value {
    let object = server.get(&path(name)).unwrap();
    object["spec"]["template"]["metadata"]["annotations"].clone()
}

/// What the node reports: it has seen the profile, and one container runs without it.
fn report_of(server: &FakeApiserver, counts: [u64; 2]) {
    let profile = server.get(PROFILE).unwrap();
    let version = profile["metadata"]["resourceVersion"].as_str().unwrap();
    let mut report = report(version, "b1");
    report["status"]["profiles"] = json!([{ "namespace": "demo", "name": "varmor-demo-web",
        "hash": profile["spec"]["profile"]["hash"], "containers": counts[0] + counts[1],
        "enforced": counts[0], "unprotected": counts[1] }]);
    server.put("/apis/tollgate.dev/v1alpha1/nodereports/n1", report);
}

fn updated(object: &Value) -> &Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == "WorkloadsUpdated"));
    found.unwrap_or(&Value::Null)
}

/// Lets the rollout of a deployment end.
fn roll(server: &FakeApiserver, name: &str) {
    let mut object = server.get(&path(name)).unwrap();
    object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
    server.put(&path(name), object);
}

fn begin(update_workloads: bool) -> FakeApiserver {
    let server = FakeApiserver::start().unwrap();
    server.put(
        "/api/v1/nodes/n1",
        json!({ "metadata": { "name": "n1" }, "status": { "nodeInfo": { "bootID": "b1" } } }),
    );
    for name in ["a", "b"] {
        server.put(&path(name), deployment(name));
    }
    let settings = Settings {
        update_workloads,
        restart_pause: Duration::from_millis(50),
        undo_patience: Duration::from_secs(3),
        ..settings("one")
    };
    start(&server, settings);
    server.put(POLICY, asking());
    wait(&server, PROFILE, Value::is_object);
    server
}

#[test]
fn existing_workloads_are_restarted_one_after_the_other_and_let_go_with_the_policy() {
    let server = begin(true);
    wait(&server, POLICY, |object| {
        updated(object)["status"] == "Unknown"
    });
    thread::sleep(Duration::from_millis(300));
    for name in ["a", "b"] {
        let annotations = annotations(&server, name);
        assert_eq!(annotations, json!({ "own": "x" }), "no node has the policy");
    }
    report_of(&server, [0, 2]);
    wait(&server, &path("a"), |object| {
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        annotations[MARK] == "target" && annotations[RESTARTED].is_string()
    });
    thread::sleep(Duration::from_millis(300));
    assert_eq!(
        annotations(&server, "b"),
        json!({ "own": "x" }),
        "one at a time"
    );
    wait(&server, POLICY, |object| {
        updated(object)["reason"] == "Restarting"
    });
    roll(&server, "a");
    wait(&server, &path("b"), |object| {
        object["spec"]["template"]["metadata"]["annotations"][RESTARTED].is_string()
    });
    roll(&server, "b");
    report_of(&server, [2, 0]);
    wait(&server, POLICY, |object| {
        updated(object)["reason"] == "Restarted"
    });
    // Nothing is restarted again.
    let before = ["a", "b"].map(|name| annotations(&server, name));
    report_of(&server, [1, 1]);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(["a", "b"].map(|name| annotations(&server, name)), before);
    server.remove(POLICY);
    let deleted = wait(&server, PROFILE, |object| {
        !object["metadata"]["deletionTimestamp"].is_null() || object.is_null()
    });
    drop(deleted);
    // One at a time, although the deletion is overdue.
    for name in ["a", "b"] {
        wait(&server, &path(name), |object| {
            object["spec"]["template"]["metadata"]["annotations"] == json!({ "own": "x" })
        });
        assert!(name == "b" || annotations(&server, "b") != json!({ "own": "x" }));
        roll(&server, name);
    }
    wait(&server, PROFILE, Value::is_null);
    for name in ["a", "b"] {
        assert_eq!(annotations(&server, name), json!({ "own": "x" }));
    }
}

#[test]
fn an_operator_that_may_not_restart_says_so_and_changes_nothing() {
    let server = begin(false);
    report_of(&server, [0, 2]);
    let told = wait(&server, POLICY, |object| {
        updated(object)["reason"] == "NotEnabled"
    });
    assert_eq!(updated(&told)["status"], "False");
    thread::sleep(Duration::from_millis(300));
    for name in ["a", "b"] {
        assert_eq!(annotations(&server, name), json!({ "own": "x" }));
    }
    let events = server.list("/apis/events.k8s.io/v1/events");
    let mut reasons = events.iter().map(|event| &event["reason"]);
    assert!(reasons.any(|reason| *reason == "NotEnabled"), "{events:#?}");
}

/// Restarts both deployments, to the end.
fn conclude(server: &FakeApiserver) {
    report_of(server, [0, 2]);
    for name in ["a", "b"] {
        wait(server, &path(name), |object| {
            object["spec"]["template"]["metadata"]["annotations"][RESTARTED].is_string()
        });
        roll(server, name);
    }
    report_of(server, [2, 0]);
    wait(server, POLICY, |object| {
        updated(object)["reason"] == "Restarted"
    });
}

#[test]
fn the_next_leader_restarts_nothing_that_was_concluded() {
    let server = begin(true);
    conclude(&server);
    server.put(&path("c"), deployment("c"));
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("gone");
    lease["spec"]["leaseDurationSeconds"] = json!(1);
    server.put(LEASE, lease);
    let settings = Settings {
        update_workloads: true,
        restart_pause: Duration::from_millis(50),
        ..settings("two")
    };
    start(&server, settings);
    wait(&server, LEASE, |lease| {
        lease["spec"]["holderIdentity"] == "two"
    });
    report_of(&server, [2, 1]);
    wait(&server, POLICY, |object| {
        ready(object)["reason"] == "Unprotected"
    });
    thread::sleep(Duration::from_millis(300));
    assert_eq!(annotations(&server, "c"), json!({ "own": "x" }));
    let policy = server.get(POLICY).unwrap();
    assert_eq!(updated(&policy)["reason"], "Restarted");
}

#[test]
fn a_workload_whose_owner_takes_the_annotation_out_is_restarted_once() {
    let server = begin(true);
    report_of(&server, [0, 2]);
    wait(&server, &path("a"), |object| {
        object["spec"]["template"]["metadata"]["annotations"][RESTARTED].is_string()
    });
    let mut object = server.get(&path("a")).unwrap();
    object["spec"]["template"]["metadata"]["annotations"] = json!({ "own": "x" });
    server.put(&path("a"), object);
    let told = wait(&server, POLICY, |object| {
        updated(object)["reason"] == "RolloutStalled"
    });
    let message = updated(&told)["message"].as_str().unwrap();
    assert!(message.starts_with("demo/a was restarted"), "{message}");
    thread::sleep(Duration::from_millis(300));
    for name in ["a", "b"] {
        assert_eq!(annotations(&server, name), json!({ "own": "x" }));
    }
}

#[test]
fn a_workload_that_refuses_its_restart_is_named_and_a_missing_right_is_another_cause() {
    let restart = cluster::Restart {
        kind: "Deployment".to_owned(),
        namespace: None,
        profile: "varmor-demo-web".to_owned(),
        hash: "1".to_owned(),
        generation: Some(1),
    };
    let key = kinds::ObjectKey {
        namespace: "demo".to_owned(),
        name: "a".to_owned(),
    };
    let answer = |code: u16, message: &str| {
        let error = apiserver::ApiError::Status {
            path: path("a"),
            code,
            reason: "Reason".to_owned(),
            message: message.to_owned(),
        };
        crate::restarts::refused(&restart, &key, error)
    };
    let denied = "admission webhook \"w\" denied the request: no";
    for code in [400, 403, 422, 500] {
        let state = answer(code, denied).unwrap();
        assert_eq!(state.progress, cluster::Progress::Stalled);
        let expected = format!("{code} Reason {denied}");
        assert!(state.message.contains("demo/a") && state.message.ends_with(&expected));
    }
    let right = "deployments.apps \"a\" is forbidden: User \"u\" cannot patch resource \"deployments\" in API group \"apps\"";
    let state = answer(403, right).unwrap();
    assert_eq!(state.progress, cluster::Progress::NotAllowed);
    for code in [401, 429, 503] {
        assert!(answer(code, "later").is_err());
    }
}

#[test]
fn marks_are_taken_out_of_one_workload_when_the_pods_of_the_one_before_are_there() {
    let server = begin(true);
    conclude(&server);
    let is_marked = |name: &str| annotations(&server, name)[MARK].is_string();
    let marked = || {
        ["a", "b"]
            .into_iter()
            .filter(|name| is_marked(name))
            .count()
    };
    // A deletion that this server makes is long overdue; this one is of now, and the node has seen it.
    let mut profile = server.get(PROFILE).unwrap();
    profile["metadata"]["deletionTimestamp"] = json!(Timestamp::now().to_string());
    server.put(PROFILE, profile);
    server.remove(POLICY);
    report_of(&server, [2, 0]);
    let end = Instant::now() + Duration::from_secs(20);
    while marked() == 2 {
        assert!(Instant::now() < end, "no mark is taken out");
        thread::sleep(Duration::from_millis(10));
    }
    // Its pods are not replaced yet: the status is about the generation before.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(marked(), 1);
    let first = if is_marked("a") { "b" } else { "a" };
    roll(&server, first);
    while marked() == 1 {
        assert!(Instant::now() < end, "the second mark is not taken out");
        thread::sleep(Duration::from_millis(10));
    }
    let second = if first == "a" { "b" } else { "a" };
    roll(&server, second);
    wait(&server, PROFILE, Value::is_null);
}

/// A profile whose marks two deployments have.
fn marked() -> (FakeApiserver, cluster::Release) {
    let server = FakeApiserver::start().unwrap();
    for name in ["a", "b"] {
        let mut object = deployment(name);
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "own": "x", MARK: "target", RESTARTED: "1" });
        server.put(&path(name), object);
        roll(&server, name);
    }
    let release = cluster::Release {
        key: kinds::ObjectKey {
            namespace: "demo".to_owned(),
            name: "varmor-demo-web".to_owned(),
        },
        uid: "u1".to_owned(),
        finalizers: Vec::new(),
        is_seen: true,
        is_overdue: true,
        restarted: Some(("Deployment".to_owned(), Some("demo".to_owned()))),
    };
    (server, release)
}

fn restarts(server: &FakeApiserver, [pause, patience]: [u64; 2]) -> Restarts {
    let client = Client::new(&server.access(), "tester").unwrap();
    let [pause, patience] = [pause, patience].map(Duration::from_millis);
    Restarts::new(client, pause, patience)
}

#[test]
fn workloads_that_roll_are_looked_at_no_more_often_than_the_pause() {
    let (server, release) = marked();
    let mut restarts = restarts(&server, [1000, 60_000]);
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    assert_eq!(annotations(&server, "a"), json!({ "own": "x" }));
    thread::sleep(Duration::from_millis(1100));
    // It is looked at, and still rolls: the next look comes after a pause, also if its pods are there at once.
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    roll(&server, "a");
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    assert!(annotations(&server, "b")[MARK].is_string());
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    assert_eq!(annotations(&server, "b"), json!({ "own": "x" }));
}

#[test]
fn marks_stay_in_the_others_if_a_workload_gets_no_new_pods() {
    let (server, release) = marked();
    let mut patient = restarts(&server, [0, 1000]);
    assert_eq!(patient.undo(&release).unwrap(), Undone::Later);
    thread::sleep(Duration::from_millis(600));
    // A pod more begins the time anew.
    let mut object = server.get(&path("a")).unwrap();
    object["spec"]["replicas"] = json!(3);
    object["status"]["updatedReplicas"] = json!(2);
    server.put(&path("a"), object);
    assert_eq!(patient.undo(&release).unwrap(), Undone::Later);
    thread::sleep(Duration::from_millis(600));
    assert_eq!(patient.undo(&release).unwrap(), Undone::Later);
    thread::sleep(Duration::from_millis(600));
    let Undone::Stopped(cause) = patient.undo(&release).unwrap() else {
        panic!("it goes on");
    };
    assert!(cause.starts_with("demo/a has lost them"), "{cause}");
    // It is said once, and nothing is changed later.
    roll(&server, "a");
    assert_eq!(patient.undo(&release).unwrap(), Undone::All);
    assert!(annotations(&server, "b")[MARK].is_string());
}

#[test]
fn a_controller_that_has_given_up_ends_it_at_once_unless_it_is_about_the_template_before() {
    let (server, release) = marked();
    let mut restarts = restarts(&server, [0, 60_000]);
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    let mut object = server.get(&path("a")).unwrap();
    object["status"]["conditions"] =
        json!([{ "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded" }]);
    server.put(&path("a"), object);
    assert_eq!(restarts.undo(&release).unwrap(), Undone::Later);
    roll(&server, "a");
    let undone = restarts.undo(&release).unwrap();
    assert!(
        matches!(&undone, Undone::Stopped(cause) if cause.contains("given up")),
        "{undone:?}"
    );
    assert!(annotations(&server, "b")[MARK].is_string());
}

#[test]
fn a_profile_goes_and_an_event_tells_of_marks_that_stay() {
    let server = begin(true);
    conclude(&server);
    server.remove(POLICY);
    wait(&server, PROFILE, Value::is_null);
    let is_marked = |name: &&str| annotations(&server, name)[MARK].is_string();
    assert_eq!(["a", "b"].iter().filter(|name| is_marked(name)).count(), 1);
    let events = server.list("/apis/events.k8s.io/v1/events");
    let left = events.iter().filter(|event| event["reason"] == "MarksLeft");
    let notes: Vec<&str> = left.filter_map(|event| event["note"].as_str()).collect();
    assert!(
        matches!(*notes, [note] if note.contains("demo/a has lost them")),
        "{events:#?}"
    );
}
