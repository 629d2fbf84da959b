//! `tollgate generate test`: performs actions and checks that a detector alerts on each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal::{self, Colour};
use serde_json::{Value, json};

use super::run;
use crate::action::{Action, Outcome as Played, Player};
use crate::alerts::{Alert, Alerts};
use crate::detector::Detector;
use crate::options::TestOptions;

/// Result of playing an action under a detector.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// An alert of this rule arrived, this many nanoseconds after the event.
    Detected { rule: String, delay_ns: Option<u64> },
    /// No alert arrived in time. `others` are the rules of other alerts that did.
    Missed { others: BTreeSet<String> },
    /// The action has no rule, so no alert is expected.
    NoRule,
    /// The action was not played to its end.
    NotPlayed(Played),
}

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
    let judge = if let Some(detector) = &args.source.detector {
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
            let verdict = judge.verdict(action);
            wrong += usize::from(verdict.is_wrong());
            let line = if args.json {
                verdict.object(action).to_string()
            } else {
                verdict.text(action, width)
            };
            terminal::print(&format!("{line}\n"))?;
        }
        if !args.play.repeat {
            break;
        }
    }
    finish(wrong)
}

fn finish(wrong: usize) -> Result<Exit, Failure> {
    Ok(if wrong > 0 {
        Exit::Command(1)
    } else {
        Exit::Ok
    })
}

impl VerdictSource<'_> {
    fn verdict(&self, action: &Action) -> Verdict {
        let (played, alerts) = match self {
            VerdictSource::Started(detector, player) => {
                let (played, printed) = player.play_printing(action);
                if !detector.has_rule_for(action) && played == Played::Done {
                    return Verdict::NoRule;
                }
                let alerts = printed.lines().filter_map(Alert::parse);
                // These alerts were read at the end, so their arrival time is unknown.
                let alerts = alerts.map(|alert| Alert {
                    delay_ns: None,
                    ..alert
                });
                (played, alerts.collect())
            }
            VerdictSource::Running(alerts, player, timeout) => {
                alerts.forget();
                let played = player.play(action);
                let came = if played == Played::Done && action.rule.is_some() {
                    wait(action, alerts, *timeout)
                } else {
                    Vec::new()
                };
                (played, came)
            }
        };
        if played != Played::Done {
            return Verdict::NotPlayed(played);
        }
        if action.rule.is_none() {
            return Verdict::NoRule;
        }
        weigh(action, alerts)
    }
}

/// Returns the alerts up to and including the expected one.
fn wait(action: &Action, alerts: &Alerts, timeout: Duration) -> Vec<Alert> {
    let deadline = Instant::now() + timeout;
    let mut came = Vec::new();
    while Instant::now() < deadline {
        let Some(alert) = alerts.next(deadline) else {
            continue;
        };
        let found = action.is_for(&alert.rule);
        came.push(alert);
        if found {
            break;
        }
    }
    came
}

fn weigh(action: &Action, alerts: Vec<Alert>) -> Verdict {
    let mut others = BTreeSet::new();
    for alert in alerts {
        if action.is_for(&alert.rule) {
            return Verdict::Detected {
                rule: alert.rule,
                delay_ns: alert.delay_ns,
            };
        }
        others.insert(alert.rule);
    }
    Verdict::Missed { others }
}

impl Verdict {
    fn is_wrong(&self) -> bool {
        matches!(
            self,
            Verdict::Missed { .. } | Verdict::NotPlayed(Played::Failed { .. })
        )
    }

    fn text(&self, action: &Action, width: usize) -> String {
        let (word, colour, rest) = match self {
            Verdict::Detected { rule, delay_ns } => {
                let delay = delay_ns.map_or_else(String::new, |delay| {
                    format!(
                        " after {:.2} ms",
                        Duration::from_nanos(delay).as_secs_f64() * 1e3
                    )
                });
                ("detected", Colour::Good, format!("{rule}{delay}"))
            }
            Verdict::Missed { others } if others.is_empty() => (
                "missed",
                Colour::Bad,
                format!("no alert of {}", action.rule.unwrap_or_default()),
            ),
            Verdict::Missed { others } => {
                let others: Vec<_> = others.iter().map(String::as_str).collect();
                let rule = action.rule.unwrap_or_default();
                let rest = format!("no alert of {rule}, but of {}", others.join(", "));
                ("missed", Colour::Bad, rest)
            }
            Verdict::NoRule => ("played", Colour::Doubtful, "no rule is for it".to_owned()),
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

    fn object(&self, action: &Action) -> Value {
        let mut object = match self {
            Verdict::NotPlayed(played) => run::object(action, played),
            _ => run::object(action, &Played::Done),
        };
        object["rule"] = json!(action.rule);
        match self {
            Verdict::Detected { rule, delay_ns } => {
                object["verdict"] = json!("detected");
                object["alert"] = json!(rule);
                object["delay_ns"] = json!(delay_ns);
            }
            Verdict::Missed { others } => {
                object["verdict"] = json!("missed");
                object["other_alerts"] = json!(others);
            }
            Verdict::NoRule => object["verdict"] = json!("no rule"),
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
        let verdict = weigh(action, vec![alert("Write below root")]);
        assert!(verdict.is_wrong());
        assert!(verdict.text(action, 0).contains("but of Write below root"));
        let verdict = weigh(
            action,
            vec![alert("Write below root"), alert("Write below etc")],
        );
        assert!(!verdict.is_wrong());
        assert_eq!(verdict.object(action)["alert"], "Write below etc");
    }

    #[test]
    fn what_was_not_played_is_never_detected() {
        let action = crate::action::find("syscall.WriteBelowEtc").unwrap();
        let failed = Verdict::NotPlayed(Played::Failed { error: "E".into() });
        assert!(failed.is_wrong());
        assert_eq!(failed.object(action)["verdict"], "not played");
        let skipped = Verdict::NotPlayed(Played::Skipped { reason: "R".into() });
        assert!(!skipped.is_wrong());
        assert_eq!(skipped.object(action)["outcome"], "skipped");
    }
}
