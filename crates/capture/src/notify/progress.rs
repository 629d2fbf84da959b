//! Detects callers that make the same call over and over because the engine asks for its result.
//!
//! Learning a result must not keep a call from having one. If it does all the same, because of some kernel or
//! file system, the program that repeats the call would spin for ever. If a thread's call fails with EINTR,
//! or is repeated, without a signal of its own, its calls are let go after a second, and that is reported.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::{Arch, Syscall};
use event::Tid;

use decoder::call::Call;

/// Decision on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallDecision {
    /// The result may be learned.
    Fair,
    /// The result may be learned. The call was made again before, at least [`CONTESTED`] times.
    Contested,
    /// One repetition too many, and the first to be let go.
    TooMany,
    /// A further repetition to be let go.
    StillTooMany,
}

/// Threads whose calls have had no result of their own yet.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<HashMap<Tid, Streak>>);

type Key = (Syscall, Arch, [u64; 6], u64);

#[derive(Debug)]
struct Streak {
    key: Key,
    since: Instant,
    turns: u32,
    is_reported: bool,
}

impl Progress {
    /// Notes that the result of a call is about to be learned.
    pub(crate) fn begins(&self, call: &Call) -> CallDecision {
        self.begins_at(call, Instant::now())
    }

    fn begins_at(&self, call: &Call, now: Instant) -> CallDecision {
        let key = (call.syscall, call.arch, call.args, call.ip);
        let mut threads = self.threads();
        if threads.len() >= THREADS_LIMIT {
            threads.clear();
        }
        let fresh = || Streak {
            key,
            since: now,
            turns: 0,
            is_reported: false,
        };
        let streak = threads.entry(call.tid).or_insert_with(fresh);
        if streak.key != key {
            *streak = fresh();
        }
        streak.turns = streak.turns.saturating_add(1);
        if streak.turns < TURNS || now.saturating_duration_since(streak.since) < PATIENCE {
            return match streak.turns > CONTESTED {
                true => CallDecision::Contested,
                false => CallDecision::Fair,
            };
        }
        match std::mem::replace(&mut streak.is_reported, true) {
            false => CallDecision::TooMany,
            true => CallDecision::StillTooMany,
        }
    }

    /// Notes that a call of the thread has got its own result, or a signal.
    pub(crate) fn made(&self, tid: Tid) {
        self.threads().remove(&tid);
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<Tid, Streak>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of repetitions of a call from which on it is contested.
const CONTESTED: u32 = 2;
/// Number of repetitions of a call that mean no progress if they last for [`PATIENCE`].
const TURNS: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of threads remembered; threads that end within a call stay.
const THREADS_LIMIT: usize = 4096;

#[cfg(test)]
mod tests {
    use event::EventKind;

    use super::*;

    fn call(tid: i32, argument: u64) -> Call {
        Call {
            id: 0,
            tid: Tid(tid),
            arch: Arch::X86_64,
            syscall: Syscall::CHMOD,
            kind: EventKind::of_syscall(Syscall::CHMOD),
            ip: 1,
            args: [argument, 0, 0, 0, 0, 0],
            is_unread: false,
        }
    }

    #[test]
    fn only_the_same_call_without_a_result_for_a_second_is_too_much() {
        let progress = Progress::default();
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        for turn in 0..100 {
            let wanted = match turn {
                0 | 1 => CallDecision::Fair,
                _ => CallDecision::Contested,
            };
            assert_eq!(progress.begins_at(&call(1, 0), after(turn * 9)), wanted);
        }
        assert_eq!(
            progress.begins_at(&call(1, 0), after(1000)),
            CallDecision::TooMany
        );
        let again = progress.begins_at(&call(1, 0), after(1001));
        assert_eq!(again, CallDecision::StillTooMany);
        assert_eq!(
            progress.begins_at(&call(2, 0), after(1001)),
            CallDecision::Fair
        );
        assert_eq!(
            progress.begins_at(&call(1, 8), after(1002)),
            CallDecision::Fair
        );
        assert_eq!(
            progress.begins_at(&call(1, 0), after(2003)),
            CallDecision::Fair
        );
    }

    #[test]
    fn a_result_or_a_signal_is_progress() {
        let progress = Progress::default();
        let start = Instant::now();
        for turn in 0..100 {
            let now = start + Duration::from_millis(turn * 50);
            let decision = progress.begins_at(&call(1, 0), now);
            assert!(matches!(
                decision,
                CallDecision::Fair | CallDecision::Contested
            ));
            if turn % 10 == 9 {
                progress.made(Tid(1));
            }
        }
    }
}
