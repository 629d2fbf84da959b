//! A node whose kernel confines containers (`tollgate node --bpf`), in an emulated machine with BPF LSM.
//!
//! The test's own program runs in the machine as well, and plays the API server and the container runtime there; the agent,
//! the containers' processes and the kernel are real.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use apiserver::fake::FakeApiserver;
use apiserver::real::Running;
use nri::fake::{FakeRuntime, Reply};
use nri::message::{Container, PodSandbox};
use serde_json::Value;

use crate::{Group, Guest, Identity, Scratch, program};

mod objects;
mod processes;

use objects::profile;
pub use objects::{READ, is_confined, pod, policy, policy_of, samples, write_files};
pub use processes::in_group;
use processes::{made, make_fifo};

/// Says that this program runs in the machine, and what it does there.
const INSIDE: &str = "TOLLGATE_TEST_INSIDE";
const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";
const REPORT: &str = "/apis/tollgate.dev/v1alpha1/nodereports/n1";
/// Where agents serve their metrics, in the machine.
const METRICS: &str = "127.0.0.1:9099";
/// Time limit for what takes a moment on an idle machine that is not emulated.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A file that policies deny.
pub const SECRET: &str = "/etc/secret";
/// Another file.
pub const OTHER: &str = "/etc/other";

/// What the program does in the machine; `None` outside.
#[must_use]
pub fn inside() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Runs this program in the machine as a test of this name. Returns what it printed.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn run_inside(guest: Guest, test: &str, limit: Duration) -> String {
    run_inside_with(guest, LSM, test, limit)
}

/// Like [`run_inside`], with these security modules: an option of the kernel.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn run_inside_with(guest: Guest, modules: &str, test: &str, limit: Duration) -> String {
    let scratch = Scratch::new();
    let own = scratch.path().join("inside");
    let built = std::env::current_exe().expect("it runs");
    let mut strip = Command::new("strip");
    let stripped = strip.arg("-o").arg(&own).arg(built).status();
    assert!(stripped.expect("binutils").success());
    let guest = guest.option(modules).program("unshare").program("nsenter");
    let guest = guest
        .own_program(&own, "/usr/local/bin/inside")
        .limit(limit);
    let script = format!(
        "busybox mount -t securityfs none /sys/kernel/security && busybox mount -t bpf bpf /sys/fs/bpf &&
        busybox mount -t cgroup2 none /sys/fs/cgroup || exit 90
        export {INSIDE}=1 TOLLGATE_BIN=/usr/local/bin/tollgate TOLLGATE_TEST_SLOW={}
        exec inside --exact {test} --nocapture",
        u8::from(testing::slow())
    );
    let run = guest.run(0, Identity::Root, &script);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("1 passed"), "{}", run.stdout);
    run.stdout
}

/// A node with policies of some pods.
#[derive(Debug)]
pub struct Node {
    server: FakeApiserver,
    listener: UnixListener,
    /// The agent.
    pub agent: Option<Running>,
    runtime: Option<FakeRuntime>,
    /// Folder of the node.
    pub scratch: Scratch,
    arguments: Vec<String>,
}

/// A container whose first process waits before its program, as that of a runtime does.
#[derive(Debug)]
pub struct Started {
    /// Its control group.
    pub group: Group,
    process: Child,
    gate: PathBuf,
    /// What the runtime says of it.
    pub container: Container,
}

impl Node {
    /// Starts an agent with these arguments besides, and the policy of the pod `web`.
    ///
    /// # Panics
    /// As all functions here: if something cannot be done.
    #[must_use]
    pub fn new(policy: &str, arguments: &[&str]) -> Self {
        let scratch = Scratch::new();
        let server = FakeApiserver::start().expect("loopback can be used");
        let listener = UnixListener::bind(scratch.path().join("nri.sock")).expect("a new folder");
        let mut node = Self {
            server,
            listener,
            agent: None,
            runtime: None,
            scratch,
            arguments: arguments.iter().map(ToString::to_string).collect(),
        };
        node.put("web", policy);
        node.start_agent();
        node
    }

    /// Sets the policy of a pod.
    pub fn put(&self, pod: &str, policy: &str) {
        let profiles = "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofiles";
        let path = format!("{profiles}/varmor-demo-{pod}");
        self.server.put(&path, profile(pod, policy));
    }

    /// Starts an agent.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_agent(&mut self) {
        let mut command = Command::new(program());
        command.args(["node", "--bpf", "--name", "n1", "--namespace", "tollgate"]);
        // The processor is emulated.
        command.args(["--answer-within", "1500", "--listen", METRICS]);
        let log = self.violations_log();
        command
            .arg("--violations-log")
            .arg(log)
            .args(&self.arguments);
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

    /// Ends the agent.
    pub fn kill_agent(&mut self) {
        self.runtime = None;
        self.agent = None;
    }

    /// Where the agent writes violations.
    #[must_use]
    pub fn violations_log(&self) -> PathBuf {
        self.scratch.path().join("violations.log")
    }

    /// The value of a metric of the agent.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(METRICS).expect("the agent listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let begin = format!("tollgate_node_{name} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&begin));
        let found = found.unwrap_or_else(|| panic!("{name}: {text}"));
        found.trim().parse().expect("a number")
    }

    /// Accepts the agent; these containers run already.
    ///
    /// # Panics
    /// If the agent does not follow the protocol.
    pub fn accept(&mut self, running: &[Container]) {
        let (stream, _) = self.listener.accept().expect("the agent connects");
        let mut names: Vec<&str> = running.iter().map(|one| &*one.pod_sandbox_id).collect();
        names.dedup();
        let pods: Vec<PodSandbox> = names
            .iter()
            .map(|id| pod(id.trim_end_matches('0')))
            .collect();
        let runtime = FakeRuntime::accept(stream, &pods, running);
        self.runtime = Some(runtime.expect("the agent follows the protocol"));
    }

    /// Asks the agent.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn ask(&mut self, method: &str, pod: &PodSandbox, container: Option<&Container>) -> Reply {
        let runtime = self.runtime.as_mut().expect("the agent is connected");
        runtime
            .ask(method, pod, container)
            .expect("the agent answers")
    }

    /// Has a container created. As the kubelet does, tries it again as another one where the agent refuses it.
    ///
    /// # Panics
    /// If it is refused for long.
    pub fn create(&mut self, pod: &PodSandbox, name: &str) -> (Group, Container) {
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
    #[must_use]
    pub fn make(&mut self, name: &str) -> Started {
        self.make_with(name, "exec sleep 1000")
    }

    /// Makes a container whose first program is the end of a script.
    ///
    /// # Panics
    /// If the agent refuses it.
    #[must_use]
    pub fn make_with(&mut self, name: &str, program: &str) -> Started {
        let started = self.make_created(name, program);
        self.start(name, &started);
        started
    }

    /// Makes a container, whose start the agent is not asked about, and whose first process mounts something. The script says
    /// `made` then, and ends where the path of the gate belongs; a program that sleeps is the first one.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn make_mounted(&mut self, name: &str, script: &str) -> Started {
        let mut made = self.make_process(name, |gate| {
            format!("{script} {}; exec sleep 100000", gate.display())
        });
        let output = made.process.stdout.as_mut().expect("a pipe");
        let mut said = [0; 5];
        output
            .read_exact(&mut said)
            .expect("it says that it is made");
        assert_eq!(&said, b"made\n");
        made
    }

    /// Makes a container, whose start the agent is not asked about.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn make_created(&mut self, name: &str, program: &str) -> Started {
        self.make_process(name, |gate| {
            format!("read _ < {}; {program}", gate.display())
        })
    }

    fn make_process(&mut self, name: &str, script: impl Fn(&Path) -> String) -> Started {
        let pod = pod(name);
        assert_eq!(self.ask("RunPodSandbox", &pod, None), Reply::Accepted(None));
        let (group, mut container) = self.create(&pod, "app");
        let gate = self.scratch.path().join(format!("gate-{}", group.id()));
        make_fifo(&gate);
        let process = in_group(&group, &["unshare", "--mount", "sh", "-c", &script(&gate)]);
        let piped = { process }
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let process = piped.expect("a shell");
        container.pid = made(&process);
        // As NRI has it: created.
        container.state = 1;
        Started {
            group,
            process,
            gate,
            container,
        }
    }

    /// Has the agent agree to the start of a container. Returns how long that took.
    ///
    /// # Panics
    /// If it refuses.
    pub fn start(&mut self, name: &str, started: &Started) -> Duration {
        let answer = self.try_start(name, started);
        answer.unwrap_or_else(|refused| panic!("{refused}: {}", self.log()))
    }

    /// As [`Node::start`]; an error says why the agent refuses, as it does when it misses its deadline.
    ///
    /// # Errors
    /// If it refuses.
    pub fn try_start(&mut self, name: &str, started: &Started) -> Result<Duration, String> {
        let begin = Instant::now();
        let answer = self.ask("StartContainer", &pod(name), Some(&started.container));
        match answer {
            Reply::Accepted(None) => Ok(begin.elapsed()),
            refused => Err(format!("{refused:?}")),
        }
    }

    /// Has the agent refuse the start of a container. Returns why.
    ///
    /// # Panics
    /// If it agrees.
    pub fn refused_start(&mut self, name: &str, started: &Started) -> String {
        match self.ask("StartContainer", &pod(name), Some(&started.container)) {
            Reply::Refused(why) => why,
            reply => panic!("{reply:?}: {}", self.log()),
        }
    }

    /// Has the agent refuse to have a container of a pod created, once it has the pod's policy. Returns why.
    ///
    /// # Panics
    /// If it agrees.
    pub fn refused(&mut self, name: &str) -> String {
        let pod = pod(name);
        assert_eq!(self.ask("RunPodSandbox", &pod, None), Reply::Accepted(None));
        let container = Container {
            id: format!("{name:f<64}"),
            pod_sandbox_id: pod.id.clone(),
            name: "app".to_owned(),
            ..Container::default()
        };
        let end = Instant::now() + LIMIT;
        loop {
            match self.ask("CreateContainer", &pod, Some(&container)) {
                Reply::Refused(why) if !why.contains("not here yet") => return why,
                Reply::Refused(why) => assert!(Instant::now() < end, "{why}"),
                reply => panic!("{reply:?}: {}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns true if the agent has written an Event for this reason about a pod.
    #[must_use]
    pub fn has_event(&self, reason: &str, pod: &str) -> bool {
        let events = self
            .server
            .list("/apis/events.k8s.io/v1/namespaces/demo/events");
        let mut events = events.iter();
        events.any(|event| event["reason"] == reason && event["regarding"]["name"] == pod)
    }

    /// What the agent has said.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.scratch.path().join("node.log"));
        log.unwrap_or_else(|error| error.to_string())
    }

    /// Waits for a report about a profile.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn reports(&self, wanted: impl Fn(&Value) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let report = self.server.get(REPORT).unwrap_or(Value::Null);
            let profiles = report["status"]["profiles"].as_array();
            if profiles.is_some_and(|all| all.iter().any(&wanted)) {
                return;
            }
            assert!(Instant::now() < end, "{report:#}: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Started {
    /// Lets the first program begin.
    ///
    /// # Panics
    /// If it does not begin.
    pub fn begin(&self) {
        self.open_gate();
        let name = format!("/proc/{}/comm", self.process.id());
        while fs::read_to_string(&name).expect("it lives").trim() != "sleep" {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The container as the runtime lists it when its program runs.
    #[must_use]
    pub fn running(&self) -> Container {
        Container {
            // As NRI has it.
            state: 3,
            ..self.container.clone()
        }
    }

    /// Lets the process go on to its first program.
    ///
    /// # Panics
    /// If it has ended.
    pub fn open_gate(&self) {
        fs::write(&self.gate, "go\n").expect("the process reads");
    }

    /// A program in the container, as a session of a runtime begins it.
    #[must_use]
    pub fn session(&self, command: &[&str]) -> Command {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.process.id());
        let mut words = vec!["nsenter", &mounts, "--"];
        words.extend(command);
        in_group(&self.group, &words)
    }

    /// Runs a program in the container, as a session of a runtime does.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn exec(&self, command: &[&str]) -> Output {
        self.session(command).output().expect("nsenter")
    }
}

impl Started {
    /// Waits for a first program that reads both files, and checks that the secret was denied.
    ///
    /// # Panics
    /// If not.
    pub fn has_denied_first_program(mut self) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let both = (self.process.stdout.take(), self.process.stderr.take());
        let (Some(mut output), Some(mut errors)) = both else {
            panic!("its output was taken before");
        };
        output.read_to_string(&mut stdout).expect("a pipe");
        errors.read_to_string(&mut stderr).expect("a pipe");
        assert_eq!(stdout, "other\n", "{stderr}");
        assert!(stderr.contains("Operation not permitted"), "{stderr}");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
