//! Behaviour modelling from a policy to its completed model: the operator, the agent, the engine and what containers do are real;
//! the API server and the container runtime are played by this program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use apiserver::fake::FakeApiserver;
use apiserver::real::{Running, until};
use e2e::{Group, Scratch, need_root, program, slow};
use nri::fake::{FakeRuntime, Reply};
use nri::message::{Container, PodSandbox};
use serde_json::{Value, json};

const POLICY: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/varmorpolicies/web";
const MODEL: &str =
    "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofilemodels/varmor-demo-web";
const PROFILE: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/armorprofiles/varmor-demo-web";
/// Annotation of the profile: start and duration of the run.
const MODELING: &str = "tollgate.dev/modeling";
const REPORT: &str = "/apis/tollgate.dev/v1alpha1/nodereports/n1";

/// A cluster of one node.
struct Cluster {
    server: FakeApiserver,
    listener: UnixListener,
    runtime: Option<FakeRuntime>,
    operator: Option<Running>,
    agent: Option<Running>,
    scratch: Scratch,
}

impl Cluster {
    fn new() -> Self {
        let scratch = Scratch::new();
        let listener = UnixListener::bind(scratch.path().join("nri.sock")).expect("a new folder");
        let server = FakeApiserver::start().expect("loopback can be used");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it is there");
        let status = json!({ "nodeInfo": { "bootID": boot.trim() } });
        server.put(
            "/api/v1/nodes/n1",
            json!({ "metadata": { "name": "n1" }, "status": status }),
        );
        Self {
            server,
            listener,
            runtime: None,
            operator: None,
            agent: None,
            scratch,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn start_operator(&mut self) {
        let mut command = Command::new(program().with_file_name("tollgate-operator"));
        command.args([
            "run",
            "--namespace",
            "tollgate",
            "--name",
            "o1",
            "--behavior-modeling",
        ]);
        command.args(["--server", &self.server.access().server]);
        let log = self.path("operator.log");
        self.operator = Some(Running::start(command, &log).expect("the program was built"));
    }

    /// The command line of the agent.
    fn node(&self) -> Command {
        let mut command = Command::new(program());
        command.args([
            "node",
            "--name",
            "n1",
            "--namespace",
            "tollgate",
            "--behavior-modeling",
        ]);
        command.args(["--server", &self.server.access().server]);
        command.arg("--state").arg(self.path("state"));
        command.arg("--nri-socket").arg(self.path("nri.sock"));
        command.arg("--policies").arg(self.path("policies"));
        command.arg("--runtime-state").arg(self.path("runtime"));
        command
    }

    /// Starts the agent, and lists nothing that runs.
    fn start_agent(&mut self, command: Command) {
        let log = self.path("node.log");
        self.agent = Some(Running::start(command, &log).expect("the program was built"));
        let (stream, _) = self.listener.accept().expect("the agent connects");
        let runtime = FakeRuntime::accept(stream, &[], &[]);
        self.runtime = Some(runtime.expect("the agent follows the protocol"));
    }

    /// A policy that models the pod `web` for some minutes.
    fn put_policy(&self, minutes: u64) {
        let policy = json!({
            "enforcer": "BPFSeccomp", "mode": "BehaviorModeling", "modelingOptions": { "duration": minutes },
        });
        self.server.put(
            POLICY,
            json!({
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
                "metadata": { "name": "web", "namespace": "demo" },
                "spec": { "target": { "kind": "Pod", "name": "web" }, "policy": policy },
            }),
        );
    }

    /// Waits until the operator has started the run. Returns the profile and the start, in seconds since 1970.
    fn started_run(&self) -> (Value, u64) {
        let profile = self.wait(PROFILE, |profile| {
            profile["metadata"]["annotations"][MODELING].is_string()
        });
        let run = profile["metadata"]["annotations"][MODELING].as_str();
        let start = run.and_then(|run| run.split('/').next()?.parse().ok());
        (profile, start.expect("a run has a start"))
    }

    /// Lets the run of two minutes have begun a minute earlier. A policy of one minute then ends it at once.
    fn set_back(&self) {
        let (mut profile, start) = self.started_run();
        profile["metadata"]["annotations"][MODELING] = json!(format!("{}/2", start - 60));
        self.server.put(PROFILE, profile);
    }

    fn create(&mut self, container: &Container) {
        let runtime = self.runtime.as_mut().expect("the agent is connected");
        for (method, container) in [
            ("RunPodSandbox", None),
            ("CreateContainer", Some(container)),
            ("StartContainer", Some(container)),
        ] {
            let reply = runtime
                .ask(method, &pod(), container)
                .expect("the agent answers");
            assert_eq!(reply, Reply::Accepted(None), "{method}");
        }
    }

    /// Waits until an object is as wanted.
    fn wait(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let find = || {
            let object = self.server.get(path).unwrap_or_default();
            match wanted(&object) {
                true => Ok(object),
                false => Err(format!(
                    "{path}: {object:#}\n{}\n{}",
                    said(&self.path("node.log")),
                    said(&self.path("operator.log"))
                )),
            }
        };
        // The run itself takes a minute.
        until(&find)
            .or_else(|_| until(&find))
            .expect("it becomes as wanted")
    }
}

fn said(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn pod() -> PodSandbox {
    PodSandbox {
        id: format!("{:0<64}", "5b"),
        name: "web".to_owned(),
        uid: "0b1c".to_owned(),
        namespace: "demo".to_owned(),
        ..PodSandbox::default()
    }
}

fn container(group: &Group) -> Container {
    Container {
        id: group.id(),
        pod_sandbox_id: pod().id,
        name: "app".to_owned(),
        ..Container::default()
    }
}

/// Runs a script as a program of the container.
fn run(group: &Group, script: &str) {
    let prefix = group.prefix();
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]);
    command.args(["unshare", "--pid", "--mount", "--fork", "sh", "-c", script]);
    let status = command.status().expect("unshare is part of every system");
    assert!(status.success(), "{script}");
}

fn files(report: &Value) -> Vec<String> {
    let files = report["bpf"]["files"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let paths = files.iter().filter_map(|file| file["path"].as_str());
    paths.map(str::to_owned).collect()
}

fn ready(policy: &Value) -> Value {
    let conditions = policy["status"]["conditions"].as_array().cloned();
    let mut found = conditions.into_iter().flatten();
    found.find(|one| one["type"] == "Ready").unwrap_or_default()
}

#[test]
fn a_policy_becomes_a_model_of_what_its_containers_did_and_of_nothing_else() {
    need_root!();
    // On a starved machine the engine may lose events. The model has to say so, and is made anew.
    let is_complete = (0..3).any(|_| is_modeled_completely());
    assert!(is_complete, "the engine has lost events three times");
}

/// A cluster with a policy, whose node observes. The run takes its minute when slow tests are asked for, and else until
/// it is made shorter.
fn observing() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.start_operator();
    let command = cluster.node();
    if slow() {
        cluster.start_agent(command);
        cluster.put_policy(1);
        cluster.started_run();
    } else {
        cluster.put_policy(2);
        cluster.set_back();
        cluster.start_agent(command);
    }
    let armed = || match said(&cluster.path("node.log")).contains("observing the behaviour") {
        true => Ok(()),
        false => Err(said(&cluster.path("node.log"))),
    };
    until(armed).expect("the engine starts");
    cluster
}

/// Models a policy. Returns false if the model is incomplete because events were lost.
fn is_modeled_completely() -> bool {
    let mut cluster = observing();
    let (group, other) = (Group::of_container("d1"), Group::of_container("d2"));
    let made = cluster.path("made");
    fs::create_dir(&made).expect("a new folder");
    let made = made.display().to_string();
    cluster.create(&container(&group));
    run(
        &group,
        &format!("cat /etc/hostname >/dev/null; touch {made}/new; rm {made}/new"),
    );
    // A container without a policy.
    run(&other, "cat /etc/os-release >/dev/null");
    let of_report = |report: &Value| report["status"]["behaviors"][0].clone();
    let report = cluster.wait(REPORT, |report| {
        files(&of_report(report)["recorded"]).contains(&"/etc/hostname".to_owned())
    });
    let behavior = of_report(&report);
    assert_eq!(
        (&behavior["containers"], &behavior["fromStart"]),
        (&json!(1), &json!(1))
    );
    let pending = cluster.wait(POLICY, |policy| {
        policy["status"]["phase"] == "Modeling" && ready(policy)["status"] == "True"
    });
    assert_eq!(ready(&pending)["reason"], "AllAgentsReady");

    if !slow() {
        cluster.wait(REPORT, |report| {
            has_last_act(&of_report(report)["recorded"], &made)
        });
        cluster.put_policy(1);
    }
    let is_over = |model: &Value| {
        let run = &model["metadata"]["annotations"][MODELING];
        run.as_str().is_some_and(|run| run.ends_with("/over"))
            && model["status"]["completedNumber"] == 1
    };
    let model = cluster.wait(MODEL, is_over);
    if model["status"]["ready"] != true {
        let condition = &model["status"]["conditions"][0];
        assert_eq!(
            condition["message"], "n1: the engine has lost events",
            "{condition:#}"
        );
        cluster.wait(POLICY, |policy| {
            ready(policy)["reason"] == "ModelIncomplete"
        });
        return false;
    }
    has_what_was_done(&model, &made);
    cluster.wait(POLICY, |policy| policy["status"]["phase"] == "Completed");
    // The node lets go of what the model has.
    cluster.wait(REPORT, |report| report["status"]["behaviors"].is_null());
    a_policy_made_of_the_model_allows_what_it_has(&cluster, &model);
    true
}

/// Returns true if the last program of the container was recorded, and what the one before made.
fn has_last_act(recorded: &Value, made: &str) -> bool {
    let programs = recorded["bpf"]["executions"].as_array();
    let mut programs = programs.into_iter().flatten();
    let is_rm = |program: &Value| program.as_str().is_some_and(|path| path.ends_with("/rm"));
    let paths = files(recorded);
    let has = |name: &str| paths.contains(&format!("{made}/{name}"));
    programs.any(is_rm) && has("*") && has("new")
}

/// The model has what the container did, and nothing of others.
fn has_what_was_done(model: &Value, made: &str) {
    let recorded = &model["data"]["dynamicResult"];
    let paths = files(recorded);
    for path in [
        "/etc/hostname",
        &format!("{made}/*"),
        &format!("{made}/new"),
    ] {
        assert!(paths.contains(&path.to_owned()), "{path}: {recorded:#}");
    }
    assert!(
        !paths.contains(&"/etc/os-release".to_owned()),
        "{recorded:#}"
    );
    let programs = recorded["bpf"]["executions"]
        .as_array()
        .expect("there are some");
    for name in ["sh", "cat", "touch", "rm", "unshare"] {
        let is_it = |program: &Value| {
            program
                .as_str()
                .is_some_and(|path| path.ends_with(&format!("/{name}")))
        };
        assert!(programs.iter().any(is_it), "{name}: {programs:#?}");
    }
    let calls = recorded["seccomp"]["syscalls"]
        .as_array()
        .expect("there are some");
    for call in ["openat", "execve", "unshare"] {
        assert!(calls.contains(&json!(call)), "{call}: {calls:?}");
    }
    assert!(!calls.contains(&json!("bpf")), "{calls:?}");
    let status = &model["status"];
    assert_eq!(
        (
            &status["desiredNumber"],
            &status["completedNumber"],
            &status["containers"]
        ),
        (&json!(1), &json!(1), &json!(1))
    );
}

/// The model becomes a policy, as the documents say.
fn a_policy_made_of_the_model_allows_what_it_has(cluster: &Cluster, model: &Value) {
    let mut model = model.clone();
    model["apiVersion"] = json!("crd.varmor.org/v1beta1");
    model["kind"] = json!("ArmorProfileModel");
    let file = cluster.path("model.json");
    fs::write(&file, model.to_string()).expect("the folder is ours");
    let output = Command::new(program())
        .args(["policy", "convert"])
        .arg(&file)
        .output()
        .expect("the program was built");
    let text = String::from_utf8_lossy(&output.stdout);
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{problems}");
    let denies = |call: &str| text.lines().any(|line| line.trim() == format!("- {call}"));
    assert!(
        denies("bpf") && !denies("openat") && !denies("unshare"),
        "{text}{problems}"
    );
}

#[test]
fn a_node_that_cannot_observe_makes_the_policy_an_error_with_the_reason() {
    need_root!();
    let mut cluster = Cluster::new();
    for path in ["", "nri.sock"] {
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(cluster.path(path), all).expect("it is ours");
    }
    cluster.start_operator();
    let mut command = cluster.node();
    command.uid(65534).gid(65534);
    cluster.start_agent(command);
    cluster.put_policy(1);
    cluster.wait(PROFILE, Value::is_object);
    let group = Group::of_container("d3");
    // It runs nevertheless, once the agent knows its policy.
    std::thread::sleep(Duration::from_secs(1));
    cluster.create(&container(&group));
    let policy = cluster.wait(POLICY, |policy| ready(policy)["reason"] == "Error");
    assert_eq!(
        (&policy["status"]["phase"], &policy["status"]["ready"]),
        (&json!("Error"), &json!(false))
    );
    let reasons = policy["status"]["coverage"]["reasons"].to_string();
    assert!(reasons.contains("cannot observe containers"), "{policy:#}");
    // There is no model, or one that is not ready.
    let model = cluster.server.get(MODEL);
    assert!(model.is_none_or(|model| model["status"]["ready"] != true));
}
