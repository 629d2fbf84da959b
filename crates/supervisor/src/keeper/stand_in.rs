//! Stands in for an agent that is dead or makes no progress.

use std::time::Duration;

use sys::clone::CloneFlags;
use sys::notify::Listener;
use sys::time::{Clock, now_ns};
use sys::wait::{self, Target};

use super::super::inherited::has_hung_up;
use super::super::message::Message;
use super::super::relay::{Relay, tell};
use super::super::shared_state::{Cause, State};
use super::gap::{self, TurnResult, UnwatchedInterval};
use super::stall::Stall;
use super::successor::{Program, Successor};
use super::{Keeper, Next, OnAgentDeath, PREPARATION_NS, STARVED_LIMITS, workload};

/// Number of agents' deaths within [`STORM_WINDOW_NS`] after which no other agent is started.
pub(super) const STORM_DEATHS: usize = 6;
const STORM_WINDOW_NS: u64 = 60_000_000_000;
/// Number of turns between attempts to start an agent after a failure. A turn is one call, or some
/// milliseconds.
const RETRY_TURNS: u32 = 4;
/// Time limit for the waiter to report the end of a command, and for a killed agent to end.
const END_GRACE_NS: u64 = 5_000_000_000;
/// Time limit for the engine of another process to conclude its calls. A stopped one would never
/// finish.
const OTHER_ENGINE_NS: u64 = 1_000_000_000;
/// Interval of checks for [`OTHER_ENGINE_NS`].
const OTHER_ENGINE_POLL: Duration = Duration::from_millis(2);
/// Interval of checks for a command's end.
const END_POLL: Duration = Duration::from_millis(10);

impl Keeper<'_> {
    /// Handles an agent that ended before the listener existed.
    pub(super) fn never_began(&self) -> Next {
        workload::kill_all(self.inherited, &self.agent, None);
        tell(self.inherited, Message::AgentGone);
        Next::Done
    }

    /// Answers calls until another agent does.
    pub(super) fn stand_in(&mut self, listener: &Listener, generation: u64) -> Next {
        let shared_state = &self.inherited.shared_state;
        let (cause, detail) = self.agent.cause();
        shared_state.count_lost_alerts(generation);
        // An agent must report even on a workload that has ended: only agents have the outputs.
        let is_over = has_hung_up(listener);
        let gap = UnwatchedInterval::begin(self.inherited, listener, self.policy, (cause, detail));
        self.await_other_engine(&gap, generation);
        gap.take_over_held(generation);
        shared_state.bury(generation);
        if self.policy.on_agent_death == OnAgentDeath::Kill && !is_over {
            return self.kill_workload(listener, &gap);
        }
        if !is_over && std::mem::take(&mut self.may_lead) {
            self.lead(listener, &gap);
        }
        self.find_successor(listener, &gap, None)
    }

    /// Waits for the engine of another process, which received for the dead agent, to conclude its
    /// calls.
    fn await_other_engine(&mut self, gap: &UnwatchedInterval<'_>, generation: u64) {
        let pulse = self.inherited.shared_state.pulse(generation);
        let limit = now_ns(Clock::Monotonic) + OTHER_ENGINE_NS;
        pulse.withdraw();
        while pulse.is_in_use() && now_ns(Clock::Monotonic) < limit {
            if gap.serve_for(
                OTHER_ENGINE_POLL,
                &self.signals,
                &self.inherited.keeper_bell,
            ) == TurnResult::HungUp
            {
                return;
            }
            self.inherited.keeper_bell.hush();
            self.read_signals();
        }
    }

    /// Becomes the agent, with a child as the new keeper. Returns if that fails.
    fn lead(&mut self, listener: &Listener, gap: &UnwatchedInterval<'_>) {
        let inherited = self.inherited;
        let shared_state = &inherited.shared_state;
        let generation = shared_state.generation.get() + 1;
        shared_state.invite(generation);
        let own_pid = std::process::id().cast_signed();
        shared_state.set_agent_pid(generation, own_pid);
        let keeper = sys::clone::clone_child(CloneFlags::default(), || {
            // The reader of the message looks there.
            shared_state
                .keeper_pid
                .set(std::process::id().cast_signed());
            tell(inherited, Message::KeeperMoved);
            self.listener = listener.try_clone().ok();
            let next = self.find_successor(listener, gap, Some(Successor::of(own_pid)));
            self.go_on(next)
        });
        let Ok(keeper) = keeper else { return };
        shared_state.keeper_pid.set(keeper);
        // The new keeper sees the end of this process, and starts another agent.
        std::process::exit(Successor::exec(
            inherited,
            listener,
            generation,
            Program::This,
        ));
    }

    /// Answers calls while successors are tried. `first` is one that is already started.
    fn find_successor(
        &mut self,
        listener: &Listener,
        gap: &UnwatchedInterval<'_>,
        mut first: Option<Successor>,
    ) -> Next {
        let shared_state = &self.inherited.shared_state;
        let mut waited = 0_u32;
        loop {
            if first.is_none() && waited == 0 && self.is_storm() {
                return self.stand_in_for_good(gap);
            }
            let generation = shared_state.generation.get() + 1;
            let successor = first.take().map_or_else(
                || Successor::start(self.inherited, listener, generation, Program::This),
                Ok,
            );
            let successor = match successor {
                Ok(successor) => successor,
                Err(error) => {
                    // The workload has exhausted processes or memory for now.
                    if waited == 0 {
                        eprintln!("tollgate: cannot start a new agent: {error}; retrying");
                    }
                    waited = waited.saturating_add(1);
                    if let Some(next) = self.serve_a_while(gap) {
                        return next;
                    }
                    continue;
                }
            };
            waited = 0;
            if let Some(next) = self.await_successor(gap, generation, successor) {
                return next;
            }
        }
    }

    /// Answers calls until the agent is ready. Returns `None` if it has ended and another one is
    /// needed. The agent is waited for even when the workload has ended, since it reports the
    /// unwatched interval.
    fn await_successor(
        &mut self,
        gap: &UnwatchedInterval<'_>,
        generation: u64,
        mut successor: Successor,
    ) -> Option<Next> {
        let limit = now_ns(Clock::Monotonic) + PREPARATION_NS;
        let mut is_over = false;
        while !successor.has_ended() {
            if is_over {
                gap::rest(&self.signals, &self.inherited.keeper_bell);
            } else if gap.serve(&self.signals, &self.inherited.keeper_bell) == TurnResult::HungUp {
                gap.end();
                self.inherited.shared_state.unswept().clear();
                is_over = true;
            }
            gap.sweep();
            self.inherited.keeper_bell.hush();
            self.read_signals();
            while let Ok(Some((pid, status))) = wait::wait(Target::Any, wait::NO_HANG) {
                successor.ended(pid, status);
            }
            if self.inherited.shared_state.state(generation) == State::Prepared {
                if !is_over {
                    gap.end();
                }
                self.hand_to(generation, successor);
                return Some(Next::GoOn);
            }
            if now_ns(Clock::Monotonic) > limit {
                successor.kill();
            }
        }
        // Its number may be another process's by now.
        self.inherited.shared_state.set_agent_pid(generation, 0);
        if !is_over {
            return None;
        }
        // One agent was tried, and no watched process is left.
        gap.say_totals();
        self.say_lost_alerts();
        self.say_the_end();
        Some(Next::Done)
    }

    /// Answers calls for a while. Returns `None` if there are more to come.
    fn serve_a_while(&mut self, gap: &UnwatchedInterval<'_>) -> Option<Next> {
        for _ in 0..RETRY_TURNS {
            let turn = self.serve_a_turn(gap);
            if turn == TurnResult::HungUp {
                gap.end();
                gap.say_totals();
                self.say_lost_alerts();
                self.say_the_end();
                return Some(Next::Done);
            }
        }
        None
    }

    /// Answers calls once, then handles what has arrived meanwhile.
    fn serve_a_turn(&mut self, gap: &UnwatchedInterval<'_>) -> TurnResult {
        let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
        gap.sweep();
        self.inherited.keeper_bell.hush();
        self.read_signals();
        while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
        turn
    }

    /// Records a death. Returns true if there were too many.
    fn is_storm(&mut self) -> bool {
        if self.agent.take_pardon() {
            return false;
        }
        let now = now_ns(Clock::Monotonic);
        self.deaths.rotate_left(1);
        self.deaths[STORM_DEATHS - 1] = now;
        let oldest = self.deaths[0];
        oldest != 0 && now - oldest < STORM_WINDOW_NS
    }

    /// Answers calls without any further agent: the policy decides each call, and this process
    /// reports to the front.
    fn stand_in_for_good(&mut self, gap: &UnwatchedInterval<'_>) -> Next {
        let what = match self.policy.on_agent_death {
            OnAgentDeath::Deny => "calls that would be watched are refused",
            OnAgentDeath::Continue | OnAgentDeath::Kill => "calls pass unwatched",
        };
        eprintln!(
            "tollgate: the agent died {STORM_DEATHS} times in a minute and is not restarted: {what} \
            (--on-agent-death)"
        );
        let is_reported = self.inherited.shared_state.command_end_reported.get();
        let mut relay = (!is_reported).then(|| Relay::new(self.inherited));
        loop {
            while let Some(listening) = &mut relay {
                let Some(news) = listening.next() else { break };
                if let Some(end) = listening.pass_on(news) {
                    gap.say_totals();
                    self.say_lost_alerts();
                    let is_over = gap.is_over();
                    self.inherited.shared_state.outlived.set(!is_over);
                    listening.tell_end(end);
                    relay = None;
                }
            }
            let turn = self.serve_a_turn(gap);
            if turn == TurnResult::HungUp {
                if relay.is_some() {
                    gap.say_totals();
                    self.say_lost_alerts();
                }
                self.say_the_end();
                return Next::Done;
            }
        }
    }

    /// Reports the alerts lost with agents if no successor will.
    fn say_lost_alerts(&self) {
        if let Some(text) = self.inherited.shared_state.lost_alerts_to_say() {
            eprintln!("tollgate: {text}");
        }
    }

    /// Reports to the front the end of a workload whose agent has also ended.
    fn say_the_end(&self) {
        if self.inherited.shared_state.command_end_reported.get() {
            return;
        }
        let mut relay = Relay::new(self.inherited);
        let limit = now_ns(Clock::Monotonic) + END_GRACE_NS;
        while now_ns(Clock::Monotonic) < limit {
            let Some(news) = relay.next() else {
                std::thread::sleep(END_POLL);
                continue;
            };
            if let Some(end) = relay.pass_on(news) {
                relay.tell_end(end);
                return;
            }
        }
        tell(self.inherited, Message::AgentGone);
    }

    fn kill_workload(&self, listener: &Listener, gap: &UnwatchedInterval<'_>) -> Next {
        workload::kill_all(self.inherited, &self.agent, Some(listener));
        gap.say_totals();
        self.say_lost_alerts();
        tell(self.inherited, Message::AgentGone);
        Next::Done
    }

    /// Waits for a killed agent, which may still settle alerts. One in an uninterruptible call is not waited for.
    fn await_agent_end(&self) {
        let limit = now_ns(Clock::Monotonic) + END_GRACE_NS;
        while !self.agent.has_ended() && now_ns(Clock::Monotonic) < limit {
            std::thread::sleep(END_POLL);
        }
    }

    /// Answers calls until the agent makes progress. After a long time the agent is replaced.
    pub(super) fn stand_in_for_starved(&mut self) -> Next {
        let Some(listener) = self.listener.take() else {
            return Next::GoOn;
        };
        let shared_state = &self.inherited.shared_state;
        let generation = shared_state.generation.get();
        let cause = (Cause::Starved, 0);
        let gap = UnwatchedInterval::begin(self.inherited, &listener, self.policy, cause);
        if self.policy.on_agent_death == OnAgentDeath::Kill && !has_hung_up(&listener) {
            self.agent.kill(Cause::Starved);
            workload::kill_all(self.inherited, &self.agent, Some(&listener));
            self.await_agent_end();
            // As for an agent that ended by itself: what it held and had queued ends with it.
            shared_state.count_lost_alerts(generation);
            gap.take_over_held(generation);
            return self.kill_workload(&listener, &gap);
        }
        gap.answer_held(generation);
        let before = shared_state.pulse(generation).vitals();
        let limit = self.policy.limit * STARVED_LIMITS;
        let limit = now_ns(Clock::Monotonic) + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
            self.inherited.keeper_bell.hush();
            self.read_signals();
            self.reap();
            // No caller is left: the agent may take its time to end.
            if turn == TurnResult::HungUp {
                break;
            }
            let vitals = shared_state.pulse(generation).vitals();
            if vitals.progress != before.progress {
                self.fruitless = 0;
                break;
            }
            // The agent is scheduled again. If it still does not receive, this starts over.
            if vitals.ticks != before.ticks {
                self.fruitless += 1;
                break;
            }
            if self.agent.has_ended() {
                break;
            }
            if now_ns(Clock::Monotonic) > limit {
                self.agent.kill(Cause::Starved);
                break;
            }
        }
        if self.fruitless >= STARVED_LIMITS {
            self.agent.kill(Cause::Starved);
        }
        gap.end();
        self.stall = Stall::default();
        self.listener = Some(listener);
        self.inherited.agent_bell(generation).ring();
        Next::GoOn
    }
}
