//! `tollgate node --bpf` with 1,000 confined containers on one node, under one policy and under twenty: what the kernel and the
//! agent need, and how long the start of a container takes.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_TEST_RESULTS=FOLDER cargo test -p e2e --test node_bpf_scale -- --nocapture
//!
//! writes the samples to files in FOLDER.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::Guest;
use e2e::bpf_node::{
    Node, OTHER, READ, SECRET, Started, inside, policy, run_inside, samples, write_files,
};
use libbpf_rs::MapHandle;
use libbpf_rs::query::MapInfoIter;

const MACHINE: Duration = Duration::from_secs(3000);
const CONTAINERS: usize = 1000;
const POLICIES: usize = 20;
/// Numbers of containers after which memory is measured.
const STEPS: [usize; 7] = [0, 1, 10, 100, 250, 500, 1000];
/// A file that each container has of its own, as the kubelet mounts it.
const HOSTS: &str = "/etc/hosts";

#[test]
fn a_thousand_containers_share_the_table_of_their_policy() {
    e2e::need_slow!();
    in_machine(
        "a_thousand_containers_share_the_table_of_their_policy",
        "one-policy",
        || run("one policy", &[Some(0)]),
    );
}

#[test]
fn a_thousand_containers_share_the_tables_of_twenty_policies() {
    e2e::need_slow!();
    in_machine(
        "a_thousand_containers_share_the_tables_of_twenty_policies",
        "twenty-policies",
        || {
            let policies: Vec<Option<usize>> = (0..POLICIES).map(Some).collect();
            run("twenty policies", &policies);
        },
    );
}

/// What the same containers need without a policy.
#[test]
fn a_thousand_containers_without_a_policy() {
    e2e::need_slow!();
    in_machine(
        "a_thousand_containers_without_a_policy",
        "no-policy",
        || run("no policy", &[None]),
    );
}

fn in_machine(test: &str, file: &str, part: impl Fn()) {
    if inside().is_some() {
        write_files();
        fs::write(HOSTS, "127.0.0.1 localhost\n").expect("the root is writable");
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
        println!("sample\tmachine\t0\tkernel\t{}", release.trim());
        return part();
    }
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let printed = run_inside(Guest::new().memory("4096M"), test, MACHINE);
    let samples: String = samples(&printed).map(|line| format!("{line}\n")).collect();
    print!("{samples}");
    if let Some(folder) = std::env::var_os("TOLLGATE_TEST_RESULTS") {
        let text = format!("run\tcontainers\twhat\tvalue\n{samples}");
        let path = Path::new(&folder).join(format!("{file}.tsv"));
        fs::write(path, text).expect("the folder is writable");
    }
}

fn text(number: usize, more: &[&str]) -> String {
    let own = format!("/etc/own-{number}");
    let files = [&[SECRET, HOSTS, &own], more].concat();
    policy(&files, true)
}

fn pod_of(policy: Option<usize>) -> String {
    policy.map_or("plain-x".to_owned(), |number| format!("pod-{number}-x"))
}

/// What a container does before its program: the mounts that a kubelet has a runtime make.
fn script(number: usize) -> String {
    let uuid = format!("{number:08x}-0000-4000-8000-00000000000a");
    let folder = format!("/var/lib/kubelet/pods/{uuid}");
    fs::create_dir_all(&folder).expect("the root is writable");
    fs::write(format!("{folder}/etc-hosts"), "127.0.0.1 localhost\n")
        .expect("the root is writable");
    format!(
        "busybox mount -t tmpfs shm /dev/shm; busybox mount --bind {folder}/etc-hosts {HOSTS}; echo made; read _ <"
    )
}

fn run(name: &str, policies: &[Option<usize>]) {
    let mut node = Node::new(&policy(&[SECRET], false), &[]);
    for number in policies.iter().flatten() {
        node.put(&pod_of(Some(*number)), &text(*number, &[]));
    }
    node.accept(&[]);
    let mut containers: Vec<Started> = Vec::new();
    memory(name, 0, &node);
    for number in 0..CONTAINERS {
        let pod = pod_of(policies[number % policies.len()]);
        let container = start(&mut node, name, &pod, number);
        container.open_gate();
        containers.push(container);
        if STEPS.contains(&containers.len()) {
            memory(name, containers.len(), &node);
        }
    }
    if policies != [None] {
        let tables = count("policy");
        assert_eq!(tables, policies.len(), "tables of policies");
        for at in [0, CONTAINERS / 2, CONTAINERS - 1] {
            assert!(!containers[at].exec(&READ).status.success(), "{at}");
            assert!(
                !containers[at].exec(&["cat", HOSTS]).status.success(),
                "{at}"
            );
            assert!(
                containers[at].exec(&["cat", OTHER]).status.success(),
                "{at}"
            );
        }
        changed(name, policies, &node, &containers);
    }
    drop(containers);
    let end = Instant::now() + Duration::from_secs(120);
    while count("policy") > 0 {
        assert!(
            Instant::now() < end,
            "tables of containers that have ended stay: {}",
            node.log()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    memory(name, 0, &node);
}

/// Starts a container. One that is refused, because the machine is slow, is made again, as the kubelet does.
fn start(node: &mut Node, run: &str, pod: &str, number: usize) -> Started {
    loop {
        let container = node.make_mounted(pod, &script(number));
        match node.try_start(pod, &container) {
            Ok(took) => {
                let (count, took) = (number + 1, took.as_micros());
                println!("sample\t{run}\t{count}\tStartContainer us\t{took}");
                return container;
            }
            Err(refused) => println!("sample\t{run}\t{}\trefused: {refused}\t1", number + 1),
        }
    }
}

/// Changes all policies, and measures until the last container is reported with the new version.
fn changed(name: &str, policies: &[Option<usize>], node: &Node, containers: &[Started]) {
    let begin = Instant::now();
    let mut hashes = Vec::new();
    for number in policies.iter().flatten() {
        let text = text(*number, &[OTHER]);
        hashes.push(kinds::policy_hash(&text));
        node.put(&pod_of(Some(*number)), &text);
    }
    let last = &containers[CONTAINERS - 1];
    while last.exec(&["cat", OTHER]).status.success() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", node.log());
    }
    println!(
        "sample\t{name}\t{CONTAINERS}\tchange enforced in the last container, at most us\t{}",
        begin.elapsed().as_micros()
    );
    let of_each = (CONTAINERS / policies.len()) as u64;
    for hash in &hashes {
        node.reports(|profile| profile["hash"] == **hash && profile["enforced"] == of_each);
    }
    println!(
        "sample\t{name}\t{CONTAINERS}\tchange reported us\t{}",
        begin.elapsed().as_micros()
    );
    for container in containers.iter().step_by(100) {
        assert!(!container.exec(&["cat", OTHER]).status.success());
    }
}

/// Maps of this name in the kernel.
fn count(name: &str) -> usize {
    let maps = MapInfoIter::default();
    maps.filter(|map| map.name.to_str() == Some(name)).count()
}

fn memory(run: &str, containers: usize, node: &Node) {
    let mut of_names: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for map in MapInfoIter::default() {
        let Ok(open) = MapHandle::from_map_id(map.id) else {
            // It is gone since.
            continue;
        };
        let path = format!("/proc/self/fdinfo/{}", open.as_fd().as_raw_fd());
        let info = fs::read_to_string(path).expect("procfs");
        let bytes = info.lines().find_map(|line| line.strip_prefix("memlock:"));
        let bytes: u64 = bytes
            .expect("maps have it")
            .trim()
            .parse()
            .expect("a number");
        let sum = of_names
            .entry(map.name.to_string_lossy().into_owned())
            .or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    let total: u64 = of_names.values().map(|(_, bytes)| bytes).sum();
    println!("sample\t{run}\t{containers}\tmaps B (memlock)\t{total}");
    for (name, (count, bytes)) in of_names {
        println!("sample\t{run}\t{containers}\tmap {name}: {count}, B\t{bytes}");
    }
    let info = fs::read_to_string("/proc/meminfo").expect("procfs");
    for name in [
        "MemAvailable",
        "Slab",
        "VmallocUsed",
        "Percpu",
        "KernelStack",
        "PageTables",
    ] {
        println!(
            "sample\t{run}\t{containers}\t{name} KiB\t{}",
            kilobytes(&info, name)
        );
    }
    let agent = node.agent.as_ref().expect("an agent lives").pid();
    let status = fs::read_to_string(format!("/proc/{agent}/status")).expect("it lives");
    for name in ["VmRSS", "RssAnon"] {
        println!(
            "sample\t{run}\t{containers}\tagent {name} KiB\t{}",
            kilobytes(&status, name)
        );
    }
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .expect("the kernel has it")
        .parse()
        .expect("a number")
}
