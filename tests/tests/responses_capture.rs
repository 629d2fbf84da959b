//! `host:capture` records the events of some seconds to a file that only its owner reads.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::marks::{MARK, marking, work};
use e2e::responding::{TAKEN, answering, pair, results, to_mark};
use e2e::{Alert, Watch, WatchResult};

fn capturing(parameters: &str) -> String {
    to_mark(&format!(
        "  - {{action: Record, actionner: 'host:capture', parameters: {{folder: '%W'{parameters}}}}}\n"
    ))
}

/// Returns the captures in the work folder.
fn captures(watched: &WatchResult) -> Vec<PathBuf> {
    let work = watched.scratch.path().join("work");
    let entries = fs::read_dir(work).expect("the work folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "scap"))
        .collect()
}

/// Runs the rule on a capture, and returns how many alerts it raises.
fn alerts_of(watch: &WatchResult, capture: &PathBuf) -> usize {
    let rules = watch.scratch.file("mark.yaml", 0o644, MARK);
    let mut command = Command::new(e2e::program());
    command.arg("replay").arg(capture).args(["--json", "-r"]);
    command.arg(&rules).stdin(Stdio::null());
    let output = command.output().expect("the program is built");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().filter_map(Alert::parse).count()
}

#[test]
fn events_after_the_alert_are_recorded_until_the_time_is_over() {
    let script = ": < %W/mark; sleep 0.4; cat %W/mark; sleep 1.2; head -c1 %W/mark; sleep 0.5";
    let watched = answering(script, &capturing(", duration: 1"))
        .limit(Duration::from_secs(30))
        .option("-o")
        .option("responses.rule_max_burst=1")
        .option("-o")
        .option("responses.rule_rate=0.001")
        .run();
    assert_eq!(
        results(&watched),
        [pair("host:capture", "done")],
        "{}",
        watched.story()
    );
    let captures = captures(&watched);
    let [capture] = &captures[..] else {
        panic!("{captures:?}: {}", watched.story());
    };
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(reason.starts_with("recorded "), "{reason}");
    assert!(
        reason.ends_with(&format!("to {}", capture.display())),
        "{reason}"
    );
    let found = fs::metadata(capture).expect("it is there");
    assert_eq!(found.mode() & 0o7777, 0o600);
    assert!(
        reason.contains(&format!(" in {} bytes ", found.len())),
        "{reason}"
    );
    assert_eq!(watched.of("Mark").len(), 3);
    // The second one: the first was before, the third after.
    assert_eq!(alerts_of(&watched, capture), 1, "{reason}");
}

#[test]
fn a_capture_ends_with_the_program_and_a_dry_run_records_nothing() {
    let watched = answering(": < %W/mark; echo done", &capturing(", duration: 60"))
        .limit(Duration::from_secs(30))
        .run();
    assert_eq!(
        results(&watched),
        [pair("host:capture", "done")],
        "{}",
        watched.story()
    );
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(reason.contains("the program ended before"), "{reason}");
    assert_eq!(captures(&watched).len(), 1);

    let watch = answering(": < %W/mark", &capturing(""));
    let watched = watch.option("--responses-dry-run").run();
    assert_eq!(results(&watched), [pair("host:capture", "dry_run")]);
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(
        reason.starts_with("would have recorded events for 10 s to a file in "),
        "{reason}"
    );
    assert!(captures(&watched).is_empty());
}

#[test]
fn what_does_not_fit_is_counted() {
    let script = ": < %W/mark; i=0; while [ $i -lt 20000 ]; do : < %W/mark; i=$((i+1)); done";
    let watched = answering(script, &capturing(", max_mib: 1"))
        .limit(Duration::from_secs(120))
        .option("-o")
        .option("responses.rule_max_burst=1")
        .option("-o")
        .option("responses.rule_rate=0.001")
        .run();
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(
        reason.contains("events after these did not fit `max_mib`"),
        "{reason}"
    );
    let captures = captures(&watched);
    let size = fs::metadata(&captures[0]).expect("it is there").len();
    assert!(size <= 1 << 20, "{size}");
}

/// Runs the program and returns what it complains about.
fn complaint(watch: &Watch, responses: &str) -> String {
    let folder = work(watch);
    let file = folder.join("r.yaml");
    let text = responses.replace("%W", &folder.display().to_string());
    fs::write(&file, text).expect("the scratch folder is writable");
    let mut command = Command::new(e2e::program());
    command.args(["run", "--responses"]).arg(&file);
    command.args(["--", "echo", "started"]).stdin(Stdio::null());
    let output = command.output().expect("it is built");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_recorded_starts_nothing() {
    let watch = marking("");
    let with = |parameters: &str| {
        to_mark(&format!(
            "  - {{action: R, actionner: 'host:capture', parameters: {{{parameters}}}}}\n"
        ))
    };
    for (parameters, expected) in [
        ("duration: 5", "needs the parameter `folder`"),
        ("folder: tmp", "has to be an absolute path"),
        ("folder: '%W/missing'", "is no folder"),
        ("folder: '%W', duration: 301", "300 s at most"),
        ("folder: '%W', max_mib: 0", "`max_mib` has to be MiB from 1"),
        ("folder: '%W', max_mb: 1", "did you mean `max_mib`?"),
    ] {
        let text = complaint(&watch, &with(parameters));
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("help: "), "{text}");
    }
}
