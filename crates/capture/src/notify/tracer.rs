//! The thread that follows callers over more than one stop.
//!
//! Two things need more than the one stop of [`super::escalation`]: a call that sleeps, whose result
//! comes when it comes, and a process with one of descriptors 0..2 closed, in which every `dup`
//! counts ([`super::stdio`]). Tracing is bound to a thread, so one thread of its own does all of
//! it, driven by requests of the receivers and by the stops of its tracees.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bumpalo::Bump;
use event::{Evaluator, EventKind, Outcome, Pid, Process, Tid};
use rustix::event::EventfdFlags;
use sys::poll::{self, PollFd};
use sys::ptrace::{self, SyscallOp};
use sys::signal::SignalStream;
use sys::wait::{self, Status};

use super::Shared;
use super::awaited::{AwaitedCalls, SyscallEntry, Trapped};
use super::call::{Call, replaces_program};
use super::counters::Counters;
use super::decode::{self, Decoded, OwnedDecoded};
use super::escalation::{RESTART_CODES, is_at, is_own_interruption, is_traced_here, release};
use super::interruption::RESTART;
use super::worker::{CallEvaluator, Role};
use process_info::memory::{BlockingMarker, Memory};

/// A call whose result is awaited.
#[derive(Clone, Debug)]
pub(crate) struct FollowedCall {
    pub(crate) call: Call,
    time_ns: u64,
    decoded: OwnedDecoded,
    pub(crate) process: Arc<Process>,
    /// The caller's stack pointer, as soon as it has been seen: a signal handler that makes the same
    /// call with the same registers has another one.
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

    /// Remembers where the caller's stack is.
    pub(crate) fn note_stack(&mut self, stack: Option<u64>) {
        self.stack = stack.or(self.stack);
    }

    /// Whether a trapped call is this one made again: the kernel puts the registers back as they were.
    /// What they point to does not count, because others may change it meanwhile. `stack`: the
    /// caller's stack pointer now, if it can be told.
    pub(crate) fn is_again(&self, call: &Call, stack: impl FnOnce() -> Option<u64>) -> bool {
        let key = |call: &Call| (call.syscall, call.arch, call.args, call.ip);
        if key(&self.call) != key(call) {
            return false;
        }
        let now = self.stack.and_then(|_| stack());
        now.is_none() || now == self.stack
    }

    /// Whether what a thread entered is this call, or what the kernel goes on with it by.
    pub(crate) fn is_entered(&self, entered: Option<SyscallEntry>) -> bool {
        let Some((audit, number, args)) = entered else {
            // Seized inside it.
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

    /// Concludes it.
    pub(crate) fn finish<J: Evaluator>(
        &self,
        worker: &mut CallEvaluator<J>,
        outcome: Outcome,
        arena: &Bump,
    ) {
        let decoded = self.decoded.borrow(arena);
        worker.finish(
            &self.call,
            self.time_ns,
            &decoded,
            outcome,
            &self.process,
            arena,
        );
    }
}

/// What a receiver asks for while the caller is parked. Unless said otherwise the tracer answers.
#[derive(Debug)]
pub(crate) enum TracerRequest {
    /// Learn the result of a call that is parked under this id, without the stop being noticed by it.
    Follow {
        /// The call as it was first seen.
        followed: FollowedCall,
        /// The id it is parked under now.
        id: u64,
    },
    /// Watch the process, which has one of descriptors 0..2 closed and may have a socket, until all
    /// are open. The receiver goes on with the call when this is told to have begun.
    Watch {
        /// The process.
        pid: Pid,
        /// Told that its threads are traced.
        begun: SyncSender<()>,
    },
    /// Learn the result of an exec and stay if one of descriptors 0..2 is closed after it.
    Exec(FollowedCall),
}

/// Whose a trapped call is.
#[derive(Debug)]
pub(crate) enum CallOwner {
    /// Not the tracer's.
    Nothing,
    /// The call that was undone, made again.
    Again(FollowedCall),
    /// A followed call, restarted under the tracer's eyes: let it go. `begins`: it was not under way.
    Restarted {
        /// Whether the call begins.
        begins: bool,
    },
    /// Another call of a thread whose sleeping call was expected again: a signal ended that one.
    Interrupted(FollowedCall),
}

/// The receivers' side.
#[derive(Debug)]
pub(crate) struct TracerHandle {
    /// Threads that are traced or expected; zero means that no receiver needs to ask.
    active: AtomicUsize,
    state: Mutex<State>,
    /// Processes with execs that have been let go and have not returned, and how many each has.
    /// Attaching to a thread waits for an exec in its process, and the exec waits for its file, which
    /// may be the workload's own, and for its other threads to be reaped, which are perhaps this
    /// tracer's: no thread of such a process is attached to.
    execs: Mutex<HashMap<Pid, u32>>,
    bell: Arc<TracerWaker>,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<TracerRequest>,
    /// Sleeping calls that were undone and will be made again.
    expected: HashMap<Tid, FollowedCall>,
    /// Threads the tracer holds.
    traced: HashMap<Tid, Tracee>,
    shut_down: bool,
}

#[derive(Debug)]
struct Tracee {
    pid: Pid,
    /// Followed call by call because one of descriptors 0..2 is closed.
    watched: bool,
    /// The calls whose results are awaited.
    awaited: AwaitedCalls,
    /// The call it is in, from its entry stop.
    entered: Option<SyscallEntry>,
    /// It was asked to stop and has not done so: what it sleeps in notices that.
    interrupted: bool,
    /// Calls that it has made while it was watched.
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
    /// A handle without tracees.
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

    /// Whether [`TracerHandle::claim`] can answer anything but `Nothing`.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    /// Has the process watched from before its parked call goes on.
    pub(crate) fn watch(&self, pid: Pid) {
        let (begun, wait) = sync_channel(1);
        self.request(TracerRequest::Watch { pid, begun });
        // Later than this the call goes on with the watch about to begin.
        let _ = wait.recv_timeout(WATCH_DEADLINE);
    }

    pub(crate) fn request(&self, request: TracerRequest) {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.state().requests.push_back(request);
        self.wake();
    }

    /// A sleeping call was undone; the thread makes it again as soon as it is released. `lives`: whether a
    /// thread is there; one that was killed meanwhile has not made its call.
    pub(crate) fn expect_again(&self, followed: FollowedCall, lives: impl Fn(Tid) -> bool) {
        let mut state = self.state();
        let expected = &mut state.expected;
        if expected.len() >= EXPECTED && expected.len().is_multiple_of(EXPECTED) {
            expected.retain(|tid, _| lives(*tid));
        }
        state.expected.insert(followed.call.tid, followed);
        self.count(&state);
    }

    /// Looks a trapped call up. `stack`: the caller's stack pointer.
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

    /// Leaves a call of a traced thread, which is let go next, to the tracer. False: it is not the
    /// tracer's thread.
    pub(crate) fn await_result(&self, followed: FollowedCall) -> bool {
        match self.state().traced.get_mut(&followed.call.tid) {
            Some(tracee) => tracee.awaited.let_go(followed),
            None => false,
        }
    }

    /// Whether the thread is the tracer's.
    pub(crate) fn holds(&self, tid: Tid) -> bool {
        self.is_active() && self.state().traced.contains_key(&tid)
    }

    /// Whether the process is watched already.
    pub(crate) fn watches(&self, pid: Pid) -> bool {
        self.is_active()
            && self
                .state()
                .traced
                .values()
                .any(|tracee| tracee.pid == pid && tracee.watched)
    }

    /// An exec is about to be let go.
    pub(crate) fn exec_begins(&self, pid: Pid) {
        let mut execs = self.execs();
        if execs.len() >= EXECS_LIMIT {
            execs.clear();
        }
        *execs.entry(pid).or_default() += 1;
    }

    /// It is over, or has been undone.
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

    /// It has returned. After a success the other threads of the process are gone, whatever was
    /// expected of them; the kernel does not report the end of a leader that another thread
    /// replaced.
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

    /// Waits for a request or, if asked to, for a stop.
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
        // Whatever woke it, everything is looked at.
        let _ = ready;
        let _ = rustix::io::read(&self.bell.wake, &mut [0_u8; 8]);
        let mut is_told = false;
        while let Some(Ok(Some(_))) = child_signals.map(SignalStream::next) {
            is_told = true;
        }
        if is_told {
            self.wake_others();
        }
    }

    /// A signal was read that may have been about a tracee of another tracer of this process.
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

/// What wakes a tracer.
#[derive(Debug)]
struct TracerWaker {
    wake: OwnedFd,
    /// Whether it has tracees, of whose stops a signal tells.
    awaits_stops: AtomicBool,
}

impl TracerWaker {
    fn ring(&self) {
        // Fails only when the counter is full, that is, when the tracer is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The tracers of this process: the kernel tells all of them of stops by one signal, which one of them
/// reads.
static TRACERS: Mutex<Vec<Weak<TracerWaker>>> = Mutex::new(Vec::new());

/// The tracer's side: runs in a thread of its own.
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
            let shut_down = state.shut_down;
            drop(state);
            if shut_down {
                self.leave();
                return;
            }
        }
    }

    /// Concludes the calls that still sleep: the end of this thread lets their callers go. At the
    /// end of the workload there are none. A call that was undone is made again, for whoever
    /// receives it then.
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
                // A signal has taken the caller out of it; it comes again as a new call.
                Counters::add(&self.shared().counters.withdrawn);
            }
            TracerRequest::Follow { followed, id } => self.follow(followed, id, TraceGoal::Result),
            TracerRequest::Exec(followed) => {
                let id = followed.call.id;
                self.follow(followed, id, TraceGoal::Watch);
            }
            TracerRequest::Watch { pid, begun } => {
                self.watch(pid);
                // A receiver that has given up waiting has let the call go.
                let _ = begun.send(());
            }
        }
    }

    /// Has a parked call made with its result awaited. A thread that is traced already stops after it
    /// by itself. Another one has to be stopped first, and a call must not notice that: it would be
    /// interrupted. So the call is taken back, which is where the stop comes, and made again.
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

    /// Answers a call so that the kernel makes it again, after the stop that has been asked for.
    fn take_back(&self, followed: &FollowedCall, id: u64) {
        let shared = self.shared();
        // Nobody there to be answered: on Linux before 5.19 the stop has taken it back already, else
        // the caller was killed, which the next wait tells.
        if shared.listener.respond_errno(id, RESTART).is_err() {
            Counters::add(&shared.counters.answer_errors);
            self.withdrawn(followed.call.tid, followed);
        }
    }

    /// Watches all threads of a process. Again until there is none that is not traced, because one
    /// that was not traced yet may have made another meanwhile.
    fn watch(&mut self, pid: Pid) {
        for _ in 0..WATCH_ROUNDS {
            let threads = self.shared().tree.census.threads(pid);
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

    /// Starts tracing a thread, or adds to what is wanted of one that is traced already.
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
        // The stop this asks for is where following starts. It fails only if the thread is gone,
        // which the next wait tells.
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
            let is_alone = || shared.tree.census.thread_count(pid) == Some(1);
            let mut execs = shared.tracer.execs();
            // The only thread of a process is in the call for which it is attached to.
            if execs.contains_key(&pid) && is_alone() {
                execs.remove(&pid);
            }
            if !execs.contains_key(&pid) && shared.stuck.may_attach(tid, &shared.tree.census) {
                // Held meanwhile: no exec is let go before this returns.
                if ptrace::seize(tid.0, OPTIONS).is_ok() {
                    return true;
                }
                // A receiver may just be letting go of it, or have done so since.
                let is_held = is_traced_here(tid, &shared.tree.census);
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

    /// A call could not be answered: it comes again as a new one, if at all.
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

    /// Serves what has stopped by now, and not what stops again meanwhile: requests have their turn,
    /// whatever the threads do.
    fn serve_stops(&mut self) {
        let options = wait::ALL | wait::NO_THREAD | wait::NO_HANG;
        let mut stops = Vec::new();
        while let Ok(Some(stop)) = wait::wait(wait::Target::Any, options) {
            stops.push(stop);
        }
        for (tid, status) in stops {
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

    /// A stop that was asked for, or a newborn's first.
    fn at_first_stop(&mut self, tid: Tid) {
        let over = {
            let mut state = self.shared().tracer.state();
            let Some(tracee) = state.traced.get_mut(&tid) else {
                // Born to a watched thread, and here before its parent's own report.
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
            let is_ours = was_interrupted
                && registers.syscall_number() != u64::MAX
                && is_own_interruption(tid.0, &mut registers);
            let result = registers.result();
            // Let go while it was asked to stop; below Linux 5.19 a signal may have taken it out of the
            // call before, which it makes again.
            let call = tracee.awaited.under_way().map(|followed| followed.call);
            if !call.is_some_and(|call| is_at(&call, &registers)) {
                return;
            }
            if is_ours || RESTART_CODES.contains(&result) {
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

    /// A child of a traced thread is traced from its first instruction and, if it is a copy of a
    /// watched process, has its parent's descriptors.
    fn adopt(&self, child: Tid, watched: bool) {
        // One that has ended already was reported before its birth was.
        let Some(pid) = self.shared().tree.census.thread_group(child) else {
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

    /// The exec of a traced thread succeeded. If that was not the leader it now has the leader's
    /// id; the others are gone.
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
            let awaited = if RESTART_CODES.contains(&result)
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
        if watched && (0..=2).contains(&result) && self.shared().tree.census.has_stdio(pid) {
            self.unwatch(pid);
        } else if watched && calls >= FIRST_LOOK && calls.is_power_of_two() {
            self.unwatch_without_sockets(pid);
        }
        self.run_on(tid);
    }

    /// A program that makes many calls with one of 0..2 closed is closing the rest, as a rule: without a
    /// socket there is nothing to watch for. How often that is looked for does not grow with the calls.
    fn unwatch_without_sockets(&self, pid: Pid) {
        let shared = self.shared();
        if shared.watch_stdio_any || !shared.tree.has_lost_sockets(pid) {
            return;
        }
        self.let_go_on(pid);
        // Made meanwhile, by a thread that was told that it is watched.
        if shared.tree.has_sockets(pid) {
            let (begun, _) = sync_channel(1);
            shared.tracer.request(TracerRequest::Watch { pid, begun });
        }
    }

    /// An exec that has been undone does not keep others from attaching until it is made again.
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
        if is_exec && result == 0 && self.shared().tree.census.has_stdio(pid) {
            self.unwatch(pid);
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
        let outcome = Outcome::Returned(result);
        self.worker
            .finish(&call, time_ns, &decoded, outcome, &process, &arena);
    }

    /// All of 0..2 are open: the threads of the process are let go as they stop.
    fn unwatch(&self, pid: Pid) {
        let shared = self.shared();
        if !shared.tree.census.closes_stdio_on_exec(pid) {
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

    /// Lets a stopped thread go on: to its next stop if it is still wanted, else for good.
    fn run_on(&self, tid: Tid) {
        let mut state = self.shared().tracer.state();
        if state.traced.get(&tid).is_some_and(Tracee::is_wanted) {
            resume(tid, 0);
            return;
        }
        state.traced.remove(&tid);
        release(tid.0, 0);
    }

    /// A thread has ended. Nobody knows whether the calls that had begun took effect.
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

/// What is wanted of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceGoal {
    /// The result of one call.
    Result,
    /// Every call, until descriptors 0..2 are open.
    Watch,
}

/// What came of asking for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeizeResult {
    /// It is traced from now on, and asked to stop.
    Now,
    /// It was traced already, and stops at its calls.
    Before,
    /// It cannot be traced.
    Refused,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
struct Place {
    ip: u64,
    sp: u64,
}

/// Makes a call that failed only because its thread was asked to stop restart.
fn undo_interruption(tid: Tid) -> bool {
    let registers = ptrace::registers(tid.0);
    registers.is_ok_and(|mut registers| is_own_interruption(tid.0, &mut registers))
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
/// How long a call waits for its process to be watched.
const WATCH_DEADLINE: Duration = Duration::from_secs(1);
/// Rounds of looking for threads that are not traced yet; each can only find what the one before
/// let be made.
const WATCH_ROUNDS: usize = 16;
/// How often attaching waits for an exec in flight, and how long each time.
const ATTACH_TRIES: usize = 100;
/// Calls that are expected before those of threads are dropped that have ended.
const EXPECTED: usize = 1024;
/// Processes with an exec of which the end is not known; of a program's, a handful.
const EXECS_LIMIT: usize = 4096;
/// How often attaching is tried in vain while none of our threads holds the thread.
const IDLE_TRIES: usize = 2;
const ATTACH_PAUSE: Duration = Duration::from_millis(1);
/// Calls of a watched thread before it is looked for sockets.
const FIRST_LOOK: u32 = 16;
/// `-EINTR`.
const INTERRUPTED: i64 = -4;

/// Children and new threads of a watched process are watched too, and an exec is told even where
/// another thread than the leader makes it.
const OPTIONS: u32 = ptrace::OPTION_TRACESYSGOOD
    | ptrace::OPTION_TRACEFORK
    | ptrace::OPTION_TRACEVFORK
    | ptrace::OPTION_TRACECLONE
    | ptrace::OPTION_TRACEEXEC;
