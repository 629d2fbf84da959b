//! Evaluates events of plugins that are in a capture.
//!
//! The process of a source takes fields from them without opening it. Events are sent in batches, and shown to the rules
//! in the order of the capture. When a batch fails, the events that are left of it are sent one by one to a new process, so
//! that the event that fails is the only one that no rule sees.

use std::collections::BTreeMap;

use crate::evaluator::SourceEvaluator;
use crate::host_process::{Helper, HelperError};
use crate::protocol::{MAX_EVENT_DATA, ProtocolError, Record, RecordedEvent, Reply, is_async_name};
use crate::source::{SourcePlan, Totals};

/// Most events that wait for their batch.
const MAX_WAITING: usize = 256;
/// Bytes of events at which a batch is sent. A frame takes as many and one event more.
const FULL: usize = 1 << 20;
/// Failures after which the other events of a source are not tried: each costs a new process.
const MAX_FAILURES: u64 = 100;
/// Hangs after which the other events of a source are not tried: each costs the deadline, and an event that hangs is tried
/// twice, first with its batch.
const MAX_HANGS: u64 = 6;
/// Most plugins that are counted one by one if they are not loaded.
const MAX_STRANGERS: usize = 64;

/// The event sources of plugins in captures, by the number of the plugin that made their events.
#[derive(Debug, Default)]
pub struct RecordedSources {
    sources: BTreeMap<u32, RecordedSource>,
    /// Events that no loaded plugin made, by the number of their plugin.
    strangers: BTreeMap<u32, u64>,
    /// Events of further plugins that are not loaded.
    further: u64,
    /// The source whose events wait.
    waiting: Option<u32>,
}

/// One event source in captures.
#[derive(Debug)]
struct RecordedSource {
    plan: SourcePlan,
    evaluator: SourceEvaluator,
    /// The process; `None` before the first event and after a failure.
    helper: Option<Helper>,
    waiting: Vec<RecordedEvent>,
    waiting_bytes: usize,
    counts: RecordedCounts,
    has_given_up: bool,
}

/// Counts what happened to the events of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCounts {
    /// As for a source that is open.
    pub totals: Totals,
    /// Events that no rule saw, because the plugin failed.
    pub lost: u64,
    /// The last failure.
    pub cause: Option<String>,
}

impl RecordedSources {
    /// Adds a source whose rules `evaluator` has. Precondition: no source before has the same number; a [`Catalogue`] refuses
    /// plugins with one number.
    ///
    /// [`Catalogue`]: crate::Catalogue
    pub fn add(&mut self, plan: SourcePlan, evaluator: SourceEvaluator) {
        let source = RecordedSource {
            plan,
            helper: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
            counts: RecordedCounts::default(),
            has_given_up: false,
            evaluator,
        };
        self.sources.insert(source.evaluator.plugin_id(), source);
    }

    /// Takes an event of the source of the plugin with this number. It is evaluated with later ones, or by
    /// [`RecordedSources::flush`].
    pub fn take(&mut self, plugin: u32, event: RecordedEvent) {
        if self.waiting.is_some_and(|waiting| waiting != plugin) {
            self.flush();
        }
        let Some(source) = self.sources.get_mut(&plugin) else {
            return self.count_stranger(plugin);
        };
        source.take(event);
        self.waiting = (!source.waiting.is_empty()).then_some(plugin);
    }

    /// Evaluates all events that were taken.
    pub fn flush(&mut self) {
        let waiting = self.waiting.take();
        if let Some(source) = waiting.and_then(|plugin| self.sources.get_mut(&plugin)) {
            source.flush();
        }
    }

    /// Returns the sources with what happened to their events, those without events included.
    pub fn counts(&self) -> impl Iterator<Item = (&str, &RecordedCounts)> {
        let sources = self.sources.values();
        sources.map(|source| (source.plan.source.as_str(), &source.counts))
    }

    /// Returns the numbers of events whose plugins are not loaded, by the number of the plugin; `None` stands for all
    /// plugins that are not counted one by one.
    pub fn strangers(&self) -> impl Iterator<Item = (Option<u32>, u64)> {
        let known = self.strangers.iter();
        let further = (self.further > 0).then_some((None, self.further));
        known
            .map(|(plugin, events)| (Some(*plugin), *events))
            .chain(further)
    }

    fn count_stranger(&mut self, plugin: u32) {
        if self.strangers.len() < MAX_STRANGERS || self.strangers.contains_key(&plugin) {
            *self.strangers.entry(plugin).or_default() += 1;
        } else {
            self.further += 1;
        }
    }
}

impl RecordedSource {
    fn take(&mut self, event: RecordedEvent) {
        if event.data.len() > MAX_EVENT_DATA {
            let length = event.data.len();
            self.counts.cause = Some(format!("an event of {length} bytes is too long"));
            self.counts.lost += 1;
            return;
        }
        let is_bad = |name: &String| !is_async_name(name);
        if event.asynchronous.as_ref().is_some_and(is_bad) {
            self.counts.cause = Some("an asynchronous event has no name".to_owned());
            self.counts.lost += 1;
            return;
        }
        self.waiting_bytes += event.data.len();
        self.waiting.push(event);
        if self.waiting.len() >= MAX_WAITING || self.waiting_bytes >= FULL {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut batch = self.waiting.len();
        let mut has_answered = false;
        while !self.waiting.is_empty() && !self.has_given_up {
            batch = batch.min(self.waiting.len());
            let is_new = self.helper.is_none();
            let (done, result) = self.show(batch);
            self.waiting.drain(..done);
            let Err(error) = result else {
                has_answered = true;
                continue;
            };
            self.note(&error);
            // A process that waited for a while may have failed before it had the event.
            if batch == 1 && done == 0 && (is_new || has_answered) {
                self.waiting.remove(0);
                self.counts.lost += 1;
            }
            batch = 1;
            has_answered = false;
        }
        // Those that nothing evaluates any more.
        let left = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        self.counts.lost += left;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Shows the first events to the rules. Returns the number of those that were shown.
    fn show(&mut self, batch: usize) -> (usize, Result<(), HelperError>) {
        let mut helper = match self.helper.take().map_or_else(|| self.start(), Ok) {
            Ok(helper) => helper,
            Err(error) => {
                // No event is to blame, and none would fare better.
                self.has_given_up = true;
                return (0, Err(error));
            }
        };
        if let Err(error) = helper.send(self.waiting[..batch].to_vec()) {
            return (0, Err(error));
        }
        let mut done = 0;
        // Each event may be reported once by each plugin. A process that repeats it for ever would never hang.
        let most = batch.saturating_mul(self.plan.plugins.len());
        let mut unparsed_left = u64::try_from(most).unwrap_or(u64::MAX);
        while done < batch {
            let records = match helper.reply() {
                Ok(Reply::Batch(records)) if (1..=batch - done).contains(&records.len()) => records,
                Ok(Reply::Unparsed(events)) if (1..=unparsed_left).contains(&events) => {
                    unparsed_left -= events;
                    let unparsed = &mut self.counts.totals.unparsed;
                    *unparsed = unparsed.saturating_add(events);
                    continue;
                }
                Ok(_) => {
                    let what = "other records than those of its events".to_owned();
                    return (
                        done,
                        Err(HelperError::Garbage(ProtocolError::Invalid(what))),
                    );
                }
                Err(error) => return (done, Err(error)),
            };
            for record in records {
                if let Err(error) = self.check(&record) {
                    return (done, Err(HelperError::Garbage(error)));
                }
                self.evaluate(done, record);
                done += 1;
            }
        }
        self.helper = Some(helper);
        (done, Ok(()))
    }

    fn check(&self, record: &Record) -> Result<(), ProtocolError> {
        let with_data = self.evaluator.wanted().with_data;
        record.check(self.evaluator.types(), with_data)
    }

    fn start(&self) -> Result<Helper, HelperError> {
        let mut helper = Helper::start(&self.plan.limits)?;
        helper.load(&self.plan.plugins)?;
        helper.replay(self.evaluator.wanted())?;
        Ok(helper)
    }

    /// Shows the waiting event at this place to the rules.
    fn evaluate(&mut self, at: usize, mut record: Record) {
        let event = &mut self.waiting[at];
        // What the capture has is not asked for again.
        record.time_ns = event.time_ns;
        record.asynchronous = event.asynchronous.take();
        record.data = Some(std::mem::take(&mut event.data));
        let undecided = self.evaluator.evaluate_as(event.number, &record);
        self.counts.totals.events += 1;
        self.counts.totals.undecided += u64::try_from(undecided).unwrap_or(u64::MAX);
    }

    fn note(&mut self, error: &HelperError) {
        let totals = &mut self.counts.totals;
        totals.count(error);
        let failures = totals.crashes + totals.hangs + totals.garbage + totals.failures;
        self.has_given_up |= failures >= MAX_FAILURES || totals.hangs >= MAX_HANGS;
        totals.restarts += u64::from(!self.has_given_up);
        self.counts.cause = Some(error.to_string());
    }
}
