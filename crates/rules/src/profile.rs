//! What rules cost and which calls they are asked about, for metrics.
//!
//! Events are counted one by one. Rules are timed in one of so many looks at an event, and what was
//! found then is multiplied: two looks at the clock take as long as a rule.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use event::EventKind;

use crate::engine::Engine;

/// One look in so many is timed where processes are watched.
pub const SAMPLED: NonZeroU64 = NonZeroU64::new(64).expect("it is not zero");

/// Counters of one engine.
#[derive(Debug)]
pub(crate) struct Profile {
    /// One look in so many is timed.
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

    /// An event was rejected or concluded.
    pub(crate) fn judged(&self, kind: EventKind) {
        self.kinds[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this look, by its number, is one to time.
    pub(crate) fn is_timed(&self, look: u64) -> bool {
        look.is_multiple_of(self.every.get())
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

/// What a rule has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCost<'e> {
    /// Its name.
    pub rule: &'e str,
    /// How often it was evaluated, about.
    pub evaluations: u64,
    /// How long that took together, about.
    pub nanoseconds: u64,
}

impl Engine {
    /// What the rules have cost; nothing if the engine does not keep count.
    pub fn costs(&self) -> impl Iterator<Item = RuleCost<'_>> {
        let profile = self.profile.as_ref();
        let timed = profile.map_or(&[][..], |profile| &profile.rules);
        self.rules.iter().zip(timed).map(|(rule, timed)| RuleCost {
            rule: &rule.name,
            evaluations: timed.evaluations.load(Ordering::Relaxed),
            nanoseconds: timed.nanoseconds.load(Ordering::Relaxed),
        })
    }

    /// How many events of each kind were judged, those of which there were any; nothing if the engine
    /// does not keep count.
    pub fn judged(&self) -> impl Iterator<Item = (EventKind, u64)> {
        let profile = self.profile.as_ref();
        let kinds = profile.map_or(&[][..], |profile| &profile.kinds);
        let counts = kinds.iter().map(|count| count.load(Ordering::Relaxed));
        EventKind::all().zip(counts).filter(|(_, count)| *count > 0)
    }
}
