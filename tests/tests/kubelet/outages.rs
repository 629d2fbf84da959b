//! Parts of the cluster end, and what is confined stays confined.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::whole::Cluster;
use e2e::need_cluster;
use serde_json::json;

use super::{
    DENIED, INSTALLATION, PROD, apply, exec, log, namespace, no_mkdir, pod, policy, protect, ready,
};

/// The attack, again and again.
const LOOP: &str =
    "while :; do /bin/busybox mkdir /tmp/x && echo made; /bin/busybox sleep 0.2; done";
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];

/// Logs of the containers that `app` of a pod has had, by number, without the API server. A kubelet keeps the last two.
fn logs_on_node(cluster: &Cluster, pod: &str) -> BTreeMap<String, String> {
    let all = fs::read_dir(cluster.node("var/log/pods")).expect("the kubelet makes it");
    let prefix = format!("{PROD}_{pod}_");
    let mut own = all
        .flatten()
        .filter(|one| one.file_name().to_string_lossy().starts_with(&prefix));
    let folder = own.next().expect("the pod runs").path().join("app");
    let logs = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), text)
    };
    logs.map(read).collect()
}

/// Each line of a log says that the attack was denied, and there is one.
fn says_denied(log: &str) -> bool {
    let mut lines = log.lines().peekable();
    lines.peek().is_some() && lines.all(|line| line.ends_with(DENIED.trim_end()))
}

/// Kills the first process of a container of a pod.
fn kill(cluster: &Cluster, namespace: &str, pod: &str, container: &str) {
    let filter = format!(
        "labels.\"io.kubernetes.pod.name\"=={pod},labels.\"io.kubernetes.container.name\"=={container},\
         labels.\"io.kubernetes.pod.namespace\"=={namespace}"
    );
    let ids = cluster.on_node(&[
        "ctr",
        "-n",
        "k8s.io",
        "containers",
        "list",
        "--quiet",
        &filter,
    ]);
    let tasks = cluster.on_node(&["ctr", "-n", "k8s.io", "tasks", "list"]);
    let runs = |id: &&str| {
        tasks
            .lines()
            .any(|line| line.contains(*id) && line.contains("RUNNING"))
    };
    let id = ids
        .lines()
        .find(runs)
        .unwrap_or_else(|| panic!("{pod} does not run: {ids} {tasks}"));
    cluster.on_node(&[
        "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id,
    ]);
}

/// Waits until a pod has had so many containers, of which the last one was denied, as all others were.
fn restarts_confined(cluster: &Cluster, pod: &str, count: usize) {
    cluster.until(
        &format!("{pod} has container {count}, and it is confined"),
        || {
            let logs = logs_on_node(cluster, pod);
            assert!(
                !logs.values().any(|log| log.contains("made")),
                "{pod}: {logs:?}"
            );
            let last = format!("{}.log", count - 1);
            let is_last = logs.keys().next_back() == Some(&last);
            match is_last && says_denied(&logs[&last]) {
                true => Ok(()),
                false => Err(format!("{logs:?}")),
            }
        },
    );
}

fn agent_pod(cluster: &Cluster) -> (String, u64) {
    let found = cluster.get(
        INSTALLATION,
        &["pods", "-l", "app.kubernetes.io/name=tollgate-node"],
    );
    let pod = &found["items"][0];
    let name = pod["metadata"]["name"]
        .as_str()
        .expect("the agent has a pod");
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    (name.to_owned(), restarts.unwrap_or_default())
}

fn start(programs: &apiserver::real::Programs) -> Cluster {
    let cluster = Cluster::start(programs);
    apply(&cluster, &namespace(PROD));
    protect(&cluster, "web", &no_mkdir());
    apply(&cluster, &pod(PROD, "web", LOOP));
    log(&cluster, PROD, "web", "app");
    cluster
}

/// The status of the policy of `web` tells the truth again.
fn is_counted(cluster: &Cluster) {
    cluster.until("the policy is ready and counts its container", || {
        let status = cluster.get(PROD, &["varmorpolicy", "web"])["status"].clone();
        let ready = status["conditions"].as_array().into_iter().flatten();
        let is_ready = ready
            .into_iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True");
        let covered = &status["coverage"];
        match is_ready && covered["containers"] == 1 && covered["enforced"] == 1 {
            true => Ok(()),
            false => Err(status.to_string()),
        }
    });
}

#[test]
fn containers_that_the_kubelet_restarts_without_an_api_server_are_confined() {
    let programs = need_cluster!();
    let mut cluster = start(&programs);
    let (agent, _) = agent_pod(&cluster);
    cluster.server.stop().expect("it runs");
    kill(&cluster, PROD, "web", "app");
    restarts_confined(&cluster, "web", 2);
    // The next agent knows the policy from its disk.
    kill(&cluster, INSTALLATION, &agent, "agent");
    kill(&cluster, PROD, "web", "app");
    restarts_confined(&cluster, "web", 3);
    cluster.server.restart().expect("it starts");
    is_counted(&cluster);
    cluster.until("the agent was started again once", || {
        match agent_pod(&cluster) {
            (_, 1) => Ok(()),
            (_, restarts) => Err(restarts.to_string()),
        }
    });
}

#[test]
fn while_the_agent_is_away_nothing_runs_unconfined() {
    let programs = need_cluster!();
    let cluster = start(&programs);
    let (agent, before) = agent_pod(&cluster);
    let mut longest = Duration::ZERO;
    for round in 1..=3 {
        let begin = Instant::now();
        kill(&cluster, INSTALLATION, &agent, "agent");
        let denied = exec(&cluster, "web", &MKDIR);
        assert!(denied.starts_with(DENIED), "{denied}");
        // Created while no agent runs: it waits for one.
        let name = format!("late{round}");
        let target = json!({ "kind": "Pod", "name": name });
        apply(&cluster, &policy(&name, &target, &no_mkdir()));
        apply(&cluster, &pod(PROD, &name, LOOP));
        cluster.until("the new pod is confined", || {
            let text = cluster.kubectl(&["logs", "-n", PROD, &name])?;
            match says_denied(&text) {
                true => Ok(()),
                false => Err(text),
            }
        });
        ready(&cluster, &name);
        longest = longest.max(begin.elapsed());
    }
    println!(
        "3 deaths of the agent: the new pod was confined and its policy ready after {longest:?} (longest)"
    );
    let (same, after) = agent_pod(&cluster);
    assert_eq!((&same, after), (&agent, before + 3), "{}", cluster.state());
    restarts_confined(&cluster, "web", 1);
    is_counted(&cluster);
}

#[test]
fn a_kubelet_that_ends_and_comes_back_changes_nothing() {
    let programs = need_cluster!();
    let mut cluster = start(&programs);
    cluster.kill_kubelet();
    let all = || -> String { logs_on_node(&cluster, "web").into_values().collect() };
    let before = all().len();
    thread::sleep(Duration::from_secs(1));
    let logs = all();
    assert!(logs.len() > before, "the container runs on");
    assert!(says_denied(&logs), "{logs}");
    // A container that ends meanwhile is made again by the next kubelet.
    kill(&cluster, PROD, "web", "app");
    cluster.start_kubelet();
    restarts_confined(&cluster, "web", 2);
    protect(&cluster, "next", &no_mkdir());
    apply(&cluster, &pod(PROD, "next", super::ATTACK));
    assert_eq!(log(&cluster, PROD, "next", "app"), DENIED);
    is_counted(&cluster);
}
