//! `tollgate bench -- CMD`: a command plain and watched, as a user measures it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Finished, Limited};
use serde_json::Value;

/// A command that takes long enough for a ratio, and the same time in each run.
const STEADY: [&str; 2] = ["sleep", "0.1"];
/// All that a measurement here may take; three runs a round, on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `tollgate bench OPTIONS -- COMMAND`.
fn bench(options: &[&str], command: &[&str]) -> Finished {
    let mut bench = Command::new(e2e::program());
    bench.arg("bench").args(options).arg("--").args(command);
    Limited::start(&mut bench, LIMIT).finish(b"")
}

/// Reads the JSON that a run printed or wrote.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Asserts that the interval of the ratio holds its estimate.
fn assert_interval(ratio: &Value) {
    let figure = |name: &str| {
        let found = ratio[name].as_f64();
        found.unwrap_or_else(|| panic!("no {name}: {ratio}"))
    };
    let (low, estimate, high) = (figure("low"), figure("estimate"), figure("high"));
    assert!(0.0 < low && low <= estimate && estimate <= high, "{ratio}");
}

#[test]
fn the_ratio_of_watched_to_plain_has_an_interval() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let file = folder.path().join("times.json");
    let file = file.to_str().expect("the folder has a name in UTF-8");
    let finished = bench(
        &["--rounds", "7", "--warmup", "0", "--export-json", file],
        &STEADY,
    );
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let text = &finished.stdout;
    for part in ["sleep 0.1\n", "\nplain ", "\nplain again ", "\nwatched "] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    let written = json(&std::fs::read_to_string(file).expect("--export-json writes the file"));
    assert_eq!(written["rounds"], 7);
    let results = written["results"].as_array().expect("results is a list");
    assert_eq!(results.len(), 3, "{written}");
    for (result, command) in
        results
            .iter()
            .zip(["sleep 0.1", "sleep 0.1", "tollgate run -- sleep 0.1"])
    {
        assert_eq!(result["command"], command);
        let times = result["times"].as_array().expect("times is a list");
        let is_long = |time: &Value| time.as_f64().is_some_and(|seconds| seconds >= 0.1);
        assert!(times.len() == 7 && times.iter().all(is_long), "{result}");
        let codes = result["exit_codes"].as_array().expect("a list of codes");
        assert!(codes.iter().all(|code| code == 0), "{result}");
    }
    assert_interval(&written["control"]);
    // On a busy machine noise may hide the effect: then there is no headline, and it says why.
    match written["ratio"].is_null() {
        false => {
            assert_interval(&written["ratio"]);
            assert!(text.contains("\nwatched takes "), "{text}");
            assert!(text.contains(" at 95 %, 7 rounds, engine auto)"), "{text}");
        }
        true => {
            assert!(text.contains("\nno ratio: "), "{text}");
            assert!(!text.contains("watched takes"), "{text}");
        }
    }
    assert!(text.contains("\ncontrol: plain again takes "), "{text}");
}

#[test]
fn too_few_rounds_have_no_headline_in_text_and_json() {
    let options = ["--rounds", "3", "--warmup", "0"];
    let finished = bench(&options, &["true"]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let text = &finished.stdout;
    assert!(text.contains("no ratio: too few rounds"), "{text}");
    assert!(!text.contains("watched takes"), "{text}");
    let finished = bench(&[&options[..], &["--json"]].concat(), &["true"]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let printed = json(&finished.stdout);
    assert!(printed["ratio"].is_null(), "{printed}");
    assert_eq!(printed["verdict"], "too few rounds");
    assert_eq!(
        printed["results"][2]["times"].as_array().map(Vec::len),
        Some(3)
    );
}

#[test]
fn a_failing_command_ends_the_measurement_unless_failures_are_ignored() {
    let failing = ["sh", "-c", "echo why >&2; exit 3"];
    let options = ["--rounds", "2", "--warmup", "0"];
    let finished = bench(&options, &failing);
    assert_eq!(finished.code(), 1, "{}", finished.stdout);
    assert_eq!(finished.stdout, "");
    for part in ["exit status 3: why", "--ignore-failure"] {
        assert!(
            finished.stderr.contains(part),
            "no {part:?}: {}",
            finished.stderr
        );
    }
    let finished = bench(
        &[&options[..], &["--ignore-failure", "--json"]].concat(),
        &failing,
    );
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let printed = json(&finished.stdout);
    for result in printed["results"].as_array().expect("results is a list") {
        assert_eq!(result["exit_codes"], serde_json::json!([3, 3]), "{result}");
    }
    let finished = bench(&[&options[..], &["--ignore-failure"]].concat(), &failing);
    let expected = "6 runs failed, the first with exit status 3";
    assert!(finished.stdout.contains(expected), "{}", finished.stdout);
}

#[test]
fn preparation_runs_before_each_run_and_the_command_stays_silent() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let log = folder.path().join("log");
    let line = |what: &str| format!("echo {what} >> '{}'", log.display());
    let (prepare, run) = (line("prepared"), line("ran") + "; echo shown");
    let options = ["--rounds", "2", "--warmup", "1", "--prepare", &prepare];
    let finished = bench(&options, &["sh", "-c", &run]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(!finished.stdout.contains("\nshown"), "{}", finished.stdout);
    assert_eq!(
        read(&log),
        "prepared\nran\n".repeat(9),
        "3 runs in each of 3 rounds"
    );
    let finished = bench(&["--rounds", "1", "--prepare", "exit 4"], &["true"]);
    assert_eq!(finished.code(), 1, "{}", finished.stdout);
    assert!(finished.stderr.contains("--prepare"), "{}", finished.stderr);
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("each run writes a line")
}

#[test]
fn figures_of_a_quick_run_are_labelled() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let out = folder.path().join("run");
    let mut quick = Command::new(e2e::program());
    quick
        .args(["bench", "os", "--quick", "--rounds", "1"])
        .args([
            "--workload",
            "^launch_programs$",
            "--subject",
            "notify",
            "--out",
        ])
        .arg(&out);
    let finished = Limited::start(&mut quick, LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let label = "quick run: short samples, for a first impression; do not cite these figures";
    assert!(finished.stdout.contains(label), "{}", finished.stdout);
    let mut report = Command::new(e2e::program());
    report.args(["bench", "report"]).arg(&out);
    let finished = Limited::start(&mut report, LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let page = std::fs::read_to_string(out.join("report.html"));
    let page = page.expect("bench report writes report.html");
    assert!(page.contains(label), "the page has no label");
}
