//! The summary at the end of a run: alerts by rule, lost events, unwatched intervals.

use std::cell::Cell;
use std::io::{self, IsTerminal};

use config::{CompatMode, Config};
use diagnostics::terminal;
use outputs::{Counters, StreamTarget};
use supervisor::Gaps;

/// Prints the summary to the standard error.
pub(super) struct Summary {
    /// Also says that there was no alert.
    tells_nothing: bool,
    /// Every alert is above the summary, so it says only what is not there.
    follows_alerts: bool,
    /// This agent took over from another one, whose alerts it did not count.
    is_resumed: bool,
    /// Unwatched intervals, and calls in them.
    unwatched: Cell<(u64, u64)>,
    /// Number of alerts at the time of the summary.
    shown: Cell<Option<u64>>,
}

/// Number of rules that are listed; the rest are summed up.
const LISTED: usize = 20;

impl Summary {
    /// Returns the summary, if one is wanted. `has_rules` is false where rules raise no alerts, so that
    /// none is expected.
    pub(super) fn wanted(
        config: &Config,
        quiet: bool,
        manner: CompatMode,
        (has_rules, is_resumed): (bool, bool),
    ) -> Option<Self> {
        let is_terminal = io::stderr().is_terminal();
        let stream = &config.outputs.stdout;
        // Whoever reads JSON reads nothing else.
        let follows_alerts =
            stream.enabled && stream.target == StreamTarget::Stderr && !is_terminal;
        let is_in_the_way = follows_alerts && stream.is_json(config.json_output);
        let is_wanted = !quiet && manner == CompatMode::Tollgate && !is_in_the_way;
        is_wanted.then(|| Self {
            tells_nothing: is_terminal && has_rules,
            follows_alerts,
            is_resumed,
            unwatched: Cell::new((0, 0)),
            shown: Cell::new(None),
        })
    }

    /// Counts unwatched intervals.
    pub(super) fn count(&self, gaps: &Gaps) {
        let calls: u64 = gaps.calls.iter().map(|(_, count)| count).sum();
        let (intervals, before) = self.unwatched.get();
        self.unwatched.set((intervals + gaps.count, before + calls));
    }

    /// Prints the summary. A second one tells only how many alerts came after the first.
    pub(super) fn tell(&self, counters: &Counters, dropped: u64) {
        let alerts: u64 = counters.by_rule.iter().map(|rule| rule.alerts).sum();
        if let Some(shown) = self.shown.replace(Some(alerts)) {
            let more = alerts.saturating_sub(shown);
            if more > 0 && !self.follows_alerts {
                let noun = plural(more, "alert");
                terminal::complain(&format!("tollgate: {noun} after the command had ended\n"));
            }
            return;
        }
        let unwatched = self.unwatched.get();
        let is_all_above = dropped == 0 && unwatched.0 == 0 && counters.suppressed == 0;
        if self.follows_alerts && is_all_above {
            return;
        }
        match text(counters, dropped, unwatched, self.is_resumed) {
            Some(text) => terminal::complain(&text),
            None if self.tells_nothing => terminal::complain("tollgate: no alerts\n"),
            None => {}
        }
    }
}

/// Formats the summary; `None` if nothing happened.
fn text(
    counters: &Counters,
    dropped: u64,
    (intervals, calls): (u64, u64),
    is_resumed: bool,
) -> Option<String> {
    let alerts: u64 = counters.by_rule.iter().map(|rule| rule.alerts).sum();
    if alerts == 0 && dropped == 0 && intervals == 0 {
        return None;
    }
    let mut parts = vec![plural(alerts, "alert")];
    if counters.suppressed > 0 {
        let suppressed = counters.suppressed;
        parts.push(format!("{suppressed} of them suppressed by outputs.rate"));
    }
    if dropped > 0 {
        parts.push(format!("{} dropped", plural(dropped, "event")));
    }
    if intervals > 0 {
        let intervals = plural(intervals, "unwatched interval");
        parts.push(format!("{intervals} with {}", plural(calls, "call")));
    }
    let since = if is_resumed {
        ", since the monitor was replaced"
    } else {
        ""
    };
    let mut text = format!("tollgate: {}{since}\n", parts.join(", "));
    let mut rules = counters.by_rule.clone();
    rules.sort_by(|one, other| {
        (one.priority, other.alerts, &one.rule).cmp(&(other.priority, one.alerts, &other.rule))
    });
    for rule in rules.iter().take(LISTED) {
        let (alerts, priority, name) = (rule.alerts, rule.priority.to_string(), &rule.rule);
        text.push_str(&format!("{alerts:>7}  {priority:<13}  {name}\n"));
    }
    if let Some(rest) = rules.get(LISTED..).filter(|rest| !rest.is_empty()) {
        let alerts: u64 = rest.iter().map(|rule| rule.alerts).sum();
        let rules = plural(rest.len() as u64, "more rule");
        text.push_str(&format!("{alerts:>7}  {rules}\n"));
    }
    Some(text)
}

pub(crate) fn plural(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use outputs::RuleAlerts;
    use rules::Priority;

    use super::*;

    fn counters(rules: &[(&str, Priority, u64)]) -> Counters {
        let rules = rules.iter().map(|(rule, priority, alerts)| RuleAlerts {
            rule: (*rule).into(),
            priority: *priority,
            alerts: *alerts,
        });
        Counters {
            by_rule: rules.collect(),
            ..Counters::default()
        }
    }

    #[test]
    fn the_most_urgent_rules_come_first_and_every_alert_is_counted() {
        let counters = counters(&[
            ("A", Priority::Notice, 2),
            ("B", Priority::Critical, 1),
            ("C", Priority::Notice, 37),
        ]);
        assert_eq!(
            text(&counters, 0, (0, 0), false).as_deref(),
            Some(
                "tollgate: 40 alerts\n      1  Critical       B\n     37  Notice         C\n      \
                 2  Notice         A\n"
            )
        );
        let head = |dropped, unwatched, is_resumed| {
            let text = text(&counters, dropped, unwatched, is_resumed).unwrap();
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(
            head(1, (2, 15), true),
            "tollgate: 40 alerts, 1 event dropped, 2 unwatched intervals with 15 calls, since the monitor was \
             replaced"
        );
    }

    #[test]
    fn without_anything_to_say_there_is_no_summary_and_a_loss_is_something() {
        let none = counters(&[]);
        assert_eq!(text(&none, 0, (0, 0), true), None);
        assert!(text(&none, 1, (0, 0), false).is_some());
        assert!(text(&none, 0, (1, 0), false).is_some());
    }

    #[test]
    fn many_rules_are_summed_up() {
        let names: Vec<String> = (0..30).map(|n| format!("R{n}")).collect();
        let rules: Vec<_> = names
            .iter()
            .map(|name| (&**name, Priority::Notice, 2))
            .collect();
        let text = text(&counters(&rules), 0, (0, 0), false).unwrap();
        assert_eq!(text.lines().count(), 22);
        assert!(text.ends_with("     20  10 more rules\n"), "{text}");
    }
}
