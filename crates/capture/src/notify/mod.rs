//! Capture engine `notify`: seccomp user notification.
//!
//! The workload runs under one seccomp filter, compiled from the interest plan. The filter parks a thread in
//! each planned call and notifies the supervisor. A *receiver* inspects the call in stages ([`event::Stage`])
//! and lets it go as soon as no rule can match any more. Where the result is needed it stops the caller once
//! after the call (`escalation`). Calls that sleep, and processes with a standard descriptor closed, are
//! followed by the *tracer* (`tracer`). The *watchdog* replaces a receiver that a hostile page holds up.
//!
//! No event can be dropped: a caller waits until its call was inspected.

mod active_rules;
mod argument_check;
mod awaited;
mod burial;
mod claim;
mod confine;
mod denial_paths;
mod denials;
mod denied_call;
pub(crate) mod escalation;
mod gate;
pub(crate) mod guard;
mod init_restriction;
mod interruption;
mod losses;
mod mediate;
pub(crate) mod names;
mod obstacle;
mod open_flags;
mod opened_in_place;
mod privileges;
mod proc_entries;
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
use std::net::IpAddr;
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
pub use decoder::runtime_process::RuntimeProcess;
use decoder::tree::InitProgramState;
use decoder::tree::{Setup, Tree};
pub use denials::plan_denials;
use gate::Gate;
use guard::Guard;
pub use guard::{GuardOptions, Intrusion, IntrusionTarget, Response, StandInAnswer, StandInGuard};
pub use init_restriction::{Caller, FirstProgram};
pub use losses::{Losses, ProcessLoss};
pub use names::plan_renames;
pub use obstacle::AccessObstacle;
use obstacle::Unreadable;
pub(crate) use obstacle::obstacle;
pub use privileges::{Privilege, WithheldPrivileges};
use progress::Progress;
pub use receiver_status::{Health, HeldCall, ReceiverStatus, SlotStatus};
pub use setup::{AnswerThread, HeldCalls, call_words, calls_from_words};
use spare_threads::BlockingOperation;
use tracer::{Tracer, TracerHandle};
pub use undecided::Cause;
use verify::Verifier;
pub use verify::{ALARM_NS, BUDGET, SAMPLE, Verify, VerifyOptions};
use wake_up::Mode;

use crate::tripwire::Tripwire;
use decoder::names::Names;
use decoder::stdio;
use decoder::system_info::ProcessIndex;
use process_info::memory::BlockingMarker;

/// Answer to a process that asks for an io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingAnswer {
    /// The request fails.
    Refused,
    /// The process gets a ring; its calls through the ring are not seen.
    Unseen,
    /// The process gets a ring. Opens through it are events; its other calls that rules ask for are reported.
    Followed,
}

impl RingAnswer {
    /// Returns the answer of an engine that does not see a ring's calls.
    pub(crate) fn unseen(denied: bool) -> Self {
        if denied { Self::Refused } else { Self::Unseen }
    }
}

/// Observer of an engine: receives its reports about itself.
pub trait EngineObserver: Send + Sync {
    /// Reports that these rules were not decided for the event, because data was unavailable.
    fn undecided(&self, event: &Event<'_>, rules: &[Arc<str>]);
    /// Reports that a read of the caller's memory missed its deadline; the call was inspected without it.
    fn read_timed_out(&self, pid: Pid);
    /// Reports that attaching to a thread of the process failed while it executes a program whose file does
    /// not come; the call was inspected without its result.
    fn attaching_timed_out(&self, pid: Pid) {
        let _ = pid;
    }
    /// Reports that a thread repeats a call that gets no result while the engine asks for it. The thread's
    /// calls are let go, and their results are not learned. Reported once for each such row of calls.
    fn no_progress(&self, process: &Process, tid: Tid, call: &'static str) {
        let _ = (process, tid, call);
    }
    /// Reports that a process gave itself a name that a rule compares with, and that it did not have at exec.
    /// Reported once for each process and name.
    fn renamed(&self, process: &Process, name: Comm) {
        let _ = (process, name);
    }
    /// Reports an attempt against the monitor's processes, or a process that made itself unreadable.
    fn intrusion(&self, process: &Process, intrusion: &Intrusion) {
        let _ = (process, intrusion);
    }
    /// Reports a call that a policy denies or watches.
    fn violation(&self, event: &Event<'_>, violation: &Violation<'_>) {
        let _ = (event, violation);
    }
    /// Asks whether a process may connect to a peer that the policy's list does not have. The process waits.
    fn allows_connect(&self, process: &Process, peer: &str) -> bool {
        let _ = (process, peer);
        false
    }
    /// Returns the addresses that a host name has now.
    ///
    /// # Errors
    ///
    /// If they cannot be looked up.
    fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Err(std::io::Error::other(format!("cannot look up {name}")))
    }
    /// Reports at a call that its process cannot be read. Reported once for each process.
    fn unreadable(&self, process: &Process, call: &'static str, obstacle: AccessObstacle) {
        let _ = (process, call, obstacle);
    }
    /// Reports that a program does not get the privileges of its file. Reported once for each file.
    fn privileges_withheld(&self, pid: Pid, withheld: &WithheldPrivileges) {
        let _ = (pid, withheld);
    }
    /// Reports that the arguments in the caller's memory changed: the kernel did something else than they had said.
    fn arguments_changed(&self, change: &ArgumentChange<'_>) {
        let _ = change;
    }
    /// Reports that another program traces the process, so that results of its calls are not learned.
    /// Reported once for each process.
    fn traced_by_another(&self, process: &Process, tracer: Pid) {
        let _ = (process, tracer);
    }
    /// Reports a request for an io_uring, whose calls pass no hook of calls. Reported once for each process.
    fn ring(&self, process: &Process, answer: RingAnswer) {
        let _ = (process, answer);
    }
    /// Reports a call through an io_uring that rules ask for, and that is no event. Reported once for each
    /// process and operation.
    fn ring_call(&self, process: &Process, operation: &str) {
        let _ = (process, operation);
    }
    /// Reports that a file that rules name was opened without a call that the engine saw.
    fn opened_unseen(&self, path: &[u8]) {
        let _ = path;
    }
    /// Reports that the file system could not report all opens.
    fn tripwire_overflowed(&self) {}
    /// Reports records dropped since the last report a second ago. Returns whether the engine may go on.
    fn events_dropped(&self, losses: &Losses) -> ControlFlow<()> {
        let _ = losses;
        ControlFlow::Continue(())
    }
    /// Reports that the engine cannot do something that it should.
    fn engine_trouble(&self, error: &(dyn std::error::Error + 'static)) {
        let _ = error;
    }
    /// Reports that a process that should be watched cannot be. `has_entered`: the process comes from
    /// outside; else its origin is uncertain.
    fn unwatched(&self, pid: Pid, name: &str, why: &str, has_entered: bool) {
        let _ = (pid, name, why, has_entered);
    }
}

/// Arguments that changed during a call.
#[derive(Debug)]
pub struct ArgumentChange<'a> {
    /// The calling process.
    pub process: &'a Process,
    /// The calling thread.
    pub tid: Tid,
    /// The kind of the call.
    pub kind: EventKind,
    /// Arguments as they had been read, if they could be.
    pub given: Option<String>,
    /// Arguments that the kernel used.
    pub truth: String,
}

/// The processes that the engine has seen; shared with the system information so that it can name them.
#[derive(Clone)]
pub struct Processes(Arc<Tree>);

impl Processes {
    /// Creates an empty tree. `transparent`: processes of the agent between the workload and the process that
    /// started it; rules do not see them as ancestors.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub fn new(transparent: Vec<Pid>) -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self(Arc::new(Tree::new(transparent)?)))
    }

    /// Creates an empty tree for an engine that does not see births: it marks processes in their limit on
    /// file locks, from which their children are recognised.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub fn with_marks(transparent: Vec<Pid>) -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self(Arc::new(Tree::new(transparent)?.with_marks())))
    }

    /// Declares the workload's first process a container runtime, which shares this process's mounts. The
    /// container begins with the first program that runs in other mounts, and the runtime's own calls are not
    /// evaluated.
    ///
    /// # Errors
    ///
    /// If this process's mount namespace cannot be read.
    pub fn with_setup(self) -> Result<Self, process_info::procfs::ProcError> {
        let own = std::process::id().cast_signed();
        let mount_namespace = process_info::procfs::Proc::open()?.namespace(own, "ns/mnt")?;
        let tree = Arc::into_inner(self.0).expect("nobody else has it yet");
        Ok(Self(Arc::new(tree.with_setup(Setup { mount_namespace }))))
    }

    /// Enters a running workload: all descendants of a transparent process. If the container's first program
    /// has not begun yet (`InitProgramState::No`), all of them belong to the runtime.
    pub fn adopt(&self, begun: InitProgramState) {
        self.0.adopt(begun);
    }

    /// Enters the runtime that starts a session, which may have ended.
    pub fn begin_with(&self, runtime: &RuntimeProcess) {
        self.0.begin_with(runtime);
    }

    /// Returns a process that has been seen.
    pub fn find(&self, pid: Pid) -> Option<Arc<Process>> {
        self.0.find(pid)
    }
}

/// Knows the processes that the engine has seen; any other process is unknown.
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

/// Asks another process to stop receiving, and returns the calls that it holds.
pub type Pending = Box<dyn FnOnce() -> std::io::Result<Vec<Notification>> + Send>;

/// Returns missing capabilities when a call failed; see [`Parts::lacked`].
pub type MissingCaps = Arc<dyn Fn() -> Capabilities + Send + Sync>;

/// Components of a supervisor.
pub struct Parts<J: Evaluator> {
    /// Listener of the filter that was compiled from `installed`.
    pub listener: Listener,
    /// Calls that the filter traps.
    pub installed: Plan,
    /// Calls that the rules ask for; a subset of those that the filter traps.
    pub plan: Plan,
    /// The policy on calls, which the filter was also compiled from.
    pub profile: Profile,
    /// Classifies failures as denials by other enforcers than the filter.
    pub classifier: DenialClassifier,
    /// Capabilities that the workload would lack without the policy too, as far as they are known only when
    /// it begins.
    pub lacked: MissingCaps,
    /// Restrictions of a container's first program, applied before it begins.
    pub first: Option<Arc<dyn FirstProgram>>,
    /// Returns the calls that another process has received and holds. Called when everything else is ready,
    /// including threads, because from then on no call is answered until the receivers answer.
    pub pending: Pending,
    /// Evaluates events.
    pub evaluator: Arc<J>,
    /// Answers questions about data that events do not carry.
    pub world: Arc<dyn SystemInfo + Send + Sync>,
    /// The processes that the system information knows, too.
    pub processes: Processes,
    /// Receives reports about the engine itself.
    pub notices: Arc<dyn EngineObserver>,
    /// Options for the protection of the monitor's processes.
    pub guard: GuardOptions,
    /// Options for callers whose arguments may change. The plan was extended by them.
    pub verify: VerifyOptions,
    /// Paths that rules name; the sensitive ones are also watched through the file system.
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

    /// As [`NotifyEngine::start`], with its status shared with another process, which has offered the right
    /// to receive.
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
        shared.names.follow(&paths, &shared.tree.inspector);
        tripwire::prepare(&mut shared, &paths, verify);
        shared.set_mode_now(Mode::Single);
        // The process that holds the calls may take a while, and callers wait: start everything else first.
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
        // The cell is set once.
        let _ = shared.claim.set(claim);
        shared.gate.open(calls);
        Ok(Self { shared, watchdog })
    }

    /// Builds the handle of an engine that has been started already.
    pub(crate) fn assemble(shared: Arc<Shared<J>>, watchdog: JoinHandle<()>) -> Self {
        Self { shared, watchdog }
    }

    /// Returns the state that all threads share, for the threads that join them.
    pub(crate) fn shared(&self) -> Arc<Shared<J>> {
        Arc::clone(&self.shared)
    }

    /// Returns the current totals.
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    /// Returns a source of the totals that outlives the supervisor.
    pub fn counter_source(&self) -> Arc<dyn Fn() -> CounterSnapshot + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.counters.snapshot())
    }

    /// Returns a handle that replaces the rules.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::new(Arc::clone(&self.shared)))
    }

    /// Returns whether the last watched process has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Stops receiving, finishes the calls in progress, and ends; another holder of the listener gets the
    /// rest. [`NotifyEngine::join`] waits for that.
    pub fn hand_over(&self) {
        self.shared.handing_over.store(true, Ordering::Release);
    }

    /// Protects another process of this program from the workload.
    pub fn protect(&self, pid: Pid) {
        self.shared.guard.protect(pid);
    }

    /// Returns a function that protects processes, for other owners than the engine's.
    pub fn protector(&self) -> Box<dyn Fn(Pid) + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Box::new(move |pid| shared.guard.protect(pid))
    }

    /// Waits until the last watched process has ended and every call has been evaluated.
    pub fn join(self) -> CounterSnapshot {
        // The watchdog outlives the receivers and reports their panics itself.
        let _ = self.watchdog.join();
        if let Some(claim) = self.shared.claim.get() {
            claim.release();
        }
        self.shared.counters.snapshot()
    }
}

/// Number of expected repeated calls above which those of ended threads are dropped.
const REPEATED: usize = 1024;

/// State that all threads of a supervisor share.
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
    /// True if a signal cannot take a caller out of a call that was received (Linux 5.19).
    pub(crate) waits_killable: bool,
    /// Calls that were evaluated and will be made again.
    repeated: Mutex<HashMap<Tid, Call>>,
    expects_repeated: AtomicBool,
    pub(crate) verifier: Verifier,
    mediator: mediate::Mediator,
    /// Tracker of callers that repeat a call without progress.
    pub(crate) progress: Progress,
    pub(crate) tripwire: Option<Tripwire>,
    /// Names that rules have for files.
    pub(crate) names: Names,
    pub(crate) stuck: stuck::StuckReceivers,
    pub(crate) tracer: TracerHandle,
    pub(crate) events: AtomicU64,
    /// Status that the process that supervises this one reads.
    pub(crate) pulse: Arc<ReceiverStatus>,
    /// The right to receive, once it has been taken. A tracer needs none.
    claim: OnceLock<ReceiveClaim>,
    handing_over: AtomicBool,
    /// True if the state of descriptors 0..2 must be tracked.
    pub(crate) watch_stdio: bool,
    /// True if a `dup` of other files than sockets matters, too.
    pub(crate) watch_stdio_any: bool,
    /// By call: true if the filter traps it under some arguments.
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
            ruling: ArcSwap::from_pointee(ActiveRules::new(parts.evaluator, &parts.plan)),
            world: parts.world,
            tree: parts.processes.0,
            counters: Counters::default(),
            notices: parts.notices,
            privileges: privileges::Privileges::new().map_err(std::io::Error::other)?,
            guard: guard.map_err(std::io::Error::other)?,
            confiner: ActivePolicy::with_classifier(parts.profile, parts.classifier),
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
            mediator: mediate::Mediator::default(),
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

    /// Ends the threads that have been started, before any of them received.
    fn give_up(&self) {
        self.handing_over.store(true, Ordering::Release);
        self.end();
        self.gate.open(Vec::new());
    }

    /// Waits until calls may be received. Returns calls that another process has received; the thread that
    /// gets them serves them.
    pub(crate) fn await_turn(&self) -> Vec<Notification> {
        self.gate.pass()
    }

    /// Lets a parked call go on. Returns false if no caller waits for the answer.
    pub(crate) fn answer(&self, id: u64) -> bool {
        // A missing caller was killed, or a freeze withdrew the call, which will be made again.
        match self.listener.respond_continue(id) {
            Ok(delivery) => delivery == Delivery::Delivered,
            Err(_) => {
                Counters::add(&self.counters.answer_errors);
                false
            }
        }
    }

    /// Answers a parked call with a result or an error number, without making it.
    pub(crate) fn answer_instead(&self, id: u64, answer: Result<i64, i32>) {
        let answered = match answer {
            Ok(value) => self.listener.respond_value(id, value),
            Err(errno) => self.listener.respond_errno(id, errno),
        };
        if answered.is_err() {
            Counters::add(&self.counters.answer_errors);
        }
    }

    /// Notes that the result of a call cannot be learned: reports another program that traces the caller.
    pub(crate) fn note_tracer(&self, call: &Call, process: &Arc<Process>) {
        if let Some(tracer) = self.tree.inspector.tracer(call.tid)
            && self.verifier.tell(process, verify::ReportedOnce::Traced)
        {
            Counters::add(&self.counters.traced_by_others);
            self.notices.traced_by_another(process, tracer);
        }
    }

    /// Notes a call that was evaluated, and that a signal had withdrawn meanwhile (before 5.19).
    pub(crate) fn expect_repeated(&self, call: &Call) {
        let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads that were killed never make the call again.
        if repeated.len() >= REPEATED && repeated.len().is_multiple_of(REPEATED) {
            repeated.retain(|tid, _| self.tree.inspector.thread_group(*tid).is_some());
        }
        repeated.insert(call.tid, *call);
        self.expects_repeated.store(true, Ordering::Release);
    }

    /// Returns whether a call is such a repeated one. The thread's next call, whichever it is, ends the wait.
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

    /// Returns whether a rule asks for the call; calls trapped always or for state do not count.
    pub(crate) fn is_evaluated(&self, call: &Call) -> bool {
        self.ruling.load().evaluated[call.syscall.index()]
    }

    /// Returns whether the filter traps the call under some arguments.
    pub(crate) fn is_trapped(&self, syscall: Syscall) -> bool {
        self.trapped[syscall.index()]
    }

    pub(crate) fn concerns_stdio(&self, call: &Call) -> bool {
        self.watch_stdio && stdio::concerns(call.syscall)
    }

    /// Returns whether the call changes the known state of its process.
    pub(crate) fn is_state(&self, call: &Call) -> bool {
        names::sets_name(call) || self.concerns_stdio(call) || self.verifier.concerns(call)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether another engine takes over the calls to come.
    pub(crate) fn is_handing_over(&self) -> bool {
        let is_withdrawn = |claim: &ReceiveClaim| !claim.is_in_force();
        self.handing_over.load(Ordering::Acquire) || self.claim.get().is_some_and(is_withdrawn)
    }

    /// Ends the engine: no watched process is left.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let _mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        self.mode_changed.notify_all();
    }

    /// Adapts to the rate of calls, unless a receiver is held up: then both are needed.
    pub(crate) fn adapt(&self, mode: Mode) {
        if mode == Mode::Parallel || !self.stays_parallel.load(Ordering::Acquire) {
            self.set_mode(mode);
        }
    }

    /// Notes whether a receiver is held up.
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
        // Below Linux 6.6 the flag does not exist and wake-ups are never synchronous.
        let _ = self.listener.set_sync_wake_up(mode == Mode::Single);
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.mode_changed.notify_all();
    }

    /// Waits until the end, at most for `limit`.
    pub(crate) fn wait_for_end(&self, limit: std::time::Duration) {
        let mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_ended() {
            let _ = self.mode_changed.wait_timeout(mode, limit);
        }
    }

    /// Holds the second receiver back while callers come one at a time. Returns false at the end.
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

/// A receiver's slot: the state that the watchdog sees.
pub(crate) struct ReceiverSlot {
    /// Set during a read of the caller's memory.
    pub(crate) reading: Arc<BlockingMarker>,
    /// Set while attaching to the caller.
    attaching: BlockingMarker,
    /// Set while waiting for a caller to stop.
    pub(crate) waiting: BlockingMarker,
    order: ReceiverId,
    state: AtomicU32,
    current: Mutex<Notification>,
    /// True if the receiver has callers that did not stop in time.
    has_abandoned: AtomicBool,
    thread: AtomicI32,
    pulse: SlotStatus,
}

/// Number of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverId {
    /// The receiver that always receives.
    First,
    /// The receiver that receives while callers come in parallel.
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

    /// Begins a call that was received; until [`ReceiverSlot::proceed`] the watchdog may take it away.
    pub(crate) fn begin(&self, notification: &Notification) {
        self.pulse.received(notification);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = *notification;
        self.state.store(READING, Ordering::Release);
    }

    /// As [`ReceiverSlot::begin`], for a call that another receiver had received.
    pub(crate) fn take_over(&self, notification: &Notification) {
        self.begin(notification);
        self.pulse.took_over(notification);
    }

    /// Marks the start of attaching. Until [`ReceiverSlot::attached`] the watchdog may take the call away, too.
    pub(crate) fn begin_attaching(&self) {
        self.state.store(ATTACHING, Ordering::Release);
        self.attaching.enter();
    }

    /// Marks the end of attaching, successful or not. Returns false if the call was taken away.
    pub(crate) fn attached(&self) -> bool {
        self.attaching.leave();
        self.leaves(ATTACHING)
    }

    /// Marks the call as done.
    pub(crate) fn done(&self) {
        self.pulse.done();
    }

    /// Marks the end of reading the caller's memory. Returns false if the call was taken away.
    pub(crate) fn proceed(&self) -> bool {
        self.leaves(READING)
    }

    /// Marks the start of another read of the same call's memory.
    pub(crate) fn read_again(&self) {
        // A call that was inherited is never taken away.
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

    /// Returns since when the receiver has been in an operation that may block, if it is in one.
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

    /// Marks the receiver as ended.
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

    /// Returns the call in progress.
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

/// Starts the tracer in its own thread.
pub(crate) fn spawn_tracer<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let child_signals = SignalStream::new(SignalSet::of(&[watchdog::SIGCHLD]))?;
    std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn(move || Tracer::new(shared).run(&child_signals))
}
