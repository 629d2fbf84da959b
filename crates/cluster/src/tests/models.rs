//! Tests of behaviour modelling: the run of a policy, its status and its model.

use kinds::annotations::MODELING;
use kinds::{ModelingRun, PolicyStatus};

use super::*;

/// Start of the run.
const START: u64 = 1_764_352_272;
/// Its end.
const END: u64 = START + 10 * 60;

fn modeling(minutes: u64) -> Event {
    let body = json!({ "enforcer": "BPFSeccomp", "mode": "BehaviorModeling", "modelingOptions": { "duration": minutes } });
    policy("web", body)
}

/// The profile as the operator writes it, with the start of its run.
fn written(cluster: &Cluster, version: u64) -> Event {
    let profile = cluster.profile(&id("web")).unwrap();
    let mut notes = profile.notes;
    notes.insert(INSTALLATION.to_owned(), "tollgate".to_owned());
    if profile.starts_run {
        notes.insert(MODELING.to_owned(), format!("{START}/10"));
    }
    Event::Profile(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": { "name": profile.name, "namespace": profile.namespace, "resourceVersion": version.to_string(),
            "generation": 1, "annotations": notes, "finalizers": [FINALIZER] },
        "spec": profile.spec,
    })))
}

/// A cluster with a run and these nodes.
fn cluster(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new("tollgate", true);
    sync(&mut cluster);
    cluster.apply(Event::Synced(ObjectKind::Models));
    cluster.apply(Event::Time(START));
    cluster.apply(modeling(10));
    let profile = written(&cluster, 10);
    cluster.apply(profile);
    nodes.iter().for_each(|name| cluster.apply(node(name, "b")));
    cluster
}

/// What a node reports: until when it has observed, and the calls.
fn observed(name: &str, until: u64, calls: &[&str]) -> Event {
    reported(
        name,
        until,
        json!({ "containers": 1, "fromStart": 1, "recorded": { "seccomp": { "syscalls": calls } } }),
    )
}

fn reported(name: &str, until: u64, more: Value) -> Event {
    let Event::Report(mut report) = report_of(name, "b", until - START, 10, json!([])) else {
        panic!("it is a report");
    };
    let mut behavior = json!({ "namespace": "demo", "name": "varmor-demo-web", "run": START, "since": START, "until": until });
    for (key, value) in more.as_object().unwrap() {
        behavior[key] = value.clone();
    }
    let status = report.status.as_mut().unwrap();
    status.behaviors = vec![serde_json::from_value(behavior).unwrap()];
    Event::Report(report)
}

/// The model as the API server has it when the operator has written it.
fn stored_model(cluster: &Cluster) -> Event {
    let model = cluster.model(&id("web")).unwrap();
    let mut object = model.object;
    object["apiVersion"] = json!("crd.varmor.org/v1beta1");
    object["kind"] = json!("ArmorProfileModel");
    object["status"] = json!(model.status);
    Event::Model(read(object))
}

fn state(cluster: &Cluster) -> (PolicyStatus, String, String) {
    let status = cluster.status(&id("web")).unwrap();
    let (_, reason, message) = ready(cluster, &id("web"));
    (status, reason, message)
}

#[test]
fn a_run_begins_once_and_is_kept_through_changes_of_its_duration() {
    let mut cluster = Cluster::new("tollgate", true);
    sync(&mut cluster);
    cluster.apply(modeling(10));
    let profile = cluster.profile(&id("web")).unwrap();
    assert!(profile.starts_run && !profile.notes.contains_key(MODELING));
    assert!(profile.spec.behavior_modeling.enable);
    let event = written(&cluster, 10);
    cluster.apply(event);
    let profile = cluster.profile(&id("web")).unwrap();
    assert!(!profile.starts_run && cluster.is_written(&profile));
    assert_eq!(profile.notes[MODELING], format!("{START}/10"));
    cluster.apply(modeling(20));
    let profile = cluster.profile(&id("web")).unwrap();
    assert!(!profile.starts_run && !cluster.is_written(&profile));
    assert_eq!(profile.notes[MODELING], format!("{START}/20"));
    // Another mode has no run: an agent would not confine by it.
    cluster.apply(simple("web"));
    let profile = cluster.profile(&id("web")).unwrap();
    assert!(!profile.notes.contains_key(MODELING) && !cluster.is_written(&profile));
}

#[test]
fn a_policy_is_modeling_then_completed_and_its_model_has_what_all_nodes_saw() {
    let mut cluster = cluster(&["n1", "n2"]);
    cluster.apply(observed("n1", START + 30, &["bind"]));
    cluster.apply(observed("n2", START + 60, &["listen"]));
    let (status, reason, _) = state(&cluster);
    assert_eq!((status.phase, status.ready), (Some(Phase::Modeling), true));
    assert_eq!(reason, "AllAgentsReady");
    let model = cluster.model(&id("web")).unwrap();
    assert!(!model.run.is_over && model.is_object_new && !model.status.ready);
    assert_eq!(
        (model.status.desired_number, model.status.completed_number),
        (2, 0)
    );
    assert_eq!(
        model.object["data"]["dynamicResult"]["seccomp"]["syscalls"],
        json!(["bind", "listen"])
    );
    assert_eq!(model.object["data"]["profile"], Value::Null);

    // The time is over, and one node has not said that it has observed until then.
    cluster.take_changes();
    cluster.apply(Event::Time(END));
    assert!(cluster.take_changes().contains(&id("web")));
    cluster.apply(observed("n1", END, &["bind"]));
    let (status, reason, message) = state(&cluster);
    assert_eq!(
        (status.phase, reason.as_str()),
        (Some(Phase::Modeling), "Processing")
    );
    assert_eq!(message, "1 of 2 nodes have not reported the whole run");

    cluster.apply(observed("n2", END, &["listen"]));
    assert!(!state(&cluster).0.ready, "the model is not written yet");
    let model = cluster.model(&id("web")).unwrap();
    assert!(model.run.is_over && model.status.ready);
    assert_eq!(
        (model.status.desired_number, model.status.completed_number),
        (2, 2)
    );
    assert_eq!(model.status.nothing_new_seconds, 540);
    assert!(
        model.object["data"]["profile"]["seccomp"]
            .as_str()
            .unwrap()
            .contains("listen")
    );
    let stored = stored_model(&cluster);
    cluster.apply(stored);
    stays_completed(&mut cluster);
}

/// Nodes are told that they need not report the run any more.
fn stays_completed(cluster: &mut Cluster) {
    let profile = cluster.profile(&id("web")).unwrap();
    assert_eq!(profile.notes[MODELING], format!("{START}/10/over"));
    assert_eq!(
        cluster.model(&id("web")),
        None,
        "a model that is written stays"
    );
    let (status, reason, _) = state(cluster);
    assert_eq!((status.phase, status.ready), (Some(Phase::Completed), true));
    assert_eq!(reason, "AllAgentsReady");
    // They do not, and the policy stays completed; also for the next operator.
    let event = written(cluster, 11);
    cluster.apply(event.clone());
    cluster.apply(report_of("n1", "b", 900, 11, json!([])));
    assert_eq!(state(cluster).0.phase, Some(Phase::Completed));
    // A longer run goes on from there.
    cluster.apply(modeling(30));
    let profile = cluster.profile(&id("web")).unwrap();
    assert_eq!(profile.notes[MODELING], format!("{START}/30"));
}

#[test]
fn the_next_operator_takes_over_a_run_from_the_model() {
    let mut before = cluster(&["n1"]);
    before.apply(observed("n1", START + 30, &["bind"]));
    let (profile, model) = (written(&before, 10), stored_model(&before));
    let mut after = Cluster::new("tollgate", true);
    sync(&mut after);
    for event in [
        model,
        profile,
        modeling(10),
        node("n1", "b"),
        Event::Synced(ObjectKind::Models),
        Event::Time(END),
    ] {
        after.apply(event);
    }
    // The node has restarted, and has not observed `bind` again.
    after.apply(observed("n1", END, &["listen"]));
    let model = after.model(&id("web")).unwrap();
    assert!(model.status.ready);
    assert_eq!(
        model.object["data"]["dynamicResult"]["seccomp"]["syscalls"],
        json!(["bind", "listen"])
    );
}

#[test]
fn what_was_not_recorded_is_said_and_never_a_success() {
    let cases = [
        (
            json!({ "containers": 1, "fromStart": 1, "incomplete": ["the engine has lost events"] }),
            "ModelIncomplete",
            "n1: the engine has lost events",
        ),
        (
            json!({ "containers": 1, "fromStart": 0 }),
            "StartNotObserved",
            "restart the workload during the run",
        ),
        (
            json!({ "containers": 0, "fromStart": 0 }),
            "NotObserved",
            "no container of the workload ran",
        ),
    ];
    for (more, reason, message) in cases {
        let mut cluster = cluster(&["n1"]);
        cluster.apply(Event::Time(END));
        cluster.apply(reported("n1", END, more));
        let model = cluster.model(&id("web")).unwrap();
        assert!(model.run.is_over && !model.status.ready, "{reason}");
        assert_eq!(model.object["data"]["profile"], Value::Null, "{reason}");
        let stored = stored_model(&cluster);
        cluster.apply(stored);
        let (status, found, text) = state(&cluster);
        assert_eq!(found, reason);
        assert!(text.contains(message), "{text}");
        assert_eq!(
            (status.phase, status.ready),
            (Some(Phase::Error), false),
            "{reason}"
        );
    }
    // No node has said anything.
    let mut cluster = cluster(&["n1"]);
    cluster.apply(report_of("n1", "b", 1, 10, json!([])));
    assert_eq!(
        cluster.model(&id("web")),
        None,
        "there is nothing to write before the end"
    );
    cluster.apply(Event::Time(END));
    let stored = stored_model(&cluster);
    cluster.apply(stored);
    assert_eq!(state(&cluster).1, "NotObserved");
}

#[test]
fn a_node_that_is_gone_is_not_waited_for_and_one_that_cannot_observe_is_an_error() {
    let mut cluster = cluster(&["n1", "n2"]);
    cluster.apply(observed("n1", START + 30, &["bind"]));
    cluster.apply(Event::Time(END));
    cluster.apply(observed("n2", END, &["listen"]));
    assert_eq!(state(&cluster).1, "Processing");
    cluster.apply(Event::NodeGone("n1".to_owned()));
    let model = cluster.model(&id("web")).unwrap();
    assert_eq!((model.status.desired_number, model.status.ready), (1, true));
    assert_eq!(
        model.object["data"]["dynamicResult"]["seccomp"]["syscalls"],
        json!(["bind", "listen"])
    );

    let mut cluster = self::cluster(&["n1"]);
    let hash = cluster.profile(&id("web")).unwrap().spec.profile.hash;
    let failed = json!([{ "namespace": "demo", "name": "varmor-demo-web", "hash": hash, "containers": 1, "late": 1,
        "failure": "cannot observe containers: no eBPF" }]);
    cluster.apply(report_of("n1", "b", 1, 10, failed));
    let (status, reason, message) = state(&cluster);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("Error", "1 of 1 nodes failed")
    );
    assert_eq!(
        status.coverage.unwrap().reasons,
        ["1 x node failed: cannot observe containers: no eBPF"]
    );
}

#[test]
fn a_node_that_says_nothing_of_the_run_keeps_the_model_from_being_complete() {
    let mut cluster = cluster(&["n1", "n2"]);
    cluster.apply(observed("n1", END, &["bind"]));
    cluster.apply(Event::Time(END));
    let hash = cluster.profile(&id("web")).unwrap().spec.profile.hash;
    let state = |failure: Option<&str>| {
        let mut state = json!({ "namespace": "demo", "name": "varmor-demo-web", "hash": hash, "containers": 1, "late": 1 });
        if let Some(failure) = failure {
            state["failure"] = json!(failure);
        }
        json!([state])
    };
    // One that is unknown or cannot observe may have containers.
    assert!(!cluster.model(&id("web")).unwrap().run.is_over);
    cluster.apply(report_of("n2", "b", 1, 10, state(Some("no eBPF"))));
    let waits = cluster.model(&id("web")).unwrap();
    assert!(!waits.run.is_over);
    let complete = &waits.status.conditions[0].condition;
    assert_eq!(
        complete.message,
        "1 of 2 nodes have not reported the whole run"
    );
    cluster.apply(report_of("n2", "b", 2, 10, state(None)));
    let lacks = cluster.model(&id("web")).unwrap();
    assert!(lacks.run.is_over && !lacks.status.ready);
    let message = "1 nodes have containers of the workload and do not say what they did";
    assert_eq!(lacks.status.conditions[0].condition.message, message);
    // One without containers has nothing to say.
    cluster.apply(report_of("n2", "b", 3, 10, json!([])));
    assert!(cluster.model(&id("web")).unwrap().status.ready);
}

#[test]
fn a_model_of_somebody_else_is_not_replaced_and_a_run_that_does_not_exist_is_not_taken() {
    let mut cluster = cluster(&["n1"]);
    let imported = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfileModel",
        "metadata": { "name": "varmor-demo-web", "namespace": "demo" }, "data": {} });
    cluster.apply(Event::Model(read(imported)));
    cluster.apply(observed("n1", END, &["bind"]));
    cluster.apply(Event::Time(END));
    assert_eq!(cluster.model(&id("web")), None);
    let (_, reason, message) = state(&cluster);
    assert_eq!(reason, "ModelExists");
    assert!(message.contains("is not of this installation"), "{message}");
    cluster.apply(Event::ModelGone(key("demo", "varmor-demo-web")));
    assert!(cluster.model(&id("web")).unwrap().status.ready);

    // A node that reports runs that do not exist takes no room from those that do.
    let mut cluster = self::cluster(&["n1"]);
    for number in 0..2000 {
        cluster.apply(reported(
            "n1",
            END,
            json!({ "name": format!("p{number}"), "containers": 1 }),
        ));
    }
    cluster.apply(observed("n1", END, &["bind"]));
    cluster.apply(Event::Time(END));
    assert!(cluster.model(&id("web")).unwrap().status.ready);
}

#[test]
fn before_all_is_known_nothing_is_written() {
    let mut cluster = Cluster::new("tollgate", true);
    cluster.apply(modeling(10));
    cluster.apply(Event::Time(END));
    cluster.apply(node("n1", "b"));
    cluster.apply(observed("n1", END, &["bind"]));
    let event = written(&cluster, 10);
    cluster.apply(event);
    assert_eq!(cluster.model(&id("web")), None);
    sync(&mut cluster);
    assert_eq!(cluster.model(&id("web")), None, "a model may exist");
    assert!(state(&cluster).2.contains("not all Models are known yet"));
    cluster.apply(Event::Synced(ObjectKind::Models));
    assert!(cluster.model(&id("web")).is_some());
    let run: ModelingRun = format!("{START}/10").parse().unwrap();
    assert_eq!(run.end(), END);
}
