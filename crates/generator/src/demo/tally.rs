//! Counting of expected and received alerts, and of their latency.

use serde_json::{Value, json};

use super::action::{ACTIONS, Action};
use super::report::Report;
use crate::expectation::{Comparison, Expectation, Fit};

/// Results of one pass.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Actions that were tried.
    pub(crate) actions: Vec<TriedAction>,
    /// Actions that were not tried, with the reason.
    pub(crate) skipped: Vec<(usize, String)>,
    /// Reason why the pass ended early.
    pub(crate) failed: Option<String>,
    /// Time from each call to the arrival of its alert, in nanoseconds.
    latencies_ns: Vec<u64>,
    /// Number of lost events and alerts.
    pub(crate) dropped: u64,
    /// Alerts of tollgate about itself, such as a rule that could not be evaluated.
    pub(crate) internal: Vec<String>,
}

/// Results of one action.
#[derive(Debug)]
pub(crate) struct TriedAction {
    /// Index in [`ACTIONS`].
    pub(crate) action: usize,
    /// Rules that alerted on the action, once per alert.
    rules: Comparison<'static, String>,
    /// Rules that alerted on the harmless twin, where none is expected; `None` until it begins.
    twin_rules: Option<Comparison<'static, String>>,
    /// Errors of either script.
    pub(crate) problems: Vec<String>,
    /// Output of the action's script.
    pub(crate) output: String,
}

impl TriedAction {
    fn action(&self) -> &'static Action {
        &ACTIONS[self.action]
    }

    fn begin(action: usize) -> Self {
        Self {
            action,
            rules: Comparison::new(expectation(&ACTIONS[action])),
            twin_rules: None,
            problems: Vec::new(),
            output: String::new(),
        }
    }

    /// Returns the rules that had to alert and did not.
    pub(crate) fn missed(&self) -> Vec<&str> {
        self.rules.missed()
    }

    /// Returns the rules that alerted and should not have.
    pub(crate) fn unexpected(&self) -> Vec<&str> {
        let twin = self.twin_rules.iter().flat_map(Comparison::unexpected);
        let unexpected = self.rules.unexpected().chain(twin);
        unexpected.map(String::as_str).collect()
    }

    /// Returns true if all results are as expected.
    pub(crate) fn is_right(&self) -> bool {
        self.missed().is_empty() && self.unexpected().is_empty() && self.problems.is_empty()
    }

    fn alerts(&self) -> usize {
        let twin = self.twin_rules.as_ref();
        self.rules.alerts().len() + twin.map_or(0, |twin| twin.alerts().len())
    }
}

fn expectation(action: &'static Action) -> Expectation<'static, String> {
    let allowed =
        Expectation::nothing().allow(|rule: &String| action.allowed.contains(&rule.as_str()));
    action.expected.iter().fold(allowed, |all, expected| {
        all.require(*expected, move |rule| rule == expected, |_| Vec::new())
    })
}

impl Tally {
    /// Adds one message. Returns its relation to what is expected if it is an alert.
    pub(crate) fn take(&mut self, report: &Report) -> Option<Fit> {
        match report {
            Report::Begin {
                action,
                twin: false,
            } => self.actions.push(TriedAction::begin(*action)),
            Report::Begin { twin: true, .. } => {
                if let Some(tried) = self.actions.last_mut() {
                    tried.twin_rules = Some(Comparison::new(Expectation::nothing()));
                }
            }
            Report::Alert { alert, arrived_ns } => return self.alert(alert, *arrived_ns),
            Report::End {
                problem,
                dropped,
                output,
            } => {
                self.dropped += dropped;
                if let Some(tried) = self.actions.last_mut() {
                    tried.problems.extend(problem.clone());
                    if tried.twin_rules.is_none() {
                        tried.output.clone_from(output);
                    }
                }
            }
            Report::Skipped { action, why } => self.skipped.push((*action, why.clone())),
            Report::Failed { why } => self.failed = Some(why.clone()),
        }
        None
    }

    fn alert(&mut self, alert: &Value, arrived_ns: u64) -> Option<Fit> {
        let rule = alert["rule"].as_str().unwrap_or("(no rule)").to_owned();
        if alert["source"] == "internal" {
            let text = alert["output"].as_str().unwrap_or(&rule).to_owned();
            self.internal.push(text);
            return None;
        }
        if let Some(made_ns) = alert["output_fields"]["evt.rawtime"].as_u64() {
            self.latencies_ns.push(arrived_ns.saturating_sub(made_ns));
        }
        let tried = self.actions.last_mut()?;
        let comparison = tried.twin_rules.as_mut().unwrap_or(&mut tried.rules);
        Some(comparison.take(rule))
    }

    /// Returns the number of required alerts.
    pub(crate) fn expected(&self) -> usize {
        self.actions
            .iter()
            .map(|tried| tried.rules.expected())
            .sum()
    }

    /// Returns the number of alerts.
    pub(crate) fn alerts(&self) -> usize {
        self.actions.iter().map(TriedAction::alerts).sum()
    }

    /// Returns the number of required alerts that are missing.
    pub(crate) fn missed(&self) -> usize {
        self.actions.iter().map(|tried| tried.missed().len()).sum()
    }

    /// Returns the number of unexpected alerts.
    pub(crate) fn unexpected(&self) -> usize {
        self.actions
            .iter()
            .map(|tried| tried.unexpected().len())
            .sum()
    }

    /// Returns the number of scripts that failed.
    pub(crate) fn problems(&self) -> usize {
        self.actions.iter().map(|tried| tried.problems.len()).sum()
    }

    /// Returns the latency from call to alert that this percentage of alerts did not exceed, in nanoseconds.
    pub(crate) fn latency_ns(&self, percent: usize) -> Option<u64> {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// Returns true if all required alerts arrived and nothing was lost.
    pub(crate) fn is_complete(&self) -> bool {
        self.failed.is_none()
            && !self.actions.is_empty()
            && self.missed() == 0
            && self.dropped == 0
            && self.problems() == 0
    }

    /// Returns the summary for `--json`.
    pub(crate) fn summary(&self) -> Value {
        let actions: Vec<Value> = self
            .actions
            .iter()
            .map(|tried| {
                json!({
                    "name": tried.action().name,
                    "expected": tried.action().expected,
                    "alerts": rules(Some(&tried.rules)),
                    "twin_alerts": rules(tried.twin_rules.as_ref()),
                    "missed": tried.missed(),
                    "unexpected": tried.unexpected(),
                    "problems": tried.problems,
                })
            })
            .collect();
        let skipped: Vec<Value> = self
            .skipped
            .iter()
            .map(|(action, why)| json!({"name": ACTIONS[*action].name, "why": why}))
            .collect();
        json!({
            "failed": self.failed,
            "actions": self.actions.len(),
            "expected": self.expected(),
            "alerts": self.alerts(),
            "missed": self.missed(),
            "unexpected": self.unexpected(),
            "dropped": self.dropped,
            "internal": self.internal,
            "problems": self.problems(),
            "p50_ns": self.latency_ns(50),
            "p99_ns": self.latency_ns(99),
            "details": actions,
            "skipped": skipped,
        })
    }
}

fn rules<'c>(comparison: Option<&'c Comparison<'static, String>>) -> Vec<&'c str> {
    let alerts = comparison.into_iter().flat_map(Comparison::alerts);
    alerts.map(|(rule, _)| rule.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(rule: &str, at: u64) -> Report {
        let alert = json!({"rule": rule, "output_fields": {"evt.rawtime": 1_000}});
        Report::Alert {
            alert,
            arrived_ns: at,
        }
    }

    fn end(dropped: u64) -> Report {
        Report::End {
            problem: None,
            dropped,
            output: String::new(),
        }
    }

    #[test]
    fn alerts_are_weighed_by_what_was_going_on() {
        let rule = ACTIONS[0].expected[0];
        let mut tally = Tally::default();
        tally.take(&Report::Begin {
            action: 0,
            twin: false,
        });
        assert_eq!(tally.missed(), 1);
        assert_eq!(tally.take(&alert(rule, 1_500)), Some(Fit::Expected(0)));
        assert_eq!(tally.take(&alert("Other", 3_000)), Some(Fit::Unexpected));
        tally.take(&end(0));
        assert!(tally.is_complete());
        tally.take(&Report::Begin {
            action: 0,
            twin: true,
        });
        assert_eq!(tally.take(&alert(rule, 1_600)), Some(Fit::Unexpected));
        tally.take(&end(2));
        assert_eq!(
            (tally.expected(), tally.alerts(), tally.missed()),
            (1, 3, 0)
        );
        assert_eq!((tally.unexpected(), tally.dropped), (2, 2));
        assert!(!tally.is_complete());
        assert_eq!(
            (tally.latency_ns(50), tally.latency_ns(99)),
            (Some(600), Some(2_000))
        );
    }

    #[test]
    fn what_tollgate_says_of_itself_is_no_alert() {
        let mut tally = Tally::default();
        tally.take(&Report::Begin {
            action: 0,
            twin: true,
        });
        let alert = json!({"rule": "R", "source": "internal", "output": "text"});
        let report = Report::Alert {
            alert,
            arrived_ns: 1,
        };
        assert_eq!(tally.take(&report), None);
        assert_eq!((tally.alerts(), tally.unexpected()), (0, 0));
        assert_eq!(tally.internal, ["text"]);
    }

    #[test]
    fn what_is_missing_or_broken_makes_the_pass_incomplete() {
        assert!(!Tally::default().is_complete());
        let mut missed = Tally::default();
        missed.take(&Report::Begin {
            action: 0,
            twin: false,
        });
        assert!(!missed.is_complete());
        let mut failed = Tally::default();
        failed.take(&Report::Begin {
            action: 0,
            twin: false,
        });
        failed.take(&alert(ACTIONS[0].expected[0], 1));
        assert!(failed.is_complete());
        failed.take(&Report::Failed { why: "x".into() });
        assert!(!failed.is_complete());
        assert_eq!(Tally::default().latency_ns(50), None);
    }
}
