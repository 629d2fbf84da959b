//! A whole cluster of one node: control plane, kubelet, containerd, and tollgate as its manifests install it.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apiserver::real::{self, Programs, RealApiserver, Running};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{IMAGES, built, hierarchies, remove_group, spawn, wait_until_ready};
use crate::Scratch;

/// Makes a node in namespaces.
const NODE: &str = include_str!("../../cluster/node.sh");
/// Address of the node: of the API server and of the kubelet. Nothing else has it in its network.
const ADDRESS: &str = "10.88.0.1";
/// First address of the Services: that of the API server.
const SERVICE: &str = "10.0.0.1";
/// Name of the node.
pub const NODE_NAME: &str = "n1";
/// Namespace of tollgate.
pub const NAMESPACE: &str = "tollgate";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Clusters take turns: each takes all of a small machine.
static ONE: Mutex<()> = Mutex::new(());

/// A whole cluster. It ends with the value, with everything that it has changed.
#[derive(Debug)]
pub struct Cluster {
    /// The API server.
    pub server: RealApiserver,
    controllers: Vec<Running>,
    kubelet: Option<Kubelet>,
    namespaces: Child,
    group: String,
    home: OwnedFd,
    /// Where everything is. It is removed after all that writes to it has ended.
    scratch: Scratch,
    _turn: MutexGuard<'static, ()>,
}

/// The process that has entered the namespaces, and the kubelet, its child.
#[derive(Debug)]
struct Kubelet {
    entered: Running,
    pid: Pid,
}

impl Cluster {
    /// Starts a cluster, installs tollgate, and waits until all of it is ready.
    ///
    /// # Panics
    /// If something does not start; the message has what it logged.
    #[must_use]
    pub fn start(programs: &Programs) -> Self {
        Self::start_with(programs, &[])
    }

    /// Like [`Cluster::start`], with further options for the manifests.
    ///
    /// # Panics
    /// If something does not start; the message has what it logged.
    #[must_use]
    pub fn start_with(programs: &Programs, options: &[&str]) -> Self {
        let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Scratch::new();
        for folder in ["node", "control"] {
            fs::create_dir(scratch.path().join(folder)).expect("the folder is ours");
        }
        let home = File::open("/proc/thread-self/ns/net").expect("/proc is mounted");
        let node = scratch.path().join("node");
        let script = format!("NODE_ADDRESS={ADDRESS} SERVICE_ADDRESS={SERVICE}\n{IMAGES}{NODE}");
        let mut namespaces = spawn(&node, &["--mount", "--net"], &script);
        wait_until_ready(&mut namespaces, &node);
        // What this thread starts, and to what it connects, is in the network of the node from here on.
        enter_network(&namespaces);
        let control = scratch.path().join("control");
        let server = start_server(programs, &control);
        let group = scratch.path().file_name().expect("it has a name");
        let group = group.to_string_lossy().into_owned();
        let mut cluster = Self {
            server,
            controllers: Vec::new(),
            kubelet: None,
            namespaces,
            group,
            home: home.into(),
            scratch,
            _turn: turn,
        };
        cluster.make_groups();
        cluster.start_controllers();
        cluster.start_kubelet();
        cluster.install(options);
        cluster
    }

    /// A file of the node: of containerd, of the kubelet, or below `var` and `run`.
    #[must_use]
    pub fn node(&self, name: &str) -> PathBuf {
        self.scratch.path().join("node").join(name)
    }

    fn control(&self, name: &str) -> PathBuf {
        self.scratch.path().join("control").join(name)
    }

    /// The control groups below which those of the pods are: all others stay as they are.
    fn make_groups(&self) {
        for root in hierarchies() {
            let group = root.join(&self.group);
            fs::create_dir(&group).expect("control groups can be made");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = fs::read_to_string(root.join(file)) {
                    fs::write(group.join(file), value).expect("the group is ours");
                }
            }
        }
    }

    fn start_controllers(&mut self) {
        let config = self.kubeconfig("admin", "secret");
        let path = |name: &str| self.control(name).display().to_string();
        let manager = [
            format!("--root-ca-file={}", path("certs/apiserver.crt")),
            format!("--service-account-private-key-file={}", path("sa.key")),
        ];
        let started = [
            ("kube-controller-manager", &manager[..]),
            ("kube-scheduler", &[]),
        ];
        let started = started.map(|(name, more)| {
            let mut command = Command::new(built(name).expect("the test asked for it"));
            command.arg("--kubeconfig").arg(&config);
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
            command.arg(format!("--cert-dir={}", path(name)));
            command.args(more);
            Running::start(command, &self.control(&format!("{name}.log"))).expect("it was built")
        });
        self.controllers.extend(started);
    }

    /// Writes a kubeconfig.
    fn kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": self.server.server,
                "certificate-authority": self.control("certs/apiserver.crt") } }],
            "users": [{ "name": "u", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let path = self.control(&format!("{name}.kubeconfig"));
        fs::write(&path, config.to_string()).expect("the folder is ours");
        path
    }

    /// Starts the kubelet.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_kubelet(&mut self) {
        let config = self.node("kubelet.json");
        fs::write(&config, kubelet_config(&self.group).to_string()).expect("the folder is ours");
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", child_of(self.namespaces.id())));
        command.args(["--mount", "--pid"]);
        command.arg(built("kubelet").expect("the test asked for it"));
        command.arg("--config").arg(&config);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig("kubelet", "node"));
        command.args([
            format!("--hostname-override={NODE_NAME}"),
            format!("--node-ip={ADDRESS}"),
        ]);
        let log = self.node("kubelet.log");
        let entered = Running::start(command, &log).expect("nsenter is part of every system");
        let pid = child_of(entered.pid());
        let pid = Pid::from_raw(pid).expect("no pid is zero");
        self.kubelet = Some(Kubelet { entered, pid });
    }

    /// Kills the kubelet.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_kubelet(&mut self) {
        let mut kubelet = self.kubelet.take().expect("it was started");
        kill_process(kubelet.pid, Signal::KILL).expect("it runs");
        kubelet.entered.kill().expect("it has a child no more");
    }

    /// Installs tollgate as the how-to says, and waits until operator and agent are ready.
    fn install(&self, options: &[&str]) {
        let mut command = Command::new(crate::program().with_file_name("tollgate-operator"));
        command.args(["manifests", "--image", "registry.example/tollgate:1"]);
        command.args(["--events", "--violations"]).args(options);
        let printed = command.output().expect("it was built");
        assert!(printed.status.success(), "{printed:?}");
        let mut text = String::from_utf8(printed.stdout).expect("YAML is text");
        if !has_sys_resource() {
            // A node gives no capability that it lacks itself. Kernels since 5.11 need none for maps.
            text = text.replace("- SYS_RESOURCE\n", "- BPF\n");
        }
        let file = self.scratch.file("manifests.yaml", 0o644, text);
        let file = file.display().to_string();
        self.until("the manifests are taken", || {
            self.kubectl(&["apply", "--server-side", "-f", &file])
        });
        for name in ["deployment/tollgate-operator", "daemonset/tollgate-node"] {
            let status = ["rollout", "status", name, "-n", NAMESPACE, "--timeout=90s"];
            let done = self.kubectl(&status);
            done.unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.state()));
        }
    }

    /// Output of kubectl; an error is what it writes about a failure.
    ///
    /// # Errors
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let done = self.kubectl_output(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&done.stderr)),
        }
    }

    /// What kubectl has done.
    ///
    /// # Panics
    /// If there is no kubectl.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(kubectl().expect("the test asked for it"));
        command
            .arg("--kubeconfig")
            .arg(self.control("admin.kubeconfig"));
        // Where it caches what the server has.
        command.args(arguments).env("HOME", self.scratch.path());
        command.stdin(Stdio::null());
        command.output().expect("kubectl is installed")
    }

    /// Runs a command in the namespaces of the node.
    ///
    /// # Panics
    /// If it fails.
    pub fn on_node(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", child_of(self.namespaces.id())));
        command.args(["--mount", "--pid"]).args(arguments);
        let done = command.output().expect("nsenter is part of every system");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Creates or changes an object.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn apply(&self, object: &Value) -> Result<String, String> {
        let text = object.to_string();
        let file = self.scratch.file("object.json", 0o644, text);
        let file = file.display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file])
    }

    /// An object, by kind and name; null if there is none.
    #[must_use]
    pub fn get(&self, namespace: &str, what: &[&str]) -> Value {
        let mut arguments = vec!["get", "-n", namespace, "-o", "json"];
        arguments.extend(what);
        let found = self.kubectl(&arguments);
        found.map_or(Value::Null, |text| {
            serde_json::from_str(&text).expect("kubectl writes JSON")
        })
    }

    /// Tries again until something succeeds.
    ///
    /// # Panics
    /// If it does not for a long time, with the last error and what all programs logged.
    pub fn until<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            match attempt() {
                Ok(done) => return done,
                Err(error) if Instant::now() > end => {
                    panic!("{what}: not within {PATIENCE:?}: {error}\n{}", self.state())
                }
                Err(_) => thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Pods, Events and the ends of the logs.
    #[must_use]
    pub fn state(&self) -> String {
        let show = |arguments: &[&str]| match self.kubectl(arguments) {
            Ok(text) | Err(text) => text,
        };
        let waiting = "-o=jsonpath={range .items[*]}{.metadata.name}: \
            {.status.containerStatuses[*].state.waiting.message}{\"\\n\"}{end}";
        let mut state = [
            show(&["get", "pods", "-A", waiting]),
            show(&["get", "nodes,pods", "-A", "-o", "wide"]),
            show(&["get", "vpol,vcpol,armorprofiles", "-A"]),
            show(&["get", "events", "-A", "--sort-by=.lastTimestamp"]),
        ]
        .join("\n");
        for part in ["tollgate-node", "tollgate-operator"] {
            let label = format!("app.kubernetes.io/name={part}");
            state += &show(&["logs", "-n", NAMESPACE, "-l", &label, "--tail=20"]);
        }
        let logs = [
            self.node("containerd.log"),
            self.node("kubelet.log"),
            self.control("kube-controller-manager.log"),
        ];
        for log in logs {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(15)..];
            state += &format!("\n{}:\n{}", log.display(), last.join("\n"));
        }
        state
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controllers.clear();
        // The first process of the namespace of pids ends after all others of it, and is waited for by its parent.
        let first = Pid::from_raw(child_of(self.namespaces.id()));
        let _ = first.map(|first| kill_process(first, Signal::KILL));
        let _ = self.namespaces.wait();
        for root in hierarchies() {
            remove_groups(&root.join(&self.group));
        }
        let _ = move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network));
    }
}

/// kubectl of the cache, or that of `PATH`.
///
/// # Errors
/// If there is none.
pub fn kubectl() -> Result<PathBuf, String> {
    match (built("kubectl"), crate::installed("kubectl")) {
        (Ok(program), _) => Ok(program),
        (Err(_), true) => Ok(PathBuf::from("kubectl")),
        (Err(missing), false) => Err(format!("{missing}, and no folder of PATH has kubectl")),
    }
}

/// Skips a test if a part of a whole cluster is missing.
#[macro_export]
macro_rules! need_cluster {
    () => {{
        $crate::need_slow!();
        $crate::need_root!();
        $crate::need_runtime!("runc");
        $crate::need_built!(
            "containerd",
            "containerd-shim-runc-v2",
            "ctr",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet"
        );
        if let Err(missing) = $crate::cluster::whole::kubectl() {
            $crate::skip!("needs kubectl", || Ok(missing));
        }
        $crate::need_api_server!()
    }};
}

/// True if this machine lets its root have CAP_SYS_RESOURCE.
fn has_sys_resource() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = bounding.map(|text| u64::from_str_radix(text.trim(), 16));
    bounding.is_some_and(|all| all.is_ok_and(|all| all & (1 << 24) != 0))
}

/// Has this thread be in the network of a process.
fn enter_network(process: &Child) {
    let network = File::open(format!("/proc/{}/ns/net", process.id())).expect("it runs");
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("the test is root");
}

/// Pid of the only child of a process, once it has one.
fn child_of(pid: u32) -> i32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut found = None;
    crate::until("the process has a child", || {
        let children = fs::read_to_string(&path).unwrap_or_default();
        found = children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.expect("it was waited for")
}

fn start_server(programs: &Programs, folder: &Path) -> RealApiserver {
    let pair = rcgen::KeyPair::generate().expect("keys can be made");
    let cluster = real::Cluster {
        arguments: &[
            "--bind-address=0.0.0.0",
            &format!("--advertise-address={ADDRESS}"),
            "--authorization-mode=Node,RBAC",
            // Nobody knows the name of the node.
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-admission-plugins=NodeRestriction",
        ],
        tokens: &format!("node,system:node:{NODE_NAME},node,\"system:nodes\"\n"),
    };
    let address = format!("{ADDRESS}:443");
    let key = [pair.serialize_pem(), pair.public_key_pem()];
    let started = RealApiserver::start_at(programs, folder, [&key[0], &key[1]], &address, &cluster);
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// Configuration of the kubelet. Its interface is open to all of its network, in which nobody else is.
fn kubelet_config(group: &str) -> Value {
    let none = json!({ "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
        "imagefs.available": "0%" });
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{group}"), "failCgroupV1": false,
        // What ends is started again after a second, and not after ten, twenty, forty.
        "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": none, "imageGCHighThresholdPercent": 100, "failSwapOn": false,
        "staticPodPath": "/var/lib/manifests", "fileCheckFrequency": "1s",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "clusterDNS": ["10.0.0.10"], "resolvConf": "/etc/resolv.conf",
    })
}

/// Removes a control group and those below it.
fn remove_groups(path: &Path) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for folder in folders {
        remove_groups(&folder.path());
    }
    remove_group(path);
}
