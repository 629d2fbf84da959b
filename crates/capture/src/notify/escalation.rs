//! Learning a call's result by stopping the caller exactly once.
//!
//! While the caller is parked in its notification it is seized and interrupted; then the call is
//! let go. With `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (5.19+) the parked caller does not notice
//! the interruption, so the one stop comes after the call, before any user code: its result is in
//! the return register. A call that sleeps instead notices the interruption, is undone with a
//! restart code and will be made again by the kernel; see [`super::tracer`].

use sys::ptrace;
use sys::wait::{self, Status};

use super::call::Call;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The caller is held, this is the result. Must be released with the signal.
    Returned {
        /// The result.
        result: i64,
        /// The thread as the kernel names it now: an exec by another thread than the leader's
        /// makes that thread the leader.
        tid: i32,
        /// A signal that was about to be delivered and has to be passed on.
        signal: i32,
    },
    /// The call sleeps and has been undone; it comes again. The caller is running.
    Sleeps,
    /// The caller may not be traced, or is traced already. It is still parked.
    Refused,
    /// The caller ended.
    Gone,
    /// The caller did not stop within the deadline; it stays seized.
    Stuck,
}

/// `-ERESTARTSYS` to `-ERESTART_RESTARTBLOCK`: kernel-internal codes that never reach user code.
const RESTART_CODES: std::ops::RangeInclusive<i64> = -516..=-512;

/// Stops the caller after its call.
///
/// Preconditions: the caller is parked in notification `call.id`.
/// Postconditions: unless `Refused`, the notification is answered.
pub(crate) fn stop_after(
    call: &Call,
    listener: &sys::notify::Listener,
    gauge: &crate::memory::Gauge,
) -> Stop {
    let tid = call.tid.0;
    if ptrace::seize(tid, 0).is_err() {
        return Stop::Refused;
    }
    // A thread that was seized can be interrupted unless it is gone, which the wait reports.
    let _ = ptrace::interrupt(tid);
    // An answer that finds nobody means that the caller was killed, which the wait reports too.
    let _ = listener.respond_continue(call.id);
    gauge.enter();
    let stop = wait_for_stop();
    gauge.leave();
    stop
}

fn wait_for_stop() -> Stop {
    // Any tracee of this thread, not just the caller by its id: see `Stop::Returned::tid`.
    let options = wait::ALL | wait::NO_THREAD;
    match wait::wait(wait::Target::Any, options) {
        Ok(Some((_, Status::Exited(_) | Status::Signaled { .. }))) => Stop::Gone,
        Ok(Some((stopped, status))) => stopped_at(stopped, status),
        Ok(None) => Stop::Stuck,
        Err(error) if error.is(EINTR) => Stop::Stuck,
        Err(_) => Stop::Gone,
    }
}

fn stopped_at(tid: i32, status: Status) -> Stop {
    let signal = match status {
        Status::Stopped(signal) => signal,
        // A ptrace stop (the interruption, or a group stop): nothing to deliver.
        _ => 0,
    };
    let Ok(registers) = ptrace::registers(tid) else {
        release(tid, signal);
        return Stop::Gone;
    };
    // A 32-bit call's result is 32 bits wide in whatever form the kernel left it.
    let result = registers.result();
    if RESTART_CODES.contains(&result) {
        release(tid, signal);
        return Stop::Sleeps;
    }
    Stop::Returned { result, tid, signal }
}

/// Lets a held thread run on, untraced.
pub(crate) fn release(tid: i32, signal: i32) {
    // Fails only if the thread was killed meanwhile.
    let _ = ptrace::detach(tid, signal);
}

const EINTR: i32 = 4;
