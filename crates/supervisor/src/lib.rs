//! Running a command under the watch so that nobody can tell the difference from outside.
//!
//! Five processes, each for one reason:
//!
//! - the *front* is what the caller started: it has the pid, the exit status and the stops that the
//!   caller's job control expects, and passes on signals that are sent to it alone;
//! - the *keeper* is the front's child. It knows no rules, holds a copy of the listener, and answers
//!   in the agent's place when that is dead or does not move, until it has started another;
//! - the *agent* is the keeper's child: receivers, rules, outputs. It is an ancestor of the workload,
//!   as Yama demands of a tracer, and outlives the command while descendants of it run;
//! - the *waiter* is the command's parent. The kernel lets every thread of a tracer's process
//!   consume the stops of its children, so the agent cannot be the parent itself;
//! - the *command*.
//!
//! They are forked before the first thread exists. Agent, waiter and command share one descriptor
//! table until the command's exec, which is how the agent gets the listener without any call of
//! the command's that its own filter might trap. What they have to know of each other is on the
//! shared state ([`SharedState`]), so that none of them has to live for the others to know it.
//!
//! Behind a command whose caller waits for nothing that it leaves running, as a container runtime's does, two of
//! these remain: keeper and agent. The command is the process that was called itself (`in_place`), or its
//! child where that has something to do afterwards (`below`).
//!
//! None of them can be killed unnoticed. Without the agent the keeper does what
//! `--on-agent-death` says; without the keeper the front starts another; without the front or the
//! waiter the agent kills the command; without front, keeper and agent the waiter does, because
//! then calls fail with ENOSYS.

mod agent;
pub mod attached;
mod below;
mod command;
mod control_signal;
mod detach;
mod front;
pub mod handover_state;
mod in_place;
mod inherited;
mod keeper;
mod message;
mod orphans;
mod relay;
mod respawn;
mod shared_state;
pub mod signals;
mod waiter;

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use capture::notify::{AnswerThread, ClaimOffer};
pub use command::{Command, install_alone};
pub use control_signal::SenderCheck;
pub use detach::{Detach, Ends};
use enforce::Confinement;
use event::{EngineKind, Pid};
pub use inherited::in_memory;
pub use keeper::{OnAgentDeath, Policy};
pub use respawn::{AGENT_VERB, MakeSpec, Respawn, TakeOver};
use seccomp::FilterProgram;
pub use shared_state::{Cause, Gaps, OpenError, SharedState};
use sys::notify::{Listener, Notification};
use sys::signal::SignalSet;

/// What the agent is given to start from.
pub struct AgentStart {
    /// Where events come from.
    pub source: Source,
    /// Processes of ours between the workload and whoever started it.
    pub transparent: Vec<Pid>,
    /// What all processes of ours know.
    pub shared_state: Arc<SharedState>,
    /// Number of this agent.
    pub generation: u64,
    /// Whether it takes over a workload that runs already.
    pub is_resumed: bool,
    /// Set if the command, a container runtime, has been let work before there were rules.
    pub held: Option<HeldRuntimeCalls>,
    /// The shared state's file, for a process that watches in this one's place.
    pub shared_state_file: Option<OwnedFd>,
    /// What whoever hands the listener over has offered; otherwise this process receives.
    pub ticket: Option<ClaimOffer>,
}

/// What is done while the command, a container runtime, works and rules are not asked: passing on what becomes
/// of it, until it has ended or all these descriptors are readable.
pub type RuntimeWait<'a> = Box<dyn FnOnce(&[BorrowedFd<'_>]) + 'a>;

/// Calls of a container runtime that wait for rules.
pub enum HeldRuntimeCalls {
    /// Somebody answers it, and holds them.
    Answered(AnswerThread),
    /// They are had from elsewhere.
    Asked(Asked),
}

/// Ends whoever answers, and gives the calls.
pub type Asked = Box<dyn FnOnce() -> std::io::Result<Vec<Notification>> + Send>;

impl HeldRuntimeCalls {
    /// The calls; from now on nobody answers.
    pub fn calls(self) -> std::io::Result<Vec<Notification>> {
        match self {
            Self::Answered(answering) => answering.end(),
            Self::Asked(calls) => calls(),
        }
    }
}

/// Where the calls of a command are seen.
#[derive(Debug)]
pub enum Source {
    /// At the listener of its filter.
    Listener(Listener),
    /// In its stops, or in the kernel: it waits until it is watched.
    Command(Pid),
    /// At processes that run already.
    Running(Vec<Pid>),
    /// At every process of the machine.
    Host,
    /// At those of containers and control groups.
    Places(capture::ebpf::WatchScope),
    /// At sandboxes of gVisor, which connect to this.
    Sandboxes(capture::gvisor::Endpoint),
    /// At the filters of containers, which are handed over by agents that connect to this.
    Containers(std::os::unix::net::UnixListener),
    /// At nothing.
    Nothing,
}

/// The engine that watches a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenEngine {
    /// Which one.
    pub kind: EngineKind,
    /// Whether the command installs the engine's filter, which `ptrace` can do without.
    pub filtered: bool,
}

/// Something that happened to processes of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nobody watched for a while.
    Gaps(Gaps),
    /// This agent took over from a living one.
    Upgraded,
    /// One that was to take over from this one did not.
    UpgradeFailed,
    /// A signal that asks the keeper for an upgrade was no operator's.
    OrderRefused,
    /// The keeper is gone.
    KeeperGone,
    /// There is another keeper.
    KeeperReplaced {
        /// The pid of the other.
        pid: i32,
    },
}

/// The running services of the agent.
pub trait Services {
    /// Whether the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// Whether watching has ended because too many events were lost.
    fn has_given_up(&self) -> bool {
        false
    }
    /// The command itself has ended: everything it caused is to be delivered now.
    fn flush(&self);
    /// Tells the user.
    fn report(&self, report: &Report);
    /// Another agent goes on: stops receiving, concludes the calls at hand, writes figures.
    fn hand_over(&mut self);
    /// Lets the workload go on unwatched; [`Services::finish`] waits for that.
    fn let_go(&self);
    /// Everything has ended: deliver, write the last figures.
    fn finish(self: Box<Self>);
    /// Readable when [`Services::are_lost`] may have changed.
    fn link(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Whether they were another process's, and that is gone.
    fn are_lost(&self) -> bool {
        false
    }
}

/// What the command is made from.
#[derive(Clone, Copy)]
struct Launch<'a> {
    command: &'a Command,
    program: &'a FilterProgram,
    confinement: Option<&'a Confinement>,
    engine: ChosenEngine,
    /// What was blocked when this program was started.
    callers_mask: SignalSet,
}

/// Starts the services in the agent. Threads may be made from here on. There is something to do meanwhile unless
/// another agent has been before.
pub type Start =
    Box<dyn FnOnce(AgentStart, Option<RuntimeWait<'_>>) -> anyhow::Result<Box<dyn Services>>>;

/// What an agent needs to know.
pub struct AgentPlan {
    /// What to run; an agent that takes over does not look at it.
    pub command: Command,
    /// The filter.
    pub program: FilterProgram,
    /// What the command does to itself before it installs the filter, if there is a policy.
    pub confinement: Option<Confinement>,
    /// Whether the command is a container runtime whose container's first program has to be restricted.
    pub restricts_first: bool,
    /// What an agent that takes over has to know.
    pub memo: Vec<u8>,
    /// The services.
    pub start: Start,
}

/// How the processes that watch go on.
pub struct LaunchContext {
    /// How another agent is started.
    pub respawn: Respawn,
    /// What they keep of the caller's.
    pub tenure: Detach,
    /// Where else is told why a command that runs already cannot be watched.
    pub complain: ErrorReporter,
}

/// Tells somebody, who waits for the command alone.
pub type ErrorReporter = Box<dyn FnOnce(&str)>;

/// Reads rules and configuration, in the agent; one that takes over is given the first one's memo.
pub type AgentPreparer =
    Box<dyn FnOnce(Option<&[u8]>) -> Result<AgentPlan, diagnostics::failure::Failure>>;

/// Runs a command under the filter and returns its exit status as a shell would say it.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If the filter cannot be installed, the services do not start or the command cannot be executed.
pub fn run(
    name: &OsStr,
    engine: ChosenEngine,
    policy: Policy,
    stay: LaunchContext,
    prepare: AgentPreparer,
) -> Result<i32, Failure> {
    hide()?;
    front::run(name, engine, policy, stay, prepare)
}

/// Becomes a command of which nobody waits for what it leaves running: other processes are made, which watch that
/// and outlive the command. Only where these may look into any process of the same user's.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If the filter cannot be installed or the command cannot be executed.
pub fn run_in_place(
    policy: Policy,
    stay: LaunchContext,
    prepared: AgentPlan,
) -> Result<Infallible, Failure> {
    hide()?;
    in_place::run(policy, stay, prepared)
}

/// Has a child do what ends with an exit status, or becomes a command by [`run_in_place`]; for a caller that has to
/// do something afterwards. Answers as [`run`] does.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If there can be no process.
pub fn run_below(command: impl FnOnce() -> i32) -> Result<i32, Failure> {
    below::run(command)
}

/// Whether this process may look only into those that descend from it.
pub fn sees_descendants_only() -> bool {
    orphans::is_tracing_by_ancestors()
}

/// Readies this process, which no command stands below, to watch for others: nothing that is meant for a
/// terminal's programs concerns it, and it may open as much as the system allows.
pub fn stand_alone() -> sys::Result<()> {
    signals::outlive_command()?;
    agent::raise_descriptor_limit()
}

/// Keeps others of the same user from looking into this process and those forked from it, and from
/// taking their descriptors, the listener among them (`PR_SET_DUMPABLE`).
fn hide() -> Result<(), Failure> {
    sys::prctl::set_dumpable(false).map_err(Failure::process("hide from the workload"))
}

/// Runs an agent that takes over. `respawn`: how others after it are started.
///
/// # Errors
///
/// If the descriptors are not what a keeper of this build gives.
pub fn resume(
    take_over: &TakeOver,
    respawn: Respawn,
    prepare: AgentPreparer,
) -> Result<i32, Failure> {
    hide()?;
    let opened = inherited::InheritedDescriptors::open(&take_over.descriptors, respawn);
    let (inherited, listener) = opened.map_err(|cause| Failure::TakeOver { cause })?;
    // The originals; the copies are closed by exec already.
    sys::fd::close_on_exec_from(3).map_err(Failure::process("take over from another agent"))?;
    Ok(agent::resumed(
        &inherited,
        take_over.generation,
        listener,
        prepare,
    ))
}

/// Turns of processes and threads for which a runtime waits until they have begun: short ones come sooner where others
/// use all processors.
const START_SLICE: Duration = Duration::from_micros(100);
const SOCK_SEQPACKET: i32 = abi::constant::SOCK_SEQPACKET.i32();

/// Gives this thread turns as long as others have: whoever watches has them, and what it starts.
pub fn take_usual_turns() {
    // A kernel that refuses has not granted others either.
    let _ = sys::schedule::lengthen_turns(START_SLICE);
}

/// Why the command did not run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command's exec failed after it was looked up.
    #[error("cannot execute {path}")]
    Exec {
        /// The file.
        path: String,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel refused the filter or its listener.
    #[error("cannot install the seccomp filter")]
    Filter {
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// A step of the policy failed in the command's process.
    #[error("cannot put the policy in force: the process cannot {step}")]
    Unconfined {
        /// Which.
        step: enforce::Step,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The agent has said why; this is the exit status.
    #[error("cannot run the command")]
    Refused(i32),
    /// What the processes before this one share is of no use to this build.
    #[error("cannot take over from another agent")]
    TakeOver {
        /// Why.
        #[source]
        cause: OpenError,
    },
    /// The services did not start; the agent has printed why.
    #[error("cannot start watching")]
    Services,
    /// A process of ours was killed.
    #[error("cannot go on watching: the {process} process is gone")]
    Gone {
        /// Which.
        process: &'static str,
    },
    /// `/proc` does not show this process.
    #[error("cannot use /proc")]
    Proc {
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// A process could not be made or waited for.
    #[error("cannot {action}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

impl Failure {
    fn process(action: &'static str) -> impl FnOnce(sys::SyscallError) -> Self {
        move |error| Self::Process {
            action,
            cause: error.into(),
        }
    }

    fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Process { action, cause }
    }
}
