//! The operator and the agent of a node, each with the token of its own account and no other right, and kubectl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use apiserver::Resource;
use apiserver::real::{Programs, Running, until};
use e2e::cluster::{Containerd, IMAGE};
use e2e::cri::{Cri, RunningPod};
use e2e::{need_api_server, need_built, need_root, need_runtime, need_slow, program, skip_part};
use operator::manifests::{self, NODE, OPERATOR};
use serde_json::{Value, json};

use super::installed::{Installed, NAMESPACE, installation, key, of, says_what_was_tried, text};
use super::read;

const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000"];
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];
/// What busybox says of EDOM, with which nothing but the policy makes mkdir fail.
const DENIED: &str = "mkdir: can't create directory '/tmp/x': Numerical argument out of domain\n";
/// The mark of the policy `web`, which another pod may have, too.
const MARKED: (&str, &str) = ("profile.tollgate.dev/varmor-prod-web", "target");
/// What the rule of detection looks for.
const MARK: [&str; 3] = ["/bin/busybox", "true", "tollgate-mark"];

/// A node whose agent, and an operator, have the rights of the manifests alone.
struct Node {
    installed: Installed,
    cri: Cri,
    agent: Option<Running>,
    agent_token: PathBuf,
    detect: bool,
    operator: Running,
    containerd: Containerd,
}

impl Node {
    fn start(programs: &Programs, detect: bool) -> Self {
        let installed = Installed::start(programs);
        register(&installed);
        let agent_token = installed.token(NODE, Some(&agent_pod(&installed)));
        let operator = start_operator(&installed);
        let containerd = Containerd::start(&installed.scratch);
        let mut node = Self {
            cri: Cri::connect(&containerd.cri()),
            installed,
            agent: None,
            agent_token,
            detect,
            operator,
            containerd,
        };
        node.start_agent();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.installed.scratch.path().join(name)
    }

    fn logs(&self) -> String {
        format!(
            "{}\n{}",
            read(&self.path("agent.log")),
            read(&self.path("operator.log"))
        )
    }

    /// Starts the agent; returns how long it took to be asked by the runtime.
    fn start_agent(&mut self) -> Duration {
        let begin = Instant::now();
        let mut command = Command::new(program());
        command.args(["node", "--name", "n1", "--namespace", NAMESPACE, "--events"]);
        if self.detect {
            command.args(["--detect", "--no-builtin-rules"]);
        }
        command.arg("--state").arg(self.path("agent"));
        command.arg("--nri-socket").arg(self.containerd.nri());
        command.arg("--policies").arg(self.path("policies"));
        command.arg("--runtime-state").arg(self.path("runtime"));
        command.args(options(&self.installed, &self.agent_token));
        let log = self.path("agent.log");
        self.agent = Some(Running::start(command, &log).expect("it was built"));
        until(
            || match read(&log).contains("connected to the container runtime") {
                true => Ok(()),
                false => Err(self.logs()),
            },
        )
        .unwrap_or_else(|logs| panic!("the agent does not connect: {logs}"));
        begin.elapsed()
    }

    fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it was started");
        agent.kill().expect("it runs");
    }

    /// Writes a policy for the pod of the same name.
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
        let applied = self.installed.apply(&policy);
        applied.expect("the policy is right");
        self.ready(name, "True");
    }

    /// Waits until the condition Ready of a policy has this status; returns the status of the policy.
    fn ready(&self, name: &str, expected: &str) -> Value {
        self.status("VarmorPolicy", "prod", name, "Ready", expected)
    }

    fn status(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        condition: &str,
        expected: &str,
    ) -> Value {
        let found = until(|| {
            let object = self
                .installed
                .client()
                .get(&of(kind), &key(namespace, name));
            let status = object.map_err(|error| error.to_string())?["status"].clone();
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            match conditions.any(|one| one["type"] == condition && one["status"] == expected) {
                true => Ok(status),
                false => Err(status.to_string()),
            }
        });
        found.unwrap_or_else(|status| panic!("{name} is not {expected}: {status} {}", self.logs()))
    }

    fn run(&mut self, name: &str) -> (RunningPod, String) {
        self.run_with(name, &[])
    }

    fn run_with(&mut self, name: &str, annotations: &[(&str, &str)]) -> (RunningPod, String) {
        let (pod, container) = self.try_run(name, annotations);
        let container = container.unwrap_or_else(|error| panic!("{error} {}", self.logs()));
        (pod, container)
    }

    fn try_run(
        &mut self,
        name: &str,
        annotations: &[(&str, &str)],
    ) -> (RunningPod, Result<String, String>) {
        let pod = self.cri.run_pod(name, "runc", annotations);
        let pod = pod.expect("pods run");
        let container = self.cri.run_container(&pod, IMAGE, &SLEEP);
        (pod, container)
    }

    /// A pod that begins now is confined by the policy of `web`, and is removed again.
    fn a_new_pod_is_confined(&mut self) {
        let (pod, container) = self.run_with("again", &[MARKED]);
        assert_eq!(self.mkdir(&container), DENIED);
        self.cri.remove_pod(&pod).expect("it runs");
    }

    fn mkdir(&mut self, container: &str) -> String {
        let done = self
            .cri
            .exec(container, &MKDIR)
            .expect("the container runs");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    /// Waits for an Event about a pod with this reason.
    fn event(&self, pod: &str, reason: &str) -> Value {
        let events = Resource::new("events.k8s.io", "v1", "events").in_namespace("prod");
        let found = until(|| {
            let mut found = None;
            let mut seen = Vec::new();
            let listed = self.installed.client().list(&events, |event| {
                seen.push(format!(
                    "{} {}",
                    event["regarding"]["name"], event["reason"]
                ));
                if event["regarding"]["name"] == pod && event["reason"] == reason {
                    found = Some(event);
                }
            });
            listed.map_err(|error| error.to_string())?;
            found.ok_or_else(|| seen.join(", "))
        });
        found.unwrap_or_else(|seen| panic!("{pod} has no Event {reason}: {seen} {}", self.logs()))
    }
}

fn start_operator(installed: &Installed) -> Running {
    let mut command = Command::new(program().with_file_name("tollgate-operator"));
    command.args(["run", "--namespace", NAMESPACE, "--name", "one"]);
    command.args(options(installed, &installed.token(OPERATOR, None)));
    let log = installed.scratch.path().join("operator.log");
    Running::start(command, &log).expect("it was built")
}

/// Options by which a program finds the server, with a token of its own.
fn options(installed: &Installed, token: &Path) -> Vec<String> {
    let mut options = installed.server.options();
    *options.last_mut().expect("the token is the last") = token.display().to_string();
    options
}

/// What the kubelet does for the node `n1`.
fn register(installed: &Installed) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("there is a kernel");
    let mut info = json!({ "bootID": boot.trim() });
    for key in [
        "machineID",
        "systemUUID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ] {
        info[key] = json!("");
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": { "nodeInfo": info } });
    let nodes = Resource::new("", "v1", "nodes");
    let written = installed.client().apply_status(&nodes, &node);
    written.expect("the status is right");
}

/// The pod of the agent, to which its token is bound. It has no program here.
fn agent_pod(installed: &Installed) -> Value {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "agent-of-n1", "namespace": NAMESPACE },
        "spec": { "serviceAccountName": NODE, "nodeName": "n1", "containers": [{ "name": "agent", "image": "x" }] } });
    let made = installed
        .client()
        .create(&Resource::new("", "v1", "pods"), &pod);
    made.expect("the pod is right")
}

fn kubectl(installed: &Installed, arguments: &[&str], input: Option<&Path>) -> Output {
    let config = installed.kubeconfig("admin", &installed.folder().join("token"));
    let mut command = Command::new(find_kubectl().expect("the caller has found it"));
    command.arg("--kubeconfig").arg(config).args(arguments);
    // Where it caches what the server has.
    command.env("HOME", installed.scratch.path());
    command.stdin(match input {
        Some(path) => Stdio::from(fs::File::open(path).expect("it was written")),
        None => Stdio::null(),
    });
    command.output().expect("kubectl is installed")
}

/// Output of kubectl, which succeeds and has nothing to warn of.
fn said(installed: &Installed, arguments: &[&str], input: Option<&Path>) -> String {
    let done = kubectl(installed, arguments, input);
    let problem = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments:?}: {problem}");
    assert_eq!(problem, "", "{arguments:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The kubectl of the cache, or that of `PATH`; an error says that there is none.
fn find_kubectl() -> Result<PathBuf, String> {
    match (e2e::cluster::built("kubectl"), e2e::installed("kubectl")) {
        (Ok(program), _) => Ok(program),
        (Err(_), true) => Ok(PathBuf::from("kubectl")),
        (Err(missing), false) => Err(format!("{missing}, and no folder of PATH has kubectl")),
    }
}

#[test]
fn kubectl_takes_what_the_program_prints_twice_without_a_warning() {
    let programs = need_api_server!();
    if let Err(missing) = find_kubectl() {
        e2e::skip!("needs kubectl", || Ok(missing));
    }
    let installed = Installed::bare(&programs);
    let mut command = Command::new(program().with_file_name("tollgate-operator"));
    command.args(["manifests", "--image", "registry.example/tollgate:1"]);
    command.args(["--detect", "--events", "--violations"]);
    let printed = command.output().expect("it was built");
    assert!(printed.status.success(), "{printed:?}");
    let file = installed
        .scratch
        .file("manifests.yaml", 0o644, &printed.stdout);
    let count = manifests::all(&installation()).len();
    for _ in 0..2 {
        let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
        let applied = said(&installed, &apply, Some(&file));
        assert_eq!(
            applied.matches(" serverside-applied\n").count(),
            count,
            "{applied}"
        );
    }
    // What is there is what was printed.
    let diff = kubectl(
        &installed,
        &["diff", "--server-side", "-f", "-"],
        Some(&file),
    );
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
}

/// What the how-to says to do.
fn kubectl_shows_that_the_policy_is_ready(installed: &Installed) {
    if let Err(missing) = find_kubectl() {
        skip_part!("needs kubectl", || Ok(missing));
        return;
    }
    let said = |arguments: &[&str]| said(installed, arguments, None);
    let wait = [
        "wait",
        "--for=condition=Ready",
        "varmorpolicy/web",
        "-n",
        "prod",
        "--timeout=60s",
    ];
    assert_eq!(
        said(&wait),
        "varmorpolicy.crd.varmor.org/web condition met\n"
    );
    let listed = said(&["get", "vpol", "-n", "prod", "web", "-o", "wide"]);
    let words: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        words[0][..5],
        ["NAME", "ENFORCER", "MODE", "TARGET-KIND", "TARGET-NAME"]
    );
    assert_eq!(
        words[1][..5],
        ["web", "Seccomp", "EnhanceProtect", "Pod", "web"]
    );
    assert!(
        words[1].ends_with(&[
            "varmor-prod-web",
            "true",
            "Protecting",
            words[1][words[1].len() - 1]
        ]),
        "{listed}"
    );
    assert!(said(&["get", "nodereports"]).contains("n1 "));
    let described = said(&["describe", "vpol", "-n", "prod", "web"]);
    assert!(described.contains("AllAgentsReady"), "{described}");
    let programmed = [
        "wait",
        "--for=condition=Programmed",
        "rulesfile/marks",
        "-n",
        NAMESPACE,
        "--timeout=60s",
    ];
    assert!(said(&programmed).ends_with("condition met\n"));
}

fn an_alert_of_a_rule_of_the_cluster_is_an_event_of_the_pod(node: &mut Node, container: &str) {
    let rule = json!({ "rule": "Marked", "desc": "d", "output": "seen", "priority": "WARNING",
        "condition": "evt.type = execve and evt.res = SUCCESS and proc.args contains tollgate-mark" });
    let file = json!({ "apiVersion": "artifact.falcosecurity.dev/v1alpha1", "kind": "Rulesfile",
        "metadata": { "name": "marks", "namespace": NAMESPACE }, "spec": { "inlineRules": [rule] } });
    node.installed.apply(&file).expect("the object is right");
    node.status("Rulesfile", NAMESPACE, "marks", "Programmed", "True");
    let done = node.cri.exec(container, &MARK).expect("the container runs");
    assert_eq!(done.code, 0);
    let event = node.event("web", "RuleMatched");
    assert_eq!(event["note"], "container app: Marked (Warning): seen");
    assert_eq!(event["type"], "Warning");
    is_by_the_agent(&event, "web");
}

fn is_by_the_agent(event: &Value, pod: &str) {
    assert_eq!(event["reportingController"], "tollgate.dev/node");
    assert_eq!(event["reportingInstance"], "n1");
    assert_eq!(event["regarding"]["uid"], format!("uid-of-{pod}"));
}

#[test]
fn operator_and_agent_need_no_right_but_those_of_the_manifests() {
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs, true);
    node.policy("web", "Seccomp", "closed");
    let (_, web) = node.run("web");
    assert_eq!(node.mkdir(&web), DENIED);
    let (_, other) = node.run("other");
    assert_eq!(node.mkdir(&other), "");

    an_alert_of_a_rule_of_the_cluster_is_an_event_of_the_pod(&mut node, &web);
    node.policy("open", "BPF", "open");
    let (_, open) = node.run("open");
    assert_eq!(node.mkdir(&open), "", "the rule is about a file");
    let event = node.event("open", "PolicyNotEnforced");
    assert!(
        text(&event["note"]).contains("disallow-write-core-pattern"),
        "{event}"
    );
    is_by_the_agent(&event, "open");
    kubectl_shows_that_the_policy_is_ready(&node.installed);
    says_what_was_tried(&status_of(&node)["enforcers"]);
    let logs = node.logs();
    assert!(
        !logs.contains("403") && !logs.contains("forbidden"),
        "{logs}"
    );
}

/// Deaths of the agent while no API server answers.
const DEATHS: u32 = 100;

#[test]
fn enforcement_goes_on_without_an_api_server_and_through_a_hundred_deaths_of_the_agent() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let mut node = Node::start(&programs, false);
    node.policy("web", "Seccomp", "closed");
    let (first, web) = node.run("web");
    assert_eq!(node.mkdir(&web), DENIED);
    node.policy("unused", "Seccomp", "closed");
    node.installed.server.stop().expect("it runs");
    node.a_new_pod_is_confined();
    // The agent has read no policy that no pod of the node has.
    let (unused, refused) = node.try_run("unused", &[]);
    let error = refused.expect_err("its policy is not here");
    assert!(error.contains("tollgate: "), "{error}");
    node.cri.remove_pod(&unused).expect("it is there");
    let mut starts = Vec::new();
    for death in 0..DEATHS {
        node.kill_agent();
        assert_eq!(node.mkdir(&web), DENIED, "death {death}");
        starts.push(node.start_agent());
        if death % 10 == 0 {
            node.a_new_pod_is_confined();
        }
    }
    starts.sort();
    println!(
        "{DEATHS} deaths without an API server: connected again after {:?} (median), {:?} (longest)",
        starts[starts.len() / 2],
        starts[starts.len() - 1]
    );
    let before = status_of(&node)["renewTime"].clone();
    let begin = Instant::now();
    node.installed.server.restart().expect("it starts");
    let answers = begin.elapsed();
    // It has lost its lease and ended; the cluster starts it again.
    node.operator = start_operator(&node.installed);
    until(|| match status_of(&node)["renewTime"] != before {
        true => Ok(()),
        false => Err(node.logs()),
    })
    .expect("the agent reports again");
    println!(
        "the API server answered after {answers:?}, the report was there after {:?}",
        begin.elapsed()
    );
    let covered = node.ready("web", "True")["coverage"].clone();
    assert_eq!(
        (&covered["containers"], &covered["enforced"]),
        (&json!(1), &json!(1)),
        "{covered}"
    );
    node.cri.remove_pod(&first).expect("it runs");
    let (_, late) = node.run("unused");
    assert_eq!(node.mkdir(&late), DENIED);
}

/// Status of the report of the node; null while there is none.
fn status_of(node: &Node) -> Value {
    let report = node
        .installed
        .client()
        .get(&of("NodeReport"), &key("", "n1"));
    report.map_or(Value::Null, |report| report["status"].clone())
}
