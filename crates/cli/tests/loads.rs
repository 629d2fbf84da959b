//! Runs every load through the real program.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// The program that cargo builds for this test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("workload")
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs a load and returns its result line.
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
            testing::skip_part!("needs busybox-static", || Ok(
                "/bin/busybox is not there".to_owned()
            ));
            continue;
        }
        // These two need more arguments; the tests of bench give them.
        if ["container", "study"].contains(&workload.name) {
            continue;
        }
        // A forked copy has one thread.
        let forks = ["fork_exit_wait", "os_create_processes"].contains(&workload.name);
        let threads = if forks { 1 } else { 2 };
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
    // Each of the 20 windows is longer than a busy host keeps a process waiting.
    let line = measure(&["getppid", "--seconds", "2"]);
    assert!(line["elapsed_ns"].as_u64().unwrap() >= 2_000_000_000);
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

/// Identity of an open: process, call, path as given, flags, result.
type Open = (u64, String, String, u64, i64);

/// The account must equal what an independent tracer sees, open by open.
#[test]
fn the_oracle_of_the_storm_is_what_strace_sees() {
    if Command::new("strace").arg("--version").output().is_err() {
        testing::skip!("needs strace", || Ok("it cannot be started".to_owned()));
    }
    let folder = tempfile::tempdir().unwrap();
    let (oracle, trace) = (folder.path().join("oracle"), folder.path().join("trace"));
    let output = Command::new("strace")
        .args([
            "-ff",
            "-qq",
            "-X",
            "raw",
            "-e",
            "trace=open,openat",
            "-e",
            "signal=none",
        ])
        .args(["-s", "4096", "-o"])
        .arg(&trace)
        .arg(PROGRAM)
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
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let (scratch, expected) = account(&std::fs::read_to_string(oracle).unwrap());
    assert_eq!(expected.values().sum::<u64>(), 800);
    let mut seen = BTreeMap::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("trace.")
        {
            add_trace(&mut seen, &std::fs::read_to_string(path).unwrap(), &scratch);
        }
    }
    assert_eq!(seen, expected);
}

/// Returns the scratch folder and the opens that an oracle file states.
fn account(oracle: &str) -> (String, BTreeMap<Open, u64>) {
    let mut lines = oracle
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let scratch = lines.next().unwrap()["scratch"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut opens = BTreeMap::new();
    for line in lines {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        let number = |key: &str| line[key].as_u64().unwrap();
        let result = line["result"].as_i64().unwrap();
        let open = (
            number("pid"),
            text("call"),
            text("path"),
            number("flags"),
            result,
        );
        *opens.entry(open).or_default() += number("count");
    }
    (scratch, opens)
}

/// Counts the opens in one thread's trace. Only the storm's opens have O_LARGEFILE. The absolute paths among
/// them contain the process id.
fn add_trace(seen: &mut BTreeMap<Open, u64>, trace: &str, scratch: &str) {
    let large_file = u64::from(rustix::fs::OFlags::LARGEFILE.bits());
    let opens: Vec<_> = trace.lines().filter_map(parse).collect();
    let opens = opens
        .into_iter()
        .filter(|(_, _, flags, _)| flags & large_file != 0);
    let opens: Vec<_> = opens
        .filter(|(_, path, ..)| !path.starts_with("/proc"))
        .collect();
    let pid = opens.iter().find_map(|(_, path, ..)| {
        let (pid, _) = path
            .strip_prefix(scratch)?
            .strip_prefix('/')?
            .split_once('/')?;
        pid.parse().ok()
    });
    let Some(pid) = pid else { return };
    for (call, path, flags, result) in opens {
        *seen.entry((pid, call, path, flags, result)).or_default() += 1;
    }
}

/// Parses `openat(3, "file", 0x8000) = 4` into call, path, flags and result.
fn parse(line: &str) -> Option<(String, String, u64, i64)> {
    let (call, rest) = line.split_once('(')?;
    let (_, rest) = rest.split_once('"')?;
    let (path, rest) = rest.split_once("\", 0x")?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let flags = arguments.split([',', ')']).next()?;
    let mut words = result.split(' ');
    let result = match (words.next()?, words.next()) {
        ("-1", Some(name)) => -error_number(name)?,
        (descriptor, _) => descriptor.parse().ok()?,
    };
    let flags = u64::from_str_radix(flags, 16).ok()?;
    Some((call.to_owned(), path.to_owned(), flags, result))
}

/// Returns the number of an error that the storm provokes.
fn error_number(name: &str) -> Option<i64> {
    let known = [
        ("ENOENT", 2),
        ("EEXIST", 17),
        ("ENOTDIR", 20),
        ("EISDIR", 21),
        ("ELOOP", 40),
    ];
    known
        .into_iter()
        .find_map(|(known, number)| (known == name).then_some(number))
}
