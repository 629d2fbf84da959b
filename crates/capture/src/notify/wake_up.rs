//! Chooses how the kernel wakes the supervisor.
//!
//! With `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (6.6+) the supervisor runs on the caller's processor: best while
//! one thread makes the calls, because nothing crosses processors. When several threads make calls at once it
//! pulls them all onto one processor, which is worse than waking two receivers freely. The flag can be
//! changed at run time, so the receiver follows the load: a call that was waiting already when the previous
//! one was answered is a sign of parallel callers.

/// Arrival pattern of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One at a time: synchronous wake-up, one receiver.
    Single,
    /// Several at once: free wake-up, two receivers.
    Parallel,
}

/// Number of calls before each decision.
const WINDOW: u32 = 64;
/// Number of waiting calls in the window at which to switch to [`Mode::Parallel`].
const ENTER_PARALLEL: u32 = WINDOW / 4;
/// Number below which to switch back; far lower, so that a mixed load does not flap.
const LEAVE_PARALLEL: u32 = WINDOW / 16;

/// Observes the arrival of calls. One per receiver.
#[derive(Debug, Default)]
pub(crate) struct ArrivalWatcher {
    seen: u32,
    waiting: u32,
}

impl ArrivalWatcher {
    /// Records one call; `was_waiting`: it came from another thread than the previous one and was waiting
    /// already. Returns a mode when a window is full.
    pub(crate) fn record(&mut self, was_waiting: bool) -> Option<Mode> {
        self.seen += 1;
        self.waiting += u32::from(was_waiting);
        if self.seen < WINDOW {
            return None;
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.seen = 0;
        if waiting >= ENTER_PARALLEL {
            Some(Mode::Parallel)
        } else if waiting <= LEAVE_PARALLEL {
            Some(Mode::Single)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_caller_stays_single() {
        let mut arrivals = ArrivalWatcher::default();
        let decisions: Vec<_> = (0..256).filter_map(|_| arrivals.record(false)).collect();
        assert_eq!(decisions, [Mode::Single; 4]);
    }

    #[test]
    fn callers_that_queue_switch_to_parallel_and_a_mixed_load_keeps_the_mode() {
        let mut arrivals = ArrivalWatcher::default();
        let every = |n: u32, arrivals: &mut ArrivalWatcher| {
            (0..WINDOW)
                .filter_map(|i| arrivals.record(i % n == 0))
                .next_back()
        };
        assert_eq!(every(2, &mut arrivals), Some(Mode::Parallel));
        assert_eq!(every(8, &mut arrivals), None);
    }
}
