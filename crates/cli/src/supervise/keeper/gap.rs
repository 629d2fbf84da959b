//! Answering calls while nobody watches.

use std::os::fd::AsFd;
use std::time::Duration;

use abi::Syscall;
use capture::notify::Confiner;
use sys::notify::{Delivery, Listener, Notification, Received};
use sys::poll::{self, PollFd};
use sys::signal::SignalStream;
use sys::time::{Clock, now_ns};

use super::super::board::{Board, Cause, FOREIGN, NATIVE_CALLS, UNNAMED, word};
use super::super::inherited::{Bell, Inherited, has_calls, has_hung_up};
use super::{OnAgentDeath, Policy};

/// How long one turn may take when nothing happens.
const TURN: Duration = Duration::from_millis(50);
/// Ids looked up at once: about a millisecond. At first this many of the newest.
const SWEEP: u64 = 4096;
/// Calls answered in one turn.
const CALLS: usize = 256;
const EPERM: i32 = 1;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    GoOn,
    /// No watched process is left.
    HungUp,
}

/// A time in which the keeper answers.
pub(super) struct Gap<'a> {
    board: &'a Board,
    confiner: Option<&'a Confiner>,
    listener: &'a Listener,
    policy: Policy,
    cause: Cause,
    began_ns: u64,
    native: u32,
}

/// Ids of calls that a dead agent may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unswept {
    /// The next one to look up, downwards.
    next: u64,
    left: u64,
}

impl<'a> Gap<'a> {
    /// A gap begins.
    pub(super) fn begin(
        inherited: &'a Inherited,
        listener: &'a Listener,
        policy: Policy,
        (cause, detail): (Cause, u64),
    ) -> Self {
        let gap = Self::begin_silently(inherited, listener, policy, cause);
        // A keeper that was killed in a gap left it open.
        if gap.board.load(word::GAPS_BEGUN) == gap.board.load(word::GAPS_ENDED) {
            gap.board.add(word::GAPS_BEGUN, 1);
            gap.board.set(word::GAP_BEGAN, gap.began_ns);
        }
        gap.board.set(word::GAP_CAUSE, cause as u64);
        gap.board.set(word::GAP_DETAIL, detail);
        gap
    }

    /// To look whether there is one.
    pub(super) fn begin_silently(
        inherited: &'a Inherited,
        listener: &'a Listener,
        policy: Policy,
        cause: Cause,
    ) -> Self {
        Self {
            board: &inherited.board,
            confiner: inherited.confiner(),
            listener,
            policy,
            cause,
            began_ns: now_ns(Clock::Monotonic),
            native: abi::Arch::native().map_or(0, |arch| arch.audit()),
        }
    }

    /// It is over. What passed is for the agent to report.
    pub(super) fn end(&self) {
        let began_ns = self.board.load(word::GAP_BEGAN).min(self.began_ns);
        let lasted = now_ns(Clock::Monotonic).saturating_sub(began_ns);
        self.board.add(word::GAP_LASTED, lasted);
        let begun = self.board.load(word::GAPS_BEGUN);
        self.board.set(word::GAPS_ENDED, begun);
    }

    /// Answers the calls that a dead agent had received: those that its receivers worked on or had just been
    /// given, and any others (calls handed to the tracer) by their ids, which the kernel counts up. The newest
    /// are looked up at once, the rest is for [`Gap::sweep`], which need not end before the gap does: the next
    /// agent's are newer.
    pub(super) fn take_over_held(&self, generation: u64) -> Option<Unswept> {
        for held in self.board.pulse(generation).held() {
            let is_answered = self.answer(held.id, held.audit, held.nr, None);
            if !is_answered && !held.is_begun {
                // Its caller is gone.
                continue;
            }
            if !is_answered {
                // It had let the call go, and perhaps not learnt the result nor told the rules.
                self.board.add(word::PASSED + self.cause as usize, 1);
            }
            self.count(self.index(held.audit, held.nr));
        }
        let (first, newest) = self.board.pulse(generation).ids()?;
        let left = newest.wrapping_sub(first).saturating_add(1);
        self.sweep(Unswept { next: newest, left }).1
    }

    /// Answers the calls that receivers of a living agent are at work on.
    pub(super) fn answer_held(&self, generation: u64) {
        let held = self.board.pulse(generation).held();
        for held in held.filter(|held| held.is_begun) {
            if self.answer(held.id, held.audit, held.nr, None) {
                self.count(self.index(held.audit, held.nr));
            }
        }
    }

    /// Looks some ids up; answers with the number found and the rest. The kernel refuses an answer
    /// to a call that nobody has received.
    pub(super) fn sweep(&self, unswept: Unswept) -> (u64, Option<Unswept>) {
        let now = unswept.left.min(SWEEP);
        let mut found = 0;
        for back in 0..now {
            if self.respond(unswept.next.wrapping_sub(back), self.refusal_of_unknown()) {
                self.count(UNNAMED);
                found += 1;
            }
        }
        let rest = Unswept {
            next: unswept.next.wrapping_sub(now),
            left: unswept.left - now,
        };
        (found, (rest.left > 0).then_some(rest))
    }

    /// Answers what waits, or waits a while for something to happen.
    pub(super) fn serve(&self, signals: &SignalStream, bell: &Bell) -> Turn {
        let mut polled = [
            PollFd::new(self.listener.as_fd(), poll::IN),
            PollFd::new(signals.as_fd(), poll::IN),
            PollFd::new(bell.as_fd(), poll::IN),
        ];
        // Whatever woke it, everything is looked at.
        let _ = poll::poll(&mut polled, Some(TURN));
        let found = polled[0].found();
        if found & (poll::HUP | poll::ERR) != 0 {
            return Turn::HungUp;
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
        Turn::GoOn
    }

    /// Should another receiver take the call first, this waits for the next one.
    fn receive(&self) {
        let mut call = Notification::default();
        let received = self
            .listener
            .receive_into(self.board.keepers_call(), &mut call);
        if matches!(received, Ok(Received::Notification)) {
            self.pass(&call);
        }
    }

    /// Answers the call that a keeper had received, and was killed.
    pub(super) fn take_over_keepers(&self) {
        if let Some(call) = self.board.keepers_call().call() {
            self.pass(&call);
        }
    }

    fn pass(&self, call: &Notification) {
        if self.answer(call.id, call.arch, call.nr, Some(&call.args)) {
            self.count(self.index(call.arch, call.nr));
        }
    }

    fn refusal(&self) -> Option<i32> {
        (self.policy.on_agent_death == OnAgentDeath::Deny).then_some(EPERM)
    }

    /// Answers a call; false if nobody waits for it any more. `args`: its registers, if they are known.
    fn answer(&self, id: u64, audit: u32, nr: u32, args: Option<&[u64; 6]>) -> bool {
        let is_harmless = || {
            let known = abi::arch::decode(audit, nr).and_then(|(_, call)| call);
            known.is_some_and(|call| abi::harmless::is_harmless(call, args))
        };
        let confined = match self.confiner {
            Some(confiner) => confiner.refusal(audit, nr, args).map(|errno| errno.0),
            None => Some(EPERM),
        };
        let confined = confined.or_else(|| self.refusal_of_first(audit, nr));
        let refusal = || self.board.deny_table().refusal(audit, nr);
        let by_policy = || self.refusal().filter(|_| !is_harmless());
        self.respond(id, confined.or_else(refusal).or_else(by_policy))
    }

    /// A container's first program does not begin while nobody restricts it.
    fn refusal_of_first(&self, audit: u32, nr: u32) -> Option<i32> {
        let known = abi::arch::decode(audit, nr).and_then(|(_, call)| call);
        let begins = matches!(known, Some(Syscall::EXECVE | Syscall::EXECVEAT));
        (begins && self.board.first_waits()).then_some(EPERM)
    }

    /// For a call of which only the id is known: it may be one that the filter handed over in order to
    /// have it refused.
    fn refusal_of_unknown(&self) -> Option<i32> {
        let confined = match self.confiner {
            Some(confiner) => confiner.refusal_of_unknown().map(|errno| errno.0),
            None => Some(EPERM),
        };
        let first = || self.board.first_waits().then_some(EPERM);
        confined.or_else(first).or_else(|| self.refusal())
    }

    fn respond(&self, id: u64, refusal: Option<i32>) -> bool {
        let answer = match refusal {
            Some(errno) => self.listener.respond_errno(id, errno),
            None => self.listener.respond_continue(id),
        };
        let is_delivered = answer == Ok(Delivery::Delivered);
        if is_delivered {
            let total = match refusal {
                Some(_) => word::DENIED,
                None => word::PASSED + self.cause as usize,
            };
            self.board.add(total, 1);
        }
        is_delivered
    }

    fn index(&self, audit: u32, nr: u32) -> usize {
        match usize::try_from(nr) {
            Ok(number) if audit == self.native && number < NATIVE_CALLS => number,
            _ => FOREIGN,
        }
    }

    fn count(&self, call: usize) {
        self.board.add(word::CALLS + call, 1);
    }

    /// Whether no watched process is left.
    pub(super) fn is_over(&self) -> bool {
        has_hung_up(self.listener)
    }

    /// Says how many calls nobody watched, where no agent will.
    pub(super) fn say_totals(&self) {
        let passed: u64 = Cause::ALL
            .iter()
            .map(|cause| self.board.passed(*cause))
            .sum();
        let denied = self.board.denied();
        eprintln!("tollgate: {passed} calls passed unwatched, {denied} were refused unwatched");
    }
}

/// Waits a while for something to happen, when the listener has nothing more to tell.
pub(super) fn rest(signals: &SignalStream, bell: &Bell) {
    let mut polled = [
        PollFd::new(signals.as_fd(), poll::IN),
        PollFd::new(bell.as_fd(), poll::IN),
    ];
    // Whatever woke it, everything is looked at.
    let _ = poll::poll(&mut polled, Some(TURN));
}
