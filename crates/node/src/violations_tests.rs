//! Tests of violations that become Events and lines of the log.

use std::fs;
use std::path::Path;

use nri::message::{Container, Image, PodSandbox};
use nri::{Event, Plugin};
use serde_json::json;

use super::*;
use crate::index::tests::pod;
use crate::state::Seen;
use crate::store::Record;
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

fn record() -> Record {
    Record {
        namespace: "demo".to_owned(),
        name: "p".to_owned(),
        hash: String::new(),
        way: crate::store::Way::Runtime,
        is_late: false,
        kernel: None,
        gaps: Vec::new(),
        notes: Vec::new(),
    }
}

fn next_follower<'a>(agent: &'a Agent, folder: &Path) -> Follower<'a> {
    Follower::new(agent, &folder.join("alerts"))
}

fn follower<'a>(agent: &'a Agent, folder: &Path) -> Follower<'a> {
    let mut follower = next_follower(agent, folder);
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
    let seen = Seen::of(&both.0, &both.1);
    agent.state().seen.insert(ID.to_owned(), seen);
    agent.state().records.insert(ID.to_owned(), record());
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
    assert_eq!(counters.unnamed, 1);
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

#[test]
fn a_violation_is_not_hidden_by_a_long_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let seen = Seen::of(&web(), &container());
    agent.state().seen.insert(ID.to_owned(), seen);
    let mut follower = follower(&agent, folder.path());
    // The longest that a runtime writes: each byte is six in JSON.
    let longest = "\u{1}".repeat(64 << 10);
    let fields = json!({ "proc.cmdline": longest, "evt.args": longest });
    let mut long = alert(&fields);
    long["output"] = json!(longest);
    // Members are in the order of their names.
    let mut too_long = alert(&json!({}));
    let fields = too_long["output_fields"].as_object_mut().unwrap();
    fields.remove("proc.cmdline");
    fields.insert("proc.cmdline".to_owned(), json!("x".repeat(3 << 20)));
    let unknown = json!({ "output": "x".repeat(3 << 20) });
    let text = format!("{long}\n{too_long}\n{unknown}\n{}\n", alert(&json!({})));
    fs::write(folder.path().join("alerts"), text).unwrap();
    while follower.step() {}

    let lines = lines(folder.path());
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["event"]["command"], longest);
    assert_eq!(lines[1]["podUID"], "uid-1");
    assert_eq!(lines[1]["action"], "DENIED");
    assert_eq!(lines[1]["event"]["rule"], "disallow-mount");
    let message = lines[1]["message"].as_str().unwrap();
    assert!(message.contains("too long"), "{message}");
    assert_eq!(lines[2]["event"]["rule"], "unknown");
    assert_eq!(lines[2]["action"], "UNKNOWN");
    assert_eq!(lines[3]["message"], "violation event");
    let counters = agent.state().violations;
    assert_eq!(
        (counters.read, counters.too_long, counters.skipped),
        (4, 2, 0)
    );
    assert_eq!(counters.unnamed, 1);
    let waiting = agent.events.as_ref().unwrap().figures().waiting;
    assert_eq!(waiting, 3, "an Event names the pod");
}

#[test]
fn the_next_agent_goes_on_after_each_batch_and_knows_what_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let mut first = follower(&agent, folder.path());
    let add = |count: usize| {
        let more = format!("{}\n", alert(&json!({}))).repeat(count);
        let mut options = fs::OpenOptions::new();
        let file = options.append(true).create(true);
        let mut file = file.open(folder.path().join("alerts")).unwrap();
        std::io::Write::write_all(&mut file, more.as_bytes()).unwrap();
    };
    add(1);
    while first.step() {}
    drop(first);
    add(2);
    // The container has ended while nobody looked, and the runtime still knows it.
    let stopped = Container {
        state: 4,
        pod_sandbox_id: "sandbox".to_owned(),
        ..container()
    };
    let pods = vec![PodSandbox {
        id: "sandbox".to_owned(),
        ..web()
    }];
    let containers = vec![stopped];
    agent.handle(&Event::Synchronize { pods, containers });
    let mut next = next_follower(&agent, folder.path());
    while next.step() {}
    let lines = lines(folder.path());
    assert_eq!(lines.len(), 3, "none is read twice, none is lost");
    assert_eq!(lines[0].get("podUID"), None);
    assert_eq!(lines[2]["podUID"], "uid-1");
    assert_eq!(agent.state().violations.unnamed, 1);
}

#[test]
fn violations_wait_for_the_first_list_of_containers_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let begin = Instant::now();
    agent.wait_for_containers(Duration::from_millis(50));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            agent.wait_for_containers(Duration::from_secs(60));
            agent.state().counters.connections
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        let (pods, containers) = (Vec::new(), Vec::new());
        agent.handle(&Event::Synchronize { pods, containers });
        assert_eq!(waiting.join().unwrap(), 1);
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_container_that_ended_is_forgotten_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let both = Box::new((web(), container()));
    let seen = Seen::of(&both.0, &both.1);
    agent.state().seen.insert(ID.to_owned(), seen);
    agent.state().records.insert(ID.to_owned(), record());
    // A runtime that connects again and says nothing of it any more.
    let (pods, containers) = (Vec::new(), Vec::new());
    agent.handle(&Event::Synchronize { pods, containers });
    let mut state = agent.state();
    let now = Instant::now();
    let named = state.named(&ID[..12], now).expect("it ended a moment ago");
    assert_eq!(named.names.pod.uid, "uid-1");
    assert_eq!(named.profile.expect("it was confined").name, "p");
    assert!(
        state
            .named(&ID[..12], now + Duration::from_secs(61))
            .is_none()
    );
    assert!(state.ended.is_empty());
}

#[test]
fn the_log_has_no_characters_that_turn_or_hide_text() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let mut follower = follower(&agent, folder.path());
    let bad = "a\u{202e}b\u{200b}c\u{2028}d";
    let fields = json!({ "proc.cmdline": bad });
    fs::write(
        folder.path().join("alerts"),
        format!("{}\n", alert(&fields)),
    )
    .unwrap();
    while follower.step() {}
    let text = fs::read_to_string(folder.path().join("violations.log")).unwrap();
    assert!(
        text.is_ascii() && text.contains(r"a\u202eb\u200bc"),
        "{text}"
    );
    assert_eq!(lines(folder.path())[0]["event"]["command"], bad);
}
