//! The keeper: a small process that holds a copy of the listener and sees to it that there is an
//! agent.
//!
//! It knows no rules. While the agent works the keeper sleeps, and looks a few times a second
//! whether calls wait that nobody takes. When the agent has ended, was stopped or gets no
//! processor, there is a [`gap`]: the keeper answers in its place, counts what it lets pass, and
//! starts another agent.

mod gap;
mod stall;
mod successor;
mod workload;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::signal::{SignalSet, SignalStream};
use sys::time::{Clock, now_ns};
use sys::wait::{self, Status, Target};

use self::gap::{Gap, Turn, Unswept};
use self::stall::{Stall, Verdict};
use self::successor::{Program, Successor};
use super::agent::FIRST;
use super::board::{Cause, Order, State, word};
use super::inherited::{Inherited, is_readable};
use super::message::Message;
use super::relay::{Relay, tell};
use super::signals::{self, SIGCHLD, SIGKILL};

/// What becomes of the workload while nobody watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnAgentDeath {
    /// Its calls pass, and are counted.
    Continue,
    /// Its calls fail with EPERM.
    Deny,
    /// It is killed.
    Kill,
}

/// What a keeper is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// What to do with the workload.
    pub(crate) on_agent_death: OnAgentDeath,
    /// How long calls may wait without progress.
    pub(crate) limit: Duration,
}

/// Has another agent take over.
const UPGRADE: i32 = 12;
/// Deaths of agents within [`STORM_WINDOW_NS`] after which there is no other.
const STORM_DEATHS: usize = 6;
const STORM_WINDOW_NS: u64 = 60_000_000_000;
/// Looks at a working agent within the limit.
const LOOKS: u32 = 4;
/// Time between two looks while one agent takes over from another.
const UPGRADE_POLL: Duration = Duration::from_millis(20);
/// How long an agent may take to load its rules.
const PREPARATION_NS: u64 = 60_000_000_000;
/// How long an agent may take to conclude the calls it holds.
const HAND_OVER_NS: u64 = 10_000_000_000;
/// An agent that got no processor for this many limits is replaced.
const STARVED_LIMITS: u32 = 10;
/// How long the waiter may take to say how a command ended that has ended.
const END_GRACE_NS: u64 = 5_000_000_000;
/// Time between two looks for that.
const END_POLL: Duration = Duration::from_millis(10);

/// Starts the first agent and keeps watch. Answers with an exit status that nobody sees.
pub(super) fn first(
    inherited: &Inherited,
    listener_from: &OwnedFd,
    policy: Policy,
    agent: impl FnOnce() -> i32,
) -> i32 {
    let own_pid = std::process::id().cast_signed();
    inherited.board.set_pid(word::KEEPER_PID, own_pid);
    match sys::clone::clone_child(sys::clone::CloneFlags::default(), agent) {
        Ok(pid) => inherited.board.set_agent_pid(FIRST, pid),
        Err(error) => {
            tell(inherited, Message::NotReady(error.errno()));
            inherited.board.set(word::KEEPER_DONE, 1);
            return 1;
        }
    }
    keep(inherited, Source::Socket(listener_from), policy)
}

/// Goes on for a keeper that is gone.
pub(super) fn replacing(inherited: &Inherited, listener: &Listener, policy: Policy) -> i32 {
    let board = &inherited.board;
    board.set_pid(word::KEEPER_PID, std::process::id().cast_signed());
    board.add(word::KEEPERS_REPLACED, 1);
    inherited.agent_bell(board.generation()).ring();
    keep(inherited, Source::Own(listener), policy)
}

/// Where the listener comes from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The first agent sends it.
    Socket(&'a OwnedFd),
    /// It is there.
    Own(&'a Listener),
}

fn keep(inherited: &Inherited, source: Source<'_>, policy: Policy) -> i32 {
    let ready = signals::outlive_command()
        .and_then(|()| sys::prctl::set_name(c"tollgate-keeper"))
        .and_then(|()| SignalStream::new(SignalSet::of(&[SIGCHLD, UPGRADE])));
    let signals = match ready {
        Ok(signals) => signals,
        Err(error) => {
            tell(inherited, Message::NotReady(error.errno()));
            inherited.board.set(word::KEEPER_DONE, 1);
            return 1;
        }
    };
    let listener = match source {
        Source::Socket(_) => None,
        Source::Own(listener) => listener.try_clone().ok(),
    };
    let pid = inherited.board.agent_pid(inherited.board.generation());
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
        unswept: None,
        stall: Stall::default(),
        fruitless: 0,
    };
    while keeper.step() == Next::GoOn {}
    inherited.board.set(word::KEEPER_DONE, 1);
    0
}

/// The agent as the keeper sees it.
struct Agent {
    pid: i32,
    /// `None`: it had ended before it was looked at.
    process: Option<OwnedFd>,
    /// How it ended, once it was reaped.
    status: Option<Status>,
    /// The keeper killed it, for this reason.
    killed_for: Option<Cause>,
}

impl Agent {
    fn new(pid: i32) -> Self {
        Self {
            pid,
            process: sys::pidfd::open(pid).ok(),
            status: None,
            killed_for: None,
        }
    }

    fn has_ended(&self) -> bool {
        let has_ended = |process: &OwnedFd| is_readable(process.as_fd(), Duration::ZERO);
        self.status.is_some() || self.process.as_ref().is_none_or(has_ended)
    }

    /// Why it ended, with the signal or status.
    fn cause(&self) -> (Cause, u64) {
        let number = |number: i32| u64::try_from(number).unwrap_or(0);
        match (self.killed_for, self.status) {
            (Some(cause), _) => (cause, number(SIGKILL)),
            (None, Some(Status::Signaled { signal, .. })) => (Cause::Killed, number(signal)),
            (None, Some(Status::Exited(status))) => (Cause::Exited, number(status)),
            // Somebody else's child: the keeper that started it is gone.
            (None, _) => (Cause::Gone, 0),
        }
    }

    fn kill(&mut self, cause: Cause) {
        self.killed_for = Some(cause);
        if let Some(process) = &self.process {
            // Fails only if it has just ended.
            let _ = sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        }
    }
}

/// An agent about to take over from a living one.
struct Upgrade {
    successor: Successor,
    began_ns: u64,
    /// When the living one was told.
    ordered_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Done,
}

struct Keeper<'a> {
    inherited: &'a Inherited,
    source: Source<'a>,
    listener: Option<Listener>,
    signals: SignalStream,
    policy: Policy,
    agent: Agent,
    /// When agents ended, the oldest first.
    deaths: [u64; STORM_DEATHS],
    upgrade: Option<Upgrade>,
    /// An upgrade was asked for and has not begun.
    wants_upgrade: bool,
    /// What a dead agent may hold still.
    unswept: Option<Unswept>,
    stall: Stall,
    /// How often in a row the agent was scheduled again and did not receive.
    fruitless: u32,
}

impl Keeper<'_> {
    fn step(&mut self) -> Next {
        self.sleep();
        self.inherited.keeper_bell.hush();
        self.read_signals();
        self.take_listener();
        self.reap();
        // First: an agent that has handed over may have ended since.
        if self.upgrade.is_some() {
            self.follow_upgrade();
        }
        if self.agent.has_ended() {
            return self.agent_ended();
        }
        self.sweep();
        if self.wants_upgrade && self.upgrade.is_none() {
            self.begin_upgrade();
        }
        if self.upgrade.is_some() {
            return Next::GoOn;
        }
        match self.look() {
            Verdict::Works => Next::GoOn,
            Verdict::Stopped => {
                self.agent.kill(Cause::Stopped);
                Next::GoOn
            }
            Verdict::Starved => self.stand_in_for_starved(),
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
        let patience = if self.unswept.is_some() {
            Some(Duration::ZERO)
        } else if self.upgrade.is_some() {
            Some(UPGRADE_POLL)
        } else {
            self.listener.as_ref().map(|_| self.policy.limit / LOOKS)
        };
        // Whatever woke it, everything is looked at.
        let _ = poll::poll(&mut polled[..count], patience);
    }

    /// Goes on looking for calls that a dead agent had received. One that is found late is a gap of
    /// its own.
    fn sweep(&mut self) {
        let (Some(listener), Some(unswept)) = (&self.listener, self.unswept.take()) else {
            return;
        };
        let cause = Cause::Gone;
        let gap = Gap::begin_silently(self.inherited, listener, self.policy, cause);
        let (found, rest) = gap.sweep(unswept);
        self.unswept = rest;
        if found > 0 {
            Gap::begin(self.inherited, listener, self.policy, (cause, 0)).end();
            let generation = self.inherited.board.generation();
            self.inherited.agent_bell(generation).ring();
        }
    }

    fn read_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.next() {
            self.wants_upgrade |= signal.signal == UPGRADE;
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
        let board = &self.inherited.board;
        let generation = board.generation();
        self.drop_upgrade();
        // It may have been reaped after it was seen to have ended.
        self.reap();
        if board.state(generation) == State::Finished {
            return Next::Done;
        }
        let Some(listener) = self.listener.take() else {
            return self.never_began();
        };
        let next = self.stand_in(&listener, generation);
        self.listener = Some(listener);
        next
    }

    /// The agent ended before there was anything to keep.
    fn never_began(&self) -> Next {
        workload::kill_all(self.inherited, &self.agent, None);
        tell(self.inherited, Message::AgentGone);
        Next::Done
    }

    /// Answers calls until another agent does.
    fn stand_in(&mut self, listener: &Listener, mut generation: u64) -> Next {
        let board = &self.inherited.board;
        let (cause, detail) = self.agent.cause();
        if gap::has_hung_up(listener) {
            self.say_the_end();
            return Next::Done;
        }
        let gap = Gap::begin(self.inherited, listener, self.policy, (cause, detail));
        self.unswept = gap.take_over_held(generation);
        board.bury(generation);
        if self.policy.on_agent_death == OnAgentDeath::Kill {
            return self.kill_workload(listener);
        }
        loop {
            if self.is_storm() {
                return self.stand_in_for_good(&gap);
            }
            generation = board.generation() + 1;
            let spawned = Successor::start(self.inherited, listener, generation, Program::This);
            let Ok(mut successor) = spawned else {
                return self.stand_in_for_good(&gap);
            };
            let limit = now_ns(Clock::Monotonic) + PREPARATION_NS;
            loop {
                let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
                self.inherited.keeper_bell.hush();
                self.read_signals();
                while let Ok(Some((pid, status))) = wait::wait(Target::Any, wait::NO_HANG) {
                    successor.ended(pid, status);
                }
                if turn == Turn::HungUp {
                    successor.kill();
                    gap.end();
                    self.say_the_end();
                    return Next::Done;
                }
                if board.state(generation) == State::Prepared {
                    gap.end();
                    self.hand_to(generation, successor);
                    return Next::GoOn;
                }
                if now_ns(Clock::Monotonic) > limit {
                    successor.kill();
                }
                if successor.has_ended() {
                    break;
                }
            }
        }
    }

    /// The next agent's turn.
    fn hand_to(&mut self, generation: u64, successor: Successor) {
        let board = &self.inherited.board;
        board.set(word::GENERATION, generation);
        board.set_order(generation, Order::Start);
        self.inherited.agent_bell(generation).ring();
        self.agent = Agent::new(successor.pid());
        self.agent.status = successor.status();
        self.stall = Stall::default();
        self.fruitless = 0;
    }

    /// Records a death; whether there were too many.
    fn is_storm(&mut self) -> bool {
        let now = now_ns(Clock::Monotonic);
        self.deaths.rotate_left(1);
        self.deaths[STORM_DEATHS - 1] = now;
        let oldest = self.deaths[0];
        oldest != 0 && now - oldest < STORM_WINDOW_NS
    }

    /// There is no agent any more: the policy decides each call, and this process tells the front.
    fn stand_in_for_good(&mut self, gap: &Gap<'_>) -> Next {
        let what = match self.policy.on_agent_death {
            OnAgentDeath::Deny => "calls that would be watched are refused",
            OnAgentDeath::Continue | OnAgentDeath::Kill => "calls pass unwatched",
        };
        eprintln!(
            "tollgate: the agent ended {STORM_DEATHS} times in a minute and is not started again: \
             from now on {what} (--on-agent-death)"
        );
        let is_told = self.inherited.board.load(word::END_TOLD) != 0;
        let mut relay = (!is_told).then(|| Relay::new(self.inherited));
        loop {
            while let Some(listening) = &mut relay {
                let Some(news) = listening.next() else { break };
                if let Some(end) = listening.pass_on(news) {
                    gap.say_totals();
                    listening.tell_end(end);
                    relay = None;
                }
            }
            let turn = gap.serve(&self.signals, &self.inherited.keeper_bell);
            self.unswept = self.unswept.and_then(|unswept| gap.sweep(unswept).1);
            self.inherited.keeper_bell.hush();
            self.read_signals();
            while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
            if turn == Turn::HungUp {
                if relay.is_some() {
                    gap.say_totals();
                }
                self.say_the_end();
                return Next::Done;
            }
        }
    }

    /// The workload has ended and the agent with it: tells the front what nobody has told it.
    fn say_the_end(&self) {
        if self.inherited.board.load(word::END_TOLD) != 0 {
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

    fn kill_workload(&self, listener: &Listener) -> Next {
        workload::kill_all(self.inherited, &self.agent, Some(listener));
        tell(self.inherited, Message::AgentGone);
        Next::Done
    }

    fn look(&mut self) -> Verdict {
        let board = &self.inherited.board;
        let generation = board.generation();
        let Some(listener) = &self.listener else {
            return Verdict::Works;
        };
        let limit = match board.state(generation) {
            State::Ready => self.policy.limit,
            // Threads are started, containers looked up.
            _ => self.policy.limit * STARVED_LIMITS,
        };
        let vitals = board.pulse(generation).vitals();
        let is_waited_for = is_readable(listener.as_fd(), Duration::ZERO);
        self.stall.look(
            vitals,
            is_waited_for,
            limit,
            self.policy.limit / LOOKS,
            self.agent.pid,
        )
    }

    /// Answers calls until the agent makes progress. One that does not for long is replaced.
    fn stand_in_for_starved(&mut self) -> Next {
        let Some(listener) = self.listener.take() else {
            return Next::GoOn;
        };
        let board = &self.inherited.board;
        let generation = board.generation();
        let cause = (Cause::Starved, 0);
        let gap = Gap::begin(self.inherited, &listener, self.policy, cause);
        if self.policy.on_agent_death == OnAgentDeath::Kill {
            self.agent.kill(Cause::Starved);
            return self.kill_workload(&listener);
        }
        gap.answer_held(generation);
        let before = board.pulse(generation).vitals();
        let limit = self.policy.limit * STARVED_LIMITS;
        let limit = now_ns(Clock::Monotonic) + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        while gap.serve(&self.signals, &self.inherited.keeper_bell) == Turn::GoOn {
            self.inherited.keeper_bell.hush();
            self.read_signals();
            self.reap();
            let vitals = board.pulse(generation).vitals();
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

    fn begin_upgrade(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.wants_upgrade = false;
        let generation = self.inherited.board.generation() + 1;
        match Successor::start(self.inherited, listener, generation, Program::Installed) {
            Ok(successor) => {
                self.upgrade = Some(Upgrade {
                    successor,
                    began_ns: now_ns(Clock::Monotonic),
                    ordered_ns: None,
                });
            }
            Err(_) => self.upgrade_failed(),
        }
    }

    fn follow_upgrade(&mut self) {
        let board = &self.inherited.board;
        let (old, new) = (board.generation(), board.generation() + 1);
        let now = now_ns(Clock::Monotonic);
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        let is_late = now - upgrade.began_ns > PREPARATION_NS;
        match upgrade.ordered_ns {
            _ if upgrade.successor.has_ended() => {
                let is_told = upgrade.ordered_ns.is_some();
                self.drop_upgrade();
                self.upgrade_failed();
                if is_told {
                    // The old one hands over to nobody: a gap, and another agent.
                    self.agent.kill(Cause::Exited);
                }
            }
            None if board.state(new) == State::Prepared => {
                upgrade.ordered_ns = Some(now);
                board.set_order(old, Order::HandOver);
                self.inherited.agent_bell(old).ring();
            }
            None if is_late => upgrade.successor.kill(),
            Some(_) if board.state(old) == State::HandedOver => {
                board.bury(old);
                board.add(word::UPGRADES, 1);
                board.set(word::UPGRADED_TO, new);
                if let Some(upgrade) = self.upgrade.take() {
                    self.hand_to(new, upgrade.successor);
                }
            }
            Some(ordered) if now - ordered > HAND_OVER_NS => self.agent.kill(Cause::Stopped),
            None | Some(_) => {}
        }
    }

    fn drop_upgrade(&mut self) {
        if let Some(mut upgrade) = self.upgrade.take() {
            upgrade.successor.kill();
            let _ = wait::wait(Target::Pid(upgrade.successor.pid()), 0);
        }
    }

    fn upgrade_failed(&self) {
        let board = &self.inherited.board;
        board.add(word::UPGRADES_FAILED, 1);
        self.inherited.agent_bell(board.generation()).ring();
    }
}
