//! Batches that the store refuses, again and again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use store::Fault;

/// Attempts with a batch whose values the database refuses: a second server may make the same partition or group.
const ATTEMPTS: u32 = 5;

/// Attempts with a batch whose error does not tell whether the batch is at fault. They take a minute.
const UNCLEAR_ATTEMPTS: u32 = 60;

/// Time after which a batch that did not come again is forgotten: another server has taken it.
const GONE: Duration = Duration::from_secs(60);

struct Attempts {
    count: u32,
    /// Number of batches that were stored before the first attempt.
    stored: u64,
    last: Instant,
}

/// Failed attempts by the place of the batch in the stream.
#[derive(Default)]
pub(super) struct Failing {
    batches: HashMap<u64, Attempts>,
    /// Number of batches that were stored.
    stored: u64,
}

impl Failing {
    /// Counts a failure that is not one of the store as a whole. Returns true if the batch alone fails, as far as can be seen from
    /// here: an error about its values has come back, or others were stored meanwhile.
    pub(super) fn count(&mut self, place: u64, fault: Fault) -> bool {
        let stored = self.stored;
        let attempts = self.batches.entry(place).or_insert(Attempts {
            count: 0,
            stored,
            last: Instant::now(),
        });
        attempts.count += 1;
        attempts.last = Instant::now();
        match fault {
            Fault::Values => attempts.count >= ATTEMPTS,
            Fault::Unclear => attempts.count >= UNCLEAR_ATTEMPTS && stored > attempts.stored,
            Fault::Away | Fault::Later => false,
        }
    }

    /// Notes that a batch is stored.
    pub(super) fn stored(&mut self, place: Option<u64>) {
        self.stored += 1;
        if let Some(place) = place {
            self.forget(place);
        }
    }

    /// Forgets a batch that has left the queue.
    pub(super) fn forget(&mut self, place: u64) {
        self.batches.remove(&place);
    }

    /// Returns true if no batch fails.
    pub(super) fn is_empty(&mut self) -> bool {
        self.batches
            .retain(|_, attempts| attempts.last.elapsed() < GONE);
        self.batches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_fails_alone_is_given_up() {
        let mut failing = Failing::default();
        for _ in 1..ATTEMPTS {
            assert!(!failing.count(7, Fault::Values));
            assert!(!failing.count(8, Fault::Away));
        }
        assert!(failing.count(7, Fault::Values));
        assert!(!failing.count(8, Fault::Later), "the store is at fault");
        failing.forget(7);
        failing.stored(Some(8));
        assert!(failing.is_empty());
    }

    #[test]
    fn an_error_that_does_not_tell_needs_others_that_are_stored() {
        let mut failing = Failing::default();
        for _ in 0..2 * UNCLEAR_ATTEMPTS {
            assert!(!failing.count(7, Fault::Unclear));
        }
        failing.stored(None);
        assert!(failing.count(7, Fault::Unclear));
        assert!(!failing.is_empty());
    }
}
