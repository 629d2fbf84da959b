//! The thread that follows callers over more than one call.
//!
//! Two things need more than the one stop of [`super::escalation`]: a call that sleeps, whose result
//! comes when it comes, and a process with one of descriptors 0..2 closed, in which every `dup`
//! counts ([`super::stdio`]). Tracing is bound to a thread, so one thread of its own does all of
//! it, driven by requests of the receivers and by the stops of its tracees.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bumpalo::Bump;
use event::{EventKind, Judge, Outcome, Pid, Process, Tid};
use rustix::event::EventfdFlags;
use sys::poll::{self, PollFd};
use sys::ptrace::{self, SyscallOp};
use sys::signal::SignalStream;
use sys::wait::{self, Status};

use super::Shared;
use super::call::Call;
use super::counters::Counters;
use super::decode::{self, Decoded, OwnedDecoded};
use super::escalation::release;
use super::worker::Worker;
use crate::memory::{Gauge, Memory};

/// A call whose result is awaited.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    pub(crate) call: Call,
    time_ns: u64,
    decoded: OwnedDecoded,
    process: Arc<Process>,
}

impl Followed {
    pub(crate) fn new(
        call: &Call,
        time_ns: u64,
        decoded: &Decoded<'_>,
        process: &Arc<Process>,
    ) -> Self {
        let process = Arc::clone(process);
        Self { call: *call, time_ns, decoded: decoded.detach(), process }
    }

    /// Concludes it.
    pub(crate) fn finish<J: Judge>(&self, worker: &mut Worker<J>, outcome: Outcome, arena: &Bump) {
        let decoded = self.decoded.borrow(arena);
        worker.finish(&self.call, self.time_ns, &decoded, outcome, &self.process, arena);
    }
}

/// What a receiver asks for. In each case the caller is parked and the tracer answers its call.
#[derive(Debug)]
pub(crate) enum Request {
    /// Follow a sleeping call, parked for the second time under this id, to its end.
    Follow {
        /// The call as it was first seen.
        followed: Followed,
        /// The id it is parked under now.
        id: u64,
    },
    /// The call frees one of descriptors 0..2 of a process with sockets, or makes the first socket
    /// of one that has one closed: watch the process until all are open.
    Watch {
        /// The parked call.
        call: Call,
        /// The process.
        pid: Pid,
    },
    /// Learn the result of an exec and stay if one of descriptors 0..2 is closed after it.
    Exec(Followed),
}

/// Whose a trapped call is.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Not the tracer's.
    Nothing,
    /// The call that was undone, made again.
    Again(Followed),
    /// A followed call, restarted under the tracer's eyes: let it go.
    Restarted,
    /// Another call of a thread whose sleeping call was expected again.
    Interrupted(Followed),
}

/// The receivers' side.
#[derive(Debug)]
pub(crate) struct TracerHandle {
    /// Threads that are traced or expected; zero means that no receiver needs to ask.
    active: AtomicUsize,
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Request>,
    /// Sleeping calls that were undone and will be made again.
    expected: HashMap<Tid, Followed>,
    /// Threads the tracer holds.
    traced: HashMap<Tid, Tracee>,
    shut_down: bool,
}

#[derive(Debug)]
struct Tracee {
    pid: Pid,
    /// Followed call by call because one of descriptors 0..2 is closed.
    watched: bool,
    /// A call whose result is awaited.
    awaited: Option<Followed>,
    /// The call it is in, from its entry stop.
    entered: Option<(u32, u64, [u64; 6])>,
}

impl TracerHandle {
    /// A handle without tracees.
    pub(crate) fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        Ok(Self { active: AtomicUsize::new(0), state: Mutex::default(), wake })
    }

    /// Whether [`TracerHandle::claim`] can answer anything but `Nothing`.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    pub(crate) fn request(&self, request: Request) {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.state().requests.push_back(request);
        self.wake();
    }

    /// A sleeping call was undone; the thread makes it again at once.
    pub(crate) fn expect_again(&self, followed: Followed) {
        let mut state = self.state();
        state.expected.insert(followed.call.tid, followed);
        self.count(&state);
    }

    /// Looks a trapped call up.
    pub(crate) fn claim(&self, call: &Call) -> Claim {
        let mut state = self.state();
        if let Some(followed) = state.expected.remove(&call.tid) {
            self.count(&state);
            let same = followed.call.syscall == call.syscall;
            return if same { Claim::Again(followed) } else { Claim::Interrupted(followed) };
        }
        let restarted = state
            .traced
            .get(&call.tid)
            .and_then(|tracee| tracee.awaited.as_ref())
            .is_some_and(|awaited| awaited.call.syscall == call.syscall);
        if restarted { Claim::Restarted } else { Claim::Nothing }
    }

    /// Whether the process is watched already.
    pub(crate) fn watches(&self, pid: Pid) -> bool {
        self.state().traced.values().any(|tracee| tracee.pid == pid && tracee.watched)
    }

    /// Leaves a call of a traced thread to the tracer. False: it is not the tracer's thread.
    pub(crate) fn await_result(&self, followed: Followed) -> bool {
        match self.state().traced.get_mut(&followed.call.tid) {
            Some(tracee) => {
                tracee.awaited = Some(followed);
                true
            }
            None => false,
        }
    }

    pub(crate) fn shut_down(&self) {
        self.state().shut_down = true;
        self.wake();
    }

    /// Waits for a request or, if asked to, for a stop.
    fn wait(&self, child_signals: Option<&SignalStream>) {
        let wake = PollFd::new(self.wake.as_fd(), poll::IN);
        let ready = match child_signals {
            Some(signals) => {
                let stop = PollFd::new(signals.as_fd(), poll::IN);
                poll::poll(&mut [wake, stop], Some(LOOK_AGAIN))
            }
            None => poll::poll(&mut [wake], None),
        };
        // Whatever woke it, everything is looked at.
        let _ = ready;
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        while let Some(Ok(Some(_))) = child_signals.map(SignalStream::next) {}
    }

    fn wake(&self) {
        // Fails only when the counter is full, that is, when the tracer is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn count(&self, state: &State) {
        let active = state.requests.len() + state.expected.len() + state.traced.len();
        self.active.store(active, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tracer's side: runs in a thread of its own.
pub(crate) struct Tracer<J: Judge> {
    worker: Worker<J>,
    memory: Memory,
}

impl<J: Judge> Tracer<J> {
    pub(crate) fn new(shared: Arc<Shared<J>>) -> Self {
        let memory = Memory::new(Arc::new(Gauge::default()));
        Self { worker: Worker::new(shared), memory }
    }

    /// Serves requests and stops until shut down.
    pub(crate) fn run(mut self, child_signals: &SignalStream) {
        let shared = Arc::clone(&self.worker.shared);
        let handle = &shared.tracer;
        loop {
            let has_tracees = !handle.state().traced.is_empty();
            // Stops are announced by SIGCHLD; without tracees nobody needs to look.
            let signals = has_tracees.then_some(child_signals);
            handle.wait(signals);
            loop {
                let request = handle.state().requests.pop_front();
                let Some(request) = request else { break };
                self.begin(request);
            }
            self.serve_stops();
            let state = handle.state();
            handle.count(&state);
            if state.shut_down {
                return;
            }
        }
    }

    fn begin(&mut self, request: Request) {
        match request {
            Request::Follow { followed, id } => {
                let (tid, pid) = (followed.call.tid, followed.process.pid);
                if self.seize(tid, pid, false, Some(followed.clone()), 0) {
                    self.answer(id);
                } else {
                    self.unlearnt(&followed);
                    self.answer(id);
                }
            }
            Request::Exec(followed) => {
                let (tid, pid, id) = (followed.call.tid, followed.process.pid, followed.call.id);
                if !self.seize(tid, pid, true, Some(followed.clone()), WATCH_OPTIONS) {
                    self.unlearnt(&followed);
                }
                self.answer(id);
            }
            Request::Watch { call, pid } => {
                self.watch(pid);
                self.answer(call.id);
            }
        }
    }

    /// Watches all threads of a process. Twice, because one that was not traced yet may have made
    /// another meanwhile.
    fn watch(&self, pid: Pid) {
        let threads = || self.worker.shared.tree.census.threads(pid);
        for tid in threads().into_iter().chain(threads()) {
            if !self.seize(tid, pid, true, None, WATCH_OPTIONS) {
                Counters::add(&self.worker.shared.counters.stdio_watches_refused);
            }
        }
    }

    /// Starts tracing a thread, or adds to what is wanted of one that is traced already.
    fn seize(
        &self,
        tid: Tid,
        pid: Pid,
        watched: bool,
        awaited: Option<Followed>,
        options: u32,
    ) -> bool {
        let mut state = self.worker.shared.tracer.state();
        if let Some(tracee) = state.traced.get_mut(&tid) {
            tracee.watched |= watched;
            tracee.awaited = awaited.or(tracee.awaited.take());
            return true;
        }
        if ptrace::seize(tid.0, options | ptrace::OPTION_TRACESYSGOOD).is_err() {
            return false;
        }
        // The stop this asks for is where following starts.
        let interrupted = ptrace::interrupt(tid.0).is_ok();
        state.traced.insert(tid, Tracee { pid, watched, awaited, entered: None });
        interrupted
    }

    fn unlearnt(&mut self, followed: &Followed) {
        Counters::add(&self.worker.shared.counters.escalation_refused);
        followed.finish(&mut self.worker, Outcome::Unlearnt, &Bump::new());
    }

    fn answer(&self, id: u64) {
        self.worker.shared.answer(id);
    }

    fn serve_stops(&mut self) {
        let options = wait::ALL | wait::NO_THREAD | wait::NO_HANG;
        while let Ok(Some((tid, status))) = wait::wait(wait::Target::Any, options) {
            self.stopped(Tid(tid), status);
        }
    }

    fn stopped(&mut self, tid: Tid, status: Status) {
        match status {
            Status::Exited(_) | Status::Signaled { .. } => self.forget(tid),
            Status::SyscallStop => self.at_syscall(tid),
            Status::PtraceEvent { event, signal, .. } => self.at_event(tid, event, signal),
            Status::Stopped(signal) => resume(tid, signal),
            Status::Continued => {}
        }
    }

    fn at_event(&mut self, tid: Tid, event: u32, signal: i32) {
        let is_birth = matches!(
            event,
            ptrace::EVENT_FORK | ptrace::EVENT_VFORK | ptrace::EVENT_CLONE
        );
        if is_birth && let Ok(child) = ptrace::event_message(tid.0) {
            self.adopt(tid, child);
        }
        if event == ptrace::EVENT_EXEC && let Ok(former) = ptrace::event_message(tid.0) {
            self.renamed(former, tid);
        }
        if event == ptrace::EVENT_STOP && is_stop_signal(signal) {
            // A group stop: stay stopped until the group continues, without being held.
            let _ = ptrace::listen(tid.0);
            return;
        }
        if self.is_wanted(tid) {
            resume(tid, 0);
        } else {
            self.let_go(tid, 0);
        }
    }

    /// A child of a watched process is traced from its first instruction and has its parent's
    /// descriptors.
    fn adopt(&self, parent: Tid, child: u64) {
        let Ok(child) = i32::try_from(child) else { return };
        let child = Tid(child);
        let pid = self.worker.shared.tree.census.thread_group(child).unwrap_or(Pid(child.0));
        let mut state = self.worker.shared.tracer.state();
        let watched = state.traced.get(&parent).is_some_and(|tracee| tracee.watched);
        let newborn = Tracee { pid, watched, awaited: None, entered: None };
        state.traced.entry(child).or_insert(newborn);
    }

    /// After an exec by a thread that was not the leader, the thread has the leader's id.
    fn renamed(&self, former: u64, tid: Tid) {
        let Ok(former) = i32::try_from(former) else { return };
        if former == tid.0 {
            return;
        }
        let mut state = self.worker.shared.tracer.state();
        if let Some(tracee) = state.traced.remove(&Tid(former)) {
            state.traced.insert(tid, tracee);
        }
    }

    fn at_syscall(&mut self, tid: Tid) {
        match ptrace::syscall_info(tid.0) {
            Ok(ptrace::SyscallInfo { arch, op: SyscallOp::Entry { nr, args }, .. }) => {
                let mut state = self.worker.shared.tracer.state();
                if let Some(tracee) = state.traced.get_mut(&tid) {
                    tracee.entered = Some((arch, nr, args));
                }
                drop(state);
                resume(tid, 0);
            }
            Ok(ptrace::SyscallInfo { op: SyscallOp::Exit { rval, .. }, .. }) => {
                self.returned(tid, rval);
            }
            _ => resume(tid, 0),
        }
    }

    fn returned(&mut self, tid: Tid, result: i64) {
        let (entered, awaited, watched, pid) = {
            let mut state = self.worker.shared.tracer.state();
            let Some(tracee) = state.traced.get_mut(&tid) else {
                drop(state);
                release(tid.0, 0);
                return;
            };
            let undone = (-516..=-512).contains(&result);
            let awaited = if undone { None } else { tracee.awaited.take() };
            (tracee.entered.take(), awaited, tracee.watched, tracee.pid)
        };
        let arena = Bump::new();
        if let Some(followed) = &awaited {
            Counters::add(&self.worker.shared.counters.followed);
            followed.finish(&mut self.worker, Outcome::Returned(result), &arena);
        } else if watched && let Some(entered) = entered {
            self.watched_call(tid, pid, entered, result, &arena);
        }
        // A result within 0..2 is the only way one of them gets open again, or the end of an exec
        // or of a call that says nothing by its result.
        if watched && (0..=2).contains(&result) && self.worker.shared.tree.census.has_stdio(pid) {
            self.unwatch(pid);
        }
        if self.is_wanted(tid) {
            resume(tid, 0);
        } else {
            self.let_go(tid, 0);
        }
    }

    /// A plain `dup` that filled one of descriptors 0..2. Calls that the filter traps are the
    /// receivers'.
    fn watched_call(
        &mut self,
        tid: Tid,
        pid: Pid,
        (audit, number, args): (u32, u64, [u64; 6]),
        result: i64,
        arena: &Bump,
    ) {
        let shared = Arc::clone(&self.worker.shared);
        let Ok(number) = u32::try_from(number) else { return };
        let Some((arch, Some(syscall))) = abi::arch::decode(audit, number) else { return };
        let fills = syscall == abi::Syscall::DUP && (0..=2).contains(&result);
        if !fills || shared.is_trapped(syscall) {
            return;
        }
        let kind = EventKind::of_syscall(syscall);
        let call = Call { id: 0, tid, arch, syscall, kind, args };
        let Some(process) = shared.tree.of_thread(Tid(pid.0), &shared.counters) else { return };
        let decoded = decode::decode(&call, &self.memory, arena);
        let time_ns = sys::time::now_ns(sys::time::Clock::Real);
        let outcome = Outcome::Returned(result);
        self.worker.finish(&call, time_ns, &decoded, outcome, &process, arena);
    }

    /// All of 0..2 are open: the threads of the process are let go as they stop.
    fn unwatch(&self, pid: Pid) {
        let shared = &self.worker.shared;
        if !shared.tree.census.closes_stdio_on_exec(pid) {
            shared.tree.clear_stdio(pid);
        }
        let mut state = shared.tracer.state();
        for (tid, tracee) in state.traced.iter_mut().filter(|(_, tracee)| tracee.pid == pid) {
            tracee.watched = false;
            // A thread that sleeps would keep its tracer for as long as it sleeps.
            let _ = ptrace::interrupt(tid.0);
        }
    }

    fn is_wanted(&self, tid: Tid) -> bool {
        let state = self.worker.shared.tracer.state();
        state.traced.get(&tid).is_some_and(|tracee| tracee.watched || tracee.awaited.is_some())
    }

    fn let_go(&self, tid: Tid, signal: i32) {
        self.worker.shared.tracer.state().traced.remove(&tid);
        release(tid.0, signal);
    }

    fn forget(&self, tid: Tid) {
        let awaited = {
            let mut state = self.worker.shared.tracer.state();
            state.traced.remove(&tid).and_then(|tracee| tracee.awaited)
        };
        if awaited.is_some() {
            Counters::add(&self.worker.shared.counters.gone);
        }
    }
}

/// Runs to the next entry to or return from a call.
fn resume(tid: Tid, signal: i32) {
    // Fails only if the thread was killed meanwhile; its end is reported by the next wait.
    let _ = ptrace::resume_to_syscall(tid.0, signal);
}

fn is_stop_signal(signal: i32) -> bool {
    const SIGSTOP: i32 = 19;
    const SIGTTOU: i32 = 22;
    // SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
    (SIGSTOP..=SIGTTOU).contains(&signal)
}

/// A stop whose SIGCHLD went to a thread that does not block it is found this much later.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Children and new threads of a watched process are watched too.
const WATCH_OPTIONS: u32 = ptrace::OPTION_TRACEFORK
    | ptrace::OPTION_TRACEVFORK
    | ptrace::OPTION_TRACECLONE
    | ptrace::OPTION_TRACEEXEC;
