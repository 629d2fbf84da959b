//! Spare threads that replace stuck receivers.
//!
//! When a replacement is needed, starting a thread may fail: a workload can exhaust `RLIMIT_NPROC` or
//! `pids.max`. So a few threads wait, and each one used is replaced. When the last is used and no other can
//! be started, no receiver is put at risk any more ([`super::stuck::StuckReceivers::spare`]).

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Jobs, Sender, channel};

use event::Evaluator;
use sys::notify::Notification;

use super::receiver::Receiver;
use super::{ReceiverSlot, Shared};
use decoder::counters::Counters;

/// Number of spare threads. One would do, were it not for two receivers that get stuck at once.
const SIZE: usize = 2;

/// Call that a stuck receiver could not finish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnfinishedCall {
    /// The call's notification.
    pub(crate) notification: Notification,
    /// The operation that blocked, which the next receiver must not try.
    pub(crate) hazard: BlockingOperation,
}

/// Operation in which a receiver can get stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockingOperation {
    /// Attaching to the caller, which waits for an exec in the caller's process.
    Attaching,
    /// Reading the caller's memory, which waits for a page.
    Reading,
}

/// A thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start a thread: until that succeeds no memory of the workload is read, and no result of a \
     call waited for"
)]
struct NoThread {
    source: std::io::Error,
}

struct Job {
    seat: Arc<ReceiverSlot>,
    unfinished: Option<UnfinishedCall>,
}

/// The spare threads. Dropping this lets them end.
pub(crate) struct SpareThreads<J: Evaluator> {
    shared: Arc<Shared<J>>,
    waiting: Vec<Sender<Job>>,
    is_lamented: bool,
}

impl<J: Evaluator + 'static> SpareThreads<J> {
    /// Starts the threads.
    pub(crate) fn new(shared: &Arc<Shared<J>>) -> std::io::Result<Self> {
        let mut reserve = Self {
            shared: Arc::clone(shared),
            waiting: Vec::with_capacity(SIZE),
            is_lamented: false,
        };
        reserve.try_refill()?;
        Ok(reserve)
    }

    /// Returns whether a spare thread is available.
    pub(crate) fn has_one(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Makes a spare thread receive calls. Returns false if there is none.
    pub(crate) fn take(
        &mut self,
        seat: &Arc<ReceiverSlot>,
        unfinished: Option<UnfinishedCall>,
    ) -> bool {
        let job = Job {
            seat: Arc::clone(seat),
            unfinished,
        };
        let one = self.waiting.pop();
        // Before that thread is at work: it may be the last.
        self.refill();
        // A spare thread does nothing that could fail, so each takes what it is sent.
        one.is_some_and(|one| one.send(job).is_ok())
    }

    /// Starts missing threads. If that fails and none is left, no receiver is put at risk.
    pub(crate) fn refill(&mut self) {
        let outcome = self.try_refill();
        self.shared.stuck.spare(!self.has_one());
        match outcome {
            Err(source) if !self.has_one() && !self.is_lamented => {
                self.is_lamented = true;
                let notices = &self.shared.notices;
                notices.engine_trouble(&NoThread { source });
            }
            Err(_) => {}
            Ok(()) => self.is_lamented = false,
        }
    }

    fn try_refill(&mut self) -> std::io::Result<()> {
        while self.waiting.len() < SIZE {
            let (sender, jobs) = channel();
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name("receiver".to_owned())
                .spawn(move || wait_and_serve(&shared, &jobs))?;
            self.waiting.push(sender);
        }
        Ok(())
    }
}

/// Waits for a job, and ends after it.
fn wait_and_serve<J: Evaluator + 'static>(shared: &Arc<Shared<J>>, jobs: &Jobs<Job>) {
    let Ok(Job { seat, unfinished }) = jobs.recv() else {
        return;
    };
    seat.set_thread(rustix::thread::gettid().as_raw_nonzero().get());
    let mut unfinished = unfinished;
    loop {
        let receiver = Receiver::new(Arc::clone(shared), Arc::clone(&seat));
        let run = std::panic::AssertUnwindSafe(|| receiver.run(unfinished.take()));
        if std::panic::catch_unwind(run).is_ok() {
            seat.end();
            return;
        }
        // The panic hook has printed the reason. The call must not stay parked.
        Counters::add(&shared.counters.receiver_panics);
        shared.answer(seat.current().id);
        seat.done();
    }
}
