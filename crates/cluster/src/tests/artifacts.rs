//! Status of Rulesfiles and Configs from the reports of nodes.

use kinds::ConditionStatus::{False, True, Unknown};

use super::*;
use crate::artifacts::{ArtifactId, ArtifactKind};

fn id() -> ArtifactId {
    ArtifactId {
        kind: ArtifactKind::Rulesfile,
        key: key("tollgate", "r"),
    }
}

fn rulesfile(spec: Value) -> Event {
    let object = json!({ "metadata": { "name": "r", "namespace": "tollgate", "generation": 3 }, "spec": spec });
    Event::Artifact(ArtifactKind::Rulesfile, Box::new(object))
}

fn labelled(name: &str, pool: &str) -> Event {
    Event::Node(read(
        json!({ "metadata": { "name": name, "labels": { "pool": pool } },
        "status": { "nodeInfo": { "bootID": "b" } } }),
    ))
}

fn detecting(node: &str, time: u64, detection: Value) -> Event {
    Event::Report(read(
        json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport",
        "metadata": { "name": node }, "status": { "agentVersion": "1", "bootID": "b", "observedVersion": "1",
        "renewTime": format!("2026-01-01T00:00:{time:02}Z"), "detection": detection } }),
    ))
}

fn state(generation: i64, programmed: bool, reason: &str) -> Value {
    json!({ "running": true, "rules": 1, "artifacts": [{ "kind": "Rulesfile", "namespace": "tollgate", "name": "r",
        "generation": generation, "programmed": programmed, "reason": reason, "message": "the message" }] })
}

fn cluster(spec: Value) -> Cluster {
    let mut cluster = Cluster::new("tollgate", false);
    for event in [
        rulesfile(spec),
        labelled("n0", "web"),
        labelled("n1", "db"),
        Event::Synced(ObjectKind::Nodes),
        Event::Synced(ObjectKind::Reports),
    ] {
        cluster.apply(event);
    }
    cluster
}

fn said(cluster: &Cluster) -> (kinds::ConditionStatus, String, String) {
    let status = cluster.artifact_status(&id()).unwrap();
    assert_eq!(status.observed_generation, Some(3));
    let condition = status.conditions[0].clone();
    assert_eq!(condition.kind, "Programmed");
    // The API server refuses a condition without either.
    assert!(!condition.reason.is_empty() && !condition.message.is_empty());
    (condition.status, condition.reason, condition.message)
}

#[test]
fn rules_are_programmed_when_every_node_that_they_are_for_says_so() {
    let mut cluster = cluster(json!({ "inlineRules": "x" }));
    assert_eq!(said(&cluster).0, Unknown);
    cluster.apply(detecting("n0", 1, state(3, true, "Programmed")));
    assert_eq!(said(&cluster).2, "1 of 2 nodes: there is no report");
    cluster.take_changed_artifacts();
    cluster.apply(detecting("n1", 1, state(2, true, "Programmed")));
    assert!(cluster.take_changed_artifacts().contains(&id()));
    let (status, _, message) = said(&cluster);
    assert!(
        status == Unknown && message.contains("not seen this version"),
        "{message}"
    );
    cluster.apply(detecting("n1", 2, state(3, true, "Programmed")));
    assert_eq!(said(&cluster).0, True);
    // The same again changes nothing.
    cluster.take_changed_artifacts();
    cluster.apply(detecting("n1", 3, state(3, true, "Programmed")));
    assert!(cluster.take_changed_artifacts().is_empty());
    let since = "2026-01-01T00:00:03Z".to_owned();
    cluster.apply(Event::Silent {
        node: "n1".to_owned(),
        since,
    });
    assert!(cluster.take_changed_artifacts().contains(&id()));
    assert_eq!(said(&cluster).0, Unknown);
}

#[test]
fn a_node_that_cannot_or_does_not_detect_makes_rules_not_programmed() {
    for (detection, expected) in [
        (
            state(3, false, "ProgramFailed"),
            "1 of 2 nodes: the message",
        ),
        (Value::Null, "the agent does not detect"),
        (
            json!({ "running": false, "rules": 0, "reason": "no BTF" }),
            "no engine watches the node: no BTF",
        ),
    ] {
        let mut cluster = cluster(json!({ "inlineRules": "x" }));
        cluster.apply(detecting("n0", 1, state(3, true, "Programmed")));
        cluster.apply(detecting("n1", 1, detection));
        let (status, reason, message) = said(&cluster);
        assert_eq!((status, &*reason), (False, "ProgramFailed"), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_selector_says_which_nodes_count() {
    let pool =
        |pool: &str| json!({ "selector": { "matchLabels": { "pool": pool } }, "inlineRules": "x" });
    let mut cluster = cluster(pool("web"));
    cluster.apply(detecting("n0", 1, state(3, true, "Programmed")));
    assert_eq!(said(&cluster).0, True);
    cluster.apply(labelled("n0", "db"));
    let (status, _, message) = said(&cluster);
    assert_eq!(
        (status, &*message),
        (Unknown, "the selector is for no node")
    );
    cluster.apply(rulesfile(json!({ "selector": 7 })));
    assert_eq!(said(&cluster).0, False);
    cluster.apply(Event::ArtifactGone(id()));
    assert_eq!(cluster.artifact_status(&id()), None);
}

#[test]
fn a_missing_config_map_is_a_condition_of_its_own() {
    let mut cluster = cluster(json!({ "configMapRef": { "name": "m" } }));
    for (reason, programmed, expected) in [
        ("ReferenceResolutionFailed", false, [False, False]),
        ("ProgramFailed", false, [False, True]),
        ("Programmed", true, [True, True]),
    ] {
        cluster.apply(detecting("n0", 1, state(3, programmed, reason)));
        cluster.apply(detecting("n1", 1, state(3, programmed, reason)));
        let conditions = cluster.artifact_status(&id()).unwrap().conditions;
        let found = [0, 1].map(|index: usize| conditions[index].status);
        assert_eq!(found, expected, "{reason}");
        assert_eq!(conditions[1].kind, "ResolvedRefs");
    }
}

#[test]
fn a_config_map_that_no_node_has_looked_for_is_not_said_to_be_read() {
    let stopped = json!({ "running": false, "rules": 0, "reason": "no BTF" });
    for detection in [Value::Null, stopped] {
        let mut cluster = cluster(json!({ "configMapRef": { "name": "m" } }));
        for (time, other, expected) in [
            (1, detection.clone(), Unknown),
            (2, state(3, true, "Programmed"), Unknown),
            (3, state(3, false, "ReferenceResolutionFailed"), False),
        ] {
            cluster.apply(detecting("n0", time, other));
            cluster.apply(detecting("n1", time, detection.clone()));
            let conditions = cluster.artifact_status(&id()).unwrap().conditions;
            let statuses = [conditions[0].status, conditions[1].status];
            assert_eq!(statuses, [False, expected], "{}", conditions[1].message);
        }
    }
}
