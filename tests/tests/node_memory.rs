//! What an agent of a node needs of memory: with detection and confined containers, and for policies that no container of the
//! node has. API server and container runtime are played by this program.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_TEST_RESULTS=FOLDER cargo test -p e2e --test node_memory -- --nocapture
//!
//! writes the samples to `FOLDER/memory.tsv`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use apiserver::fake::FakeApiserver;
use apiserver::real::{Running, until};
use e2e::{Group, Scratch, need_root, need_slow, program};
use kinds::annotations::{HASH, INSTALLATION, TARGET};
use nri::fake::{FakeRuntime, Reply};
use nri::message::{Container, LinuxContainer, PodSandbox};
use serde_json::{Value, json};

const PROFILES: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofiles";
/// Containers on a node, as many as a kubelet has pods by default; and as many as the issue of a large node has.
const CONTAINERS: [usize; 2] = [110, 1000];
/// Policies of which the node has no container.
const UNUSED: usize = 10_000;
/// Most memory with detection and the containers of an ordinary node, in KiB: what was measured, and a third more.
const LIMIT: u64 = 80 * 1024;

/// The profile of a policy for pods of a label.
fn profile(label: &str) -> Value {
    let policy = json!({ "policy": { "enforcer": "Seccomp", "mode": "EnhanceProtect",
        "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } })
    .to_string();
    let target = json!({ "kind": "Pod", "selector": { "matchLabels": { "app": label } } });
    let hash = kinds::policy_hash(&policy);
    let name = format!("varmor-demo-{label}");
    json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": {
            "name": name, "namespace": "demo", "uid": format!("u-{label}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { HASH: hash, TARGET: target.to_string(), INSTALLATION: "tollgate" },
            "ownerReferences": [{
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy", "name": label, "uid": "u2",
                "controller": true }],
        },
        "spec": { "target": target, "updateExistingWorkloads": false,
            "behaviorModeling": { "enable": false, "duration": 0 }, "profile": {
            "name": name, "enforcer": "Seccomp", "mode": "enforce", "hash": hash, "policy": policy } },
    })
}

fn put(server: &FakeApiserver, label: &str) {
    server.put(&format!("{PROFILES}/varmor-demo-{label}"), profile(label));
}

/// A process in a control group and namespaces of its own; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent, and what it is connected to.
struct Node {
    runtime: FakeRuntime,
    agent: Running,
    server: FakeApiserver,
    metrics: SocketAddr,
    /// What the agent needs, by step.
    samples: Vec<(String, u64, u64)>,
    containers: Vec<(Process, Group)>,
    _scratch: Scratch,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        let scratch = Scratch::new();
        let server = FakeApiserver::start().expect("loopback can be used");
        let listener = UnixListener::bind(scratch.path().join("nri.sock")).expect("a new folder");
        put(&server, "web");
        let mut command = Command::new(program());
        command.args(["node", "--name", "n1", "--namespace", "tollgate"]);
        command.args(arguments);
        let metrics = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let metrics = metrics.expect("there is a free port");
        command.args(["--listen", &metrics.to_string()]);
        command.args(["--server", &server.access().server]);
        for (option, name) in [
            ("--state", "state"),
            ("--nri-socket", "nri.sock"),
            ("--policies", "policies"),
            ("--runtime-state", "runtime"),
            ("--violations", "alerts.jsonl"),
        ] {
            command.arg(option).arg(scratch.path().join(name));
        }
        let log = scratch.path().join("log");
        let agent = Running::start(command, &log).expect("the program was built");
        if arguments.contains(&"--detect") {
            let armed = || {
                let said = fs::read_to_string(&log).map_err(|error| error.to_string())?;
                said.contains("tollgate: watching ")
                    .then_some(())
                    .ok_or(said)
            };
            until(armed).expect("the engine starts");
        }
        let (stream, _) = listener.accept().expect("the agent connects");
        let runtime =
            FakeRuntime::accept(stream, &[], &[]).expect("the agent follows the protocol");
        Self {
            runtime,
            agent,
            server,
            metrics,
            samples: Vec::new(),
            containers: Vec::new(),
            _scratch: scratch,
        }
    }

    /// Waits until the agent knows so many policies.
    fn knows(&self, count: usize) {
        let line = format!("tollgate_node_profiles {count}\n");
        let known = || {
            let said = self.metrics().map_err(|error| error.to_string())?;
            said.contains(&line).then_some(()).ok_or(said)
        };
        until(known).expect("the agent is told of them");
    }

    fn metrics(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.metrics)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    fn proc(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.agent.pid());
        fs::read_to_string(path).expect("the agent runs")
    }

    /// Processor time of the agent, in ticks.
    fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let (_, rest) = stat.rsplit_once(')').expect("a name in parentheses");
        let ticks = rest.split_whitespace().skip(11).take(2);
        ticks
            .map(|text| text.parse::<u64>().expect("a number"))
            .sum()
    }

    /// Waits until the agent has hardly anything to do, and notes what it needs: resident memory, and what of it is its own.
    /// With detection it sees what other programs of the machine do, so it is not waited for long.
    fn note(&mut self, step: &str) -> (u64, u64) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let before = self.ticks();
            thread::sleep(Duration::from_secs(3));
            if self.ticks() - before < 15 || Instant::now() > end {
                break;
            }
        }
        let status = self.proc("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|text| text.parse().ok()).expect("proc(5)")
        };
        let found = (field("VmRSS:"), field("RssAnon:"));
        println!("{step}\t{}\t{}", found.0, found.1);
        self.samples.push((step.to_owned(), found.0, found.1));
        found
    }

    /// A container of the policy `web`, as a runtime makes it, with a program that waits.
    fn add_container(&mut self, number: usize) {
        let pod = PodSandbox {
            id: format!("{number:0>64}"),
            name: format!("web-{number}"),
            uid: format!("uid-{number}"),
            namespace: "demo".to_owned(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            ..PodSandbox::default()
        };
        let group = Group::of_container(&format!("{number:0>8}"));
        let prefix = group.prefix();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]);
        command.args([
            "unshare",
            "--pid",
            "--mount",
            "--fork",
            "--kill-child",
            "sleep",
            "100000",
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut container = Container {
            id: group.id(),
            pod_sandbox_id: pod.id.clone(),
            name: "app".to_owned(),
            ..Container::default()
        };
        self.ask("RunPodSandbox", &pod, None);
        let adjusted = self.ask("CreateContainer", &pod, Some(&container));
        let Reply::Accepted(Some(adjusted)) = adjusted else {
            panic!("{adjusted:?}");
        };
        let filter = adjusted.linux.and_then(|linux| linux.seccomp_policy);
        assert!(filter.is_some(), "the policy has a filter");
        container.linux = Some(LinuxContainer {
            seccomp_policy: filter,
            ..LinuxContainer::default()
        });
        let process = Process(command.spawn().expect("unshare is part of every system"));
        container.pid = process.0.id();
        self.ask("StartContainer", &pod, Some(&container));
        self.containers.push((process, group));
    }

    /// Asks the agent; again where it has no time, as a kubelet does.
    fn ask(&mut self, method: &str, pod: &PodSandbox, container: Option<&Container>) -> Reply {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let reply = self.runtime.ask(method, pod, container);
            let reply = reply.expect("the agent answers");
            match &reply {
                Reply::Accepted(_) => return reply,
                Reply::Refused(why) if why.contains("overloaded") && Instant::now() < end => {}
                _ => panic!("{method}: {reply:?}"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Writes the samples to a file, if a folder is given.
    fn save(&self, name: &str) {
        let Some(folder) = std::env::var_os("TOLLGATE_TEST_RESULTS") else {
            return;
        };
        let lines = self
            .samples
            .iter()
            .map(|(step, all, own)| format!("{step}\t{all}\t{own}\n"));
        let text = format!(
            "step\trss_kib\tanonymous_kib\n{}",
            lines.collect::<String>()
        );
        let path = std::path::Path::new(&folder).join(format!("{name}.tsv"));
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn an_agent_with_detection_and_the_containers_of_a_node_needs_little_memory() {
    need_root!();
    need_slow!();
    let mut node = Node::start(&["--detect"]);
    node.note("idle");
    let mut found = Vec::new();
    for count in CONTAINERS {
        for number in node.containers.len()..count {
            node.add_container(number);
        }
        found.push(node.note(&format!("{count} containers")));
    }
    node.save("detect");
    let (ordinary, _) = found[0];
    assert!(
        ordinary <= LIMIT,
        "{ordinary} KiB with {} containers",
        CONTAINERS[0]
    );
}

#[test]
fn a_policy_that_no_container_has_needs_little_memory() {
    need_root!();
    need_slow!();
    let mut node = Node::start(&[]);
    node.add_container(0);
    let (_, before) = node.note("one policy");
    for number in 0..UNUSED {
        put(&node.server, &format!("unused-{number}"));
    }
    node.knows(UNUSED + 1);
    let (_, after) = node.note(&format!("{UNUSED} more policies"));
    node.save("policies");
    let each = after.saturating_sub(before) * 1024 / u64::try_from(UNUSED).expect("a small number");
    println!("{each} bytes for each");
    // The name of a policy alone has some thirty bytes; the text is not kept.
    assert!(each < 1000, "{each} bytes for each policy");
}
