//! Events of pods: what happens in a pod, as `kubectl describe pod` shows it.
//!
//! Whoever notices something only adds to a table in memory, which is bounded. A thread of its own writes Events at limited
//! rates. What repeats is counted, and becomes one Event with a series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nri::message::PodSandbox;

use crate::event_limits::{Bucket, Limit, Turns};
use crate::event_writer::shown;

/// Maximum number of different things that wait, or were written in the last minute.
const MAX: usize = 1024;
/// Maximum numbers of them that wait, of one pod and of one namespace: others have to find room, too.
const MAX_OF_POD: usize = 64;
const MAX_OF_NAMESPACE: usize = 256;
/// How long occurrences are collected before their Event is written.
const COLLECT: Duration = Duration::from_secs(1);
/// Least time between two Events of the same thing in the same pod.
const REPEAT: Duration = Duration::from_secs(60);
/// Wait after an Event that the API server did not take for now. It doubles with each failure that counts.
const RETRY: Duration = Duration::from_secs(5);
/// Failures after which an Event is lost. Those count before which the API server has taken, or refused, another one.
const MAX_FAILURES: u32 = 5;
/// Number of different Events that fail one after the other, from which on it is the API server that fails.
const SEVERAL: usize = 3;
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
    /// Occurrences lost because their Event failed each time that it was tried, when others did not.
    pub lost_failed: u64,
    /// Occurrences that wait for their Event.
    pub waiting: u64,
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
    /// Attempts of which none is known to have written the Event.
    failed: Option<Failed>,
}

impl Entry {
    fn new(time: Timestamp, now: Instant) -> Self {
        Self {
            is_warning: false,
            note: String::new(),
            count: 0,
            first: time,
            last: time,
            since: now,
            written: None,
            failed: None,
        }
    }
}

/// Attempts to write an Event that have failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    /// Those that count.
    failures: u32,
    /// Not before this is it tried again.
    next: Instant,
    /// Events that the API server had taken or refused at the last attempt.
    answered: u64,
    /// Least number of occurrences that an attempt had. One whose answer was lost has written them.
    told: u64,
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
    failed: Option<Failed>,
}

impl Due {
    /// Returns its occurrences to the entry of the table, which may have new ones.
    fn return_to(self, entry: &mut Entry, count: u64) {
        if entry.count == 0 || (self.is_warning && !entry.is_warning) {
            (entry.is_warning, entry.note) = (self.is_warning, self.note);
        }
        entry.count += count;
        entry.last = entry.last.max(self.last);
        (entry.first, entry.since) = (self.first, self.since);
    }
}

/// What came of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    /// The Event is there: an attempt before has written it.
    Exists,
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
    turns: Turns,
    paused: Option<Instant>,
    /// Events that failed since the API server last took or refused one.
    failing: BTreeSet<Key>,
    /// Events that the API server took or refused.
    answered: u64,
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
        if !table.entries.contains_key(&key) && !table.has_room(&key.pod, now) {
            table.figures.lost_full += 1;
            return;
        }
        let entry = table.entries.entry(key);
        let entry = entry.or_insert_with(|| Entry::new(time, now));
        if entry.count == 0 {
            (entry.first, entry.since) = (time, now);
            entry.is_warning = false;
        }
        entry.count += 1;
        entry.last = time;
        // A warning is shown until it is written, whatever comes after it.
        if occurrence.is_warning || !entry.is_warning {
            entry.note = shown(&occurrence.note);
        }
        entry.is_warning |= occurrence.is_warning;
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

    /// The next Event of those that may be written now: namespaces take turns, and in each of them its pods, so that the first
    /// Event of a pod comes before further ones of others. Events that have failed come last. [`PodEvents::settle`] has to
    /// follow.
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
        let order = |key: &Key, entry: &Entry| {
            let has_failed = entry.failed.is_some();
            (has_failed, table.turns.of(&key.pod), entry.since)
        };
        let (key, _) = ready.min_by_key(|(key, entry)| order(key, entry))?;
        let key = key.clone();
        table.turns.take(&key.pod, now);
        let entry = table.entries.get_mut(&key)?;
        Some(Due {
            count: std::mem::take(&mut entry.count),
            is_warning: entry.is_warning,
            note: entry.note.clone(),
            first: entry.first,
            last: entry.last,
            since: entry.since,
            failed: entry.failed.take(),
            key,
        })
    }

    /// Notes what came of an Event. One that has to be tried again has taken nothing from its limits.
    pub(crate) fn settle(&self, due: Due, outcome: Outcome, now: Instant) {
        let mut table = self.table();
        if outcome == Outcome::Later {
            table.fail(due, now);
            return;
        }
        table.failing.clear();
        table.answered += 1;
        match outcome {
            Outcome::Refused => table.figures.lost_refused += due.count,
            Outcome::Written | Outcome::Exists | Outcome::Later => table.figures.written += 1,
        }
        let key = due.key.clone();
        let entry = table.entries.entry(key.clone());
        let entry = entry.or_insert_with(|| Entry::new(due.last, now));
        entry.written = Some(now);
        let told = due.failed.map_or(due.count, |failed| failed.told);
        if outcome == Outcome::Exists && told < due.count {
            // The Event that is there does not tell of what came after the attempt that wrote it. The name of the next one
            // is made of its first time, and has to be another one.
            let first = due.first + Duration::from_nanos(1);
            let rest = due.count - told;
            due.return_to(entry, rest);
            entry.first = first.max(entry.last);
        }
        table.pods.entry(key.pod).or_default().take(OF_POD, now);
        let of_subject = table.subjects.entry(key.subject).or_default();
        of_subject.take(OF_SUBJECT, now);
        table.node.take(OF_NODE, now);
    }
}

impl Table {
    /// Notes that an Event was not written. It comes behind all others, and is lost in the end if these are written: what the
    /// API server cannot take must not stop them.
    fn fail(&mut self, due: Due, now: Instant) {
        self.figures.errors += 1;
        self.failing.insert(due.key.clone());
        if self.failing.len() >= SEVERAL {
            self.paused = Some(now + RETRY);
        }
        let (counted, told) = match due.failed {
            Some(failed) if failed.answered == self.answered => (failed.failures, failed.told),
            Some(failed) => (failed.failures + 1, failed.told),
            None => (1, due.count),
        };
        if counted >= MAX_FAILURES {
            self.failing.remove(&due.key);
            self.figures.lost_failed += due.count;
            let entry = self.entries.entry(due.key);
            entry.or_insert_with(|| Entry::new(due.last, now)).written = Some(now);
            return;
        }
        let entry = self.entries.entry(due.key.clone());
        let entry = entry.or_insert_with(|| Entry::new(due.last, now));
        entry.failed = Some(Failed {
            failures: counted,
            next: now + RETRY * 2_u32.pow(counted - 1),
            answered: self.answered,
            told,
        });
        let count = due.count;
        due.return_to(entry, count);
    }

    /// Returns true if something new of a pod may wait.
    fn has_room(&mut self, pod: &PodRef, now: Instant) -> bool {
        if self.entries.len() >= MAX {
            self.forget(now);
        }
        let waiting = self.entries.iter().filter(|(_, entry)| entry.count > 0);
        let (mut of_pod, mut of_namespace) = (0, 0);
        for (key, _) in waiting {
            of_pod += usize::from(key.pod == *pod);
            of_namespace += usize::from(key.pod.namespace == pod.namespace);
        }
        self.entries.len() < MAX && of_pod < MAX_OF_POD && of_namespace < MAX_OF_NAMESPACE
    }

    /// Returns true if the limits admit an Event.
    fn is_ready(&self, key: &Key, entry: &Entry, now: Instant) -> bool {
        let has_passed = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let admits = |bucket: Option<&Bucket>, limit| bucket.is_none_or(|b| b.admits(limit, now));
        entry.count > 0
            && has_passed(entry.since, COLLECT)
            && entry
                .written
                .is_none_or(|written| has_passed(written, REPEAT))
            && entry.failed.is_none_or(|failed| failed.next <= now)
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
        self.turns.forget(now, REPEAT);
    }
}

#[cfg(test)]
#[path = "pod_events_tests.rs"]
mod tests;
