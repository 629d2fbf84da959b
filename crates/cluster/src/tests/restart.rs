//! Restarts of workloads that ran before their policy.

use std::collections::BTreeSet;

use kinds::annotations::{OF_POLICY, RESTARTED_AT, RESTARTED_FOR, VARMOR_RESTARTED_AT};

use super::*;

const PROFILE: &str = "varmor-demo-web";

fn asking(kind: &str, body: Value) -> Event {
    Event::Policy(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo", "generation": 1 },
        "spec": { "target": { "kind": kind, "selector": { "matchLabels": { "app": "web" } } },
            "policy": body, "updateExistingWorkloads": true },
        "status": { "installation": "tollgate" },
    })))
}

fn always() -> Value {
    json!({ "enforcer": "BPF", "mode": "RuntimeDefault" })
}

/// The profile of the policy as the operator writes it.
fn written(cluster: &Cluster, version: u64) -> Event {
    let desired = cluster.profile(&id("web")).unwrap();
    let Event::Profile(mut profile) = stored(cluster, &id("web"), version) else {
        panic!("it is a profile");
    };
    profile.metadata.annotations.extend(desired.notes);
    profile.metadata.finalizers = vec![FINALIZER.to_owned()];
    Event::Profile(profile)
}

/// A policy in force on one node, with so many containers that run without it.
fn in_force(unprotected: u64) -> Cluster {
    let mut cluster = Cluster::new("tollgate", false).with_workload_updates(true);
    cluster.apply(asking("Deployment", always()));
    sync(&mut cluster);
    cluster.apply(written(&cluster, 10));
    cluster.apply(node("n1", "b1"));
    let profiles = usage(&cluster, &id("web"), [0, 0, unprotected]);
    cluster.apply(report_of("n1", "b1", 1, 10, profiles));
    cluster
}

fn deployment(name: &str, annotations: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "demo", "labels": { "app": "web" }, "generation": 1,
            "resourceVersion": "5" },
        "spec": { "replicas": 2, "template": { "metadata": { "annotations": annotations } } },
        "status": { "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2 },
    })
}

fn said(cluster: &Cluster) -> (ConditionStatus, String, String) {
    let status = cluster.status(&id("web")).unwrap();
    let mut all = status.conditions.into_iter();
    let found = all.find(|one| one.kind == "WorkloadsUpdated").unwrap();
    (found.status, found.reason, found.message)
}

fn step(cluster: &Cluster, workloads: &[Value]) -> Step {
    let restart = cluster.restart(&id("web")).unwrap();
    let now = "2026-01-01T00:00:00Z";
    cluster.step(&id("web"), &restart, workloads, &BTreeSet::new(), now)
}

/// The workload with what a step patches.
fn patched(workload: &Value, step: &Step) -> Value {
    let Patch { key, body, .. } = step.patch.as_ref().unwrap();
    assert_eq!(key.name, workload["metadata"]["name"].as_str().unwrap());
    let mut workload = workload.clone();
    let annotations = body["spec"]["template"]["metadata"]["annotations"].clone();
    let own = &mut workload["spec"]["template"]["metadata"]["annotations"];
    for (key, value) in annotations.as_object().unwrap() {
        own[key] = value.clone();
    }
    workload
}

#[test]
fn workloads_are_restarted_one_after_the_other_and_each_once() {
    let cluster = in_force(4);
    let [mut a, mut b] = ["a", "b"].map(|name| deployment(name, json!({ "own": "x" })));
    let mut other = deployment("c", json!({}));
    other["metadata"]["labels"]["app"] = json!("other");
    let first = step(&cluster, &[a.clone(), b.clone(), other.clone()]);
    assert_eq!(first.state.progress, Progress::Restarting);
    let patch = &first.patch.as_ref().unwrap().body;
    assert_eq!(patch["metadata"]["resourceVersion"], "5");
    a = patched(&a, &first);
    let annotations = &a["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations[format!("{OF_POLICY}{PROFILE}")], "target");
    assert_eq!(annotations[RESTARTED_AT], "2026-01-01T00:00:00Z");
    assert_eq!(annotations[VARMOR_RESTARTED_AT], annotations[RESTARTED_AT]);
    assert_eq!(annotations["own"], "x");
    // The next one waits until its pods are available.
    a["metadata"]["generation"] = json!(2);
    let waits = step(&cluster, &[a.clone(), b.clone()]);
    assert_eq!(waits.patch, None);
    assert_eq!(
        waits.state.message,
        "1 of 2 workloads have the policy in their template: demo/a replaces its pods"
    );
    a["status"]["observedGeneration"] = json!(2);
    a["status"]["availableReplicas"] = json!(1);
    assert_eq!(step(&cluster, &[a.clone(), b.clone()]).patch, None);
    a["status"]["availableReplicas"] = json!(2);
    let second = step(&cluster, &[a.clone(), b.clone()]);
    b = patched(&b, &second);
    let done = step(&cluster, &[a.clone(), b.clone(), other]);
    assert_eq!(
        (done.patch, done.state.progress),
        (None, Progress::Restarted)
    );
    assert!(
        done.state
            .message
            .starts_with("2 of 2 workloads had to be restarted for varmor-demo-web ")
    );
}

#[test]
fn nothing_is_restarted_before_the_policy_is_in_force_nor_when_every_container_has_it() {
    let mut cluster = in_force(1);
    let all = [deployment("a", json!({}))];
    assert!(step(&cluster, &all).patch.is_some());
    cluster.apply(node("n2", "b2"));
    let error = cluster.restart(&id("web")).unwrap_err();
    assert_eq!(
        error,
        "no workload is restarted yet: the policy is not in force on every node"
    );
    assert_eq!(said(&cluster).0, ConditionStatus::Unknown);
    assert_eq!(said(&cluster).2, error);
    cluster.apply(Event::NodeGone("n2".to_owned()));
    let profiles = usage(&cluster, &id("web"), [2, 0, 0]);
    cluster.apply(report_of("n1", "b1", 2, 10, profiles));
    let idle = step(&cluster, &all);
    assert_eq!(
        (idle.patch, idle.state.progress),
        (None, Progress::Restarted)
    );
    assert!(
        idle.state
            .message
            .starts_with("0 of 1 workloads had to be restarted for varmor-demo-web ")
    );
    // Another installation's policy is left alone.
    let Event::Policy(mut theirs) = asking("Deployment", always()) else {
        panic!("it is a policy");
    };
    theirs.status.as_mut().unwrap().installation = Some("other".to_owned());
    cluster.apply(Event::Policy(theirs));
    assert!(cluster.restart(&id("web")).is_err());
}

/// Addresses of pods change by the restart itself: a hash of them would restart for ever.
#[test]
fn the_hash_of_a_restart_is_of_the_policy_as_it_is_written() {
    let egress = json!({ "toPods": [{ "qualifiers": ["deny"], "podSelector": {} }] });
    let body = json!({ "enforcer": "BPF", "mode": "EnhanceProtect",
        "enhanceProtect": { "bpfRawRules": { "network": { "egress": egress } } } });
    let mut cluster = in_force(1);
    cluster.apply(asking("Deployment", body));
    cluster.apply(Event::Synced(ObjectKind::Pods));
    let mut seen = Vec::new();
    for (version, address) in [(11, "10.0.0.1"), (12, "10.0.0.2")] {
        cluster.apply(Event::Pod(read(
            json!({ "metadata": { "name": "p", "namespace": "demo" },
            "status": { "podIPs": [{ "ip": address }], "podIP": address, "phase": "Running" } }),
        )));
        cluster.apply(written(&cluster, version));
        let profiles = usage(&cluster, &id("web"), [0, 0, 1]);
        cluster.apply(report_of("n1", "b1", version, version, profiles));
        let profile = cluster.profile(&id("web")).unwrap();
        let restart = cluster.restart(&id("web")).unwrap();
        seen.push((profile.spec.profile.hash, restart.hash));
    }
    assert_ne!(seen[0].0, seen[1].0);
    assert_eq!(seen[0].1, seen[1].1);
}

#[test]
fn a_workload_that_does_not_come_up_stops_the_restarts_and_what_does_not_roll_is_named() {
    let cluster = in_force(4);
    let first = step(&cluster, &[deployment("a", json!({}))]);
    let with = |change: fn(&mut Value)| {
        let mut a = patched(&deployment("a", json!({})), &first);
        change(&mut a);
        step(&cluster, &[a, deployment("b", json!({}))])
    };
    let stalled = with(|one| {
        one["status"]["conditions"] = json!([{ "type": "Progressing", "status": "False",
            "reason": "ProgressDeadlineExceeded" }]);
    });
    assert_eq!(
        (stalled.patch, stalled.state.progress),
        (None, Progress::Stalled)
    );
    assert_eq!(
        stalled.state.message,
        "demo/a does not become available, and 1 workloads are not restarted"
    );
    let paused = with(|one| one["spec"]["paused"] = json!(true));
    assert_eq!(
        paused.patch.unwrap().key.name,
        "b",
        "it holds up no other one"
    );
    let mut a = patched(&deployment("a", json!({})), &first);
    a["spec"]["paused"] = json!(true);
    let named = step(&cluster, &[a]).state;
    assert_eq!(named.progress, Progress::NotRolled);
    assert_eq!(
        named.message,
        "these do not replace their pods: demo/a is paused"
    );
}

#[test]
fn what_is_not_done_is_said() {
    let mut cluster = in_force(1);
    let restart = cluster.restart(&id("web")).unwrap();
    let state = restart.state(Progress::NotAllowed, "403".to_owned());
    cluster.take_changes();
    cluster.apply(Event::Restarts(id("web"), state));
    assert!(cluster.take_changes().contains(&id("web")));
    let expected = (
        ConditionStatus::False,
        "NotAllowed".to_owned(),
        "403".to_owned(),
    );
    assert_eq!(said(&cluster), expected);
    cluster.apply(asking(
        "Deployment",
        json!({ "enforcer": "BPF", "mode": "AlwaysAllow" }),
    ));
    assert_eq!(
        said(&cluster).1,
        "Processing",
        "that was about another policy"
    );
    cluster.apply(asking("Pod", always()));
    assert_eq!(said(&cluster).1, "NotRestarted");
    let mut without = Cluster::new("tollgate", false);
    without.apply(asking("Deployment", always()));
    let (status, reason, message) = said(&without);
    assert_eq!(
        (status, reason.as_str()),
        (ConditionStatus::False, "NotEnabled")
    );
    assert!(message.contains("--update-workloads"), "{message}");
    without.apply(simple("web"));
    let status = without.status(&id("web")).unwrap();
    assert!(
        status
            .conditions
            .iter()
            .all(|one| one.kind != "WorkloadsUpdated")
    );
}

#[test]
fn what_a_restart_has_put_in_is_taken_out_and_nothing_else() {
    let own = format!("{RESTARTED_FOR}{PROFILE}");
    let mark = format!("{OF_POLICY}{PROFILE}");
    let annotations = json!({ own.clone(): "1", mark.clone(): "target", RESTARTED_AT: "t", VARMOR_RESTARTED_AT: "t",
        "own": "x" });
    let mut workload = deployment("a", annotations);
    let (key, patch) = undo_restart(PROFILE, &workload).unwrap();
    assert_eq!(key.name, "a");
    let gone = &patch["spec"]["template"]["metadata"]["annotations"];
    let expected = json!({ own: null, mark: null, RESTARTED_AT: null, VARMOR_RESTARTED_AT: null });
    assert_eq!(gone, &expected);
    let other = format!("{RESTARTED_FOR}varmor-demo-other");
    workload["spec"]["template"]["metadata"]["annotations"][other] = json!("2");
    let (_, patch) = undo_restart(PROFILE, &workload).unwrap();
    let gone = patch["spec"]["template"]["metadata"]["annotations"]
        .as_object()
        .unwrap();
    assert_eq!(gone.len(), 2, "{gone:?}");
    let marked = deployment(
        "b",
        json!({ "profile.tollgate.dev/varmor-demo-web": "target" }),
    );
    assert_eq!(undo_restart(PROFILE, &marked), None, "admission wrote that");
}

#[test]
fn nothing_is_restarted_before_all_objects_of_each_kind_are_known() {
    let full = in_force(1);
    let all = [
        ObjectKind::Policies,
        ObjectKind::Profiles,
        ObjectKind::Nodes,
        ObjectKind::Reports,
    ];
    for missing in all {
        let mut cluster = Cluster::new("tollgate", false).with_workload_updates(true);
        cluster.apply(asking("Deployment", always()));
        cluster.apply(written(&full, 10));
        cluster.apply(node("n1", "b1"));
        let profiles = usage(&cluster, &id("web"), [0, 0, 1]);
        cluster.apply(report_of("n1", "b1", 1, 10, profiles));
        for kind in all.into_iter().filter(|kind| *kind != missing) {
            cluster.apply(Event::Synced(kind));
        }
        let error = cluster.restart(&id("web")).unwrap_err();
        let expected = format!("no workload is restarted yet: not all {missing:?} are known yet");
        assert_eq!(error, expected);
        cluster.apply(Event::Synced(missing));
        assert!(cluster.restart(&id("web")).is_ok());
    }
}

/// A policy of a generation, whose status says that the restarts for generation 1 are concluded.
fn concluded(message: &str, generation: i64) -> Event {
    let Event::Policy(mut policy) = asking("Deployment", always()) else {
        panic!("it is a policy");
    };
    policy.metadata.generation = Some(generation);
    policy.status = Some(*read(
        json!({ "installation": "tollgate", "observedGeneration": 1,
        "conditions": [{ "type": "WorkloadsUpdated", "status": "True", "reason": "Restarted", "message": message }] }),
    ));
    Event::Policy(policy)
}

#[test]
fn a_new_leader_reads_in_the_status_that_the_restarts_are_concluded() {
    let mut first = in_force(0);
    let end = step(&first, &[deployment("a", json!({}))]).state;
    let message = end.message.clone();
    first.apply(Event::Restarts(id("web"), end));
    assert!(first.restart(&id("web")).is_err());
    let mut leader = in_force(1);
    for text in [&message, "2 of 2 workloads had to be restarted"] {
        leader.apply(concluded(text, 1));
        let error = leader.restart(&id("web")).unwrap_err();
        assert_eq!(error, "every workload is restarted");
        let (status, reason, said) = said(&leader);
        assert_eq!(
            (status, reason.as_str(), said.as_str()),
            (ConditionStatus::True, "Restarted", text)
        );
    }
    // A change of the policy, of its fail mode, and another installation's profile are restarted for.
    let other = message.replace(PROFILE, "varmor-demo-other");
    for event in [concluded(&message, 2), concluded(&other, 1)] {
        leader.apply(event);
        assert!(leader.restart(&id("web")).is_ok());
        assert_eq!(said(&leader).1, "Processing");
    }
    let Event::Policy(mut open) = concluded(&message, 1) else {
        panic!("it is a policy");
    };
    let mode = kinds::annotations::FAIL_MODE.to_owned();
    open.metadata.annotations.insert(mode, "open".to_owned());
    leader.apply(Event::Policy(open));
    assert_eq!(said(&leader).1, "Processing");
}

#[test]
fn a_workload_that_loses_the_annotation_is_not_restarted_again() {
    let cluster = in_force(1);
    let all = [deployment("a", json!({})), deployment("b", json!({}))];
    let first = step(&cluster, &all);
    let patched = BTreeSet::from([first.patch.unwrap().workload]);
    let restart = cluster.restart(&id("web")).unwrap();
    let again = cluster.step(&id("web"), &restart, &all, &patched, "t");
    assert_eq!(
        (again.patch, again.state.progress),
        (None, Progress::Stalled)
    );
    let message = again.state.message;
    assert!(
        message.starts_with(
            "demo/a was restarted, and something has taken the annotation restart.tollgate.dev/"
        ),
        "{message}"
    );
}
