//! `tollgate generate bench`: rounds, counts, limits.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use e2e::{
    Guest, Identity, Limited, Scratch, certificates, default_rules, need_root, need_slow, skip,
    watch_host_for,
};
use serde_json::Value;

fn bench(options: &[&str]) -> (i32, String) {
    let mut command = Command::new(e2e::program());
    command.args([
        "generate",
        "bench",
        "^syscall.(ClearLogActivities|WriteBelowEtc)$",
        "--all",
    ]);
    command
        .args(["--round-duration=2s", "--sleep=20ms"])
        .args(options);
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    let text = format!("{}{}", finished.stdout, finished.stderr);
    (finished.code(), text)
}

/// Asserts that a round has every figure and lost nothing.
fn assert_measured(line: &Value) {
    for name in [
        "cpu",
        "res_mem",
        "virt_mem",
        "throughput",
        "p50",
        "p99.9",
        "syscalls",
    ] {
        assert!(
            line[name].as_f64().is_some_and(|value| value > 0.0),
            "{name}: {line}"
        );
    }
    assert_eq!(
        (&line["lost"], &line["drops"]),
        (&0.0.into(), &0.into()),
        "{line}"
    );
}

#[test]
fn a_benchmark_halves_the_wait_and_counts_every_alert() {
    need_root!();
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (record, plot) = (
        folder.path().join("rounds.jsonl"),
        folder.path().join("plot.svg"),
    );
    let (code, text) = bench(&[
        "--watched",
        "--loop",
        "--rounds=3",
        "--logformat=json",
        "--humanize=false",
        "--threads=2",
        "--calls=3",
        &format!("--record={}", record.display()),
        &format!("--plot={}", plot.display()),
    ]);
    assert_eq!(code, 0, "{text}");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let rounds = lines.iter().filter(|line| {
        line["msg"]
            .as_str()
            .is_some_and(|msg| msg.starts_with("round #"))
    });
    let waits: Vec<_> = rounds
        .map(|line| line["sleep"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(waits, ["20ms", "10ms", "5ms"], "{text}");
    let statistics: Vec<_> = lines
        .iter()
        .filter(|line| line["msg"] == "statistics")
        .collect();
    assert_eq!(statistics.len(), 3, "{text}");
    for line in statistics {
        assert_measured(line);
    }
    let recorded = fs::read_to_string(record).expect("it was written");
    let recorded: Vec<Value> = recorded
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(recorded.len(), 3);
    for action in recorded
        .iter()
        .flat_map(|round| round["actions"].as_array().expect("a list"))
    {
        assert_eq!(action["expected"], action["actual"], "{action}");
        assert!(action["expected"].as_u64() > Some(0), "{action}");
    }
    let plot = fs::read_to_string(plot).expect("it was written");
    assert_eq!(plot.matches("<circle").count(), 3);
}

#[test]
fn a_detector_that_sees_nothing_loses_everything() {
    need_root!();
    let rules =
        "- rule: Never\n  desc: d\n  condition: evt.type = acct\n  output: o\n  priority: INFO\n";
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules).expect("it is our folder");
    let (code, text) = bench(&[
        "--watched",
        "--knee",
        "--logformat=table",
        "-r",
        &file.display().to_string(),
    ]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("100.0%") && text.contains("in the first round"),
        "{text}"
    );
    assert!(
        !text.lines().any(|line| line.trim_start().starts_with("2 ")),
        "one round is enough: {text}"
    );
}

#[test]
fn limits_hold_the_detector_and_are_taken_away_again() {
    need_root!();
    let groups = || {
        let roots = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/cpu",
            "/sys/fs/cgroup/memory",
        ];
        let entries = roots
            .iter()
            .flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
        entries
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("tollgate-bench-")
            })
            .count()
    };
    let (code, text) = bench(&[
        "--watched",
        "--rounds=2",
        "--logformat=table",
        "--cpus=0.15",
        "--memory=512M",
        "--calls=2000",
    ]);
    if code == 3 && text.contains("cannot limit the") {
        skip!("needs control groups for processors and memory", || {
            match fs::create_dir("/sys/fs/cgroup/cpu/tollgate-e2e") {
                Ok(()) => Err(String::from("one can be made in /sys/fs/cgroup/cpu")),
                Err(error) => Ok(error.to_string()),
            }
        });
    }
    assert_eq!(code, 0, "{text}");
    let row = text
        .lines()
        .rfind(|line| line.trim_start().starts_with("2 "));
    let row = row.unwrap_or_else(|| panic!("{text}"));
    let used = row
        .split_whitespace()
        .filter_map(|word| word.strip_suffix('%'));
    let used: Vec<f64> = used.filter_map(|word| word.parse().ok()).collect();
    assert!(
        used.last().is_some_and(|cpu| *cpu < 25.0),
        "fifteen hundredths of a processor: {text}"
    );
    assert_eq!(groups(), 0, "the groups are gone");
}

/// A port that nobody listens at in this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Plays a round under a detector with these keys, as its own workload, and checks that every alert
/// came. What the round's statistics say.
fn round_under_a_detector(keys: &[String], options: &[String]) -> Value {
    let mut command = Command::new(e2e::program());
    let rules = default_rules().expect("it is part of the repository");
    command.args(["run", "-q", "-r"]).arg(&rules);
    command.arg("-r").arg(rules.with_file_name("more.yaml"));
    let always = [
        "rule_matching=all",
        "rules_level=hunting",
        "json_output=true",
        "stdout_output.enabled=false",
        "outputs.rate=0",
        "outputs_queue.capacity=100000",
    ];
    for key in always
        .iter()
        .copied()
        .chain(keys.iter().map(String::as_str))
    {
        command.args(["-o", key]);
    }
    command.arg("--").arg(e2e::program()).args([
        "generate",
        "bench",
        "^syscall.(ClearLogActivities|WriteBelowEtc)$",
        "--all",
        "--round-duration=2s",
        "--sleep=20ms",
        "--rounds=1",
        "--logformat=json",
        "--humanize=false",
        "--calls=3",
    ]);
    command.args(options);
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    let text = format!("{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.code(), 0, "{text}");
    statistics(&text)
}

/// Reads the statistics of the only round, which lost nothing.
fn statistics(text: &str) -> Value {
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut statistics: Vec<Value> = lines.filter(|line| line["msg"] == "statistics").collect();
    assert_eq!(statistics.len(), 1, "{text}");
    let line = statistics.remove(0);
    // On a busy machine somebody else may do the same.
    assert!(
        line["lost"].as_f64().is_some_and(|lost| lost <= 0.0),
        "{text}"
    );
    assert!(line["throughput"].as_f64() > Some(10.0), "{text}");
    line
}

fn keys<const N: usize>(keys: [&str; N]) -> Vec<String> {
    keys.map(str::to_owned).to_vec()
}

#[test]
fn the_counters_of_a_running_detector_are_read_by_http() {
    need_root!();
    let (web, alerts) = (free_port(), free_port());
    let with_pages = [
        keys(["webserver.enabled=true", "metrics.enabled=true"]),
        keys(["webserver.prometheus_metrics_enabled=true"]),
        keys(["webserver.listen_address=127.0.0.1"]),
        vec![format!("webserver.listen_port={web}")],
        keys(["http_output.enabled=true"]),
        vec![format!("http_output.url=http://localhost:{alerts}")],
    ];
    let options = [
        format!("--metrics=http://localhost:{web}/metrics"),
        format!("--http-server-address=localhost:{alerts}"),
    ];
    let line = round_under_a_detector(&with_pages.concat(), &options);
    // Each action opens a file three times beside its own calls.
    assert!(line["syscalls"].as_f64() > Some(100.0), "{line}");
    assert_eq!(line["drops"], 0, "{line}");
}

#[test]
fn alerts_come_by_grpc_over_tcp_with_certificates() {
    need_root!();
    let scratch = Scratch::new();
    certificates(scratch.path());
    let at = |name: &str| scratch.path().join(name).display().to_string();
    let port = free_port();
    let served = vec![
        "grpc.enabled=true".to_owned(),
        "grpc_output.enabled=true".to_owned(),
        format!("grpc.bind_address=localhost:{port}"),
        format!("grpc.private_key={}", at("server-key.pem")),
        format!("grpc.cert_chain={}", at("server.pem")),
        format!("grpc.root_certs={}", at("ca.pem")),
    ];
    let options = vec![
        "--grpc-hostname=localhost".to_owned(),
        format!("--grpc-port={port}"),
        format!("--grpc-ca={}", at("ca.pem")),
        format!("--grpc-cert={}", at("client.pem")),
        format!("--grpc-key={}", at("client-key.pem")),
    ];
    round_under_a_detector(&served, &options);
}

/// A detector of the whole machine: at the socket of one that watches the generator alone, that is refused.
#[test]
fn alerts_come_by_grpc_from_a_socket() {
    need_root!();
    let scratch = Scratch::new();
    let socket = format!("unix://{}", scratch.path().join("sock").display());
    let served = [
        "grpc.enabled=true".to_owned(),
        "grpc_output.enabled=true".to_owned(),
        "stdout_output.enabled=false".to_owned(),
        format!("grpc.bind_address={socket}"),
    ];
    let options: Vec<&str> = served.iter().flat_map(|key| ["-o", key]).collect();
    let mut text = String::new();
    watch_host_for(Duration::from_secs(60), &options, SENSITIVE, |_watcher| {
        let mut command = Command::new(e2e::program());
        command.args(["generate", "bench", "ReadSensitiveFileUntrusted$"]);
        command.args(["--round-duration=2s", "--sleep=20ms", "--rounds=1"]);
        command.args(["--logformat=json", "--humanize=false"]);
        command.arg(format!("--grpc-unix-socket={socket}"));
        let finished = Limited::start(&mut command, Duration::from_secs(50)).finish(b"");
        text = format!("{}{}", finished.stdout, finished.stderr);
        assert_eq!(finished.code(), 0, "{text}");
    });
    statistics(&text);
}

/// One rule of Falco's, and an action that it is about.
const SENSITIVE: &str = "- rule: Read sensitive file untrusted\n  desc: d\n  \
    condition: evt.type in (open, openat) and fd.name = /etc/shadow and evt.is_open_read = true\n  \
    output: read %fd.name\n  priority: WARNING\n";

#[test]
fn a_detector_of_the_whole_machine_is_measured_by_its_pages() {
    need_root!();
    let scratch = Scratch::new();
    let (web, file) = (free_port(), scratch.path().join("alerts"));
    let served = [
        "webserver.enabled=true".to_owned(),
        "webserver.prometheus_metrics_enabled=true".to_owned(),
        "webserver.listen_address=127.0.0.1".to_owned(),
        format!("webserver.listen_port={web}"),
        "metrics.enabled=true".to_owned(),
        "file_output.enabled=true".to_owned(),
        format!("file_output.filename={}", file.display()),
    ];
    let options: Vec<&str> = served.iter().flat_map(|key| ["-o", key]).collect();
    let mut text = String::new();
    watch_host_for(Duration::from_secs(60), &options, SENSITIVE, |watcher| {
        let mut command = Command::new(e2e::program());
        command.args(["generate", "bench", "ReadSensitiveFileUntrusted$"]);
        command.args(["--round-duration=2s", "--sleep=20ms", "--rounds=1"]);
        command.args(["--logformat=json", "--humanize=false", "--calls=50"]);
        command.arg(format!("--pid={watcher}"));
        command.arg(format!("--metrics=http://127.0.0.1:{web}/metrics"));
        command.arg("--alerts-file").arg(&file);
        let finished = Limited::start(&mut command, Duration::from_secs(50)).finish(b"");
        text = format!("{}{}", finished.stdout, finished.stderr);
        assert_eq!(finished.code(), 0, "{text}");
    });
    let line = statistics(&text);
    let calls = line["syscalls"].as_f64().expect("a number");
    let played = line["throughput"].as_f64().expect("a number");
    // Those that never leave the kernel count, too.
    assert!(calls > 25.0 * played, "{line}");
    assert!(line["cpu"].as_f64() > Some(0.0), "{line}");
}

#[test]
fn a_benchmark_that_makes_no_sense_is_refused() {
    for (options, message) in [
        (&["--round-duration=1ms"][..], "shorter than the wait"),
        (&["--cpus=0.5"], "without knowing which process it is"),
        (
            &["--grpc-unix-socket=/run/x.sock"],
            "cannot connect to unix:///run/x.sock",
        ),
        (
            &["--metrics=http://localhost:1/metrics"],
            "cannot read the metrics at http://localhost:1/metrics: ",
        ),
        (
            &["--metrics=https://localhost/metrics"],
            "it is not an http:// address",
        ),
        (&["--stats=/nowhere"], "cannot open /nowhere: "),
    ] {
        let mut command = Command::new(e2e::program());
        command
            .args(["generate", "bench", "WriteBelowEtc", "--all"])
            .args(options);
        let finished = Limited::start(&mut command, Duration::from_secs(10)).finish(b"");
        assert_eq!(finished.code(), 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
    }
}

/// The machine of these tests may have control groups of the first version only; the guest's kernel
/// gets the second.
#[test]
fn groups_of_the_second_version_limit_and_are_gone_afterwards() {
    need_slow!();
    let script = "busybox mount -t cgroup2 none /sys/fs/cgroup
        tollgate generate bench ReadSensitiveFileUntrusted --watched --engine notify --rounds 2 \
            --sleep 50ms --round-duration 3s --cpus 0.5 --memory 256M > /tmp/rounds 2>&1 &
        while kill -0 $! 2> /dev/null; do
            cat /sys/fs/cgroup/tollgate-bench-*/cpu.max /sys/fs/cgroup/tollgate-bench-*/memory.max \
                /sys/fs/cgroup/tollgate-bench-*/cgroup.procs > /tmp/now 2> /dev/null
            test $(wc -l < /tmp/now) -ge 3 && cp /tmp/now /tmp/seen
            sleep 0.2
        done
        wait $!; echo status $?
        cat /tmp/seen /tmp/rounds
        ls /sys/fs/cgroup | grep tollgate";
    let run = Guest::new().run(0, Identity::Root, script);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(
        &lines[..3],
        ["status 0", "50000 100000", "268435456"],
        "{run:?}"
    );
    assert!(lines[3].parse::<u32>().is_ok(), "{run:?}");
    assert_eq!(run.stdout.matches("ratio=1.0").count(), 2, "{run:?}");
    assert!(!run.stdout.contains("tollgate-bench-"), "{run:?}");
}
