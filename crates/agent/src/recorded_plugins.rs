//! Events of plugins in captures.

use std::borrow::Cow;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use plugin::protocol::RecordedEvent;
use plugin::{RecordedCounts, RecordedSources};
use scap::replay::{PluginEvent, PluginEvents};

use crate::summary::plural;

/// Receives the events of plugins in captures, and evaluates them with the plugins of the configuration.
#[derive(Debug)]
pub struct RecordedPlugins(RecordedSources);

impl RecordedPlugins {
    pub(crate) fn new(sources: RecordedSources) -> Self {
        Self(sources)
    }

    /// Returns the number of events that rules saw.
    #[must_use]
    pub fn evaluated(&self) -> u64 {
        self.sum(|counts| counts.totals.events)
    }

    /// Returns the number of events that no rule saw because their plugin failed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sum(|counts| counts.lost)
    }

    /// Returns the number of rules that stayed undecided because a plugin could not say a value.
    #[must_use]
    pub fn undecided(&self) -> u64 {
        self.sum(|counts| counts.totals.undecided)
    }

    /// Returns the number of events of plugins that are not loaded, and which plugins these are.
    #[must_use]
    pub fn of_others(&self) -> (u64, String) {
        let events = self.0.strangers().map(|(_, events)| events).sum();
        let names = self.0.strangers().map(|(plugin, _)| match plugin {
            Some(plugin) => plugin.to_string(),
            None => "others".to_owned(),
        });
        (events, names.collect::<Vec<_>>().join(", "))
    }

    /// Returns the failure that stands for the events that no rule saw.
    ///
    /// # Errors
    ///
    /// A plugin failed on an event.
    pub fn complete(&self) -> Result<(), Failure> {
        let incomplete = self.0.counts().filter(|(_, counts)| counts.lost > 0);
        let losses: Vec<_> = incomplete
            .map(|(name, counts)| loss(name, counts))
            .collect();
        if losses.is_empty() {
            return Ok(());
        }
        let message = format!(
            "cannot evaluate all events of plugins: {}",
            losses.join("; ")
        );
        Err(Failure::new(Exit::BadInput, message).help(
            "use the version of the plugin that made the events; the other events were evaluated",
        ))
    }

    fn sum(&self, count: impl Fn(&RecordedCounts) -> u64) -> u64 {
        self.0.counts().map(|(_, counts)| count(counts)).sum()
    }
}

fn loss(name: &str, counts: &RecordedCounts) -> String {
    let plugin::Totals {
        crashes,
        hangs,
        garbage,
        failures,
        ..
    } = counts.totals;
    // An event is lost with a cause.
    let cause = counts.cause.as_deref().unwrap_or("no cause is known");
    format!(
        "source {name}: {} lost ({crashes} crashes, {hangs} hangs, {garbage} times garbage, {failures} failures), last \
         because {cause}",
        plural(counts.lost, "event"),
    )
}

impl PluginEvents for RecordedPlugins {
    fn take(&mut self, event: &PluginEvent<'_>) {
        let name = event.asynchronous.map(String::from_utf8_lossy);
        let recorded = RecordedEvent {
            number: event.number,
            time_ns: event.time_ns,
            asynchronous: name.map(Cow::into_owned),
            data: event.data.to_vec(),
        };
        self.0.take(event.plugin, recorded);
    }

    fn flush(&mut self) {
        self.0.flush();
    }
}
