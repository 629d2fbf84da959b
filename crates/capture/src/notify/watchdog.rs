//! The watchdog: a thread that keeps the other threads going.
//!
//! It sleeps on the listener's hang-up, checks the receivers at intervals, and acts when one has been inside
//! the same wait for two checks in a row: a receiver stuck in a read of the caller's memory, or in attaching
//! to the caller, is replaced (these cannot be interrupted), one stuck waiting for a caller to stop is
//! interrupted by a signal.
//!
//! Under attack, by many callers whose pages do not come, each replacement comes too late for the callers
//! that wait behind it. So the watchdog checks much more often after the first stuck receiver, and no process
//! holds more than a few receivers (`stuck`).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::Signal;
use event::{Evaluator, Pid, Tid};
use sys::poll::{self, PollFd};
use sys::signal::{Disposition, MaskChange, SignalSet, change_mask, set_disposition};

use super::escalation;
use super::spare_threads::{BlockingOperation, SpareThreads, UnfinishedCall};
use super::{ReceiverId, ReceiverSlot, Shared, spawn_tracer};
use decoder::counters::Counters;
use process_info::procfs::Proc;

/// Time between two checks: a stuck receiver is noticed after one to two of them.
const TICK: Duration = Duration::from_millis(50);
/// Time between two checks while a receiver reads, or one was stuck lately: most reads take a microsecond.
const SHORT_TICK: Duration = Duration::from_millis(2);
/// Time for which a stuck receiver causes short ticks.
const ALARM: Duration = Duration::from_secs(1);
/// Maximum number of receivers that may be stuck at once. Each is a thread held by a hostile page; at the
/// limit no memory is read until one is released, and no receiver can get stuck.
pub(super) const STUCK_LIMIT: usize = 128;
/// Signal that interrupts a blocking call of a receiver; its handler does nothing.
const SIGNAL: i32 = 12;
/// Pause between signals to a receiver that has to leave: one may arrive just before it blocks.
const LEAVE_PAUSE: Duration = Duration::from_millis(1);
/// Number of such pauses before a receiver that waits for a caller's stop is interrupted, too.
const LEAVE_PATIENCE: u32 = 100;

struct Post {
    seat: Arc<ReceiverSlot>,
    attaching_since: Option<u64>,
    reading_since: Option<u64>,
    waiting_since: Option<u64>,
    /// True if it is stuck, and no thread can replace it.
    is_given_up: bool,
}

impl Post {
    fn new(seat: Arc<ReceiverSlot>) -> Self {
        Self {
            seat,
            attaching_since: None,
            reading_since: None,
            waiting_since: None,
            is_given_up: false,
        }
    }

    /// Returns whether the other receiver is needed because of it.
    fn is_held(&self) -> bool {
        self.waiting_since.is_some() || self.is_given_up || self.seat.has_abandoned()
    }

    fn is_suspect(&self) -> bool {
        self.attaching_since.is_some() || self.reading_since.is_some()
    }
}

/// Installs an empty handler for the interrupting signal and opens the signal descriptor for children.
pub(crate) fn prepare_signals() -> std::io::Result<()> {
    set_disposition(SIGNAL, Disposition::Interrupt)?;
    change_mask(MaskChange::Block, SignalSet::of(&[SIGCHLD]))?;
    Ok(())
}

/// Starts the watchdog, which starts the other threads.
pub(crate) fn start<J: Evaluator + 'static>(
    shared: Arc<Shared<J>>,
) -> std::io::Result<JoinHandle<()>> {
    let tracer = spawn_tracer(&shared)?;
    let tripwire = super::tripwire::start(&shared)?;
    let mut reserve = SpareThreads::new(&shared)?;
    let mut posts = Vec::new();
    for order in [ReceiverId::First, ReceiverId::Second] {
        let seat = Arc::new(ReceiverSlot::new(order, &shared.pulse));
        if !reserve.take(&seat, None) {
            return Err(std::io::Error::other("a receiver did not start"));
        }
        posts.push(Post::new(seat));
    }
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || watch(&shared, posts, reserve, tracer, tripwire))
}

fn watch<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
    mut posts: Vec<Post>,
    mut reserve: SpareThreads<J>,
    tracer: JoinHandle<()>,
    tripwire: Option<JoinHandle<()>>,
) {
    let mut rounds = CheckSchedule::new();
    while !has_hung_up(&shared.listener, rounds.pause(&posts)) && !shared.is_handing_over() {
        shared.pulse.tick(&shared.counters.snapshot());
        escalation::reap_dying();
        let is_long = rounds.is_long();
        let mut replacements = Vec::new();
        for post in &mut posts {
            if is_long {
                look_at_wait(shared, post);
            }
            post.is_given_up = false;
            for hazard in [BlockingOperation::Reading, BlockingOperation::Attaching] {
                if let Some(replacement) = look_at(shared, post, hazard, &mut reserve) {
                    rounds.alarm();
                    replacements.push(replacement);
                }
            }
        }
        posts.retain(|post| !post.seat.is_retired());
        posts.append(&mut replacements);
        shared.stuck.forget_ended();
        if is_long {
            reserve.refill();
            shared.stay_parallel(rounds.is_alarmed() || posts.iter().any(Post::is_held));
        }
    }
    shared.end();
    let mut patience = LEAVE_PATIENCE;
    while posts.iter().any(|post| !post.seat.has_ended()) {
        patience = patience.saturating_sub(1);
        for post in posts.iter().filter(|post| !post.seat.has_ended()) {
            // A receiver that waits for a caller's stop normally gets it.
            if post.seat.waiting.inside().is_none() || patience == 0 {
                interrupt(&post.seat);
            }
        }
        std::thread::sleep(LEAVE_PAUSE);
    }
    shared.tracer.shut_down();
    // The panic hook has already printed a panic of the tracer.
    let _ = tracer.join();
    if let (Some(thread), Some(tripwire)) = (tripwire, &shared.tripwire) {
        tripwire.wake();
        // As with the tracer.
        let _ = thread.join();
    }
    shared.pulse.tick(&shared.counters.snapshot());
}

/// Schedule of checks.
struct CheckSchedule {
    last_long: Instant,
    alarmed: Option<Instant>,
}

impl CheckSchedule {
    fn new() -> Self {
        Self {
            last_long: Instant::now(),
            alarmed: None,
        }
    }

    /// Notes that a receiver is stuck.
    fn alarm(&mut self) {
        self.alarmed = Some(Instant::now());
    }

    /// Returns whether a receiver was stuck lately.
    fn is_alarmed(&self) -> bool {
        self.alarmed.is_some_and(|last| last.elapsed() < ALARM)
    }

    fn pause(&self, posts: &[Post]) -> Duration {
        if self.is_alarmed() || posts.iter().any(Post::is_suspect) {
            SHORT_TICK
        } else {
            TICK
        }
    }

    /// Returns whether a long tick has passed since the last time it returned true.
    fn is_long(&mut self) -> bool {
        let is_long = self.last_long.elapsed() >= TICK - SHORT_TICK;
        if is_long {
            self.last_long = Instant::now();
        }
        is_long
    }
}

/// Interrupts a receiver that waits for a caller to stop.
fn look_at_wait<J: Evaluator>(shared: &Shared<J>, post: &mut Post) {
    if post.seat.has_abandoned() {
        interrupt(&post.seat);
    }
    let waiting = post.seat.waiting.inside();
    if waiting.is_some() {
        // Other callers need not wait for the one that this receiver waits for.
        shared.stay_parallel(true);
    }
    if waiting.is_some() && waiting == post.waiting_since {
        interrupt(&post.seat);
    }
    post.waiting_since = waiting;
}

/// Replaces a receiver that is stuck; returns its replacement.
fn look_at<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
    post: &mut Post,
    hazard: BlockingOperation,
    reserve: &mut SpareThreads<J>,
) -> Option<Post> {
    let now = post.seat.inside(hazard);
    let since = match hazard {
        BlockingOperation::Attaching => &mut post.attaching_since,
        BlockingOperation::Reading => &mut post.reading_since,
    };
    // A receiver that only waits for a processor is not stuck.
    let is_stuck = now.is_some() && now == *since && sleeps(post.seat.thread());
    *since = now;
    if !is_stuck {
        return None;
    }
    if !reserve.has_one() {
        post.is_given_up = true;
        return None;
    }
    let notification = post.seat.retire(hazard)?;
    let caller = Tid(notification.tid);
    shared
        .stuck
        .add(caller, hazard, &post.seat, &shared.tree.inspector);
    shared.stay_parallel(true);
    match hazard {
        BlockingOperation::Attaching => {
            Counters::add(&shared.counters.attach_timeouts);
            shared.notices.attaching_timed_out(Pid(notification.tid));
        }
        BlockingOperation::Reading => {
            Counters::add(&shared.counters.read_timeouts);
            shared.notices.read_timed_out(Pid(notification.tid));
        }
    }
    let order = if post.seat.is_second() {
        ReceiverId::Second
    } else {
        ReceiverId::First
    };
    let seat = Arc::new(ReceiverSlot::new(order, &shared.pulse));
    let unfinished = UnfinishedCall {
        notification,
        hazard,
    };
    if !reserve.take(&seat, Some(unfinished)) {
        // An unseen call is better than one that is parked for ever.
        shared.answer(notification.id);
    }
    Some(Post::new(seat))
}

/// Returns whether a thread of this process waits for something other than a processor.
fn sleeps(tid: i32) -> bool {
    let stat = Proc::open().and_then(|proc| proc.stat(tid));
    stat.is_ok_and(|stat| stat.state != b'R')
}

fn interrupt(seat: &ReceiverSlot) {
    let tid = seat.thread();
    if tid != 0 {
        // Fails only if the thread has ended meanwhile.
        let _ = sys::signal::send_to_thread(std::process::id().cast_signed(), tid, SIGNAL);
    }
}

/// Waits a while for the end of the last watched process.
fn has_hung_up(listener: &sys::notify::Listener, pause: Duration) -> bool {
    // Polls for the hang-up only, so that calls do not wake this thread.
    let mut polled = [PollFd::new(listener.as_fd(), 0)];
    let ready = poll::poll(&mut polled, Some(pause)).unwrap_or(0);
    ready > 0 && polled[0].found() & (poll::HUP | poll::ERR) != 0
}

/// Signal for a stopped tracee, or the end of a child.
pub(super) const SIGCHLD: i32 = Signal::SIGCHLD.0;
