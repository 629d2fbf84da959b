//! Detects an agent that makes no progress.

use std::time::Duration;

use capture::notify::Health;
use process_info::procfs::Proc;
use sys::time::{Clock, now_ns};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallCheck {
    /// The agent works, or there is no work.
    Works,
    /// A signal or a tracer has stopped the agent, and calls may wait.
    Stopped,
    /// Calls wait, and the agent makes no progress.
    Starved,
}

/// Time limits for calls without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StallLimit {
    /// Limit if the agent is stopped.
    pub(super) stopped: Duration,
    /// Limit if the agent only gets no processor.
    pub(super) starved: Duration,
}

/// State of the checks so far.
#[derive(Debug, Default)]
pub(super) struct Stall {
    last: Health,
    looked_ns: u64,
    /// Start of the time without progress while calls waited.
    since_ns: Option<u64>,
    /// The time limits of the previous check.
    patience: Option<StallLimit>,
}

impl Stall {
    /// Performs a check. Being scheduled is no progress of an agent: only calls taken from the
    /// listener count. An agent that holds a call for long (the caller may lack a processor) is in
    /// order as long as its threads run.
    pub(super) fn look(
        &mut self,
        vitals: Health,
        is_waited_for: bool,
        patience: StallLimit,
        interval: Duration,
        agent: i32,
    ) -> StallCheck {
        let now = now_ns(Clock::Monotonic);
        // An agent stopped at the moment the kernel gave it a call holds that call, which neither
        // the listener nor its counters show. Whether calls wait is then unknown.
        let is_stopped = vitals.progress == self.last.progress && is_stopped(agent);
        let is_needed = is_waited_for || is_stopped;
        self.begin_again_under(patience);
        let since = self.since(vitals, is_needed, now, nanos(interval));
        match is_stopped {
            true if since >= nanos(patience.stopped) => StallCheck::Stopped,
            false if since >= nanos(patience.starved) => StallCheck::Starved,
            _ => StallCheck::Works,
        }
    }

    /// Restarts the measurement if the limits differ: for an agent that took long to become ready,
    /// calls were waiting all along.
    fn begin_again_under(&mut self, patience: StallLimit) {
        if self.patience.replace(patience) != Some(patience) {
            self.since_ns = None;
        }
    }

    /// Returns the time without progress.
    fn since(&mut self, vitals: Health, is_waited_for: bool, now: u64, interval: u64) -> u64 {
        let is_still = vitals.progress == self.last.progress;
        let is_frozen = vitals.is_busy && vitals.ticks == self.last.ticks;
        // This process did not run itself: whoever stopped both continues both.
        let is_late = now - self.looked_ns > 3 * interval;
        let is_stalled = is_still && (is_waited_for || is_frozen) && !is_late;
        self.last = vitals;
        self.looked_ns = now;
        if !is_stalled {
            self.since_ns = None;
            return 0;
        }
        // Measured from now, although the calls may have arrived just after the previous check.
        now - *self.since_ns.get_or_insert(now)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns true if a stop signal or a tracer holds the process.
fn is_stopped(pid: i32) -> bool {
    let stat = Proc::open().and_then(|proc| proc.stat(pid));
    stat.is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = 250;

    fn vitals(progress: u64, is_busy: bool, ticks: u64) -> Health {
        Health {
            progress,
            is_busy,
            ticks,
        }
    }

    #[test]
    fn only_calls_that_wait_without_progress_count() {
        let mut stall = Stall::default();
        let mut look = |vitals, waits, now| stall.since(vitals, waits, now, INTERVAL);
        assert_eq!(look(vitals(5, false, 1), true, 1000), 0);
        assert_eq!(look(vitals(5, false, 2), true, 1250), 0);
        assert_eq!(look(vitals(5, false, 3), true, 1500), 250);
        // Progress.
        assert_eq!(look(vitals(6, false, 4), true, 1750), 0);
        // Nothing waits.
        assert_eq!(look(vitals(6, false, 5), false, 2000), 0);
        // Busy with a caller, and alive.
        assert_eq!(look(vitals(6, true, 6), false, 2250), 0);
        assert_eq!(look(vitals(6, true, 7), false, 2500), 0);
        // Busy and not scheduled.
        assert_eq!(look(vitals(6, true, 7), false, 2750), 0);
        assert_eq!(look(vitals(6, true, 7), false, 3000), 250);
        // The keeper itself was stopped.
        assert_eq!(look(vitals(6, true, 7), false, 9000), 0);
        assert_eq!(look(vitals(6, true, 7), false, 9250), 0);
        assert_eq!(look(vitals(6, true, 7), false, 9500), 250);
    }

    #[test]
    fn an_agent_that_becomes_ready_has_its_whole_time() {
        let (long, short) = (Duration::from_secs(10), Duration::from_secs(1));
        let both = |patience| StallLimit {
            stopped: patience,
            starved: patience,
        };
        let mut stall = Stall::default();
        stall.begin_again_under(both(long));
        for now in [1000, 1250, 1500] {
            stall.since(vitals(6, true, 0), false, now, INTERVAL);
        }
        stall.begin_again_under(both(long));
        assert_eq!(stall.since(vitals(6, true, 0), false, 1750, INTERVAL), 500);
        stall.begin_again_under(both(short));
        assert_eq!(stall.since(vitals(6, true, 0), false, 2000, INTERVAL), 0);
    }
}
