//! Tests of violations that become Events and lines of the log.

use std::fs;
use std::path::Path;

use nri::message::{Container, Image, PodSandbox};
use nri::{Event, Plugin};
use serde_json::json;

use super::*;
use crate::index::tests::pod;
use crate::tests::{agent, web as profile_of_web};

const ID: &str = "65c3b4d6b9ca29f676aeeaa520e2addea568c9d77430f1d6e6829e396ffe9fd1";

fn alert(fields: &Value) -> Value {
    let mut all = json!({
        "policy.rule": "disallow-mount", "policy.enforcer": "Seccomp", "policy.action": "denied",
        "policy.errno": "EPERM", "evt.type": "mount", "proc.name": "mount", "proc.pid": 77,
        "proc.exepath": "/bin/mount", "proc.cmdline": "mount a b", "container.id": &ID[..12],
    });
    for (name, value) in fields.as_object().unwrap() {
        all[name] = value.clone();
    }
    json!({ "time": "2026-11-27T10:00:00.5Z", "rule": "Policy violation", "tags": ["policy"],
        "output": "o", "output_fields": all })
}

fn web() -> PodSandbox {
    PodSandbox {
        uid: "uid-1".to_owned(),
        ..pod(
            "web-5d4f8c7b9f-x1y2z",
            &[("app", "web"), ("pod-template-hash", "5d4f8c7b9f")],
        )
    }
}

fn container() -> Container {
    Container {
        id: ID.to_owned(),
        name: "app".to_owned(),
        image: Some(Image {
            name: "registry.test/web:1".to_owned(),
            digest: String::new(),
        }),
        ..Container::default()
    }
}

fn follower<'a>(agent: &'a Agent, folder: &Path) -> Follower<'a> {
    let mut follower = Follower {
        agent,
        follow: Follow::new(folder.join("alerts"), None),
        log: Some(Log::new(folder.join("violations.log"))),
        said: [None, None],
    };
    assert!(!follower.step(), "there is no file yet");
    follower
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("violations.log")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Checks the members of a line of which everything is known.
fn assert_whole(line: &Value) {
    for (name, expected) in [
        ("level", json!("warn")),
        ("nodeName", json!("n1")),
        ("podUID", json!("uid-1")),
        ("podName", json!("web-5d4f8c7b9f-x1y2z")),
        ("podNamespace", json!("demo")),
        (
            "podLabels",
            json!({ "app": "web", "pod-template-hash": "5d4f8c7b9f" }),
        ),
        ("workloadKind", json!("Deployment")),
        ("workloadName", json!("web")),
        ("containerID", json!(ID)),
        ("containerName", json!("app")),
        ("image", json!("registry.test/web:1")),
        ("pid", json!(77)),
        ("eventTimestamp", json!(1_795_773_600)),
        ("enforcer", json!("Seccomp")),
        ("action", json!("DENIED")),
        ("profileName", json!("p")),
        ("policyKind", json!("VarmorPolicy")),
        ("policyName", json!("x")),
        ("policyNamespace", json!("demo")),
        ("message", json!("violation event")),
    ] {
        assert_eq!(line[name], expected, "{name}: {:#}", line);
    }
    let event = json!({ "rule": "disallow-mount", "operation": "mount", "errno": "EPERM", "process": "mount",
        "executable": "/bin/mount", "command": "mount a b" });
    assert_eq!(line["event"], event);
}

#[test]
fn a_violation_has_pod_workload_image_and_policy_also_after_its_container_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    agent.state().index.apply(&profile_of_web()).unwrap();
    let both = Box::new((web(), container()));
    let record = Record {
        namespace: "demo".to_owned(),
        name: "p".to_owned(),
        hash: String::new(),
        way: crate::store::Way::Runtime,
        gaps: Vec::new(),
        notes: Vec::new(),
    };
    let seen = Seen::of(&both.0, &both.1);
    agent.state().seen.insert(ID.to_owned(), seen);
    agent.state().records.insert(ID.to_owned(), record);
    let mut follower = follower(&agent, folder.path());
    let exec = json!({ "evt.arg.filename": "/bin/x", "policy.action": "audited" });
    let other = json!({ "container.id": "000000000000", "k8s.pod.name": "other" });
    let text = [
        alert(&json!({})).to_string(),
        "no alert".to_owned(),
        json!({ "rule": "Shell", "tags": [], "output_fields": { "policy.rule": "x" } }).to_string(),
    ];
    fs::write(folder.path().join("alerts"), text.join("\n") + "\n").unwrap();
    while follower.step() {}
    agent.handle(&Event::RemoveContainer(both));
    let more = [alert(&exec).to_string(), alert(&other).to_string()];
    let text = text.join("\n") + "\n" + &more.join("\n") + "\n";
    fs::write(folder.path().join("alerts"), text).unwrap();
    while follower.step() {}

    let lines = lines(folder.path());
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert_whole(&lines[0]);
    assert_eq!(lines[1]["action"], "AUDIT");
    assert_eq!(lines[1]["event"]["path"], "/bin/x");
    assert_eq!(lines[1]["podUID"], "uid-1", "the container has ended");
    // What is not known is left out.
    assert_eq!(lines[2]["podName"], "other");
    assert_eq!(lines[2].get("podUID"), None);
    assert_eq!(lines[2].get("profileName"), None);

    let counters = agent.state().violations;
    assert_eq!((counters.read, counters.skipped, counters.lost), (3, 1, 0));
    // Two of the pod that is known.
    assert_eq!(agent.events.as_ref().unwrap().figures().waiting, 2);
}

#[test]
fn a_log_that_cannot_be_written_counts_what_it_loses() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let mut follower = follower(&agent, folder.path());
    fs::create_dir(folder.path().join("violations.log")).unwrap();
    let text = format!("{0}\n{0}\n", alert(&json!({})));
    fs::write(folder.path().join("alerts"), text).unwrap();
    while follower.step() {}
    assert_eq!(agent.state().violations.lost, 2);
    fs::remove_dir(folder.path().join("violations.log")).unwrap();
    let text = format!("{0}\n{0}\n{0}\n", alert(&json!({})));
    fs::write(folder.path().join("alerts"), text).unwrap();
    while follower.step() {}
    assert_eq!(lines(folder.path()).len(), 1);
}
