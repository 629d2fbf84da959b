//! Events of pods: what happens in a pod, as `kubectl describe pod` shows it.
//!
//! Whoever notices something only adds to a table in memory, which is bounded. A thread of its own writes Events at limited
//! rates. What repeats is counted, and becomes one Event with a series.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nri::message::PodSandbox;

use crate::event_writer::shown;

/// Maximum number of different things that wait, or were written in the last minute.
const MAX: usize = 1024;
/// How long occurrences are collected before their Event is written.
const COLLECT: Duration = Duration::from_secs(1);
/// Least time between two Events of the same thing in the same pod.
const REPEAT: Duration = Duration::from_secs(60);
/// Wait after an Event that the API server did not take for now.
const RETRY: Duration = Duration::from_secs(5);
/// Limits of Events of one pod, of one rule, and of the node. Clusters have 10,000 nodes.
const OF_POD: Limit = Limit::new(10, 30);
const OF_SUBJECT: Limit = Limit::new(20, 5);
const OF_NODE: Limit = Limit::new(30, 2);

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
}

impl PodRef {
    pub(crate) fn of(pod: &PodSandbox) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// Why there is an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventReason {
    /// A rule of detection raised an alert.
    RuleMatched,
    /// A call was denied, or reported, by a policy.
    PolicyViolation,
    /// A container runs without its policy, by the policy's fail mode.
    PolicyNotEnforced,
}

impl EventReason {
    /// Reason and action, as the Event has them.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::RuleMatched => ("RuleMatched", "Detect"),
            Self::PolicyViolation => ("PolicyViolation", "Enforce"),
            Self::PolicyNotEnforced => ("PolicyNotEnforced", "Enforce"),
        }
    }
}

/// Something that happened in a pod.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The pod.
    pub pod: PodRef,
    /// Why there is an Event.
    pub reason: EventReason,
    /// The rule or the policy. Occurrences of the same pod, reason and subject become one Event.
    pub subject: String,
    /// The Event has the type `Warning`, and not `Normal`.
    pub is_warning: bool,
    /// The description for people, of which the Event has the last.
    pub note: String,
}

/// Figures of Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFigures {
    /// Occurrences that were noticed.
    pub occurrences: u64,
    /// Events that were written.
    pub written: u64,
    /// Requests that are tried again.
    pub errors: u64,
    /// Occurrences lost because too many different things waited.
    pub lost_full: u64,
    /// Occurrences lost because the API server refused their Event.
    pub lost_refused: u64,
    /// Occurrences that wait for their Event.
    pub waiting: u64,
}

/// Average and burst of Events.
#[derive(Clone, Copy)]
struct Limit {
    burst: u32,
    every: Duration,
}

impl Limit {
    const fn new(burst: u32, seconds: u64) -> Self {
        let every = Duration::from_secs(seconds);
        Self { burst, every }
    }
}

/// A token bucket, as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full: Option<Instant>,
}

impl Bucket {
    fn missing(self, now: Instant) -> Duration {
        self.full
            .map_or(Duration::ZERO, |full| full.saturating_duration_since(now))
    }

    fn admits(self, limit: Limit, now: Instant) -> bool {
        self.missing(now) + limit.every <= limit.every * limit.burst
    }

    fn take(&mut self, limit: Limit, now: Instant) {
        self.full = Some(now + self.missing(now) + limit.every);
    }
}

/// What becomes one Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) pod: PodRef,
    pub(crate) reason: EventReason,
    pub(crate) subject: String,
}

#[derive(Debug)]
struct Entry {
    is_warning: bool,
    note: String,
    /// Occurrences that no Event tells of yet.
    count: u64,
    first: Timestamp,
    last: Timestamp,
    /// When the first of them was noticed.
    since: Instant,
    /// When the last Event was written.
    written: Option<Instant>,
}

/// An Event that is to be written now.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) key: Key,
    pub(crate) is_warning: bool,
    pub(crate) note: String,
    pub(crate) count: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    since: Instant,
}

impl Due {
    /// The entry of the table, should it have gone meanwhile.
    fn entry(&self) -> Entry {
        Entry {
            is_warning: self.is_warning,
            note: self.note.clone(),
            count: 0,
            first: self.first,
            last: self.last,
            since: self.since,
            written: None,
        }
    }
}

/// What came of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    /// The API server may take it later.
    Later,
    /// The API server does not take it.
    Refused,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<Key, Entry>,
    pods: BTreeMap<PodRef, Bucket>,
    subjects: BTreeMap<String, Bucket>,
    node: Bucket,
    paused: Option<Instant>,
    figures: EventFigures,
}

/// Events that wait to be written.
#[derive(Debug, Default)]
pub struct PodEvents {
    table: Mutex<Table>,
}

impl PodEvents {
    /// The table. A thread that panicked left it whole.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something happened. Waits for nobody but for other callers of this.
    pub fn note(&self, occurrence: Occurrence) {
        self.note_at(occurrence, Timestamp::now(), Instant::now());
    }

    fn note_at(&self, occurrence: Occurrence, time: Timestamp, now: Instant) {
        let key = Key {
            pod: occurrence.pod,
            reason: occurrence.reason,
            subject: occurrence.subject,
        };
        let mut table = self.table();
        table.figures.occurrences += 1;
        if !table.entries.contains_key(&key) && table.entries.len() >= MAX {
            table.forget(now);
            if table.entries.len() >= MAX {
                table.figures.lost_full += 1;
                return;
            }
        }
        let entry = table.entries.entry(key).or_insert_with(|| Entry {
            is_warning: false,
            note: String::new(),
            count: 0,
            first: time,
            last: time,
            since: now,
            written: None,
        });
        if entry.count == 0 {
            (entry.first, entry.since) = (time, now);
        }
        entry.count += 1;
        entry.last = time;
        entry.is_warning = occurrence.is_warning;
        entry.note = shown(&occurrence.note);
    }

    /// Figures since the start.
    #[must_use]
    pub fn figures(&self) -> EventFigures {
        let table = self.table();
        EventFigures {
            waiting: table.entries.values().map(|entry| entry.count).sum(),
            ..table.figures
        }
    }

    /// The Event that has waited longest of those that may be written now. [`PodEvents::settle`] has to follow.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        let mut table = self.table();
        if table.paused.is_some_and(|paused| now < paused) {
            return None;
        }
        table.forget(now);
        if !table.node.admits(OF_NODE, now) {
            return None;
        }
        let ready = table
            .entries
            .iter()
            .filter(|(key, entry)| table.is_ready(key, entry, now));
        let (key, _) = ready.min_by_key(|(_, entry)| entry.since)?;
        let key = key.clone();
        let entry = table.entries.get_mut(&key)?;
        Some(Due {
            count: std::mem::take(&mut entry.count),
            is_warning: entry.is_warning,
            note: entry.note.clone(),
            first: entry.first,
            last: entry.last,
            since: entry.since,
            key,
        })
    }

    /// Notes what came of an Event. One that has to be tried again has taken nothing from its limits.
    pub(crate) fn settle(&self, due: Due, outcome: Outcome, now: Instant) {
        let mut table = self.table();
        if outcome == Outcome::Later {
            table.figures.errors += 1;
            table.paused = Some(now + RETRY);
            let entry = table.entries.entry(due.key.clone());
            let entry = entry.or_insert_with(|| due.entry());
            entry.count += due.count;
            (entry.first, entry.since) = (due.first, due.since);
            return;
        }
        match outcome {
            Outcome::Refused => table.figures.lost_refused += due.count,
            Outcome::Written | Outcome::Later => table.figures.written += 1,
        }
        let entry = table.entries.entry(due.key.clone());
        entry.or_insert_with(|| due.entry()).written = Some(now);
        let Key { pod, subject, .. } = due.key;
        table.pods.entry(pod).or_default().take(OF_POD, now);
        let of_subject = table.subjects.entry(subject).or_default();
        of_subject.take(OF_SUBJECT, now);
        table.node.take(OF_NODE, now);
    }
}

impl Table {
    /// Returns true if the limits admit an Event.
    fn is_ready(&self, key: &Key, entry: &Entry, now: Instant) -> bool {
        let has_passed = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let admits = |bucket: Option<&Bucket>, limit| bucket.is_none_or(|b| b.admits(limit, now));
        entry.count > 0
            && has_passed(entry.since, COLLECT)
            && entry
                .written
                .is_none_or(|written| has_passed(written, REPEAT))
            && admits(self.pods.get(&key.pod), OF_POD)
            && admits(self.subjects.get(&key.subject), OF_SUBJECT)
    }

    /// Forgets what limits nothing any more.
    fn forget(&mut self, now: Instant) {
        self.entries.retain(|_, entry| {
            let is_recent = |written| now.saturating_duration_since(written) < REPEAT;
            entry.count > 0 || entry.written.is_some_and(is_recent)
        });
        let is_missing = |bucket: &mut Bucket| !bucket.missing(now).is_zero();
        self.pods.retain(|_, bucket| is_missing(bucket));
        self.subjects.retain(|_, bucket| is_missing(bucket));
    }
}

#[cfg(test)]
#[path = "pod_events_tests.rs"]
mod tests;
