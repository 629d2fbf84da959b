//! Clocks.

use std::time::Duration;

/// A kernel clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clock {
    /// Time since boot, including suspend; used by the start times in `/proc/PID/stat`.
    Boot,
    /// Time since an arbitrary point, excluding suspend.
    Monotonic,
    /// CPU time of this process.
    ProcessCpu,
    /// Time since 1970, which may jump.
    Real,
    /// CPU time of this thread.
    ThreadCpu,
}

/// The clock's time in nanoseconds; does not enter the kernel except for the CPU clocks.
///
/// # Panics
/// Never: the call fails only for an unknown clock or a bad address.
#[must_use]
pub fn now_ns(clock: Clock) -> u64 {
    let id = match clock {
        Clock::Boot => libc::CLOCK_BOOTTIME,
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::ProcessCpu => libc::CLOCK_PROCESS_CPUTIME_ID,
        Clock::Real => libc::CLOCK_REALTIME,
        Clock::ThreadCpu => libc::CLOCK_THREAD_CPUTIME_ID,
    };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel or its vDSO writes one timespec to `time`.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    assert_eq!(result, 0, "clock {id} exists on every kernel since 2.6.39");
    // Only the real-time clock can be set before 1970; such a clock reads as 1970.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * NS_PER_S + u64::try_from(time.tv_nsec).unwrap_or(0)
}

const NS_PER_S: u64 = 1_000_000_000;

pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_and_agree_with_std() {
        let std = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let own = now_ns(Clock::Real);
        let std = std.expect("after 1970").as_nanos();
        assert!(u128::from(own).abs_diff(std) < 60_000_000_000);
        for clock in [
            Clock::Boot,
            Clock::Monotonic,
            Clock::ProcessCpu,
            Clock::ThreadCpu,
        ] {
            let first = now_ns(clock);
            assert!(now_ns(clock) >= first, "{clock:?}");
        }
        assert!(now_ns(Clock::Boot) >= now_ns(Clock::Monotonic) - 1_000_000_000);
        assert_eq!(timespec(Duration::from_millis(1500)).tv_nsec, 500_000_000);
    }
}
