//! Every load, run as the program that users run.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// The example that cargo builds beside this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    target.join("examples/workload")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(program())
        .arg("workload")
        .args(arguments)
        .output()
        .unwrap()
}

/// The line that a load prints.
fn measure(arguments: &[&str]) -> Value {
    let output = run(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_load_does_as_many_operations_as_asked() {
    for workload in workload::WORKLOADS {
        if workload.name == "fork_exec_static" && !PathBuf::from("/bin/busybox").exists() {
            eprintln!("skipped: fork_exec_static needs busybox-static");
            continue;
        }
        let threads = if workload.name == "fork_exit_wait" {
            1
        } else {
            2
        };
        let line = measure(&[
            workload.name,
            "--operations",
            "3",
            "--threads",
            &threads.to_string(),
        ]);
        let processes = if workload.name == "opens_storm" { 8 } else { 1 };
        assert_eq!(line["operations"], 3 * threads * processes, "{line}");
        assert_eq!(line["workload"], workload.name);
        assert!(line["elapsed_ns"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_timed_load_lasts_as_long_and_reports_windows() {
    let line = measure(&["getppid", "--seconds", "0.1"]);
    assert!(line["elapsed_ns"].as_u64().unwrap() >= 100_000_000);
    assert!(line["operations"].as_u64().unwrap() > 1000);
    assert!(line["windows"].as_array().unwrap().len() > 10);
}

#[test]
fn bad_input_is_refused_with_the_next_step() {
    for (arguments, expected) in [
        (&["getpid"][..], "did you mean `getppid`?"),
        (
            &["open_close", "--path", "/no/such/file"],
            "cannot open the file",
        ),
        (
            &["fork_exec", "--path", "/no/such/program"],
            "cannot start /no/such/program",
        ),
        (
            &["fork_exec", "--path", "/bin/false"],
            "expected exit status 0",
        ),
        (
            &["getppid", "--role", "nobody"],
            "cannot play the part `nobody`",
        ),
        (&["getppid", "--seconds=-1"], "--seconds"),
        (&["getppid", "--operations", "0"], "--operations"),
    ] {
        let output = run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
    }
}

/// The account must be what an independent tracer sees, open by open.
#[test]
fn the_oracle_of_the_storm_is_what_strace_sees() {
    if Command::new("strace").arg("--version").output().is_err() {
        eprintln!("skipped: needs strace");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (oracle, trace) = (folder.path().join("oracle"), folder.path().join("trace"));
    let status = Command::new("strace")
        .args([
            "-ff",
            "-qq",
            "-e",
            "trace=open,openat",
            "-e",
            "signal=none",
            "-s",
            "4096",
            "-o",
        ])
        .arg(&trace)
        .arg(program())
        .args([
            "workload",
            "opens_storm",
            "--processes",
            "2",
            "--threads",
            "2",
        ])
        .args(["--operations", "200", "--alarm-us", "500", "--oracle"])
        .arg(&oracle)
        .output()
        .unwrap();
    assert!(
        status.status.success(),
        "{}",
        String::from_utf8_lossy(&status.stderr)
    );

    let oracle = std::fs::read_to_string(oracle).unwrap();
    let mut lines = oracle
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let scratch = lines.next().unwrap()["scratch"]
        .as_str()
        .unwrap()
        .to_owned();
    // (call, path, result) as strace prints them, which gives every error as -1; relative paths belong to no process in a trace
    // file of a thread, so the count is over both processes.
    let mut expected: BTreeMap<(String, String, i64), u64> = BTreeMap::new();
    for line in lines {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        let result = line["result"].as_i64().unwrap().max(-1);
        *expected
            .entry((text("call"), text("path"), result))
            .or_default() += line["count"].as_u64().unwrap();
    }
    assert_eq!(expected.values().sum::<u64>(), 800);

    let names: Vec<String> = expected.keys().map(|key| key.1.clone()).collect();
    let mut seen: BTreeMap<(String, String, i64), u64> = BTreeMap::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if !path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("trace.")
        {
            continue;
        }
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let Some((call, path, result)) = parse(line) else {
                continue;
            };
            let ours = path.starts_with(&scratch) || !path.starts_with('/');
            // Making the folder opens its files for writing with O_CREAT|O_TRUNC|O_CLOEXEC.
            let furnishing = line.contains("O_CREAT|O_TRUNC|O_CLOEXEC");
            if ours && !furnishing && names.contains(&path) {
                *seen.entry((call, path, result)).or_default() += 1;
            }
        }
    }
    assert_eq!(seen, expected);
}

/// `openat(3, "file", O_RDONLY) = 4` as call, path and result.
fn parse(line: &str) -> Option<(String, String, i64)> {
    let (call, rest) = line.split_once('(')?;
    let (_, rest) = rest.split_once('"')?;
    let (path, rest) = rest.split_once('"')?;
    let (_, result) = rest.rsplit_once(" = ")?;
    let result = result.split(' ').next()?.parse().ok()?;
    Some((call.to_owned(), path.to_owned(), result))
}
