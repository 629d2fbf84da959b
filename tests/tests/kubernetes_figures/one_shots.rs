//! Containers whose first and only program is what their policy denies, and a hundred starts at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::IMAGE;
use e2e::cluster::node::{EDOM, Node, no_mkdir, policy};
use e2e::cri::{Cri, RunningPod};
use e2e::{need_api_server, need_built, need_root, need_runtime, need_slow};
use serde_json::{Value, json};

use super::{METRICS, answers, publish, repetitions, summary, within};

/// The attack. It is the only thing that the program does: its exit code says whether it has succeeded.
const ATTACK: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];
/// Containers of a pod, one after the other.
const CONTAINERS: usize = 20;
/// Of so many pods one has no policy.
const TWIN: usize = 10;
/// Containers that start at once.
const BURST: usize = 100;

/// A policy for all pods with a label.
fn start(programs: &apiserver::real::Programs) -> Node {
    let node = Node::start_with(programs, &["--listen", METRICS]);
    let target = json!({ "kind": "Pod", "selector": { "matchLabels": { "app": "web" } } });
    let protect = json!({ "syscallRawRules": [no_mkdir(EDOM)] });
    node.apply(&policy("web", &target, "Seccomp", &protect));
    node.seen("web");
    node
}

/// Milliseconds since.
fn since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1000.0
}

/// What was found of one container.
struct Tried {
    succeeded: bool,
    created: f64,
    started: f64,
}

fn wait_for_exit(cri: &mut Cri, id: &str) -> i32 {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(code) = cri.exit_code(id).expect("the container is known") {
            return code;
        }
        assert!(Instant::now() < end, "{id} does not end");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Creates a container of this name, again where it is refused for a moment, as the kubelet does.
fn create(cri: &mut Cri, pod: &RunningPod, name: &str, refused: &AtomicUsize) -> (String, f64) {
    loop {
        let begin = Instant::now();
        match cri.create_container(pod, name, IMAGE, &ATTACK) {
            Ok(id) => return (id, since(begin)),
            Err(error) => {
                let is_expected = error.contains("not here yet") || error.contains("overloaded");
                assert!(is_expected, "{error}");
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn attack(cri: &mut Cri, pod: &RunningPod, name: &str, refused: &AtomicUsize) -> Tried {
    let (id, created) = create(cri, pod, name, refused);
    let begin = Instant::now();
    cri.start_container(&id).expect("it is confined");
    let started = since(begin);
    let code = wait_for_exit(cri, &id);
    assert!(code == 0 || code == 1, "mkdir ends with {code}");
    Tried {
        succeeded: code == 0,
        created,
        started,
    }
}

/// Runs the containers of a pod, which has a policy or none.
fn run_pod(cri: &mut Cri, number: usize, refused: &AtomicUsize) -> (bool, Vec<Tried>) {
    let is_twin = number.is_multiple_of(TWIN);
    let label = if is_twin { "none" } else { "web" };
    let name = format!("pod{number}");
    let pod = cri.run_pod_with(&name, "runc", &[], &[("app", label)]);
    let pod = pod.expect("pods run");
    let names = (0..CONTAINERS).map(|container| format!("app{container}"));
    let tried = names
        .map(|name| attack(cri, &pod, &name, refused))
        .collect();
    cri.remove_pod(&pod).expect("the pod runs");
    (is_twin, tried)
}

#[test]
fn no_attack_of_a_one_shot_container_succeeds() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let pods = repetitions("TOLLGATE_NODE_PODS", 4).div_ceil(CONTAINERS);
    let pods = pods + pods.div_ceil(TWIN);
    let node = start(&programs);
    let before = answers();
    let next = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let lane = || {
        let mut cri = Cri::connect(&node.runtime_socket());
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < pods);
        while let Some(number) = take() {
            let done = run_pod(&mut cri, number, &refused);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push(done);
        }
    };
    thread::scope(|scope| {
        let lanes = [scope.spawn(lane), scope.spawn(lane)];
        lanes.into_iter().for_each(|lane| {
            let ended = lane.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    report(&found, &before, &refused);
}

fn report(found: &[(bool, Vec<Tried>)], before: &[String], refused: &AtomicUsize) {
    let of = |is_twin: bool| {
        let pods = found.iter().filter(move |(twin, _)| *twin == is_twin);
        pods.flat_map(|(_, tried)| tried).collect::<Vec<_>>()
    };
    let (confined, twins) = (of(false), of(true));
    let succeeded = |tried: &[&Tried]| tried.iter().filter(|one| one.succeeded).count();
    let times = |tried: &[&Tried], time: fn(&Tried) -> f64| -> Vec<f64> {
        tried.iter().map(|one| time(one)).collect()
    };
    let after = answers();
    let samples = json!({
        "containers": confined.len(),
        "containers_of_a_pod": CONTAINERS,
        "attacks_that_succeeded": succeeded(&confined),
        "containers_without_policy": twins.len(),
        "attacks_without_policy_that_succeeded": succeeded(&twins),
        "refused_and_tried_again": refused.load(Ordering::Relaxed),
        "create_ms": times(&confined, |one| one.created),
        "start_ms": times(&confined, |one| one.started),
        "create_ms_without_policy": times(&twins, |one| one.created),
        "start_ms_without_policy": times(&twins, |one| one.started),
        "answers": after,
    });
    publish("one-shots.json", &samples);
    println!(
        "attacks that succeeded: {} of {} with the policy, {} of {} without",
        succeeded(&confined),
        confined.len(),
        succeeded(&twins),
        twins.len()
    );
    for (what, samples) in [
        ("start", times(&confined, |one| one.started)),
        ("start without policy", times(&twins, |one| one.started)),
    ] {
        println!("{what}: {}", summary(&samples));
    }
    for event in ["create", "start"] {
        let limits = [50, 99].map(|part| within(before, &after, event, part));
        println!("answers about {event}, microseconds (50 %, 99 %): {limits:?}");
    }
    assert_eq!(succeeded(&confined), 0);
    assert_eq!(succeeded(&twins), twins.len());
}

/// Creates containers, starts them at once, and returns how long each start took.
fn burst(node: &Node, pods: &[RunningPod], round: usize) -> Vec<f64> {
    let refused = AtomicUsize::new(0);
    let mut cri = Cri::connect(&node.runtime_socket());
    let each = BURST / pods.len();
    let mut created = Vec::new();
    for pod in pods {
        for number in 0..each {
            let name = format!("app{round}-{number}");
            created.push(create(&mut cri, pod, &name, &refused).0);
        }
    }
    let barrier = Barrier::new(created.len());
    let took = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for id in &created {
            scope.spawn(|| {
                let mut cri = Cri::connect(&node.runtime_socket());
                barrier.wait();
                let begin = Instant::now();
                cri.start_container(id).expect("it is confined");
                let mut took = took.lock().unwrap_or_else(PoisonError::into_inner);
                took.push(since(begin));
            });
        }
    });
    for id in &created {
        assert_eq!(wait_for_exit(&mut cri, id), 1, "the attack fails");
    }
    took.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_hundred_starts_at_once_are_answered_in_time() {
    need_slow!();
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let programs = need_api_server!();
    let rounds = repetitions("TOLLGATE_NODE_BURSTS", 1);
    let node = start(&programs);
    let mut cri = Cri::connect(&node.runtime_socket());
    let before = answers();
    let mut samples: Vec<Value> = Vec::new();
    for round in 0..rounds {
        let pods: Vec<RunningPod> = (0..5)
            .map(|number| {
                let name = format!("burst{round}-{number}");
                let pod = cri.run_pod_with(&name, "runc", &[], &[("app", "web")]);
                pod.expect("pods run")
            })
            .collect();
        let took = burst(&node, &pods, round);
        println!("round {round}: starts: {}", summary(&took));
        samples.push(json!(took));
        for pod in &pods {
            cri.remove_pod(pod).expect("the pod runs");
        }
    }
    let after = answers();
    let limits = [50, 99, 100].map(|part| within(&before, &after, "start", part));
    println!("answers about start, microseconds (50 %, 99 %, all): {limits:?}");
    publish(
        "bursts.json",
        &json!({ "at_once": BURST, "start_ms": samples, "answers_before": before, "answers": after }),
    );
}
