//! What should have been seen, what was, and what somebody says is missing.

use serde_json::{Value, json};

use crate::log::Log;

/// A kind of event.
#[derive(Debug)]
pub(crate) struct Entry {
    name: &'static str,
    expected: u64,
    seen: u64,
    /// Events that a counter or an alert says were lost.
    reported: u64,
}

impl Entry {
    /// An entry, by name.
    pub(crate) fn new(name: &'static str, expected: u64, seen: u64, reported: u64) -> Self {
        Self {
            name,
            expected,
            seen,
            reported,
        }
    }

    /// Returns what is wrong: something is missing and nobody says so, or something was seen twice.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self {
            name,
            expected,
            seen,
            reported,
        } = self;
        if seen + reported < *expected {
            let unsaid = expected - seen - reported;
            return Some(format!(
                "{name}: {unsaid} of {expected} lost and not reported"
            ));
        }
        if seen > expected {
            return Some(format!(
                "{name}: {} seen more than happened ({expected})",
                seen - expected
            ));
        }
        (*expected == 0).then(|| format!("{name}: nothing happened, so nothing was tested"))
    }

    /// Returns the entry as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({"of": self.name, "expected": self.expected, "seen": self.seen, "reported_lost": self.reported})
    }

    /// Returns the entry as a row of a table.
    pub(crate) fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {} |\n",
            self.name, self.expected, self.seen, self.reported
        )
    }
}

/// Returns a counter of a channel; 0 if there is no such channel.
fn channel(stats: &Value, name: &str, counter: &str) -> u64 {
    stats["alerts"]["channels"][name][counter]
        .as_u64()
        .unwrap_or(0)
}

/// Returns alerts that a channel says it has lost, or still has.
fn lost(stats: &Value, name: &str) -> u64 {
    let kinds = [
        "lost_queue_full",
        "lost_write_failed",
        "lost_rejected",
        "lost_no_receiver",
        "pending",
    ];
    kinds.iter().map(|kind| channel(stats, name, kind)).sum()
}

/// Returns a counter; 0 where the engine does not have it.
fn counter(stats: &Value, name: &str) -> u64 {
    stats["counters"][name].as_u64().unwrap_or(0)
}

/// Returns events that a detector says it did not see.
fn unseen(stats: &Value) -> u64 {
    // The stats file is written, or the test fails where it is read.
    stats["cur"]["drops"].as_u64().unwrap_or(0)
        + stats["alerts"]["suppressed"].as_u64().unwrap_or(0)
}

/// Returns the entries of `watch`: events, and alerts at each output. `answered`: requests that the web server
/// answered.
pub(crate) fn of_watch(
    rule: &str,
    expected: u64,
    log: &Log,
    stats: &Value,
    collected: u64,
    answered: u64,
) -> Vec<Entry> {
    let seen = log.of(rule);
    let queued = channel(stats, "http", "queued");
    // An alert whose answer came too late is sent again, so that more may be answered than delivered.
    let delivered = channel(stats, "http", "delivered").min(answered);
    vec![
        Entry::new(
            "watch: opens",
            expected,
            seen,
            unseen(stats) + lost(stats, "file"),
        ),
        Entry::new(
            "watch: alerts by HTTP",
            queued,
            delivered,
            lost(stats, "http"),
        ),
        Entry::new(
            "watch: alerts at the collector",
            seen,
            collected,
            lost(stats, "collector"),
        ),
    ]
}

/// Returns the entry of `run`. `lost`: alerts that outputs of its agents lost.
pub(crate) fn of_run(rule: &str, expected: u64, log: &Log, stats: &Value, lost: u64) -> Entry {
    let reported = unseen(stats) + counter(stats, "alerts_lost_with_agent") + lost;
    Entry::new("run: opens", expected, log.of(rule), reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_reported_are_no_problem_and_others_are() {
        assert_eq!(Entry::new("a", 10, 10, 0).problem(), None);
        assert_eq!(Entry::new("a", 10, 7, 3).problem(), None);
        let unsaid = Entry::new("a", 10, 7, 2).problem();
        assert_eq!(unsaid.as_deref(), Some("a: 1 of 10 lost and not reported"));
        assert!(Entry::new("a", 10, 11, 0).problem().is_some());
        assert!(Entry::new("a", 0, 0, 0).problem().is_some());
    }
}
