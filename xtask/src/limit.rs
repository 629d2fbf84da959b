//! `xtask limit SECONDS PROGRAM ARGUMENT...`: runs a test program, of which no test may run longer than that.
//!
//! A test that hangs is killed with all that it started and counts as failed. The tests that had not run yet are run
//! then. What is printed ends with a line `test result:` as the program itself would have printed it, so that sums
//! over such lines are right.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::descendants::{self, Ended, Observer};

/// libtest names a test that runs after so long, once.
const NOTICE: Duration = Duration::from_secs(60);

/// What a test program has printed so far.
struct Progress {
    limit: Duration,
    started: Instant,
    /// When the last test ended, or the program began.
    last: Instant,
    /// The program has said how many tests it runs: it is one of libtest's.
    is_announced: bool,
    /// It has printed its sums.
    is_summed: bool,
    results: BTreeMap<String, Outcome>,
    /// Tests that libtest has called slow, and when they had begun.
    slow: BTreeMap<String, Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Ignored,
}

impl Progress {
    fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            started: now,
            last: now,
            is_announced: false,
            is_summed: false,
            results: BTreeMap::new(),
            slow: BTreeMap::new(),
        }
    }

    fn note(&mut self, line: &str, now: Instant) {
        if line.starts_with("running ") && line.contains(" test") {
            self.is_announced = true;
        }
        if line.starts_with("test result: ") {
            self.is_summed = true;
        }
        let Some(rest) = line.strip_prefix("test ") else {
            return;
        };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            // The line came when the test had run for a minute.
            let begun = now.checked_sub(NOTICE).unwrap_or(now);
            self.slow.insert(name.to_owned(), begun);
        }
        if let Some((name, outcome)) = outcome(rest) {
            self.slow.remove(&name);
            self.results.insert(name, outcome);
            self.last = now;
        }
    }

    /// Returns tests that have run too long.
    fn hung(&self, now: Instant) -> BTreeSet<String> {
        let is_late = |begun: &Instant| now.duration_since(*begun) > self.limit;
        let late = self.slow.iter().filter(|(_, begun)| is_late(begun));
        late.map(|(name, _)| name.clone()).collect()
    }

    fn is_late_at(&self, now: Instant) -> bool {
        !self.hung(now).is_empty() || now.duration_since(self.last) > self.limit
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.results
            .values()
            .filter(|found| **found == outcome)
            .count()
    }

    /// Returns the exit code that the ended program stands for. One that announced tests and printed no sums has failed
    /// whatever its status is: a test that ends the whole program with `exit(0)` passes no other.
    fn code(&self, ended: &Ended) -> ExitCode {
        if ended.is_success() && self.is_announced && !self.is_summed {
            return ExitCode::FAILURE;
        }
        ended.code()
    }

    /// Returns what libtest would have printed, had it been able to. `failed`: tests without a result of their own
    /// that count as failed, and why.
    fn sums(&self, failed: &BTreeSet<String>, why: &str, now: Instant) -> String {
        let lines = failed
            .iter()
            .map(|name| format!("test {name} ... FAILED ({why})\n"));
        lines.collect::<String>()
            + &format!(
                "\ntest result: FAILED. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out; \
                 finished in {:.2}s\n\n",
                self.count(Outcome::Passed),
                // A program that ends without a result fails, also if all tests that it named have one.
                (self.count(Outcome::Failed) + failed.len()).max(1),
                self.count(Outcome::Ignored),
                now.duration_since(self.started).as_secs_f64(),
            )
    }
}

impl Observer for Progress {
    fn print(&mut self, bytes: &[u8]) {
        descendants::forward(bytes);
    }

    fn line(&mut self, line: &str) {
        self.note(line, Instant::now());
    }

    fn is_late(&mut self) -> bool {
        self.is_late_at(Instant::now())
    }
}

/// Returns name and outcome of a test from a line of libtest, after `test `.
fn outcome(rest: &str) -> Option<(String, Outcome)> {
    let (name, outcome) = rest.rsplit_once(" ... ")?;
    let outcome = match outcome.split([',', ' ']).next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Ignored,
        _ => return None,
    };
    Some((name.trim_end_matches(" - should panic").to_owned(), outcome))
}

/// Runs the program that `words` name, after the limit in seconds.
///
/// # Errors
/// The words are not valid, the program does not start, or this process was interrupted.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let [limit, program, arguments @ ..] = words else {
        anyhow::bail!(
            "cannot run a program: name the limit in seconds, the program, and its arguments"
        );
    };
    let limit: Option<u64> = limit.to_str().and_then(|text| text.parse().ok());
    let limit = limit.context("cannot read the limit: write a whole number of seconds")?;
    let limit = Duration::from_secs(limit);
    let interrupted = descendants::prepare()?;
    let options = options(arguments);
    let mut arguments = arguments.to_vec();
    let mut code = ExitCode::SUCCESS;
    loop {
        let (run, left) = once(limit, program, &arguments, &interrupted)?;
        if run != ExitCode::SUCCESS {
            code = run;
        }
        if left.is_empty() {
            return Ok(code);
        }
        println!("xtask: running the {} tests that had not ended", left.len());
        arguments = only(&options, left);
    }
}

/// Options of libtest whose value is the next argument, unless it is joined by `=`.
const WITH_VALUE: [&str; 6] = [
    "--test-threads",
    "--skip",
    "--color",
    "--format",
    "--logfile",
    "--shuffle-seed",
];

/// Returns the arguments that are options, with their values: all but the names of tests.
fn options(arguments: &[OsString]) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if !text.starts_with('-') {
            continue;
        }
        options.push(argument.clone());
        if WITH_VALUE.contains(&&*text) || text == "-Z" {
            options.extend(arguments.next().cloned());
        }
    }
    options
}

/// Returns the arguments that have a program run these tests, with these options.
fn only(options: &[OsString], tests: Vec<OsString>) -> Vec<OsString> {
    let is_other = |option: &&OsString| *option != "--exact";
    let options = options.iter().filter(is_other).cloned();
    let exact = OsString::from("--exact");
    options.chain([exact]).chain(tests).collect()
}

/// Runs the program once. Returns its exit code, and the tests that are still to be run because another one had to be
/// killed.
fn once(
    limit: Duration,
    program: &OsString,
    arguments: &[OsString],
    interrupted: &AtomicBool,
) -> Result<(ExitCode, Vec<OsString>)> {
    let mut progress = Progress::new(limit, Instant::now());
    let mut command = Command::new(program);
    let ended = descendants::supervise(command.args(arguments), false, interrupted, &mut progress)?;
    let now = Instant::now();
    let (killed, program) = (ended.killed.join(", "), program.display());
    if ended.status.is_some() && !killed.is_empty() {
        println!("xtask: {program} left processes, which were killed: {killed}");
    }
    let code = progress.code(&ended);
    if ended.status.is_some() && (progress.is_summed || !progress.is_announced) {
        return Ok((code, Vec::new()));
    }
    if !progress.is_announced {
        println!("xtask: {program} ran over {limit:?}; killed: {killed}");
        return Ok((code, Vec::new()));
    }
    let mut unfinished = names(command.get_program().into(), arguments)?;
    unfinished.retain(|name| !progress.results.contains_key(name));
    let hung = progress.hung(now);
    let why = match ended.status {
        Some(_) => "the program ended first".to_owned(),
        None => format!("ran over {limit:?}; killed: {killed}"),
    };
    // Which one hangs is known of the slow ones alone.
    if hung.is_empty() {
        descendants::forward(progress.sums(&unfinished, &why, now).as_bytes());
        return Ok((code, Vec::new()));
    }
    descendants::forward(progress.sums(&hung, &why, now).as_bytes());
    let left = unfinished.difference(&hung).map(OsString::from);
    Ok((code, left.collect()))
}

/// Returns the names of the tests that a program would run.
fn names(program: OsString, arguments: &[OsString]) -> Result<BTreeSet<String>> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args(["--list", "--format", "terse"]);
    let output = command
        .output()
        .context("cannot list the tests of the program")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions, waitpid};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    #[test]
    fn lines_of_libtest_are_understood() {
        let name = |name: &str, outcome| Some((name.to_owned(), outcome));
        for (line, expected) in [
            ("a::b ... ok", name("a::b", Outcome::Passed)),
            ("a - should panic ... ok", name("a", Outcome::Passed)),
            ("a ... FAILED", name("a", Outcome::Failed)),
            ("a ... ignored, takes long", name("a", Outcome::Ignored)),
            ("result: ok. 3 passed", None),
            ("a has been running for over 60 seconds", None),
        ] {
            assert_eq!(outcome(line), expected, "{line}");
        }
    }

    #[test]
    fn a_test_is_late_after_the_limit_however_many_others_end() {
        let start = Instant::now();
        let mut progress = Progress::new(LIMIT, start);
        progress.note("running 3 tests", start);
        progress.note(
            "test a has been running for over 60 seconds",
            start + NOTICE,
        );
        for second in (0..=600).step_by(100) {
            let now = start + Duration::from_secs(second);
            progress.note(&format!("test n{second} ... ok"), now);
            assert!(!progress.is_late_at(now), "{second}");
        }
        let late = start + LIMIT + Duration::from_secs(1);
        assert!(progress.is_late_at(late));
        assert_eq!(progress.hung(late), BTreeSet::from(["a".to_owned()]));
        progress.note("test a ... ok", late);
        assert!(!progress.is_late_at(late));
    }

    #[test]
    fn a_program_of_which_nothing_ends_is_late() {
        let start = Instant::now();
        let progress = Progress::new(LIMIT, start);
        assert!(!progress.is_late_at(start + LIMIT));
        assert!(progress.is_late_at(start + LIMIT + Duration::from_secs(1)));
    }

    #[test]
    fn sums_count_what_has_no_result_as_failed() {
        let start = Instant::now();
        let mut progress = Progress::new(LIMIT, start);
        for line in ["test a ... ok", "test b ... FAILED", "test c ... ignored"] {
            progress.note(line, start);
        }
        let hung = BTreeSet::from(["d".to_owned()]);
        assert_eq!(
            progress.sums(&hung, "why", start + Duration::from_secs(2)),
            "test d ... FAILED (why)\n\ntest result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; \
             0 filtered out; finished in 2.00s\n\n"
        );
    }

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_second_run_keeps_the_options_and_no_name_of_before() {
        let given = words(&[
            "a_filter",
            "--show-output",
            "--test-threads",
            "2",
            "--skip=x",
            "--skip",
            "slow",
            "--exact",
            "another",
            "--include-ignored",
            "-Z",
            "unstable-options",
        ]);
        assert_eq!(
            only(&options(&given), words(&["m::left"])),
            words(&[
                "--show-output",
                "--test-threads",
                "2",
                "--skip=x",
                "--skip",
                "slow",
                "--include-ignored",
                "-Z",
                "unstable-options",
                "--exact",
                "m::left",
            ])
        );
    }

    #[test]
    #[expect(
        clippy::zombie_processes,
        reason = "waitpid waits: the status of `Child` is another type"
    )]
    fn a_program_that_succeeds_without_its_sums_fails() {
        let child = Command::new("true").spawn().unwrap();
        let waited = waitpid(Some(Pid::from_child(&child)), WaitOptions::empty());
        let ended = Ended {
            status: waited.unwrap().map(|(_, status)| status),
            killed: Vec::new(),
        };
        assert!(ended.is_success());
        let mut progress = Progress::new(LIMIT, Instant::now());
        let code = |progress: &Progress| progress.code(&ended);
        // A program of another kind than libtest's has none.
        assert_eq!(code(&progress), ExitCode::SUCCESS);
        progress.note("running 2 tests", Instant::now());
        progress.note("test a ... ok", Instant::now());
        assert_eq!(code(&progress), ExitCode::FAILURE);
        progress.note("test result: ok. 2 passed; 0 failed", Instant::now());
        assert_eq!(code(&progress), ExitCode::SUCCESS);
    }
}
