//! `tollgate node --detect`: rules of a cluster reach a node, and its alerts name the pod. The API server and the container
//! runtime are played by this program; the engine, the rules and the watched processes are real.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver::fake::FakeApiserver;
use apiserver::real::{Running, until};
use e2e::{Group, Scratch, need_root, program};
use nri::fake::{FakeRuntime, Reply};
use nri::message::{Container, Image, PodSandbox};
use serde_json::{Value, json};

const RULESFILES: &str = "/apis/artifact.falcosecurity.dev/v1alpha1/namespaces/tollgate/rulesfiles";
const CONFIGS: &str = "/apis/artifact.falcosecurity.dev/v1alpha1/namespaces/tollgate/configs";
const EVENTS: &str = "/apis/events.k8s.io/v1/events";
const REPORT: &str = "/apis/tollgate.dev/v1alpha1/nodereports/n1";

/// Held by each test: an agent sees the programs of all of them.
static ALONE: Mutex<()> = Mutex::new(());

/// A node with an API server and a container runtime.
struct Node {
    server: FakeApiserver,
    listener: UnixListener,
    agent: Option<Running>,
    runtime: Option<FakeRuntime>,
    scratch: Scratch,
    /// Last, so that the agent has ended when another test begins.
    _alone: MutexGuard<'static, ()>,
}

impl Node {
    /// A node with the label `pool=web`, where alerts go to a file by a Config.
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Scratch::new();
        let server = FakeApiserver::start().expect("loopback can be used");
        let labels = json!({ "pool": "web" });
        server.put(
            "/api/v1/nodes/n1",
            json!({ "metadata": { "name": "n1", "labels": labels } }),
        );
        let listener = UnixListener::bind(scratch.path().join("nri.sock")).expect("a new folder");
        let node = Self {
            server,
            listener,
            agent: None,
            runtime: None,
            scratch,
            _alone: alone,
        };
        let config = json!({
            "stdout_output": { "enabled": false },
            "file_output": { "enabled": true, "filename": node.path("state/out/alerts") },
        });
        node.put(CONFIGS, "alerts", json!({ "config": config }));
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn put(&self, list: &str, name: &str, spec: Value) {
        let metadata = json!({ "name": name, "namespace": "tollgate" });
        let object = json!({ "metadata": metadata, "spec": spec });
        self.server.put(&format!("{list}/{name}"), object);
    }

    /// Writes a Rulesfile with one rule: a program `true` with this argument.
    fn rule(&self, name: &str, rule: &str, argument: &str) {
        let condition = format!(
            "evt.type = execve and evt.res = SUCCESS and proc.name = true and proc.args = {argument}"
        );
        let rule = json!({ "rule": rule, "desc": "d", "condition": condition, "output": "seen", "priority": "NOTICE" });
        self.put(RULESFILES, name, json!({ "inlineRules": [rule] }));
    }

    /// The command line of an agent that asks this API server.
    fn command(&self, server: &str) -> Command {
        let mut command = Command::new(program());
        command.args([
            "node",
            "--name",
            "n1",
            "--namespace",
            "tollgate",
            "--detect",
            "--events",
        ]);
        command.args(["--no-builtin-rules", "--server", server]);
        command.arg("--state").arg(self.path("state"));
        command.arg("--nri-socket").arg(self.path("nri.sock"));
        command.arg("--policies").arg(self.path("policies"));
        command.arg("--runtime-state").arg(self.path("runtime"));
        command.arg("--violations").arg(self.path("alerts.jsonl"));
        let log = self.path("log.d/violations.log");
        command.arg("--violations-log").arg(log);
        command
    }

    /// Starts an agent; with `server` it is asked for the objects.
    fn start(&mut self, server: &str, log: &str) {
        let command = self.command(server);
        let log = self.path(log);
        self.agent = Some(Running::start(command, &log).expect("the program was built"));
        let armed = || match said(&log).contains("tollgate: watching ") {
            true => Ok(()),
            false => Err(said(&log)),
        };
        until(armed).expect("the engine starts");
    }

    /// Takes the connection of the agent, and lists these.
    fn connect(&mut self, pods: &[PodSandbox], containers: &[Container]) {
        let (stream, _) = self.listener.accept().expect("the agent connects");
        let runtime = FakeRuntime::accept(stream, pods, containers);
        self.runtime = Some(runtime.expect("the agent follows the protocol"));
    }

    /// Asks the agent as a runtime does before a container starts.
    fn create(&mut self, pod: &PodSandbox, container: &Container) {
        let runtime = self.runtime.as_mut().expect("the agent is connected");
        let pods = [("RunPodSandbox", None)];
        let both = ["CreateContainer", "StartContainer"].map(|method| (method, Some(container)));
        for (method, container) in pods.into_iter().chain(both) {
            let reply = runtime
                .ask(method, pod, container)
                .expect("the agent answers");
            assert_eq!(reply, Reply::Accepted(None), "{method}");
        }
    }

    /// Waits until the report says of an object that it is in force or not; returns what it says.
    fn reported(&self, name: &str, generation: i64, programmed: bool) -> Value {
        let find = || {
            let report = self.server.get(REPORT).unwrap_or_default();
            let artifacts = report["status"]["detection"]["artifacts"]
                .as_array()
                .cloned();
            let found = artifacts.into_iter().flatten().find(|one| {
                one["name"] == name
                    && one["generation"] == generation
                    && one["programmed"] == programmed
            });
            found.ok_or_else(|| format!("{report:#} {}", said(&self.path("log"))))
        };
        until(find).expect("the agent reports the object")
    }

    /// The Events about a rule.
    fn events(&self, rule: &str) -> Vec<Value> {
        let note = format!("container app: {rule} (Notice): seen");
        let all = self.server.list(EVENTS).into_iter();
        all.filter(|event| event["note"] == *note).collect()
    }

    /// The first alert of a rule.
    fn alert(&self, rule: &str) -> Value {
        let find = || {
            let alerts = self.alerts(rule);
            alerts
                .into_iter()
                .next()
                .ok_or_else(|| said(&self.path("log")))
        };
        until(find).unwrap_or_else(|log| panic!("no alert of {rule}: {log}"))
    }

    fn alerts(&self, rule: &str) -> Vec<Value> {
        let text = said(&self.path("state/out/alerts"));
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|alert| alert["rule"] == rule).collect()
    }
}

fn said(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Runs `true` with an argument as the first program of a container.
fn run(group: &Group, argument: &str) {
    let prefix = group.prefix();
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]);
    command.args(["unshare", "--pid", "--mount", "--fork", "true", argument]);
    assert!(
        command
            .status()
            .expect("unshare is part of every system")
            .success()
    );
}

fn pod() -> PodSandbox {
    PodSandbox {
        id: format!("{:0<64}", "5a"),
        name: "web-7d9c5b-x2x".to_owned(),
        uid: "0b1c".to_owned(),
        namespace: "demo".to_owned(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        ips: vec!["10.0.0.7".to_owned()],
        ..PodSandbox::default()
    }
}

fn container(group: &Group) -> Container {
    Container {
        id: group.id(),
        pod_sandbox_id: pod().id,
        name: "app".to_owned(),
        image: Some(Image {
            name: "registry.test/web:1.2".to_owned(),
            digest: "sha256:ab".to_owned(),
        }),
        ..Container::default()
    }
}

#[test]
fn rules_reach_a_node_and_alerts_name_the_pod_from_its_first_program_on() {
    need_root!();
    let mut node = Node::new();
    node.rule("marks", "First", "mark-one");
    let address = node.server.access().server;
    node.start(&address, "log");
    node.connect(&[], &[]);
    assert_eq!(node.reported("marks", 1, true)["reason"], "Programmed");
    node.reported("alerts", 1, true);

    // The first program of a container that starts under the watch.
    let group = Group::of_container("c1");
    node.create(&pod(), &container(&group));
    run(&group, "mark-one");
    let alert = node.alert("First");
    let fields = &alert["output_fields"];
    for (field, expected) in [
        ("k8s.pod.name", "web-7d9c5b-x2x"),
        ("k8s.ns.name", "demo"),
        ("k8s.pod.uid", "0b1c"),
        ("k8s.pod.labels", "app:web"),
        ("k8s.node.name", "n1"),
        ("container.name", "app"),
        ("container.image.repository", "registry.test/web"),
        ("container.image.tag", "1.2"),
    ] {
        assert_eq!(fields[field], expected, "{field}: {alert:#}");
    }

    // A container that no runtime has named is not taken for another one, nor for the host.
    let other = Group::of_container("c2");
    run(&other, "mark-one");
    until(|| match node.alerts("First").len() {
        2 => Ok(()),
        count => Err(format!("{count} alerts")),
    })
    .expect("there is a second alert");
    let fields = node.alerts("First")[1]["output_fields"].clone();
    assert_eq!(fields["container.id"], other.id()[..12]);
    assert_eq!(fields["k8s.pod.name"], Value::Null, "{fields:#}");

    // Another version of the rules.
    node.rule("marks", "Second", "mark-two");
    node.reported("marks", 2, true);
    run(&group, "mark-one");
    run(&group, "mark-two");
    let alert = node.alert("Second");
    assert_eq!(alert["output_fields"]["k8s.pod.name"], "web-7d9c5b-x2x");
    assert_eq!(node.alerts("First").len(), 2, "the old rule is gone");
    events_tell_of_pods_with_counts(&node, &group);
    a_violation_of_the_runtime_reaches_the_log_and_the_pod(&node, &group);
    wrong_objects_change_nothing(&node, &group);
}

/// Alerts of a pod are Events of it, one for all of a time. What is of no pod is no Event.
fn events_tell_of_pods_with_counts(node: &Node, group: &Group) {
    node.rule("burst", "Burst", "mark-burst");
    node.reported("burst", 1, true);
    for _ in 0..5 {
        run(group, "mark-burst");
    }
    let find = || {
        let mut events = node.events("Burst").into_iter();
        events.next().ok_or_else(|| said(&node.path("log")))
    };
    let event = until(find).expect("there is an Event");
    assert_eq!(
        event["regarding"],
        json!({ "apiVersion": "v1", "kind": "Pod", "name": "web-7d9c5b-x2x", "namespace": "demo", "uid": "0b1c" })
    );
    for (field, expected) in [
        ("type", "Normal"),
        ("reason", "RuleMatched"),
        ("action", "Detect"),
        ("reportingController", "tollgate.dev/node"),
        ("reportingInstance", "n1"),
    ] {
        assert_eq!(event[field], expected, "{event:#}");
    }
    let count = event["series"]["count"].as_u64();
    assert!(
        count.is_some_and(|count| (2..=5).contains(&count)),
        "{event:#}"
    );
    until(|| match node.alerts("Burst").len() {
        5 => Ok(()),
        count => Err(format!("{count} alerts")),
    })
    .expect("outputs have each alert");
    assert_eq!(
        node.events("Burst").len(),
        1,
        "the next one is due in a minute"
    );
    // The rule First has matched in a container that no runtime has named, too.
    let all = node.server.list(EVENTS);
    assert!(
        all.iter().all(|event| event["regarding"]["uid"] == "0b1c"),
        "{all:#?}"
    );
    assert!(all.len() <= 4, "one for each rule: {all:#?}");
}

/// What `tollgate runtime` writes to its file of alerts is a line of the log and an Event.
fn a_violation_of_the_runtime_reaches_the_log_and_the_pod(node: &Node, group: &Group) {
    let fields = json!({ "policy.rule": "disallow-mount", "policy.enforcer": "Seccomp", "policy.action": "denied",
        "policy.errno": "EPERM", "evt.type": "mount", "proc.name": "mount", "container.id": &group.id()[..12] });
    let alert = json!({ "time": "2026-11-27T10:00:00Z", "rule": "Policy violation", "tags": ["policy"],
        "output_fields": fields });
    fs::write(node.path("alerts.jsonl"), format!("{alert}\n")).expect("the folder is ours");
    let line = until(|| {
        let text = said(&node.path("log.d/violations.log"));
        serde_json::from_str::<Value>(text.trim()).map_err(|error| format!("{error}: {text}"))
    })
    .expect("the log has a line");
    for (name, expected) in [
        ("nodeName", "n1"),
        ("podName", "web-7d9c5b-x2x"),
        ("podUID", "0b1c"),
        ("containerName", "app"),
        ("image", "registry.test/web:1.2"),
        ("enforcer", "Seccomp"),
        ("action", "DENIED"),
    ] {
        assert_eq!(line[name], expected, "{name}: {line:#}");
    }
    let event = until(|| {
        let mut all = node.server.list(EVENTS).into_iter();
        let found = all.find(|event| event["reason"] == "PolicyViolation");
        found.ok_or_else(|| said(&node.path("log")))
    })
    .expect("there is an Event");
    assert_eq!(
        event["note"],
        "container app: disallow-mount denied mount by mount"
    );
    assert_eq!(event["regarding"]["uid"], "0b1c");
}

/// A wrong version reports, keeps the old rules, and takes nothing from another object.
fn wrong_objects_change_nothing(node: &Node, group: &Group) {
    let wrong = json!([{ "rule": "Third", "desc": "d", "condition": "evt.typo = execve", "output": "o", "priority": "NOTICE" }]);
    node.put(RULESFILES, "marks", json!({ "inlineRules": wrong }));
    node.rule("more", "More", "mark-more");
    let state = node.reported("marks", 3, false);
    let message = state["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Rulesfile:tollgate/marks:inlineRules:"),
        "{state:#}"
    );
    assert!(
        message.contains("evt.typo") && message.contains("an earlier version is in force"),
        "{state:#}"
    );
    node.reported("more", 1, true);
    run(group, "mark-more");
    node.alert("More");
    let before = node.alerts("Second").len();
    run(group, "mark-two");
    until(|| {
        match node.alerts("Second").len() > before {
            true => Ok(()),
            false => Err("the old rule is silent"),
        }
        .map_err(str::to_owned)
    })
    .expect("the old rules are in force");

    // A setting that no object may have.
    let config = json!({ "program_output": { "enabled": true, "program": "id" } });
    node.put(CONFIGS, "program", json!({ "config": config }));
    let state = node.reported("program", 1, false);
    let message = state["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("starts no program on the node"),
        "{state:#}"
    );
}

#[test]
fn an_agent_without_an_api_server_watches_with_the_last_rules_and_knows_running_pods() {
    need_root!();
    let mut node = Node::new();
    node.rule("marks", "First", "mark-one");
    let address = node.server.access().server;
    node.start(&address, "log");
    node.connect(&[], &[]);
    node.reported("marks", 1, true);
    node.agent = None;
    // Configs may have credentials.
    let kept = fs::metadata(node.path("state/sources.json")).expect("the agent keeps its rules");
    assert_eq!(kept.permissions().mode() & 0o777, 0o600);

    let group = Group::of_container("c3");
    // Nobody listens there.
    node.start("http://127.0.0.1:9", "log2");
    node.connect(&[pod()], &[container(&group)]);
    // The agent may watch before it has read what the runtime says of containers that run already.
    let of_pod = || {
        run(&group, "mark-one");
        let mut alerts = node.alerts("First").into_iter();
        let is_of_pod = |alert: &Value| alert["output_fields"]["k8s.pod.name"] == "web-7d9c5b-x2x";
        alerts
            .find(is_of_pod)
            .ok_or_else(|| said(&node.path("log2")))
    };
    until(of_pod).expect("the pod of a running container becomes known");
}

#[test]
fn an_agent_that_cannot_watch_says_so_and_is_asked_about_containers_nevertheless() {
    need_root!();
    let mut node = Node::new();
    for path in ["", "nri.sock"] {
        fs::set_permissions(node.path(path), Permissions::from_mode(0o777)).expect("it is ours");
    }
    node.rule("marks", "First", "mark-one");
    let mut command = node.command(&node.server.access().server);
    command.uid(65534).gid(65534);
    node.agent = Some(Running::start(command, &node.path("log")).expect("the program was built"));
    node.connect(&[], &[]);
    let detection = || {
        let report = node.server.get(REPORT).unwrap_or_default();
        let detection = report["status"]["detection"].clone();
        match detection["running"].is_boolean() {
            true => Ok(detection),
            false => Err(format!("{report:#} {}", said(&node.path("log")))),
        }
    };
    let detection = until(detection).expect("the agent reports");
    assert_eq!(detection["running"], false, "{detection:#}");
    let reason = detection["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("cannot start watching"), "{detection:#}");
    assert_eq!(detection["artifacts"], Value::Null, "{detection:#}");
    let group = Group::of_container("c4");
    node.create(&pod(), &container(&group));
}
