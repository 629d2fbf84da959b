//! Host-wide monitoring by `tollgate watch`.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::{Limited, Scratch, program};

const LIMIT: Duration = Duration::from_secs(60);

/// Watches the host while `act` runs. Returns standard output and the last line of statistics.
///
/// # Panics
/// If the monitor does not start or end as it should.
pub fn watch_host(options: &[&str], rules: &str, act: impl FnOnce()) -> (String, Value) {
    watch_host_for(LIMIT, options, rules, |_| act())
}

/// Like [`watch_host`] with another time limit; `act` gets the monitor's pid.
///
/// # Panics
/// If the monitor does not start or end as it should.
pub fn watch_host_for(
    limit: Duration,
    options: &[&str],
    rules: &str,
    act: impl FnOnce(i32),
) -> (String, Value) {
    let files = Scratch::new();
    let rules = files.file("rules.yaml", 0o644, rules);
    let (stats, pid) = (files.path().join("stats"), files.path().join("pid"));
    let mut command = Command::new(program());
    command
        .args([
            "watch",
            "--quiet",
            "--json",
            "-o",
            "outputs_queue.capacity=100000",
            "-r",
        ])
        .arg(&rules)
        .arg("-s")
        .arg(&stats)
        .arg("-P")
        .arg(&pid)
        .args(options);
    let limited = Limited::start(&mut command, limit);
    let started = std::time::Instant::now();
    while fs::read_to_string(&pid).map_or(true, |text| text.is_empty()) {
        assert!(started.elapsed() < LIMIT, "the watch does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let number = fs::read_to_string(&pid).expect("it was there");
    let number: i32 = number.trim().parse().expect("a pid");
    act(number);
    let process = rustix::process::Pid::from_raw(number).expect("not zero");
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it runs");
    let finished = limited.finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let text = fs::read_to_string(&stats).expect("the watch writes statistics");
    let last = text.lines().last().expect("at least one line");
    (finished.stdout, serde_json::from_str(last).expect("JSON"))
}
