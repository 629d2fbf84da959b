//! Nothing is left behind: what `run` starts has ended and was waited for when it ends.
//!
//! This process takes in orphans, as the first process of a container does; so all is in one test.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::program;
use rustix::process::{getpid, set_child_subreaper};

/// Processes below this one, dead ones that nobody has waited for among them.
fn children() -> Vec<String> {
    let threads = fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<String> = lists
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let account = |pid: &String| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    pids.iter().filter_map(account).collect()
}

#[test]
fn run_leaves_no_process_behind() {
    set_child_subreaper(Some(getpid())).expect("every kernel does");
    let own = program().display().to_string();
    let cases: [(&[&str], &[&str], Option<i32>); 7] = [
        (&[], &["true"], Some(0)),
        (&[], &["sh", "-c", "exit 3"], Some(3)),
        (&[], &["/no/such/program"], Some(127)),
        (&["--engine", "ptrace"], &["true"], Some(0)),
        (
            &["--engine", "ptrace", "--every-call"],
            &["sh", "-c", "exit 3"],
            Some(3),
        ),
        (&[], &[&own, "run", "-q", "--", "true"], Some(0)),
        // One tracer within another: not everything works there, but what does not says so. The last,
        // because its dead are left to this process.
        (
            &["--engine", "ptrace"],
            &[&own, "run", "-q", "--", "true"],
            None,
        ),
    ];
    for (options, command, expected) in cases {
        let began = Instant::now();
        let output = Command::new(program())
            .args(["run", "-q"])
            .args(options)
            .arg("--")
            .args(command)
            .output()
            .expect("it was built");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let story = format!("{options:?} {command:?}: {output:?}");
        match expected {
            Some(code) => assert_eq!(output.status.code(), Some(code), "{story}"),
            None => assert!(
                output.status.success() || stderr.contains("tollgate: "),
                "{story}"
            ),
        }
        let mut left = children();
        // Where a tracer ends another one, dead ones may be left for pid 1 to reap; none that live.
        left.retain(|stat| expected.is_some() || !stat.contains(") Z "));
        assert_eq!(left, Vec::<String>::new(), "{story}");
        assert!(began.elapsed() < Duration::from_secs(20), "{story}");
    }
}
