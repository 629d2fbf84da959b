//! Totals of a supervisor that has ended pass to those of the past, once, although the process that does so may be
//! killed between two writes.
//!
//! The status of the past has no receivers. The words of theirs hold the sum before any total changes; whoever does it
//! next finds the sum there and writes it again.

use std::sync::atomic::Ordering;

use decoder::counters::CounterSnapshot;

use super::receiver_status::{ReceiverStatus, SEATS, seat};

/// Index of a word that is 1 while the sum behind it is valid.
const IS_VALID: usize = SEATS;
/// Index of the first word of the sum.
const SUM: usize = SEATS + 1;

impl ReceiverStatus {
    /// Adds the totals of another supervisor, which has ended and whose calls have been answered. Does not
    /// clear slots that the kernel wrote: another process's receivers may still use them.
    /// [`reset`](Self::reset) does. A process that is killed here leaves the rest to the next one, which has to
    /// bury the same supervisor.
    pub fn bury(&self, ended: &ReceiverStatus) {
        self.bury_in_steps(ended, || ());
    }

    /// Calls `step` before each write that others see.
    fn bury_in_steps(&self, ended: &ReceiverStatus, mut step: impl FnMut()) {
        let is_valid = self.word(IS_VALID);
        if is_valid.load(Ordering::Acquire) == 0 {
            let sum = self.totals().plus(&ended.totals());
            for (index, total) in sum.values().into_iter().enumerate() {
                step();
                self.word(SUM + index).store(total, Ordering::Relaxed);
            }
            step();
            is_valid.store(1, Ordering::Release);
        }
        let sum = |index| self.word(SUM + index).load(Ordering::Relaxed);
        step();
        self.tick(&CounterSnapshot::from_values(sum));
        step();
        ended.reset_totals();
        step();
        is_valid.store(0, Ordering::Release);
        for number in ended.used() {
            let word = |index| ended.seat_word(number, index);
            step();
            let received = word(seat::RECEIVED).load(Ordering::Acquire);
            word(seat::DONE).store(received, Ordering::Release);
            if let Some(given) = ended.slot(number).call() {
                word(seat::ID).store(given.id, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use sys::notify::Notification;

    use super::*;

    fn numbered() -> CounterSnapshot {
        CounterSnapshot::from_values(|index| index as u64 + 1)
    }

    fn status() -> Arc<ReceiverStatus> {
        Arc::new(ReceiverStatus::private().expect("memory"))
    }

    fn one_that_ended() -> Arc<ReceiverStatus> {
        let ended = status();
        let seat = ended.seat();
        seat.received(&Notification {
            id: 41,
            ..Notification::default()
        });
        let given = ended.seat_word(0, seat::SLOT);
        given.store(42, Ordering::Release);
        ended.tick(&numbered());
        assert_eq!(ended.held().len(), 2);
        // A killed process does not leave its slot.
        std::mem::forget(seat);
        ended
    }

    #[test]
    fn the_dead_hold_nothing_and_are_counted_once() {
        let (dead, past) = (one_that_ended(), status());
        for _ in 0..2 {
            past.bury(&dead);
            assert_eq!(dead.held().len(), 0);
            assert_eq!(past.totals(), numbered());
        }
        // A receiver that was given a call meanwhile finds it.
        assert_eq!(dead.slot(0).id(), 42);
        dead.reset();
        assert_eq!((dead.slot(0).call(), dead.ids()), (None, None));
    }

    #[test]
    fn whoever_is_killed_while_it_buries_leaves_one_count_to_the_next() {
        let places = numbered().values().len() + 5;
        for killed_at in 0..places {
            let (dead, past) = (one_that_ended(), status());
            past.bury(&one_that_ended());
            let mut passed = 0;
            let step = || {
                assert!(passed < killed_at, "it is killed for the test");
                passed += 1;
            };
            let killed = catch_unwind(AssertUnwindSafe(|| past.bury_in_steps(&dead, step)));
            assert!(killed.is_err(), "{killed_at}");
            past.bury(&dead);
            assert_eq!(past.totals(), numbered().plus(&numbered()), "{killed_at}");
            assert_eq!(dead.totals(), CounterSnapshot::default(), "{killed_at}");
            assert!(dead.held().is_empty(), "{killed_at}");
        }
        assert!(places <= seat::WORDS * super::super::receiver_status::SEAT_COUNT);
    }
}
