//! The thread that keeps the others going.
//!
//! It sleeps on the listener's hang-up, looks at the receivers once in a while, and acts when one
//! has been inside the same wait for two looks in a row: a receiver stuck in a read of the
//! caller's memory is replaced (the wait cannot be interrupted), one stuck waiting for a caller to
//! stop is interrupted by a signal.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use event::{Judge, Pid};
use sys::poll::{self, PollFd};
use sys::signal::{Disposition, MaskChange, SignalSet, change_mask, set_disposition};

use super::counters::Counters;
use super::escalation;
use super::wake_up::Mode;
use super::{Order, Seat, Shared, spawn_receiver, spawn_tracer};

/// Time between two looks: a stuck receiver is noticed after one to two of them.
const TICK: Duration = Duration::from_millis(50);
/// Receivers that may be stuck at once. Each is a thread held by a hostile page; at the limit the
/// last ones stay and the next look tries again.
const STUCK_LIMIT: usize = 64;
/// Interrupts a blocking call of a receiver; has a handler that does nothing.
const SIGNAL: i32 = 12;
/// Pause between signals to a receiver that has to leave: one may arrive just before it blocks.
const LEAVE_PAUSE: Duration = Duration::from_millis(1);
/// Such pauses before a receiver that waits for a caller's stop is interrupted, too.
const LEAVE_PATIENCE: u32 = 100;

struct Post {
    seat: Arc<Seat>,
    reading_since: Option<u64>,
    waiting_since: Option<u64>,
}

/// Makes the interrupting signal harmless and announces children by descriptor.
pub(crate) fn prepare_signals() -> std::io::Result<()> {
    set_disposition(SIGNAL, Disposition::Interrupt)?;
    change_mask(MaskChange::Block, SignalSet::of(&[SIGCHLD]))?;
    Ok(())
}

/// Starts the watchdog, which starts the rest.
pub(crate) fn start<J: Judge + 'static>(shared: Arc<Shared<J>>) -> std::io::Result<JoinHandle<()>> {
    let tracer = spawn_tracer(&shared)?;
    let tripwire = super::tripwire::start(&shared)?;
    let mut posts = Vec::new();
    for order in [Order::First, Order::Second] {
        let seat = Arc::new(Seat::new(order, &shared.pulse));
        spawn_receiver(&shared, &seat, None)?;
        posts.push(Post {
            seat,
            reading_since: None,
            waiting_since: None,
        });
    }
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || watch(&shared, posts, tracer, tripwire))
}

fn watch<J: Judge + 'static>(
    shared: &Arc<Shared<J>>,
    mut posts: Vec<Post>,
    tracer: JoinHandle<()>,
    tripwire: Option<JoinHandle<()>>,
) {
    let mut stuck = Vec::new();
    while !has_hung_up(&shared.listener) && !shared.is_handing_over() {
        shared.pulse.tick(&shared.counters.snapshot());
        escalation::reap_dying();
        let mut replacements = Vec::new();
        for post in &mut posts {
            if let Some(replacement) = look(shared, post, stuck.len()) {
                stuck.push(Arc::clone(&post.seat));
                replacements.push(replacement);
            }
        }
        posts.retain(|post| !post.seat.is_retired());
        posts.append(&mut replacements);
        stuck.retain(|seat: &Arc<Seat>| !seat.has_ended());
    }
    shared.end();
    let mut patience = LEAVE_PATIENCE;
    while posts.iter().any(|post| !post.seat.has_ended()) {
        patience = patience.saturating_sub(1);
        for post in posts.iter().filter(|post| !post.seat.has_ended()) {
            // One that waits for a caller's stop gets it, as a rule.
            if post.seat.waiting.inside().is_none() || patience == 0 {
                interrupt(&post.seat);
            }
        }
        std::thread::sleep(LEAVE_PAUSE);
    }
    shared.tracer.shut_down();
    // A panic in the tracer has been printed by the panic hook already.
    let _ = tracer.join();
    if let (Some(thread), Some(tripwire)) = (tripwire, &shared.tripwire) {
        tripwire.wake();
        // As with the tracer.
        let _ = thread.join();
    }
    shared.pulse.tick(&shared.counters.snapshot());
}

/// Looks at one receiver; answers with its replacement if it had to be replaced.
fn look<J: Judge + 'static>(
    shared: &Arc<Shared<J>>,
    post: &mut Post,
    stuck: usize,
) -> Option<Post> {
    if post.seat.has_abandoned() {
        interrupt(&post.seat);
    }
    let waiting = post.seat.waiting.inside();
    if waiting.is_some() {
        // Others need not wait for the one that this receiver waits for.
        shared.set_mode(Mode::Parallel);
    }
    if waiting.is_some() && waiting == post.waiting_since {
        interrupt(&post.seat);
    }
    post.waiting_since = waiting;
    let reading = post.seat.reading.inside();
    let is_stuck = reading.is_some() && reading == post.reading_since;
    post.reading_since = reading;
    if !is_stuck || stuck >= STUCK_LIMIT {
        return None;
    }
    let unfinished = post.seat.retire()?;
    Counters::add(&shared.counters.read_timeouts);
    shared.notices.read_timed_out(Pid(unfinished.tid));
    let order = if post.seat.is_second() {
        Order::Second
    } else {
        Order::First
    };
    let seat = Arc::new(Seat::new(order, &shared.pulse));
    // Without a thread the caller would stay parked: let it go unseen rather than hang it.
    if spawn_receiver(shared, &seat, Some(unfinished)).is_err() {
        shared.answer(unfinished.id);
    }
    Some(Post {
        seat,
        reading_since: None,
        waiting_since: None,
    })
}

fn interrupt(seat: &Seat) {
    let tid = seat.thread();
    if tid != 0 {
        // Fails only if the thread has ended meanwhile.
        let _ = sys::signal::send_to_thread(std::process::id().cast_signed(), tid, SIGNAL);
    }
}

/// Waits one tick for the end of the last watched process.
fn has_hung_up(listener: &sys::notify::Listener) -> bool {
    // Nothing but the hang-up is asked for, so that calls do not wake this thread.
    let mut polled = [PollFd::new(listener.as_fd(), 0)];
    let ready = poll::poll(&mut polled, Some(TICK)).unwrap_or(0);
    ready > 0 && polled[0].found() & (poll::HUP | poll::ERR) != 0
}

/// A tracee stopped, or a child ended.
pub(super) const SIGCHLD: i32 = 17;
