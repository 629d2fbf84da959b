//! Answers calls during an unwatched interval.

use std::os::fd::AsFd;
use std::time::Duration;

use abi::{Errno, Syscall};
use capture::notify::{ActivePolicy, GuardOptions, ReceiverStatus, StandInAnswer, StandInGuard};
use event::Pid;
use sys::notify::{Delivery, Listener, Notification, Received};
use sys::poll::{self, PollFd};
use sys::signal::SignalStream;
use sys::time::{Clock, now_ns};

use super::super::crash;
use super::super::inherited::{EventFdNotifier, InheritedDescriptors, has_calls, has_hung_up};
use super::super::shared_state::{Cause, FOREIGN, NATIVE_CALLS, SharedState, UNNAMED, Unwatched};
use super::{OnAgentDeath, Policy};

/// Maximum duration of one turn without events.
const TURN: Duration = Duration::from_millis(50);
/// Number of ids looked up at once, which takes about a millisecond. The first lookup covers this
/// many of the newest.
const SWEEP: u64 = 4096;
/// Maximum number of calls answered in one turn.
const CALLS: usize = 256;

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnResult {
    GoOn,
    /// No watched process is left.
    HungUp,
}

/// An unwatched interval, in which the keeper answers calls.
pub(super) struct UnwatchedInterval<'a> {
    shared_state: &'a SharedState,
    confiner: Option<&'a ActivePolicy>,
    listener: &'a Listener,
    policy: Policy,
    /// Protects the processes of the monitor. `None` if that cannot be done; then no call that could be aimed at
    /// them passes.
    guard: Option<StandInGuard>,
    cause: Cause,
    began_ns: u64,
    native: u32,
}

/// Answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The call is made.
    Continue,
    /// The call fails with this error number.
    Errno(i32),
    /// The call is not made, and returns this: 0 or a negative error number.
    Returned(i64),
}

/// A call that waits for an answer.
#[derive(Clone, Copy, Debug)]
struct Waiting<'a> {
    id: u64,
    /// Index of its counter.
    index: usize,
    /// The dead receiver of the call.
    dead: Option<&'a ReceiverStatus>,
    /// The receiver had begun with the call, and may have allowed it without learning the result or
    /// evaluating rules. The call then passed unwatched.
    is_begun: bool,
}

impl<'a> UnwatchedInterval<'a> {
    /// Begins an unwatched interval.
    pub(super) fn begin(
        inherited: &'a InheritedDescriptors,
        listener: &'a Listener,
        policy: Policy,
        (cause, detail): (Cause, u64),
    ) -> Self {
        let gap = Self::begin_silently(inherited, listener, policy, cause);
        gap.record(detail);
        gap
    }

    /// Records the beginning of the interval.
    pub(super) fn record(&self, detail: u64) {
        let fields = &self.shared_state.gap;
        // A keeper killed during an unwatched interval left it open.
        if fields.begun.get() == fields.ended.get() {
            fields.began_ns.set(self.began_ns);
            fields.lasted_before_ns.set(fields.lasted_ns.get());
            fields.begun.add(1);
        }
        fields.set_cause(self.cause, detail);
    }

    /// Begins without recording an interval, to check whether there are calls.
    pub(super) fn begin_silently(
        inherited: &'a InheritedDescriptors,
        listener: &'a Listener,
        policy: Policy,
        cause: Cause,
    ) -> Self {
        let parts = (&inherited.shared_state, inherited.confiner());
        Self::of(parts, listener, policy, cause)
    }

    /// Begins without recording an interval, with the parts of the inherited resources that it needs.
    pub(super) fn of(
        (shared_state, confiner): (&'a SharedState, Option<&'a ActivePolicy>),
        listener: &'a Listener,
        policy: Policy,
        cause: Cause,
    ) -> Self {
        Self {
            shared_state,
            confiner,
            listener,
            policy,
            guard: StandInGuard::new(guard_options(shared_state, policy)).ok(),
            cause,
            began_ns: now_ns(Clock::Monotonic),
            native: abi::Arch::native().map_or(0, |arch| arch.audit()),
        }
    }

    /// Ends the interval. The agent reports the calls that passed.
    pub(super) fn end(&self) {
        let fields = &self.shared_state.gap;
        let began_ns = fields.began_ns.get().min(self.began_ns);
        let lasted = now_ns(Clock::Monotonic).saturating_sub(began_ns);
        fields.lasted_ns.set(fields.lasted_before_ns.get() + lasted);
        fields.ended.set(fields.begun.get());
    }

    /// Answers the calls that a dead agent had received: those that its receivers worked on or had just been
    /// given, and any others (calls handed to the tracer) by their ids, which the kernel counts up. The newest
    /// are looked up at once, the rest is for [`UnwatchedInterval::sweep`], which need not end before the gap does: the next
    /// agent's are newer.
    pub(super) fn take_over_held(&self, generation: u64) {
        let pulse = self.shared_state.pulse(generation);
        // Done first, so that a keeper killed in between leaves no ids that are never looked up.
        if let Some((first, newest)) = pulse.ids() {
            self.shared_state.unswept().add(first, newest);
        }
        for held in pulse.held() {
            let waiting = Waiting {
                id: held.id,
                index: self.index(held.audit, held.nr),
                dead: Some(pulse),
                is_begun: held.is_begun,
            };
            self.answer(waiting, held.audit, held.nr, None);
        }
        self.sweep();
    }

    /// Answers the calls that receivers of a living agent are working on.
    pub(super) fn answer_held(&self, generation: u64) {
        let held = self.shared_state.pulse(generation).held();
        for held in held.into_iter().filter(|held| held.is_begun) {
            self.answer(
                self.waiting(held.id, held.audit, held.nr),
                held.audit,
                held.nr,
                None,
            );
        }
    }

    fn waiting(&self, id: u64, audit: u32, nr: u32) -> Waiting<'_> {
        Waiting {
            id,
            index: self.index(audit, nr),
            dead: None,
            is_begun: false,
        }
    }

    /// Looks up some of the ids that dead agents may hold. Returns the number of calls found. The
    /// kernel refuses answers to calls that were not received.
    pub(super) fn sweep(&self) -> u64 {
        let unswept = self.shared_state.unswept();
        let Some(range) = unswept.next() else {
            return 0;
        };
        let now = range.left.min(SWEEP);
        let mut found = 0;
        for back in 0..now {
            let id = range.next.wrapping_sub(back);
            if !self.may_wait(id) {
                continue;
            }
            let waiting = Waiting {
                id,
                index: UNNAMED,
                dead: None,
                is_begun: false,
            };
            let answer = answer_of(self.refusal_of_unknown());
            found += u64::from(self.respond(waiting, answer));
        }
        unswept.looked_up(range, now);
        found
    }

    /// Answers waiting calls, or waits a while for an event.
    pub(super) fn serve(&self, signals: &SignalStream, bell: &EventFdNotifier) -> TurnResult {
        self.serve_for(TURN, signals, bell)
    }

    /// Like `serve`, with a maximum duration of the turn.
    pub(super) fn serve_for(
        &self,
        turn: Duration,
        signals: &SignalStream,
        bell: &EventFdNotifier,
    ) -> TurnResult {
        let mut polled = [
            PollFd::new(self.listener.as_fd(), poll::IN),
            PollFd::new(signals.as_fd(), poll::IN),
            PollFd::new(bell.as_fd(), poll::IN),
        ];
        // The reason for waking does not matter; everything is checked.
        let _ = poll::poll(&mut polled, Some(turn));
        let found = polled[0].found();
        if found & (poll::HUP | poll::ERR) != 0 {
            return TurnResult::HungUp;
        }
        if found & poll::IN != 0 {
            self.receive();
        }
        for _ in 1..CALLS {
            if !has_calls(self.listener) {
                break;
            }
            self.receive();
        }
        TurnResult::GoOn
    }

    /// Receives and answers a call. If another receiver is faster, this waits for the next call.
    pub(super) fn receive(&self) {
        let mut call = Notification::default();
        let received = self
            .listener
            .receive_into(self.shared_state.keepers_call(), &mut call);
        if matches!(received, Ok(Received::Notification)) {
            self.pass(&call);
        }
    }

    /// Counts the call that a killed keeper was answering, and answers the one that it had
    /// received.
    pub(super) fn take_over_keepers(&self) {
        self.conclude_answering();
        if let Some(call) = self.shared_state.keepers_call().call()
            && self.may_wait(call.id)
        {
            self.pass(&call);
        }
    }

    /// Returns false if no caller waits for an answer to this call. Should a keeper be killed while it answers such a
    /// call, the next one would count it.
    fn may_wait(&self, id: u64) -> bool {
        self.listener.is_valid(id) != Ok(false)
    }

    fn pass(&self, call: &Notification) {
        let waiting = self.waiting(call.id, call.arch, call.nr);
        self.answer(waiting, call.arch, call.nr, Some(call));
    }

    fn refusal(&self) -> Option<i32> {
        (self.policy.on_agent_death == OnAgentDeath::Deny).then_some(Errno::EPERM.0)
    }

    /// Answers and counts a call. `call`: the notification, if known.
    fn answer(&self, waiting: Waiting<'_>, audit: u32, nr: u32, call: Option<&Notification>) {
        let args = call.map(|call| &call.args);
        let is_harmless = || {
            let known = abi::arch::decode(audit, nr).and_then(|(_, call)| call);
            known.is_some_and(|call| abi::harmless::is_harmless(call, args))
        };
        let confined = match self.confiner {
            Some(confiner) => confiner.refusal(audit, nr, args).map(|errno| errno.0),
            None => Some(Errno::EPERM.0),
        };
        let confined = confined.or_else(|| self.refusal_of_first(audit, nr));
        let refusal = || self.shared_state.deny_table().refusal(audit, nr);
        let by_policy = || self.refusal().filter(|_| !is_harmless());
        let refused = confined.or_else(refusal).or_else(by_policy);
        let answer = match refused {
            Some(errno) => Answer::Errno(errno),
            // Last: a signal to many is sent from here.
            None => self.guarded(waiting.id, audit, nr, call),
        };
        // What was sent from here was done, also if it has ended the caller.
        let is_begun = waiting.is_begun || matches!(answer, Answer::Returned(_));
        self.respond(
            Waiting {
                is_begun,
                ..waiting
            },
            answer,
        );
    }

    /// Returns the answer to a call that nothing refuses but what it is aimed at.
    fn guarded(&self, id: u64, audit: u32, nr: u32, call: Option<&Notification>) -> Answer {
        let refused = Answer::Errno(Errno::EPERM.0);
        if !StandInGuard::concerns(audit, nr) {
            return Answer::Continue;
        }
        let (Some(guard), Some(call)) = (&self.guard, call) else {
            return refused;
        };
        // The caller may have gone, and its number be another process's.
        if !self.may_wait(id) {
            return refused;
        }
        match guard.answer(call, &self.shared_state.own_processes()) {
            None => Answer::Continue,
            Some(StandInAnswer::Refused) => refused,
            Some(StandInAnswer::Returned(result)) => Answer::Returned(result),
        }
    }

    /// Returns the refusal of a container's first exec, which must not happen before the
    /// restriction.
    fn refusal_of_first(&self, audit: u32, nr: u32) -> Option<i32> {
        let known = abi::arch::decode(audit, nr).and_then(|(_, call)| call);
        let begins = matches!(known, Some(Syscall::EXECVE | Syscall::EXECVEAT));
        (begins && self.shared_state.first_waits()).then_some(Errno::EPERM.0)
    }

    /// Returns the refusal of a call of which only the id is known, since the filter may have
    /// trapped it in order to have it refused.
    fn refusal_of_unknown(&self) -> Option<i32> {
        let confined = match self.confiner {
            Some(confiner) => confiner.refusal_of_unknown().map(|errno| errno.0),
            None => Some(Errno::EPERM.0),
        };
        let first = || self.shared_state.first_waits().then_some(Errno::EPERM.0);
        confined.or_else(first).or_else(|| self.refusal())
    }

    /// Answers and counts a call. Returns false if no caller waits for it any more. The shared
    /// state records the step in advance, so that the next keeper can determine the progress of one
    /// killed meanwhile.
    fn respond(&self, waiting: Waiting<'_>, answer: Answer) -> bool {
        let passed = Unwatched::Passed(self.cause);
        let result = match answer {
            Answer::Continue | Answer::Returned(0..) => passed,
            Answer::Errno(_) | Answer::Returned(_) => Unwatched::Denied,
        };
        // A call that has gone may have been allowed by whoever had begun with it.
        let gone = if waiting.is_begun { passed } else { result };
        self.note_answering(&waiting, gone);
        crash::point();
        let delivery = match answer {
            Answer::Continue => self.listener.respond_continue(waiting.id),
            Answer::Errno(errno) => self.listener.respond_errno(waiting.id, errno),
            Answer::Returned(result) => match i32::try_from(result) {
                Ok(errno @ ..0) => self.listener.respond_errno(waiting.id, -errno),
                _ => self.listener.respond_value(waiting.id, result),
            },
        };
        let is_delivered = delivery == Ok(Delivery::Delivered);
        let answering = &self.shared_state.answering;
        if is_delivered {
            answering.result.set(result.to_number());
        }
        if is_delivered || waiting.is_begun {
            self.count_answered();
        }
        crash::point();
        if let Some(dead) = waiting.dead {
            dead.settle(waiting.id);
        }
        answering.id.set(0);
        is_delivered
    }

    fn note_answering(&self, waiting: &Waiting<'_>, gone: Unwatched) {
        let (answering, gap) = (&self.shared_state.answering, &self.shared_state.gap);
        let call = u64::try_from(waiting.index).unwrap_or(0);
        answering.call.set(call);
        answering.calls_before.set(gap.calls[waiting.index].get());
        answering.result.set(gone.to_number());
        let passed = gap.total(Unwatched::Passed(self.cause));
        answering.passed_before.set(passed.get());
        answering.denied_before.set(gap.denied.get());
        // Set last: from now on the other fields are valid.
        answering.id.set(waiting.id);
    }

    /// Counts the call of [`Self::note_answering`]. Doing so again changes nothing.
    fn count_answered(&self) {
        let (answering, gap) = (&self.shared_state.answering, &self.shared_state.gap);
        let call = usize::try_from(answering.call.get());
        let call = call.ok().filter(|call| *call <= UNNAMED);
        let (Some(call), Some(result)) = (call, Unwatched::from_number(answering.result.get()))
        else {
            return;
        };
        let before = match result {
            Unwatched::Passed(_) => &answering.passed_before,
            Unwatched::Denied => &answering.denied_before,
        };
        gap.calls[call].set(answering.calls_before.get() + 1);
        gap.total(result).set(before.get() + 1);
    }

    /// Counts the call that a killed keeper has answered, even if it had counted a part of it. A call
    /// that has gone by itself meanwhile counts as answered.
    fn conclude_answering(&self) {
        let answering = &self.shared_state.answering;
        let id = answering.id.get();
        if id == 0 {
            return;
        }
        if self.listener.is_valid(id) == Ok(false) {
            self.count_answered();
            for generation in [0, 1] {
                self.shared_state.pulse(generation).settle(id);
            }
        }
        answering.id.set(0);
    }

    fn index(&self, audit: u32, nr: u32) -> usize {
        match usize::try_from(nr) {
            Ok(number) if audit == self.native && number < NATIVE_CALLS => number,
            _ => FOREIGN,
        }
    }

    /// Returns true if no watched process is left.
    pub(super) fn is_over(&self) -> bool {
        has_hung_up(self.listener)
    }

    /// Reports the number of unwatched calls if no agent will.
    pub(super) fn say_totals(&self) {
        let passed: u64 = Cause::ALL
            .iter()
            .map(|cause| self.shared_state.passed(*cause))
            .sum();
        let denied = self.shared_state.denied();
        eprintln!("tollgate: {passed} calls passed unwatched, {denied} were refused unwatched");
    }
}

fn answer_of(refusal: Option<i32>) -> Answer {
    refusal.map_or(Answer::Continue, Answer::Errno)
}

/// Returns how the processes of the monitor are protected, as by the agent.
fn guard_options(shared_state: &SharedState, policy: Policy) -> GuardOptions {
    let lenient = [shared_state.front_pid.get(), shared_state.waiter_pid.get()];
    GuardOptions {
        lenient: lenient
            .map(Pid)
            .into_iter()
            .filter(|pid| pid.0 > 0)
            .collect(),
        refuse_non_dumpable: policy.refuse_non_dumpable,
    }
}

/// Waits a while for an event, when the listener has no more calls.
pub(super) fn rest(signals: &SignalStream, bell: &EventFdNotifier) {
    let mut polled = [
        PollFd::new(signals.as_fd(), poll::IN),
        PollFd::new(bell.as_fd(), poll::IN),
    ];
    // The reason for waking does not matter; everything is checked.
    let _ = poll::poll(&mut polled, Some(TURN));
}
