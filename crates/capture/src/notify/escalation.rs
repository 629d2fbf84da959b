//! Learning a call's result by stopping the caller exactly once.
//!
//! While the caller is parked in its notification it is seized and interrupted; then the call is
//! let go. With `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (5.19+) the parked caller does not notice
//! the interruption, so the one stop comes after the call, before any user code: its result is in
//! the return register. A call that waits instead notices the interruption, is undone with a
//! restart code and will be made again by the kernel. Only calls that may notice it are let go like
//! this ([`super::interruption`]), and each of them once: made again it is, as all others are from the
//! start, the tracer's, under which no call is interrupted. An exec is told by an
//! event of its own, because the interruption is lost when another thread than the leader execs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use event::{Pid, Tid};
use sys::notify::Delivery;
use sys::ptrace;
use sys::wait::{self, Status};

use super::ReceiverSlot;
use super::call::Call;
use super::worker::Role;
use decoder::process_inspector::ProcessInspector;
use process_info::procfs::Proc;

/// How many times a runnable caller is waited for when the watchdog says that it takes long.
const PATIENCE: u32 = 4;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The caller is held, this is the result. Must be released with the signal.
    Returned {
        /// The result.
        result: i64,
        /// What is held.
        held: StoppedThread,
    },
    /// The call has noticed the stop and is undone; it comes again when the caller is released. With
    /// the caller's stack pointer.
    Sleeps(StoppedThread, u64),
    /// A signal had taken the caller out of the call before it was let go (Linux before 5.19); it
    /// makes it again when its handler has run.
    Withdrawn(StoppedThread),
    /// The caller may not be traced, or is traced already. It is still parked.
    Refused,
    /// The caller ended, without having been let go.
    Gone,
    /// The caller was let go and ended before it stopped: nobody knows whether the call took effect.
    Died,
    /// The caller did not stop within the deadline; it stays seized and will stop late.
    Stuck,
    /// Attaching took so long that the call was given to somebody else.
    TakenAway,
}

/// A stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoppedThread {
    /// The thread as the kernel names it now: an exec by another thread than the leader makes
    /// that thread the leader.
    pub(crate) tid: i32,
    /// A signal that was about to be delivered and has to be passed on.
    pub(crate) signal: i32,
}

/// `-ERESTARTSYS` to `-ERESTART_RESTARTBLOCK`: kernel-internal codes that never reach user code.
pub(crate) const RESTART_CODES: std::ops::RangeInclusive<i64> = -516..=-512;
/// `-ERESTARTNOINTR`: the kernel makes the call again whatever handlers run in between.
const RESTART_ALWAYS: i64 = -513;
/// `-EINTR`.
const INTERRUPTED: i64 = -4;

/// Stops of threads that did not stop in time when their own turn was.
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
    // A thread that was seized can be interrupted unless it is gone, which the wait reports.
    let _ = ptrace::interrupt(tid);
    // An answer that finds nobody means that the caller was killed, which the wait reports too, or
    // that a signal or this interruption took it out of the call (before 5.19), or a freeze.
    let is_let_go = listener.respond_continue(call.id) == Ok(Delivery::Delivered);
    seat.waiting.enter();
    let stop = wait_for_stop(call, is_late, late);
    seat.waiting.leave();
    match stop {
        // Whatever it has done since, perhaps the same call again, somebody else looks at.
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
    // As there.
    let _ = ptrace::interrupt(tid);
    let _ = listener.respond_continue(call.id);
    Stop::Stuck
}

/// Seizes the caller; answers with what came of it instead. The kernel makes this wait for an exec in
/// the caller's process, and no signal ends the wait: see [`super::stuck`].
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
        // Any tracee of this thread, not just the caller by its id: see `Held::tid`.
        match wait::wait(wait::Target::Any, wait::ALL | wait::NO_THREAD) {
            Ok(Some((tid, status))) if tid != caller && is_late(tid) => late.push((tid, status)),
            Ok(Some((tid, status))) if tid != caller && status.is_end() && forget_dying(tid) => {}
            Ok(Some((tid, status))) => return stopped_at(tid, status, Some(call)),
            // The watchdog's signal. A caller that only waits for a processor will stop.
            // One that waits for a page of its own, and is interrupted, runs as well, for ever.
            Err(error) if error.is(EINTR) && patience > 0 && is_runnable(caller) => patience -= 1,
            Ok(None) => return Stop::Stuck,
            Err(error) if error.is(EINTR) => return Stop::Stuck,
            Err(_) => return Stop::Gone,
        }
    }
}

/// Whether a thread runs or waits for a processor.
fn is_runnable(tid: i32) -> bool {
    let stat = Proc::open().and_then(|proc| proc.stat(tid));
    stat.is_ok_and(|stat| stat.state == b'R')
}

/// What a stop after a call says; without the call, what was asked of it is not known any more.
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
    if RESTART_CODES.contains(&result) || is_own_interruption(tid, &mut registers) {
        return Stop::Sleeps(held, registers.stack_pointer());
    }
    Stop::Returned { result, held }
}

/// Whether a stopped thread has just come out of the call, with nothing of its own run since.
pub(crate) fn is_at(call: &Call, registers: &ptrace::Registers) -> bool {
    registers.instruction_pointer() == call.ip && registers.syscall_number() != u64::MAX
}

/// Whether one of this program's own threads traces the thread, which is a matter of moments.
pub(crate) fn is_traced_here(tid: Tid, census: &ProcessInspector) -> bool {
    let own = Pid(std::process::id().cast_signed());
    let tracer = census.tracer(tid);
    tracer.is_some_and(|tracer| census.has_thread(own, Tid(tracer.0)))
}

/// Whether a call that does not restart (a connect with a time limit) failed only because of the
/// interruption; then it is made to restart.
pub(crate) fn is_own_interruption(tid: i32, registers: &mut ptrace::Registers) -> bool {
    if registers.result() != INTERRUPTED || has_deliverable_signal(tid) {
        return false;
    }
    registers.set_result(RESTART_ALWAYS);
    ptrace::set_registers(tid, registers).is_ok()
}

/// Whether a signal that is not blocked waits for the thread.
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

/// The signal that a stop would deliver; a ptrace stop (the interruption, a group stop) has none.
fn delivered(status: Status) -> i32 {
    match status {
        Status::Stopped(signal) => signal,
        _ => 0,
    }
}

/// Lets a held thread run on, untraced.
pub(crate) fn release(tid: i32, signal: i32) {
    // Fails only if the thread was killed meanwhile. Then it stays a zombie, and its parent is not
    // told, until its tracer has taken note.
    if ptrace::detach(tid, signal).is_err() && !has_been_reaped(tid, DEATH_LOOKS) {
        DYING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(tid);
    }
}

/// Threads that were killed while they were held, until they have ended: how long that takes is
/// up to the files that they have open.
static DYING: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// A killed thread ends within the first few looks, as a rule.
const DEATH_LOOKS: u32 = 10;
const DEATH_PAUSE: Duration = Duration::from_micros(100);

/// Takes note of threads that have ended since they were to be released. Any thread may call it.
pub(crate) fn reap_dying() {
    let mut dying = DYING.lock().unwrap_or_else(PoisonError::into_inner);
    dying.retain(|tid| !has_been_reaped(*tid, 1));
}

/// Whether the thread is one of them; it has just ended.
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
            // It is nobody's tracee any more.
            Err(error) => !error.is(EINTR),
        }
    })
}

const EINTR: i32 = 4;
