//! `tollgate generate test`: performs actions and checks that a detector alerts on each.

use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal::{self, Colour};
use serde_json::{Value, json};

use super::run;
use crate::action::{self, Action, Outcome as Played, Player};
use crate::alerts::{Alert, Alerts};
use crate::detector::{Detector, write_rules};
use crate::expectation::{Comparison, Expectation, Verdict};
use crate::options::{PlayOptions, TestOptions};

/// Source of verdicts.
enum VerdictSource<'options> {
    /// A running detector.
    Running(Alerts, Player, Duration),
    /// A detector that is started for each action.
    Started(&'options Detector, Player),
}

/// Plays actions and waits for an alert on each. The exit code is 1 if an action failed or no alert came.
///
/// # Errors
///
/// If no action is selected, none can be played here, or the source of alerts cannot be opened.
pub fn execute(args: &TestOptions) -> Outcome {
    let actions = super::select(&args.selection)?;
    let source = if let Some(detector) = &args.source.detector {
        let player = super::player(&args.play, detector.prefix())?;
        VerdictSource::Started(detector, player)
    } else {
        let alerts = Alerts::open(&args.source)?;
        VerdictSource::Running(
            alerts,
            super::player(&args.play, Vec::new())?,
            args.test_timeout,
        )
    };
    let mut wrong = 0_usize;
    let width = actions
        .iter()
        .map(|action| action.name.len())
        .max()
        .unwrap_or(0);
    loop {
        for action in &actions {
            std::thread::sleep(args.play.sleep);
            let verdict = source.verdict(action);
            wrong += usize::from(verdict.is_wrong());
            let line = Line(&verdict, action);
            let line = if args.json {
                line.object().to_string()
            } else {
                line.text(width)
            };
            terminal::print(&format!("{line}\n"))?;
        }
        if !args.play.repeat {
            break;
        }
    }
    finish(wrong)
}

/// What became of a rule when its own action was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePlayed {
    /// No action is for this rule.
    NoAction,
    /// The action raised the rule.
    Detected {
        /// Name of the action.
        action: &'static str,
    },
    /// The action was played, and did not raise the rule.
    Missed {
        /// Name of the action.
        action: &'static str,
    },
    /// The action cannot be played here, or failed.
    NotPlayed {
        /// Name of the action.
        action: &'static str,
        /// The reason.
        reason: String,
    },
}

/// Plays the actions that are for a rule under `tollgate run`, which loads rules of these texts. If one raises the rule, the others are
/// not played.
///
/// # Errors
///
/// If the rules cannot be written, or nothing can be played here.
pub fn play_for_rule(rule: &str, texts: &[&str]) -> Result<RulePlayed, Failure> {
    let actions: Vec<_> = action::ACTIONS
        .iter()
        .filter(|action| action.is_for(rule))
        .collect();
    if actions.is_empty() {
        return Ok(RulePlayed::NoAction);
    }
    let (paths, folder) = write_rules(texts.iter().copied())?;
    let detector = Detector::tollgate_run("auto", &paths, vec![rule.to_owned()], Some(folder))?;
    let player = super::player(&PlayOptions::default(), detector.prefix())?;
    let mut result = RulePlayed::NoAction;
    for action in actions {
        let name = action.name;
        let (played, printed) = player.play_printing(action);
        let reason = match played {
            Played::Done => {
                let mut alerts = printed.lines().filter_map(Alert::parse);
                if alerts.any(|alert| alert.rule == rule) {
                    return Ok(RulePlayed::Detected { action: name });
                }
                result = RulePlayed::Missed { action: name };
                continue;
            }
            Played::Skipped { reason } => reason,
            Played::Failed { error } => error,
        };
        // A miss says more than an action that was not played.
        if result == RulePlayed::NoAction {
            result = RulePlayed::NotPlayed {
                action: name,
                reason,
            };
        }
    }
    Ok(result)
}

fn finish(wrong: usize) -> Result<Exit, Failure> {
    Ok(if wrong > 0 {
        Exit::Command(1)
    } else {
        Exit::Ok
    })
}

/// Returns the alert that an action must raise; other alerts are about another aspect of it.
fn expectation(action: &Action) -> Expectation<'_, Alert> {
    let expectation = Expectation::nothing().allow(|_| true);
    match action.rule {
        None => expectation,
        Some(rule) => {
            let is_candidate = |alert: &Alert| action.is_for(&alert.rule);
            expectation.require(rule, is_candidate, |_| Vec::new())
        }
    }
}

impl VerdictSource<'_> {
    fn verdict(&self, action: &Action) -> Verdict {
        let (played, comparison) = match self {
            VerdictSource::Started(detector, player) => {
                let (played, printed) = player.play_printing(action);
                if !detector.has_rule_for(action) && played == Played::Done {
                    return Verdict::Played;
                }
                let alerts = printed.lines().filter_map(Alert::parse);
                // These alerts were read at the end, so their arrival time is unknown.
                let alerts = alerts.map(|alert| Alert {
                    delay_ns: None,
                    ..alert
                });
                (played, Comparison::new(expectation(action)).with(alerts))
            }
            VerdictSource::Running(alerts, player, timeout) => {
                alerts.forget();
                let played = player.play(action);
                // There are no alerts of what was not played.
                let timeout = match played {
                    Played::Done => *timeout,
                    _ => Duration::ZERO,
                };
                let deadline = Instant::now() + timeout;
                (
                    played,
                    Comparison::of(expectation(action), alerts, deadline),
                )
            }
        };
        if played != Played::Done {
            return Verdict::NotPlayed(played);
        }
        if action.rule.is_none() {
            return Verdict::Played;
        }
        Verdict::of(&comparison)
    }
}

/// A verdict, to be printed.
struct Line<'v>(&'v Verdict, &'v Action);

impl Line<'_> {
    fn text(&self, width: usize) -> String {
        let Self(verdict, action) = self;
        let (word, colour, rest) = match verdict {
            Verdict::Detected { rule, delay_ns } => {
                let delay = delay_ns.map_or_else(String::new, |delay| {
                    format!(
                        " after {:.2} ms",
                        Duration::from_nanos(delay).as_secs_f64() * 1e3
                    )
                });
                ("detected", Colour::Good, format!("{rule}{delay}"))
            }
            Verdict::Missed { others, .. } if others.is_empty() => (
                "missed",
                Colour::Bad,
                format!("no alert of {}", action.rule.unwrap_or_default()),
            ),
            Verdict::Missed { others, .. } => {
                let others: Vec<_> = others.iter().map(String::as_str).collect();
                let rule = action.rule.unwrap_or_default();
                let rest = format!("no alert of {rule}, but of {}", others.join(", "));
                ("missed", Colour::Bad, rest)
            }
            Verdict::Played => ("played", Colour::Doubtful, "no rule is for it".to_owned()),
            Verdict::NotPlayed(Played::Skipped { reason }) => {
                ("skipped", Colour::Doubtful, reason.clone())
            }
            Verdict::NotPlayed(Played::Failed { error }) => ("failed", Colour::Bad, error.clone()),
            Verdict::NotPlayed(Played::Done) => ("played", Colour::Doubtful, String::new()),
        };
        let word = format!("{word:8}");
        let word = if terminal::wants_colour() {
            terminal::paint(&word, colour)
        } else {
            word
        };
        format!("{word}  {:width$}  {rest}", action.name)
    }

    fn object(&self) -> Value {
        let Self(verdict, action) = self;
        let mut object = match verdict {
            Verdict::NotPlayed(played) => run::object(action, played),
            _ => run::object(action, &Played::Done),
        };
        object["rule"] = json!(action.rule);
        match verdict {
            Verdict::Detected { rule, delay_ns } => {
                object["verdict"] = json!("detected");
                object["alert"] = json!(rule);
                object["delay_ns"] = json!(delay_ns);
            }
            Verdict::Missed { others, .. } => {
                object["verdict"] = json!("missed");
                object["other_alerts"] = json!(others);
            }
            Verdict::Played => object["verdict"] = json!("no rule"),
            Verdict::NotPlayed(_) => object["verdict"] = json!("not played"),
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(rule: &str) -> Alert {
        Alert::parse(&json!({"rule": rule}).to_string()).unwrap()
    }

    #[test]
    fn the_alert_of_another_rule_does_not_count() {
        let action = crate::action::find("syscall.WriteBelowEtc").unwrap();
        let weigh = |rules: &[&str]| {
            let alerts = rules.iter().map(|rule| alert(rule));
            Verdict::of(&Comparison::new(expectation(action)).with(alerts))
        };
        let verdict = weigh(&["Write below root"]);
        assert!(verdict.is_wrong());
        let text = Line(&verdict, action).text(0);
        assert!(text.contains("but of Write below root"));
        let verdict = weigh(&["Write below root", "Write below etc"]);
        assert!(!verdict.is_wrong());
        let object = Line(&verdict, action).object();
        assert_eq!(object["alert"], "Write below etc");
    }

    #[test]
    fn what_was_not_played_is_never_detected() {
        let action = crate::action::find("syscall.WriteBelowEtc").unwrap();
        let failed = Verdict::NotPlayed(Played::Failed { error: "E".into() });
        assert!(failed.is_wrong());
        assert_eq!(Line(&failed, action).object()["verdict"], "not played");
        let skipped = Verdict::NotPlayed(Played::Skipped { reason: "R".into() });
        assert!(!skipped.is_wrong());
        assert_eq!(Line(&skipped, action).object()["outcome"], "skipped");
    }
}
