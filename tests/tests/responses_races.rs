//! Responses hit no process that only has the pid of the right one, and follow their alert soon.

use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::responding::{KILL, TAKEN, answering, results, to_mark};
use e2e::{Fixture, Limited, WatchResult, need_root};

/// Has the pids of processes whose alerts are answered given to others, `rounds` times in four processes each. Returns
/// how many pids were used again, how many of the other processes were killed, and how many of the first ones.
fn reuse_pids(rounds: u32, kill: &str) -> (Vec<usize>, WatchResult) {
    // The first action takes long enough for the pid to be used again before the second one.
    let wait = "  - {action: Wait, actionner: 'host:script', parameters: {script: 'sleep 0.01'}}\n";
    let fixture = Fixture::compile("pid_reuse");
    let program = fixture.program().display();
    let script = format!("for n in 1 2 3 4; do {program} {rounds} %W/mark & done; wait");
    let limit = Duration::from_secs(120);
    let watch = answering(&script, &to_mark(&[wait, kill].concat())).limit(limit);
    let watch = watch.option("-o").option("responses.rate=0");
    let watch = watch.option("-o").option("responses.rule_rate=0");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--"]);
    command.args(watch.command_line()).stdin(Stdio::null());
    let finished = Limited::start(&mut command, limit).finish(b"");
    let watched = watch.watched(finished);
    let lines: Vec<_> = watched.printed.lines().map(numbers).collect();
    assert_eq!(lines.len(), 4, "{}", watched.story());
    let sum = |column: usize| lines.iter().map(|numbers| numbers[column]).sum();
    ((0..3).map(sum).collect(), watched)
}

#[test]
fn a_pid_that_is_used_again_is_never_hit() {
    need_root!();
    // The same with a pid in place of a descriptor hits processes that have nothing to do with the alert.
    let by_pid = "  - {action: Kill, actionner: 'host:script', parameters: {script: 'kill -9 $TOLLGATE_ALERT_PID'}}\n";
    let (counts, watched) = reuse_pids(10, by_pid);
    assert!(counts[1] > 0, "{counts:?}: {}", watched.story());
    let (counts, watched) = reuse_pids(270, KILL);
    println!(
        "{} pids were used again, {} of their processes were killed",
        counts[0], counts[1]
    );
    assert_eq!(counts[1], 0);
    assert!(counts[0] >= 1000, "{counts:?}");
    let results = results(&watched).into_iter();
    let results = results.filter(|(actionner, _)| actionner == "process:terminate");
    let results: Vec<_> = results.map(|(_, result)| result).collect();
    assert!(results.len() >= 1000, "{}", results.len());
    // A process that was slow to end was still the right one.
    let (done, others): (Vec<_>, Vec<_>) = results.iter().partition(|result| **result == "done");
    assert_eq!(done.len(), counts[2]);
    assert!(others.iter().all(|result| **result == "gone"), "{others:?}");
}

/// The numbers of a line of `NAME=NUMBER`.
fn numbers(line: &str) -> Vec<usize> {
    let words = line.split(' ').filter_map(|word| word.split('=').nth(1));
    words
        .map(|number| number.parse().expect("a number"))
        .collect()
}

#[test]
fn an_action_follows_its_alert_within_milliseconds() {
    const ROUNDS: usize = 200;
    let script =
        format!("n=0; while [ $n -lt {ROUNDS} ]; do n=$((n+1)); cat %W/mark; done; echo done");
    let watch = answering(&script, &to_mark(KILL));
    let watch = watch.option("-o").option("responses.rate=0");
    let watched = watch.option("-o").option("responses.rule_rate=0").run();
    assert_eq!(watched.printed, "done\n", "{}", watched.story());
    let taken = watched.of(TAKEN);
    assert_eq!(taken.len(), ROUNDS);
    let mut latencies: Vec<_> = taken
        .iter()
        .map(|alert| alert.number("response.latency_ns"))
        .collect();
    latencies.sort_unstable();
    let (median, p99) = (latencies[ROUNDS / 2], latencies[ROUNDS * 99 / 100]);
    println!(
        "alert to act: median {} us, p99 {} us",
        median / 1000,
        p99 / 1000
    );
    assert!(p99 < 10_000_000, "{latencies:?}");
}
