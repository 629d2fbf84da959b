//! Runs a command under observation, indistinguishable from an unobserved run to its caller.
//!
//! There are five processes, each for one reason:
//!
//! - The *front* is the process that the caller started. It has the pid, the exit status and the
//!   stops that the caller's job control expects, and forwards signals that were sent to it alone.
//! - The *keeper* is the front's child. It has no rules and holds a copy of the listener. It
//!   answers calls in the place of an agent that is dead or makes no progress, until it has started
//!   another one.
//! - The *agent* is the keeper's child, with receivers, rules and outputs. It is an ancestor of the
//!   workload, as Yama requires of a tracer, and outlives the command while descendants of it run.
//! - The *waiter* is the command's parent. The kernel lets every thread of a tracer's process
//!   consume the stops of its children, so the agent cannot be the parent itself.
//! - The *command*.
//!
//! The processes are forked before the first thread exists. Agent, waiter and command share one
//! descriptor table until the command's exec. The agent thereby gets the listener without a call of
//! the command that its own filter might trap. Information about each other is in the shared state
//! ([`SharedState`]), so that no process depends on another one being alive.
//!
//! For a command whose caller does not wait for the processes it leaves running, such as a
//! container runtime, only keeper and agent remain. The command is then the called process itself
//! (`in_place`), or its child if the called process has work to do afterwards (`below`).
//!
//! No process can be killed unnoticed. Without the agent, the keeper does what `--on-agent-death`
//! says. Without the keeper, the front starts another one. Without the front or the waiter, the
//! agent kills the command. Without front, keeper and agent, the waiter kills it, because calls
//! then fail with ENOSYS.

mod agent;
pub mod attached;
mod below;
mod command;
mod control_signal;
mod crash;
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
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod turns;
mod waiter;

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use capture::notify::{AnswerThread, ClaimOffer, HeldCalls};
pub use command::{Command, install_alone};
pub use control_signal::SenderCheck;
pub use detach::{Detach, Ends};
use enforce::Confinement;
use event::{EngineKind, Pid};
pub use inherited::in_memory;
pub use keeper::{OnAgentDeath, Policy};
pub use respawn::{AGENT_VERB, MakeSpec, Respawn, TakeOver};
use seccomp::FilterProgram;
pub use shared_state::{Cause, GapTotals, Gaps, OpenError, SharedState};
use sys::notify::Listener;
use sys::signal::SignalSet;
pub use turns::take_usual_turns;

/// Parameters with which the agent's services start.
pub struct AgentStart {
    /// Source of events.
    pub source: Source,
    /// Processes of ours between the workload and its caller.
    pub transparent: Vec<Pid>,
    /// State shared by all our processes.
    pub shared_state: Arc<SharedState>,
    /// Generation of this agent.
    pub generation: u64,
    /// The agent takes over a running workload.
    pub is_resumed: bool,
    /// Set if the command, a container runtime, has run before there were rules.
    pub held: Option<HeldRuntimeCalls>,
    /// File of the shared state, for a process that watches in this one's place.
    pub shared_state_file: Option<OwnedFd>,
    /// The command's process; `None` for an agent that takes over.
    pub runtime: Option<Pid>,
    /// Ticket of the process that hands over the listener; without it this process receives.
    pub ticket: Option<ClaimOffer>,
}

/// Work while the command, a container runtime, runs and no rule is evaluated: forwards news of the
/// command until it has ended or all descriptors are readable.
pub type RuntimeWait<'a> = Box<dyn FnOnce(&[BorrowedFd<'_>]) + 'a>;

/// Calls of a container runtime that wait for rules.
pub enum HeldRuntimeCalls {
    /// A thread answers the runtime and holds the calls.
    Answered(AnswerThread),
    /// Another process has the calls.
    Asked(Asked),
}

/// Stops answering and returns the held calls.
pub type Asked = Box<dyn FnOnce() -> std::io::Result<HeldCalls> + Send>;

impl HeldRuntimeCalls {
    /// Returns the calls. After that no process answers.
    pub fn calls(self) -> std::io::Result<HeldCalls> {
        match self {
            Self::Answered(answering) => answering.end(),
            Self::Asked(calls) => calls(),
        }
    }
}

/// Source of a command's calls.
#[derive(Debug)]
pub enum Source {
    /// The listener of its filter.
    Listener(Listener),
    /// Its ptrace stops or the kernel. The command waits until it is watched.
    Command(Pid),
    /// Processes that already run.
    Running(Vec<Pid>),
    /// All processes of the host.
    Host,
    /// Processes of containers and control groups.
    Places(capture::ebpf::WatchScope),
    /// gVisor sandboxes, which connect to this endpoint.
    Sandboxes(capture::gvisor::Endpoint),
    /// Filters of containers, handed over by agents that connect to this socket.
    Containers(std::os::unix::net::UnixListener),
    /// None.
    Nothing,
}

/// The engine that watches a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenEngine {
    /// Kind of the engine.
    pub kind: EngineKind,
    /// The command installs the engine's filter, which `ptrace` can do without.
    pub filtered: bool,
}

/// A state change of our processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// No agent watched for some time.
    Gaps(Gaps),
    /// This agent took over from a living one.
    Upgraded,
    /// An agent that was to take over from this one failed.
    UpgradeFailed,
    /// A signal requested an upgrade and did not come from an operator.
    OrderRefused,
    /// The keeper has died.
    KeeperGone,
    /// The keeper was replaced.
    KeeperReplaced {
        /// Pid of the new keeper.
        pid: i32,
    },
}

/// The running services of an agent.
pub trait Services {
    /// Returns true if the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// Returns true if watching has ended because too many events were lost.
    fn has_given_up(&self) -> bool {
        false
    }
    /// Delivers everything that the command caused. Called when the command itself has ended.
    fn flush(&self);
    /// Tells the user the result of the run. Called once, when the command has ended and everything
    /// that it caused is delivered.
    fn conclude(&self) {}
    /// Reports a state change to the user.
    fn report(&self, report: &Report);
    /// Stops receiving, concludes the current calls and writes statistics, so that another agent
    /// can continue.
    fn hand_over(&mut self);
    /// Lets the workload continue unwatched; [`Services::finish`] waits for that.
    fn let_go(&self);
    /// Delivers everything and writes the last statistics. Called at the end.
    fn finish(self: Box<Self>);
    /// Returns a descriptor that is readable when [`Services::are_lost`] may have changed.
    fn link(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Returns true if the services ran in another process, which has died.
    fn are_lost(&self) -> bool {
        false
    }
}

/// Parameters of the command's process.
#[derive(Clone, Copy)]
struct Launch<'a> {
    command: &'a Command,
    program: &'a FilterProgram,
    confinement: Option<&'a Confinement>,
    engine: ChosenEngine,
    /// Signal mask at this program's start.
    callers_mask: SignalSet,
}

/// Starts the services in the agent, which may create threads from then on. There is work
/// meanwhile, unless an agent ran before.
pub type Start =
    Box<dyn FnOnce(AgentStart, Option<RuntimeWait<'_>>) -> anyhow::Result<Box<dyn Services>>>;

/// Everything that an agent needs.
pub struct AgentPlan {
    /// The program to run; ignored by an agent that takes over.
    pub command: Command,
    /// The filter.
    pub program: FilterProgram,
    /// Confinement that the command applies to itself before it installs the filter, if there is a
    /// policy.
    pub confinement: Option<Confinement>,
    /// The command is a container runtime whose container's first program must be restricted.
    pub restricts_first: bool,
    /// Handover state for an agent that takes over.
    pub handover: Vec<u8>,
    /// The services.
    pub start: Start,
}

/// Options of the processes that watch.
pub struct LaunchContext {
    /// Parameters for starting another agent.
    pub respawn: Respawn,
    /// The caller's resources that our processes keep.
    pub tenure: Detach,
    /// Callback that also receives the reason if a running command cannot be watched.
    pub complain: ErrorReporter,
}

/// Reports to a process that waits only for the command.
pub type ErrorReporter = Box<dyn FnOnce(&str)>;

/// Reads rules and configuration in the agent. An agent that takes over gets the first agent's
/// handover.
pub type AgentPreparer =
    Box<dyn FnOnce(Option<&[u8]>) -> Result<AgentPlan, diagnostics::failure::Failure>>;

/// Runs a command under the filter and returns its exit status as in a shell.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The filter cannot be installed, the services do not start, or the command cannot be executed.
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

/// Execs the command in place. Keeper and agent are forked first, outlive the command and watch the
/// processes it leaves running. Requires that they may access any process of the same user.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The filter cannot be installed, or the command cannot be executed.
pub fn run_in_place(
    policy: Policy,
    stay: LaunchContext,
    prepared: AgentPlan,
) -> Result<Infallible, Failure> {
    hide()?;
    in_place::run(policy, stay, prepared)
}

/// Runs `command` in a child, where it returns an exit status or becomes a command by
/// [`run_in_place`]; for a caller that has further work afterwards. Returns an exit status like
/// [`run`].
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The child cannot be created.
pub fn run_below(command: impl FnOnce() -> i32) -> Result<i32, Failure> {
    below::run(command)
}

/// Returns true if this process may access the memory of its descendants only.
pub fn sees_descendants_only() -> bool {
    orphans::is_tracing_by_ancestors()
}

/// Prepares this process, which has no command below it, to watch for others: it ignores signals
/// meant for a terminal's programs, and raises its limit on open descriptors.
pub fn stand_alone() -> sys::Result<()> {
    signals::outlive_command()?;
    agent::raise_descriptor_limit()
}

/// Prevents other processes of the same user from accessing this process and its children, and from
/// taking their descriptors, the listener among them (`PR_SET_DUMPABLE`).
fn hide() -> Result<(), Failure> {
    sys::prctl::set_dumpable(false).map_err(Failure::process("hide from the workload"))
}

/// Runs an agent that takes over. `respawn` has the parameters for starting its successors.
///
/// # Errors
///
/// The descriptors are not those of a keeper of this build.
pub fn resume(
    take_over: &TakeOver,
    respawn: Respawn,
    prepare: AgentPreparer,
) -> Result<i32, Failure> {
    hide()?;
    let opened = inherited::InheritedDescriptors::open(&take_over.descriptors, respawn);
    let (inherited, listener) = opened.map_err(|cause| Failure::TakeOver { cause })?;
    // These are the originals; exec has closed the copies.
    sys::fd::close_on_exec_from(3).map_err(Failure::process("take over from another agent"))?;
    Ok(agent::resumed(
        &inherited,
        take_over.generation,
        listener,
        prepare,
    ))
}

const SOCK_SEQPACKET: i32 = abi::constant::SOCK_SEQPACKET.i32();

/// The command did not run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Executing the command failed after its lookup.
    #[error("cannot execute {path}")]
    Exec {
        /// Path of the file.
        path: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel refused the filter or its listener.
    #[error("cannot install the seccomp filter")]
    Filter {
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A step of the policy failed in the command's process.
    #[error("cannot put the policy in force: the process cannot {step}")]
    Unconfined {
        /// The failed step.
        step: enforce::Step,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The agent has reported the reason; this is the exit status.
    #[error("cannot run the command")]
    Refused(i32),
    /// This build cannot use the state of the processes before this one.
    #[error("cannot take over from another agent")]
    TakeOver {
        /// The cause.
        #[source]
        cause: OpenError,
    },
    /// The services did not start; the agent has reported the reason.
    #[error("cannot start watching")]
    Services,
    /// A process of ours was killed.
    #[error("cannot go on watching: the {process} process is gone")]
    Gone {
        /// Name of the process.
        process: &'static str,
    },
    /// `/proc` does not show this process.
    #[error("cannot use /proc")]
    Proc {
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A process could not be created or waited for.
    #[error("cannot {action}")]
    Process {
        /// The operation that failed.
        action: &'static str,
        /// The cause.
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
