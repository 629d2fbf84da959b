//! Statistics of a replay: events, rate and matches.

use std::fmt::Write as _;
use std::time::Duration;

use diagnostics::terminal;
use rules::Engine;
use scap::replay::{Counts, Replay, StateLosses};
use serde_json::json;

/// Sums over all captures.
#[derive(Default)]
pub(super) struct Statistics {
    counts: Counts,
    lost: StateLosses,
    seconds: f64,
    matches: Vec<(String, u64)>,
}

impl Statistics {
    pub(super) fn add(&mut self, replay: &Replay<'_, Engine>) {
        let (counts, lost) = (replay.counts(), replay.lost());
        self.counts.events += counts.events;
        self.counts.evaluated += counts.evaluated;
        self.counts.undecided += counts.undecided;
        self.counts.unknown_types += counts.unknown_types;
        self.lost.unkept += lost.unkept;
        self.lost.strangers += lost.strangers;
    }

    pub(super) fn finish(&mut self, time: Duration, engine: &Engine) {
        self.seconds = time.as_secs_f64();
        self.matches = engine
            .matches()
            .filter(|(_, count)| *count > 0)
            .map(|(rule, count)| (rule.to_owned(), count))
            .collect();
        self.matches
            .sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    }

    fn rate(&self) -> u64 {
        let events = u32::try_from(self.counts.events).map_or(f64::from(u32::MAX), f64::from);
        let rate = events / self.seconds.max(1e-9);
        // For display only: a rate out of range is shown as the largest number.
        format!("{rate:.0}").parse().unwrap_or(u64::MAX)
    }

    pub(super) fn text(&self) -> String {
        let Counts {
            events,
            evaluated,
            undecided,
            unknown_types,
        } = self.counts;
        let mut text = format!(
            "{events} events in {:.3} s ({}/s); {evaluated} evaluated\n",
            self.seconds,
            self.rate()
        );
        for (count, what) in [
            (
                undecided,
                "rule evaluations without a result (data unavailable)",
            ),
            (unknown_types, "events of types unknown to this version"),
            (
                self.lost.strangers,
                "events of processes that the capture does not describe",
            ),
            (
                self.lost.unkept,
                "threads, descriptors or names dropped (table full)",
            ),
        ] {
            if count > 0 {
                let _ = writeln!(text, "{count} {what}");
            }
        }
        for (rule, count) in &self.matches {
            let _ = writeln!(text, "{count:>9}  {rule}");
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let matches: serde_json::Map<String, serde_json::Value> = self
            .matches
            .iter()
            .map(|(rule, count)| (rule.clone(), (*count).into()))
            .collect();
        let object = json!({
            "events": self.counts.events,
            "seconds": self.seconds,
            "events_per_second": self.rate(),
            "evaluated": self.counts.evaluated,
            "undecided": self.counts.undecided,
            "unknown_types": self.counts.unknown_types,
            "of_unknown_processes": self.lost.strangers,
            "unkept": self.lost.unkept,
            "matches": matches,
        });
        format!("{object}\n")
    }

    /// Warns about alerts that may be missing.
    pub(super) fn warn(&self) {
        for (count, what) in [
            (
                self.counts.unknown_types,
                "events of types unknown to this version were skipped",
            ),
            (
                self.lost.unkept,
                "threads, descriptors or names of the capture were dropped (table full)",
            ),
        ] {
            if count > 0 {
                terminal::complain(&format!("tollgate: warning: {count} {what}\n"));
            }
        }
    }
}
