//! The tracer: a thread that follows callers over more than one stop.
//!
//! Two cases need more than the one stop of [`super::escalation`]: a call that sleeps, whose result comes at
//! any time, and a process with one of descriptors 0..2 closed, in which every `dup` counts
//! ([`decoder::stdio`]). Tracing is bound to a thread, so one thread of its own does all of it, driven by
//! requests of the receivers and by the stops of its tracees.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use abi::Signal;
use bumpalo::Bump;
use event::{Evaluator, EventKind, LiveProcess, Outcome, Pid, Process, Tid};
use rustix::event::EventfdFlags;
use sys::poll::{self, PollFd};
use sys::ptrace::{self, SyscallOp};
use sys::signal::SignalStream;
use sys::wait::{self, Status};

use super::Shared;
use super::awaited::{AwaitedCalls, SyscallEntry, Trapped};
use super::escalation::{is_at, is_own_interruption, is_traced_here, release, restart};
use super::interruption::RESTART;
use super::worker::{CallEvaluator, CallView, Role};
use decoder::call::{Call, replaces_program};
use decoder::counters::Counters;
use decoder::decode::{self, Decoded, OwnedDecoded};
use process_info::memory::{BlockingMarker, Memory};

/// Call whose result is awaited.
#[derive(Clone, Debug)]
pub(crate) struct FollowedCall {
    pub(crate) call: Call,
    time_ns: u64,
    decoded: OwnedDecoded,
    pub(crate) process: Arc<Process>,
    /// The caller's stack pointer, once it has been read: a signal handler that makes the same call with the
    /// same registers has another one.
    stack: Option<u64>,
}

impl FollowedCall {
    pub(crate) fn new(
        call: &Call,
        time_ns: u64,
        decoded: &Decoded<'_>,
        process: &Arc<Process>,
    ) -> Self {
        let process = Arc::clone(process);
        Self {
            call: *call,
            time_ns,
            decoded: decoded.detach(),
            process,
            stack: None,
        }
    }

    /// Notes the caller's stack pointer.
    pub(crate) fn note_stack(&mut self, stack: Option<u64>) {
        self.stack = stack.or(self.stack);
    }

    /// Returns whether a trapped call is this one made again: the kernel restores the registers. The memory
    /// they point to does not count, because other threads may change it meanwhile. `stack`: the caller's
    /// stack pointer now, if it can be read.
    pub(crate) fn is_again(&self, call: &Call, stack: impl FnOnce() -> Option<u64>) -> bool {
        let key = |call: &Call| (call.syscall, call.arch, call.args, call.ip);
        if key(&self.call) != key(call) {
            return false;
        }
        let now = self.stack.and_then(|_| stack());
        now.is_none() || now == self.stack
    }

    /// Returns whether the entered call is this one, or the one by which the kernel continues it.
    pub(crate) fn is_entered(&self, entered: Option<SyscallEntry>) -> bool {
        let Some((audit, number, args)) = entered else {
            // Seized inside the call.
            return true;
        };
        let number = u32::try_from(number).ok();
        let decoded = number.and_then(|number| abi::arch::decode(audit, number));
        match decoded {
            // Its arguments are in memory.
            Some((_, Some(abi::Syscall::SOCKETCALL))) => true,
            Some((_, Some(abi::Syscall::RESTART_SYSCALL))) => true,
            Some((_, Some(syscall))) => syscall == self.call.syscall && args == self.call.args,
            _ => false,
        }
    }

    /// Evaluates the call with its result.
    pub(crate) fn finish<J: Evaluator>(
        &self,
        worker: &mut CallEvaluator<J>,
        outcome: Outcome,
        arena: &Bump,
    ) {
        let (call, decoded) = (&self.call, self.decoded.borrow(arena));
        let live = LiveProcess::default();
        let entry = CallView::at_entry(call, self.time_ns, decoded, &live, arena);
        worker.finish(&entry.returned(outcome), &self.process);
    }
}

/// Request of a receiver while the caller is parked. Unless said otherwise the tracer answers the call.
#[derive(Debug)]
pub(crate) enum TracerRequest {
    /// Learn the result of a call that is parked under this id, without the call noticing the stop.
    Follow {
        /// The call as first seen.
        followed: FollowedCall,
        /// Id that it is parked under now.
        id: u64,
    },
    /// Watch the process, which has one of descriptors 0..2 closed and may have a socket, until all are open.
    /// The receiver lets the call go when `begun` is signalled.
    Watch {
        /// Pid of the process.
        pid: Pid,
        /// Signalled when its threads are traced.
        begun: SyncSender<()>,
    },
    /// Learn the result of an exec and keep tracing if one of descriptors 0..2 is closed after it.
    Exec(FollowedCall),
}

/// Owner of a trapped call.
#[derive(Debug)]
pub(crate) enum CallOwner {
    /// Not the tracer.
    Nothing,
    /// The call that was undone, made again.
    Again(FollowedCall),
    /// A followed call, restarted under the tracer: let it go. `begins`: it was not in progress.
    Restarted {
        /// True if the call begins.
        begins: bool,
    },
    /// Another call of a thread whose sleeping call was expected again: a signal ended that one.
    Interrupted(FollowedCall),
}

/// The receivers' side of the tracer.
#[derive(Debug)]
pub(crate) struct TracerHandle {
    /// Number of threads that are traced or expected; at zero no receiver needs to ask.
    active: AtomicUsize,
    state: Mutex<State>,
    /// Processes with execs that have been let go and have not returned, with their number. Attaching to a
    /// thread waits for an exec in its process, and the exec waits for its file, which the workload may
    /// serve, and for its other threads to be reaped, which this tracer may trace: so no thread of such a
    /// process is attached to.
    execs: Mutex<HashMap<Pid, u32>>,
    bell: Arc<TracerWaker>,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<TracerRequest>,
    /// Sleeping calls that were undone and will be made again.
    expected: HashMap<Tid, FollowedCall>,
    /// Threads that the tracer holds.
    traced: HashMap<Tid, Tracee>,
    shut_down: bool,
}

#[derive(Debug)]
struct Tracee {
    pid: Pid,
    /// True if followed call by call because one of descriptors 0..2 is closed.
    watched: bool,
    /// Calls whose results are awaited.
    awaited: AwaitedCalls,
    /// The call in progress, from its entry stop.
    entered: Option<SyscallEntry>,
    /// True if it was asked to stop and has not stopped: a sleeping call notices that.
    interrupted: bool,
    /// Number of calls made while it was watched.
    calls: u32,
}

impl Tracee {
    fn new(pid: Pid, watched: bool) -> Self {
        Self {
            pid,
            watched,
            awaited: AwaitedCalls::default(),
            entered: None,
            interrupted: false,
            calls: 0,
        }
    }

    fn is_wanted(&self) -> bool {
        self.watched || !self.awaited.is_empty()
    }
}

impl TracerHandle {
    /// Creates a handle without tracees.
    pub(crate) fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(TracerWaker {
            wake: rustix::event::eventfd(0, flags)?,
            awaits_stops: AtomicBool::new(false),
        });
        let mut others = TRACERS.lock().unwrap_or_else(PoisonError::into_inner);
        others.retain(|other| other.strong_count() > 0);
        others.push(Arc::downgrade(&bell));
        drop(others);
        Ok(Self {
            active: AtomicUsize::new(0),
            state: Mutex::default(),
            execs: Mutex::default(),
            bell,
        })
    }

    /// Returns whether [`TracerHandle::claim`] can return anything but `Nothing`.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    /// Makes the tracer watch the process from before its parked call goes on.
    pub(crate) fn watch(&self, pid: Pid) {
        let (begun, wait) = sync_channel(1);
        self.request(TracerRequest::Watch { pid, begun });
        // After the deadline the call goes on although the watch has yet to begin.
        let _ = wait.recv_timeout(WATCH_DEADLINE);
    }

    pub(crate) fn request(&self, request: TracerRequest) {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.state().requests.push_back(request);
        self.wake();
    }

    /// Notes that a sleeping call was undone; the thread makes it again as soon as it is released. `lives`:
    /// returns whether a thread exists; one that was killed meanwhile does not make its call.
    pub(crate) fn expect_again(&self, followed: FollowedCall, lives: impl Fn(Tid) -> bool) {
        let mut state = self.state();
        let expected = &mut state.expected;
        if expected.len() >= EXPECTED && expected.len().is_multiple_of(EXPECTED) {
            expected.retain(|tid, _| lives(*tid));
        }
        state.expected.insert(followed.call.tid, followed);
        self.count(&state);
    }

    /// Returns the owner of a trapped call. `stack`: the caller's stack pointer.
    pub(crate) fn claim(&self, call: &Call, stack: impl Fn() -> Option<u64>) -> CallOwner {
        let mut state = self.state();
        if let Some(followed) = state.expected.remove(&call.tid) {
            self.count(&state);
            return if followed.is_again(call, stack) {
                CallOwner::Again(followed)
            } else {
                CallOwner::Interrupted(followed)
            };
        }
        let tracee = state.traced.get_mut(&call.tid);
        match tracee.map(|tracee| tracee.awaited.trapped(call, stack)) {
            Some(Trapped::Awaited { begins }) => CallOwner::Restarted { begins },
            Some(Trapped::Other) | None => CallOwner::Nothing,
        }
    }

    /// Leaves a call of a traced thread, which is let go next, to the tracer. Returns false if the tracer
    /// does not trace the thread.
    pub(crate) fn await_result(&self, followed: FollowedCall) -> bool {
        match self.state().traced.get_mut(&followed.call.tid) {
            Some(tracee) => tracee.awaited.let_go(followed),
            None => false,
        }
    }

    /// Returns whether the tracer traces the thread.
    pub(crate) fn holds(&self, tid: Tid) -> bool {
        self.is_active() && self.state().traced.contains_key(&tid)
    }

    /// Returns whether the process is watched already.
    pub(crate) fn watches(&self, pid: Pid) -> bool {
        self.is_active()
            && self
                .state()
                .traced
                .values()
                .any(|tracee| tracee.pid == pid && tracee.watched)
    }

    /// Notes that an exec is about to be let go.
    pub(crate) fn exec_begins(&self, pid: Pid) {
        let mut execs = self.execs();
        if execs.len() >= EXECS_LIMIT {
            execs.clear();
        }
        *execs.entry(pid).or_default() += 1;
    }

    /// Notes that an exec has returned, or has been undone.
    fn exec_ends(&self, pid: Pid, succeeded: bool) {
        let mut execs = self.execs();
        let others = execs
            .get_mut(&pid)
            .filter(|execs| !succeeded && **execs > 1);
        match others {
            Some(execs) => *execs -= 1,
            None => _ = execs.remove(&pid),
        }
    }

    /// Notes that an exec has returned. After a success the other threads of the process are gone, whatever
    /// was expected of them; the kernel does not report the end of a leader that another thread replaced.
    pub(crate) fn exec_returned(&self, pid: Pid, succeeded: bool) -> usize {
        self.exec_ends(pid, succeeded);
        if !succeeded || !self.is_active() {
            return 0;
        }
        let mut state = self.state();
        let leader = Tid(pid.0);
        state
            .expected
            .retain(|_, followed| followed.process.pid != pid);
        let before = state.traced.len();
        state
            .traced
            .retain(|tid, tracee| tracee.pid != pid || *tid == leader);
        let lost = before - state.traced.len();
        self.count(&state);
        lost
    }

    pub(crate) fn shut_down(&self) {
        self.state().shut_down = true;
        self.wake();
    }

    /// Waits for a request or, given `child_signals`, for a stop.
    fn wait(&self, child_signals: Option<&SignalStream>) {
        let wake = PollFd::new(self.bell.wake.as_fd(), poll::IN);
        let awaits_stops = child_signals.is_some();
        self.bell
            .awaits_stops
            .store(awaits_stops, Ordering::Release);
        let ready = match child_signals {
            Some(signals) => {
                let stop = PollFd::new(signals.as_fd(), poll::IN);
                poll::poll(&mut [wake, stop], Some(LOOK_AGAIN))
            }
            None => poll::poll(&mut [wake], None),
        };
        // Whatever ended the wait, everything is checked.
        let _ = ready;
        let _ = rustix::io::read(&self.bell.wake, &mut [0_u8; 8]);
        let mut is_reported = false;
        while let Some(Ok(Some(_))) = child_signals.map(SignalStream::next) {
            is_reported = true;
        }
        if is_reported {
            self.wake_others();
        }
    }

    /// Wakes the other tracers: the signal that was read may have been about one of their tracees.
    fn wake_others(&self) {
        let tracers = TRACERS.lock().unwrap_or_else(PoisonError::into_inner);
        if tracers.len() < 2 {
            return;
        }
        for other in tracers.iter().filter_map(Weak::upgrade) {
            if !Arc::ptr_eq(&other, &self.bell) && other.awaits_stops.load(Ordering::Acquire) {
                other.ring();
            }
        }
    }

    fn wake(&self) {
        self.bell.ring();
    }

    fn count(&self, state: &State) {
        let active = state.requests.len() + state.expected.len() + state.traced.len();
        self.active.store(active, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn execs(&self) -> MutexGuard<'_, HashMap<Pid, u32>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a tracer.
#[derive(Debug)]
struct TracerWaker {
    wake: OwnedFd,
    /// True if it has tracees, whose stops a signal announces.
    awaits_stops: AtomicBool,
}

impl TracerWaker {
    fn ring(&self) {
        // Fails only when the counter is full, that is, when the tracer is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The tracers of this process: the kernel announces stops to all of them by one signal, which one of them reads.
static TRACERS: Mutex<Vec<Weak<TracerWaker>>> = Mutex::new(Vec::new());

/// The tracer's own side: runs in a thread of its own.
pub(crate) struct Tracer<J: Evaluator> {
    worker: CallEvaluator<J>,
    memory: Memory,
}

impl<J: Evaluator> Tracer<J> {
    pub(crate) fn new(shared: Arc<Shared<J>>) -> Self {
        let memory = Memory::new(Arc::new(BlockingMarker::default()));
        Self {
            worker: CallEvaluator::new(shared),
            memory,
        }
    }

    /// Handles requests and stops until shut down.
    pub(crate) fn run(mut self, child_signals: &SignalStream) {
        let shared = Arc::clone(&self.worker.shared);
        let handle = &shared.tracer;
        loop {
            let has_tracees = !handle.state().traced.is_empty();
            // SIGCHLD announces stops; without tracees it need not be read.
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
            let shut_down = state.shut_down;
            drop(state);
            if shut_down {
                self.leave();
                return;
            }
        }
    }

    /// Finishes the calls that still sleep: the end of this thread releases their callers. At the end of the
    /// workload there are none. A call that was undone is made again, for the engine that receives it then.
    fn leave(&mut self) {
        let traced = std::mem::take(&mut self.shared().tracer.state().traced);
        let awaited = traced.into_values().map(|tracee| tracee.awaited);
        for (followed, has_begun) in awaited.flat_map(AwaitedCalls::into_all) {
            if has_begun {
                self.unlearnt(&followed);
            }
        }
    }

    fn begin(&mut self, request: TracerRequest) {
        match request {
            TracerRequest::Follow { id, .. }
                if !self.shared().listener.is_valid(id).unwrap_or(false) =>
            {
                // A signal has taken the caller out of it; it is made again as a new call.
                Counters::add(&self.shared().counters.withdrawn);
            }
            TracerRequest::Follow { followed, id } => self.follow(followed, id, TraceGoal::Result),
            TracerRequest::Exec(followed) => {
                let id = followed.call.id;
                self.follow(followed, id, TraceGoal::Watch);
            }
            TracerRequest::Watch { pid, begun } => {
                self.watch(pid);
                // A receiver that has stopped waiting has let the call go.
                let _ = begun.send(());
            }
        }
    }

    /// Lets a parked call be made with its result awaited. A thread that is traced already stops after it by
    /// itself. Another one has to be stopped first, and a call must not notice that: it would be interrupted.
    /// So the call is taken back, where the stop comes, and made again.
    fn follow(&mut self, followed: FollowedCall, id: u64, wish: TraceGoal) {
        let (tid, pid) = (followed.call.tid, followed.process.pid);
        let is_exec = Role::of(&followed.call) == Role::Exec;
        let before = self.seize(tid, pid, wish);
        let is_awaited = {
            let mut state = self.shared().tracer.state();
            let awaited = state.traced.get_mut(&tid).map(|tracee| &mut tracee.awaited);
            awaited.is_some_and(|awaited| match before {
                SeizeResult::Now => awaited.hold(followed.clone()),
                SeizeResult::Before => awaited.let_go(followed.clone()),
                SeizeResult::Refused => false,
            })
        };
        if is_awaited && before == SeizeResult::Now {
            self.take_back(&followed, id);
            return;
        }
        if is_exec {
            self.shared().tracer.exec_begins(pid);
        }
        if !is_awaited {
            self.shared().note_tracer(&followed.call, &followed.process);
            self.unlearnt(&followed);
        }
        if !self.answer(id) {
            self.withdrawn(tid, &followed);
        }
    }

    /// Answers a call so that the kernel makes it again, after the requested stop.
    fn take_back(&self, followed: &FollowedCall, id: u64) {
        let shared = self.shared();
        // No caller takes the answer: on Linux before 5.19 the stop has taken the call back already, else the
        // caller was killed, which the next wait reports.
        if shared.listener.respond_errno(id, RESTART).is_err() {
            Counters::add(&shared.counters.answer_errors);
            self.withdrawn(followed.call.tid, followed);
        }
    }

    /// Watches all threads of a process. Repeats until every thread is traced, because one that was not
    /// traced yet may have made another meanwhile.
    fn watch(&mut self, pid: Pid) {
        for _ in 0..WATCH_ROUNDS {
            let threads = self.shared().tree.inspector.threads(pid);
            let untraced: Vec<Tid> = {
                let state = self.shared().tracer.state();
                let is_watched =
                    |tid: &Tid| state.traced.get(tid).is_some_and(|tracee| tracee.watched);
                threads.into_iter().filter(|tid| !is_watched(tid)).collect()
            };
            if untraced.is_empty() {
                return;
            }
            for tid in untraced {
                if self.seize(tid, pid, TraceGoal::Watch) == SeizeResult::Refused {
                    Counters::add(&self.shared().counters.stdio_watches_refused);
                }
                // A thread that ended must not keep an exec of its process waiting.
                self.serve_stops();
            }
        }
    }

    /// Starts tracing a thread, or adds to the goals of one that is traced already.
    fn seize(&mut self, tid: Tid, pid: Pid, wish: TraceGoal) -> SeizeResult {
        let shared = Arc::clone(&self.worker.shared);
        let is_watched = wish == TraceGoal::Watch;
        if let Some(tracee) = shared.tracer.state().traced.get_mut(&tid) {
            tracee.watched |= is_watched;
            return SeizeResult::Before;
        }
        if !self.attach(tid, pid) {
            return SeizeResult::Refused;
        }
        // Following starts at the stop this asks for. It fails only if the thread is gone, which the next
        // wait reports.
        let mut tracee = Tracee::new(pid, is_watched);
        tracee.interrupted = ptrace::interrupt(tid.0).is_ok();
        shared.tracer.state().traced.insert(tid, tracee);
        SeizeResult::Now
    }

    /// Attaches, but not while an exec in the process is in flight; see [`TracerHandle::execs`].
    fn attach(&mut self, tid: Tid, pid: Pid) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let mut idle = 0;
        for _ in 0..ATTACH_TRIES {
            let is_alone = || shared.tree.inspector.thread_count(pid) == Some(1);
            let mut execs = shared.tracer.execs();
            // The only thread of a process is in the call for which it is attached to.
            if execs.contains_key(&pid) && is_alone() {
                execs.remove(&pid);
            }
            if !execs.contains_key(&pid) && shared.stuck.may_attach(tid, &shared.tree.inspector) {
                // Locked meanwhile: no exec is let go before this returns.
                if ptrace::seize(tid.0, OPTIONS).is_ok() {
                    return true;
                }
                // A receiver may be releasing it just now, or have done so since.
                let is_held = is_traced_here(tid, &shared.tree.inspector);
                idle = if is_held { 0 } else { idle + 1 };
                if shared.waits_killable || idle > IDLE_TRIES {
                    return false;
                }
            }
            drop(execs);
            self.serve_stops();
            std::thread::sleep(ATTACH_PAUSE);
        }
        false
    }

    fn unlearnt(&mut self, followed: &FollowedCall) {
        Counters::add(&self.shared().counters.escalation_refused);
        followed.finish(&mut self.worker, Outcome::Unlearnt, &Bump::new());
    }

    fn answer(&self, id: u64) -> bool {
        self.shared().answer(id)
    }

    /// Notes a call that could not be answered: it is made again as a new one, if at all.
    fn withdrawn(&self, tid: Tid, followed: &FollowedCall) {
        let mut state = self.shared().tracer.state();
        if let Some(tracee) = state.traced.get_mut(&tid)
            && tracee.awaited.forget(followed.call.id)
        {
            Counters::add(&self.shared().counters.withdrawn);
        }
    }

    fn shared(&self) -> &Shared<J> {
        &self.worker.shared
    }

    /// Handles the threads that are stopped now, and not those that stop again meanwhile: requests get their
    /// turn, whatever the threads do.
    fn serve_stops(&mut self) {
        for (tid, status) in wait::pending_of_thread() {
            self.stopped(Tid(tid), status);
        }
    }

    fn stopped(&mut self, tid: Tid, status: Status) {
        match status {
            Status::Exited(_) | Status::Signaled { .. } => self.forget(tid),
            Status::SyscallStop => self.at_syscall(tid),
            Status::PtraceEvent { event, signal } => self.at_event(tid, event, signal),
            Status::Stopped(signal) => {
                self.shared().progress.made(tid);
                resume(tid, signal);
            }
            Status::Continued => {}
        }
    }

    fn at_event(&mut self, tid: Tid, event: u32, signal: i32) {
        match event {
            ptrace::EVENT_FORK | ptrace::EVENT_VFORK | ptrace::EVENT_CLONE => self.at_birth(tid),
            ptrace::EVENT_EXEC => self.at_exec(tid),
            ptrace::EVENT_STOP if is_stop_signal(signal) => {
                // A group stop: stay stopped until the group continues, without being held.
                let _ = ptrace::listen(tid.0);
                return;
            }
            ptrace::EVENT_STOP => self.at_first_stop(tid),
            _ => {}
        }
        self.run_on(tid);
    }

    /// Handles a requested stop, or a newborn's first.
    fn at_first_stop(&mut self, tid: Tid) {
        let over = {
            let mut state = self.shared().tracer.state();
            let Some(tracee) = state.traced.get_mut(&tid) else {
                // Born to a watched thread, and stopped before its parent's own report.
                drop(state);
                self.adopt(tid, true);
                return;
            };
            let was_interrupted = std::mem::take(&mut tracee.interrupted);
            let Ok(mut registers) = ptrace::registers(tid.0) else {
                return;
            };
            let stack = Some(registers.stack_pointer());
            tracee.awaited.note_stack(stack);
            let call = tracee.awaited.under_way().map(|followed| followed.call);
            let is_ours = was_interrupted
                && is_own_interruption(tid.0, &mut registers, |now| restart(now, call.as_ref()));
            let result = registers.result();
            // Let go while it was asked to stop; below Linux 5.19 a signal may have taken it out of the call
            // before, which it makes again.
            let Some(call) = call.filter(|call| is_at(call, &registers)) else {
                return;
            };
            if is_ours || registers.restarts_call(call.ip) {
                tracee.awaited.undone(None, stack);
                return;
            }
            let followed = tracee.awaited.returned(None);
            followed.map(|followed| (followed, result))
        };
        if let Some((followed, result)) = over {
            self.finish(&followed, result);
        }
    }

    fn at_birth(&mut self, parent: Tid) {
        let Ok(child) = ptrace::event_message(parent.0) else {
            return;
        };
        let Ok(child) = i32::try_from(child) else {
            return;
        };
        let watched = {
            let state = self.shared().tracer.state();
            state
                .traced
                .get(&parent)
                .is_some_and(|tracee| tracee.watched)
        };
        self.adopt(Tid(child), watched);
    }

    /// Starts tracing a child of a traced thread, from its first instruction. A copy of a watched process has
    /// its parent's descriptors.
    fn adopt(&self, child: Tid, watched: bool) {
        // A child that has ended already was reported before its birth was.
        let Some(pid) = self.shared().tree.inspector.thread_group(child) else {
            return;
        };
        let newborn = Tracee::new(pid, watched);
        self.shared()
            .tracer
            .state()
            .traced
            .entry(child)
            .or_insert(newborn);
    }

    /// Handles the successful exec of a traced thread. If that was not the leader it now has the leader's id;
    /// the others are gone.
    fn at_exec(&mut self, tid: Tid) {
        let former = ptrace::event_message(tid.0)
            .ok()
            .and_then(|tid| i32::try_from(tid).ok());
        let (awaited, lost) = {
            let mut state = self.shared().tracer.state();
            if let Some(former) = former.map(Tid)
                && former != tid
                && let Some(tracee) = state.traced.remove(&former)
            {
                state.traced.insert(tid, tracee);
            }
            let is_exec = |followed: &FollowedCall| Role::of(&followed.call) == Role::Exec;
            let tracee = state.traced.get_mut(&tid);
            tracee.map_or((None, 0), |tracee| tracee.awaited.executed(is_exec))
        };
        self.shared()
            .counters
            .gone
            .fetch_add(lost, Ordering::Relaxed);
        if let Some(followed) = awaited {
            self.finish(&followed, 0);
        }
    }

    fn at_syscall(&mut self, tid: Tid) {
        match ptrace::syscall_info(tid.0) {
            Ok(ptrace::SyscallInfo {
                arch,
                op: SyscallOp::Entry { nr, args },
                ..
            }) => {
                let entered = (arch, nr, args);
                let left = {
                    let mut state = self.shared().tracer.state();
                    state.traced.get_mut(&tid).and_then(|tracee| {
                        tracee.entered = Some(entered);
                        tracee.awaited.entered(entered)
                    })
                };
                if let Some(followed) = left {
                    self.finish(&followed, INTERRUPTED);
                }
                resume(tid, 0);
            }
            Ok(ptrace::SyscallInfo {
                ip,
                sp,
                op: SyscallOp::Exit { rval, .. },
                ..
            }) => {
                self.returned(tid, rval, Place { ip, sp });
            }
            _ => resume(tid, 0),
        }
    }

    fn returned(&mut self, tid: Tid, result: i64, place: Place) {
        let (entered, awaited, watched, pid, calls) = {
            let mut state = self.shared().tracer.state();
            let Some(tracee) = state.traced.get_mut(&tid) else {
                drop(state);
                release(tid.0, 0);
                return;
            };
            let entered = tracee.entered.take();
            let calls = &mut tracee.awaited;
            let awaited = if ptrace::RESTART_CODES.contains(&result)
                || tracee.interrupted && result == INTERRUPTED && undo_interruption(tid)
            {
                let again = calls.undone(entered, Some(place.sp));
                if again && let Some((audit, number, args)) = entered {
                    self.exec_undone(tracee.pid, audit, number, &args);
                }
                None
            } else if result == INTERRUPTED {
                let failed = calls.failed(entered, place.ip);
                failed.or_else(|| calls.returned(entered))
            } else {
                calls.returned(entered)
            };
            tracee.calls = tracee.calls.wrapping_add(1);
            let calls = tracee.calls;
            (entered, awaited, tracee.watched, tracee.pid, calls)
        };
        if let Some(followed) = &awaited {
            self.finish(followed, result);
        } else if watched && let Some(entered) = entered {
            self.watched_call(tid, pid, entered, result);
        }
        // Only such a result can mean that one of them is open again, or the end of an exec.
        if watched && (0..=2).contains(&result) && self.shared().tree.inspector.has_stdio(pid) {
            self.unwatch(pid);
        } else if watched && calls >= FIRST_LOOK && calls.is_power_of_two() {
            self.unwatch_without_sockets(pid);
        }
        self.run_on(tid);
    }

    /// Stops watching a process without sockets. A program that makes many calls with one of 0..2 closed is
    /// normally closing the rest; without a socket nothing can happen. The number of checks does not grow
    /// with the calls.
    fn unwatch_without_sockets(&self, pid: Pid) {
        let shared = self.shared();
        if shared.watch_stdio_any || !shared.tree.has_lost_sockets(pid) {
            return;
        }
        self.let_go_on(pid);
        // Made meanwhile, by a thread that knew that it is watched.
        if shared.tree.has_sockets(pid) {
            let (begun, _) = sync_channel(1);
            shared.tracer.request(TracerRequest::Watch { pid, begun });
        }
    }

    /// Notes that an exec has been undone: until it is made again, other threads may attach.
    fn exec_undone(&self, pid: Pid, audit: u32, number: u64, args: &[u64; 6]) {
        let number = u32::try_from(number).ok();
        let decoded = number.and_then(|number| abi::arch::decode(audit, number));
        if let Some((_, Some(syscall))) = decoded
            && replaces_program(syscall, args)
        {
            self.shared().tracer.exec_ends(pid, false);
        }
    }

    fn finish(&mut self, followed: &FollowedCall, result: i64) {
        Counters::add(&self.shared().counters.followed);
        if result != INTERRUPTED {
            self.shared().progress.made(followed.call.tid);
        }
        followed.finish(&mut self.worker, Outcome::Returned(result), &Bump::new());
        let is_exec = Role::of(&followed.call) == Role::Exec;
        let pid = followed.process.pid;
        if is_exec && result == 0 && self.shared().tree.inspector.has_stdio(pid) {
            self.unwatch(pid);
        }
    }

    /// Handles a plain `dup` that filled one of descriptors 0..2. The receivers handle calls that the filter traps.
    fn watched_call(
        &mut self,
        tid: Tid,
        pid: Pid,
        (audit, number, args): (u32, u64, [u64; 6]),
        result: i64,
    ) {
        let shared = Arc::clone(&self.worker.shared);
        let Ok(number) = u32::try_from(number) else {
            return;
        };
        let Some((arch, Some(syscall))) = abi::arch::decode(audit, number) else {
            return;
        };
        let fills = syscall == abi::Syscall::DUP && (0..=2).contains(&result);
        if !fills || shared.is_trapped(syscall) {
            return;
        }
        let kind = EventKind::of_syscall(syscall);
        let call = Call {
            id: 0,
            tid,
            arch,
            syscall,
            kind,
            args,
            is_unread: false,
            ip: 0,
        };
        let Some(process) = shared.tree.of_thread(Tid(pid.0), &shared.counters) else {
            return;
        };
        let arena = Bump::new();
        let decoded = decode::decode(&call, &self.memory, &arena);
        let time_ns = sys::time::now_ns(sys::time::Clock::Real);
        let live = LiveProcess::default();
        let entry = CallView::at_entry(&call, time_ns, decoded, &live, &arena);
        let view = entry.returned(Outcome::Returned(result));
        self.worker.finish(&view, &process);
    }

    /// Ends the watch because all of 0..2 are open: the threads of the process are released as they stop.
    fn unwatch(&self, pid: Pid) {
        let shared = self.shared();
        if !shared.tree.inspector.closes_stdio_on_exec(pid) {
            shared.tree.clear_stdio(pid);
        }
        self.let_go_on(pid);
    }

    /// Ends the watch of a process.
    fn let_go_on(&self, pid: Pid) {
        let mut state = self.shared().tracer.state();
        for (tid, tracee) in state
            .traced
            .iter_mut()
            .filter(|(_, tracee)| tracee.pid == pid)
        {
            tracee.watched = false;
            // A thread that sleeps would keep its tracer for as long as it sleeps.
            tracee.interrupted |= ptrace::interrupt(tid.0).is_ok();
        }
    }

    /// Resumes a stopped thread to its next stop if it is still needed, else detaches from it.
    fn run_on(&self, tid: Tid) {
        let mut state = self.shared().tracer.state();
        if state.traced.get(&tid).is_some_and(Tracee::is_wanted) {
            resume(tid, 0);
            return;
        }
        state.traced.remove(&tid);
        release(tid.0, 0);
    }

    /// Removes a thread that has ended. Whether the calls that had begun took effect is unknown.
    fn forget(&mut self, tid: Tid) {
        let tracee = self.shared().tracer.state().traced.remove(&tid);
        let Some(tracee) = tracee else { return };
        for (followed, has_begun) in tracee.awaited.into_all() {
            Counters::add(&self.shared().counters.gone);
            self.shared().tracer.execs().remove(&followed.process.pid);
            if has_begun {
                followed.finish(&mut self.worker, Outcome::Unlearnt, &Bump::new());
            }
        }
    }
}

/// Reason to trace a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceGoal {
    /// Learn the result of one call.
    Result,
    /// Watch every call, until descriptors 0..2 are open.
    Watch,
}

/// Result of seizing a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeizeResult {
    /// Traced from now on, and asked to stop.
    Now,
    /// Traced already; it stops at its calls.
    Before,
    /// The thread cannot be traced.
    Refused,
}

/// Instruction and stack pointer of a thread.
#[derive(Clone, Copy, Debug)]
struct Place {
    ip: u64,
    sp: u64,
}

/// Makes a call restart that failed only because its thread was asked to stop.
fn undo_interruption(tid: Tid) -> bool {
    let registers = ptrace::registers(tid.0);
    registers.is_ok_and(|mut registers| {
        is_own_interruption(tid.0, &mut registers, |now| {
            now.restart_returned_call();
            true
        })
    })
}

/// Resumes a thread to its next entry to or return from a call.
fn resume(tid: Tid, signal: i32) {
    // Fails only if the thread was killed meanwhile; its end is reported by the next wait.
    let _ = ptrace::resume_to_syscall(tid.0, signal);
}

fn is_stop_signal(signal: i32) -> bool {
    // SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
    (Signal::SIGSTOP.0..=Signal::SIGTTOU.0).contains(&signal)
}

/// Time after which a stop is found whose SIGCHLD went to a thread that does not block it.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Maximum time for which a call waits for its process to be watched.
const WATCH_DEADLINE: Duration = Duration::from_secs(1);
/// Maximum number of rounds of listing threads that are not traced yet; each can find only threads made
/// before the previous one ended.
const WATCH_ROUNDS: usize = 16;
/// Number of tries to attach while an exec is in flight, and the pause between them.
const ATTACH_TRIES: usize = 100;
/// Number of expected calls before those of ended threads are dropped.
const EXPECTED: usize = 1024;
/// Maximum number of processes with an exec whose end is not known; normally a handful.
const EXECS_LIMIT: usize = 4096;
/// Number of failed tries to attach while none of our threads holds the thread.
const IDLE_TRIES: usize = 2;
const ATTACH_PAUSE: Duration = Duration::from_millis(1);
/// Number of calls of a watched thread before it is checked for sockets.
const FIRST_LOOK: u32 = 16;
/// `-EINTR`.
const INTERRUPTED: i64 = -4;

/// Children and new threads of a watched process are watched too, and an exec is reported even where another
/// thread than the leader makes it.
const OPTIONS: u32 = ptrace::OPTION_TRACESYSGOOD
    | ptrace::OPTION_TRACEFORK
    | ptrace::OPTION_TRACEVFORK
    | ptrace::OPTION_TRACECLONE
    | ptrace::OPTION_TRACEEXEC;
