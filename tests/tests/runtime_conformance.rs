//! The validation programs of the OCI's runtime-tools, with runc alone and with this program in front of
//! it: what fails with us fails without.
//!
//! They come from no distribution. `TOLLGATE_TEST_RUNTIME_TOOLS` names a folder of their source in which
//! they were built, as `docs/oci-conformance.md` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Limited, Scratch, installed, need_root, need_slow, program, skip};

const FOLDER: &str = "TOLLGATE_TEST_RUNTIME_TOOLS";
/// The longest, on control groups, makes sixteen containers.
const LIMIT: Duration = Duration::from_secs(120);
/// Some wait a second for what a container does, which is not always enough on a busy machine.
const TRIES: u32 = 3;

/// Assertions of one run.
#[derive(Default)]
struct Outcome {
    ok: usize,
    /// Those that failed, by what they say, with how often.
    failed: BTreeMap<String, usize>,
    timed_out: bool,
}

impl Outcome {
    fn parse(text: &str) -> Self {
        let mut outcome = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("not ok") {
                let said =
                    rest.trim_start_matches(|c: char| c.is_ascii_digit() || " -".contains(c));
                *outcome.failed.entry(said.to_owned()).or_default() += 1;
            } else if line.starts_with("ok") {
                outcome.ok += 1;
            }
        }
        outcome
    }

    fn not_ok(&self) -> usize {
        self.failed.values().sum()
    }

    fn is_worse_than(&self, other: &Self) -> bool {
        let more =
            |(said, count): (&String, &usize)| *count > *other.failed.get(said).unwrap_or(&0);
        self.ok < other.ok || self.failed.iter().any(more) || self.timed_out && !other.timed_out
    }
}

struct Lab {
    tools: PathBuf,
    scratch: Scratch,
}

impl Lab {
    fn new(tools: PathBuf) -> Self {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("bin")).expect("it is our folder");
        scratch.program(&program(), "bin/tollgate-runtime");
        let path = scratch.path().display();
        let settings = format!(
            "json_output: true\nfile_output: {{enabled: true, filename: {path}/alerts}}\nruntime: {{binary: runc}}\n"
        );
        scratch.file("tollgate.yaml", 0o644, settings);
        Self { tools, scratch }
    }

    fn run(&self, validation: &Path, runtime: &Path) -> Outcome {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &LIMIT.as_secs().to_string()])
            .arg(validation)
            .env("RUNTIME", runtime)
            .env("TOLLGATE_RUNTIME_STATE", self.scratch.path().join("state"))
            .env(
                "TOLLGATE_RUNTIME_CONFIG",
                self.scratch.path().join("tollgate.yaml"),
            )
            .current_dir(&self.tools)
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT + Duration::from_secs(20)).finish(b"");
        Outcome {
            timed_out: finished.code() == 124,
            ..Outcome::parse(&finished.stdout)
        }
    }

    /// Both, again if ours is worse: then once more each, and the best of ours counts.
    fn compare(&self, validation: &Path) -> (Outcome, Outcome) {
        let ours = self.scratch.path().join("bin/tollgate-runtime");
        let mut theirs = self.run(validation, Path::new("runc"));
        let mut own = self.run(validation, &ours);
        for _ in 1..TRIES {
            if !own.is_worse_than(&theirs) {
                break;
            }
            theirs = self.run(validation, Path::new("runc"));
            own = self.run(validation, &ours);
        }
        (theirs, own)
    }
}

/// The programs that were built, by name.
fn validations(tools: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(tools.join("validation"));
    let entries =
        entries.unwrap_or_else(|error| panic!("cannot read {}: {error}", tools.display()));
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let file = entry.path().join(format!("{name}.t"));
            file.is_file().then_some((name, file))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn no_validation_fails_that_succeeds_without_us() {
    need_root!();
    need_slow!();
    let Some(tools) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        skip!("needs the validation programs", || Ok(format!(
            "{FOLDER} is not set"
        )));
    };
    assert!(installed("runc"), "runc is in no folder of PATH");
    let lab = Lab::new(tools);
    let validations = validations(&lab.tools);
    assert!(
        !validations.is_empty(),
        "nothing was built in {}",
        lab.tools.display()
    );
    let mut worse = Vec::new();
    println!(
        "| validation | runc ok | runc not ok | tollgate ok | tollgate not ok |\n|---|---|---|---|---|"
    );
    for (name, file) in &validations {
        let (theirs, own) = lab.compare(file);
        let late = |outcome: &Outcome| if outcome.timed_out { " (time out)" } else { "" };
        println!(
            "| {name} | {}{} | {} | {}{} | {} |",
            theirs.ok,
            late(&theirs),
            theirs.not_ok(),
            own.ok,
            late(&own),
            own.not_ok()
        );
        if own.is_worse_than(&theirs) {
            worse.push(format!("{name}: {:?}", own.failed));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

#[test]
fn what_a_validation_says_is_counted() {
    let outcome = Outcome::parse(
        "TAP version 13\nok 1 - a\nnot ok 2 - b c\n# not ok\nnot ok 3 - b c\n1..3\n",
    );
    assert_eq!((outcome.ok, outcome.not_ok()), (1, 2));
    assert_eq!(outcome.failed["b c"], 2);
    let better = Outcome::parse("ok 1 - a\nnot ok 2 - b c\n");
    assert!(outcome.is_worse_than(&better) && !better.is_worse_than(&outcome));
}
