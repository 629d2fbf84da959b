//! Reactions to lost events, and their rate limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use config::{DropAction, DropSettings};
use outputs::Throttle;

/// Decides which losses trigger an action, and counts them.
pub(super) struct Drops {
    settings: DropSettings,
    throttle: Mutex<Throttle>,
    detected: AtomicU64,
    acted_on: AtomicU64,
}

impl Drops {
    pub(super) fn new(settings: DropSettings) -> Self {
        Self {
            throttle: Mutex::new(Throttle::new(settings.rate, Instant::now())),
            settings,
            detected: AtomicU64::new(0),
            acted_on: AtomicU64::new(0),
        }
    }

    pub(super) fn does(&self, action: DropAction) -> bool {
        self.settings.actions.contains(&action)
    }

    /// Returns true if the losses within a second exceed the threshold, and the rate limit allows
    /// an action.
    #[expect(clippy::cast_precision_loss, reason = "a part needs no 53 bits")]
    pub(super) fn is_acted_on(&self, dropped: u64, sent: u64) -> bool {
        let part = dropped as f64 / (dropped + sent).max(1) as f64;
        if part < self.settings.threshold {
            return false;
        }
        self.detected.fetch_add(1, Ordering::Relaxed);
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_acted_on = !self.settings.actions.is_empty() && throttle.admit(Instant::now());
        self.acted_on
            .fetch_add(u64::from(is_acted_on), Ordering::Relaxed);
        is_acted_on
    }

    /// Returns the number of losses above the threshold, and of those that triggered an action.
    pub(super) fn totals(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.detected), load(&self.acted_on))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outputs::ThrottleRate;

    fn drops(threshold: f64, actions: &[DropAction]) -> Drops {
        Drops::new(DropSettings {
            actions: actions.to_vec(),
            threshold,
            rate: ThrottleRate {
                per_second: 0.001,
                max_burst: 2,
            },
        })
    }

    #[test]
    fn losses_are_acted_on_from_the_threshold_on_and_not_too_often() {
        let some = drops(0.1, &[DropAction::Log]);
        assert!(!some.is_acted_on(9, 100), "too few");
        assert!(some.is_acted_on(12, 88));
        assert!(some.is_acted_on(100, 0));
        assert!(!some.is_acted_on(100, 0), "no token is left");
        assert_eq!(some.totals(), (3, 2));
        assert!(some.does(DropAction::Log) && !some.does(DropAction::Alert));
        let none = drops(0.0, &[]);
        assert!(!none.is_acted_on(100, 0), "losses are ignored");
        assert_eq!(none.totals(), (1, 0));
    }
}
