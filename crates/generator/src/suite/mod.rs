//! `tollgate generate suite`: tests described in YAML.

pub mod explain;
mod load;
mod report;
mod schema;
mod template;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use yaml::settings::Problem;

use crate::action::{Outcome as Played, Player, PlayerOptions};
use crate::alerts::{Alert, Alerts};
use crate::expectation::{Comparison, Verdict};
use crate::options::{Descriptions, ReportFormat, SuiteRunOptions, SuiteTestOptions};
use load::Test;
use report::{Report, expectation};

/// Time limit for the alerts of a test.
const PATIENCE: Duration = Duration::from_secs(10);

/// Plays described tests.
///
/// # Errors
///
/// If a description cannot be read, or the report cannot be printed.
pub fn run(args: &SuiteRunOptions) -> Outcome {
    let tests = load(&args.descriptions, false)?;
    let player = player(&args.descriptions, Vec::new())?;
    let deadline = Instant::now() + args.descriptions.timeout;
    let results = tests.into_iter().map(|test| {
        let verdict = match play(&player, &test, deadline) {
            (Played::Done, _) => Verdict::Played,
            (other, _) => Verdict::NotPlayed(other),
        };
        (test, verdict)
    });
    let report = Report {
        results: results.collect(),
    };
    finish(&report, args.report_format)
}

/// Plays described tests and compares alerts with what they expect.
///
/// # Errors
///
/// Like [`run`]; also if the source of alerts cannot be opened.
pub fn test(args: &SuiteTestOptions) -> Outcome {
    let tests = load(&args.descriptions, true)?;
    if args.skip_outcome_verification {
        return run(&SuiteRunOptions {
            descriptions: args.descriptions.clone(),
            report_format: args.report_format,
        });
    }
    let (prefix, alerts) = match &args.source.detector {
        Some(detector) => (detector.prefix(), None),
        None => (Vec::new(), Some(Alerts::open(&args.source)?)),
    };
    let player = player(&args.descriptions, prefix)?;
    let deadline = Instant::now() + args.descriptions.timeout;
    let mut results = Vec::new();
    for test in tests {
        if let Some(alerts) = &alerts {
            alerts.forget();
        }
        let (played, printed) = play(&player, &test, deadline);
        let verdict = match (played, &alerts) {
            (Played::Done, Some(alerts)) => {
                let deadline = deadline.min(Instant::now() + PATIENCE);
                Verdict::of(&Comparison::of(expectation(&test), alerts, deadline))
            }
            (Played::Done, None) => {
                let came = printed.lines().filter_map(Alert::parse);
                Verdict::of(&Comparison::new(expectation(&test)).with(came))
            }
            (other, _) => Verdict::NotPlayed(other),
        };
        results.push((test, verdict));
    }
    finish(&Report { results }, args.report_format)
}

fn play(player: &Player, test: &Test, deadline: Instant) -> (Played, String) {
    if Instant::now() >= deadline {
        let reason = "the time of --timeout is over".to_owned();
        return (Played::Skipped { reason }, String::new());
    }
    player.play_scenario(&test.scenario)
}

fn finish(report: &Report, format: ReportFormat) -> Outcome {
    terminal::print(&report.text(format))?;
    let wrong = report.results.iter().any(|(_, verdict)| verdict.is_wrong());
    Ok(if wrong { Exit::Command(1) } else { Exit::Ok })
}

fn player(descriptions: &Descriptions, prefix: Vec<String>) -> Result<Player, Failure> {
    let options = PlayerOptions {
        touch_system: descriptions.touch_system,
        allow_network: descriptions.allow_network.clone(),
        prefix,
        ..PlayerOptions::default()
    };
    Player::new(super::own_program()?, options)
        .map_err(|error| Failure::from_error(Exit::Unsupported, &error))
}

fn load(descriptions: &Descriptions, needs_rule: bool) -> Result<Vec<Test>, Failure> {
    let mut texts = Vec::new();
    for file in files(descriptions)? {
        let text = fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
        texts.push((file.display().to_string(), text));
    }
    texts.extend(
        descriptions
            .description
            .iter()
            .map(|text| ("--description".to_owned(), text.clone())),
    );
    if texts.is_empty() {
        return Err(
            Failure::new(Exit::BadInput, "cannot run tests: no test file given")
                .help("name a file with --description-file, or a folder with --description-dir"),
        );
    }
    let mut all: Vec<Test> = Vec::new();
    for (name, text) in texts {
        all.extend(load::read(&name, &text, needs_rule).map_err(|problem| refusal(&problem))?);
    }
    let mut names = BTreeSet::new();
    match all.iter().find(|test| !names.insert(&test.scenario.name)) {
        Some(test) => Err(Failure::new(
            Exit::BadInput,
            format!(
                "cannot run tests: two tests have the name {}",
                test.scenario.name
            ),
        )),
        None => Ok(all),
    }
}

fn files(descriptions: &Descriptions) -> Result<Vec<PathBuf>, Failure> {
    let mut files = descriptions.description_file.clone();
    for folder in &descriptions.description_dir {
        let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|ending| ending == "yaml" || ending == "yml")
            })
            .collect();
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::BadInput,
        format!("cannot read {}: {error}", path.display()),
    )
}

fn refusal(problem: &Problem) -> Failure {
    let failure = Failure::new(
        Exit::BadInput,
        format!("cannot use {}: {}", problem.origin, problem.message),
    );
    match &problem.help {
        Some(help) => failure.help(help.clone()),
        None => failure,
    }
}
