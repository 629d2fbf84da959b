//! Rates of Events, and whose turn it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::pod_events::PodRef;

/// Average and burst of Events.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    burst: u32,
    every: Duration,
}

impl Limit {
    pub(crate) const fn new(burst: u32, seconds: u64) -> Self {
        let every = Duration::from_secs(seconds);
        Self { burst, every }
    }
}

/// A token bucket, as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full: Option<Instant>,
}

impl Bucket {
    pub(crate) fn missing(self, now: Instant) -> Duration {
        self.full
            .map_or(Duration::ZERO, |full| full.saturating_duration_since(now))
    }

    pub(crate) fn admits(self, limit: Limit, now: Instant) -> bool {
        self.missing(now) + limit.every <= limit.every * limit.burst
    }

    pub(crate) fn take(&mut self, limit: Limit, now: Instant) {
        self.full = Some(now + self.missing(now) + limit.every);
    }
}

/// When namespaces and pods had their last turns. Those that had none for long are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    number: u64,
    namespaces: BTreeMap<String, (u64, Instant)>,
    pods: BTreeMap<PodRef, (u64, Instant)>,
}

impl Turns {
    /// Orders pods: the namespace that had no turn or the oldest first, and in it the pod.
    pub(crate) fn of(&self, pod: &PodRef) -> (Option<u64>, Option<u64>) {
        let of_namespace = self.namespaces.get(&pod.namespace);
        let of_pod = self.pods.get(pod);
        (of_namespace.map(|turn| turn.0), of_pod.map(|turn| turn.0))
    }

    pub(crate) fn take(&mut self, pod: &PodRef, now: Instant) {
        self.number += 1;
        let turn = (self.number, now);
        self.namespaces.insert(pod.namespace.clone(), turn);
        self.pods.insert(pod.clone(), turn);
    }

    pub(crate) fn forget(&mut self, now: Instant, after: Duration) {
        let is_recent = |since: Instant| now.saturating_duration_since(since) < after;
        self.namespaces.retain(|_, turn| is_recent(turn.1));
        self.pods.retain(|_, turn| is_recent(turn.1));
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.pods.is_empty()
    }
}
