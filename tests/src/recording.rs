//! Runs that are recorded and replayed: both must raise the same alerts.
//!
//! With `TOLLGATE_TEST_RECORD` set, every run of a [`crate::Watch`] is recorded, so that each test of events
//! also tests recordings.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Alert;

/// Returns true if runs are recorded that do not request it.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("TOLLGATE_TEST_RECORD").is_some()
}

/// Returns the path of a run's recording.
pub(crate) fn file(scratch: &Path) -> PathBuf {
    scratch.join("recording.scap")
}

/// Returns the options of a run that `replay` takes, too.
fn shared(options: &[String]) -> Vec<&str> {
    let mut shared = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-r" | "-c" | "-o") {
            shared.push(word.as_str());
            shared.extend(words.next().map(String::as_str));
        }
    }
    shared
}

/// Replays a recording and returns its alerts.
///
/// # Panics
/// If it cannot be replayed.
pub(crate) fn replay(program: &Path, options: &[String], file: &Path) -> Vec<Alert> {
    let output = Command::new(program)
        .args(["replay", "--quiet", "--json", "-o", "rule_matching=all"])
        .args(shared(options))
        .arg(file)
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", file.display());
    let alerts = String::from_utf8_lossy(&output.stdout);
    alerts.lines().filter_map(Alert::parse).collect()
}

/// Compares the alerts of a run with those of the replay of its recording.
///
/// # Panics
/// If they differ.
pub(crate) fn compare(live: &[Alert], replayed: &[Alert]) {
    let (mut live, mut replayed) = (keys(live), keys(replayed));
    live.sort();
    replayed.sort();
    for (one, other) in live.iter().zip(&replayed) {
        assert_eq!(one, other, "live and replayed alerts differ");
    }
    assert_eq!(
        live.len(),
        replayed.len(),
        "live: {live:#?}\nreplayed: {replayed:#?}"
    );
}

/// Returns what must be equal: everything but the number of the event, which counts other events in a file, and
/// the program's alerts about itself.
fn keys(alerts: &[Alert]) -> Vec<String> {
    alerts
        .iter()
        .filter(|alert| alert.source == "syscall")
        .map(|alert| {
            let mut fields = alert.fields.clone();
            let numbered = fields.remove("evt.num").is_some();
            let output = if numbered { "" } else { &alert.output };
            format!(
                "{} {} {output} {}",
                alert.time,
                alert.rule,
                Value::Object(fields)
            )
        })
        .collect()
}
