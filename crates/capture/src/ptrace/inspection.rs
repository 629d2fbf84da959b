//! Inspects a call in the stop before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::Errno;
use bumpalo::Bump;
use event::{Evaluator, LiveProcess, Outcome, Process, Relevance, Stage};
use sys::time::{Clock, now_ns};

use super::engine::Engine;
use super::pages::WaitingCall;
use crate::notify::guard::Guard;
use crate::notify::names;
use crate::notify::tracer::FollowedCall;
use crate::notify::verify::{self, ReportedOnce};
use crate::notify::worker::{CallView, Role};
use crate::notify::{Response, RingAnswer, obstacle};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::{decode, tree};

/// Result of the inspection of a call.
#[derive(Debug)]
pub(super) enum Inspection {
    /// The call must not be made as it is: it returns this value instead. Rules have evaluated it.
    Refused(i64),
    /// The thread may go on; nothing more is needed.
    GoOn,
    /// The result of the call is needed.
    Result(Box<FollowedCall>),
    /// The page at this address is needed and not in memory.
    Page(u64),
}

impl<J: Evaluator> Engine<J> {
    /// Inspects a call. `waited`: the pages that it has waited for, if it is inspected again.
    pub(super) fn look(&mut self, call: &Call, waited: Option<&WaitingCall>) -> Inspection {
        let shared = Arc::clone(&self.worker.shared);
        let counters = &shared.counters;
        if waited.is_none() {
            Counters::add(&counters.trapped);
        }
        self.post.caller.store(call.tid.0, Ordering::Release);
        shared.names.note(call);
        if Guard::concerns(call.syscall)
            && let Some(result) = self.intrusion(call)
        {
            return Inspection::Refused(result);
        }
        let role = Role::of(call);
        let is_looked_at = self.is_evaluated(call) || shared.verifier.looks_at(call);
        if role == Role::Plain && !is_looked_at && !shared.is_state(call) {
            Counters::add(&counters.unevaluated);
            return Inspection::GoOn;
        }
        let arena = std::mem::take(&mut self.arena);
        let may_wait = waited.is_none_or(|waited| !waited.is_late);
        let look = self.look_closely(call, role, may_wait, &arena);
        self.recycle(arena);
        look
    }

    fn look_closely(
        &mut self,
        call: &Call,
        role: Role,
        may_wait: bool,
        arena: &Bump,
    ) -> Inspection {
        let shared = Arc::clone(&self.worker.shared);
        let counters = &shared.counters;
        let time_ns = now_ns(Clock::Real);
        let mut decoded = decode::decode(call, &self.memory, arena);
        self.worker.doubt(call, &mut decoded, &self.memory);
        let new_name = names::given(call, &self.memory, arena);
        if may_wait && let Some(page) = self.memory.missing() {
            return Inspection::Page(page);
        }
        counters.note_unreadable(&decoded);
        let live = LiveProcess::default();
        let mut view = CallView::at_entry(call, time_ns, decoded, &live, arena);
        self.worker.name_file(&mut view);
        if role == Role::Plain
            && !shared.is_state(call)
            && self.worker.weigh_unnamed(&view, Stage::Strings) == Relevance::Reject
        {
            Counters::add(&counters.rejected_at_strings);
            return self.let_go(&view, None);
        }
        if let Some(tripwire) = &shared.tripwire {
            self.worker.account(tripwire, call, &view.decoded);
        }
        let process = self.caller(call);
        if view.decoded.refused {
            self.tell_unreadable(call, &process);
        }
        if role == Role::Exec {
            return result_of(&view, &process);
        }
        if let Some(name) = new_name {
            self.worker.note_thread_name(call.tid, &process, name);
        }
        self.keep_stdio(call, &process);
        if shared.is_state(call)
            && let Some(look) = self.note_state(&view, &process)
        {
            return look;
        }
        if self.is_evaluated(call) {
            return self.evaluate_entry(&mut view, process);
        }
        Counters::add(&counters.unevaluated);
        match self.worker.is_doubtful(call, &view.decoded) {
            true => self.let_go(&view, Some(process)),
            false => Inspection::GoOn,
        }
    }

    /// Evaluates a call that a rule asks for, with its caller and its descriptor.
    fn evaluate_entry(&mut self, view: &mut CallView<'_>, process: Arc<Process>) -> Inspection {
        let shared = Arc::clone(&self.worker.shared);
        let (counters, call) = (&shared.counters, view.call);
        if let Some(descriptor) = view.decoded.descriptor {
            let (inspector, pid) = (&shared.tree.inspector, process.pid);
            let resolved = decode::resolve(inspector, call, descriptor, None, pid, view.arena);
            view.decoded.descriptor = Some(resolved);
        }
        let weight = self.worker.weigh_entry(view, &process);
        if let Some(name) = self.worker.new_name(view, &process) {
            self.worker.note_name(&process, name);
        }
        match weight {
            Relevance::Reject => {
                Counters::add(&counters.rejected_at_entry);
                self.let_go(view, Some(process))
            }
            Relevance::Settled if self.is_to_be_proven(view, &process) => result_of(view, &process),
            Relevance::Undecided if returns(call) => result_of(view, &process),
            Relevance::Settled | Relevance::Undecided => {
                self.worker.conclude(view, Stage::Entry, &process);
                Counters::add(&counters.decided_at_entry);
                Inspection::GoOn
            }
        }
    }

    /// Returns whether a rule asks for the call. The plan does not include plain `dup`: the state of
    /// descriptors 0..2 is tracked instead, and a `dup` is inspected where it stops a thread anyway.
    fn is_evaluated(&self, call: &Call) -> bool {
        let shared = &self.worker.shared;
        shared.is_evaluated(call) || (shared.watch_stdio && call.syscall == abi::Syscall::DUP)
    }

    /// Tracks shared memory, and requests for an io_uring, which may be refused.
    fn note_state(&mut self, view: &CallView<'_>, process: &Arc<Process>) -> Option<Inspection> {
        let shared = Arc::clone(&self.worker.shared);
        let (counters, call) = (&shared.counters, view.call);
        if !shared.verifier.concerns(call) {
            return None;
        }
        let added = shared.verifier.note(call, process, &shared.tree);
        counters.racy_processes.fetch_add(added, Ordering::Relaxed);
        if let (Some(tripwire), 1..) = (&shared.tripwire, added) {
            tripwire.arm(call.tid, &shared.tree.inspector);
        }
        if !verify::uses_ring(call.syscall) {
            return None;
        }
        let denied = shared.verifier.deny_rings;
        Counters::add(&counters.rings);
        if shared.verifier.tell(process, ReportedOnce::Ring) {
            shared.notices.ring(process, RingAnswer::unseen(denied));
        }
        if !denied {
            shared.verifier.gives_ring();
            return None;
        }
        let outcome = Outcome::Returned(-i64::from(Errno::ENOSYS.0));
        self.worker.finish(&view.returned(outcome), process);
        Some(Inspection::Refused(-i64::from(Errno::ENOSYS.0)))
    }

    /// Lets a call go that no rule matches as it was read, unless it has to be verified.
    fn let_go(&mut self, view: &CallView<'_>, process: Option<Arc<Process>>) -> Inspection {
        let shared = Arc::clone(&self.worker.shared);
        let verifier = &shared.verifier;
        let is_doubtful = self.worker.is_doubtful(view.call, &view.decoded);
        if !(is_doubtful || verifier.is_active() && verifier.compares(view.call)) {
            return Inspection::GoOn;
        }
        let process = process.unwrap_or_else(|| self.caller(view.call));
        if is_doubtful || self.worker.may_have_other_flags(view, &process) {
            return result_of(view, &process);
        }
        if verifier.wants(&process, &shared.tree, now_ns(Clock::Monotonic)) {
            result_of(view, &process)
        } else {
            Inspection::GoOn
        }
    }

    /// Returns whether a match on the data that was read may be wrong, because the data may have changed.
    fn is_to_be_proven(&self, view: &CallView<'_>, process: &Arc<Process>) -> bool {
        let shared = &self.worker.shared;
        let verifier = &shared.verifier;
        if self.worker.is_doubtful(view.call, &view.decoded) {
            return true;
        }
        verifier.is_active()
            && verifier.compares(view.call)
            && verifier.is_racy(process, &shared.tree)
    }

    /// Returns the result of a call that is aimed at the monitor's processes.
    fn intrusion(&mut self, call: &Call) -> Option<i64> {
        let shared = Arc::clone(&self.worker.shared);
        let intrusion = shared.guard.rule(call)?;
        if intrusion.aim.is_counted() {
            Counters::add(&shared.counters.intrusions);
        }
        let process = self.caller(call);
        if intrusion.aim.is_hostile() {
            shared.notices.intrusion(&process, &intrusion);
        }
        let result = match intrusion.response {
            Response::Made => return None,
            Response::Refused => -i64::from(Errno::EPERM.0),
            Response::Spared(result) => result,
        };
        if shared.is_evaluated(call) {
            let arena = Bump::new();
            let time_ns = now_ns(Clock::Real);
            let decoded = decode::decode(call, &self.memory, &arena);
            let live = LiveProcess::default();
            let entry = CallView::at_entry(call, time_ns, decoded, &live, &arena);
            let view = entry.returned(Outcome::Returned(result));
            self.worker.finish(&view, &process);
        }
        Some(result)
    }

    /// Reports once that the memory of a process cannot be read.
    fn tell_unreadable(&self, call: &Call, process: &Process) {
        let shared = &self.worker.shared;
        if shared.unreadable.is_new(process)
            && let Some(obstacle) = obstacle(call.tid)
        {
            let name = call.syscall.name();
            shared.notices.unreadable(process, name, obstacle);
        }
    }

    /// Returns the calling process, which is held and cannot end. A process about which nothing can be read
    /// (`/proc` hidden, no descriptor left) is an unknown process.
    pub(super) fn caller(&self, call: &Call) -> Arc<Process> {
        let shared = &self.worker.shared;
        let known = shared.tree.of_thread(call.tid, &shared.counters);
        known.unwrap_or_else(|| {
            Counters::add(&shared.counters.unknown_callers);
            Arc::new(tree::stranger(call.tid))
        })
    }
}

fn result_of(view: &CallView<'_>, process: &Arc<Process>) -> Inspection {
    let followed = FollowedCall::new(view.call, view.time_ns, &view.decoded, process);
    Inspection::Result(Box::new(followed))
}

/// Returns whether the caller returns from the call.
fn returns(call: &Call) -> bool {
    use abi::Syscall as S;
    !matches!(call.syscall, S::EXIT | S::EXIT_GROUP)
}
