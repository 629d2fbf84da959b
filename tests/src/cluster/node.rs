//! A cluster of one node without a kubelet: API server, operator, containerd and `tollgate node`; tests make its pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use apiserver::Resource;
use apiserver::real::{Programs, RealApiserver, Running, until};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

use super::{Containerd, IMAGE};
use crate::cri::{Cri, RunningPod};
use crate::{Scratch, program};

/// Namespace of the pods that policies are about.
pub const PROD: &str = "prod";
/// Name of the node.
pub const NODE_NAME: &str = "n1";
/// What busybox says of EDOM, with which nothing but the policy makes mkdir fail.
pub const DENIED: &str =
    "mkdir: can't create directory '/tmp/x': Numerical argument out of domain\n";
/// Number of EDOM.
pub const EDOM: i32 = 33;
const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000"];
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];

/// A cluster of one node. Programs end with the value, before the folder.
#[derive(Debug)]
pub struct Node {
    /// The API server.
    pub server: RealApiserver,
    /// The container runtime, as the kubelet asks it.
    pub cri: Cri,
    agent: Option<Running>,
    operators: Vec<(String, Running)>,
    containerd: Containerd,
    options: Vec<String>,
    scratch: Scratch,
}

impl Node {
    /// Starts a cluster, and waits until the container runtime knows the agent.
    ///
    /// # Panics
    /// If a part does not start; the message has what it logged.
    #[must_use]
    pub fn start(programs: &Programs) -> Self {
        Self::start_with(programs, &[])
    }

    /// Like [`Node::start`], with further options of the agent.
    ///
    /// # Panics
    /// If a part does not start; the message has what it logged.
    #[must_use]
    pub fn start_with(programs: &Programs, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.path().join("control");
        fs::create_dir(&folder).expect("the folder is ours");
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let key = [key.serialize_pem(), key.public_key_pem()];
        let server = RealApiserver::start(programs, &folder, [&key[0], &key[1]]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let installed = server.install(&[PROD, "tollgate"]);
        installed.expect("the definitions are taken");
        let containerd = Containerd::start(&scratch);
        let mut node = Self {
            cri: Cri::connect(&containerd.cri()),
            server,
            agent: None,
            operators: Vec::new(),
            containerd,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            scratch,
        };
        node.start_operator("one");
        node.register();
        node.start_agent();
        node
    }

    /// A file of the node: `agent` is the folder of the agent's state.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The socket of the container runtime.
    #[must_use]
    pub fn runtime_socket(&self) -> PathBuf {
        self.containerd.cri()
    }

    /// Starts one more operator.
    ///
    /// # Panics
    /// If it was not built.
    pub fn start_operator(&mut self, name: &str) {
        let mut command = Command::new(program().with_file_name("tollgate-operator"));
        command.args(["run", "--namespace", "tollgate", "--name", name]);
        command.args(self.server.options());
        let log = self.path(&format!("control/{name}.log"));
        let operator = Running::start(command, &log).expect("it was built");
        self.operators.push((name.to_owned(), operator));
    }

    /// Kills the operator of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill_operator(&mut self, name: &str) {
        let at = self.operators.iter().position(|(other, _)| other == name);
        let (_, mut operator) = self.operators.remove(at.expect("it was started"));
        operator.kill().expect("it can be killed");
    }

    /// What the kubelet does.
    fn register(&self) {
        let nodes = Resource::new("", "v1", "nodes");
        let mut node =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE_NAME } });
        let applied = self.server.client.apply(&nodes, &node);
        applied.expect("the object is right");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.expect("/proc is mounted");
        let info = [
            "machineID",
            "systemUUID",
            "kernelVersion",
            "osImage",
            "containerRuntimeVersion",
            "kubeletVersion",
            "kubeProxyVersion",
            "operatingSystem",
            "architecture",
        ];
        node["status"] = json!({ "nodeInfo": { "bootID": boot.trim() } });
        for key in info {
            node["status"]["nodeInfo"][key] = json!("");
        }
        let written = self.server.client.apply_status(&nodes, &node);
        written.expect("the status is right");
    }

    /// Starts the agent, and waits until the container runtime knows it.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn start_agent(&mut self) {
        let mut command = Command::new(program());
        command.args(["node", "--name", NODE_NAME, "--namespace", "tollgate"]);
        command.arg("--state").arg(self.path("agent"));
        command.arg("--nri-socket").arg(self.containerd.nri());
        command.arg("--policies").arg(self.path("policies"));
        command.arg("--runtime-state").arg(self.path("runtime"));
        for handler in ["tollgate", "other"] {
            command.args(["--runtime-handler", handler]);
        }
        command.args(&self.options).args(self.server.options());
        let agent = Running::start(command, &self.path("agent.log"));
        self.agent = Some(agent.expect("it was built"));
        until(|| {
            let log = self.log();
            match log.contains("connected to the container runtime") {
                true => Ok(()),
                false => Err(format!("the agent does not connect: {log}")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Kills the agent.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it was started");
        agent.kill().expect("it can be killed");
    }

    /// Pid of the agent.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("it was started").pid()
    }

    /// What the agent has logged since it was started.
    #[must_use]
    pub fn log(&self) -> String {
        read(&self.path("agent.log"))
    }

    /// Writes a policy for the pod of the same name, and waits until the agent has seen its profile.
    ///
    /// # Panics
    /// If the agent does not see it in a minute.
    pub fn policy(&self, name: &str, enforcer: &str, fail_mode: &str) {
        let protect = match enforcer {
            "Seccomp" => json!({ "syscallRawRules": [no_mkdir(EDOM)] }),
            _ => json!({ "hardeningRules": ["disallow-write-core-pattern"] }),
        };
        let target = json!({ "kind": "Pod", "name": name });
        let mut policy = policy(name, &target, enforcer, &protect);
        policy["metadata"]["annotations"] = json!({ "tollgate.dev/fail-mode": fail_mode });
        self.apply(&policy);
        self.seen(name);
    }

    /// Creates or changes a policy.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn apply(&self, policy: &Value) {
        let applied = self.server.client.apply(&of("VarmorPolicy"), policy);
        applied.unwrap_or_else(|error| panic!("{error:?}: {policy:#}"));
    }

    /// Waits until the agent has seen the profile of a policy.
    ///
    /// # Panics
    /// If it does not in a minute.
    pub fn seen(&self, name: &str) {
        until(|| {
            let profile = self.get("ArmorProfile", PROD, &format!("varmor-prod-{name}"))?;
            let version = version_of(&profile["metadata"]["resourceVersion"])?;
            let report = self.get("NodeReport", "", NODE_NAME)?;
            match version_of(&report["status"]["observedVersion"])? >= version {
                true => Ok(()),
                false => Err(format!(
                    "the agent has not seen {name}: {report} {}",
                    self.log()
                )),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// An object.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value, String> {
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let got = self.server.client.get(&of(kind), &key);
        got.map_err(|error| format!("{error:?}"))
    }

    /// Waits until the status of a policy has this condition `Ready`; returns its coverage.
    ///
    /// # Panics
    /// If it does not in a minute.
    pub fn coverage(&self, name: &str, ready: &str) -> Value {
        until(|| {
            let policy = self.get("VarmorPolicy", PROD, name)?;
            match is_ready(&policy, ready) {
                true => Ok(policy["status"]["coverage"].clone()),
                false => Err(format!(
                    "{policy} {} {}",
                    self.get("NodeReport", "", NODE_NAME)?,
                    self.log()
                )),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a pod, and a container in it that sleeps.
    ///
    /// # Panics
    /// If the pod does not run. Whether its container does is returned.
    pub fn run(&mut self, name: &str) -> (RunningPod, Result<String, String>) {
        self.run_by(name, "runc")
    }

    /// Like [`Node::run`], by the runtime of this handler.
    ///
    /// # Panics
    /// If the pod does not run. Whether its container does is returned.
    pub fn run_by(&mut self, name: &str, handler: &str) -> (RunningPod, Result<String, String>) {
        let pod = self.cri.run_pod(name, handler, &[]).expect("pods run");
        let container = self.cri.run_container(&pod, IMAGE, &SLEEP);
        (pod, container)
    }

    /// Makes a folder in a container; returns what mkdir says.
    ///
    /// # Panics
    /// If nothing can be run there.
    pub fn mkdir(&mut self, container: &str) -> String {
        let done = self.cri.exec(container, &MKDIR);
        String::from_utf8_lossy(&done.expect("the container runs").stderr).into_owned()
    }
}

/// A rule that denies mkdir(2) with this error.
#[must_use]
pub fn no_mkdir(error: i32) -> Value {
    json!({ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": error })
}

/// A policy of the namespace [`PROD`].
#[must_use]
pub fn policy(name: &str, target: &Value, enforcer: &str, protect: &Value) -> Value {
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": name, "namespace": PROD },
        "spec": { "target": target, "policy": { "enforcer": enforcer, "mode": "EnhanceProtect",
            "enhanceProtect": protect } } })
}

/// Whether the condition Ready of a policy has this status.
#[must_use]
pub fn is_ready(policy: &Value, status: &str) -> bool {
    let conditions = policy["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == status)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}

fn version_of(text: &Value) -> Result<u64, String> {
    let number = text.as_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("{text} is no version"))
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}
