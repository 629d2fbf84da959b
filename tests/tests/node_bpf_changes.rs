//! `tollgate node --bpf` while containers run: their policies change, their violations are reported, and agents come and go
//! between the creation and the start of a container.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use e2e::Guest;
use e2e::bpf_node::{
    LIMIT, Node, OTHER, READ, SECRET, Started, inside, is_confined, pod, policy, run_inside,
    samples, write_files,
};
use serde_json::Value;
use sys::time::{Clock, now_ns};

/// Time limit of a machine.
const MACHINE: Duration = Duration::from_secs(900);
/// Changes of a policy that are measured, and those of which only the last counts: in the usual run, and in the slow one.
const CHANGES: [usize; 2] = [4, 20];
const QUICK_CHANGES: [usize; 2] = [20, 100];
/// Tries to read the secret that each probe makes at least meanwhile.
const TRIES: [u64; 2] = [100, 500];
/// Time between two tries of a probe.
const PAUSE: Duration = Duration::from_millis(1);
/// Folder in which a probe says what it has found.
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";
const CHANGE_TEST: &str = "a_changed_policy_is_in_force_in_running_containers_without_a_pause";

fn in_machine(test: &str, part: fn()) {
    match inside().as_deref() {
        Some("probe") => return probe(),
        Some(_) => return part(),
        None => {}
    }
    if let Some(missing) = Guest::missing() {
        e2e::skip!("has no machine to emulate", || Ok(missing.clone()));
    }
    let printed = run_inside(Guest::new(), test, MACHINE);
    // What was measured.
    for sample in samples(&printed) {
        println!("sample\t{sample}");
    }
}

/// Tries to read both files until it is told to stop. Says when what becomes of the other file changes, and how often it has
/// tried to read the secret, and with success.
fn probe() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("it is set"));
    let mut log = File::create(folder.join("log")).expect("a new folder");
    let (mut before, mut tries, mut successes) = (None, 0_u64, 0_u64);
    while tries % 64 != 0 || !folder.join("stop").exists() {
        tries += 1;
        successes += u64::from(fs::read(SECRET).is_ok());
        let is_denied = fs::read(OTHER).is_err();
        if before != Some(is_denied) {
            let now = now_ns(Clock::Boot);
            writeln!(log, "{now} {is_denied}").expect("the folder is writable");
            before = Some(is_denied);
        }
        // The machine has one processor.
        std::thread::sleep(PAUSE);
    }
    let sum = format!("{tries} {successes}");
    fs::write(folder.join("sum"), sum).expect("the folder is writable");
}

/// A probe that runs in a container.
struct Probe {
    folder: PathBuf,
    process: Option<Child>,
}

impl Probe {
    fn words(folder: &Path) -> [String; 6] {
        let folder = format!("{FOLDER}={}", folder.display());
        let own = std::env::current_exe().expect("it runs");
        let own = own.display().to_string();
        let words = [
            "env",
            "TOLLGATE_TEST_INSIDE=probe",
            &folder,
            &own,
            "--exact",
            CHANGE_TEST,
        ];
        words.map(str::to_owned)
    }

    fn folder(node: &Node, name: &str) -> PathBuf {
        let folder = node.scratch.path().join(name);
        fs::create_dir(&folder).expect("a new folder");
        folder
    }

    /// The first program of a container.
    fn first(node: &mut Node, name: &str) -> (Self, Started) {
        let folder = Self::folder(node, name);
        let program = format!("exec {}", Self::words(&folder).join(" "));
        let container = node.make_with("web", &program);
        container.open_gate();
        let probe = Self {
            folder,
            process: None,
        };
        probe.wait(1);
        (probe, container)
    }

    /// A program of a session in a container.
    fn session(node: &Node, container: &Started, name: &str) -> Self {
        let folder = Self::folder(node, name);
        let words = Self::words(&folder);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let process = container.session(&words).spawn().expect("nsenter");
        let probe = Self {
            folder,
            process: Some(process),
        };
        probe.wait(1);
        probe
    }

    /// Waits until the other file has been found in so many states, one after the other. Returns when the last one was found.
    fn wait(&self, count: usize) -> u64 {
        let end = Instant::now() + LIMIT;
        loop {
            // There is none yet.
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_else(|_| String::new());
            if let Some(line) = log.lines().nth(count - 1)
                && log.ends_with('\n')
            {
                let (time, _) = line.split_once(' ').expect("two words");
                return time.parse().expect("a number");
            }
            assert!(Instant::now() < end, "{count}: {log}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn states(&self) -> usize {
        let log = fs::read_to_string(self.folder.join("log")).expect("it began");
        log.lines().count()
    }

    /// Ends it. Returns how often it has tried to read the secret, and with success.
    fn end(mut self) -> (u64, u64) {
        fs::write(self.folder.join("stop"), "").expect("the folder is writable");
        let end = Instant::now() + LIMIT;
        let sum = self.folder.join("sum");
        let numbers = loop {
            if let Ok(sum) = fs::read_to_string(&sum)
                && let Some((tries, successes)) = sum.split_once(' ')
                && let (Ok(tries), Ok(successes)) = (tries.parse(), successes.parse())
            {
                break (tries, successes);
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        if let Some(process) = &mut self.process {
            process.wait().expect("our child");
        }
        numbers
    }
}

#[test]
fn a_changed_policy_is_in_force_in_running_containers_without_a_pause() {
    in_machine(CHANGE_TEST, change);
}

fn change() {
    write_files();
    let (one, both) = (policy(&[SECRET], false), policy(&[SECRET, OTHER], false));
    let mut node = Node::new(&one, &[]);
    node.accept(&[]);
    let (first, container) = Probe::first(&mut node, "first");
    let session = Probe::session(&node, &container, "session");
    let (second, other_container) = Probe::first(&mut node, "second");
    let twin = node.make("twin");
    twin.begin();
    let tier = usize::from(testing::slow());
    for change in 0..CHANGES[tier] {
        let (text, count) = match change % 2 {
            0 => (&both, change + 2),
            _ => (&one, change + 2),
        };
        let begin = now_ns(Clock::Boot);
        node.put("web", text);
        let hash = kinds::policy_hash(text);
        let enforced = [&first, &session, &second].map(|probe| probe.wait(count));
        for (name, at) in ["first program", "session", "other container"]
            .iter()
            .zip(enforced)
        {
            println!(
                "sample\tchange\t{name}\t{}",
                at.saturating_sub(begin) / 1000
            );
        }
        node.reports(|profile| profile["hash"] == *hash && profile["enforced"] == 2);
        let reported = now_ns(Clock::Boot) - begin;
        println!("sample\tchange\treported\t{}", reported / 1000);
        let denied = container.exec(&["cat", OTHER]);
        assert_eq!(denied.status.success(), change % 2 == 1, "{denied:?}");
        assert_eq!(
            twin.exec(&READ).stdout,
            b"secret\n",
            "the twin has no policy"
        );
    }
    for change in 0..QUICK_CHANGES[tier] {
        node.put("web", if change % 2 == 0 { &both } else { &one });
        std::thread::sleep(Duration::from_millis(20));
    }
    let hash = kinds::policy_hash(&one);
    node.reports(|profile| profile["hash"] == *hash && profile["enforced"] == 2);
    println!(
        "sample\tquick changes\tseen\t{}",
        first.states() - CHANGES[tier] - 1
    );
    for (name, probe) in [("first", first), ("session", session), ("other", second)] {
        let (tries, successes) = probe.end();
        assert_eq!(successes, 0, "{name}: of {tries}");
        assert!(tries > TRIES[tier], "{name}: {tries}");
        println!("sample\ttries\t{name}\t{tries}");
    }
    drop((container, other_container, twin));
}

#[test]
fn violations_are_reported_with_their_pod_and_every_loss_is_counted() {
    in_machine(
        "violations_are_reported_with_their_pod_and_every_loss_is_counted",
        violations,
    );
}

fn lines(node: &Node) -> Vec<Value> {
    let text = fs::read_to_string(node.violations_log()).expect("the agent has written it");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

/// Waits until so many violations are in the log or lost. Returns both numbers.
fn wait_for_violations(node: &Node, wanted: u64) -> (u64, u64) {
    let end = Instant::now() + 4 * LIMIT;
    loop {
        let lost = node.metric("violations_lost_by_kernel_total");
        let found = fs::read(node.violations_log());
        // There is none yet.
        let found = found.map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count());
        let found = u64::try_from(found).expect("a length");
        if found + lost >= wanted {
            return (found, lost);
        }
        assert!(
            Instant::now() < end,
            "{found} + {lost} of {wanted}: {}",
            node.log()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn violations() {
    write_files();
    let mut node = Node::new(&policy(&[SECRET], true), &["--events"]);
    node.accept(&[]);
    let web = node.make("web");
    web.begin();
    is_confined(|command| web.exec(command), "a session");
    assert_eq!(wait_for_violations(&node, 1), (1, 0));
    let line = lines(&node).remove(0);
    for (pointer, expected) in [
        ("/podName", "web"),
        ("/podNamespace", "demo"),
        ("/podUID", "uid-web"),
        ("/containerName", "app"),
        ("/profileName", "varmor-demo-web"),
        ("/policyName", "web"),
        ("/enforcer", "BPF"),
        ("/action", "DENIED"),
        ("/event/path", SECRET),
        ("/event/errno", "EPERM"),
        ("/event/process", "cat"),
    ] {
        let found = line.pointer(pointer).and_then(Value::as_str);
        assert_eq!(found, Some(expected), "{pointer}: {line:#}");
    }
    let end = Instant::now() + LIMIT;
    while !node.has_event("PolicyViolation", "web") {
        assert!(Instant::now() < end, "no Event: {}", node.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    // What is denied while no agent lives is reported by the next one, and what there is no room for is counted.
    node.kill_agent();
    let loop_ = format!("i=0; while [ $i -lt 2500 ]; do read x < {SECRET}; i=$((i+1)); done");
    let _ = web.exec(&["sh", "-c", &loop_]);
    node.start_agent();
    node.accept(&[web.running()]);
    let (found, lost) = wait_for_violations(&node, 2501);
    assert_eq!(found + lost, 2501, "{found} + {lost}");
    assert!(found > 1000 && lost > 500, "{found} + {lost}");
    let all = lines(&node);
    assert!(
        all.iter().all(|line| line["podName"] == "web"),
        "each has its pod"
    );
    println!("sample\tviolations\treported\t{found}\nsample\tviolations\tlost\t{lost}");
}

#[test]
fn a_container_that_waits_for_its_start_is_confined_by_the_next_agent() {
    in_machine(
        "a_container_that_waits_for_its_start_is_confined_by_the_next_agent",
        waiting,
    );
}

fn waiting() {
    write_files();
    let mut node = Node::new(&policy(&[SECRET], false), &[]);
    node.accept(&[]);
    let program = format!("exec cat {OTHER} {SECRET}");
    let unasked = node.make_created("web", &program);
    let asked = node.make_created("web", "exec sleep 1000");
    node.kill_agent();
    node.start_agent();
    node.accept(&[unasked.container.clone(), asked.container.clone()]);
    // Until the runtime asks for the start, it is not known that no program has begun.
    node.reports(|profile| profile["containers"] == 2 && profile["late"] == 2);
    node.start("web", &asked);
    node.reports(|profile| profile["enforced"] == 1 && profile["late"] == 1);
    asked.begin();
    is_confined(|command| asked.exec(command), "asked");
    // The runtime had asked the agent before, and does not ask this one.
    unasked.open_gate();
    unasked.has_denied_first_program();
}

#[test]
fn containers_are_confined_while_programs_for_another_policy_are_loaded() {
    in_machine(
        "containers_are_confined_while_programs_for_another_policy_are_loaded",
        loading,
    );
}

/// Hooks whose programs are attached.
fn attached() -> usize {
    let folders = fs::read_dir("/sys/fs/bpf")
        .expect("it is mounted")
        .flatten();
    let mut folders = folders.map(|entry| entry.path());
    let ours = folders.find(|path| path.display().to_string().contains("tollgate-"));
    let files = fs::read_dir(ours.expect("a policy was loaded")).expect("a folder");
    let names = files.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("link-"))
        .count()
}

fn loading() {
    write_files();
    let mut node = Node::new(&policy(&[SECRET], false), &[]);
    node.accept(&[]);
    let web = node.make("web");
    web.begin();
    let before = attached();
    // Rules with hooks of their own.
    let other = r#"{"policy": {"enforcer": "BPF", "mode": "EnhanceProtect", "enhanceProtect": {"privileged": true,
        "hardeningRules": ["disallow-mount", "disallow-umount", "disallow-insmod", "disallow-load-ebpf", "disable-cap-privileged"],
        "bpfRawRules": {"ptrace": {"qualifiers": ["deny"], "permissions": ["all"]}}}}}"#;
    node.put("other", other);
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    node.ask("RunPodSandbox", &pod("other"), None);
    let mut answers = Vec::new();
    while attached() == before {
        assert!(begin.elapsed() < LIMIT, "{}", node.log());
        let container = node.make_created("web", "exec sleep 1000");
        let took = node.start("web", &container);
        if attached() == before {
            answers.push(took);
        }
    }
    let loaded = begin.elapsed();
    let slowest = answers.iter().max().expect("containers start meanwhile");
    println!("sample\tload\tprograms\t{}", loaded.as_micros());
    for answer in &answers {
        println!("sample\tload\tStartContainer\t{}", answer.as_micros());
    }
    assert!(*slowest * 2 < loaded, "{answers:?} of {loaded:?}");
    is_confined(|command| web.exec(command), "while programs were loaded");
}
