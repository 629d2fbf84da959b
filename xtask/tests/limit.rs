//! `xtask limit`: a test that hangs is killed with what it started, and the others run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Acts as a program of libtest with the tests `a`, `hangs` and `z`: it names the slow test at once, and `hangs` starts
/// a daemon in a session of its own.
const PROGRAM: &str = r#"#!/bin/sh
case "$*" in
*--list*) printf 'a: test\nhangs: test\nz: test\n'; exit ;;
"--exact z") printf 'running 1 test\ntest z ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored;\n'; exit ;;
esac
printf 'running 3 tests\ntest a ... ok\ntest hangs has been running for over 60 seconds\n'
(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)
exec sleep 1000
"#;

fn limit(folder: &Path, seconds: &str, program: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .current_dir(folder)
        .args(["limit", seconds])
        .arg(program);
    command.output().expect("xtask was built")
}

fn program(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("program");
    fs::write(&path, text).expect("the folder is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// Returns whether the process whose pid is in a file has ended.
fn has_ended(file: &Path) -> bool {
    let pid = fs::read_to_string(file).expect("the program wrote it");
    !Path::new("/proc").join(pid.trim()).exists()
}

#[test]
fn a_test_that_hangs_is_killed_with_its_daemon_and_the_others_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = program(folder.path(), PROGRAM);
    let started = Instant::now();
    let output = limit(folder.path(), "61", &path);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(started.elapsed() < Duration::from_secs(40), "{printed}");
    assert_eq!(output.status.code(), Some(124), "{printed}");
    let failed = printed
        .lines()
        .find(|line| line.starts_with("test hangs ... FAILED (ran over 61s"));
    let failed = failed.unwrap_or_else(|| panic!("{printed}"));
    assert_eq!(failed.matches(" sleep").count(), 2, "{printed}");
    assert!(has_ended(&folder.path().join("daemon")), "{printed}");
    let sums: Vec<&str> = printed
        .lines()
        .filter(|line| line.starts_with("test result: "))
        .collect();
    assert!(
        sums[0].starts_with("test result: FAILED. 1 passed; 1 failed; 0 ignored;"),
        "{printed}"
    );
    assert_eq!(
        sums[1], "test result: ok. 1 passed; 0 failed; 0 ignored;",
        "{printed}"
    );
}

#[test]
fn a_program_without_a_word_is_killed_after_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = program(folder.path(), "#!/bin/sh\nexec sleep 1000\n");
    let output = limit(folder.path(), "1", &path);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("ran over 1s; killed: "),
        "{output:?}"
    );
}

#[test]
fn what_a_program_leaves_is_killed_and_its_status_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let left = "#!/bin/sh\n(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)\nwhile ! test -s daemon; do sleep 0.01; done\nexit 5\n";
    let path = program(folder.path(), left);
    let output = limit(folder.path(), "60", &path);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("left processes, which were killed: "),
        "{output:?}"
    );
    assert!(has_ended(&folder.path().join("daemon")), "{output:?}");
}

#[test]
fn a_program_that_crashes_counts_its_unfinished_tests_as_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let crash = PROGRAM
        .split("(setsid")
        .next()
        .expect("it has a beginning")
        .to_owned()
        + "kill -SEGV $$\n";
    let path = program(folder.path(), &crash);
    let output = limit(folder.path(), "600", &path);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(139), "{printed}");
    assert!(
        printed.contains("test result: FAILED. 1 passed; 2 failed;"),
        "{printed}"
    );
    assert!(
        printed.contains("test z ... FAILED (the program ended first)"),
        "{printed}"
    );
}
