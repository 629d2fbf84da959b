//! `tollgate node` with the real containerd, API server and operator: from a policy to a denied call.
//!
//! `tests/cluster/build` builds Kubernetes and containerd into the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use apiserver::Resource;
use apiserver::real::{Programs, RealApiserver, Running, until};
use e2e::cluster::{Containerd, IMAGE};
use e2e::cri::{Cri, RunningPod};
use e2e::{Scratch, need_api_server, need_built, need_root, need_runtime, need_slow, program};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000"];
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];
/// What busybox says of EDOM, with which nothing but the policy makes mkdir fail.
const DENIED: &str = "mkdir: can't create directory '/tmp/x': Numerical argument out of domain\n";

/// A cluster of one node.
struct Node {
    scratch: Scratch,
    server: RealApiserver,
    cri: Cri,
    agent: Option<Running>,
    _operator: Running,
    containerd: Containerd,
}

impl Node {
    fn start(programs: &Programs) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.path().join("control");
        fs::create_dir(&folder).expect("the cluster is as this test made it");
        let key = rcgen::KeyPair::generate().expect("the cluster is as this test made it");
        let key = [key.serialize_pem(), key.public_key_pem()];
        let server = RealApiserver::start(programs, &folder, [&key[0], &key[1]])
            .expect("the cluster is as this test made it");
        server
            .install(&["prod", "tollgate"])
            .expect("the cluster is as this test made it");
        let operator = program().with_file_name("tollgate-operator");
        let mut command = Command::new(operator);
        command.args(["run", "--namespace", "tollgate", "--name", "one"]);
        command.args(server.options());
        let operator = Running::start(command, &folder.join("operator.log"))
            .expect("the cluster is as this test made it");
        let containerd = Containerd::start(&scratch);
        let mut node = Self {
            cri: Cri::connect(&containerd.cri()),
            scratch,
            server,
            agent: None,
            _operator: operator,
            containerd,
        };
        node.register();
        node.start_agent();
        node
    }

    /// What the kubelet does.
    fn register(&self) {
        let nodes = Resource::new("", "v1", "nodes");
        let mut node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        self.server
            .client
            .apply(&nodes, &node)
            .expect("the cluster is as this test made it");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .expect("the cluster is as this test made it");
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
        self.server
            .client
            .apply_status(&nodes, &node)
            .expect("the cluster is as this test made it");
    }

    fn start_agent(&mut self) {
        let mut command = Command::new(program());
        let path = |name: &str| self.scratch.path().join(name);
        command.args(["node", "--name", "n1", "--namespace", "tollgate"]);
        command.arg("--state").arg(path("agent"));
        command.arg("--nri-socket").arg(self.containerd.nri());
        command.arg("--policies").arg(path("policies"));
        command.arg("--runtime-state").arg(path("runtime"));
        command.args([
            "--runtime-handler",
            "tollgate",
            "--runtime-handler",
            "other",
        ]);
        command.args(self.server.options());
        self.agent = Some(
            Running::start(command, &path("agent.log"))
                .expect("the cluster is as this test made it"),
        );
        until(
            || match self.log().contains("connected to the container runtime") {
                true => Ok(()),
                false => Err(format!("the agent does not connect: {}", self.log())),
            },
        )
        .expect("the cluster is as this test made it");
    }

    fn log(&self) -> String {
        read(&self.scratch.path().join("agent.log"))
    }

    /// Writes a policy for the pod of the same name, and waits until the agent has seen its profile.
    fn policy(&self, name: &str, enforcer: &str, fail_mode: &str) {
        let call =
            json!({ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 33 });
        let protect = match enforcer {
            "Seccomp" => json!({ "syscallRawRules": [call] }),
            _ => json!({ "hardeningRules": ["disallow-write-core-pattern"] }),
        };
        let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
            "metadata": { "name": name, "namespace": "prod", "annotations": { "tollgate.dev/fail-mode": fail_mode } },
            "spec": { "target": { "kind": "Pod", "name": name }, "policy": { "enforcer": enforcer,
                "mode": "EnhanceProtect", "enhanceProtect": protect } } });
        self.server
            .client
            .apply(&of("VarmorPolicy"), &policy)
            .expect("the cluster is as this test made it");
        until(|| {
            let profile = self.get("ArmorProfile", "prod", &format!("varmor-prod-{name}"))?;
            let version = number(&profile["metadata"]["resourceVersion"]);
            let report = self.get("NodeReport", "", "n1")?;
            match number(&report["status"]["observedVersion"]) >= version {
                true => Ok(()),
                false => Err(format!(
                    "the agent has not seen {name}: {report} {}",
                    self.log()
                )),
            }
        })
        .expect("the cluster is as this test made it");
    }

    fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value, String> {
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.server
            .client
            .get(&of(kind), &key)
            .map_err(|error| format!("{error:?}"))
    }

    /// Waits until the status of a policy has this condition `Ready`; returns its coverage.
    fn coverage(&self, name: &str, ready: &str) -> Value {
        until(|| {
            let policy = self.get("VarmorPolicy", "prod", name)?;
            let conditions = policy["status"]["conditions"].as_array().cloned();
            let is_it = |one: &Value| one["type"] == "Ready" && one["status"] == ready;
            match conditions.into_iter().flatten().any(|one| is_it(&one)) {
                true => Ok(policy["status"]["coverage"].clone()),
                false => Err(format!(
                    "{policy} {} {}",
                    self.get("NodeReport", "", "n1")?,
                    self.log()
                )),
            }
        })
        .expect("the cluster is as this test made it")
    }

    fn run(&mut self, name: &str) -> (RunningPod, Result<String, String>) {
        self.run_by(name, "runc")
    }

    fn run_by(&mut self, name: &str, handler: &str) -> (RunningPod, Result<String, String>) {
        let pod = self
            .cri
            .run_pod(name, handler, &[])
            .expect("the cluster is as this test made it");
        let container = self.cri.run_container(&pod, IMAGE, &SLEEP);
        (pod, container)
    }

    fn mkdir(&mut self, container: &str) -> String {
        let done = self
            .cri
            .exec(container, &MKDIR)
            .expect("the cluster is as this test made it");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}

fn number(text: &Value) -> u64 {
    text.as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the cluster is as this test made it"))
}

#[test]
fn a_policy_of_the_cluster_holds_on_a_node_and_what_cannot_be_enforced_is_refused() {
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs);
    a_call_is_denied_in_the_pod_of_a_policy_and_stays_denied_when_the_agent_dies(&mut node);
    a_rule_that_cannot_be_enforced_refuses_a_container_unless_the_policy_is_open(&mut node);
}

fn a_call_is_denied_in_the_pod_of_a_policy_and_stays_denied_when_the_agent_dies(node: &mut Node) {
    node.policy("web", "Seccomp", "closed");
    let (pod, web) = node.run("web");
    let web = web.unwrap_or_else(|error| panic!("{error} {}", node.log()));
    assert_eq!(node.mkdir(&web), DENIED);
    let (twin, other) = node.run("other");
    assert_eq!(
        node.mkdir(&other.expect("the cluster is as this test made it")),
        ""
    );
    // The policy was ready before the container was there: the report about it comes later.
    until(|| {
        let covered = node.coverage("web", "True");
        let found = (&covered["containers"], &covered["enforced"]);
        match found == (&json!(1), &json!(1)) {
            true => Ok(()),
            false => Err(covered.to_string()),
        }
    })
    .expect("the container is counted");

    // Killed, and a container begins meanwhile.
    node.policy("late", "Seccomp", "closed");
    node.agent
        .take()
        .expect("the cluster is as this test made it")
        .kill()
        .expect("the cluster is as this test made it");
    assert_eq!(node.mkdir(&web), DENIED);
    let (late, missed) = node.run("late");
    assert_eq!(
        node.mkdir(&missed.expect("the cluster is as this test made it")),
        ""
    );
    node.start_agent();
    let covered = node.coverage("late", "False");
    assert_eq!(covered["unprotected"], 1, "{covered}");
    let reasons = covered["reasons"].to_string();
    assert!(reasons.contains("ran before the agent"), "{covered}");
    // What the one before has confined is known to be.
    let covered = node.coverage("web", "True");
    assert_eq!(covered["enforced"], 1, "{covered}");
    node.cri
        .remove_pod(&late)
        .expect("the cluster is as this test made it");
    node.coverage("late", "True");
    for pod in [pod, twin] {
        node.cri
            .remove_pod(&pod)
            .expect("the cluster is as this test made it");
    }
}

fn a_rule_that_cannot_be_enforced_refuses_a_container_unless_the_policy_is_open(node: &mut Node) {
    node.policy("strict", "BPF", "closed");
    let (strict, container) = node.run("strict");
    let error = container.expect_err("it is refused");
    assert!(
        error.contains("tollgate: prod/varmor-prod-strict:"),
        "{error}"
    );
    assert!(error.contains("disallow-write-core-pattern"), "{error}");
    node.policy("open", "BPF", "open");
    let (open, container) = node.run("open");
    assert!(container.is_ok(), "{container:?}");
    let covered = node.coverage("open", "False");
    assert_eq!(covered["unprotected"], 1, "{covered}");
    assert!(
        covered["reasons"]
            .to_string()
            .contains("disallow-write-core-pattern"),
        "{covered}"
    );
    for pod in [strict, open] {
        node.cri
            .remove_pod(&pod)
            .expect("the cluster is as this test made it");
    }
}

#[test]
fn a_pod_of_the_runtime_class_gets_its_policy_from_the_runtime_and_no_other() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs);
    node.policy("boxed", "Seccomp", "closed");
    let (pod, web) = node.run_by("boxed", "tollgate");
    let web = web.unwrap_or_else(|error| panic!("{error} {}", node.log()));
    assert_eq!(node.mkdir(&web), DENIED);
    assert_eq!(node.coverage("boxed", "True")["enforced"], 1);
    node.cri
        .remove_pod(&pod)
        .expect("the cluster is as this test made it");
    // The handler is said to be tollgate's, and is runc.
    node.policy("fake", "Seccomp", "closed");
    let (fake, container) = node.run_by("fake", "other");
    let error = container.expect_err("it is refused");
    assert!(
        error.contains("the runtime that has created it is not tollgate's"),
        "{error}"
    );
    node.cri
        .remove_pod(&fake)
        .expect("the cluster is as this test made it");
}
