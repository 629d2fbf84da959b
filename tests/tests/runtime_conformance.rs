//! The validation programs of the OCI's runtime-tools and the tests of youki, with runc alone and with this
//! program in front of it: what fails with us fails without.
//!
//! They come from no distribution. `TOLLGATE_TEST_RUNTIME_TOOLS` names a folder of the first ones' source in
//! which they were built, `TOLLGATE_TEST_CONTEST` a folder with the programs `contest` and `runtimetest` of the
//! others and their bundle, as `docs/reference/oci-conformance.md` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Limited, Scratch, installed, need_root, need_slow, program, skip, which};

const RUNTIME_TOOLS: &str = "TOLLGATE_TEST_RUNTIME_TOOLS";
const CONTEST: &str = "TOLLGATE_TEST_CONTEST";
/// The longest, on control groups, makes sixteen containers.
const LIMIT: Duration = Duration::from_secs(120);
/// Some wait a second for what a container does, which is not always enough on a busy machine.
const TRIES: u32 = 3;

/// Groups of youki's tests that are refused, as `docs/howto/watch-containers.md` says in its limits: a seccomp
/// listener of the container's own.
const REFUSED: [&str; 1] = ["seccomp_notify"];

/// Assertions of one run.
#[derive(Default)]
struct Outcome {
    ok: usize,
    /// Those that failed, by what they say, with how often.
    failed: BTreeMap<String, usize>,
    timed_out: bool,
}

impl Outcome {
    /// Of the validation programs, in the form of TAP.
    fn of_validation(text: &str) -> Self {
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

    /// Of youki's tests: `1 / 3 : name : ok`. What is skipped counts neither way.
    fn of_contest(text: &str) -> Self {
        let mut outcome = Self::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, " : ");
            let (Some(_), Some(name), Some(found)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if found == "ok" {
                outcome.ok += 1;
            } else if found.starts_with("not ok") {
                *outcome.failed.entry(name.to_owned()).or_default() += 1;
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

/// Something that is run with one runtime and with the other.
struct Case {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    parse: fn(&str) -> Outcome,
}

struct Lab {
    folder: PathBuf,
    scratch: Scratch,
    theirs: PathBuf,
}

impl Lab {
    fn new(folder: PathBuf) -> Self {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("bin")).expect("it is our folder");
        scratch.program(&program(), "bin/tollgate-runtime");
        let path = scratch.path().display();
        let settings = format!(
            "json_output: true\nfile_output: {{enabled: true, filename: {path}/alerts}}\nruntime: {{binary: runc}}\n"
        );
        scratch.file("tollgate.yaml", 0o644, settings);
        Self {
            folder,
            scratch,
            theirs: which("runc"),
        }
    }

    /// In a pid namespace, with which everything ends that a program leaves.
    fn run(&self, case: &Case, runtime: &Path) -> Outcome {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &LIMIT.as_secs().to_string()])
            .args(["unshare", "--mount", "--propagation", "private", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc"])
            .arg(&case.program)
            .args(&case.arguments)
            .env("RUNTIME", runtime)
            .env("TOLLGATE_RUNTIME_STATE", self.scratch.path().join("state"))
            .env(
                "TOLLGATE_RUNTIME_CONFIG",
                self.scratch.path().join("tollgate.yaml"),
            )
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        if case
            .arguments
            .iter()
            .any(|argument| argument == "--runtime")
        {
            command.arg(runtime);
        }
        let finished = Limited::start(&mut command, LIMIT + Duration::from_secs(20)).finish(b"");
        let mut outcome = (case.parse)(&finished.stdout);
        outcome.timed_out = finished.code() == 124;
        if finished.stderr.contains("panicked at") {
            outcome.failed.insert("it stopped".to_owned(), 1);
        }
        outcome
    }

    /// Both, again if ours is worse: then once more each, and the last of each counts.
    fn compare(&self, case: &Case) -> (Outcome, Outcome) {
        let ours = self.scratch.path().join("bin/tollgate-runtime");
        let mut theirs = self.run(case, &self.theirs);
        let mut own = self.run(case, &ours);
        for _ in 1..TRIES {
            if !own.is_worse_than(&theirs) {
                break;
            }
            theirs = self.run(case, &self.theirs);
            own = self.run(case, &ours);
        }
        (theirs, own)
    }

    /// Prints the table, and fails if anything is worse.
    fn compare_all(&self, cases: &[Case]) {
        assert!(
            !cases.is_empty(),
            "nothing was built in {}",
            self.folder.display()
        );
        let mut worse = Vec::new();
        println!(
            "| test | runc ok | runc not ok | tollgate ok | tollgate not ok |\n|---|---|---|---|---|"
        );
        let mut sums = [0; 4];
        for case in cases {
            let (theirs, own) = self.compare(case);
            let late = |outcome: &Outcome| if outcome.timed_out { " (time out)" } else { "" };
            let counts = [theirs.ok, theirs.not_ok(), own.ok, own.not_ok()];
            println!(
                "| {} | {}{} | {} | {}{} | {} |",
                case.name,
                counts[0],
                late(&theirs),
                counts[1],
                counts[2],
                late(&own),
                counts[3]
            );
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
            let is_refused = REFUSED.contains(&case.name.as_str());
            if is_refused {
                assert_eq!(own.ok, 0, "{} is refused no longer", case.name);
            } else if own.is_worse_than(&theirs) {
                worse.push(format!("{}: {:?}", case.name, own.failed));
            }
        }
        let [runc_ok, runc_not_ok, own_ok, own_not_ok] = sums;
        let count = cases.len();
        println!("| all {count} | {runc_ok} | {runc_not_ok} | {own_ok} | {own_not_ok} |");
        assert!(worse.is_empty(), "{}", worse.join("\n"));
    }
}

/// The programs that were built, by name.
fn validations(tools: &Path) -> Vec<Case> {
    let entries = std::fs::read_dir(tools.join("validation"));
    let entries =
        entries.unwrap_or_else(|error| panic!("cannot read {}: {error}", tools.display()));
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let program = entry.path().join(format!("{name}.t"));
            program.is_file().then_some(Case {
                name,
                program,
                arguments: Vec::new(),
                parse: Outcome::of_validation,
            })
        })
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Youki's tests by their groups: a test that panics ends all that come after it.
fn groups(folder: &Path) -> Vec<Case> {
    let program = folder.join("contest");
    let mut list = Command::new(&program);
    list.arg("list").current_dir(folder).stdin(Stdio::null());
    let listed = Limited::start(&mut list, LIMIT).finish(b"");
    assert_eq!(listed.code(), 0, "{listed:?}");
    let group = |name: &str| Case {
        name: name.to_owned(),
        program: program.clone(),
        arguments: [
            "run",
            "--runtimetest",
            "./runtimetest",
            "-t",
            name,
            "--runtime",
        ]
        .map(str::to_owned)
        .to_vec(),
        parse: Outcome::of_contest,
    };
    listed.stdout.split_whitespace().map(group).collect()
}

/// The folder that a variable names, without which a test is skipped.
macro_rules! folder {
    ($variable:expr) => {{
        need_root!();
        need_slow!();
        let Some(folder) = std::env::var_os($variable).map(PathBuf::from) else {
            skip!("needs tests of others", || Ok(format!(
                "{} is not set",
                $variable
            )));
        };
        assert!(installed("runc"), "runc is in no folder of PATH");
        folder
    }};
}

#[test]
fn no_validation_fails_that_succeeds_without_us() {
    let lab = Lab::new(folder!(RUNTIME_TOOLS));
    lab.compare_all(&validations(&lab.folder));
}

#[test]
fn no_test_of_youki_fails_that_succeeds_without_us() {
    let lab = Lab::new(folder!(CONTEST));
    lab.compare_all(&groups(&lab.folder));
}

#[test]
fn what_a_test_of_youki_says_is_counted() {
    let outcome = Outcome::of_contest(
        "# Start group create\n1 / 4 : empty_id : ok\n2 / 4 : a b : not ok\n\tno such file : ok\n3 / 4 : c : skipped\n# End group create\n",
    );
    assert_eq!(outcome.not_ok(), 1);
    assert_eq!(outcome.failed["a b"], 1);
}

#[test]
fn what_a_validation_says_is_counted() {
    let outcome = Outcome::of_validation(
        "TAP version 13\nok 1 - a\nnot ok 2 - b c\n# not ok\nnot ok 3 - b c\n1..3\n",
    );
    assert_eq!((outcome.ok, outcome.not_ok()), (1, 2));
    assert_eq!(outcome.failed["b c"], 2);
    let better = Outcome::of_validation("ok 1 - a\nnot ok 2 - b c\n");
    assert!(outcome.is_worse_than(&better) && !better.is_worse_than(&outcome));
}
