//! Evaluation costs of rules and events by kind, for metrics.
//!
//! Every event is counted. Rules are timed in one evaluation out of a fixed number, and the result is
//! multiplied, because reading the clock twice takes as long as a rule.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use event::EventKind;

/// Sampling interval for live monitoring: one evaluation out of this many is timed.
pub const SAMPLED: NonZeroU64 = NonZeroU64::new(64).expect("it is not zero");

/// Counters of one engine.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Sampling interval in evaluations.
    every: NonZeroU64,
    rules: Vec<Timed>,
    kinds: Vec<AtomicU64>,
}

#[derive(Debug, Default)]
struct Timed {
    evaluations: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Profile {
    pub(crate) fn new(rules: usize, every: NonZeroU64) -> Self {
        Self {
            every,
            rules: (0..rules).map(|_| Timed::default()).collect(),
            kinds: EventKind::all().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts an event that was rejected or evaluated.
    pub(crate) fn evaluated(&self, kind: EventKind) {
        self.kinds[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if the evaluation with this number is to be timed.
    pub(crate) fn is_timed(&self, look: u64) -> bool {
        look.is_multiple_of(self.every.get())
    }

    /// Returns estimated evaluations and nanoseconds by rule.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (u64, u64)> {
        self.rules.iter().map(|timed| {
            (
                timed.evaluations.load(Ordering::Relaxed),
                timed.nanoseconds.load(Ordering::Relaxed),
            )
        })
    }

    /// Returns the number of events of each kind.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (EventKind, u64)> {
        let counts = self.kinds.iter().map(|count| count.load(Ordering::Relaxed));
        EventKind::all().zip(counts)
    }

    /// Times the evaluation of a rule.
    pub(crate) fn time<T>(&self, rule: usize, evaluate: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = evaluate();
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let timed = &self.rules[rule];
        timed
            .evaluations
            .fetch_add(self.every.get(), Ordering::Relaxed);
        timed
            .nanoseconds
            .fetch_add(took.saturating_mul(self.every.get()), Ordering::Relaxed);
        result
    }
}

/// Cost of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCost<'e> {
    /// Name of the rule.
    pub rule: &'e str,
    /// Estimated number of evaluations.
    pub evaluations: u64,
    /// Estimated total time in nanoseconds.
    pub nanoseconds: u64,
}
