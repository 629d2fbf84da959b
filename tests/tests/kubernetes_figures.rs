//! Figures of `tollgate node`: one-shot pods whose command is what their policy denies, and how long answers take.
//!
//! `TOLLGATE_NODE_PODS` is the number of pods, and `TOLLGATE_NODE_OUT` the folder for the samples.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use apiserver::Resource;
use apiserver::real::{Programs, RealApiserver, Running, until};
use e2e::cluster::{Containerd, IMAGE};
use e2e::cri::Cri;
use e2e::{Scratch, need_api_server, need_built, need_root, need_runtime, need_slow, program};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::json;

/// The attack is the first that the program of the pod does; what follows lets the test look.
const ATTACK: [&str; 4] = [
    "/bin/busybox",
    "sh",
    "-c",
    "/bin/busybox mkdir /tmp/x; exec /bin/busybox sleep 1000",
];
/// Waits until the attack was tried; success if it has succeeded.
const LOOK: [&str; 4] = [
    "/bin/busybox",
    "sh",
    "-c",
    "until /bin/busybox tr '\\0' ' ' </proc/1/cmdline | /bin/busybox grep -q '^/bin/busybox sleep'; do :; done; \
     /bin/busybox test -d /tmp/x",
];

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

/// Starts an API server with one policy for pods of the name `web`, the operator, and the agent.
fn start(
    scratch: &Scratch,
    programs: &Programs,
    containerd: &Containerd,
) -> (RealApiserver, [Running; 2]) {
    let folder = scratch.path().join("control");
    fs::create_dir(&folder).expect("the folder is ours");
    let key = rcgen::KeyPair::generate().expect("keys can be made");
    let key = [key.serialize_pem(), key.public_key_pem()];
    let server = RealApiserver::start(programs, &folder, [&key[0], &key[1]]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    server
        .install(&["prod", "tollgate"])
        .expect("the definitions are taken");
    let call = json!({ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 33 });
    let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "prod" },
        "spec": { "target": { "kind": "Pod", "name": "web" }, "policy": { "enforcer": "Seccomp",
            "mode": "EnhanceProtect", "enhanceProtect": { "syscallRawRules": [call] } } } });
    let applied = server.client.apply(&of("VarmorPolicy"), &policy);
    applied.expect("the policy is right");
    let mut operator = Command::new(program().with_file_name("tollgate-operator"));
    operator.args(["run", "--namespace", "tollgate", "--name", "one"]);
    operator.args(server.options());
    let operator = Running::start(operator, &folder.join("operator.log")).expect("it was built");
    let at = ObjectKey {
        namespace: "prod".to_owned(),
        name: "varmor-prod-web".to_owned(),
    };
    until(|| {
        let profile = server.client.get(&of("ArmorProfile"), &at);
        profile.map_err(|error| error.to_string())
    })
    .expect("the operator compiles it");
    let mut agent = Command::new(program());
    let path = |name: &str| scratch.path().join(name);
    agent.args([
        "node",
        "--name",
        "n1",
        "--namespace",
        "tollgate",
        "--listen",
        "127.0.0.1:19580",
    ]);
    agent.arg("--state").arg(path("agent"));
    agent.arg("--nri-socket").arg(containerd.nri());
    agent.arg("--policies").arg(path("policies"));
    agent.arg("--runtime-state").arg(path("runtime"));
    agent.args(server.options());
    let log = path("agent.log");
    let agent = Running::start(agent, &log).expect("it was built");
    until(|| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let is_connected = log.contains("connected to the container runtime");
        is_connected.then_some(()).ok_or(log)
    })
    .expect("the agent connects");
    (server, [operator, agent])
}

/// A pod whose command was the attack.
struct Tried {
    succeeded: bool,
    /// Milliseconds until its program ran.
    took: f64,
    /// How often its container was refused before.
    refusals: usize,
}

/// Runs a pod whose command is the attack.
fn attack(cri: &mut Cri, name: &str) -> Tried {
    let pod = cri.run_pod(name, "runc", &[]).expect("pods run");
    let mut begin = Instant::now();
    let mut refusals = 0;
    let container = loop {
        match cri.run_container(&pod, IMAGE, &ATTACK) {
            Ok(container) => break container,
            // The kubelet tries again, too: a policy is on its way, or the agent has missed its deadline.
            Err(error) => {
                let is_expected = error.contains("not here yet") || error.contains("overloaded");
                assert!(is_expected, "{error}");
                refusals += 1;
                begin = Instant::now();
            }
        }
    };
    let took = begin.elapsed().as_secs_f64() * 1000.0;
    let looked = cri.exec(&container, &LOOK).expect("the container runs");
    cri.remove_pod(&pod).expect("the pod runs");
    Tried {
        succeeded: looked.code == 0,
        took,
        refusals,
    }
}

fn metrics() -> String {
    let mut command = Command::new("curl");
    command.args(["-sf", "http://127.0.0.1:19580/metrics"]);
    let done = command.output().expect("curl is installed");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn no_attack_of_a_one_shot_pod_succeeds() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let count = std::env::var("TOLLGATE_NODE_PODS").ok();
    let count: usize = count.map_or(20, |count| count.parse().expect("it is a number"));
    let scratch = Scratch::new();
    let containerd = Containerd::start(&scratch);
    let (_server, _programs) = start(&scratch, &programs, &containerd);
    let mut cri = Cri::connect(&containerd.cri());
    let mut samples = Vec::new();
    let mut twins = Vec::new();
    let mut refusals = 0;
    for index in 0..count {
        let tried = attack(&mut cri, "web");
        assert!(!tried.succeeded, "pod {index}");
        samples.push(tried.took);
        refusals += tried.refusals;
        if index % 5 == 0 {
            let tried = attack(&mut cri, "other");
            assert!(tried.succeeded, "the twin of pod {index}");
            twins.push(tried.took);
            refusals += tried.refusals;
        }
    }
    let metrics = metrics();
    let answers: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("tollgate_node_answer_microseconds_"))
        .collect();
    assert!(!answers.is_empty(), "{metrics}");
    if let Some(folder) = std::env::var_os("TOLLGATE_NODE_OUT") {
        let samples = json!({
            "pods": count,
            "attacks_that_succeeded": 0,
            "attacks_of_twins_that_succeeded": twins.len(),
            "refused_and_tried_again": refusals,
            "create_and_start_ms": samples,
            "create_and_start_ms_without_policy": twins,
            "answers": answers,
        });
        let file = Path::new(&folder).join("samples.json");
        fs::write(file, format!("{samples:#}\n")).expect("the folder exists");
    }
}
