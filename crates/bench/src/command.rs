//! Execution of `tollgate bench`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::execute::Processes;
use crate::host::Host;
use crate::limit::{BrokenLimit, Limit};
use crate::options::{Compare, OutputOptions, Quick, Report, Surroundings, Verb};
use crate::output::print;
use crate::own_command;
use crate::plan::Plan;
use crate::record::{Recorder, Recording};
use crate::run::{Progress, RunEnd};
use crate::suite::{self, SuiteOptions};
use crate::summary::{self, Summary};
use crate::{
    Error, Stop, background_command, client, compare, pages, part, quick, run, unixbench_original,
};

/// Exit code after Ctrl-C, as a shell gives it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Executes `verb`, prints to `out`, and returns the program's exit code. `program` is the path of the running
/// program, which replaces `{tollgate}` in plans.
///
/// # Errors
///
/// If the input is invalid, a subject does not start, or a file cannot be written; [`Error::exit_code`]
/// distinguishes these.
pub fn execute(verb: &Verb, program: &Path, out: &mut dyn Write) -> Result<u8, Error> {
    match verb {
        Verb::Own(own) => own_command::execute(own, program, out),
        Verb::Quick(quick) => measure(quick_plan(quick)?, program, &quick.out, out),
        Verb::Plan(path, place) => measure(Plan::load(path)?, program, place, out),
        Verb::Compare(Compare { folders, json }) => {
            let comparison = compare(&folders[0], &folders[1])?;
            let text = match json {
                true => comparison.json(),
                false => comparison.text(),
            };
            print(out, &text)
        }
        Verb::Report(report) => report_again(report, out),
        Verb::Unix(suite, place) => run_suite(&suite.choice, place, suite.plan()?, program, out),
        Verb::Os(suite, place) => run_suite(&suite.choice, place, suite.plan()?, program, out),
        Verb::Syscalls(suite, place) => {
            run_suite(&suite.choice, place, suite.plan()?, program, out)
        }
        Verb::Lifecycle(suite, place) => {
            let (plan, missing) = suite.plan(program)?;
            note(&missing);
            run_suite(&suite.choice, place, plan, program, out)
        }
        Verb::Engine(suite, place) => run_suite(&suite.choice, place, suite.plan()?, program, out),
        Verb::Apps(suite, place) => {
            let missing = suite.missing().join(", ");
            if !missing.is_empty() {
                note(&[format!("skipped, not installed: {missing}")]);
            }
            run_suite(&suite.choice, place, suite.plan()?, program, out)
        }
        Verb::Client { requests, words } => print(out, &client::run(requests, words)?),
        Verb::Part { part, seconds } => print(out, &part::run(program, *part, *seconds)?),
        Verb::Filter { size, words } => part::filter(program, size, words),
        Verb::Beside { words } => background_command::beside(words),
        Verb::Neighbour {
            load,
            seconds,
            words,
        } => background_command::neighbour(program, load, *seconds, words),
        Verb::Inside {
            surroundings,
            words,
        } => match surroundings {
            Surroundings::QuarterCpu => background_command::quarter_cpu(words),
            Surroundings::Session => background_command::session(words),
        },
        Verb::Original(test) => print(out, &unixbench_original::run(test)?),
    }
}

fn quick_plan(quick: &Quick) -> Result<Plan, Error> {
    let subjects = quick.subjects.iter().map(|text| quick::subject(text));
    quick::plan(quick::QuickOptions {
        rounds: quick.rounds,
        seed: quick.seed,
        budget_seconds: quick.budget,
        subjects: subjects.collect::<Result<_, _>>()?,
        workload: quick.workload.clone(),
    })
}

/// Prints notes to standard error. Ignores a failed write, which is no reason not to measure.
fn note(lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn run_suite(
    choice: &SuiteOptions,
    place: &OutputOptions,
    plan: Plan,
    program: &Path,
    out: &mut dyn Write,
) -> Result<u8, Error> {
    if choice.list {
        return print(out, &suite::list(&plan));
    }
    measure(plan, program, place, out)
}

fn report_again(report: &Report, out: &mut dyn Write) -> Result<u8, Error> {
    let limits = limits(&report.fail_if)?;
    let recording = Recording::load(&report.folder)?;
    let history = report.history.iter().map(|folder| Recording::load(folder));
    let history = history.collect::<Result<Vec<_>, _>>()?;
    let (summary, broken) = write_forms(&report.folder, &recording, &limits, &history)?;
    print(out, &form(&summary, report.json, report.markdown))?;
    Ok(verdict(&broken))
}

fn limits(texts: &[String]) -> Result<Vec<Limit>, Error> {
    texts.iter().map(|text| text.parse()).collect()
}

/// Writes every file of a results folder that is derived from its samples.
fn write_forms(
    folder: &Path,
    recording: &Recording,
    limits: &[Limit],
    history: &[Recording],
) -> Result<(Summary, Vec<BrokenLimit>), Error> {
    let summary = summary::write(folder, recording)?;
    let broken: Vec<Vec<BrokenLimit>> = limits
        .iter()
        .map(|limit| limit.broken(&summary))
        .collect::<Result<_, _>>()?;
    let broken = broken.concat();
    pages::write(folder, recording, &summary, &broken, history)?;
    Ok((summary, broken))
}

/// Prints the limits that are broken. Returns exit code 1 if there are any.
fn verdict(broken: &[BrokenLimit]) -> u8 {
    for limit in broken {
        // A closed standard error is ignored; the exit status reports the failure, too.
        let _ = writeln!(std::io::stderr(), "tollgate: limit broken: {}", limit.said);
    }
    u8::from(!broken.is_empty())
}

/// Runs `plan` and writes the report, also when the run ends early.
fn measure(
    plan: Plan,
    program: &Path,
    place: &OutputOptions,
    out: &mut dyn Write,
) -> Result<u8, Error> {
    let limits = limits(&place.fail_if)?;
    let plan = plan.with_program(program);
    let folder = place.out.clone().unwrap_or_else(|| free_folder(&plan.name));
    let mut host = Host::observe(&plan);
    let mut recorder = Recorder::create(&folder, &plan, &host)?;
    let stop = Stop::on_signals()?;
    let mut meter = Meter::new();
    let ended = run::run(
        &plan,
        &mut Processes::new(&stop),
        &mut recorder,
        &stop,
        &mut |progress| {
            meter.show(progress);
        },
    );
    meter.clear();
    host.finish();
    recorder.write_host(&host)?;
    let ended = ended?;
    let (summary, broken) = write_forms(&folder, &Recording::load(&folder)?, &limits, &[])?;
    print(out, &form(&summary, place.json, false))?;
    let note = match ended {
        RunEnd::Complete => "",
        RunEnd::BudgetUsed => " (stopped early: time limit reached)",
        RunEnd::Interrupted => " (stopped early: interrupted)",
    };
    meter.say(&format!(
        "samples, summary and report.html: {}{note}",
        folder.display()
    ));
    let code = verdict(&broken).max(measured(&summary));
    Ok(if ended == RunEnd::Interrupted {
        INTERRUPTED
    } else {
        code
    })
}

/// Prints the subjects that have no valid sample. Returns exit code 1 if there are any.
fn measured(summary: &Summary) -> u8 {
    let failed = summary.failed_subjects();
    for (subject, reason) in &failed {
        // A closed standard error is ignored; the exit status reports the failure, too.
        let _ = writeln!(
            std::io::stderr(),
            "tollgate: cannot measure {subject}: every sample failed: {reason}\n  \
             help: run the subject's command line by hand"
        );
    }
    u8::from(!failed.is_empty())
}

fn form(summary: &Summary, json: bool, markdown: bool) -> String {
    match (json, markdown) {
        (true, _) => summary.json(),
        (_, true) => summary.markdown(),
        _ => summary.text(),
    }
}

/// Returns `results/DATE-NAME`, with a number appended from the second run of a day on.
fn free_folder(name: &str) -> PathBuf {
    let date = jiff::Zoned::now().date();
    let first = PathBuf::from(format!("results/{date}-{name}"));
    std::iter::once(first.clone())
        .chain((2..).map(|n| PathBuf::from(format!("results/{date}-{name}-{n}"))))
        .find(|folder| !folder.exists())
        .unwrap_or(first)
}

/// Progress on standard error: one line that is rewritten on a terminal, one line for each round otherwise.
struct Meter {
    terminal: bool,
    round: u32,
}

impl Meter {
    fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            round: 0,
        }
    }

    fn show(&mut self, progress: Progress<'_>) {
        let Progress {
            sample,
            round,
            rounds,
            left,
        } = progress;
        let left = left.as_secs();
        if self.terminal {
            let line = format!(
                "round {round}/{rounds}  {} under {}  about {left} s left",
                sample.workload, sample.subject
            );
            self.write(&format!("\r\x1b[K{line}"));
        } else if round != self.round {
            self.say(&format!("round {round}/{rounds}, about {left} s left"));
        }
        self.round = round;
    }

    fn clear(&self) {
        if self.terminal {
            self.write("\r\x1b[K");
        }
    }

    fn say(&self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    /// Writes progress. Ignores a failed write, which is no reason to stop measuring.
    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(subject: &str, workload: &str) -> u8 {
        let folder = tempfile::tempdir().unwrap();
        let verb = Verb::Quick(Quick {
            rounds: 1,
            subjects: vec![subject.to_owned()],
            workload: Some(workload.parse().unwrap()),
            seed: 1,
            budget: 170,
            out: OutputOptions {
                out: Some(folder.path().join("results")),
                ..OutputOptions::default()
            },
        });
        // A program that plays the workloads; one of the two prints a figure.
        let program = folder.path().join("program");
        let text = "#!/bin/sh\ncase $2 in umask) exit 3; esac\n\
                    echo '{\"operations\": 10, \"elapsed_ns\": 1000}'\n";
        testing::write_program(&program, 0o755, text).unwrap();
        execute(&verb, &program, &mut Vec::new()).unwrap()
    }

    #[test]
    fn a_subject_that_always_fails_ends_with_1_and_one_that_sometimes_fails_does_not() {
        assert_eq!(quick("broken=sh -c 'exit 4' {}", "^getppid$"), 1);
        assert_eq!(quick("env=env {}", "^(getppid|umask)$"), 0);
    }

    /// Runs real processes from plan to summary, then makes the summary again from the folder alone.
    #[test]
    fn a_plan_of_true_runs_and_can_be_reported_again() {
        let folder = tempfile::tempdir().unwrap();
        let (plan, results) = (
            folder.path().join("plan.toml"),
            folder.path().join("results"),
        );
        let text = "name = 'smoke'\nrounds = 6\n\
            [[workload]]\nname = 'true'\ncommand = 'true'\nfigure = 'wall'\n\
            [[subject]]\nname = 'shell'\nwrapper = \"sh -c '{}'\"\n\
            [[subject]]\nname = 'broken'\nwrapper = \"sh -c 'exit 4' {}\"\n";
        std::fs::write(&plan, text).unwrap();
        let place = OutputOptions {
            out: Some(results.clone()),
            json: false,
            fail_if: vec!["invalid:shell>0".to_owned()],
        };
        let mut printed = Vec::new();
        let verb = Verb::Plan(plan, place);
        let code = execute(&verb, Path::new("/nowhere"), &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(code, 1, "every sample of `broken` failed");
        assert!(printed.contains("left out: 6 of 6 samples of true under broken: exit status 4"));
        let samples = std::fs::read_to_string(results.join("samples.jsonl")).unwrap();
        assert_eq!(samples.lines().count(), 24);
        for file in [
            "plan.json",
            "host.json",
            "summary.txt",
            "summary.md",
            "summary.json",
            "report.html",
            "junit.xml",
        ] {
            assert!(results.join(file).exists(), "{file}");
        }
        let report = Report {
            folder: results,
            json: false,
            markdown: false,
            history: Vec::new(),
            fail_if: vec!["invalid:broken>5".to_owned()],
        };
        let mut again = Vec::new();
        let verb = Verb::Report(report);
        let code = execute(&verb, Path::new("/nowhere"), &mut again).unwrap();
        assert_eq!(code, 1, "six samples of `broken` failed");
        assert_eq!(String::from_utf8(again).unwrap(), printed);
    }
}
