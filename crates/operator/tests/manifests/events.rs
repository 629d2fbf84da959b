//! The right of agents to write Events.

use apiserver::real::{RealApiserver, until};
use apiserver::{Client, Resource};
use operator::manifests::{self, Installation, NODE};
use serde_json::{Value, json};

use super::{code, key, token};

/// An Event as an agent writes it.
fn event(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": name, "namespace": "demo" },
        "eventTime": "2026-11-27T10:00:00.000001Z",
        "reportingController": "tollgate.dev/node", "reportingInstance": node,
        "action": "Detect", "reason": "RuleMatched", "type": "Warning",
        "regarding": { "apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "demo", "uid": "u" },
        "note": "container app: Terminal shell (Notice): a shell",
        "series": { "count": 7, "lastObservedTime": "2026-11-27T10:00:05.000001Z" },
    })
}

/// Tries until the policy of admission is in force; returns the refusal.
fn refused(agent: &Client, events: &Resource, event: &Value) -> String {
    let mut number = 0;
    until(|| {
        number += 1;
        let mut event = event.clone();
        event["metadata"]["name"] = json!(format!("try.{number}"));
        match agent.create(events, &event) {
            Ok(_) => Err("it is allowed".to_owned()),
            Err(error) => Ok(error.to_string()),
        }
    })
    .expect("it is refused")
}

fn only_events_that_agents_write_are_taken(agent: &Client, events: &Resource) {
    for (name, reason, action, version, kind) in [
        ("p", "PolicyViolation", "Enforce", "apps/v1", "Deployment"),
        ("q", "PolicyNotEnforced", "Enforce", "batch/v1", "Job"),
    ] {
        let mut event = event(name, "n1");
        event["reason"] = json!(reason);
        event["action"] = json!(action);
        event["related"] =
            json!({ "apiVersion": version, "kind": kind, "name": "web", "namespace": "demo" });
        agent.create(events, &event).expect("it may");
    }
    let other = event("web.2", "n2");
    let mut of_node = event("web.2", "n1");
    of_node["regarding"] = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1" });
    of_node["metadata"]["namespace"] = json!("default");
    let mut kubelet = event("web.2", "n1");
    kubelet["reportingController"] = json!("kubelet");
    let mut reason = event("web.2", "n1");
    reason["reason"] = json!("FailedMount");
    let mut action = event("web.2", "n1");
    action["action"] = json!("Enforce");
    let mut version = event("web.2", "n1");
    version["regarding"]["apiVersion"] = json!("v2");
    let mut secret = event("web.2", "n1");
    secret["related"] =
        json!({ "apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": "demo" });
    let mut elsewhere = event("web.2", "n1");
    elsewhere["related"] = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "other" });
    for wrong in [
        other, of_node, kubelet, reason, action, version, secret, elsewhere,
    ] {
        let error = refused(agent, events, &wrong);
        assert!(
            error.contains("403") && error.contains("as its own node"),
            "{error}"
        );
    }
}

pub(super) fn an_agent_creates_events_of_pods_as_its_own_node_alone(server: &RealApiserver) {
    let events = Resource::new("events.k8s.io", "v1", "events");
    let agent = token(server, NODE, Some("n1"));
    let made = || {
        let made = agent.create(&events, &event("web.1", "n1"));
        made.map_err(|error| error.to_string())
    };
    let made = until(made).expect("it may");
    assert_eq!(made["series"]["count"], 7);

    only_events_that_agents_write_are_taken(&agent, &events);
    let unbound = token(server, NODE, None);
    assert_eq!(
        code(unbound.create(&events, &event("web.3", "n1"))),
        Some(403)
    );

    // It reads, changes and deletes none, also by the other name of the kind.
    let at = key("demo", "web.1");
    for resource in [events.clone(), Resource::new("", "v1", "events")] {
        assert_eq!(code(agent.get(&resource, &at)), Some(403));
        assert_eq!(code(agent.get(&resource, &key("demo", ""))), Some(403));
        let uid = made["metadata"]["uid"].as_str().expect("it was made");
        assert_eq!(code(agent.delete(&resource, &at, uid)), Some(403));
    }
    let mut changed = made.clone();
    changed["note"] = json!("other");
    assert_eq!(code(agent.replace(&events, &changed)), Some(403));
    let core = json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": "x", "namespace": "demo" },
        "involvedObject": { "kind": "Pod", "name": "web", "namespace": "demo" } });
    assert_eq!(
        code(agent.create(&Resource::new("", "v1", "events"), &core)),
        Some(403)
    );
}

#[test]
fn only_with_events_have_agents_the_right_and_the_option() {
    let objects = |events| {
        manifests::all(&Installation {
            namespace: "guard".to_owned(),
            image: "i".to_owned(),
            detect: true,
            events,
            violations: events,
            behavior_modeling: events,
            update_workloads: events,
            bpf: false,
            webhook: false,
            webhook_exempt: Vec::new(),
            webhook_names: Vec::new(),
        })
    };
    let find = |all: &[Value], kind: &str, name: &str| -> Value {
        let mut all = all.iter();
        let found = all.find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
        // Null where there is no such object, which is compared below.
        found.cloned().unwrap_or(Value::Null)
    };
    for events in [true, false] {
        let all = objects(events);
        let rules = find(&all, "ClusterRole", NODE)["rules"].clone();
        let mut of_events = rules.as_array().expect("it has rules").iter();
        let of_events = of_events.find(|rule| rule["resources"] == json!(["events"]));
        let expected =
            json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"] });
        assert_eq!(of_events, events.then_some(&expected));
        let agents = find(&all, "DaemonSet", NODE);
        let command = agents["spec"]["template"]["spec"]["containers"][0]["command"].clone();
        let words = command.as_array().expect("it has a command").clone();
        assert_eq!(words.contains(&json!("--events")), events);
        assert_eq!(words.contains(&json!("--violations")), events);
        let volumes = agents["spec"]["template"]["spec"]["volumes"].clone();
        let mut volumes = volumes.as_array().expect("it has volumes").iter();
        let log = volumes.any(|volume| volume["hostPath"]["path"] == "/var/log/varmor");
        assert_eq!(log, events);
        let policy = find(&all, "ValidatingAdmissionPolicy", "tollgate-own-events");
        assert_eq!(policy.is_object(), events);
    }
}

#[test]
fn only_with_bpf_have_agents_the_programs_and_groups_of_the_node() {
    let agents = |bpf| {
        let all = manifests::all(&Installation {
            namespace: "guard".to_owned(),
            image: "i".to_owned(),
            detect: false,
            events: false,
            violations: false,
            behavior_modeling: false,
            update_workloads: false,
            bpf,
            webhook: false,
            webhook_exempt: Vec::new(),
            webhook_names: Vec::new(),
        });
        let found = all.into_iter().find(|one| one["kind"] == "DaemonSet");
        found.expect("there are agents")["spec"]["template"]["spec"].clone()
    };
    for bpf in [false, true] {
        let pod = agents(bpf);
        let agent = &pod["containers"][0];
        let has =
            |list: &Value, wanted: &Value| list.as_array().is_some_and(|all| all.contains(wanted));
        assert_eq!(has(&agent["command"], &json!("--bpf")), bpf);
        assert_eq!(
            has(
                &agent["securityContext"]["capabilities"]["add"],
                &json!("BPF")
            ),
            bpf
        );
        assert_eq!(pod["hostPID"] == true, bpf);
        for (name, path, reads) in [
            ("bpf", "/sys/fs/bpf", false),
            ("groups", "/sys/fs/cgroup", true),
        ] {
            let mount = json!({ "name": name, "mountPath": path, "readOnly": reads });
            assert_eq!(has(&agent["volumeMounts"], &mount), bpf, "{name}");
        }
        assert_ne!(agent["securityContext"]["privileged"], true);
    }
}
