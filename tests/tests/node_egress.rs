//! `tollgate node --bpf` on a kernel without BPF LSM: egress is decided at the control groups of containers.

use std::process::Output;
use std::time::{Duration, Instant};

use e2e::Guest;
use e2e::bpf_node::{Node, Started, inside, policy, policy_of, run_inside_with};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(300);
const LSM: &str = "lsm=landlock,lockdown,yama,apparmor";
/// How long a change may take in an emulated machine.
const CHANGE: Duration = Duration::from_secs(60);
/// Nobody listens at these ports: who may connect is refused by the kernel of the other side.
const DENIED: &str = "7001";
const OTHER: &str = "7002";
/// The process leaves the control groups of the host out of its mounts, and drops capabilities, as a runtime does.
const OWN_GROUPS: &str = "busybox umount -l /sys/fs/cgroup; exec setpriv --bounding-set=-sys_admin,-bpf \
    sh -c 'echo made; read _ < $0; exec sleep 100000'";

/// A policy that denies one port of the loopback.
fn denying(port: &str) -> String {
    let port: u16 = port.parse().expect("it is a port");
    let rule =
        json!({ "qualifiers": ["deny"], "cidr": "127.0.0.0/8", "ports": [{ "port": port }] });
    policy_of(&json!({ "privileged": true,
        "bpfRawRules": { "network": { "egress": { "toDestinations": [rule] } } } }))
}

fn connect(container: &Started, port: &str) -> Output {
    container.exec(&["busybox", "nc", "-w", "2", "127.0.0.1", port])
}

fn is_denied(container: &Started, port: &str) -> bool {
    let said = connect(container, port);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let is_denied = text.contains("Operation not permitted");
    assert!(is_denied || text.contains("refused"), "{port}: {said:?}");
    is_denied
}

#[test]
fn without_bpf_lsm_egress_is_denied_and_other_rules_are_gaps() {
    if inside().is_some() {
        return confine();
    }
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let test = "without_bpf_lsm_egress_is_denied_and_other_rules_are_gaps";
    let _ = run_inside_with(Guest::new().program("setpriv"), LSM, test, LIMIT);
}

fn confine() {
    let up = std::process::Command::new("busybox")
        .args(["ip", "link", "set", "lo", "up"])
        .status();
    assert!(up.expect("busybox").success());
    let mut node = Node::new(&denying(DENIED), &[]);
    node.accept(&[]);
    assert!(
        node.log().contains("BPF enforces rules about egress alone"),
        "{}",
        node.log()
    );
    let web = running(&mut node, "web");
    let twin = running(&mut node, "twin");
    assert!(is_denied(&web, DENIED) && !is_denied(&web, OTHER));
    assert!(!is_denied(&twin, DENIED), "the twin has no policy");
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    node.kill_agent();
    assert!(is_denied(&web, DENIED), "without an agent");
    node.start_agent();
    node.accept(&[web.running()]);
    node.reports(|profile| profile["containers"] == 1 && profile["enforced"] == 1);
    a_change_is_in_force_in_the_running_container(&node, &web);
    rules_about_files_are_refused(&mut node);
    who_sees_other_groups_is_refused(&mut node);
}

/// A container whose first program runs.
fn running(node: &mut Node, name: &str) -> Started {
    let made = node.make_mounted(name, OWN_GROUPS);
    node.start(name, &made);
    made.begin();
    made
}

fn a_change_is_in_force_in_the_running_container(node: &Node, web: &Started) {
    node.put("web", &denying(OTHER));
    let begin = Instant::now();
    while !is_denied(web, OTHER) {
        assert!(begin.elapsed() < CHANGE, "{}", node.log());
    }
    assert!(!is_denied(web, DENIED));
}

fn rules_about_files_are_refused(node: &mut Node) {
    node.put("files", &policy(&["/etc/secret"], false));
    let why = node.refused("files");
    assert!(why.contains("needs BPF LSM"), "{why}");
}

fn who_sees_other_groups_is_refused(node: &mut Node) {
    let made = node.make_mounted("web", "echo made; read _ <");
    let why = node.refused_start("web", &made);
    assert!(why.contains("could leave its own"), "{why}");
}
