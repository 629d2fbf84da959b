//! Standing in for an agent that is dead or does not move.

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

/// Deaths of agents within [`STORM_WINDOW_NS`] after which there is no other.
pub(super) const STORM_DEATHS: usize = 6;
const STORM_WINDOW_NS: u64 = 60_000_000_000;
/// Turns of standing in between two attempts to start an agent, where that is refused: of a call each, or
/// of some milliseconds.
const RETRY_TURNS: u32 = 4;
/// How long the waiter may take to say how a command ended that has ended.
const END_GRACE_NS: u64 = 5_000_000_000;
/// How long an engine of another process may take to conclude its calls. A stopped one would take for ever.
const OTHER_ENGINE_NS: u64 = 1_000_000_000;
/// Time between two looks for that.
const OTHER_ENGINE_POLL: Duration = Duration::from_millis(2);
/// Time between two looks for a command's end.
const END_POLL: Duration = Duration::from_millis(10);

impl Keeper<'_> {
    /// The agent ended before there was anything to keep.
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
        // Of a workload that has ended, too, an agent has to tell: only agents have the outputs.
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

    /// Where another process's engine received for the agent that is dead, it concludes the calls that it has.
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

    /// Becomes the agent, and leaves what this process did to a child of it. Returns if there cannot be
    /// one.
    fn lead(&mut self, listener: &Listener, gap: &UnwatchedInterval<'_>) {
        let inherited = self.inherited;
        let shared_state = &inherited.shared_state;
        let generation = shared_state.generation.get() + 1;
        shared_state.invite(generation);
        let own_pid = std::process::id().cast_signed();
        let keeper = sys::clone::clone_child(CloneFlags::default(), || {
            // Whoever is told looks there.
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
        // The keeper sees the end of this process, and starts another agent.
        std::process::exit(Successor::exec(
            inherited,
            listener,
            generation,
            Program::This,
        ));
    }

    /// Answers calls until one agent after the other has been tried. `first`: one that was started.
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
                    // The workload has used up all processes or memory that may be had, for now.
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

    /// Answers calls until the agent is ready; `None` if it has ended instead, and another one is
    /// needed. When the workload has ended this one still is waited for: it tells of the gap.
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
        if !is_over {
            return None;
        }
        // One was tried, and there is nothing left to watch.
        gap.say_totals();
        self.say_lost_alerts();
        self.say_the_end();
        Some(Next::Done)
    }

    /// Answers calls for a while; `None` if there are more to come.
    fn serve_a_while(&mut self, gap: &UnwatchedInterval<'_>) -> Option<Next> {
        for _ in 0..RETRY_TURNS {
            let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
            gap.sweep();
            self.inherited.keeper_bell.hush();
            self.read_signals();
            while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
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

    /// Records a death; whether there were too many.
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

    /// There is no agent any more: the policy decides each call, and this process tells the front.
    fn stand_in_for_good(&mut self, gap: &UnwatchedInterval<'_>) -> Next {
        let what = match self.policy.on_agent_death {
            OnAgentDeath::Deny => "calls that would be watched are refused",
            OnAgentDeath::Continue | OnAgentDeath::Kill => "calls pass unwatched",
        };
        eprintln!(
            "tollgate: the agent died {STORM_DEATHS} times in a minute and is not restarted: {what} \
            (--on-agent-death)"
        );
        let is_told = self.inherited.shared_state.command_end_told.get();
        let mut relay = (!is_told).then(|| Relay::new(self.inherited));
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
            let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
            gap.sweep();
            self.inherited.keeper_bell.hush();
            self.read_signals();
            while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
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

    /// What agents took with them, where no other will say so.
    fn say_lost_alerts(&self) {
        if let Some(text) = self.inherited.shared_state.lost_alerts_to_say() {
            eprintln!("tollgate: {text}");
        }
    }

    /// The workload has ended and the agent with it: tells the front what nobody has told it.
    fn say_the_end(&self) {
        if self.inherited.shared_state.command_end_told.get() {
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

    /// Answers calls until the agent makes progress. One that does not for long is replaced.
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
            // Nobody is left who could call: the agent may take its time to end.
            if turn == TurnResult::HungUp {
                break;
            }
            let vitals = shared_state.pulse(generation).vitals();
            if vitals.progress != before.progress {
                self.fruitless = 0;
                break;
            }
            // It is scheduled again. If that does not make it receive, this begins anew.
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
