//! `tollgate node --bpf`: the kernel confines the programs of a container that another runtime makes.
//!
//! The kernel of an emulated machine has BPF LSM. This program runs in the machine as well, and plays the API server and the
//! container runtime there; the agent, the containers' processes and the kernel are real.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use apiserver::fake::FakeApiserver;
use apiserver::real::Running;
use e2e::{Group, Guest, Identity, Scratch, program};
use kinds::annotations::{HASH, INSTALLATION, TARGET};
use nri::fake::{FakeRuntime, Reply};
use nri::message::{Container, PodSandbox};
use rustix::fs::FileType;
use serde_json::{Value, json};

/// Says that this program runs in the machine.
const INSIDE: &str = "TOLLGATE_TEST_INSIDE";
const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";
const PROFILE: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofiles/varmor-demo-web";
const REPORT: &str = "/apis/tollgate.dev/v1alpha1/nodereports/n1";
/// Time limit for what takes a moment on an idle machine that is not emulated.
const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "/etc/secret";

#[test]
fn the_kernel_confines_a_container_of_another_runtime() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let scratch = Scratch::new();
    let own = scratch.path().join("node_bpf");
    let built = std::env::current_exe().expect("it runs");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&own)
        .arg(built)
        .status();
    assert!(stripped.expect("binutils").success());
    let guest = Guest::new()
        .option(LSM)
        .program("unshare")
        .program("nsenter");
    let guest = guest.own_program(&own, "/usr/local/bin/node_bpf");
    let script = format!(
        "busybox mount -t securityfs none /sys/kernel/security && busybox mount -t bpf bpf /sys/fs/bpf &&
        busybox mount -t cgroup2 none /sys/fs/cgroup || exit 90
        export {INSIDE}=1 TOLLGATE_BIN=/usr/local/bin/tollgate
        exec node_bpf --exact the_kernel_confines_a_container_of_another_runtime --nocapture"
    );
    let run = guest.run(0, Identity::Root, &script);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("1 passed"), "{}", run.stdout);
}

/// A node with the policy of one pod.
struct Node {
    server: FakeApiserver,
    listener: UnixListener,
    agent: Option<Running>,
    runtime: Option<FakeRuntime>,
    scratch: Scratch,
}

/// A container whose first process waits before its program, as that of a runtime does.
struct Started {
    group: Group,
    process: Child,
    gate: PathBuf,
    container: Container,
}

impl Node {
    fn new() -> Self {
        let scratch = Scratch::new();
        let server = FakeApiserver::start().expect("loopback can be used");
        let listener = UnixListener::bind(scratch.path().join("nri.sock")).expect("a new folder");
        let mut node = Self {
            server,
            listener,
            agent: None,
            runtime: None,
            scratch,
        };
        node.server.put(PROFILE, profile());
        node.start_agent();
        node
    }

    fn start_agent(&mut self) {
        let mut command = Command::new(program());
        command.args(["node", "--bpf", "--name", "n1", "--namespace", "tollgate"]);
        // The processor is emulated.
        command.args(["--answer-within", "1500"]);
        command.args(["--server", &self.server.access().server]);
        for (option, name) in [
            ("--state", "state"),
            ("--nri-socket", "nri.sock"),
            ("--policies", "policies"),
            ("--runtime-state", "runtime"),
        ] {
            command.arg(option).arg(self.scratch.path().join(name));
        }
        let log = self.scratch.path().join("node.log");
        self.agent = Some(Running::start(command, &log).expect("the program was built"));
    }

    /// Accepts the agent; these containers run already.
    fn accept(&mut self, running: &[Container]) {
        let (stream, _) = self.listener.accept().expect("the agent connects");
        let pods = [pod("web"), pod("twin")];
        let runtime = FakeRuntime::accept(stream, &pods, running);
        self.runtime = Some(runtime.expect("the agent follows the protocol"));
    }

    fn ask(&mut self, method: &str, pod: &PodSandbox, container: Option<&Container>) -> Reply {
        let runtime = self.runtime.as_mut().expect("the agent is connected");
        runtime
            .ask(method, pod, container)
            .expect("the agent answers")
    }

    /// Has a container created. As the kubelet does, tries it again as another one where the agent refuses it.
    fn create(&mut self, pod: &PodSandbox, name: &str) -> (Group, Container) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let end = Instant::now() + LIMIT;
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let group = Group::of_container(&format!("{number}{name}"));
            let container = Container {
                id: group.id(),
                pod_sandbox_id: pod.id.clone(),
                name: name.to_owned(),
                ..Container::default()
            };
            match self.ask("CreateContainer", pod, Some(&container)) {
                Reply::Accepted(adjustment) => {
                    let filter = adjustment.and_then(|made| made.linux);
                    assert_eq!(filter, None, "the policy has nothing for seccomp");
                    return (group, container);
                }
                reply => assert!(Instant::now() < end, "{reply:?}: {}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a container as a runtime does, up to the start of its program.
    fn make(&mut self, name: &str) -> Started {
        self.make_with(name, "exec sleep 1000")
    }

    /// Makes a container whose first program is the end of a script.
    fn make_with(&mut self, name: &str, program: &str) -> Started {
        let pod = pod(name);
        assert_eq!(self.ask("RunPodSandbox", &pod, None), Reply::Accepted(None));
        let (group, mut container) = self.create(&pod, "app");
        let gate = self.scratch.path().join(format!("gate-{}", group.id()));
        make_fifo(&gate);
        let wait = format!("read _ < {}; {program}", gate.display());
        let process = in_group(&group, &["unshare", "--mount", "sh", "-c", &wait]);
        let process = { process }.spawn().expect("a shell");
        container.pid = made(&process);
        let started = self.ask("StartContainer", &pod, Some(&container));
        assert_eq!(started, Reply::Accepted(None), "{}", self.log());
        Started {
            group,
            process,
            gate,
            container,
        }
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.scratch.path().join("node.log"));
        log.unwrap_or_else(|error| error.to_string())
    }

    /// Waits for a report about the profile.
    fn reports(&self, wanted: impl Fn(&Value) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let report = self.server.get(REPORT).unwrap_or(Value::Null);
            let profile = &report["status"]["profiles"][0];
            if wanted(profile) {
                return;
            }
            assert!(Instant::now() < end, "{report:#}: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Started {
    /// Lets the first program begin.
    fn begin(&self) {
        fs::write(&self.gate, "go\n").expect("the process reads");
        let name = format!("/proc/{}/comm", self.process.id());
        while fs::read_to_string(&name).expect("it lives").trim() != "sleep" {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a program in the container, as a session of a runtime does.
    fn exec(&self, command: &[&str]) -> Output {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.process.id());
        let mut words = vec!["nsenter", &mounts, "--"];
        words.extend(command);
        in_group(&self.group, &words).output().expect("nsenter")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until a process has its namespaces, as a runtime does before it says that a container is made. Returns its number.
fn made(process: &Child) -> u32 {
    let end = Instant::now() + LIMIT;
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace("self").expect("procfs");
    while namespace(&process.id().to_string()).expect("it lives") == own {
        assert!(Instant::now() < end, "it has no namespace");
        std::thread::sleep(Duration::from_millis(10));
    }
    process.id()
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).expect("a new folder");
}

fn in_group(group: &Group, words: &[&str]) -> Command {
    let prefix = group.prefix();
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]).args(words).stdin(Stdio::null());
    command
}

fn pod(name: &str) -> PodSandbox {
    PodSandbox {
        id: format!("{name:0<64}"),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "demo".to_owned(),
        ..PodSandbox::default()
    }
}

/// The profile of a policy that denies a file to the pod `web`.
fn profile() -> Value {
    let policy = json!({ "policy": {
        "enforcer": "BPF", "mode": "EnhanceProtect",
        "enhanceProtect": { "privileged": true, "bpfRawRules": {
            "files": [{ "pattern": SECRET, "permissions": ["read"], "qualifiers": ["deny"] }] } } } });
    let (policy, target) = (policy.to_string(), json!({ "kind": "Pod", "name": "web" }));
    let hash = kinds::policy_hash(&policy);
    json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": {
            "name": "varmor-demo-web", "namespace": "demo", "uid": "u1", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { HASH: hash, TARGET: target.to_string(), INSTALLATION: "tollgate" },
            "ownerReferences": [{
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy", "name": "web", "uid": "u2",
                "controller": true }],
        },
        "spec": { "target": target, "updateExistingWorkloads": false,
            "behaviorModeling": { "enable": false, "duration": 0 }, "profile": {
            "name": "varmor-demo-web", "enforcer": "BPF", "mode": "enforce", "hash": hash, "policy": policy } },
    })
}

const READ: [&str; 2] = ["cat", SECRET];

/// A program fails with EPERM, and does what the policy allows.
fn is_confined(run: impl Fn(&[&str]) -> Output, what: &str) {
    let denied = run(&READ);
    let said = String::from_utf8_lossy(&denied.stderr);
    assert!(
        said.contains("Operation not permitted"),
        "{what}: {denied:?}"
    );
    assert!(denied.stdout.is_empty(), "{what}: {denied:?}");
    let allowed = run(&["cat", "/etc/other"]);
    assert_eq!(allowed.stdout, b"other\n", "{what}: {allowed:?}");
}

fn inside() {
    fs::write(SECRET, "secret\n").expect("the root is writable");
    fs::write("/etc/other", "other\n").expect("the root is writable");
    let mut node = Node::new();
    node.accept(&[]);
    let (web, twin) = (node.make("web"), node.make("twin"));
    web.begin();
    twin.begin();
    is_confined(|command| web.exec(command), "a session");
    is_confined(
        |command| {
            let words = ["unshare", "--mount", "--"].iter().chain(command);
            web.exec(&words.copied().collect::<Vec<_>>())
        },
        "another mount namespace",
    );
    assert_eq!(
        twin.exec(&READ).stdout,
        b"secret\n",
        "the twin has no policy"
    );
    // The runtime's own programs are in the control group before they enter the container.
    let runtime = in_group(&web.group, &READ).output().expect("cat");
    assert_eq!(runtime.stdout, b"secret\n", "{runtime:?}");
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    // Sessions enter the namespaces that the first process has by now.
    let moved = node.make_with("web", "exec unshare --mount sleep 1000");
    moved.begin();
    is_confined(|command| moved.exec(command), "a session elsewhere");
    drop(moved);
    first_program(&mut node);
    without_agent(&mut node, &web);
    let gone = web.container.clone();
    drop(web);
    node.runtime = None;
    node.agent = None;
    node.start_agent();
    node.accept(&[]);
    assert_eq!(gone.name, "app");
    let again = node.make("web");
    again.begin();
    is_confined(
        |command| again.exec(command),
        "a container of the next agent",
    );
}

/// The first program of a container is confined as well: nothing is entered afterwards.
fn first_program(node: &mut Node) {
    let pod = pod("web");
    let (group, mut container) = node.create(&pod, "first");
    let gate = node.scratch.path().join("gate-first");
    make_fifo(&gate);
    let wait = format!("read _ < {}; exec cat /etc/other {SECRET}", gate.display());
    let mut command = in_group(&group, &["unshare", "--mount", "sh", "-c", &wait]);
    let process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let process = process.expect("a shell");
    container.pid = made(&process);
    let started = node.ask("StartContainer", &pod, Some(&container));
    assert_eq!(started, Reply::Accepted(None), "{}", node.log());
    fs::write(&gate, "go\n").expect("the process reads");
    let output = process.wait_with_output().expect("our child");
    assert_eq!(output.stdout, b"other\n", "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Operation not permitted"), "{said}");
}

/// What the kernel has stays in force while no agent lives, and the next one reports it.
fn without_agent(node: &mut Node, web: &Started) {
    node.runtime = None;
    node.agent = None;
    is_confined(|command| web.exec(command), "without an agent");
    node.start_agent();
    node.accept(std::slice::from_ref(&web.container));
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    is_confined(|command| web.exec(command), "with the next agent");
}
