//! Statistics of a replay: events, rate and matches.

use std::fmt::Write as _;
use std::time::Duration;

use agent::recorded_plugins::RecordedPlugins;
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
    plugins: PluginCounts,
}

/// What happened to events of plugins.
#[derive(Default)]
struct PluginCounts {
    evaluated: u64,
    /// Events that no rule saw because their plugin failed.
    lost: u64,
    /// Events of plugins that are not loaded, and the numbers of these plugins; without them no plugin is ever loaded.
    of_others: (u64, Option<String>),
}

impl Statistics {
    pub(super) fn add(&mut self, replay: &Replay<'_, Engine>) {
        let (counts, lost) = (replay.counts(), replay.lost());
        self.counts.events += counts.events;
        self.counts.evaluated += counts.evaluated;
        self.counts.undecided += counts.undecided;
        self.counts.unknown_types += counts.unknown_types;
        self.counts.of_plugins += counts.of_plugins;
        self.lost.unkept += lost.unkept;
        self.lost.strangers += lost.strangers;
    }

    pub(super) fn finish(
        &mut self,
        time: Duration,
        engines: &[&Engine],
        plugins: Option<&RecordedPlugins>,
    ) {
        self.seconds = time.as_secs_f64();
        self.counts.undecided += plugins.map_or(0, RecordedPlugins::undecided);
        self.plugins = match plugins {
            Some(plugins) => PluginCounts {
                evaluated: plugins.evaluated(),
                lost: plugins.lost(),
                of_others: {
                    let (events, names) = plugins.of_others();
                    (events, Some(names))
                },
            },
            // Events are printed, and those of plugins only their plugins can read.
            None => PluginCounts {
                of_others: (self.counts.of_plugins, None),
                ..PluginCounts::default()
            },
        };
        self.matches = engines
            .iter()
            .flat_map(|engine| engine.matches())
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
            of_plugins,
        } = self.counts;
        let plugins = &self.plugins;
        let mut text = format!(
            "{events} events in {:.3} s ({}/s); {} evaluated\n",
            self.seconds,
            self.rate(),
            evaluated + plugins.evaluated,
        );
        for (count, what) in [
            (
                undecided,
                "rule evaluations without a result (data unavailable)",
            ),
            (unknown_types, "events of types unknown to this version"),
            (of_plugins, "events of plugins"),
            (plugins.lost, "events of plugins lost (their plugin failed)"),
            (plugins.of_others.0, "events of plugins that are not loaded"),
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
            "evaluated": self.counts.evaluated + self.plugins.evaluated,
            "undecided": self.counts.undecided,
            "unknown_types": self.counts.unknown_types,
            "of_plugins": self.counts.of_plugins,
            "of_plugins_lost": self.plugins.lost,
            "of_plugins_not_loaded": self.plugins.of_others.0,
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
        let (events, names) = &self.plugins.of_others;
        if *events > 0 {
            let what = match names {
                Some(names) => format!(
                    "of plugins that are not loaded (numbers: {names}) were not evaluated; name their plugins in \
                     load_plugins and plugins of the configuration"
                ),
                None => "of plugins were not printed; rules can be evaluated on them".to_owned(),
            };
            terminal::complain(&format!("tollgate: warning: {events} events {what}\n"));
        }
    }
}
