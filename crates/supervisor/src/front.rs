//! The front process, which the caller sees.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use abi::Errno;
use event::EngineKind;
use sys::clone::CloneFlags;
use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::signal::{Signal, SignalStream};
use sys::wait::{self, Target};

use super::inherited::{InheritedDescriptors, is_readable};
use super::keeper::{self, Policy};
use super::message::{Message, Receiver};
use super::signals::{self, SIGCONT, SIGKILL};
use super::waiter::ERRNO_RANGE;
use super::{AgentPreparer, ChosenEngine, Failure, LaunchContext, SOCK_SEQPACKET, agent, orphans};

/// Maximum number of keepers that are replaced; more deaths are no accident.
const KEEPERS: u32 = 16;
/// Time limit for the other processes to end after the command, in addition to that for outputs.
const FAREWELL: Duration = Duration::from_secs(5);

/// Starts the keeper, which starts the agent, and stands for the command until it has ended.
pub(super) fn run(
    path: &std::ffi::OsStr,
    engine: ChosenEngine,
    policy: Policy,
    stay: LaunchContext,
    prepare: AgentPreparer,
) -> Result<i32, Failure> {
    check_proc()?;
    let (inherited, ends) = InheritedDescriptors::create(stay.respawn, stay.tenure)
        .map_err(Failure::io("prepare the processes that watch"))?;
    let pair = || sys::socket::pair(SOCK_SEQPACKET).map_err(Failure::process("make a socket"));
    let ((for_front, to_front), (for_keeper, to_keeper)) = (pair()?, pair()?);
    let pid = inherited.front_pid;
    inherited.shared_state.front_pid.set(pid);
    let callers_mask = signals::block_forwarded().map_err(Failure::process("block signals"))?;
    let first = agent::FirstAgentSetup {
        inherited: &inherited,
        ends: &ends,
        callers_mask,
        engine,
        listener_to: [&to_front, &to_keeper],
        prepare,
    };
    let keeper = sys::clone::clone_child(CloneFlags::default(), || match engine.kind {
        EngineKind::Notify => {
            keeper::first(&inherited, &for_keeper, policy, move || agent::first(first))
        }
        EngineKind::Ptrace
        | EngineKind::Ebpf
        | EngineKind::Gvisor
        | EngineKind::Scap
        | EngineKind::Nodriver => agent::alone(first),
    })
    .map_err(Failure::process("make the keeper process"))?;
    let keeper_process = sys::pidfd::open(keeper).map_err(Failure::process("open the keeper"))?;
    orphans::forget_if_first(pid).map_err(Failure::process("forget orphans"))?;
    let signals = signals::forwarded_stream().map_err(Failure::process("read signals"))?;
    let leads_session = session() == Some(pid);
    drop((to_front, to_keeper, for_keeper));
    let front = Front {
        path: path.to_owned(),
        pid,
        inherited: &inherited,
        from_agent: &ends.from_agent,
        signals,
        leads_session,
        policy,
        keeper: Some(keeper_process),
        keepers: 0,
        listener_from: for_front,
        listener: None,
        early: Vec::new(),
    };
    front.stand_in()
}

/// Returns the session id from proc_pid_stat(5): `pid (name) state parent group session`, where the
/// name may contain spaces and parentheses. rustix relies on getsid(2) to be positive, but in a
/// container without a session of its own it is 0.
pub(super) fn session() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

/// Checks that `/proc` shows this pid namespace, because all information about processes comes from
/// there.
pub(super) fn check_proc() -> Result<(), Failure> {
    let own = std::process::id().to_string();
    let found = std::fs::read_link("/proc/self").map_err(|cause| Failure::Proc {
        cause: match cause.kind() {
            std::io::ErrorKind::NotFound => std::io::Error::other("nothing is mounted there"),
            _ => cause,
        },
    })?;
    if found.as_os_str() == own.as_str() {
        return Ok(());
    }
    let found = found.display();
    let text =
        format!("it belongs to another pid namespace, where this process is {found}, not {own}");
    Err(Failure::Proc {
        cause: std::io::Error::other(text),
    })
}

struct Front<'a> {
    path: std::ffi::OsString,
    pid: i32,
    inherited: &'a InheritedDescriptors,
    from_agent: &'a Receiver,
    signals: SignalStream,
    leads_session: bool,
    policy: Policy,
    /// `None` when the keeper has ended for good.
    keeper: Option<OwnedFd>,
    /// Number of replaced keepers.
    keepers: u32,
    listener_from: OwnedFd,
    /// Listener for another keeper.
    listener: Option<Listener>,
    /// Signals that arrived before there was a process to forward them to.
    early: Vec<Signal>,
}

/// Target of forwarded signals.
#[derive(Clone, Copy)]
struct SignalTarget {
    waiter: i32,
    command: i32,
}

/// Event that wakes this process.
enum WakeSource {
    Message,
    Signals,
    KeeperGone,
}

/// Stage of the start, which determines whether signals are this process's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Rules are being loaded.
    Preparing,
    /// Preparation is complete; the command is about to start.
    Starting,
    /// The command runs.
    Running(SignalTarget),
}

impl PartialEq for SignalTarget {
    fn eq(&self, other: &Self) -> bool {
        (self.waiter, self.command) == (other.waiter, other.command)
    }
}

impl Eq for SignalTarget {}

impl Front<'_> {
    fn stand_in(mut self) -> Result<i32, Failure> {
        let mut waiter = 0;
        let mut stage = Stage::Preparing;
        loop {
            match self.wait(stage)? {
                WakeSource::Signals => {
                    self.signalled(stage);
                    continue;
                }
                WakeSource::KeeperGone => {
                    self.keeper_gone()?;
                    continue;
                }
                WakeSource::Message => {}
            }
            match self
                .from_agent
                .receive()
                .map_err(Failure::io("read the agent's start message"))?
            {
                Some(Message::Prepared) => stage = Stage::Starting,
                Some(Message::Waiter(pid)) => waiter = pid,
                Some(Message::Started(command)) => {
                    let below = SignalTarget { waiter, command };
                    stage = Stage::Running(below);
                    for signal in std::mem::take(&mut self.early) {
                        self.forward(below, &signal, SignalWindow::Unknown);
                    }
                    while let Ok(Some(signal)) = self.signals.next() {
                        self.forward(below, &signal, SignalWindow::Unknown);
                    }
                }
                Some(Message::Stopped(signal)) => self.stop(signal),
                // For `stop`.
                Some(Message::Running) => {}
                Some(Message::KeeperMoved) => {
                    let pid = self.inherited.shared_state.keeper_pid.get();
                    self.keeper = sys::pidfd::open(pid).ok();
                }
                Some(Message::Ended(status)) => {
                    self.see_off();
                    return Ok(status);
                }
                Some(end) => {
                    self.see_off();
                    return Err(self.failure(end));
                }
                None => return Err(self.agent_gone()),
            }
        }
    }

    /// Waits for the keeper, which waits for the agent, so that none is left to the init process of
    /// a container, which may not reap. They stay while processes of the workload are still
    /// watched.
    fn see_off(&self) {
        let shared_state = &self.inherited.shared_state;
        let outlives = shared_state.outlived.get();
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !outlives) {
            is_readable(keeper.as_fd(), FAREWELL);
        }
        // The waiter ends with the command, whatever outlives that.
        orphans::see_off(shared_state.waiter_pid.get());
    }

    /// Reports what an agent without a keeper took with it.
    fn agent_gone(&self) -> Failure {
        let shared_state = &self.inherited.shared_state;
        shared_state.count_lost_alerts(shared_state.generation.get());
        // The agent's waiter is this process's child.
        orphans::see_off(shared_state.waiter_pid.get());
        if let Some(text) = shared_state.lost_alerts_to_say() {
            eprintln!("tollgate: {text}");
        }
        Failure::Gone { process: "agent" }
    }

    fn failure(&self, end: Message) -> Failure {
        match end {
            Message::Refused(status) => Failure::Refused(status),
            Message::ExecFailed(errno) => Failure::Exec {
                path: self.path.to_string_lossy().into_owned(),
                cause: os_error(errno),
            },
            Message::FilterFailed(errno) => Failure::Filter {
                cause: os_error(errno),
            },
            Message::ConfineFailed(value) => {
                let index = usize::try_from(value / ERRNO_RANGE);
                let step = index.ok().and_then(enforce::Step::from_index);
                Failure::Unconfined {
                    step: step.unwrap_or(enforce::Step(policy::EnforcerKind::Caps)),
                    cause: os_error(value % ERRNO_RANGE),
                }
            }
            Message::NotReady(errno) => Failure::Process {
                action: "make the processes that watch",
                cause: os_error(errno),
            },
            Message::ServicesFailed => Failure::Services,
            Message::WaiterGone => Failure::Gone { process: "waiter" },
            _ => Failure::Gone { process: "agent" },
        }
    }

    /// Waits for an event. Signals wait while there is temporarily no process to forward them to.
    fn wait(&self, stage: Stage) -> Result<WakeSource, Failure> {
        loop {
            let mut polled = vec![PollFd::new(self.from_agent.file().as_fd(), poll::IN)];
            if stage != Stage::Starting {
                polled.push(PollFd::new(self.signals.as_fd(), poll::IN));
            }
            let with_keeper = self.keeper.as_ref();
            polled.extend(with_keeper.map(|keeper| PollFd::new(keeper.as_fd(), poll::IN)));
            match poll::poll(&mut polled, None) {
                Ok(_) => {}
                Err(error) if error.is(Errno::EINTR) => continue,
                Err(error) => return Err(Failure::process("wait for the agent")(error)),
            }
            let found = |index: usize| polled.get(index).is_some_and(|fd| fd.found() != 0);
            let signals = usize::from(stage != Stage::Starting);
            if signals == 1 && found(1) {
                return Ok(WakeSource::Signals);
            }
            if found(0) {
                return Ok(WakeSource::Message);
            }
            if found(1 + signals) {
                return Ok(WakeSource::KeeperGone);
            }
        }
    }

    fn signalled(&mut self, stage: Stage) {
        while let Ok(Some(signal)) = self.signals.next() {
            match stage {
                Stage::Running(below) => self.forward(below, &signal, SignalWindow::Running),
                Stage::Preparing | Stage::Starting if signals::is_deadly(signal.signal) => {
                    self.give_up(signal.signal);
                }
                Stage::Preparing | Stage::Starting => self.early.push(signal),
            }
        }
    }

    /// Terminates by a signal that arrived before there was a command.
    fn give_up(&self, signal: i32) {
        let keeper = self.keeper.as_ref();
        let kill = |process: &OwnedFd| sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        // In this order, or the keeper would report the agent's end.
        let _ = keeper.map(kill);
        let _ = sys::pidfd::open(self.agent()).map(|agent| kill(&agent));
        let _ = signals::die_of(signal);
    }

    /// Starts another keeper, unless the last one ended on purpose.
    fn keeper_gone(&mut self) -> Result<(), Failure> {
        while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
        self.keeper = None;
        let shared_state = &self.inherited.shared_state;
        if shared_state.keeper_done.get() {
            if self.from_agent.is_ready() {
                return Ok(());
            }
            return Err(self.agent_gone());
        }
        if self.listener.is_none() && is_readable(self.listener_from.as_fd(), Duration::ZERO) {
            let received = sys::socket::receive_fd(self.listener_from.as_fd(), &mut [0]);
            self.listener = received.ok().and_then(|(_, fd)| fd).map(Listener::new);
        }
        let Some(listener) = &self.listener else {
            // The keeper died before the command started; the agent dies as well.
            let _ = sys::pidfd::open(self.agent())
                .and_then(|agent| sys::pidfd::send_signal(agent.as_fd(), SIGKILL));
            return Err(Failure::Gone { process: "keeper" });
        };
        self.keepers += 1;
        if self.keepers > KEEPERS {
            eprintln!(
                "tollgate: warning: the keeper process was killed {KEEPERS} times and is not replaced \
                again: if the agent dies now, CMD is killed"
            );
            self.keeper = sys::pidfd::open(self.agent()).ok();
            shared_state.keeper_done.set(true);
            return Ok(());
        }
        let (inherited, policy) = (self.inherited, self.policy);
        let keeper = sys::clone::clone_child(CloneFlags::default(), || {
            keeper::replacing(inherited, listener, policy)
        })
        .map_err(Failure::process("make the keeper process"))?;
        self.keeper = sys::pidfd::open(keeper).ok();
        Ok(())
    }

    fn agent(&self) -> i32 {
        let shared_state = &self.inherited.shared_state;
        shared_state.agent_pid(shared_state.generation.get())
    }

    /// Forwards a signal that was sent to this process alone.
    fn forward(&self, below: SignalTarget, signal: &Signal, since: SignalWindow) {
        if self.is_ours(signal) {
            return;
        }
        // A signal sent before the command existed did not reach it by itself.
        let reached = signals::reached_command(signal, self.leads_session);
        if reached && matches!(since, SignalWindow::Running) {
            return;
        }
        if signal.signal == SIGCONT {
            // A stop of the whole group has also stopped keeper and agent. Without them the command
            // would wait forever in its first trapped call.
            let keeper = self.inherited.shared_state.keeper_pid.get();
            for pid in [keeper, self.agent(), below.waiter] {
                let _ = sys::signal::send(pid, SIGCONT);
            }
        }
        // Fails only if the command has just ended, which the next message reports.
        let _ = sys::signal::send(below.command, signal.signal);
    }

    /// Returns true if one of our processes sent the signal to continue this process, or this
    /// process sent it to stop itself.
    fn is_ours(&self, signal: &Signal) -> bool {
        const SI_USER: i32 = 0;
        let shared_state = &self.inherited.shared_state;
        let ours = [
            self.pid,
            shared_state.agent_pid(0),
            shared_state.agent_pid(1),
            shared_state.keeper_pid.get(),
        ];
        // 0 is a process outside of this pid namespace, or an agent that has not existed yet.
        signal.code == SI_USER && signal.pid != 0 && ours.contains(&signal.pid)
    }

    /// Stops this process after the command was stopped, as the caller's job control expects.
    /// Whoever continues it means the command.
    ///
    /// The command may be running again. The agent reports that before it sends SIGCONT: if there
    /// was no report after the stop became pending, SIGCONT is yet to come and finds the stop.
    fn stop(&self, signal: i32) {
        // The signal is blocked. No reason for a failure is known.
        let _ = sys::signal::send(self.pid, signal);
        if !self.from_agent.is_ready() {
            let _ = signals::take_stop(signal);
        }
        // A stop that was not taken is read and ignored by `forward`.
    }
}

/// Time at which a signal may have arrived.
enum SignalWindow {
    /// While the command existed.
    Running,
    /// Possibly before the command existed.
    Unknown,
}

fn os_error(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}
