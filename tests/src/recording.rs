//! Runs that are recorded and replayed: both must raise the same alerts.
//!
//! With `TOLLGATE_TEST_RECORD` set every run of a [`crate::Watch`] is, so that each test of events is a
//! test of recordings as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Alert;

/// Whether runs are recorded that do not ask for it.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("TOLLGATE_TEST_RECORD").is_some()
}

/// Where a run is recorded.
pub(crate) fn file(scratch: &Path) -> PathBuf {
    scratch.join("recording.scap")
}

/// What `replay` takes of the options of a run.
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

/// The alerts that a recording gives.
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

/// Compares what a run and the replay of its recording raised.
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

/// What must be the same: everything but the number of the event, which counts other events in a
/// file, and what the program says of itself.
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
