//! The loop over rounds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::execute::{Execution, Executor, Invocation};
use crate::host::State;
use crate::order::{Schedule, Slot};
use crate::plan::{Plan, STATS_FILE, Subject, TimeSource, Workload};
use crate::record::{Exit, Recorder, Sample, WorkCheck};
use crate::{Error, Stop, command_line};

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The budget had no time for one more round.
    BudgetUsed,
    /// All rounds were run, and the wanted precision, if any, was reached.
    Complete,
    /// A stop was requested.
    Interrupted,
}

/// Progress of a run, after each sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The sample that has just been recorded.
    pub sample: &'a Sample,
    /// The round of the sample, from 1.
    pub round: u32,
    /// Number of rounds of the plan.
    pub rounds: u32,
    /// Estimated time until the end, from the time per sample so far.
    pub left: Duration,
}

/// Upper bound of the random environment padding, in bytes: one page moves the stack through every alignment
/// that matters to a cache.
const MAX_PADDING: u64 = 4096;

/// Number of subjects of a bare workload: native and its control.
const BARE: usize = 2;

/// Number of bytes of an invalid sample's standard error that are kept.
const STDERR_KEPT: usize = 500;

/// Runs `plan` and passes each sample to `recorder` before the next starts. The plan's command lines must
/// already contain the path of the running program ([`Plan::with_program`]).
///
/// # Errors
///
/// If a command does not start, or a sample cannot be recorded. Samples recorded before remain.
pub fn run(
    plan: &Plan,
    executor: &mut dyn Executor,
    recorder: &mut Recorder,
    stop: &Stop,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<RunEnd, Error> {
    let subjects = plan.all_subjects();
    let mut schedule = Schedule::new(plan.workloads.len(), subjects.len(), plan.seed);
    let mut precision = Precision::new(plan);
    let samples_in_all = samples_of(plan, subjects.len());
    let budget = plan
        .budget_seconds
        .map_or(Duration::MAX, Duration::from_secs);
    let (start, mut done) = (Instant::now(), 0_u32);
    for round in 0.. {
        let open = precision.open(round);
        if !open.contains(&true) {
            break;
        }
        let slots: Vec<Slot> = schedule
            .next_round()
            .into_iter()
            .filter(|slot| open[slot.workload])
            .filter(|slot| slot.subject < BARE || !plan.workloads[slot.workload].is_bare)
            .collect();
        // The mean time of the samples so far is the estimate for the next.
        if done > 0 && start.elapsed() / done * (done + count(slots.len())) > budget {
            return Ok(RunEnd::BudgetUsed);
        }
        for (order, slot) in slots.into_iter().enumerate() {
            let Slot { workload, subject } = slot;
            let mut taken = PlannedSample {
                plan,
                workload: &plan.workloads[workload],
                subject: &subjects[subject],
                seed: schedule.sample_seed(),
            }
            .run(executor)?;
            (taken.round, taken.order) = (round, count(order));
            recorder.append(&taken)?;
            precision.note(workload, subject, &taken);
            done += 1;
            let all = start.elapsed() / done * samples_in_all.max(done);
            let left = all.min(budget).saturating_sub(start.elapsed());
            progress(Progress {
                sample: &taken,
                round: round + 1,
                rounds: plan.rounds.max(round + 1),
                left,
            });
            if stop.is_requested() {
                return Ok(RunEnd::Interrupted);
            }
        }
    }
    Ok(RunEnd::Complete)
}

/// Returns the largest number of samples of a plan, if none of its rounds is repeated.
fn samples_of(plan: &Plan, subjects: usize) -> u32 {
    let each = plan.workloads.iter().map(|workload| {
        let rounds = workload.rounds.unwrap_or(plan.rounds).min(plan.rounds);
        let subjects = if workload.is_bare { BARE } else { subjects };
        rounds * count(subjects)
    });
    each.sum()
}

/// Selects the workloads that need more rounds.
struct Precision<'a> {
    plan: &'a Plan,
    /// Valid figures by round, for each workload and subject.
    figures: Vec<Vec<BTreeMap<u32, f64>>>,
}

impl<'a> Precision<'a> {
    fn new(plan: &'a Plan) -> Self {
        let subjects = plan.all_subjects().len();
        Self {
            plan,
            figures: vec![vec![BTreeMap::new(); subjects]; plan.workloads.len()],
        }
    }

    fn note(&mut self, workload: usize, subject: usize, sample: &Sample) {
        if let Some(figure) = sample.ns_per_operation() {
            self.figures[workload][subject].insert(sample.round, figure);
        }
    }

    /// Returns for each workload whether it takes part in this round.
    fn open(&self, round: u32) -> Vec<bool> {
        (self.plan.workloads.iter().zip(&self.figures))
            .map(|(workload, figures)| match workload.rounds {
                Some(rounds) => round < rounds.min(self.plan.rounds),
                None if round < self.plan.rounds => true,
                None => self
                    .plan
                    .precision
                    .is_some_and(|wanted| !known(figures, wanted, self.plan.seed)),
            })
            .collect()
    }
}

/// Returns true if all ratios to the first subject have the wanted precision. Ignores a subject whose samples
/// all failed: more samples would not help.
fn known(figures: &[BTreeMap<u32, f64>], wanted: f64, seed: u64) -> bool {
    let (native, others) = figures.split_first().expect("native is always there");
    others
        .iter()
        .filter(|other| !other.is_empty())
        .all(|other| {
            let both =
                (native.iter()).filter_map(|(round, base)| Some((*base, *other.get(round)?)));
            let Ok(pairs) = stats::Pairs::new(both.collect::<Vec<_>>()) else {
                return native.is_empty();
            };
            let ratio = stats::ratio_of_medians(&pairs, 0.95, seed);
            (ratio.high - ratio.low) / 2.0 <= wanted * ratio.estimate
        })
}

fn count(length: usize) -> u32 {
    u32::try_from(length).expect("a plan has fewer than 2^32 samples a round")
}

/// A sample to take.
struct PlannedSample<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    subject: &'a Subject,
    seed: u64,
}

impl PlannedSample<'_> {
    fn run(&self, executor: &mut dyn Executor) -> Result<Sample, Error> {
        let asked = self.subject.wrapper.contains(STATS_FILE);
        // A folder of its own, removed together with anything that a subject writes next to the file.
        let folder = asked.then(crate::scratch).transpose()?;
        let stats_file = folder.as_ref().map(|folder| folder.path().join("stats"));
        let invocation = self.invocation(stats_file.as_deref())?;
        let before = State::now();
        let execution = executor.execute(&invocation)?;
        let after = State::now();
        let counters = stats_file.and_then(|path| {
            let text = fs::read_to_string(path).ok()?;
            last_counters(&text)
        });
        let is_silent = asked && counters.is_none();
        let mut sample = self.sample(&execution, counters.unwrap_or_default());
        // Without counters it is unknown what the run lost, so its time is not valid.
        if is_silent && sample.invalid.is_none() {
            sample.invalid = Some("the subject wrote no counters".to_owned());
        }
        sample.load_1m = before.load.map(|load| load[0]);
        sample.steal_ms = after
            .steal_ms
            .zip(before.steal_ms)
            .map(|(to, from)| to - from.min(to));
        sample.timestamp_ms = before.timestamp_ms;
        Ok(sample)
    }

    fn invocation(&self, stats_file: Option<&Path>) -> Result<Invocation, Error> {
        let mut wrapper = command_line::split(&self.subject.wrapper)?;
        if let Some(path) = stats_file {
            let path = path.to_string_lossy();
            wrapper
                .iter_mut()
                .for_each(|word| *word = word.replace(STATS_FILE, &path));
        }
        let mut inner = command_line::split(&self.workload.command)?;
        if let Some(divisor) = self.subject.divide_operations {
            divide_operations(&mut inner, divisor);
        }
        let mut argv = command_line::wrap(&wrapper, &inner);
        let setup = self.plan.setup.as_ref().map(|setup| &setup.wrapper);
        for around in self.workload.around.iter().chain(setup) {
            argv = command_line::wrap(&command_line::split(around)?, &argv);
        }
        Ok(Invocation {
            argv,
            padding: usize::try_from(self.seed % MAX_PADDING).expect("a page fits into usize"),
            timeout: Duration::from_secs(self.plan.timeout_seconds),
        })
    }

    fn sample(&self, execution: &Execution, counters: Counters) -> Sample {
        let wall_ns = nanoseconds(execution.wall);
        let report = match self.workload.figure {
            TimeSource::Json => report_in(&execution.stdout),
            TimeSource::Fastest => report_in(&execution.stdout).and_then(Report::fastest),
            TimeSource::Wall => Some(Report {
                operations: self.workload.operations.unwrap_or(1),
                elapsed_ns: wall_ns,
                windows: Vec::new(),
                extra: BTreeMap::new(),
            }),
        };
        let seen = report.as_ref().map(|report| report.operations);
        let witness = WorkCheck {
            expected: self.workload.operations,
            seen,
        };
        let invalid = reason_to_reject(execution.exit, witness);
        let elapsed_ns = report.as_ref().map(|report| report.elapsed_ns);
        // A command that printed no report has neither.
        let (windows_ns_per_op, extra) = report
            .map(|report| (report.windows, report.extra))
            .unwrap_or_default();
        let stderr = invalid.as_ref().map(|_| tail(&execution.stderr).to_owned());
        Sample {
            round: 0,
            order: 0,
            workload: self.workload.name.clone(),
            subject: self.subject.name.clone(),
            seed: self.seed,
            operations: seen,
            elapsed_ns,
            windows_ns_per_op,
            extra,
            wall_ns,
            user_us: nanoseconds(execution.user) / 1000,
            sys_us: nanoseconds(execution.sys) / 1000,
            max_rss_kib: execution.max_rss_kib,
            exit: execution.exit,
            witness,
            events: counters.events,
            drops: counters.drops,
            load_1m: None,
            steal_ms: None,
            timestamp_ms: 0,
            invalid,
            stderr,
        }
    }
}

/// Divides the number after `--operations`.
fn divide_operations(words: &mut [String], divisor: u64) {
    let Some(at) = words.iter().position(|word| word == "--operations") else {
        return;
    };
    if let Some(word) = words.get_mut(at + 1)
        && let Ok(number) = word.parse::<u64>()
    {
        *word = (number / divisor).max(1).to_string();
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the reason why a sample is invalid, if it is.
fn reason_to_reject(exit: Exit, witness: WorkCheck) -> Option<String> {
    match exit {
        Exit::TimedOut => return Some("took longer than the plan's timeout_seconds".to_owned()),
        exit => {
            if let Some(reason) = exit.failure() {
                return Some(reason);
            }
        }
    }
    match (witness.expected, witness.seen) {
        (_, None) => Some("printed no line with operations and elapsed_ns".to_owned()),
        (_, Some(0)) => Some("did no operation".to_owned()),
        (Some(expected), Some(seen)) if expected != seen => {
            Some(format!("did {seen} operations, not {expected}"))
        }
        _ => None,
    }
}

/// The report that a workload prints about itself; other keys are ignored.
#[derive(Debug, PartialEq, Deserialize)]
struct Report {
    operations: u64,
    elapsed_ns: u64,
    #[serde(default)]
    windows: Vec<f64>,
    #[serde(default)]
    extra: BTreeMap<String, f64>,
}

impl Report {
    /// Returns the report as if every operation had been as fast as those of the fastest window.
    fn fastest(self) -> Option<Self> {
        let best = self.windows.iter().copied().reduce(f64::min)?;
        let elapsed = Duration::try_from_secs_f64(best * self.operations as f64 / 1e9).ok()?;
        Some(Self {
            elapsed_ns: nanoseconds(elapsed),
            ..self
        })
    }
}

/// Returns the last line that is a report: a subject may print its own lines around the workload's.
fn report_in(stdout: &str) -> Option<Report> {
    stdout
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

/// Counters of a subject.
#[derive(Debug, Default, PartialEq, Deserialize)]
struct Counters {
    events: Option<u64>,
    drops: Option<u64>,
}

/// Returns the counters in the last line of a statistics file: in `cur`, or at the top level.
fn last_counters(text: &str) -> Option<Counters> {
    #[derive(Deserialize)]
    struct Line {
        cur: Option<Counters>,
        #[serde(flatten)]
        own: Counters,
    }
    let line: Line = text
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())?;
    Some(line.cur.unwrap_or(line.own))
}

fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let mut start = text.len().saturating_sub(STDERR_KEPT);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::Host;
    use crate::record::{Recording, SAMPLES};

    /// Returns a result for a command line and its index in the run.
    type Answer<'a> = dyn FnMut(&[String], usize) -> Execution + 'a;

    /// An executor that starts no process.
    struct Mock<'a> {
        ran: Vec<Vec<String>>,
        answer: Box<Answer<'a>>,
    }

    impl Executor for Mock<'_> {
        fn execute(&mut self, invocation: &Invocation) -> Result<Execution, Error> {
            self.ran.push(invocation.argv.clone());
            Ok((self.answer)(&invocation.argv, self.ran.len()))
        }
    }

    fn done(stdout: &str) -> Execution {
        Execution {
            wall: Duration::from_millis(2),
            user: Duration::from_micros(10),
            sys: Duration::from_micros(20),
            max_rss_kib: 1000,
            exit: Exit::Code(0),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        }
    }

    fn plan(rounds: u32) -> Plan {
        let text = format!(
            r#"{{"name": "mock", "rounds": {rounds}, "workload": [
                {{"name": "a", "command": "work a", "figure": "json", "operations": 100}},
                {{"name": "b", "command": "work b", "figure": "wall"}}],
                "subject": [{{"name": "slow", "wrapper": "slow -- {{}}"}}]}}"#
        );
        serde_json::from_str::<Plan>(&text)
            .unwrap()
            .checked()
            .unwrap()
    }

    /// Runs `plan` with `answer`. Returns the plan's end, the recording, and the commands in order.
    fn run_mock<'a>(
        plan: &Plan,
        stop: &'a Stop,
        answer: impl FnMut(&[String], usize) -> Execution + 'a,
    ) -> (RunEnd, Recording, Vec<Vec<String>>) {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(folder.path(), plan, &Host::observe(plan)).unwrap();
        let mut mock = Mock {
            ran: Vec::new(),
            answer: Box::new(answer),
        };
        let ended = run(plan, &mut mock, &mut recorder, stop, &mut |_| {}).unwrap();
        (ended, Recording::load(folder.path()).unwrap(), mock.ran)
    }

    const REPORT: &str = r#"{"operations":100,"elapsed_ns":5000,"windows":[49.5,50.25]}"#;

    #[test]
    fn every_round_runs_every_subject_and_native_twice() {
        let (stop, plan) = (Stop::new().unwrap(), plan(4));
        let (ended, recording, ran) = run_mock(&plan, &stop, |_, _| done(REPORT));
        assert_eq!(
            (ended, ran.len(), recording.samples.len()),
            (RunEnd::Complete, 24, 24)
        );
        for round in 0..4 {
            let mut names = BTreeMap::new();
            for sample in recording
                .samples
                .iter()
                .filter(|sample| sample.round == round)
            {
                *names
                    .entry((&*sample.workload, &*sample.subject))
                    .or_insert(0) += 1;
            }
            let subjects = ["native", "native-again", "slow"];
            assert_eq!(names.len(), 6);
            assert!(
                subjects
                    .iter()
                    .all(|s| names[&("a", *s)] == 1 && names[&("b", *s)] == 1)
            );
        }
        assert!(ran.iter().any(|argv| *argv == ["slow", "--", "work", "a"]));
        assert_eq!(ran.iter().filter(|argv| **argv == ["work", "b"]).count(), 8);
    }

    #[test]
    fn the_second_round_mirrors_the_first() {
        let (stop, plan) = (Stop::new().unwrap(), plan(2));
        let (_, recording, _) = run_mock(&plan, &stop, |_, _| done(REPORT));
        let order = |round| {
            let of_round = recording
                .samples
                .iter()
                .filter(move |sample| sample.round == round);
            of_round
                .map(|s| (s.workload.clone(), s.subject.clone()))
                .collect::<Vec<_>>()
        };
        let mut second = order(1);
        second.reverse();
        assert_eq!(order(0), second);
    }

    #[test]
    fn figures_come_from_the_report_or_the_wall() {
        let (stop, plan) = (Stop::new().unwrap(), plan(1));
        let noisy = format!("an alert\n{REPORT}\n{{\"priority\":\"Notice\"}}\n");
        let (_, recording, _) = run_mock(&plan, &stop, |_, _| done(&noisy));
        for sample in &recording.samples {
            let expected = if sample.workload == "a" {
                50.0
            } else {
                2_000_000.0
            };
            assert_eq!(sample.ns_per_operation(), Some(expected), "{sample:?}");
            assert_eq!(
                (sample.user_us, sample.sys_us, sample.wall_ns),
                (10, 20, 2_000_000)
            );
        }
    }

    #[test]
    fn a_failed_witness_or_exit_is_recorded_and_counts_nowhere() {
        for (stdout, exit, expected) in [
            (
                r#"{"operations":99,"elapsed_ns":1}"#,
                Exit::Code(0),
                "did 99 operations, not 100",
            ),
            (
                r#"{"operations":0,"elapsed_ns":1}"#,
                Exit::Code(0),
                "did no operation",
            ),
            (
                "",
                Exit::Code(0),
                "printed no line with operations and elapsed_ns",
            ),
            (REPORT, Exit::Code(1), "exit status 1"),
            (REPORT, Exit::Signal(9), "killed by signal 9"),
            (
                REPORT,
                Exit::TimedOut,
                "took longer than the plan's timeout_seconds",
            ),
        ] {
            let (stop, plan) = (Stop::new().unwrap(), plan(1));
            let (_, recording, _) = run_mock(&plan, &stop, |argv, _| {
                let spoiled = argv[0] == "slow" && argv[3] == "a";
                let exit = if spoiled { exit } else { Exit::Code(0) };
                let stderr = "the reason".to_owned();
                Execution {
                    exit,
                    stderr,
                    ..done(if spoiled { stdout } else { REPORT })
                }
            });
            let (bad, good): (Vec<_>, Vec<_>) = recording
                .samples
                .iter()
                .partition(|sample| sample.invalid.is_some());
            assert_eq!((bad.len(), good.len()), (1, 5));
            assert_eq!(bad[0].invalid.as_deref(), Some(expected));
            assert_eq!(bad[0].stderr.as_deref(), Some("the reason"));
            assert_eq!(bad[0].ns_per_operation(), None);
        }
    }

    #[test]
    fn a_subject_that_was_asked_for_counters_and_wrote_none_is_invalid() {
        let stop = Stop::new().unwrap();
        for (written, expected) in [
            (None, Some("the subject wrote no counters")),
            (Some("no JSON"), Some("the subject wrote no counters")),
            (Some(r#"{"cur":{"events":7,"drops":0}}"#), None),
        ] {
            let mut plan = plan(1);
            plan.subjects[0].wrapper = "slow {stats} {}".to_owned();
            let (_, recording, _) = run_mock(&plan, &stop, |argv, _| {
                if let (true, Some(text)) = (argv[0] == "slow", written) {
                    fs::write(&argv[1], text).unwrap();
                }
                done(REPORT)
            });
            let slow = |sample: &&Sample| sample.subject == "slow";
            let (asked, others): (Vec<_>, Vec<_>) = recording.samples.iter().partition(slow);
            assert_eq!((asked.len(), others.len()), (2, 4));
            assert!(
                asked
                    .iter()
                    .all(|sample| sample.invalid.as_deref() == expected)
            );
            assert!(others.iter().all(|sample| sample.invalid.is_none()));
        }
    }

    #[test]
    fn a_stop_ends_after_the_sample_and_keeps_it() {
        let (stop, plan) = (Stop::new().unwrap(), plan(4));
        let (ended, recording, ran) = run_mock(&plan, &stop, |_, nth| {
            if nth == 8 {
                stop.request();
                return Execution {
                    exit: Exit::Interrupted,
                    ..done("")
                };
            }
            done(REPORT)
        });
        assert_eq!(
            (ended, ran.len(), recording.samples.len()),
            (RunEnd::Interrupted, 8, 8)
        );
        assert_eq!(recording.samples[7].invalid.as_deref(), Some("interrupted"));
        assert!(
            recording.samples[..7]
                .iter()
                .all(|sample| sample.invalid.is_none())
        );
    }

    #[test]
    fn each_sample_is_on_disk_before_the_next_begins() {
        let plan = plan(1);
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(folder.path(), &plan, &Host::observe(&plan)).unwrap();
        let answer = |_: &[String], nth: usize| {
            let text = fs::read_to_string(folder.path().join(SAMPLES)).unwrap();
            assert_eq!(text.lines().count(), nth - 1);
            done(REPORT)
        };
        let mut mock = Mock {
            ran: Vec::new(),
            answer: Box::new(answer),
        };
        run(
            &plan,
            &mut mock,
            &mut recorder,
            &Stop::new().unwrap(),
            &mut |_| {},
        )
        .unwrap();
        assert_eq!(mock.ran.len(), 6);
    }

    #[test]
    fn the_budget_ends_a_run_at_a_round() {
        let stop = Stop::new().unwrap();
        let plan = Plan {
            budget_seconds: Some(0),
            ..plan(50)
        };
        let (ended, recording, _) = run_mock(&plan, &stop, |_, _| done(REPORT));
        assert_eq!((ended, recording.samples.len()), (RunEnd::BudgetUsed, 6));
    }

    /// Six rounds are too few while the figures of `slow` differ by half; when they settle, six are enough.
    #[test]
    fn a_wanted_precision_takes_more_rounds_until_it_is_reached() {
        let stop = Stop::new().unwrap();
        let mut plan = plan(6);
        plan.workloads.remove(1);
        (plan.precision, plan.budget_seconds) = (Some(0.02), Some(60));
        let noisy = |argv: &[String], nth: usize| {
            let is_noisy = argv[0] == "slow" && nth < 30 && nth.is_multiple_of(2);
            done(if is_noisy {
                r#"{"operations":100,"elapsed_ns":9000}"#
            } else {
                REPORT
            })
        };
        let (ended, recording, _) = run_mock(&plan, &stop, noisy);
        let rounds = recording
            .samples
            .iter()
            .map(|sample| sample.round)
            .max()
            .unwrap()
            + 1;
        assert_eq!(ended, RunEnd::Complete);
        assert!((7..60).contains(&rounds), "{rounds}");

        let (_, quiet, _) = run_mock(&plan, &stop, |_, _| done(REPORT));
        assert_eq!(quiet.samples.len(), 18, "six rounds were enough");
        let (_, failing, _) = run_mock(&plan, &stop, |_, _| done(""));
        assert_eq!(
            failing.samples.len(),
            18,
            "what always fails is not tried for ever"
        );
    }

    #[test]
    fn workloads_can_have_fewer_rounds_and_no_subjects() {
        let stop = Stop::new().unwrap();
        let mut plan = plan(5);
        plan.workloads[0].rounds = Some(2);
        plan.workloads[1].is_bare = true;
        let (_, recording, ran) = run_mock(&plan, &stop, |_, _| done(REPORT));
        let count = |name: &str| {
            recording
                .samples
                .iter()
                .filter(|s| s.workload == name)
                .count()
        };
        assert_eq!((count("a"), count("b")), (2 * 3, 5 * 2));
        assert!(!ran.iter().any(|argv| argv[0] == "slow" && argv[3] == "b"));
    }

    #[test]
    fn set_up_and_what_is_around_a_workload_wrap_native_too() {
        let stop = Stop::new().unwrap();
        let mut plan = plan(1);
        plan.workloads[0].around = Some("beside {}".to_owned());
        plan.setup = Some(crate::plan::Setup {
            name: "box".to_owned(),
            wrapper: "unshare -- {}".to_owned(),
        });
        let (_, _, ran) = run_mock(&plan, &stop, |_, _| done(REPORT));
        let lines: std::collections::BTreeSet<String> =
            ran.iter().map(|argv| argv.join(" ")).collect();
        let expected = [
            "unshare -- beside slow -- work a",
            "unshare -- beside work a",
            "unshare -- slow -- work b",
            "unshare -- work b",
        ];
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_slow_subject_does_fewer_operations() {
        let stop = Stop::new().unwrap();
        let mut plan = plan(1);
        plan.workloads.remove(0);
        plan.workloads[0].command = "work --operations 1000 x".to_owned();
        plan.subjects[0].divide_operations = Some(500);
        let (_, _, ran) = run_mock(&plan, &stop, |_, _| done(REPORT));
        let lines: std::collections::BTreeSet<String> =
            ran.iter().map(|argv| argv.join(" ")).collect();
        let expected = ["slow -- work --operations 2 x", "work --operations 1000 x"];
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), expected);
        let mut words = ["--operations", "many"].map(str::to_owned);
        divide_operations(&mut words, 5);
        assert_eq!(words[1], "many");
    }

    #[test]
    fn the_fastest_window_counts_where_it_is_asked_for() {
        let stop = Stop::new().unwrap();
        let mut plan = plan(1);
        plan.workloads[0].figure = TimeSource::Fastest;
        let (_, recording, _) = run_mock(&plan, &stop, |_, _| done(REPORT));
        let fastest = recording
            .samples
            .iter()
            .find(|sample| sample.workload == "a")
            .unwrap();
        assert_eq!(fastest.ns_per_operation(), Some(49.5));
    }

    #[test]
    fn counters_are_read_from_the_last_whole_line() {
        let text = r#"{"sample":1,"cur":{"events":1,"drops":0},"delta":{}}
{"sample":2,"cur":{"events":7,"drops":2,"preemptions":0},"delta":{"events":6}}
{"sample":3,"cur"#;
        let expected = Counters {
            events: Some(7),
            drops: Some(2),
        };
        assert_eq!(last_counters(text), Some(expected));
        let flat = last_counters(r#"{"events":3}"#).unwrap();
        assert_eq!(
            flat,
            Counters {
                events: Some(3),
                drops: None
            }
        );
        assert_eq!(last_counters("not json"), None);
    }

    #[test]
    fn a_folder_is_not_written_twice() {
        let plan = plan(1);
        let folder = tempfile::tempdir().unwrap();
        let host = Host::observe(&plan);
        Recorder::create(folder.path(), &plan, &host).unwrap();
        let again = Recorder::create(folder.path(), &plan, &host);
        assert!(matches!(again, Err(Error::FolderTaken { .. })));
    }
}
