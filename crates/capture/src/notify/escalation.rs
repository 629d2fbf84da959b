//! Learns a call's result by stopping the caller exactly once.
//!
//! While the caller is parked in its notification it is seized and interrupted; then the call is let go. With
//! `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (5.19+) the parked caller does not notice the interruption, so
//! the one stop comes after the call, before any user code: its result is in the return register. A call that
//! waits instead notices the interruption, is undone with a restart code and will be made again by the
//! kernel. Only calls that may notice it are let go like this ([`super::interruption`]), and each of them
//! once. When made again, such a call is followed by the tracer, like all other calls from the start; the
//! tracer does not interrupt calls. An exec is reported by its own event, because the interruption is lost
//! when another thread than the leader execs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use abi::Errno;
use event::{Pid, Tid};
use sys::notify::Delivery;
use sys::ptrace::{self, Registers};
use sys::wait::{self, Status};

use super::ReceiverSlot;
use super::worker::Role;
use decoder::call::Call;
use decoder::process_inspector::ProcessInspector;
use process_info::procfs::Proc;

/// Number of times that the receiver waits again for a runnable caller after the watchdog's signal.
const PATIENCE: u32 = 4;

/// Result of stopping the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The caller is held after the call. Must be released with the signal.
    Returned {
        /// The call's result.
        result: i64,
        /// The held thread.
        held: StoppedThread,
    },
    /// The call has noticed the stop and is undone; it is made again when the caller is released. Carries the
    /// caller's stack pointer.
    Sleeps(StoppedThread, u64),
    /// A signal had taken the caller out of the call before it was let go (Linux before 5.19); the caller
    /// makes the call again when its handler has run.
    Withdrawn(StoppedThread),
    /// The caller may not be traced, or is traced already. It is still parked.
    Refused,
    /// The caller ended, without having been let go.
    Gone,
    /// The caller was let go and ended before it stopped: it is unknown whether the call took effect.
    Died,
    /// The caller did not stop within the deadline; it stays seized and will stop late.
    Stuck,
    /// Attaching took so long that the call was given to another receiver.
    TakenAway,
}

/// A stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoppedThread {
    /// The thread's present id: an exec by another thread than the leader makes that thread the leader.
    pub(crate) tid: i32,
    /// Signal that was about to be delivered and has to be passed on.
    pub(crate) signal: i32,
}

/// `-EINTR`.
const INTERRUPTED: i64 = -4;

/// Late stops of threads, after the receiver had stopped waiting for them.
pub(crate) type LateStops = Vec<(i32, Status)>;

/// Stops the caller after its call. Stops of other tracees of this thread go into `late`.
///
/// Preconditions: the caller is parked in notification `call.id`.
/// Postconditions: unless `Refused` or `TakenAway`, the notification is answered.
pub(crate) fn stop_after(
    call: &Call,
    listener: &sys::notify::Listener,
    seat: &ReceiverSlot,
    is_late: impl Fn(i32) -> bool,
    late: &mut LateStops,
) -> Stop {
    let tid = call.tid.0;
    if let Some(stop) = attach(call, seat) {
        return stop;
    }
    // A seized thread can be interrupted unless it is gone, which the wait reports.
    let _ = ptrace::interrupt(tid);
    // If no caller takes the answer, it was killed, which the wait reports too, or a signal or this
    // interruption took it out of the call (before 5.19), or a freeze did.
    let is_let_go = listener.respond_continue(call.id) == Ok(Delivery::Delivered);
    seat.waiting.enter();
    let stop = wait_for_stop(call, is_late, late);
    seat.waiting.leave();
    match stop {
        // Whatever it has done since, perhaps the same call again, is inspected elsewhere.
        Stop::Returned { held, .. } | Stop::Sleeps(held, _) if !is_let_go => Stop::Withdrawn(held),
        Stop::Gone if is_let_go => Stop::Died,
        stop => stop,
    }
}

/// As [`stop_after`] for a caller that may never stop: does not wait for it.
pub(crate) fn stop_some_time(
    call: &Call,
    listener: &sys::notify::Listener,
    seat: &ReceiverSlot,
) -> Stop {
    let tid = call.tid.0;
    if let Some(stop) = attach(call, seat) {
        return stop;
    }
    // As in `stop_after`.
    let _ = ptrace::interrupt(tid);
    let _ = listener.respond_continue(call.id);
    Stop::Stuck
}

/// Seizes the caller; returns the result if that fails. The kernel makes this wait for an exec in the
/// caller's process, and no signal ends the wait: see [`super::stuck`].
fn attach(call: &Call, seat: &ReceiverSlot) -> Option<Stop> {
    let is_exec = Role::of(call) == Role::Exec;
    let options = if is_exec { ptrace::OPTION_TRACEEXEC } else { 0 };
    seat.begin_attaching();
    let seized = ptrace::seize(call.tid.0, options);
    if !seat.attached() {
        return Some(Stop::TakenAway);
    }
    seized.is_err().then_some(Stop::Refused)
}

fn wait_for_stop(call: &Call, is_late: impl Fn(i32) -> bool, late: &mut LateStops) -> Stop {
    let caller = call.tid.0;
    let mut patience = PATIENCE;
    loop {
        // Any tracee of this thread, not just the caller by its id: see `StoppedThread::tid`.
        match wait::wait(wait::Target::Any, wait::ALL | wait::NO_THREAD) {
            Ok(Some((tid, status))) if tid != caller && is_late(tid) => late.push((tid, status)),
            Ok(Some((tid, status))) if tid != caller && status.is_end() && forget_dying(tid) => {}
            Ok(Some((tid, status))) => return stopped_at(tid, status, Some(call)),
            // The watchdog's signal. A caller that only waits for a processor will stop. One that waits for a
            // page of its own, and is interrupted, is runnable as well, for ever.
            Err(error) if error.is(Errno::EINTR) && patience > 0 && is_runnable(caller) => {
                patience -= 1
            }
            Ok(None) => return Stop::Stuck,
            Err(error) if error.is(Errno::EINTR) => return Stop::Stuck,
            Err(_) => return Stop::Gone,
        }
    }
}

/// Returns whether a thread runs or waits for a processor.
fn is_runnable(tid: i32) -> bool {
    let stat = Proc::open().and_then(|proc| proc.stat(tid));
    stat.is_ok_and(|stat| stat.state == b'R')
}

/// Interprets a stop after a call. `call` is `None` if the call is no longer known.
pub(crate) fn stopped_at(tid: i32, status: Status, call: Option<&Call>) -> Stop {
    if status.is_end() {
        return Stop::Gone;
    }
    let held = StoppedThread {
        tid,
        signal: delivered(status),
    };
    if matches!(
        status,
        Status::PtraceEvent {
            event: ptrace::EVENT_EXEC,
            ..
        }
    ) {
        return Stop::Returned { result: 0, held };
    }
    let Ok(mut registers) = ptrace::registers(tid) else {
        release(tid, held.signal);
        return Stop::Gone;
    };
    if call.is_some_and(|call| !is_at(call, &registers)) {
        return Stop::Withdrawn(held);
    }
    let result = registers.result();
    let restarts = call.map_or_else(
        || ptrace::RESTART_CODES.contains(&result),
        |call| registers.restarts_call(call.ip),
    );
    if restarts || is_own_interruption(tid, &mut registers, |now| restart(now, call)) {
        return Stop::Sleeps(held, registers.stack_pointer());
    }
    Stop::Returned { result, held }
}

/// Returns whether a stopped thread has just returned from the call, without running code of its own since.
pub(crate) fn is_at(call: &Call, registers: &Registers) -> bool {
    registers.is_after_call(call.ip)
}

/// Returns whether one of this program's own threads traces the thread, which lasts a moment only.
pub(crate) fn is_traced_here(tid: Tid, inspector: &ProcessInspector) -> bool {
    let own = Pid(std::process::id().cast_signed());
    let tracer = inspector.tracer(tid);
    tracer.is_some_and(|tracer| inspector.has_thread(own, Tid(tracer.0)))
}

/// Returns whether a call that does not restart (a connect with a time limit) failed only because of the
/// interruption; then makes it restart, by `restart`, which says whether it can.
pub(crate) fn is_own_interruption(
    tid: i32,
    registers: &mut Registers,
    restart: impl FnOnce(&mut Registers) -> bool,
) -> bool {
    if registers.result() != INTERRUPTED || has_deliverable_signal(tid) {
        return false;
    }
    restart(registers) && ptrace::set_registers(tid, registers).is_ok()
}

/// Has a thread in a requested stop make its call again, which may be unknown.
pub(crate) fn restart(registers: &mut Registers, call: Option<&Call>) -> bool {
    match call {
        Some(call) if is_at(call, registers) => {
            registers.restart_call(call.ip, call.args);
            true
        }
        _ => registers.restart_current_call(),
    }
}

/// Returns whether a pending signal for the thread is not blocked.
fn has_deliverable_signal(tid: i32) -> bool {
    let path = format!("{tid}/status");
    let status = Proc::open().map(|proc| proc.contents(&path));
    let Ok(Ok(status)) = status else {
        return true;
    };
    let mask = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
    };
    match (mask("SigPnd"), mask("ShdPnd"), mask("SigBlk")) {
        (Some(own), Some(shared), Some(blocked)) => (own | shared) & !blocked != 0,
        _ => true,
    }
}

/// Returns the signal that a stop would deliver; a ptrace stop (the interruption, a group stop) has none.
fn delivered(status: Status) -> i32 {
    match status {
        Status::Stopped(signal) => signal,
        _ => 0,
    }
}

/// Detaches from a held thread and lets it run.
pub(crate) fn release(tid: i32, signal: i32) {
    // Fails only if the thread was killed meanwhile. Then it stays a zombie, and its parent is not notified,
    // until its tracer has reaped it.
    if ptrace::detach(tid, signal).is_err() && !has_been_reaped(tid, DEATH_LOOKS) {
        DYING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(tid);
    }
}

/// Threads that were killed while they were held, until they have ended. The time that takes depends on the
/// files that they have open.
static DYING: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// Number of checks for the end of a killed thread, which normally ends within the first few.
const DEATH_LOOKS: u32 = 10;
const DEATH_PAUSE: Duration = Duration::from_micros(100);

/// Reaps threads that have ended since they were to be released. Any thread may call it.
pub(crate) fn reap_dying() {
    let mut dying = DYING.lock().unwrap_or_else(PoisonError::into_inner);
    dying.retain(|tid| !has_been_reaped(*tid, 1));
}

/// Removes a thread from the list once it has ended; returns whether it was there.
fn forget_dying(tid: i32) -> bool {
    let mut dying = DYING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = dying.len();
    dying.retain(|other| *other != tid);
    dying.len() != before
}

fn has_been_reaped(tid: i32, looks: u32) -> bool {
    (0..looks).any(|look| {
        if look > 0 {
            std::thread::sleep(DEATH_PAUSE);
        }
        match wait::wait(wait::Target::Pid(tid), wait::ALL | wait::NO_HANG) {
            Ok(Some((_, status))) => status.is_end(),
            Ok(None) => false,
            // No longer a tracee.
            Err(error) => !error.is(Errno::EINTR),
        }
    })
}
