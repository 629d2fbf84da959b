//! Requests to the tracer, which sleeps in a wait for stops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event::Pid;

use super::attach::AttachError;
use super::pages::PageFetchResult;

/// Signal that interrupts the tracer's wait; its handler does nothing.
const SIGNAL: i32 = 12;
/// Time after which the signal is sent again, as it may arrive just before the tracer begins to wait.
const AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of signals for a request that need not be taken at once.
const TRIES: u32 = 20;

/// Request to the tracer.
#[derive(Debug)]
pub(super) enum Request {
    /// Trace this process, too.
    Attach {
        /// Pid of the process.
        pid: Pid,
        /// Receives the result.
        answer: SyncSender<Result<(), AttachError>>,
    },
    /// A thread has touched a page that a call waits for.
    Fetched(PageFetchResult),
    /// Calls may have waited long enough for their pages, and new processes for their parents' reports.
    Overdue,
    /// Detach from every process that can live without a tracer, and end.
    Leave,
}

type Requests<'a> = MutexGuard<'a, VecDeque<Request>>;

/// Queue of requests.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    requests: Mutex<VecDeque<Request>>,
    taken: Condvar,
    thread: AtomicI32,
    has_left: AtomicBool,
}

impl RequestQueue {
    /// Registers the calling thread as the tracer.
    pub(super) fn enter(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(tid, Ordering::Release);
    }

    /// Closes the queue.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
        self.requests().clear();
        self.taken.notify_all();
    }

    /// Sends a request and signals the tracer until it takes it. A tracer that has ended drops the request.
    pub(super) fn ask(&self, request: Request) {
        self.ask_sleeping(request, || ());
    }

    /// As [`RequestQueue::ask`], for a tracer that sleeps while it has nothing to trace: calls `wake` when
    /// the request is in the queue.
    pub(super) fn ask_sleeping(&self, request: Request, wake: impl FnOnce()) {
        self.requests().push_back(request);
        wake();
        let mut requests = self.requests();
        while !requests.is_empty() && !self.has_left.load(Ordering::Acquire) {
            requests = self.wake(requests);
        }
        if self.has_left.load(Ordering::Acquire) {
            requests.clear();
        }
    }

    /// As [`RequestQueue::ask`], for requests that may wait until the tracer wakes by itself.
    pub(super) fn tell(&self, request: Request) {
        self.requests().push_back(request);
        let mut requests = self.requests();
        for _ in 0..TRIES {
            if requests.is_empty() || self.has_left.load(Ordering::Acquire) {
                return;
            }
            requests = self.wake(requests);
        }
    }

    fn wake<'a>(&'a self, requests: Requests<'a>) -> Requests<'a> {
        let tracer = self.thread.load(Ordering::Acquire);
        // Fails only if the tracer has ended meanwhile.
        let _ = sys::signal::send_to_thread(std::process::id().cast_signed(), tracer, SIGNAL);
        let waited = self.taken.wait_timeout(requests, AGAIN);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Takes the next request.
    pub(super) fn take(&self) -> Option<Request> {
        let request = self.requests().pop_front();
        if request.is_some() {
            self.taken.notify_all();
        }
        request
    }

    fn requests(&self) -> Requests<'_> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
