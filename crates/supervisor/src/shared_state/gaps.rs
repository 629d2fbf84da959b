//! Unwatched intervals and their reports.

use std::time::{Duration, Instant};

use super::SharedState;
use super::cell::SharedNumber;
use super::layout::{FOREIGN, GapFields, UNNAMED};

/// Time limit for a keeper to end an unnecessary interval.
const GAP_PATIENCE: Duration = Duration::from_secs(2);
/// Interval of checks for that.
const GAP_POLL: Duration = Duration::from_millis(2);

/// Cause of an unwatched interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Cause {
    /// A signal killed the agent.
    Killed = 0,
    /// The agent ended by itself.
    Exited = 1,
    /// The agent was stopped, and then killed by the keeper.
    Stopped = 2,
    /// The agent got no processor, or was blocked in another way.
    Starved = 3,
    /// The agent ended, and its status could not be learned.
    Gone = 4,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 5] = [
        Self::Killed,
        Self::Exited,
        Self::Stopped,
        Self::Starved,
        Self::Gone,
    ];

    fn from_word(word: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|cause| *cause as u64 == word)
            .unwrap_or(Self::Gone)
    }
}

/// Unwatched intervals since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// All intervals until now, with those reported before.
    pub totals: GapTotals,
    /// Number of intervals.
    pub count: u64,
    /// Cause of the last one.
    pub cause: Cause,
    /// Signal or exit status of the cause.
    pub detail: u64,
    /// Total duration in nanoseconds.
    pub lasted_ns: u64,
    /// Alerts that were queued when an agent died, summed over the outputs. Some may have been
    /// delivered.
    pub lost_alerts: u64,
    /// Unwatched calls: native ones by number, then the index `FOREIGN` and `UNNAMED`.
    pub calls: Vec<(usize, u64)>,
}

/// Totals of unwatched intervals, from the first one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GapTotals {
    /// Number of intervals.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub lasted_ns: u64,
    /// Alerts lost with agents.
    pub lost_alerts: u64,
    /// Unwatched calls, as in [`Gaps`].
    pub calls: Vec<(usize, u64)>,
}

impl Gaps {
    /// Returns the name of a call.
    pub fn name(&self, call: usize) -> String {
        let native = || {
            let (arch, number) = (abi::Arch::native()?, u32::try_from(call).ok()?);
            abi::arch::decode(arch.audit(), number)?.1
        };
        match call {
            FOREIGN => "foreign".to_owned(),
            UNNAMED => "unknown".to_owned(),
            call => native().map_or_else(|| call.to_string(), |call| call.name().to_owned()),
        }
    }
}

/// Result of an unwatched call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwatched {
    /// The call passed, for this cause.
    Passed(Cause),
    /// The call was refused.
    Denied,
}

impl Unwatched {
    /// Encodes the result as a number.
    pub(crate) fn to_number(self) -> u64 {
        match self {
            Self::Passed(cause) => cause as u64,
            Self::Denied => DENIED,
        }
    }

    /// Decodes such a number.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        let cause = Cause::ALL.into_iter().find(|cause| *cause as u64 == number);
        match cause {
            Some(cause) => Some(Self::Passed(cause)),
            None => (number == DENIED).then_some(Self::Denied),
        }
    }
}

/// Encoding of a refusal, which is no number of a cause.
const DENIED: u64 = Cause::ALL.len() as u64;

impl GapFields {
    /// Returns the counter of calls with this result.
    pub(crate) fn total(&self, what: Unwatched) -> &SharedNumber {
        match what {
            Unwatched::Passed(cause) => &self.passed[cause as usize],
            Unwatched::Denied => &self.denied,
        }
    }

    /// Records the cause of an unwatched interval.
    pub(crate) fn set_cause(&self, cause: Cause, detail: u64) {
        self.cause.set(cause as u64);
        self.detail.set(detail);
    }
}

impl SharedState {
    /// Returns the number of calls that passed unwatched for this cause.
    pub fn passed(&self, cause: Cause) -> u64 {
        self.gap.total(Unwatched::Passed(cause)).get()
    }

    /// Returns the number of calls refused because no agent watched.
    pub fn denied(&self) -> u64 {
        self.gap.denied.get()
    }

    /// Returns a message about unreported lost alerts, and resets their number.
    pub(crate) fn lost_alerts_to_say(&self) -> Option<String> {
        let lost = self.take_unreported_alerts();
        (lost > 0).then(|| format!("{lost} queued alerts were lost"))
    }

    /// Returns the number of unwatched intervals.
    pub fn gaps(&self) -> u64 {
        self.gap.begun.get()
    }

    /// Returns the unreported intervals once the last one is over. They stay in the shared state
    /// until they are [reported](Self::gaps_reported), so that they are not lost with an agent that was
    /// about to report them.
    pub fn gaps_to_tell(&self) -> Option<Gaps> {
        let reported = self.gap.reported.get();
        let ended = self.gap.ended.get();
        if ended <= reported || ended < self.gap.begun.get() {
            return None;
        }
        let all = self.gap.calls.iter().map(SharedNumber::get).enumerate();
        let totals = GapTotals {
            count: ended,
            lasted_ns: self.gap.lasted_ns.get(),
            lost_alerts: self.alerts_lost.get(),
            calls: all.filter(|(_, count)| *count > 0).collect(),
        };
        let above = |total: u64, reported: &SharedNumber| total.saturating_sub(reported.get());
        let reported_calls = &self.gap.calls_reported;
        let calls = totals.calls.iter();
        let calls = calls.map(|(call, count)| (*call, above(*count, &reported_calls[*call])));
        Some(Gaps {
            count: ended - reported,
            cause: Cause::from_word(self.gap.cause.get()),
            detail: self.gap.detail.get(),
            lasted_ns: above(totals.lasted_ns, &self.gap.lasted_reported_ns),
            lost_alerts: above(totals.lost_alerts, &self.gap.alerts_reported),
            calls: calls.filter(|(_, count)| *count > 0).collect(),
            totals,
        })
    }

    /// Returns true if calls were counted in an interval that a keeper was about to record when it was killed.
    pub(crate) fn has_calls_without_interval(&self) -> bool {
        let gap = &self.gap;
        let mut calls = gap.calls.iter().zip(&gap.calls_reported);
        gap.ended.get() == gap.reported.get()
            && gap.begun.get() == gap.ended.get()
            && calls.any(|(all, reported)| all.above(reported) > 0)
    }

    /// Waits until the keeper no longer stands in, before the last report, since an interval is
    /// reported when it is over. Ends the interval itself if the keeper was killed while it stood
    /// in.
    pub(crate) fn await_end_of_gap(&self) {
        let deadline = Instant::now() + GAP_PATIENCE;
        let begun = self.gap.begun.get();
        while self.gap.ended.get() < begun {
            if Instant::now() > deadline {
                self.gap.ended.set(begun);
            }
            std::thread::sleep(GAP_POLL);
        }
    }

    /// Marks the intervals as reported after their alert is delivered. Whoever reports at the same time, or is killed
    /// between two of the writes, leaves at most what is told again.
    pub fn gaps_reported(&self, gaps: &Gaps) {
        let totals = &gaps.totals;
        for (call, count) in &totals.calls {
            self.gap.calls_reported[*call].raise(*count);
        }
        self.gap.lasted_reported_ns.raise(totals.lasted_ns);
        self.gap.alerts_reported.raise(totals.lost_alerts);
        // Last: from here on another report may begin.
        self.gap.reported.raise(totals.count);
    }

    /// Returns true if the intervals up to this number are reported.
    pub(crate) fn are_reported(&self, gaps: u64) -> bool {
        self.gap.reported.get() >= gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::testing::run_until;

    #[test]
    fn gaps_are_reported_when_they_are_over_and_until_that_is_done() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        assert_eq!(shared_state.gaps_to_tell(), None);
        shared_state.gap.begun.set(1);
        shared_state.gap.set_cause(Cause::Stopped, 19);
        shared_state.gap.calls[257].add(2);
        shared_state.gap.calls[UNNAMED].add(1);
        assert_eq!(shared_state.gaps_to_tell(), None);
        shared_state.gap.ended.set(1);
        let first = shared_state.gaps_to_tell().expect("one is over");
        assert_eq!((first.count, first.cause), (1, Cause::Stopped));
        assert_eq!(first.calls, [(257, 2), (UNNAMED, 1)]);
        // Who was about to tell it is killed; so is the next one, that reported both.
        shared_state.gap.begun.set(2);
        shared_state.gap.calls[257].add(3);
        shared_state.gap.ended.set(2);
        let both = shared_state.gaps_to_tell().expect("two are over");
        assert_eq!(
            (both.count, &both.calls[..]),
            (2, &[(257, 5), (UNNAMED, 1)][..])
        );
        shared_state.gaps_reported(&first);
        assert!(shared_state.are_reported(1) && !shared_state.are_reported(2));
        let second = shared_state.gaps_to_tell().expect("one is left");
        assert_eq!((second.count, &second.calls[..]), (1, &[(257, 3)][..]));
        // The first agent of the two is late: what the other one told is not told again.
        shared_state.gaps_reported(&both);
        shared_state.gaps_reported(&first);
        assert_eq!(shared_state.gaps_to_tell(), None);
    }

    /// A report that begins between two writes of another one's, at each of them.
    #[test]
    fn reports_at_the_same_time_hide_no_later_call() {
        for places in 1..20 {
            let (shared_state, _file) = SharedState::create().expect("memory");
            let pass = |intervals: u64, calls: u64| {
                shared_state.gap.begun.set(intervals);
                shared_state.gap.calls[257].set(calls);
                shared_state.alerts_lost.set(calls);
                shared_state.gap.ended.set(intervals);
            };
            pass(1, 4);
            let first = shared_state.gaps_to_tell().expect("one is over");
            pass(2, 7);
            run_until(places, || shared_state.gaps_reported(&first));
            let both = shared_state.gaps_to_tell().expect("the second is over");
            shared_state.gaps_reported(&first);
            shared_state.gaps_reported(&both);
            pass(3, 8);
            let third = shared_state.gaps_to_tell().expect("the third is over");
            assert_eq!(third.calls, [(257, 1)], "{places}");
            assert_eq!(third.lost_alerts, 1, "{places}");
        }
    }

    #[test]
    fn calls_that_a_killed_keeper_counted_before_their_interval_are_found() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        let gap = &shared_state.gap;
        assert!(!shared_state.has_calls_without_interval());
        gap.calls[257].add(1);
        assert!(shared_state.has_calls_without_interval());
        gap.begun.set(1);
        assert!(!shared_state.has_calls_without_interval());
        gap.ended.set(1);
        assert!(!shared_state.has_calls_without_interval());
        let told = shared_state.gaps_to_tell().expect("it is over");
        shared_state.gaps_reported(&told);
        assert!(!shared_state.has_calls_without_interval());
    }

    #[test]
    fn the_last_report_waits_for_a_keeper_that_stands_in_and_not_for_one_that_is_dead() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        shared_state.await_end_of_gap();
        assert_eq!(shared_state.gaps_to_tell(), None);
        shared_state.gap.begun.set(1);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                shared_state.gap.ended.set(1);
            });
            shared_state.await_end_of_gap();
        });
        assert_eq!(shared_state.gaps_to_tell().map(|gaps| gaps.count), Some(1));
        shared_state.gap.begun.set(2);
        shared_state.await_end_of_gap();
        assert_eq!(shared_state.gaps_to_tell().map(|gaps| gaps.count), Some(2));
    }
}
