//! Policies learnt of real programs: a second run that does other work of the same kind is not denied anything, and
//! attacks through the program are.

mod cron;
mod lab;
mod servers;
mod services;

use std::process::{Command, Stdio};

use e2e::{Limited, Scratch};

use crate::lab::LIMIT;

/// Two runs make one policy, and what was new in the last one is said.
#[test]
fn several_runs_make_one_policy_and_say_what_was_new() {
    let scratch = Scratch::new();
    let folder = scratch.path().display().to_string();
    for name in ["in/1.txt", "in/2.txt", "in/3.txt", "in/4.txt"] {
        scratch.file(name, 0o644, "text\n");
    }
    let script = "cd $1; read n < state/count; echo $((n + 1)) > state/count; read text < in/$n.txt || exit 3; echo $text $n\n";
    let script = scratch.file("run.sh", 0o644, script).display().to_string();
    scratch.file("state/count", 0o666, "1\n");
    let policy = scratch.path().join("learnt.yaml").display().to_string();
    let run = |options: &[&str]| {
        let mut command = Command::new(e2e::program());
        command
            .args(options)
            .args(["--", "/bin/sh", &script, &folder]);
        let mut finished = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
        finished.stdout.retain(|character| character != '\r');
        finished
    };
    let learnt = run(&["learn", "--runs", "2", "-o", &policy]);
    assert_eq!(
        (learnt.code(), &*learnt.stdout),
        (0, "text 1\ntext 2\n"),
        "{learnt:?}"
    );
    let folder_of_input = format!("{folder}/in/**");
    assert!(
        learnt.stderr.contains("new in this run: 1 file ("),
        "{learnt:?}"
    );
    assert!(learnt.stderr.contains(&folder_of_input), "{learnt:?}");
    let other = run(&["enforce", "-q", "--policy", &policy]);
    assert_eq!((other.code(), &*other.stdout), (0, "text 3\n"), "{other:?}");
    std::fs::remove_file(scratch.path().join("in/4.txt")).expect("it is ours");
    let failed = run(&["learn", "--runs", "2", "-o", &policy]);
    assert_ne!(failed.code(), 0, "{failed:?}");
    assert!(failed.stderr.contains("run 1 of 2 failed"), "{failed:?}");
}
