//! `tollgate generate bench`: rounds, counts, limits.

use std::fs;
use std::process::Command;
use std::time::Duration;

use e2e::{Guest, Identity, Limited, need_root, need_slow, skip};
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
        "--cpus=0.05",
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
        used.last().is_some_and(|cpu| *cpu < 15.0),
        "a twentieth of a processor: {text}"
    );
    assert_eq!(groups(), 0, "the groups are gone");
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
