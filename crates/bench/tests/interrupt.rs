//! Ctrl-C in the middle of a run, with the real program.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Returns the example that cargo builds for this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    target.join("examples/run_plan")
}

#[test]
fn an_interrupted_run_reports_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, results) = (
        folder.path().join("plan.toml"),
        folder.path().join("results"),
    );
    // The third command of the run would last longer than any test may.
    let text = format!(
        "name = 'long'\nrounds = 2\n[[workload]]\nname = 'w'\nfigure = 'wall'\n\
         command = '''sh -c 'echo >> {0}/n; [ $(wc -l < {0}/n) -lt 3 ] || sleep 600' '''\n",
        folder.path().display()
    );
    std::fs::write(&plan, text).unwrap();
    let run = Command::new(program())
        .args([&plan, &results])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    let deadline = Instant::now() + Duration::from_secs(60);
    let begun = || std::fs::read_to_string(folder.path().join("n")).unwrap_or_default();
    while begun().lines().count() < 3 {
        assert!(Instant::now() < deadline, "the third command has not begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();

    let output = run.wait_with_output().unwrap();
    let (report, notes) = (
        String::from_utf8(output.stdout),
        String::from_utf8(output.stderr),
    );
    assert_eq!(output.status.code(), Some(130));
    assert!(report.unwrap().contains("left out: 1 of "));
    assert!(notes.unwrap().contains("stopped early: interrupted"));
    let samples = std::fs::read_to_string(results.join("samples.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 3);
    assert!(
        samples
            .lines()
            .last()
            .unwrap()
            .contains(r#""invalid":"interrupted""#)
    );
    assert!(results.join("summary.json").exists());
}
