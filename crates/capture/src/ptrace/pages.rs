//! Fetches pages of callers that are not in memory.
//!
//! A caller's page may come when the workload chooses (userfaultfd, FUSE). The tracer cannot be replaced, so
//! it must not wait for a page: every other traced thread would wait too. It checks the page tables first.
//! Where a page is missing the caller stays in its stop, another thread touches the page, and the call is
//! inspected again when that has returned. If it does not return in time, the call is inspected without the
//! page.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use event::{Evaluator, Pid, Tid};
use sys::ptrace::{self, SyscallOp};

use super::engine::Engine;
use super::request_queue::{Request, RequestQueue};
use decoder::counters::Counters;

/// Maximum time for which a caller is held for its pages.
const PATIENCE: Duration = Duration::from_millis(50);
/// Maximum number of pages fetched at once, for all processes and for one.
const LIMIT: usize = 256;
const PROCESS_LIMIT: usize = 16;

/// Callers that wait for pages, and the threads that fetch these.
#[derive(Debug)]
pub(super) struct Pages {
    waiting: HashMap<Tid, WaitingCall>,
    fetching: HashMap<Pid, usize>,
    fetchers: Vec<Sender<PageFetch>>,
    /// Indices of idle threads.
    idle: Vec<usize>,
    inbox: Arc<RequestQueue>,
}

/// Call that is held for a page.
#[derive(Debug)]
pub(super) struct WaitingCall {
    /// Pages that came, or that do not exist: reading them does not block.
    pub(super) settled: Vec<u64>,
    /// True if the call is to go on without the missing pages.
    pub(super) is_late: bool,
    page: u64,
    since: Instant,
}

/// Page to be touched.
#[derive(Clone, Copy, Debug)]
struct PageFetch {
    tid: Tid,
    pid: Pid,
    page: u64,
}

/// Result of a thread that has touched a page, or failed to.
#[derive(Debug)]
pub(super) struct PageFetchResult {
    fetch: PageFetch,
    by: usize,
}

impl Pages {
    pub(super) fn new(inbox: Arc<RequestQueue>) -> Self {
        Self {
            waiting: HashMap::new(),
            fetching: HashMap::new(),
            fetchers: Vec::new(),
            idle: Vec::new(),
            inbox,
        }
    }

    pub(super) fn is_waiting(&self, tid: Tid) -> bool {
        self.waiting.contains_key(&tid)
    }

    /// Returns the pages that a call has waited for, if it is inspected again.
    pub(super) fn resume(&mut self, tid: Tid) -> Option<WaitingCall> {
        self.waiting.remove(&tid)
    }

    /// Drops the state of a thread that has ended.
    pub(super) fn forget(&mut self, tid: Tid) {
        self.waiting.remove(&tid);
    }

    /// Requests a page for a call; returns the call's state if too many are being fetched.
    fn wait(
        &mut self,
        tid: Tid,
        pid: Pid,
        mut waiting: WaitingCall,
        page: u64,
    ) -> Result<(), WaitingCall> {
        let all: usize = self.fetching.values().sum();
        let of_process = self.fetching.get(&pid).copied().unwrap_or(0);
        if all >= LIMIT || of_process >= PROCESS_LIMIT || !self.fetch(PageFetch { tid, pid, page })
        {
            return Err(waiting);
        }
        *self.fetching.entry(pid).or_default() += 1;
        waiting.page = page;
        self.waiting.insert(tid, waiting);
        Ok(())
    }

    fn fetch(&mut self, fetch: PageFetch) -> bool {
        let idle = self.idle.pop().or_else(|| self.start_fetcher().ok());
        let fetcher = idle.and_then(|number| self.fetchers.get(number));
        fetcher.is_some_and(|fetcher| fetcher.send(fetch).is_ok())
    }

    fn start_fetcher(&mut self) -> std::io::Result<usize> {
        let (give, take) = channel::<PageFetch>();
        let (inbox, by) = (Arc::clone(&self.inbox), self.fetchers.len());
        std::thread::Builder::new()
            .name("fetcher".to_owned())
            .spawn(move || {
                while let Ok(fetch) = take.recv() {
                    // Whether or not this succeeds, reading the page does not block after it.
                    process_info::memory::touch(fetch.tid, fetch.page);
                    inbox.tell(Request::Fetched(PageFetchResult { fetch, by }));
                }
            })?;
        self.fetchers.push(give);
        Ok(by)
    }

    /// Notes a fetched page. Returns the thread whose call waits for it.
    fn came(&mut self, PageFetchResult { fetch, by }: PageFetchResult) -> Option<Tid> {
        if let Some(count) = self.fetching.get_mut(&fetch.pid) {
            *count -= 1;
            if *count == 0 {
                self.fetching.remove(&fetch.pid);
            }
        }
        self.idle.push(by);
        let waiting = self.waiting.get_mut(&fetch.tid)?;
        if waiting.page != fetch.page || waiting.is_late {
            return None;
        }
        waiting.settled.push(fetch.page);
        Some(fetch.tid)
    }

    /// Returns the calls whose time is over.
    fn overdue(&mut self) -> Vec<Tid> {
        let is_over = |waiting: &&mut WaitingCall| waiting.since.elapsed() >= PATIENCE;
        let waiting = self.waiting.iter_mut();
        waiting
            .filter_map(|(tid, waiting)| {
                let is_over = is_over(&waiting);
                waiting.is_late |= is_over;
                is_over.then_some(*tid)
            })
            .collect()
    }
}

impl<J: Evaluator> Engine<J> {
    /// Holds a call until a page is available; returns the pages it has waited for if it is to be inspected
    /// without that page.
    pub(super) fn hold(
        &mut self,
        tid: Tid,
        waited: Option<WaitingCall>,
        page: u64,
    ) -> Result<(), WaitingCall> {
        let pid = self
            .tracees
            .get(&tid)
            .map_or(Pid(tid.0), |tracee| tracee.pid);
        let waiting = waited.unwrap_or_else(|| WaitingCall {
            settled: Vec::new(),
            is_late: false,
            page,
            since: Instant::now(),
        });
        let held = self.pages.wait(tid, pid, waiting, page);
        self.note_waiting();
        held.map_err(|mut waiting| {
            self.give_up_pages(tid);
            waiting.is_late = true;
            waiting
        })
    }

    pub(super) fn fetched(&mut self, fetched: PageFetchResult) {
        if let Some(tid) = self.pages.came(fetched) {
            self.look_again(tid);
        }
    }

    pub(super) fn overdue(&mut self) {
        for tid in self.pages.overdue() {
            self.give_up_pages(tid);
            self.look_again(tid);
        }
    }

    fn give_up_pages(&self, tid: Tid) {
        let shared = &self.worker.shared;
        Counters::add(&shared.counters.read_timeouts);
        let pid = self
            .tracees
            .get(&tid)
            .map_or(Pid(tid.0), |tracee| tracee.pid);
        shared.notices.read_timed_out(pid);
    }

    /// Inspects a held call again; the thread is still in the same stop.
    fn look_again(&mut self, tid: Tid) {
        match ptrace::syscall_info(tid.0).map(|info| info.op) {
            Ok(SyscallOp::Seccomp { .. }) => self.at_filter(tid),
            Ok(SyscallOp::Entry { .. }) => self.at_syscall(tid),
            // The thread was killed, which the next wait reports.
            _ => self.pages.forget(tid),
        }
        self.note_waiting();
        self.go_on_unless_held(tid);
    }

    /// Updates the guard's count of threads that are held; the guard decides when time is over.
    pub(super) fn note_waiting(&self) {
        let count = self.pages.waiting.len() + self.newborns.len();
        self.post.held.store(count, Ordering::Release);
    }
}
