//! Nothing is left behind: what `run` starts has ended and was waited for when it ends.
//!
//! This process takes in orphans, as the first process of a container does; so all is in one test.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use e2e::{Scratch, program};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

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
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    // The agent is killed under the command's feet, once, twice, or with the command.
    for (options, deaths, code) in [
        (&["--on-agent-death", "continue"][..], 1, 3),
        (&["--on-agent-death", "continue"], 2, 3),
        (&["--on-agent-death", "kill"], 1, 4),
        (&["--engine", "ptrace"], 1, 4),
    ] {
        kill_agents(options, deaths, code);
    }
}

/// Kills the agent of a run so many times; then the command is told to end, and nobody is left.
fn kill_agents(options: &[&str], deaths: u32, code: i32) {
    let scratch = Scratch::new();
    let (pid, go) = (scratch.path().join("pid"), scratch.path().join("go"));
    // What dies with the agent has no children, which would be anybody's.
    let script = match code {
        3 => "until [ -e \"$1\" ]; do sleep 0.02; done; exit 3",
        _ => "exec sleep 60",
    };
    let mut run = Command::new(program())
        .args(["run", "-q", "-P"])
        .arg(&pid)
        .args(options)
        .args(["--", "sh", "-c", script, "sh"])
        .arg(&go)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it was built");
    let mut killed = 0;
    for _ in 0..deaths {
        killed = agent(&mut run, &pid, killed);
        let agent = Pid::from_raw(killed).expect("a process has a number");
        kill_process(agent, Signal::KILL).expect("it is ours");
    }
    if code == 3 {
        agent(&mut run, &pid, killed);
        fs::write(&go, "").expect("the folder is ours");
    }
    let status = run.wait().expect("it is ours");
    assert_eq!(status.code(), Some(code), "{options:?}, {deaths} deaths");
    assert_eq!(
        children(),
        Vec::<String>::new(),
        "{options:?}, {deaths} deaths"
    );
}

/// Waits for an agent that is not the one before.
fn agent(run: &mut Child, file: &Path, before: i32) -> i32 {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Ok(pid) = text.trim().parse::<i32>()
            && pid != before
        {
            return pid;
        }
        assert!(
            run.try_wait().expect("it is ours").is_none(),
            "it has ended"
        );
        assert!(began.elapsed() < Duration::from_secs(20), "no agent");
        thread::sleep(Duration::from_millis(5));
    }
}
