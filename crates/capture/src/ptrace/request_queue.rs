//! What others ask of the tracer, which sleeps in a wait for stops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event::Pid;

use super::AttachError;
use super::pages::PageFetchResult;

/// Interrupts the tracer's wait; has a handler that does nothing.
const SIGNAL: i32 = 12;
/// A signal may arrive just before the tracer begins to wait: it is sent again after this time.
const AGAIN: Duration = Duration::from_millis(1);
/// How often one is sent for a request that need not be taken at once.
const TRIES: u32 = 20;

/// What is asked for.
#[derive(Debug)]
pub(super) enum Request {
    /// Trace this process, too.
    Attach {
        /// Which.
        pid: Pid,
        /// Told what came of it.
        answer: SyncSender<Result<(), AttachError>>,
    },
    /// Somebody has touched a page that a call waits for.
    Fetched(PageFetchResult),
    /// Calls may have waited long enough for their pages.
    Overdue,
    /// Let every process go that can live without a tracer, and end.
    Leave,
}

type Requests<'a> = MutexGuard<'a, VecDeque<Request>>;

/// The requests.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    requests: Mutex<VecDeque<Request>>,
    taken: Condvar,
    thread: AtomicI32,
    has_left: AtomicBool,
}

impl RequestQueue {
    /// This thread is the tracer.
    pub(super) fn enter(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(tid, Ordering::Release);
    }

    /// It takes no more.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
        self.requests().clear();
        self.taken.notify_all();
    }

    /// Asks for something and sees to it that the tracer takes notice. A tracer that has ended
    /// drops the request.
    pub(super) fn ask(&self, request: Request) {
        self.ask_sleeping(request, || ());
    }

    /// As [`RequestQueue::ask`], for a tracer that sleeps while it has nothing to trace: `wake` is called
    /// when the request is there to be found.
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

    /// As [`RequestQueue::ask`], for what may wait until the tracer wakes by itself.
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
        // Fails only if it has ended meanwhile.
        let _ = sys::signal::send_to_thread(std::process::id().cast_signed(), tracer, SIGNAL);
        let waited = self.taken.wait_timeout(requests, AGAIN);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The next request.
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
