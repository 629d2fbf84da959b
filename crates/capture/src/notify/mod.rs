//! Capture engine `notify`: seccomp user notification.
//!
//! The workload runs under one seccomp filter, compiled from the interest plan, that parks a
//! thread in each planned call and tells the supervisor. A *receiver* looks at the call in stages
//! ([`event::Stage`]) and lets it go as soon as no rule can match any more. Where the result is
//! needed it stops the caller once after the call (`escalation`). Calls that sleep, and
//! processes with a standard descriptor closed, are followed by the *tracer* (`tracer`). The
//! *watchdog* replaces a receiver that a hostile page holds up.
//!
//! Nothing can be dropped: a caller waits until its call was looked at.

mod active_rules;
mod argument_check;
mod awaited;
mod claim;
mod confine;
mod denial_paths;
pub(crate) mod escalation;
mod gate;
pub(crate) mod guard;
mod init_restriction;
mod interruption;
mod losses;
pub(crate) mod names;
mod obstacle;
mod privileges;
mod progress;
mod receiver;
mod receiver_status;
mod setup;
mod spare_threads;
mod stuck;
pub(crate) mod tracer;
pub(crate) mod tripwire;
mod undecided;
pub(crate) mod verify;
mod wake_up;
pub(crate) mod watchdog;
pub(crate) mod worker;
pub(crate) mod writers;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use abi::{Capabilities, Syscall};
use arc_swap::ArcSwap;
use event::{
    Comm, Credentials, Evaluator, Event, EventKind, Lookup, Pid, Plan, Process, StdioWatch,
    SystemInfo, Tid,
};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use sys::notify::{Delivery, Listener, Notification, Received};
use sys::seccomp::{FilterFlags, flags_available};
use sys::signal::{SignalSet, SignalStream};

use active_rules::ActiveRules;
pub(crate) use active_rules::RulesTarget;
pub(crate) use active_rules::is_disguise;
pub use active_rules::{CommonRules, RulesHandle, RulesInForce};
pub use claim::{ClaimOffer, ReceiveClaim, WithdrawnClaim};
pub use confine::{ActivePolicy, OTHER_ARCHITECTURE, Violation};
use decoder::call::Call;
use decoder::counters::{CounterSnapshot, Counters};
use decoder::tree::InitProgramState;
use decoder::tree::{Setup, Tree};
use gate::Gate;
use guard::Guard;
pub use guard::{GuardOptions, Intrusion, IntrusionTarget, Response};
pub use init_restriction::{Caller, FirstProgram};
pub use losses::{Losses, ProcessLoss};
pub use names::plan_renames;
pub use obstacle::AccessObstacle;
use obstacle::Unreadable;
pub(crate) use obstacle::obstacle;
pub use privileges::{Privilege, WithheldPrivileges};
use progress::Progress;
use receiver_status::SlotStatus;
pub use receiver_status::{Health, HeldCall, ReceiverStatus};
pub use setup::{AnswerThread, call_words, calls_from_words};
use spare_threads::BlockingOperation;
use tracer::{Tracer, TracerHandle};
pub use undecided::Cause;
use verify::Verifier;
pub use verify::{ALARM_NS, BUDGET, SAMPLE, Verify, VerifyOptions};
use wake_up::Mode;

use crate::tripwire::Tripwire;
use decoder::names::Names;
use decoder::system_info::ProcessIndex;
use decoder::{call, counters, decode, lineage, stdio, tree};
use process_info::memory::BlockingMarker;

/// What a process is answered that asks for an io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingAnswer {
    /// It gets none.
    Refused,
    /// It gets one, and what it does by it is not seen.
    Unseen,
    /// It gets one. Opens by it are events, and of its other calls that rules ask for is told.
    Followed,
}

impl RingAnswer {
    /// Of an engine that sees nothing of a ring.
    pub(crate) fn unseen(denied: bool) -> Self {
        if denied { Self::Refused } else { Self::Unseen }
    }
}

/// Is told what the engine has to say about itself.
pub trait EngineObserver: Send + Sync {
    /// These rules could not be decided because something could not be learnt.
    fn undecided(&self, event: &Event<'_>, rules: &[Arc<str>]);
    /// A read of the caller's memory missed its deadline; the call was looked at without it.
    fn read_timed_out(&self, pid: Pid);
    /// Nobody can attach to a thread of the process while it executes a program whose file does not
    /// come; the call was looked at without its result.
    fn attaching_timed_out(&self, pid: Pid) {
        let _ = pid;
    }
    /// A thread repeats a call that gets no result while that is asked for: its calls are let go, and their
    /// results are not learnt. Said once for each such row of calls.
    fn no_progress(&self, process: &Process, tid: Tid, call: &'static str) {
        let _ = (process, tid, call);
    }
    /// A process gave itself a name that a rule compares with, and that it did not have at exec. Once for
    /// each process and name.
    fn renamed(&self, process: &Process, name: Comm) {
        let _ = (process, name);
    }
    /// A process tried something against those who watch it, or made itself unreadable.
    fn intrusion(&self, process: &Process, intrusion: &Intrusion) {
        let _ = (process, intrusion);
    }
    /// A call that a policy denies, or wants to be told of.
    fn violation(&self, event: &Event<'_>, violation: &Violation<'_>) {
        let _ = (event, violation);
    }
    /// A process cannot be read, as was found at this call; said once for each.
    fn unreadable(&self, process: &Process, call: &'static str, obstacle: AccessObstacle) {
        let _ = (process, call, obstacle);
    }
    /// A program does not get the privileges of its file; said once for each file.
    fn privileges_withheld(&self, pid: Pid, withheld: &WithheldPrivileges) {
        let _ = (pid, withheld);
    }
    /// The kernel did something else than the caller's memory had said: it was changed meanwhile.
    fn arguments_changed(&self, change: &ArgumentChange<'_>) {
        let _ = change;
    }
    /// Another program traces the process, so that results of its calls are not learnt. Once for
    /// each process.
    fn traced_by_another(&self, process: &Process, tracer: Pid) {
        let _ = (process, tracer);
    }
    /// A process asked for an io_uring, whose calls pass no hook of calls. Once for each process.
    fn ring(&self, process: &Process, answer: RingAnswer) {
        let _ = (process, answer);
    }
    /// An io_uring of the process has made a call that rules ask for, and that is no event. Once for each
    /// process and operation.
    fn ring_call(&self, process: &Process, operation: &str) {
        let _ = (process, operation);
    }
    /// A file that rules are about was opened, and the engine saw no such call.
    fn opened_unseen(&self, path: &[u8]) {
        let _ = path;
    }
    /// The file system could not tell of all opens.
    fn tripwire_overflowed(&self) {}
    /// Records found no room since the last look a second ago. Answers whether the engine may go on.
    fn events_dropped(&self, losses: &Losses) -> ControlFlow<()> {
        let _ = losses;
        ControlFlow::Continue(())
    }
    /// The engine cannot do something that it ought to.
    fn engine_trouble(&self, error: &(dyn std::error::Error + 'static)) {
        let _ = error;
    }
    /// A process that ought to be watched cannot be. `has_entered`: it comes from outside; else that cannot be
    /// told.
    fn unwatched(&self, pid: Pid, name: &str, why: &str, has_entered: bool) {
        let _ = (pid, name, why, has_entered);
    }
}

/// Arguments that changed under a call.
#[derive(Debug)]
pub struct ArgumentChange<'a> {
    /// Who called.
    pub process: &'a Process,
    /// The calling thread.
    pub tid: Tid,
    /// What kind of call.
    pub kind: EventKind,
    /// What had been read, if it could be.
    pub given: Option<String>,
    /// What the kernel did.
    pub truth: String,
}

/// The processes that the engine has seen; shared with the world so that it can name them.
#[derive(Clone)]
pub struct Processes(Arc<Tree>);

impl Processes {
    /// An empty tree. `transparent`: processes of the agent between the workload and whoever
    /// started it; rules do not see them as ancestors.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub fn new(transparent: Vec<Pid>) -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self(Arc::new(Tree::new(transparent)?)))
    }

    /// The same for an engine that does not see births: processes are marked, for their children
    /// to be known by, in their limit on file locks.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub fn with_marks(transparent: Vec<Pid>) -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self(Arc::new(Tree::new(transparent)?.with_marks())))
    }

    /// The workload's first process is a container runtime, which shares this process's mounts: the
    /// container begins with the first program that runs in others, and what the runtime itself does
    /// is not judged.
    ///
    /// # Errors
    ///
    /// If the own mount namespace cannot be read.
    pub fn with_setup(self) -> Result<Self, process_info::procfs::ProcError> {
        let own = std::process::id().cast_signed();
        let mount_namespace = process_info::procfs::Proc::open()?.namespace(own, "ns/mnt")?;
        let tree = Arc::into_inner(self.0).expect("nobody else has it yet");
        Ok(Self(Arc::new(tree.with_setup(Setup { mount_namespace }))))
    }

    /// Enters a workload that runs already: whatever descends from a transparent process. Where the
    /// container's first program has not begun yet (`InitProgramState::No`), all of it is the runtime's.
    pub fn adopt(&self, begun: InitProgramState) {
        self.0.adopt(begun);
    }

    /// A process that has been seen.
    pub fn find(&self, pid: Pid) -> Option<Arc<Process>> {
        self.0.find(pid)
    }
}

/// Processes that the engine has seen; of any other it cannot tell.
impl ProcessIndex for Processes {
    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        self.find(pid).map_or(Lookup::Unknown, Lookup::Found)
    }

    fn is_alive(&self, process: &Process) -> Option<bool> {
        self.0.is_alive(process)
    }

    fn credentials(&self, process: &Process) -> Option<Credentials> {
        self.0.credentials(process)
    }
}

/// What asks somebody else to stop receiving, and gives the calls that he holds.
pub type Pending = Box<dyn FnOnce() -> std::io::Result<Vec<Notification>> + Send>;

/// Asked when a call failed, as of [`Parts::lacked`].
pub type MissingCaps = Arc<dyn Fn() -> Capabilities + Send + Sync>;

/// What a supervisor is made of.
pub struct Parts<J: Evaluator> {
    /// Listener of the filter that was compiled from `installed`.
    pub listener: Listener,
    /// What the filter traps.
    pub installed: Plan,
    /// What the rules ask for; no more than the filter traps.
    pub plan: Plan,
    /// What the policy says of calls, which the filter was compiled from, too.
    pub profile: Profile,
    /// What tells which failures were denials by others than the filter.
    pub witness: DenialClassifier,
    /// Capabilities that the workload would not have without the policy either, as far as they are known only
    /// when it begins.
    pub lacked: MissingCaps,
    /// What a container's first program is restricted by before it begins, if it is.
    pub first: Option<Arc<dyn FirstProgram>>,
    /// Gives the calls that somebody else has received and holds. Asked when everything else is ready, threads
    /// too, because from then on nobody answers until the receivers do.
    pub pending: Pending,
    /// Evaluates events.
    pub judge: Arc<J>,
    /// Answers what events do not carry.
    pub world: Arc<dyn SystemInfo + Send + Sync>,
    /// The processes; the same that the world knows.
    pub processes: Processes,
    /// Is told about the engine's own troubles.
    pub notices: Arc<dyn EngineObserver>,
    /// How those who watch are kept safe.
    pub guard: GuardOptions,
    /// How callers whose arguments may change are dealt with. What the plan was extended by.
    pub verify: VerifyOptions,
    /// Paths that rules name: those that matter are watched by the file system, too.
    pub paths: Vec<Vec<u8>>,
}

/// A running engine.
pub struct NotifyEngine<J: Evaluator> {
    shared: Arc<Shared<J>>,
    watchdog: JoinHandle<()>,
}

impl<J: Evaluator + 'static> NotifyEngine<J> {
    /// Starts receivers, tracer and watchdog.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(parts: Parts<J>) -> std::io::Result<Self> {
        let pulse = Arc::new(ReceiverStatus::private()?);
        let ticket = pulse.offer();
        Self::start_watched(parts, pulse, ticket)
    }

    /// As [`NotifyEngine::start`], showing its work to another process, which has offered the right to receive.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, or the offer has been withdrawn. Then no call has been received.
    pub fn start_watched(
        mut parts: Parts<J>,
        pulse: Arc<ReceiverStatus>,
        ticket: ClaimOffer,
    ) -> std::io::Result<Self> {
        watchdog::prepare_signals()?;
        let paths = std::mem::take(&mut parts.paths);
        let verify = parts.verify.verify;
        let pending = std::mem::replace(&mut parts.pending, Box::new(|| Ok(Vec::new())));
        let mut shared = Arc::new(Shared::new(parts, pulse)?);
        shared.names.follow(&paths, &shared.tree.census);
        tripwire::prepare(&mut shared, &paths, verify);
        shared.set_mode_now(Mode::Single);
        // Whoever has the calls may keep them for a while, and then they wait: all is to be there by then.
        shared.gate.close();
        let started = watchdog::start(Arc::clone(&shared));
        let watchdog = started.inspect_err(|_| shared.give_up())?;
        let calls = pending().inspect_err(|_| shared.give_up())?;
        let racy = shared.verifier.adopt(&shared.tree);
        let counter = &shared.counters.racy_processes;
        counter.fetch_add(racy, Ordering::Relaxed);
        let claim = shared.pulse.take(ticket).ok_or_else(|| {
            shared.give_up();
            std::io::Error::other("another engine receives these calls")
        })?;
        // It is set once.
        let _ = shared.claim.set(claim);
        shared.gate.open(calls);
        Ok(Self { shared, watchdog })
    }

    /// Of an engine that has been started already.
    pub(crate) fn assemble(shared: Arc<Shared<J>>, watchdog: JoinHandle<()>) -> Self {
        Self { shared, watchdog }
    }

    /// What all threads share, for those that join them.
    pub(crate) fn shared(&self) -> Arc<Shared<J>> {
        Arc::clone(&self.shared)
    }

    /// The totals so far.
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    /// A handle on the totals that outlives the supervisor.
    pub fn counter_source(&self) -> Arc<dyn Fn() -> CounterSnapshot + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.counters.snapshot())
    }

    /// A handle that replaces the rules.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::new(Arc::clone(&self.shared)))
    }

    /// Whether the last watched process has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Receives no more calls, concludes those it has, and ends; whoever has another copy of the
    /// listener gets the rest. [`NotifyEngine::join`] waits for that.
    pub fn hand_over(&self) {
        self.shared.handing_over.store(true, Ordering::Release);
    }

    /// Keeps the workload's hands off another process of ours.
    pub fn protect(&self, pid: Pid) {
        self.shared.guard.protect(pid);
    }

    /// What does the same, for others than whoever has this.
    pub fn protector(&self) -> Box<dyn Fn(Pid) + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Box::new(move |pid| shared.guard.protect(pid))
    }

    /// Waits until the last watched process has ended and every call has been concluded.
    pub fn join(self) -> CounterSnapshot {
        // The watchdog outlives the receivers and reports panics of theirs itself.
        let _ = self.watchdog.join();
        if let Some(claim) = self.shared.claim.get() {
            claim.release();
        }
        self.shared.counters.snapshot()
    }
}

/// Calls that come again and are remembered before those of threads are dropped that have ended.
const REPEATED: usize = 1024;

/// What all threads of a supervisor share.
pub(crate) struct Shared<J: Evaluator> {
    pub(crate) listener: Listener,
    pub(crate) ruling: ArcSwap<ActiveRules<J>>,
    pub(crate) world: Arc<dyn SystemInfo + Send + Sync>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) counters: Counters,
    pub(crate) notices: Arc<dyn EngineObserver>,
    pub(crate) privileges: privileges::Privileges,
    pub(crate) guard: Guard,
    pub(crate) confiner: ActivePolicy,
    lacked: MissingCaps,
    first: Option<Arc<dyn FirstProgram>>,
    restricted: init_restriction::InitRestrictions,
    gate: Gate,
    pub(crate) unreadable: Unreadable,
    /// A signal cannot take a caller out of a call that was received (Linux 5.19).
    pub(crate) waits_killable: bool,
    /// Calls that were concluded and come again.
    repeated: Mutex<HashMap<Tid, Call>>,
    expects_repeated: AtomicBool,
    pub(crate) verifier: Verifier,
    /// Callers that repeat a call in vain.
    pub(crate) progress: Progress,
    pub(crate) tripwire: Option<Tripwire>,
    /// What rules call files.
    pub(crate) names: Names,
    pub(crate) stuck: stuck::StuckReceivers,
    pub(crate) tracer: TracerHandle,
    pub(crate) events: AtomicU64,
    /// What is shown to whoever watches over this supervisor.
    pub(crate) pulse: Arc<ReceiverStatus>,
    /// The right to receive, once it has been taken. A tracer needs none.
    claim: OnceLock<ReceiveClaim>,
    handing_over: AtomicBool,
    /// Whether descriptors 0..2 have to be kept track of.
    pub(crate) watch_stdio: bool,
    /// Whether it matters what is not a socket, too.
    pub(crate) watch_stdio_any: bool,
    /// By call: whether the filter traps it under some arguments.
    trapped: Vec<bool>,
    mode: Mutex<Mode>,
    mode_changed: Condvar,
    stays_parallel: AtomicBool,
    ended: AtomicBool,
}

impl<J: Evaluator> Shared<J> {
    pub(crate) fn new(parts: Parts<J>, pulse: Arc<ReceiverStatus>) -> std::io::Result<Self> {
        let guard = Guard::new(parts.processes.0.transparent(), parts.guard);
        let names = Names::default();
        if parts.processes.0.may_have_roots() {
            names.expect_roots();
        }
        Ok(Self {
            listener: parts.listener,
            ruling: ArcSwap::from_pointee(ActiveRules::new(parts.judge, &parts.plan)),
            world: parts.world,
            tree: parts.processes.0,
            counters: Counters::default(),
            notices: parts.notices,
            privileges: privileges::Privileges::new().map_err(std::io::Error::other)?,
            guard: guard.map_err(std::io::Error::other)?,
            confiner: ActivePolicy::with_witness(parts.profile, parts.witness),
            lacked: parts.lacked,
            first: parts.first,
            restricted: init_restriction::InitRestrictions::default(),
            gate: Gate::new(),
            unreadable: Unreadable::default(),
            repeated: Mutex::default(),
            expects_repeated: AtomicBool::new(false),
            waits_killable: flags_available(
                FilterFlags::NEW_LISTENER.union(FilterFlags::WAIT_KILLABLE_RECV),
            ),
            verifier: Verifier::new(parts.verify),
            progress: Progress::default(),
            tripwire: None,
            names,
            stuck: stuck::StuckReceivers::default(),
            tracer: TracerHandle::new()?,
            events: AtomicU64::new(0),
            pulse,
            claim: OnceLock::new(),
            handing_over: AtomicBool::new(false),
            watch_stdio: parts.installed.stdio != StdioWatch::Off,
            watch_stdio_any: parts.installed.stdio == StdioWatch::Any,
            trapped: active_rules::by_call(&parts.installed, |_| true),
            mode: Mutex::new(Mode::Single),
            mode_changed: Condvar::new(),
            stays_parallel: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// Lets the threads end that have been started, before one of them received.
    fn give_up(&self) {
        self.handing_over.store(true, Ordering::Release);
        self.end();
        self.gate.open(Vec::new());
    }

    /// Waits until calls may be received. Answers with calls that somebody else has received; whoever gets
    /// them serves them.
    pub(crate) fn await_turn(&self) -> Vec<Notification> {
        self.gate.pass()
    }

    /// Lets a parked call go on. False: nobody waits for the answer.
    pub(crate) fn answer(&self, id: u64) -> bool {
        // A caller that is gone was killed, or the call was withdrawn by a freeze and comes again.
        match self.listener.respond_continue(id) {
            Ok(delivery) => delivery == Delivery::Delivered,
            Err(_) => {
                Counters::add(&self.counters.answer_errors);
                false
            }
        }
    }

    /// Makes a parked call return this without being made, or fail with an error number.
    pub(crate) fn answer_instead(&self, id: u64, answer: Result<i64, i32>) {
        let answered = match answer {
            Ok(value) => self.listener.respond_value(id, value),
            Err(errno) => self.listener.respond_errno(id, errno),
        };
        if answered.is_err() {
            Counters::add(&self.counters.answer_errors);
        }
    }

    /// The result of a call cannot be learnt: says so if another program traces the caller.
    pub(crate) fn note_tracer(&self, call: &Call, process: &Arc<Process>) {
        if let Some(tracer) = self.tree.census.tracer(call.tid)
            && self.verifier.tell(process, verify::ReportedOnce::Traced)
        {
            Counters::add(&self.counters.traced_by_others);
            self.notices.traced_by_another(process, tracer);
        }
    }

    /// A call was concluded, and a signal had taken its caller out of it meanwhile (before 5.19).
    pub(crate) fn expect_repeated(&self, call: &Call) {
        let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads that were killed never make it.
        if repeated.len() >= REPEATED && repeated.len().is_multiple_of(REPEATED) {
            repeated.retain(|tid, _| self.tree.census.thread_group(*tid).is_some());
        }
        repeated.insert(call.tid, *call);
        self.expects_repeated.store(true, Ordering::Release);
    }

    /// Whether a call is such a one, made again. Whatever its thread does first ends the wait.
    pub(crate) fn is_repeated(&self, call: &Call) -> bool {
        if !self.expects_repeated.load(Ordering::Acquire) {
            return false;
        }
        let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
        let first = repeated.remove(&call.tid);
        self.expects_repeated
            .store(!repeated.is_empty(), Ordering::Release);
        let key = |call: &Call| (call.syscall, call.arch, call.args, call.ip);
        first.is_some_and(|first| key(&first) == key(call))
    }

    /// Whether a rule asks for the call; the floor and state keeping do not count.
    pub(crate) fn is_judged(&self, call: &Call) -> bool {
        self.ruling.load().judged[call.syscall.index()]
    }

    /// Whether the filter traps the call under some arguments.
    pub(crate) fn is_trapped(&self, syscall: Syscall) -> bool {
        self.trapped[syscall.index()]
    }

    pub(crate) fn concerns_stdio(&self, call: &Call) -> bool {
        self.watch_stdio && stdio::concerns(call.syscall)
    }

    /// Whether the call changes what is known of its process.
    pub(crate) fn is_state(&self, call: &Call) -> bool {
        names::sets_name(call) || self.concerns_stdio(call) || self.verifier.concerns(call)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Somebody else goes on with the calls to come.
    pub(crate) fn is_handing_over(&self) -> bool {
        let is_withdrawn = |claim: &ReceiveClaim| !claim.is_in_force();
        self.handing_over.load(Ordering::Acquire) || self.claim.get().is_some_and(is_withdrawn)
    }

    /// No watched process is left.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let _mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        self.mode_changed.notify_all();
    }

    /// Adapts to how calls come in, unless a receiver is held up: then both are needed.
    pub(crate) fn adapt(&self, mode: Mode) {
        if mode == Mode::Parallel || !self.stays_parallel.load(Ordering::Acquire) {
            self.set_mode(mode);
        }
    }

    /// Whether a receiver is held up.
    pub(crate) fn stay_parallel(&self, is_held_up: bool) {
        self.stays_parallel.store(is_held_up, Ordering::Release);
        if is_held_up {
            self.set_mode(Mode::Parallel);
        }
    }

    fn set_mode(&self, mode: Mode) {
        let current = *self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        if current != mode {
            self.set_mode_now(mode);
        }
    }

    fn set_mode_now(&self, mode: Mode) {
        // Below 6.6 the flag does not exist and wake-ups are always free.
        let _ = self.listener.set_sync_wake_up(mode == Mode::Single);
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.mode_changed.notify_all();
    }

    /// Waits until the end, but no longer than this.
    pub(crate) fn wait_for_end(&self, limit: std::time::Duration) {
        let mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_ended() {
            let _ = self.mode_changed.wait_timeout(mode, limit);
        }
    }

    /// Holds the second receiver back while callers come one at a time. False: the end.
    pub(crate) fn wait_until_parallel(&self) -> bool {
        let mut mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        while *mode == Mode::Single && !self.has_ended() {
            mode = self
                .mode_changed
                .wait(mode)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !self.has_ended()
    }
}

/// A receiver's place: what the watchdog sees of it.
pub(crate) struct ReceiverSlot {
    /// Inside a read of the caller's memory.
    pub(crate) reading: Arc<BlockingMarker>,
    /// Inside a call that attaches to the caller.
    attaching: BlockingMarker,
    /// Inside a wait for a caller to stop.
    pub(crate) waiting: BlockingMarker,
    order: ReceiverId,
    state: AtomicU32,
    current: Mutex<Notification>,
    /// Callers that did not stop in time wait for this receiver.
    has_abandoned: AtomicBool,
    thread: AtomicI32,
    pulse: SlotStatus,
}

/// Which receiver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverId {
    /// Always receives.
    First,
    /// Receives while callers come in parallel.
    Second,
}

const IDLE: u32 = 0;
const READING: u32 = 1;
const WORKING: u32 = 2;
const RETIRED: u32 = 3;
const ENDED: u32 = 4;
const ATTACHING: u32 = 5;

impl ReceiverSlot {
    pub(crate) fn new(order: ReceiverId, pulse: &Arc<ReceiverStatus>) -> Self {
        Self {
            reading: Arc::new(BlockingMarker::default()),
            attaching: BlockingMarker::default(),
            waiting: BlockingMarker::default(),
            order,
            state: AtomicU32::new(IDLE),
            current: Mutex::new(Notification::default()),
            has_abandoned: AtomicBool::new(false),
            thread: AtomicI32::new(0),
            pulse: pulse.seat(),
        }
    }

    pub(crate) fn is_second(&self) -> bool {
        self.order == ReceiverId::Second
    }

    /// Waits for a call.
    pub(crate) fn receive(
        &self,
        listener: &Listener,
        notification: &mut Notification,
    ) -> sys::Result<Received> {
        self.pulse.receive(listener, notification)
    }

    /// A call was received; until [`ReceiverSlot::proceed`] the watchdog may take it away.
    pub(crate) fn begin(&self, notification: &Notification) {
        self.pulse.received(notification);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = *notification;
        self.state.store(READING, Ordering::Release);
    }

    /// As [`ReceiverSlot::begin`], of a call that another receiver was given.
    pub(crate) fn take_over(&self, notification: &Notification) {
        self.begin(notification);
        self.pulse.took_over(notification);
    }

    /// From here to [`ReceiverSlot::attached`] the watchdog may take the call away, too.
    pub(crate) fn begin_attaching(&self) {
        self.state.store(ATTACHING, Ordering::Release);
        self.attaching.enter();
    }

    /// The receiver has attached to the caller, or was refused. False: the call was taken away.
    pub(crate) fn attached(&self) -> bool {
        self.attaching.leave();
        self.leaves(ATTACHING)
    }

    /// The call has been dealt with.
    pub(crate) fn done(&self) {
        self.pulse.done();
    }

    /// The caller's memory has been read. False: the call was taken away.
    pub(crate) fn proceed(&self) -> bool {
        self.leaves(READING)
    }

    /// The same call's memory is about to be read once more.
    pub(crate) fn read_again(&self) {
        // Where the call was inherited nobody takes it away.
        let _ = self
            .state
            .compare_exchange(WORKING, READING, Ordering::AcqRel, Ordering::Acquire);
    }

    fn leaves(&self, state: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let exchange = self
            .state
            .compare_exchange(state, WORKING, success, failure);
        exchange != Err(RETIRED)
    }

    /// What the receiver is inside of that may not end, and since which time it came to that.
    pub(crate) fn inside(&self, hazard: BlockingOperation) -> Option<u64> {
        match hazard {
            BlockingOperation::Attaching => self.attaching.inside(),
            BlockingOperation::Reading => self.reading.inside(),
        }
    }

    /// Takes the call away from a receiver that is stuck.
    pub(crate) fn retire(&self, hazard: BlockingOperation) -> Option<Notification> {
        let state = match hazard {
            BlockingOperation::Attaching => ATTACHING,
            BlockingOperation::Reading => READING,
        };
        self.state
            .compare_exchange(state, RETIRED, Ordering::AcqRel, Ordering::Acquire)
            .ok()
            .map(|_| self.current())
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state.load(Ordering::Acquire) == RETIRED
    }

    /// The receiver has left.
    pub(crate) fn end(&self) {
        self.state.store(ENDED, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED
    }

    pub(crate) fn set_has_abandoned(&self, has_abandoned: bool) {
        self.has_abandoned.store(has_abandoned, Ordering::Release);
    }

    pub(crate) fn has_abandoned(&self) -> bool {
        self.has_abandoned.load(Ordering::Acquire)
    }

    /// The call being looked at.
    pub(crate) fn current(&self) -> Notification {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_thread(&self, tid: i32) {
        self.thread.store(tid, Ordering::Release);
    }

    pub(crate) fn thread(&self) -> i32 {
        self.thread.load(Ordering::Acquire)
    }
}

/// Starts the tracer in a thread of its own.
pub(crate) fn spawn_tracer<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let child_signals = SignalStream::new(SignalSet::of(&[watchdog::SIGCHLD]))?;
    std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn(move || Tracer::new(shared).run(&child_signals))
}
