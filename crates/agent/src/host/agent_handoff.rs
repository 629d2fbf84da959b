//! An agent that hands its listener to another agent, which does the work: a container's agent to the
//! host agent, and an exec session's agent to the agent of its container. It forwards the keeper's
//! orders, and ends when the other agent ends. The keeper then stands in, as for any agent, and starts
//! another one, which connects to the other agent again.
//!
//! An agent that finds no host agent starts one. A session's agent that finds no usable agent of its
//! container does the work itself, and reports so.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Signal;
use anyhow::{Context, bail};
use capture::notify::{AnswerThread, HeldCalls};
use diagnostics::failure::Failure;
use enforce::Confinement;
use supervisor::{
    AGENT_VERB, AgentPlan, AgentStart, HeldRuntimeCalls, Report, RuntimeWait, Services,
    SharedState, Source,
};
use sys::notify::Listener;
use sys::poll::{self, PollFd};

use super::super::services::RuntimeContainer;
use super::agent_socket::AgentSocket;
use super::handoff_request::{self, HandoffRequest, HostAgentCommand};
use crate::identity;
use crate::journal;
use crate::spec::AgentSpec;

/// Time limit for finding or starting a host agent, including its rules.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for finding a container's agent, which may be loading rules or being restarted by its
/// keeper. Meanwhile a new session is held at its first program, and a running one at watched
/// calls.
const SESSION_PATIENCE: Duration = Duration::from_secs(3);
/// Time limit for an existing agent to take over a container or answer an order; longer than an
/// output may take. Beyond it the agent is considered stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const HAIL_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for an agent that has begun to receive to conclude its calls when nobody waits for it
/// any more.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for a killed agent to end after its connections have closed.
const DEATH_LIMIT: Duration = Duration::from_millis(200);
/// Interval of checks for an agent that another process starts.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of failed starts. An agent that is just ending may remove the files of a new one.
const STARTS: u32 = 3;
/// Maximum size of the shown log of an agent that did not start, in bytes.
const SHOWN: u64 = 4096;

/// The handover of a listener to another agent.
pub(in super::super) struct Errand {
    place: AgentSocket,
    container: RuntimeContainer,
    /// Hash of rules and configuration.
    rules: Option<u64>,
    /// Keeps the confinement of the container's first program loaded until it is applied.
    confinement: Option<Confinement>,
    otherwise: Fallback,
}

/// Fallback if no agent takes the listener.
enum Fallback {
    /// Start the host agent.
    Launch(Launch),
    /// Watch in this process.
    Alone(Alone),
}

/// Parameters for starting a host agent.
struct Launch {
    /// Encoded specification of the agent.
    spec: Vec<u8>,
    handover: Vec<u8>,
    /// Number of failed attempts.
    failed: u32,
}

/// Prepares this process to watch by itself.
pub(super) type Alone = Box<dyn FnOnce() -> Result<AgentPlan, Failure>>;

/// Error of a handover attempt.
enum HandoffError {
    /// The agent has just ended, or repeatedly closes the connection.
    BrokenOff(std::io::Error),
    /// The agent does not answer in time.
    Late,
    /// The agent refuses, with its reason.
    Refused(String),
}

impl From<std::io::Error> for HandoffError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Late,
            _ => Self::BrokenOff(error),
        }
    }
}

/// State of a runtime's calls until the container's or session's first program starts.
enum Calls {
    /// No process has received calls.
    Waiting,
    /// A thread answers the calls.
    Answered(AnswerThread),
    /// Calls held by a process that no longer answers.
    Held(HeldCalls),
    /// The answering thread has failed: unknown calls may be waiting.
    Lost,
}

impl Calls {
    /// Stops answering and returns the held calls.
    fn take(&mut self) -> std::io::Result<HeldCalls> {
        let now = std::mem::replace(self, Self::Lost);
        *self = match now {
            Self::Answered(answering) => Self::Held(answering.end()?),
            now => now,
        };
        match self {
            Self::Held(held) => Ok(held.clone()),
            _ => Ok(HeldCalls::default()),
        }
    }

    /// Drops calls that no longer wait: the process that was given them may have answered some.
    fn retain_waiting(&mut self, listener: &Listener) {
        if let Self::Held(held) = self {
            held.calls
                .retain(|call| listener.is_valid(call.id) != Ok(false));
        }
    }

    /// Converts the state for an engine in this process.
    fn into_held(self) -> Option<HeldRuntimeCalls> {
        match self {
            Self::Waiting | Self::Lost => None,
            Self::Answered(answering) => Some(HeldRuntimeCalls::Answered(answering)),
            Self::Held(held) => Some(HeldRuntimeCalls::Asked(Box::new(move || Ok(held)))),
        }
    }
}

impl Errand {
    /// Prepares the handover of a container to the host agent. `spec` is this process's
    /// specification, `handover` the information for an agent that takes over.
    pub(in super::super) fn of_container(
        folder: &Path,
        spec: &AgentSpec,
        handover: Vec<u8>,
        container: RuntimeContainer,
        rules: Option<u64>,
        confinement: Option<Confinement>,
    ) -> std::io::Result<Self> {
        // The location depends on everything in the specification except the location itself.
        let of_any = spec.of_host(Path::new(""));
        let place = AgentSocket::find(folder, &of_any.encode(), &handover)?;
        let spec = spec.of_host(&place.base()).encode();
        Ok(Self {
            place,
            container,
            rules,
            confinement,
            otherwise: Fallback::Launch(Launch {
                spec,
                handover,
                failed: 0,
            }),
        })
    }

    /// Prepares the handover of an exec session to the agent of its container.
    pub(super) fn of_session(folder: &Path, container: RuntimeContainer, alone: Alone) -> Self {
        Self {
            place: AgentSocket::of_container(folder),
            container,
            rules: None,
            confinement: None,
            otherwise: Fallback::Alone(alone),
        }
    }

    /// Hands the listener to the other agent, and starts the host agent if it does not run.
    /// Meanwhile a runtime continues to work. If there is other work meanwhile, the handover waits
    /// until the runtime has ended or starts a program in the container.
    pub(in super::super) fn start(
        mut self,
        listening: AgentStart,
        mut meanwhile: Option<RuntimeWait<'_>>,
    ) -> anyhow::Result<Box<dyn Services>> {
        let mut calls = Calls::Waiting;
        // Without mounts of its own, a program cannot be distinguished from its runtime.
        if !listening.is_resumed && self.container.has_mounts {
            calls = Calls::Answered(crate::answering::let_work(&listening)?);
        } else {
            meanwhile = None;
        }
        let deadline = Instant::now() + self.patience();
        let mut why = "it is not there".to_owned();
        while Instant::now() < deadline {
            let Some((stream, account)) = self.meet()? else {
                self.find()?;
                continue;
            };
            let miss = match self.hand_over(&stream, &listening, &mut calls, &mut meanwhile) {
                Ok(()) => {
                    let remote =
                        Remote::new(stream, self.confinement, account, listening.shared_state)?;
                    return Ok(Box::new(remote));
                }
                Err(miss) => miss,
            };
            if matches!(miss, HandoffError::Late) && self.is_to_host() {
                kill(&stream);
            }
            let pulse = listening.shared_state.pulse(listening.generation);
            if !pulse.withdraw_and_wait(WITHDRAWAL_LIMIT) {
                // The other agent has received calls and is dead or stopped: the keeper must answer
                // them.
                let remote =
                    Remote::new(stream, self.confinement, account, listening.shared_state)?;
                remote.is_lost.set(true);
                return Ok(Box::new(remote));
            }
            if let Some(account) = account.filter(|_| !matches!(miss, HandoffError::Refused(_))) {
                note_losses(&stream, &account, &listening.shared_state);
            }
            if let Source::Listener(listener) = &listening.source {
                calls.retain_waiting(listener);
            }
            let is_final = matches!(miss, HandoffError::Late | HandoffError::Refused(_));
            if let Some(cause) = self.cause_of(miss, &calls)? {
                why = cause;
                if is_final {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.go_without(listening, calls, &why)
    }

    /// Returns why a handover failed. `None`: the host agent was late and is started again. An error: nothing can
    /// be tried again.
    fn cause_of(&self, miss: HandoffError, calls: &Calls) -> anyhow::Result<Option<String>> {
        match miss {
            HandoffError::Refused(why) if self.is_to_host() => {
                bail!("cannot have the container watched: {why}")
            }
            HandoffError::BrokenOff(error) if matches!(calls, Calls::Lost) => {
                Err(error).context("cannot let the runtime work")
            }
            HandoffError::Late if self.is_to_host() => Ok(None),
            HandoffError::BrokenOff(error) => Ok(Some(error.to_string())),
            HandoffError::Late => Ok(Some("it does not answer".to_owned())),
            HandoffError::Refused(said) => Ok(Some(said)),
        }
    }

    /// Applies the fallback.
    fn go_without(
        self,
        listening: AgentStart,
        calls: Calls,
        why: &str,
    ) -> anyhow::Result<Box<dyn Services>> {
        match self.otherwise {
            Fallback::Launch(_) => {
                let log = self.place.log();
                let log = log.display();
                bail!("cannot reach the host agent ({why}); its log is {log}")
            }
            Fallback::Alone(alone) => {
                Self::say_alone(&self.container, why);
                let prepared =
                    alone().map_err(|failure| anyhow::anyhow!("{}", failure.render().trim()))?;
                let held = calls.into_held();
                (prepared.start)(AgentStart { held, ..listening }, None)
            }
        }
    }

    /// Reports that an exec session is not watched by the agent of its container.
    pub(super) fn say_alone(container: &RuntimeContainer, why: &str) {
        let id = &container.told.id;
        journal::warn(&format!(
            "an exec session of container {id} got a separate agent: cannot reach the agent of the \
            container: {why}"
        ));
    }

    fn is_to_host(&self) -> bool {
        matches!(self.otherwise, Fallback::Launch(_))
    }

    fn patience(&self) -> Duration {
        match self.otherwise {
            Fallback::Launch(_) => PATIENCE,
            Fallback::Alone(_) => SESSION_PATIENCE,
        }
    }

    /// Returns the time limit for one answer of an existing agent.
    fn limit(&self) -> Duration {
        self.patience().min(HAIL_LIMIT)
    }

    /// Connects to the other agent and waits for its greeting.
    fn meet(&self) -> anyhow::Result<Option<(UnixStream, Option<SharedState>)>> {
        let Ok(stream) = self.place.connect() else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(self.limit()))?;
        stream.set_write_timeout(Some(self.limit()))?;
        match handoff_request::await_greeting(&stream).map_err(HandoffError::from) {
            Ok(account) => {
                // The state of another build is ignored; that build refuses the container.
                let account = account.and_then(|file| SharedState::open(file.as_fd()).ok());
                Ok(Some((stream, account)))
            }
            Err(miss) => {
                if matches!(miss, HandoffError::Late) && self.is_to_host() {
                    kill(&stream);
                }
                // The agent is about to end.
                Ok(None)
            }
        }
    }

    /// Starts the host agent. A container's agent is started by others.
    fn find(&mut self) -> anyhow::Result<()> {
        if let Fallback::Launch(launch) = &mut self.otherwise {
            match launch.carry_out(&self.place) {
                Ok(()) => {}
                Err(error) if launch.failed + 1 >= STARTS => return Err(error),
                Err(_) => launch.failed += 1,
            }
            if self.place.is_there() {
                return Ok(());
            }
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    fn hand_over(
        &self,
        stream: &UnixStream,
        listening: &AgentStart,
        calls: &mut Calls,
        meanwhile: &mut Option<RuntimeWait<'_>>,
    ) -> Result<(), HandoffError> {
        let Source::Listener(listener) = &listening.source else {
            return Err(HandoffError::Refused("it has no listener".to_owned()));
        };
        let Some(shared_state) = &listening.shared_state_file else {
            return Err(HandoffError::Refused("it has no shared state".to_owned()));
        };
        let losses = listening.shared_state.losses_of_host();
        let hail = HandoffRequest {
            build: identity::build()?,
            container: self.container.told.id.clone(),
            bundle: self.container.told.bundle.clone(),
            has_mounts: self.container.has_mounts,
            generation: listening.generation,
            is_resumed: listening.is_resumed,
            ticket: listening.shared_state.pulse(listening.generation).offer().0,
            transparent: listening.transparent.iter().map(|pid| pid.0).collect(),
            is_answered: !matches!(calls, Calls::Waiting),
            rules: self.rules,
            losses,
        };
        handoff_request::send(stream, &hail, shared_state.as_fd(), listener.as_fd())?;
        let mut give = || {
            if let (Calls::Answered(answering), Some(meanwhile)) = (&*calls, meanwhile.take()) {
                meanwhile(&[answering.held()]);
            }
            calls.take()
        };
        handoff_request::hear(stream, &mut give)?.map_err(HandoffError::Refused)?;
        listening.shared_state.losses_of_host_reported(losses);
        Ok(())
    }
}

impl Launch {
    /// Starts the host agent, and waits until it listens or reports that another one exists.
    fn carry_out(&self, place: &AgentSocket) -> anyhow::Result<()> {
        let path = place.log();
        let open = || -> std::io::Result<(File, u64)> {
            let mut log = OpenOptions::new();
            let log = log.append(true).create(true).open(&path)?;
            let before = log.metadata()?.len();
            Ok((log, before))
        };
        let (log, before) = open().with_context(|| format!("cannot open {}", path.display()))?;
        place
            .leave_handover(&self.handover)
            .with_context(|| format!("cannot write next to {}", path.display()))?;
        let spec = supervisor::in_memory(&self.spec);
        let spec = spec.context("cannot write the specification of the host agent")?;
        let status = Command::new("/proc/self/exe")
            .arg0("tollgate")
            // The agent reads it from its standard input.
            .args([AGENT_VERB, "0", "--", "host"])
            .stdin(spec)
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .context("cannot start the host agent")?;
        if status.success() {
            return Ok(());
        }
        let said = said_since(&path, before)
            .unwrap_or_else(|error| format!("cannot read its log: {error}"));
        bail!("cannot start the host agent: {status}\n{}", said.trim_end())
    }
}

fn said_since(log: &PathBuf, before: u64) -> std::io::Result<String> {
    let mut log = File::open(log)?;
    log.seek(SeekFrom::Start(before))?;
    let mut said = Vec::new();
    log.take(SHOWN).read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Kills an agent that does not answer.
fn kill(stream: &UnixStream) {
    let Ok((pid, ..)) = sys::socket::peer_credentials(stream.as_fd()) else {
        return;
    };
    // Fails only if the agent has just ended.
    let _ = sys::pidfd::open(pid)
        .and_then(|process: OwnedFd| sys::pidfd::send_signal(process.as_fd(), Signal::SIGKILL.0));
}

/// Records the alerts that a dead agent had not delivered. An agent that ends normally delivers
/// them itself.
fn note_losses(stream: &UnixStream, account: &SharedState, shared_state: &SharedState) {
    let process =
        sys::socket::peer_credentials(stream.as_fd()).and_then(|(pid, ..)| sys::pidfd::open(pid));
    let is_dead = process.map_or(true, |process| {
        let mut polled = [PollFd::new(process.as_fd(), poll::IN)];
        poll::poll(&mut polled, Some(DEATH_LIMIT)).is_ok_and(|ready| ready > 0)
    });
    if is_dead {
        shared_state.note_losses_of_host(account);
    }
}

/// Services that run in another agent.
struct Remote {
    stream: UnixStream,
    is_lost: Cell<bool>,
    /// The other agent's account of its alerts, until its losses are known.
    account: Cell<Option<SharedState>>,
    /// Shared state in which the losses are recorded.
    shared_state: Arc<SharedState>,
    /// As in [`Errand`].
    _confinement: Option<Confinement>,
}

impl Remote {
    fn new(
        stream: UnixStream,
        confinement: Option<Confinement>,
        account: Option<SharedState>,
        shared_state: Arc<SharedState>,
    ) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let is_lost = Cell::new(false);
        Ok(Self {
            stream,
            is_lost,
            account: Cell::new(account),
            shared_state,
            _confinement: confinement,
        })
    }

    fn ask(&self, order: HostAgentCommand) -> bool {
        if self.is_lost.get() {
            return false;
        }
        handoff_request::ask(&self.stream, order).unwrap_or_else(|error| {
            self.is_lost.set(true);
            if is_late(&error) {
                kill(&self.stream);
            }
            false
        })
    }
}

impl Services for Remote {
    fn has_ended(&self) -> bool {
        self.ask(HostAgentCommand::HasEnded)
    }

    fn flush(&self) {
        self.ask(HostAgentCommand::Flush);
    }

    fn report(&self, report: &Report) {
        self.ask(match report {
            // The intervals are in the shared state.
            Report::Gaps(_) => HostAgentCommand::Gaps,
            Report::Upgraded => HostAgentCommand::Upgraded,
            Report::UpgradeFailed => HostAgentCommand::UpgradeFailed,
            Report::OrderRefused => HostAgentCommand::SignalRefused,
            Report::KeeperGone => HostAgentCommand::KeeperGone,
            Report::KeeperReplaced { pid } => HostAgentCommand::KeeperReplaced(*pid),
        });
    }

    fn hand_over(&mut self) {
        self.ask(HostAgentCommand::HandOver);
    }

    fn let_go(&self) {
        self.ask(HostAgentCommand::HandOver);
    }

    fn finish(self: Box<Self>) {
        self.ask(HostAgentCommand::Flush);
    }

    fn link(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn are_lost(&self) -> bool {
        let mut polled = [PollFd::new(self.stream.as_fd(), poll::IN)];
        let is_readable = poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|n| n > 0);
        // The other side sends nothing unasked, so readable means closed.
        let is_lost = self.is_lost.get() || is_readable;
        if is_lost && let Some(account) = self.account.take() {
            note_losses(&self.stream, &account, &self.shared_state);
        }
        is_lost
    }
}
