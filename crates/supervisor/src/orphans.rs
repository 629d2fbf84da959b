//! Orphans of the workload and their new parents.
//!
//! An orphan goes to the nearest ancestor that is a subreaper, else to pid 1. Two cases need care.
//!
//! Yama's `ptrace_scope` 1 lets a process without CAP_SYS_PTRACE access its descendants only: a
//! daemon, which detaches itself by a double fork, would be lost to the agent. In this case the
//! waiter takes in orphans, so they stay below the agent. Otherwise it does not, because a daemon
//! expects the parent that it would have unwatched.
//!
//! The keeper takes in what a dead agent leaves, the waiter, and so stays above the workload: only
//! the keeper can be the next agent there.
//!
//! As the first process of a pid namespace, the front is the parent of every orphan in it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use abi::Signal;
use abi::constant::CAP_SYS_PTRACE;
use sys::clone::CloneFlags;
use sys::credential::capabilities;
use sys::prctl::set_child_subreaper;
use sys::signal::{Disposition, SignalStream, set_disposition};
use sys::wait::{self, Target};

use super::inherited::is_readable;

/// Time limit for the waiter to end after the workload.
const WAITER_GRACE: Duration = Duration::from_secs(1);

/// Returns the clone flags that determine the waiter's parent: a process that outlives the agent,
/// so that an agent's death leaves no process to an init process that may not reap. Where only
/// ancestors may access the workload, the agent must be the parent, and the keeper takes in what it
/// leaves.
pub(super) fn flags_for_waiter() -> CloneFlags {
    if is_tracing_by_ancestors() {
        CloneFlags::FILES
    } else {
        CloneFlags::FILES | CloneFlags::PARENT
    }
}

/// The waiter's handling of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orphans {
    /// Orphans are not its children.
    Leave,
    /// The waiter is their parent.
    TakeIn,
}

impl Orphans {
    /// Selects the handling, and becomes a subreaper if needed. Must be called before there is a
    /// child that could have orphans.
    pub(super) fn decide() -> Self {
        // Refused by no kernel that has seccomp listeners.
        if is_tracing_by_ancestors() && set_child_subreaper(true).is_ok() {
            Self::TakeIn
        } else {
            Self::Leave
        }
    }

    /// Reaps orphans, but leaves the command's status for its own wait.
    pub(super) fn reap(self, command: i32) {
        if self == Self::TakeIn {
            while wait::peek_end()
                .is_ok_and(|ended| ended.is_some_and(|pid| pid != command && reap(pid)))
            {
            }
        }
    }

    /// Remains the orphans' parent after the command's end, as long as there are any and the agent
    /// watches them.
    pub(super) fn outlive_command(
        self,
        agent: &OwnedFd,
        children: &SignalStream,
        agent_is_gone: impl Fn(&OwnedFd, &SignalStream) -> bool,
    ) {
        if self == Self::Leave {
            return;
        }
        loop {
            match wait::peek_end() {
                Ok(Some(pid)) => {
                    reap(pid);
                }
                Ok(None) if !agent_is_gone(agent, children) => {}
                // The agent has died, or there is no child any more.
                _ => return,
            }
        }
    }
}

/// Lets the kernel clean up after orphans that the first process of a pid namespace gets, of
/// sessions opened in the container too. This process asks nobody for its end: see `agent`.
///
/// Preconditions: the agent has been made, which must not inherit it.
pub(super) fn forget_if_first(pid: i32) -> sys::Result<()> {
    if pid == 1 {
        set_disposition(SIGCHLD, Disposition::Ignore)?;
    }
    Ok(())
}

/// Returns true if this process may access its own descendants only.
pub(super) fn is_tracing_by_ancestors() -> bool {
    let capable = capabilities(0).is_ok_and(|sets| sets.effective.contains(CAP_SYS_PTRACE.u8()));
    !capable && is_tracing_restricted()
}

/// Reaps the waiter if this process is its parent. Ptrace stops are left to others.
pub(super) fn reap_waiter(waiter: i32) {
    if waiter > 0 {
        let _ = wait::wait(Target::Pid(waiter), wait::NO_HANG);
    }
}

/// Waits for the end of the waiter if this process is its parent, and reaps other children.
pub(super) fn see_off(waiter: i32) {
    let is_child = || matches!(wait::wait(Target::Pid(waiter), wait::NO_HANG), Ok(None));
    if waiter > 0
        && is_child()
        && let Ok(process) = sys::pidfd::open(waiter)
    {
        is_readable(process.as_fd(), WAITER_GRACE);
    }
    // Ptrace stops are no longer needed by any process either.
    while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
}

/// Returns true if an unprivileged process may access its own descendants only. Also assumed where
/// `/proc` does not show kernel settings (`subset=pid`).
fn is_tracing_restricted() -> bool {
    const SETTINGS: &str = "/proc/sys/kernel";
    let scope = std::fs::read_to_string(format!("{SETTINGS}/yama/ptrace_scope"));
    match scope {
        Ok(scope) => scope.trim() != "0",
        Err(_) => !std::path::Path::new(SETTINGS).is_dir(),
    }
}

fn reap(pid: i32) -> bool {
    wait::wait(Target::Pid(pid), wait::ALL).is_ok()
}

const SIGCHLD: i32 = Signal::SIGCHLD.0;
