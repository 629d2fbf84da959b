//! An agent that hands its listener to another one, which does the work: that of a container to the agent of
//! the host, that of an exec session to the agent of its container. It passes on what the keeper wants, and
//! ends when the other agent does. Then the keeper stands in, as for any agent, and starts another one, which
//! finds the other agent again.
//!
//! One that finds no agent of the host starts it. One that finds none of its container, or one that is no
//! use, does the work itself, and says so.

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
use capture::notify::{AnswerThread, call_words};
use diagnostics::failure::Failure;
use enforce::Confinement;
use supervisor::{
    AGENT_VERB, AgentPlan, AgentStart, HeldRuntimeCalls, Report, RuntimeWait, Services,
    SharedState, Source,
};
use sys::notify::{Listener, Notification};
use sys::poll::{self, PollFd};

use super::super::services::RuntimeContainer;
use super::agent_socket::AgentSocket;
use super::handoff_request::{self, HandoffRequest, HostAgentCommand};
use crate::journal;
use crate::spec::AgentSpec;

/// How long a host agent may take to be found or started, rules included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the agent of a container may: it loads rules, or its keeper starts another one. Meanwhile a session
/// that begins is held at its first program, and one that runs at what is watched.
const SESSION_PATIENCE: Duration = Duration::from_secs(3);
/// How long one that is there may take to watch a container, or to do anything else; longer than an output
/// may take. One that takes longer is stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const HAIL_LIMIT: Duration = Duration::from_secs(10);
/// How long one that has begun to receive may take to conclude what it has, when nobody waits for it any more.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(2);
/// How long an agent that was killed may take to end after its connections have.
const DEATH_LIMIT: Duration = Duration::from_millis(200);
/// Time between two looks for one that another process starts.
const PAUSE: Duration = Duration::from_millis(5);
/// Starts that may fail; files may be removed by one that ends just then.
const STARTS: u32 = 3;
/// What is shown of the messages of one that did not start.
const SHOWN: u64 = 4096;

/// What has to be handed over.
pub(in super::super) struct Errand {
    place: AgentSocket,
    container: RuntimeContainer,
    /// What rules and configuration looked like.
    rules: Option<u64>,
    /// While it is there nobody removes what the container's first program is about to be confined by.
    confinement: Option<Confinement>,
    otherwise: Fallback,
}

/// What is done when nobody is there to take it.
enum Fallback {
    /// The agent of the host is started.
    Launch(Launch),
    /// This one does the work itself.
    Alone(Alone),
}

/// How a host agent is started.
struct Launch {
    /// What it is asked to do, encoded.
    spec: Vec<u8>,
    memo: Vec<u8>,
    /// Attempts that failed.
    failed: u32,
}

/// Readies this process to do the work itself.
pub(super) type Alone = Box<dyn FnOnce() -> Result<AgentPlan, Failure>>;

/// Why an attempt came to nothing.
enum HandoffError {
    /// It has just ended, or will not take it, however often.
    BrokenOff(std::io::Error),
    /// It does not answer.
    Late,
    /// It says why it cannot.
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

/// What a runtime calls until its container's or session's first program begins.
enum Calls {
    /// Nobody has received any.
    Waiting,
    /// Somebody answers them.
    Answered(AnswerThread),
    /// Those that were held by somebody who does not answer any more.
    Held(Vec<Notification>),
    /// Who answered has failed: some may wait that nobody knows of.
    Lost,
}

impl Calls {
    /// Ends answering.
    fn take(&mut self) -> std::io::Result<Vec<u64>> {
        let now = std::mem::replace(self, Self::Lost);
        *self = match now {
            Self::Answered(answering) => Self::Held(answering.end()?),
            now => now,
        };
        match self {
            Self::Held(calls) => Ok(calls.iter().flat_map(call_words).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Keeps those that still wait: whoever was given them may have answered some.
    fn retain_waiting(&mut self, listener: &Listener) {
        if let Self::Held(calls) = self {
            calls.retain(|call| listener.is_valid(call.id) != Ok(false));
        }
    }

    /// For an engine in this process.
    fn into_held(self) -> Option<HeldRuntimeCalls> {
        match self {
            Self::Waiting | Self::Lost => None,
            Self::Answered(answering) => Some(HeldRuntimeCalls::Answered(answering)),
            Self::Held(calls) => Some(HeldRuntimeCalls::Asked(Box::new(move || Ok(calls)))),
        }
    }
}

impl Errand {
    /// Of a container, to the agent of the host. `spec`: what this process is asked to do. `memo`: what an agent that
    /// takes over has to know.
    pub(in super::super) fn of_container(
        folder: &Path,
        spec: &AgentSpec,
        memo: Vec<u8>,
        container: RuntimeContainer,
        rules: Option<u64>,
        confinement: Option<Confinement>,
    ) -> std::io::Result<Self> {
        // Its place depends on all but its place.
        let of_any = spec.of_host(Path::new(""));
        let place = AgentSocket::find(folder, &of_any.encode(), &memo)?;
        let spec = spec.of_host(&place.base()).encode();
        Ok(Self {
            place,
            container,
            rules,
            confinement,
            otherwise: Fallback::Launch(Launch {
                spec,
                memo,
                failed: 0,
            }),
        })
    }

    /// Of an exec session, to the agent of its container.
    pub(super) fn of_session(folder: &Path, container: RuntimeContainer, alone: Alone) -> Self {
        Self {
            place: AgentSocket::of_container(folder),
            container,
            rules: None,
            confinement: None,
            otherwise: Fallback::Alone(alone),
        }
    }

    /// Has the other agent watch, which is started if it is the host's and not there. A runtime works on
    /// until the other agent is ready, and where there is something to do meanwhile until it has ended or
    /// begins a program in the container.
    pub(in super::super) fn start(
        mut self,
        listening: AgentStart,
        mut meanwhile: Option<RuntimeWait<'_>>,
    ) -> anyhow::Result<Box<dyn Services>> {
        let mut calls = Calls::Waiting;
        // Without mounts of its own a program cannot be told from its runtime.
        if !listening.is_resumed && self.container.has_mounts {
            calls = Calls::Answered(crate::start::let_work(&listening)?);
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
                // It has received calls and is dead or stopped: they are the keeper's to answer.
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
            match miss {
                HandoffError::Refused(why) if self.is_to_host() => {
                    bail!("cannot have the container watched: {why}")
                }
                HandoffError::BrokenOff(error) if matches!(calls, Calls::Lost) => {
                    return Err(error).context("cannot let the runtime work");
                }
                HandoffError::Late if self.is_to_host() => {}
                HandoffError::BrokenOff(error) => {
                    why = error.to_string();
                    std::thread::sleep(PAUSE);
                }
                HandoffError::Late => {
                    why = "it does not answer".to_owned();
                    break;
                }
                HandoffError::Refused(said) => {
                    why = said;
                    break;
                }
            }
        }
        self.go_without(listening, calls, &why)
    }

    /// Nobody has taken it.
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

    /// An exec session is not watched by the agent of its container.
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

    /// How long one that is there may take for one answer.
    fn limit(&self) -> Duration {
        self.patience().min(HAIL_LIMIT)
    }

    /// Connects to the other agent and waits until it shows that it works.
    fn meet(&self) -> anyhow::Result<Option<(UnixStream, Option<SharedState>)>> {
        let Ok(stream) = self.place.connect() else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(self.limit()))?;
        stream.set_write_timeout(Some(self.limit()))?;
        match handoff_request::await_greeting(&stream).map_err(HandoffError::from) {
            Ok(account) => {
                // Another build's is not looked at; it refuses the container.
                let account = account.and_then(|file| SharedState::open(file.as_fd()).ok());
                Ok(Some((stream, account)))
            }
            Err(miss) => {
                if matches!(miss, HandoffError::Late) && self.is_to_host() {
                    kill(&stream);
                }
                // It is about to end.
                Ok(None)
            }
        }
    }

    /// Starts the agent of the host; that of a container others start.
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
            build: handoff_request::build()?,
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
        listening.shared_state.losses_of_host_told(losses);
        Ok(())
    }
}

impl Launch {
    /// Starts the agent of the host, and waits until it listens or says that there is another one.
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
            .leave_memo(&self.memo)
            .with_context(|| format!("cannot write next to {}", path.display()))?;
        let spec = supervisor::in_memory(&self.spec);
        let spec = spec.context("cannot write the specification of the host agent")?;
        let status = Command::new("/proc/self/exe")
            .arg0("tollgate")
            // From its standard input.
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

/// Ends an agent that does not answer.
fn kill(stream: &UnixStream) {
    let Ok((pid, ..)) = sys::socket::peer_credentials(stream.as_fd()) else {
        return;
    };
    // Fails only if it has just ended.
    let _ = sys::pidfd::open(pid)
        .and_then(|process: OwnedFd| sys::pidfd::send_signal(process.as_fd(), Signal::SIGKILL.0));
}

/// The other agent is gone: notes what it had not delivered. One that only ends delivers that itself.
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

/// Services that are another agent's.
struct Remote {
    stream: UnixStream,
    is_lost: Cell<bool>,
    /// Where the other agent keeps account of its alerts, until it is known what died with it.
    account: Cell<Option<SharedState>>,
    /// Where that is noted.
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
            // They are in the shared state.
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
        // Nothing is sent unasked, so that it is the end.
        let is_lost = self.is_lost.get() || is_readable;
        if is_lost && let Some(account) = self.account.take() {
            note_losses(&self.stream, &account, &self.shared_state);
        }
        is_lost
    }
}
