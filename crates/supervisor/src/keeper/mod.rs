//! The keeper: a small process that holds a copy of the listener and ensures that there is an
//! agent.
//!
//! The keeper has no rules. While the agent works, the keeper sleeps, and checks a few times a
//! second for calls that are not received. When the agent has ended, is stopped or gets no
//! processor, an unwatched interval ([`gap`]) begins: the keeper answers in the agent's place,
//! counts the calls that it lets pass, and starts another agent.

mod charge;
mod gap;
#[cfg(test)]
mod gap_tests;
#[cfg(test)]
mod guard_tests;
mod stall;
mod stand_in;
mod successor;
mod upgrade;
mod workload;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use abi::Errno;
use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::signal::{SignalSet, SignalStream};
use sys::wait::{self, Status, Target};

use self::charge::Agent;
use self::gap::UnwatchedInterval;
use self::stall::{Stall, StallCheck, StallLimit};
use self::stand_in::STORM_DEATHS;
use self::successor::Successor;
use self::upgrade::Upgrade;
use super::control_signal::SenderCheck;
use super::inherited::{InheritedDescriptors, has_calls, is_readable};
use super::message::Message;
use super::orphans::{self, Orphans};
use super::relay::tell;
use super::shared_state::{Cause, FIRST, Order, State};
use super::signals::{self, SIGCHLD};

/// What happens to the workload while no agent watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAgentDeath {
    /// Calls pass and are counted.
    Continue,
    /// Calls fail with EPERM.
    Deny,
    /// The workload is killed.
    Kill,
}

/// Settings of a keeper.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// What happens to the workload while no agent watches.
    pub on_agent_death: OnAgentDeath,
    /// Time limit for calls without progress of the agent.
    pub limit: Duration,
    /// A process of the workload may not make itself unreadable (`PR_SET_DUMPABLE` 0).
    pub refuse_non_dumpable: bool,
}

/// Signal that requests an upgrade to another agent.
const UPGRADE: i32 = 12;
/// Number of checks of a working agent per limit.
const LOOKS: u32 = 4;
/// Interval of checks during an upgrade.
const UPGRADE_POLL: Duration = Duration::from_millis(20);
/// Time limit for an agent to load its rules.
const PREPARATION_NS: u64 = 60_000_000_000;
/// Number of limits without a processor after which an agent is replaced.
const STARVED_LIMITS: u32 = 10;

/// Starts the first agent and monitors it. Returns an exit status that no process reads.
pub(super) fn first(
    inherited: &InheritedDescriptors,
    listener_from: &OwnedFd,
    policy: Policy,
    agent: impl FnOnce() -> i32,
) -> i32 {
    let own_pid = std::process::id().cast_signed();
    inherited.shared_state.keeper_pid.set(own_pid);
    let may_lead = Orphans::decide() == Orphans::TakeIn;
    match sys::clone::clone_child(sys::clone::CloneFlags::default(), agent) {
        Ok(pid) => {
            super::turns::take_usual_turns();
            inherited.shared_state.set_agent_pid(FIRST, pid);
        }
        Err(error) => {
            tell(inherited, Message::NotReady(error.errno()));
            inherited.shared_state.keeper_done.set(true);
            return 1;
        }
    }
    if let Err(error) = inherited.tenure.leave() {
        tell(
            inherited,
            Message::NotReady(error.raw_os_error().unwrap_or(Errno::EIO.0)),
        );
        inherited.shared_state.keeper_done.set(true);
        return 1;
    }
    keep(inherited, Source::Socket(listener_from), policy, may_lead)
}

/// Continues for a keeper that has died.
pub(super) fn replacing(
    inherited: &InheritedDescriptors,
    listener: &Listener,
    policy: Policy,
) -> i32 {
    let shared_state = &inherited.shared_state;
    shared_state
        .keeper_pid
        .set(std::process::id().cast_signed());
    shared_state.keepers_replaced.add(1);
    inherited.agent_bell(shared_state.generation.get()).ring();
    // The caller's pipes would stay open; without a log the keeper can still monitor.
    let _ = inherited.tenure.leave();
    UnwatchedInterval::begin_silently(inherited, listener, policy, Cause::Gone).take_over_keepers();
    keep(inherited, Source::Own(listener), policy, false)
}

/// Source of the listener.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The first agent sends the listener.
    Socket(&'a OwnedFd),
    /// This process has the listener.
    Own(&'a Listener),
}

fn keep(
    inherited: &InheritedDescriptors,
    source: Source<'_>,
    policy: Policy,
    may_lead: bool,
) -> i32 {
    let ready = signals::outlive_command()
        .and_then(|()| sys::prctl::set_name(c"tollgate-keeper"))
        .and_then(|()| SignalStream::new(SignalSet::of(&[SIGCHLD, UPGRADE])));
    let signals = match ready {
        Ok(signals) => signals,
        Err(error) => {
            tell(inherited, Message::NotReady(error.errno()));
            inherited.shared_state.keeper_done.set(true);
            return 1;
        }
    };
    let listener = match source {
        Source::Socket(_) => None,
        Source::Own(listener) => listener.try_clone().ok(),
    };
    let pid = inherited
        .shared_state
        .agent_pid(inherited.shared_state.generation.get());
    let mut keeper = Keeper {
        inherited,
        source,
        listener,
        signals,
        policy,
        agent: Agent::new(pid),
        deaths: [0; STORM_DEATHS],
        upgrade: None,
        wants_upgrade: false,
        upgraded_ns: 0,
        orders: SenderCheck::new(&inherited.shared_state),
        stall: Stall::default(),
        fruitless: 0,
        may_lead,
    };
    keeper.go_on(Next::GoOn)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Done,
}

struct Keeper<'a> {
    inherited: &'a InheritedDescriptors,
    source: Source<'a>,
    listener: Option<Listener>,
    signals: SignalStream,
    policy: Policy,
    agent: Agent,
    /// Times of agents' deaths, the oldest first.
    deaths: [u64; STORM_DEATHS],
    upgrade: Option<Upgrade>,
    /// An upgrade was requested and has not begun.
    wants_upgrade: bool,
    /// Start of the last upgrade; 0 for none.
    upgraded_ns: u64,
    orders: SenderCheck,
    stall: Stall,
    /// Number of times in a row that the agent was scheduled again and did not receive.
    fruitless: u32,
    /// This process may become the agent. Only ancestors of the workload may access its memory, and
    /// this is the one left when the agent is dead.
    may_lead: bool,
}

impl Keeper<'_> {
    /// Monitors agents to the end. Returns an exit status.
    fn go_on(&mut self, mut next: Next) -> i32 {
        while next == Next::GoOn {
            next = self.step();
        }
        orphans::see_off(self.inherited.shared_state.waiter_pid.get());
        self.inherited.shared_state.keeper_done.set(true);
        0
    }

    fn step(&mut self) -> Next {
        self.sleep();
        self.inherited.keeper_bell.hush();
        self.read_signals();
        self.take_listener();
        self.reap();
        // Checked first: an agent that has handed over may have ended since.
        if self.upgrade.is_some() {
            self.follow_upgrade();
        }
        if self.agent.has_ended() {
            return self.agent_ended();
        }
        self.sweep();
        if self.wants_upgrade && self.upgrade.is_none() && self.may_upgrade() {
            self.begin_upgrade();
        }
        if self.upgrade.is_some() {
            return Next::GoOn;
        }
        match self.look() {
            StallCheck::Works => Next::GoOn,
            StallCheck::Stopped => {
                self.agent.kill(Cause::Stopped);
                self.stall = Stall::default();
                Next::GoOn
            }
            StallCheck::Starved => self.stand_in_for_starved(),
        }
    }

    fn sleep(&self) {
        let mut polled = [
            PollFd::new(self.inherited.keeper_bell.as_fd(), poll::IN),
            PollFd::new(self.signals.as_fd(), poll::IN),
            PollFd::new(self.inherited.keeper_bell.as_fd(), poll::IN),
        ];
        let mut count = 2;
        if let Some(process) = &self.agent.process {
            polled[2] = PollFd::new(process.as_fd(), poll::IN);
            count = 3;
        }
        // An agent that had ended before this process started wakes no process.
        let patience =
            if !self.inherited.shared_state.unswept().is_empty() || self.agent.process.is_none() {
                Some(Duration::ZERO)
            } else if self.upgrade.is_some() || self.wants_upgrade {
                Some(UPGRADE_POLL)
            } else {
                self.listener.as_ref().map(|_| self.policy.limit / LOOKS)
            };
        // The reason for waking does not matter; everything is checked.
        let _ = poll::poll(&mut polled[..count], patience);
    }

    /// Continues the lookup of calls that a dead agent had received. One that is found late is an
    /// unwatched interval of its own.
    fn sweep(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let cause = Cause::Gone;
        let gap = UnwatchedInterval::begin_silently(self.inherited, listener, self.policy, cause);
        if gap.sweep() > 0 || self.inherited.shared_state.has_calls_without_interval() {
            UnwatchedInterval::begin(self.inherited, listener, self.policy, (cause, 0)).end();
            let generation = self.inherited.shared_state.generation.get();
            self.inherited.agent_bell(generation).ring();
        }
    }

    fn read_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.next() {
            if signal.signal != UPGRADE {
                continue;
            }
            if self.orders.accepts(&self.inherited.shared_state, &signal) {
                self.wants_upgrade = true;
            } else {
                let shared_state = &self.inherited.shared_state;
                shared_state.orders_refused.add(1);
                self.inherited
                    .agent_bell(shared_state.generation.get())
                    .ring();
            }
        }
    }

    fn take_listener(&mut self) {
        if let Source::Socket(socket) = self.source
            && self.listener.is_none()
            && is_readable(socket.as_fd(), Duration::ZERO)
            && let Ok((_, Some(listener))) = sys::socket::receive_fd(socket.as_fd(), &mut [0])
        {
            self.listener = Some(Listener::new(listener));
        }
    }

    /// Reaps children, which are agents.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait::wait(Target::Any, wait::NO_HANG) {
            self.ended(pid, status);
        }
    }

    fn ended(&mut self, pid: i32, status: Status) {
        if pid == self.agent.pid {
            self.agent.status = Some(status);
        } else if let Some(upgrade) = &mut self.upgrade {
            upgrade.successor.ended(pid, status);
        }
    }

    fn agent_ended(&mut self) -> Next {
        let shared_state = &self.inherited.shared_state;
        let generation = shared_state.generation.get();
        self.drop_upgrade();
        // The agent may have been reaped after it was seen to have ended.
        self.reap();
        if shared_state.state(generation) == State::Finished {
            return Next::Done;
        }
        let Some(listener) = self.listener.take() else {
            return self.never_began();
        };
        let next = self.stand_in(&listener, generation);
        self.listener = Some(listener);
        next
    }

    fn look(&mut self) -> StallCheck {
        let shared_state = &self.inherited.shared_state;
        let generation = shared_state.generation.get();
        let Some(listener) = &self.listener else {
            return StallCheck::Works;
        };
        let (once, often) = (self.policy.limit, self.policy.limit * STARVED_LIMITS);
        let (stopped, starved) = match shared_state.state(generation) {
            // The agent is being killed; it is not starved.
            State::Ready if self.agent.is_condemned() => (often, often),
            // A keeper can only refuse a container's first exec, for which only its runtime waits.
            State::Ready if shared_state.first_waits() => (once, often),
            State::Ready => (once, once),
            // Threads are being started and containers looked up.
            _ => (often, often),
        };
        let vitals = shared_state.pulse(generation).vitals();
        let is_waited_for = has_calls(listener);
        self.stall.look(
            vitals,
            is_waited_for,
            StallLimit { stopped, starved },
            self.policy.limit / LOOKS,
            self.agent.pid,
        )
    }

    /// Gives the turn to the next agent.
    fn hand_to(&mut self, generation: u64, successor: Successor) {
        let shared_state = &self.inherited.shared_state;
        shared_state.generation.set(generation);
        shared_state.set_order(generation, Order::Start);
        self.inherited.agent_bell(generation).ring();
        self.agent = Agent::new(successor.pid());
        self.agent.status = successor.status();
        self.stall = Stall::default();
        self.fruitless = 0;
    }
}
