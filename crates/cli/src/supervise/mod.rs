//! Running a command under the watch so that nobody can tell the difference from outside.
//!
//! Four processes, each for one reason:
//!
//! - the *front* is what the caller started: it has the pid, the exit status and the stops that the
//!   caller's job control expects, and passes on signals that are sent to it alone;
//! - the *agent* is the front's child: receivers, rules, outputs. It is an ancestor of the workload,
//!   as Yama demands of a tracer, and outlives the command while descendants of it run;
//! - the *waiter* is the command's parent. The kernel lets every thread of a tracer's process
//!   consume the stops of its children, so the agent cannot be the parent itself;
//! - the *command*.
//!
//! They are forked before the first thread exists. Agent, waiter and command share one descriptor
//! table until the command's exec, which is how the agent gets the listener without any call of
//! the command's that its own filter might trap.
//!
//! None of them can be killed unnoticed. Without the agent a trapped call would wait for ever, so
//! the waiter kills the command and ends, which closes the shared table; the front then reads the
//! end of its pipe. Without the front or the waiter the agent kills the command.

mod agent;
mod command;
mod front;
mod message;
mod orphans;
pub(crate) mod signals;
mod waiter;

use capture::filter::FilterProgram;
use event::Pid;
use sys::notify::Listener;
use sys::signal::SignalSet;

pub(crate) use command::Command;

/// What the agent is given to start from.
pub(crate) struct Listening {
    /// Listener of the installed filter.
    pub(crate) listener: Listener,
    /// Processes of ours between the workload and whoever started it.
    pub(crate) transparent: Vec<Pid>,
}

/// The running services of the agent.
pub(crate) trait Services {
    /// Whether the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// The command itself has ended: everything it caused is to be delivered now.
    fn flush(&self);
    /// Everything has ended: deliver, write the last figures.
    fn finish(self: Box<Self>);
}

/// What the command is made from.
#[derive(Clone, Copy)]
struct Launch<'a> {
    command: &'a Command,
    program: &'a FilterProgram,
    /// What was blocked when this program was started.
    callers_mask: SignalSet,
}

/// Starts the services in the agent. Threads may be made from here on.
pub(crate) type Start = Box<dyn FnOnce(Listening) -> anyhow::Result<Box<dyn Services>>>;

/// Runs the command under the filter and returns its exit status as a shell would say it.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If the filter cannot be installed, the services do not start or the command cannot be executed.
pub(crate) fn run(
    command: &Command,
    program: &FilterProgram,
    start: Start,
) -> Result<i32, Failure> {
    front::run(command, program, start)
}

/// Why the command did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
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
