//! The guard: a thread that keeps the tracer from being held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::Signal;
use event::{Evaluator, Pid};

use super::request_queue::{Request, RequestQueue};
use crate::notify::{Shared, tripwire};
use decoder::counters::Counters;
use process_info::memory::BlockingMarker;

/// Time between two checks.
const TICK: Duration = Duration::from_millis(50);
/// Time for which a process may hold up the reading of its memory. The whole workload waits meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The part of the tracer's state that the guard sees.
#[derive(Debug, Default)]
pub(super) struct TracerView {
    /// Set while the tracer reads a caller's memory.
    pub(super) reading: Arc<BlockingMarker>,
    /// Tid of the caller whose call is inspected.
    pub(super) caller: AtomicI32,
    /// Number of calls that wait for their pages, and of new processes that wait for their parents' reports.
    pub(super) held: AtomicUsize,
}

/// Starts the guard, which ends after the tracer.
pub(super) fn start<J: Evaluator + 'static>(
    shared: Arc<Shared<J>>,
    inbox: Arc<RequestQueue>,
    post: Arc<TracerView>,
    tracer: JoinHandle<()>,
) -> std::io::Result<JoinHandle<()>> {
    let tripwire = tripwire::start(&shared)?;
    std::thread::Builder::new()
        .name("guard".to_owned())
        .spawn(move || {
            watch(&shared, &inbox, &post, tracer);
            if let (Some(thread), Some(tripwire)) = (tripwire, &shared.tripwire) {
                tripwire.wake();
                // The panic hook has already printed a panic of the tracer.
                let _ = thread.join();
            }
            shared.pulse.tick(&shared.counters.snapshot());
        })
}

/// As [`start`], for a tracer beside an engine that continues after it.
pub(super) fn start_beside<J: Evaluator + 'static>(
    shared: Arc<Shared<J>>,
    inbox: Arc<RequestQueue>,
    post: Arc<TracerView>,
    tracer: JoinHandle<()>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("guard".to_owned())
        .spawn(move || keep_going(&shared, &inbox, &post, tracer, Leave::ByOthers))
}

fn watch<J: Evaluator>(
    shared: &Shared<J>,
    inbox: &RequestQueue,
    post: &TracerView,
    tracer: JoinHandle<()>,
) {
    keep_going(shared, inbox, post, tracer, Leave::AtHandOver);
    shared.end();
}

/// Thread that makes the tracer detach when another engine takes over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// The guard.
    AtHandOver,
    /// Another thread, or the guard has done so.
    ByOthers,
}

fn keep_going<J: Evaluator>(
    shared: &Shared<J>,
    inbox: &RequestQueue,
    post: &TracerView,
    tracer: JoinHandle<()>,
    mut leave: Leave,
) {
    let mut stuck_for = Duration::ZERO;
    let mut since = None;
    while !tracer.is_finished() {
        if shared.has_ended() {
            std::thread::sleep(TICK);
        } else {
            shared.wait_for_end(TICK);
        }
        shared.pulse.tick(&shared.counters.snapshot());
        if shared.is_handing_over() && leave == Leave::AtHandOver {
            leave = Leave::ByOthers;
            inbox.ask(Request::Leave);
        }
        if post.held.load(Ordering::Acquire) > 0 {
            inbox.tell(Request::Overdue);
        }
        let inside = post.reading.inside();
        if inside.is_none() || inside != since {
            since = inside;
            stuck_for = Duration::ZERO;
            continue;
        }
        stuck_for += TICK;
        if stuck_for >= PATIENCE {
            stuck_for = Duration::ZERO;
            let caller = post.caller.load(Ordering::Acquire);
            Counters::add(&shared.counters.read_timeouts);
            shared.notices.read_timed_out(Pid(caller));
            // Ends its whole process; fails only if that has just ended.
            let _ = sys::signal::send(caller, Signal::SIGKILL.0);
        }
    }
    // The panic hook has already printed a panic of the tracer.
    let _ = tracer.join();
}
