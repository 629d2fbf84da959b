//! `tollgate demo`: runs real programs under watch and shows alerts live.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal::{self, Colour};
use serde_json::{Value, json};

use super::action::ACTIONS;
use super::report::Report;
use super::stage::{self, Stage};
use super::tally::Tally;
use crate::expectation::Fit;

/// Makes one pass in this process and reports it on standard output.
///
/// # Errors
///
/// None today; the exit code shows if the pass failed.
pub fn stage(stage: Stage) -> Outcome {
    let code = stage::play(stage);
    Ok(Exit::Command(u8::try_from(code).unwrap_or(1)))
}

/// Makes every pass in a process of its own (`PROGRAM demo --stage NAME`) and shows alerts as they come, or only a
/// summary as JSON.
///
/// # Errors
///
/// If a pass cannot be started, or nothing can be printed.
pub fn execute(json: bool) -> Outcome {
    let screen = Screen {
        silent: json,
        colour: terminal::wants_colour(),
    };
    let is_root = sys::credential::users()
        .map_err(|error| Failure::from_error(Exit::Internal, &error))?
        .effective
        == 0;
    let started = Instant::now();
    let stages: &[Stage] = if is_root {
        &[Stage::Container, Stage::User]
    } else {
        &[Stage::UserNamespace]
    };
    screen.opening(is_root)?;
    let mut passes = Vec::new();
    for &stage in stages {
        let tally = pass(stage, &screen)?;
        passes.push((stage, tally));
    }
    let complete = passes.iter().all(|(_, tally)| tally.is_complete());
    if json {
        terminal::print(&format!(
            "{}\n",
            json_summary(&passes, is_root, started.elapsed())
        ))?;
    } else {
        terminal::print(&summary(&passes, started.elapsed(), screen.colour))?;
    }
    Ok(if complete { Exit::Ok } else { Exit::Command(1) })
}

fn title(stage: Stage) -> &'static str {
    match stage {
        Stage::Container => "root with a container's usual capabilities, in a container",
        Stage::User => "an ordinary user without privileges, in a changed root",
        Stage::UserNamespace => "an ordinary user without privileges, in a user namespace",
    }
}

/// Message if the pass as root is left out.
const WITHOUT_ROOT: &str = "skipped the part as root in a container: it needs root";

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Container => "container",
        Stage::User => "user",
        Stage::UserNamespace => "user-namespace",
    }
}

/// Makes one pass in a process of its own, and prints its messages.
fn pass(stage: Stage, screen: &Screen) -> Result<Tally, Failure> {
    screen.say(&format!(
        "\n{}\n",
        screen.strong(&format!("As {}", title(stage)))
    ))?;
    let describe_error = |verb: &str, error: std::io::Error| {
        Failure::new(
            Exit::Internal,
            format!("cannot {verb} the stage of the demo: {error}"),
        )
        .help("mount /proc; check the limit on processes (ulimit -u)")
    };
    let mut child = Command::new("/proc/self/exe")
        .args(["demo", "--stage", name(stage)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| describe_error("start", error))?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut tally = Tally::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|error| describe_error("hear", error))?;
        let report = Report::parse(&line).unwrap_or(Report::Failed { why: line });
        let fit = tally.take(&report);
        screen.show(&report, fit.as_ref(), &tally)?;
    }
    let status = child
        .wait()
        .map_err(|error| describe_error("wait for", error))?;
    if !status.success() && tally.failed.is_none() {
        tally.failed = Some(format!("the part exited with {status}"));
    }
    if let Some(why) = &tally.failed {
        screen.say(&format!(
            "  {}: {why}\n",
            screen.paint("the pass failed", Colour::Bad)
        ))?;
    }
    Ok(tally)
}

/// Output to the user during the demo.
struct Screen {
    silent: bool,
    colour: bool,
}

impl Screen {
    fn say(&self, text: &str) -> Outcome {
        if self.silent {
            Ok(Exit::Ok)
        } else {
            terminal::print(text)
        }
    }

    fn paint(&self, text: &str, colour: Colour) -> String {
        if self.colour {
            terminal::paint(text, colour)
        } else {
            text.to_owned()
        }
    }

    fn strong(&self, text: &str) -> String {
        if self.colour {
            format!("\u{1b}[1m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    fn opening(&self, is_root: bool) -> Outcome {
        self.say(
            "Real programs do what intruders do, and harmless things that look similar. `tollgate run` \
            watches each of\nthem with the built-in rules. Nothing leaves this machine, and all changes are undone.\n",
        )?;
        if !is_root {
            self.say(&format!("Without root, {WITHOUT_ROOT}.\n"))?;
        }
        Ok(Exit::Ok)
    }

    fn show(&self, report: &Report, fit: Option<&Fit>, tally: &Tally) -> Outcome {
        match report {
            Report::Begin {
                action,
                twin: false,
            } => self.say(&format!("\n{}\n", self.strong(ACTIONS[*action].name))),
            Report::Begin { twin: true, .. } | Report::Failed { .. } => Ok(Exit::Ok),
            Report::Alert { alert, .. } => self.alert(alert, fit, tally),
            Report::Skipped { action, why } => {
                let word = self.paint("skipped", Colour::Doubtful);
                self.say(&format!(
                    "\n{}\n  {word}: {why}\n",
                    self.strong(ACTIONS[*action].name)
                ))
            }
            Report::End { problem, .. } => match problem {
                Some(problem) => {
                    let word = self.paint("problem", Colour::Bad);
                    self.say(&format!("  {word}: {problem}\n"))
                }
                None => Ok(Exit::Ok),
            },
        }
    }

    fn alert(&self, alert: &Value, fit: Option<&Fit>, tally: &Tally) -> Outcome {
        let text = alert["output"]
            .as_str()
            .unwrap_or("(an alert without a text)");
        let rule = alert["rule"].as_str().unwrap_or("(no rule)");
        let (word, colour) = match fit {
            Some(Fit::Expected(_)) => ("expected", Colour::Good),
            Some(Fit::Allowed) => ("seen from another side", Colour::Good),
            Some(Fit::Different(_) | Fit::Unexpected) => ("unexpected", Colour::Bad),
            // Alerts of tollgate about itself are counted and summed up at the end.
            None => return Ok(Exit::Ok),
        };
        let cause = tally
            .actions
            .last()
            .map_or("nothing", |tried| ACTIONS[tried.action].name);
        let mark = self.paint(&format!("{word}: {rule}"), colour);
        self.say(&format!("  {text}\n    {mark} (caused by: {cause})\n"))
    }
}

fn json_summary(passes: &[(Stage, Tally)], is_root: bool, took: Duration) -> Value {
    let passes: Vec<Value> = passes
        .iter()
        .map(|(stage, tally)| {
            let mut summary = tally.summary();
            summary["pass"] = name(*stage).into();
            summary
        })
        .collect();
    let left_out = if is_root {
        Value::Null
    } else {
        WITHOUT_ROOT.into()
    };
    json!({ "passes": passes, "left_out": left_out, "seconds": took.as_secs_f64() })
}

const COLUMNS: [&str; 9] = [
    "pass",
    "actions",
    "expected",
    "alerts",
    "missed",
    "unexpected",
    "dropped",
    "p50",
    "p99",
];

fn summary(passes: &[(Stage, Tally)], took: Duration, colour: bool) -> String {
    let mut out = String::from("\n");
    for (stage, tally) in passes {
        for tried in tally.actions.iter().filter(|tried| !tried.is_right()) {
            out.push_str(&format!(
                "{}: {}\n",
                name(*stage),
                ACTIONS[tried.action].name
            ));
            for rule in tried.missed() {
                out.push_str(&format!("  missed: {rule}\n"));
                out.push_str(&indented(&tried.output));
            }
            for rule in tried.unexpected() {
                out.push_str(&format!("  unexpected: {rule}\n"));
            }
            for problem in &tried.problems {
                out.push_str(&format!("  problem: {problem}\n"));
            }
        }
        for (action, why) in &tally.skipped {
            out.push_str(&format!(
                "{}: {} skipped: {why}\n",
                name(*stage),
                ACTIONS[*action].name
            ));
        }
        if let Some(why) = &tally.failed {
            out.push_str(&format!("{}: the pass failed: {why}\n", name(*stage)));
        }
        if let Some(first) = tally.internal.first() {
            let count = tally.internal.len();
            out.push_str(&format!(
                "{}: {count} messages of tollgate about itself, the first: {first}\n",
                name(*stage)
            ));
        }
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(passes.iter().map(|(stage, tally)| row(*stage, tally)));
    for (index, row) in rows.iter().enumerate() {
        let line: String = row.iter().map(|cell| format!("{cell:>11}")).collect();
        let wrong = index > 0 && !passes[index - 1].1.is_complete();
        out.push_str(&match (colour && index > 0, wrong) {
            (false, _) => line,
            (true, false) => terminal::paint(&line, Colour::Good),
            (true, true) => terminal::paint(&line, Colour::Bad),
        });
        out.push('\n');
    }
    out.push_str(&format!(
        "\nEach action has a harmless likeness; an alert on that counts as unexpected. p50 and p99 \
         are the time from the\ncall, as the event has it, to the alert's arrival in the demo. The \
         tour took {:.1} s.\n",
        took.as_secs_f64()
    ));
    out
}

/// Indents the output of a script, to print it under the missing or unexpected alert.
fn indented(output: &str) -> String {
    output
        .lines()
        .take(5)
        .map(|line| format!("    | {line}\n"))
        .collect()
}

fn row(stage: Stage, tally: &Tally) -> [String; COLUMNS.len()] {
    let time = |percent| match tally.latency_ns(percent) {
        Some(ns) => format!("{:.2} ms", Duration::from_nanos(ns).as_secs_f64() * 1e3),
        None => "-".to_owned(),
    };
    let stage = match stage {
        Stage::Container => "container",
        Stage::User | Stage::UserNamespace => "user",
    };
    [
        stage.to_owned(),
        tally.actions.len().to_string(),
        tally.expected().to_string(),
        tally.alerts().to_string(),
        tally.missed().to_string(),
        tally.unexpected().to_string(),
        tally.dropped.to_string(),
        time(50),
        time(99),
    ]
}
