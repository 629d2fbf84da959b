//! Start times of processes, by the clock of the machine.

use std::sync::OnceLock;

use event::StartTime;

/// Start time of a process in nanoseconds since the epoch, by the clock as it was when this was first asked.
pub fn start_ns(start: StartTime) -> u64 {
    let ticks_per_second = sys::machine::clock_ticks_per_second();
    first_boot_ns()
        + start
            .0
            .saturating_mul(1_000_000_000 / ticks_per_second.max(1))
}

/// Returns the start time that a process has which starts now.
#[must_use]
pub fn start_time_now() -> StartTime {
    let ticks_per_second = sys::machine::clock_ticks_per_second();
    StartTime(
        sys::time::now_ns(sys::time::Clock::Boot)
            / (1_000_000_000 / ticks_per_second.max(1)).max(1),
    )
}

/// Returns true if somebody has set the clock by more than a second since start times were first asked: they cannot be
/// compared with times of files then.
pub fn clock_was_set() -> bool {
    first_boot_ns().abs_diff(boot_ns()) > 1_000_000_000
}

fn first_boot_ns() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    *FIRST.get_or_init(boot_ns)
}

/// Returns when the machine was started, by the clock as it is now.
fn boot_ns() -> u64 {
    let realtime = sys::time::now_ns(sys::time::Clock::Real);
    realtime.saturating_sub(sys::time::now_ns(sys::time::Clock::Boot))
}
