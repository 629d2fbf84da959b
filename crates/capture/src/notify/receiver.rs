//! The hot loop of a receiver: receive, inspect, let go.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::Errno;
use abi::constant::{CLONE_VFORK, PTRACE_TRACEME};
use bumpalo::Bump;
use event::{Descriptor, Evaluator, LiveProcess, Outcome, Process, Relevance, Stage, Tid};

use sys::notify::{AddMode, Received};
use sys::poll::{self, PollFd};
use sys::time::{Clock, now_ns};

use super::confine::Decision;
use super::escalation::{self, LateStops, Stop};
use super::guard::Guard;
use super::interruption;
use super::names;
use super::progress::CallDecision;
use super::spare_threads::{BlockingOperation, UnfinishedCall};
use super::tracer::{CallOwner, FollowedCall, TracerRequest};
use super::verify::{self, ReportedOnce};
use super::wake_up::ArrivalWatcher;
use super::worker::{CallEvaluator, CallView, Role};
use super::{ReceiverSlot, RingAnswer, Shared, init_restriction, mediate, opened_in_place};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode;
use decoder::lineage;
use decoder::linked_file::{self, LinkedFile};
use decoder::stdio;
use process_info::memory::{Access, Memory};

/// Number of bytes kept by the arena between calls; an arena that has grown beyond it is replaced.
const ARENA_KEEP: usize = 256 * 1024;
/// Maximum wait for calls while the receiver has callers that did not stop in time.
const ABANDONED_POLL: Duration = Duration::from_millis(10);
/// Time for which an ending receiver waits for such callers.
const LAST_STOPS: Duration = Duration::from_millis(500);
/// Maximum number of tries to seize a caller that another of our threads still holds, and the pause between.
const SEIZE_TRIES: u32 = 500;
/// Maximum number of failed tries while none of our threads holds it.
const IDLE_TRIES: u32 = 2;
const SEIZE_PAUSE: Duration = Duration::from_micros(100);
/// A call that came within this time of the last answer, in nanoseconds, was waiting already.
const WAITING_NS: u64 = 900;

/// One receiver thread.
pub(crate) struct Receiver<J: Evaluator> {
    pub(super) worker: CallEvaluator<J>,
    pub(super) seat: Arc<ReceiverSlot>,
    pub(super) memory: Memory,
    arena: Bump,
    arrivals: ArrivalWatcher,
    last_answer_ns: u64,
    last_tid: i32,
    /// Seized callers that did not stop in time; they are checked between calls.
    abandoned: HashMap<i32, FollowedCall>,
}

impl<J: Evaluator + 'static> Receiver<J> {
    pub(crate) fn new(shared: Arc<Shared<J>>, seat: Arc<ReceiverSlot>) -> Self {
        let memory = Memory::new(Arc::clone(&seat.reading));
        Self {
            worker: CallEvaluator::new(shared),
            seat,
            memory,
            arena: Bump::with_capacity(16 * 1024),
            arrivals: ArrivalWatcher::default(),
            last_answer_ns: 0,
            last_tid: 0,
            abandoned: HashMap::new(),
        }
    }

    /// Serves calls until the last watched process has ended or this receiver was replaced. `unfinished`: the
    /// call that the predecessor got stuck with.
    pub(crate) fn run(mut self, unfinished: Option<UnfinishedCall>) {
        if let Some(unfinished) = unfinished {
            let access = match unfinished.hazard {
                BlockingOperation::Attaching => self.access(&unfinished.notification),
                BlockingOperation::Reading => Access::Refused,
            };
            self.seat.take_over(&unfinished.notification);
            self.serve_begun(&unfinished.notification, access);
        }
        for pending in self.worker.shared.await_turn() {
            let access = self.access(&pending);
            self.seat.take_over(&pending);
            self.serve_begun(&pending, access);
        }
        let mut notification = sys::notify::Notification::default();
        while !self.seat.is_retired() && self.may_receive() {
            let listener = &self.worker.shared.listener;
            match self.seat.receive(listener, &mut notification) {
                Ok(Received::Notification) => {
                    self.note_arrival(&notification);
                    let access = self.access(&notification);
                    self.serve(&notification, access);
                    self.last_answer_ns = now_ns(Clock::Monotonic);
                }
                // The watchdog sent a signal, or the caller was killed before the call was received.
                Ok(Received::Interrupted | Received::CallerGone | Received::WouldBlock) => {}
                Err(_) => break,
            }
        }
        self.leave();
    }

    /// Returns which part of the caller's memory may be read.
    fn access(&self, notification: &sys::notify::Notification) -> Access {
        let shared = &self.worker.shared;
        let caller = Tid(notification.tid);
        shared.stuck.access(caller, &shared.tree.inspector)
    }

    fn serve(&mut self, notification: &sys::notify::Notification, access: Access) {
        self.seat.begin(notification);
        self.serve_begun(notification, access);
    }

    fn serve_begun(&mut self, notification: &sys::notify::Notification, access: Access) {
        self.memory.allow(access);
        self.handle(notification);
        self.seat.done();
    }

    /// Waits a while for callers that have not stopped yet, as their attachment ends with this thread, and
    /// finishes the calls that can no longer be waited for. At the end of the workload there are none.
    fn leave(&mut self) {
        let deadline = Instant::now() + LAST_STOPS;
        while !self.abandoned.is_empty() && Instant::now() < deadline {
            self.serve_abandoned();
            std::thread::sleep(ABANDONED_POLL);
        }
        for followed in std::mem::take(&mut self.abandoned).into_values() {
            Counters::add(&self.worker.shared.counters.escalation_refused);
            followed.finish(&mut self.worker, Outcome::Unlearnt, &Bump::new());
        }
    }

    /// Waits until there may be a call to receive; returns false when none can come any more.
    fn may_receive(&mut self) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        if shared.has_ended() || (self.seat.is_second() && !shared.wait_until_parallel()) {
            return false;
        }
        if shared.is_handing_over() {
            return false;
        }
        while !self.abandoned.is_empty() && !shared.has_ended() {
            self.serve_abandoned();
            if is_readable_within(&shared.listener, ABANDONED_POLL) {
                break;
            }
        }
        true
    }

    fn note_arrival(&mut self, notification: &sys::notify::Notification) {
        let now = now_ns(Clock::Monotonic);
        let other = notification.tid != self.last_tid;
        self.last_tid = notification.tid;
        let waited = now.saturating_sub(self.last_answer_ns);
        if let Some(mode) = self.arrivals.record(other && waited < WAITING_NS) {
            self.worker.shared.adapt(mode);
        }
    }

    fn handle(&mut self, notification: &sys::notify::Notification) {
        let shared = Arc::clone(&self.worker.shared);
        let counters = &shared.counters;
        Counters::add(&counters.trapped);
        let Some(call) = Call::decode(notification, &self.memory) else {
            Counters::add(&counters.unknown_calls);
            let is_denied = shared.denied_caller(notification).is_some();
            match is_denied || shared.confiner.refuses_unknown() {
                true => shared.answer_instead(notification.id, Err(Errno::ENOSYS.0)),
                false => drop(shared.answer(notification.id)),
            }
            return;
        };
        shared.names.note(&call);
        let mut denied = shared.denied_caller(notification);
        if shared.tracer.is_active() {
            // A repeated call was inspected before, and the policy's decision on it was reported.
            if self.belongs_to_tracer(&call, denied.is_some()) {
                return;
            }
            // The answer to an alert about a call that ended there may withhold this one.
            denied = denied.or_else(|| shared.denied_caller(notification));
        }
        if let Some(process) = denied {
            return self.deny(&call, &process);
        }
        // First: a refused call is not to be made, whatever else waits for it.
        if self.is_mediated(&call, notification) {
            return;
        }
        if self.is_refused(&call) {
            return;
        }
        if shared.is_repeated(&call) {
            Counters::add(&counters.withdrawn);
            shared.answer(call.id);
            return;
        }
        if let Some(answer) = lineage::answer_to(&call) {
            return shared.answer_instead(call.id, answer);
        }
        if Guard::concerns(call.syscall) && self.is_intrusion(&call) {
            return;
        }
        let role = Role::of(&call);
        let is_state = shared.is_state(&call);
        let is_watched = shared.confiner.watches(&call) || shared.verifier.looks_at(&call);
        if role == Role::Plain && !shared.is_evaluated(&call) && !is_state && !is_watched {
            Counters::add(&counters.unevaluated);
            shared.answer(call.id);
            return;
        }
        let arena = std::mem::take(&mut self.arena);
        self.look(&call, role, &arena);
        self.arena = recycled(arena);
    }

    /// Has a connect made in the caller's place; returns false if the call goes on.
    fn is_mediated(&self, call: &Call, notification: &sys::notify::Notification) -> bool {
        let shared = &self.worker.shared;
        if !shared.confiner.mediates(call) {
            return false;
        }
        match self.caller(call) {
            Some(caller) => mediate::hold(Arc::clone(shared), *call, *notification, caller),
            None => Counters::add(&shared.counters.gone),
        }
        true
    }

    /// Reports and refuses the calls that the policy denies; returns false if the call goes on.
    pub(super) fn is_refused(&mut self, call: &Call) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let Some(decision) = shared.confiner.decide(call) else {
            return false;
        };
        let refusal = decision.violation.errno;
        if refusal.is_none() && !decision.is_reported {
            return false;
        }
        // The policy is the container's, not that of the runtime that makes it.
        if shared.tree.has_setup() && self.caller(call).is_some_and(|caller| caller.sets_up()) {
            return false;
        }
        let arena = std::mem::take(&mut self.arena);
        let is_ours = self.violates(call, &decision, &arena);
        self.arena = recycled(arena);
        if !is_ours {
            return true;
        }
        match refusal {
            Some(errno) => shared.answer_instead(call.id, Err(errno.0)),
            None => self.seat.read_again(),
        }
        refusal.is_some()
    }

    /// Reports a violation, and evaluates a call that fails. Returns false if a successor has the call.
    fn violates(&mut self, call: &Call, decision: &Decision<'_>, arena: &Bump) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let time_ns = now_ns(Clock::Real);
        let mut decoded = decode::decode(call, &self.memory, arena);
        if !self.seat.proceed() {
            return false;
        }
        let Some(process) = self.caller(call) else {
            Counters::add(&shared.counters.gone);
            return true;
        };
        let refusal = decision.violation.errno;
        let outcome = refusal.map_or(Outcome::Pending, |errno| {
            Outcome::Returned(-i64::from(errno.0))
        });
        decoded = match refusal {
            Some(_) => decoded.returned(call, outcome, arena),
            None => decoded,
        };
        if let Some(descriptor) = decoded.descriptor {
            let result = refusal.map(|errno| -i64::from(errno.0));
            let inspector = &shared.tree.inspector;
            let pid = process.pid;
            let resolved = decode::resolve(inspector, call, descriptor, result, pid, arena);
            decoded.descriptor = Some(resolved);
        }
        if !shared.listener.is_valid(call.id).unwrap_or(false) {
            // The data that was read may belong to another process by now.
            Counters::add(&shared.counters.gone);
            return true;
        }
        let live = LiveProcess::default();
        let view = CallView::at_entry(call, time_ns, decoded, &live, arena).returned(outcome);
        if decision.is_reported {
            Counters::add(&shared.counters.violations);
            self.worker
                .tell_violation(&view, &process, &decision.violation);
        }
        if refusal.is_some() && shared.is_evaluated(call) {
            self.worker.conclude(&view, Stage::Exit, &process);
        }
        true
    }

    fn look(&mut self, call: &Call, role: Role, arena: &Bump) {
        let shared = Arc::clone(&self.worker.shared);
        let counters = &shared.counters;
        let time_ns = now_ns(Clock::Real);
        let mut decoded = decode::decode(call, &self.memory, arena);
        self.worker.doubt(call, &mut decoded, &self.memory);
        let new_name = names::given(call, &self.memory, arena);
        if !self.seat.proceed() {
            // A read missed its deadline and the watchdog has given this call to a successor.
            return;
        }
        counters.note_unreadable(&decoded);
        if decoded.gone && !shared.listener.is_valid(call.id).unwrap_or(false) {
            Counters::add(&counters.gone);
            return;
        }
        let live = LiveProcess::default();
        let mut view = CallView::at_entry(call, time_ns, decoded, &live, arena);
        self.worker.name_file(&mut view);
        if self.opens_in_place(&view) {
            return;
        }
        if role == Role::Plain && !shared.is_state(call) && self.rejects_unnamed(&mut view) {
            self.let_go(&view, None);
            return;
        }
        if let Some(tripwire) = &shared.tripwire {
            self.worker.account(tripwire, call, &view.decoded);
        }
        let Some(process) = self.caller(call) else {
            Counters::add(&counters.gone);
            shared.answer(call.id);
            return;
        };
        if view.decoded.refused && !self.memory.is_limited() && !process.sets_up() {
            self.tell_unreadable(call, &process);
        }
        if role == Role::Exec {
            self.exec(&view, &process);
            return;
        }
        if let Some(name) = new_name {
            self.worker.note_thread_name(call.tid, &process, name);
        }
        self.keep_stdio(call, &process);
        if self.note_state(&mut view, &process) {
            return;
        }
        if shared.is_evaluated(call) {
            return self.evaluate_entry(&mut view, process);
        }
        if self.is_watched(call, &process) {
            return self.escalate(&view, &process);
        }
        if self.worker.is_doubtful(call, &view.decoded) {
            return self.let_go(&view, Some(process));
        }
        Counters::add(&counters.unevaluated);
        shared.answer(call.id);
    }

    /// Opens a file in the caller's place, if the policy allows that and Landlock cannot; returns false if the call goes
    /// on.
    fn opens_in_place(&mut self, view: &CallView<'_>) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let (call, classifier) = (view.call, shared.confiner.classifier());
        if !classifier.opens_files() || !opened_in_place::may_be_asked(call, &view.decoded) {
            return false;
        }
        let Some(process) = self.caller(call).filter(|process| !process.sets_up()) else {
            return false;
        };
        let inspector = &shared.tree.inspector;
        let Some(file) = opened_in_place::open(call, &view.decoded, classifier, inspector) else {
            return false;
        };
        // Until here, what was read may be another process's.
        let flags = opened_in_place::descriptor_flags(call);
        let given = shared
            .listener
            .add_fd(call.id, file.as_fd(), None, flags, AddMode::Add);
        // A caller without a free descriptor is told so by the kernel.
        let Ok(Some(number)) = given else {
            return false;
        };
        self.finish(view, Outcome::Returned(number.into()), &process);
        shared.answer_instead(call.id, Ok(number.into()));
        true
    }

    /// Tracks shared memory, and requests for an io_uring; returns true if the call was refused.
    fn note_state(&mut self, view: &mut CallView<'_>, process: &Arc<Process>) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let call = view.call;
        if !shared.verifier.concerns(call) {
            return false;
        }
        let added = shared.verifier.note(call, process, &shared.tree);
        let racy = &shared.counters.racy_processes;
        racy.fetch_add(added, Ordering::Relaxed);
        if let (Some(tripwire), 1.., false) = (&shared.tripwire, added, process.sets_up()) {
            tripwire.arm(call.tid, &shared.tree.inspector);
        }
        verify::uses_ring(call.syscall) && self.ring(view, process)
    }

    /// Evaluates a call that a rule asks for, with its caller and its descriptor.
    fn evaluate_entry(&mut self, view: &mut CallView<'_>, process: Arc<Process>) {
        let shared = Arc::clone(&self.worker.shared);
        let call = view.call;
        if let Some(descriptor) = view.decoded.descriptor {
            let (inspector, pid) = (&shared.tree.inspector, process.pid);
            let resolved = decode::resolve(inspector, call, descriptor, None, pid, view.arena);
            view.decoded.descriptor = Some(resolved);
        }
        let weight = self.worker.weigh_entry(view, &process);
        if let Some(name) = self.worker.new_name(view, &process)
            && shared.listener.is_valid(call.id).unwrap_or(false)
        {
            self.worker.note_name(&process, name);
        }
        match weight {
            Relevance::Reject => {
                Counters::add(&shared.counters.rejected_at_entry);
                self.let_go(view, Some(process));
            }
            Relevance::Settled
                if self.is_to_be_proven(view, &process) || self.is_watched(call, &process) =>
            {
                self.escalate(view, &process);
            }
            Relevance::Settled => self.settle(view, &process),
            // The kernel waits for the same page, and spins where it is interrupted.
            Relevance::Undecided if view.decoded.refused && self.memory.is_limited() => {
                self.settle(view, &process);
            }
            Relevance::Undecided if has_no_result_to_wait_for(call) => self.settle(view, &process),
            Relevance::Undecided => self.escalate(view, &process),
        }
    }

    /// Reports a ring; returns true if it was refused.
    fn ring(&mut self, view: &mut CallView<'_>, process: &Arc<Process>) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let denied = shared.verifier.deny_rings;
        Counters::add(&shared.counters.rings);
        if shared.verifier.tell(process, ReportedOnce::Ring) {
            shared.notices.ring(process, RingAnswer::unseen(denied));
        }
        if !denied {
            shared.verifier.gives_ring();
            return false;
        }
        // The only argument that counts is the request itself: no memory decides.
        self.finish(
            view,
            Outcome::Returned(-i64::from(Errno::ENOSYS.0)),
            process,
        );
        shared.answer_instead(view.call.id, Err(Errno::ENOSYS.0));
        true
    }

    /// Returns whether the engine must find out if the policy denied the call, because no other enforcer reports it.
    fn is_watched(&self, call: &Call, process: &Process) -> bool {
        !process.sets_up()
            && !has_no_result_to_wait_for(call)
            && self.worker.shared.confiner.watches(call)
    }

    /// Lets a call go that no rule matches as it was read, unless it has to be verified, or another enforcer
    /// may deny it.
    fn let_go(&mut self, view: &CallView<'_>, process: Option<Arc<Process>>) {
        let shared = Arc::clone(&self.worker.shared);
        let mut process = process;
        if shared.confiner.watches(view.call) {
            process = process.or_else(|| self.caller(view.call));
            if let Some(process) = process
                .as_ref()
                .filter(|own| self.is_watched(view.call, own))
            {
                self.escalate(view, process);
                return;
            }
        }
        let verifier = &shared.verifier;
        let is_doubtful = self.worker.is_doubtful(view.call, &view.decoded);
        if is_doubtful || verifier.is_active() && verifier.compares(view.call) {
            let process = process.or_else(|| self.caller(view.call));
            let worker = &mut self.worker;
            let wants = |process: &&Arc<Process>| {
                let now = now_ns(Clock::Monotonic);
                !process.sets_up()
                    && (is_doubtful
                        || worker.may_have_other_flags(view, process)
                        || verifier.wants(process, &shared.tree, now))
            };
            if let Some(process) = process.as_ref().filter(wants) {
                self.escalate(view, process);
                return;
            }
        }
        shared.answer(view.call.id);
    }

    /// Returns whether a match on the data that was read may be wrong, because the data may have changed; or
    /// whether the call may be made again although it was let go, because a signal was faster (before 5.19).
    fn is_to_be_proven(&self, view: &CallView<'_>, process: &Arc<Process>) -> bool {
        let shared = &self.worker.shared;
        if !shared.waits_killable && !has_no_result_to_wait_for(view.call) {
            return true;
        }
        let verifier = &shared.verifier;
        if self.worker.is_doubtful(view.call, &view.decoded) {
            return !process.sets_up();
        }
        verifier.is_active()
            && verifier.compares(view.call)
            && verifier.is_racy(process, &shared.tree)
    }

    /// Returns whether no rule can match, whatever the caller is.
    fn rejects_unnamed(&mut self, view: &mut CallView<'_>) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        if self.worker.weigh_unnamed(view, Stage::Strings) == Relevance::Reject {
            Counters::add(&shared.counters.rejected_at_strings);
            return true;
        }
        let Some(descriptor) = view.decoded.descriptor else {
            return false;
        };
        let inspector = &shared.tree.inspector;
        let Some(linked) = LinkedFile::of(inspector, view.call) else {
            return false;
        };
        let kinds = linked.kinds(descriptor, view.arena);
        let mut rejects = |descriptor: &Descriptor<'_>| {
            let mut view = *view;
            view.decoded.descriptor = Some(*descriptor);
            self.worker.weigh_unnamed(&view, Stage::Descriptor) == Relevance::Reject
        };
        if kinds.iter().all(&mut rejects) {
            Counters::add(&shared.counters.rejected_at_descriptor);
            // If the call is followed all the same, the descriptor may have another file at its end.
            view.decoded.descriptor = linked_file::of_any_kind(&kinds);
            return true;
        }
        let resolved = linked.resolve(inspector, view.call, descriptor, view.arena);
        view.decoded.descriptor = Some(resolved);
        if self.worker.weigh_unnamed(view, Stage::Descriptor) == Relevance::Reject {
            Counters::add(&shared.counters.rejected_at_descriptor);
            return true;
        }
        false
    }

    /// Returns the calling process. A process about which nothing can be read (`/proc` hidden, no descriptor
    /// left) is an unknown process, never a reason to let a call pass unseen. Returns `None` if the process
    /// ended.
    pub(super) fn caller(&self, call: &Call) -> Option<Arc<Process>> {
        let shared = &self.worker.shared;
        shared
            .tree
            .of_thread(call.tid, &shared.counters)
            .or_else(|| {
                let waits = shared.listener.is_valid(call.id).unwrap_or(false);
                waits.then(|| {
                    Counters::add(&shared.counters.unknown_callers);
                    Arc::new(decoder::tree::stranger(call.tid))
                })
            })
    }

    /// Finishes the evaluation while the caller is parked, then lets the call go.
    fn settle(&mut self, view: &CallView<'_>, process: &Process) {
        let shared = Arc::clone(&self.worker.shared);
        if !shared.listener.is_valid(view.call.id).unwrap_or(false) {
            // The data that was read may belong to another process by now.
            Counters::add(&shared.counters.gone);
            return;
        }
        self.worker.conclude(view, Stage::Entry, process);
        Counters::add(&shared.counters.decided_at_entry);
        // The answer to the alert may withhold this very call.
        if shared.denied_caller(&self.seat.current()).is_some() {
            return shared.answer_instead(view.call.id, Err(Errno::EPERM.0));
        }
        if !shared.answer(view.call.id) && !shared.waits_killable {
            shared.expect_repeated(view.call);
        }
    }

    fn escalate(&mut self, view: &CallView<'_>, process: &Arc<Process>) {
        let shared = Arc::clone(&self.worker.shared);
        let counters = &shared.counters;
        let call = view.call;
        if !shared.listener.is_valid(call.id).unwrap_or(false) {
            Counters::add(&counters.gone);
            return;
        }
        let is_contested = match shared.progress.begins(call) {
            CallDecision::Fair => false,
            // Before 5.19 the stop that is asked for may take the caller out of the call before the answer does, each time
            // anew. The tracer stays attached, so that it follows the call when it is made again. There is one tracer: it must
            // not wait for an exec of another thread.
            CallDecision::Contested => {
                !shared.waits_killable && shared.tree.inspector.thread_count(process.pid) == Some(1)
            }
            turn => return self.let_go_unlearnt(view, process, turn),
        };
        let is_limited = view.decoded.refused && self.memory.is_limited();
        if !is_limited && (is_contested || !interruption::may_notice(call, &view.decoded)) {
            self.follow(view, process);
            return;
        }
        if Role::of(call) == Role::Exec {
            shared.tracer.exec_begins(process.pid);
        }
        let stop = if is_limited {
            // The kernel waits for the same page.
            escalation::stop_some_time(call, &shared.listener, &self.seat)
        } else if !shared.stuck.may_attach(call.tid, &shared.tree.inspector) {
            Stop::Refused
        } else {
            self.stop_after(call)
        };
        self.stopped(view, process, stop);
    }

    /// Continues with a call whose caller was to be stopped.
    fn stopped(&mut self, view: &CallView<'_>, process: &Arc<Process>, stop: Stop) {
        let shared = Arc::clone(&self.worker.shared);
        let (counters, call) = (&shared.counters, view.call);
        // Until the call is made again, its process may be attached to.
        let undo_exec = || {
            if Role::of(call) == Role::Exec {
                shared.tracer.exec_returned(process.pid, false);
            }
        };
        let followed = || FollowedCall::new(call, view.time_ns, &view.decoded, process);
        match stop {
            Stop::Returned { result, held } => {
                Counters::add(&counters.escalated);
                shared.progress.made(call.tid);
                self.finish(view, Outcome::Returned(result), process);
                escalation::release(held.tid, held.signal);
            }
            Stop::Sleeps(held, stack) => {
                undo_exec();
                let mut followed = followed();
                followed.note_stack(Some(stack));
                // Done before the caller can make the call again.
                let lives = |tid| shared.tree.inspector.thread_group(tid).is_some();
                shared.tracer.expect_again(followed, lives);
                escalation::release(held.tid, held.signal);
            }
            Stop::Withdrawn(held) => {
                Counters::add(&counters.withdrawn);
                undo_exec();
                escalation::release(held.tid, held.signal);
            }
            Stop::Refused => {
                if !shared.tracer.await_result(followed()) {
                    Counters::add(&counters.escalation_refused);
                    shared.note_tracer(call, process);
                    self.finish(view, Outcome::Unlearnt, process);
                }
                shared.answer(call.id);
            }
            Stop::Died => {
                Counters::add(&counters.gone);
                self.finish(view, Outcome::Unlearnt, process);
            }
            Stop::Gone => {
                Counters::add(&counters.gone);
                undo_exec();
            }
            Stop::Stuck => {
                self.abandoned.insert(call.tid.0, followed());
                self.seat.set_has_abandoned(true);
            }
            // Another receiver has this call since. This thread ends, and with it the attachment.
            Stop::TakenAway => undo_exec(),
        }
    }

    /// Lets the call go as it is, because the caller makes no progress.
    fn let_go_unlearnt(&mut self, view: &CallView<'_>, process: &Arc<Process>, turn: CallDecision) {
        let shared = Arc::clone(&self.worker.shared);
        let call = view.call;
        Counters::add(&shared.counters.no_progress);
        if turn == CallDecision::TooMany {
            let name = call.syscall.name();
            shared.notices.no_progress(process, call.tid, name);
        }
        self.finish(view, Outcome::Unlearnt, process);
        shared.answer(call.id);
    }

    /// Hands a call that must not notice the stop to the tracer.
    fn follow(&mut self, view: &CallView<'_>, process: &Arc<Process>) {
        let shared = Arc::clone(&self.worker.shared);
        let followed = FollowedCall::new(view.call, view.time_ns, &view.decoded, process);
        let id = view.call.id;
        shared
            .tracer
            .request(TracerRequest::Follow { followed, id });
    }

    /// Stops the caller after its call. On Linux before 5.19 another of our threads may still be releasing
    /// it: a signal had taken it out of the call that was inspected there.
    fn stop_after(&mut self, call: &Call) -> Stop {
        let shared = Arc::clone(&self.worker.shared);
        let mut idle = 0;
        for _ in 0..SEIZE_TRIES {
            let mut late = LateStops::new();
            let stop = escalation::stop_after(
                call,
                &shared.listener,
                &self.seat,
                |tid| self.abandoned.contains_key(&tid),
                &mut late,
            );
            for (tid, status) in late {
                self.stopped_late(tid, status);
            }
            let is_final =
                stop != Stop::Refused || shared.waits_killable || shared.tracer.holds(call.tid);
            if is_final {
                return stop;
            }
            let is_held = escalation::is_traced_here(call.tid, &shared.tree.inspector);
            idle = if is_held { 0 } else { idle + 1 };
            if idle > IDLE_TRIES {
                return stop;
            }
            std::thread::sleep(SEIZE_PAUSE);
            if !shared.listener.is_valid(call.id).unwrap_or(false) {
                return Stop::Gone;
            }
        }
        Stop::Refused
    }

    fn finish(&mut self, view: &CallView<'_>, outcome: Outcome, process: &Arc<Process>) {
        self.worker.finish(&view.returned(outcome), process);
    }

    /// Handles an exec, whose result is always learned. A program that may start with one of descriptors 0..2
    /// closed is left to the tracer, which can stay with it.
    fn exec(&mut self, view: &CallView<'_>, process: &Arc<Process>) {
        let shared = Arc::clone(&self.worker.shared);
        if init_restriction::is_due(&shared, process) {
            // The exec is made again.
            return init_restriction::hold(shared, *view.call, Arc::clone(process));
        }
        if shared.watch_stdio && shared.tree.may_redirect(process, shared.watch_stdio_any) {
            let followed = FollowedCall::new(view.call, view.time_ns, &view.decoded, process);
            shared.tracer.request(TracerRequest::Exec(followed));
            return;
        }
        self.escalate(view, process);
    }

    /// Tracks descriptors 0..2. A process with one of them closed and a socket to put there is watched
    /// closely from the call on that makes it one.
    fn keep_stdio(&self, call: &Call, process: &Arc<Process>) {
        let shared = &self.worker.shared;
        if !shared.watch_stdio {
            return;
        }
        let is_followed = || shared.tracer.watches(process.pid) || process.sets_up();
        let (effect, any) = (stdio::effect(call), shared.watch_stdio_any);
        if shared.tree.keep_stdio(process, effect, any, is_followed) {
            Counters::add(&shared.counters.stdio_watches);
            shared.tracer.watch(process.pid);
        }
    }

    /// Returns whether the tracer waits for the call, and answers it then.
    /// `is_denied`: it is withheld from the caller since it was first made.
    fn belongs_to_tracer(&mut self, call: &Call, is_denied: bool) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let stack = || shared.tree.inspector.stack_pointer(call.tid);
        match shared.tracer.claim(call, stack) {
            CallOwner::Nothing => false,
            CallOwner::Again(followed) if is_denied => {
                let outcome = Outcome::Returned(-i64::from(Errno::EPERM.0));
                self.finish_followed(&followed, outcome);
                shared.answer_instead(call.id, Err(Errno::EPERM.0));
                true
            }
            // The tracer sees the result.
            CallOwner::Restarted { .. } if is_denied => {
                shared.answer_instead(call.id, Err(Errno::EPERM.0));
                true
            }
            CallOwner::Again(followed) => {
                shared.tracer.request(TracerRequest::Follow {
                    followed,
                    id: call.id,
                });
                true
            }
            CallOwner::Restarted { begins } => {
                if begins && Role::of(call) == Role::Exec {
                    let pid = shared.tree.inspector.thread_group(call.tid);
                    shared
                        .tracer
                        .exec_begins(pid.unwrap_or(event::Pid(call.tid.0)));
                }
                shared.answer(call.id);
                true
            }
            CallOwner::Interrupted(followed) => {
                // The thread is making another call, so a signal ended the one before.
                let outcome = Outcome::Returned(-i64::from(Errno::EINTR.0));
                self.finish_followed(&followed, outcome);
                false
            }
        }
    }

    fn finish_followed(&mut self, followed: &FollowedCall, outcome: Outcome) {
        let arena = std::mem::take(&mut self.arena);
        followed.finish(&mut self.worker, outcome, &arena);
        self.arena = recycled(arena);
    }

    /// Checks callers that did not stop in time.
    fn serve_abandoned(&mut self) {
        let options = sys::wait::ALL | sys::wait::NO_THREAD | sys::wait::NO_HANG;
        loop {
            match sys::wait::wait(sys::wait::Target::Any, options) {
                Ok(Some((tid, status))) => self.stopped_late(tid, status),
                Ok(None) => break,
                // No such caller is left.
                Err(_) => {
                    self.abandoned.clear();
                    break;
                }
            }
        }
        self.seat.set_has_abandoned(!self.abandoned.is_empty());
    }

    /// Handles the late stop of a caller after its call.
    fn stopped_late(&mut self, tid: i32, status: sys::wait::Status) {
        let shared = Arc::clone(&self.worker.shared);
        let followed = self.abandoned.remove(&tid);
        let call = followed.as_ref().map(|followed| &followed.call);
        match (escalation::stopped_at(tid, status, call), followed) {
            (Stop::Returned { result, held }, Some(followed)) => {
                Counters::add(&shared.counters.followed);
                followed.finish(&mut self.worker, Outcome::Returned(result), &Bump::new());
                escalation::release(held.tid, held.signal);
            }
            (Stop::Sleeps(held, stack), Some(mut followed)) => {
                shared.tracer.exec_returned(followed.process.pid, false);
                followed.note_stack(Some(stack));
                let lives = |tid| shared.tree.inspector.thread_group(tid).is_some();
                shared.tracer.expect_again(followed, lives);
                escalation::release(held.tid, held.signal);
            }
            (Stop::Withdrawn(held), Some(followed)) => {
                Counters::add(&shared.counters.withdrawn);
                shared.tracer.exec_returned(followed.process.pid, false);
                escalation::release(held.tid, held.signal);
            }
            (Stop::Returned { held, .. } | Stop::Sleeps(held, _) | Stop::Withdrawn(held), None) => {
                escalation::release(held.tid, held.signal);
            }
            (_, Some(followed)) => {
                Counters::add(&shared.counters.gone);
                shared.tracer.exec_returned(followed.process.pid, false);
            }
            (_, None) => {}
        }
    }
}

/// Returns whether the caller cannot be stopped after the call.
///
/// - `exit_group` and `exit` do not return.
/// - A vfork parent sleeps until its child is done with its memory, and the child's first call
///   finds the parent alive anyway.
/// - `PTRACE_TRACEME` fails in a thread that is traced.
fn has_no_result_to_wait_for(call: &Call) -> bool {
    use abi::Syscall as S;
    match call.syscall {
        S::EXIT | S::EXIT_GROUP | S::VFORK => true,
        S::CLONE => call.raw(0) & CLONE_VFORK.u64() != 0,
        S::PTRACE => call.raw(0) == PTRACE_TRACEME.u64(),
        _ => false,
    }
}

/// Resets the arena for the next call.
fn recycled(mut arena: Bump) -> Bump {
    if arena.allocated_bytes() > ARENA_KEEP {
        return Bump::with_capacity(16 * 1024);
    }
    arena.reset();
    arena
}

/// Returns whether a call is waiting, or none can come any more.
fn is_readable_within(listener: &sys::notify::Listener, limit: Duration) -> bool {
    let mut polled = [PollFd::new(listener.as_fd(), poll::IN)];
    poll::poll(&mut polled, Some(limit)).unwrap_or(0) > 0
}
