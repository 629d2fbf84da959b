//! Reasons why the agent cannot inspect a process.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use abi::constant::CAP_SYS_PTRACE;
use event::{Pid, Process, StartTime, Tid};
use rustix::fs::AtFlags;
use sys::credential::{capabilities, users};

use process_info::procfs::{LINK_LIMIT, Proc, ProcError};

/// Reason why the agent cannot read a process's memory or learn its calls' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessObstacle {
    /// The process holds capabilities that the agent lacks.
    Capabilities,
    /// The process made itself unreadable (`PR_SET_DUMPABLE` 0, a change of user), or its program's file may
    /// be executed but not read.
    NotDumpable,
    /// The process runs as this user, and the agent lacks `CAP_SYS_PTRACE`.
    OtherUser(u32),
    /// This other process traces it.
    Traced(Pid),
    /// The process is not a descendant of the agent, as Yama's `ptrace_scope` demands.
    Yama,
}

impl fmt::Display for AccessObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capabilities => write!(f, "it has capabilities that the monitor lacks"),
            Self::NotDumpable => {
                write!(
                    f,
                    "it is not dumpable, and the monitor lacks CAP_SYS_PTRACE"
                )
            }
            Self::OtherUser(uid) => {
                write!(
                    f,
                    "it runs as user {uid}, and the monitor lacks CAP_SYS_PTRACE"
                )
            }
            Self::Traced(tracer) => write!(f, "process {} traces it", tracer.0),
            Self::Yama => write!(f, "kernel.yama.ptrace_scope forbids to trace it"),
        }
    }
}

/// Returns what keeps the agent from inspecting the process of a thread; `None` if nothing does, or the
/// thread is gone.
pub(crate) fn obstacle(tid: Tid) -> Option<AccessObstacle> {
    let proc = Proc::open().ok()?;
    let status = proc.status(tid.0).ok()?;
    let own = capabilities(0).ok()?;
    let mut buffer = [0; LINK_LIMIT];
    // Needs the same permission as reading the memory, and reads nothing.
    if !matches!(
        proc.link(tid.0, "exe", &mut buffer),
        Err(ProcError::Denied { .. })
    ) {
        let is_own = || proc.exists(&format!("self/task/{}", status.tracer));
        if status.tracer != 0 && !is_own() {
            return Some(AccessObstacle::Traced(Pid(status.tracer)));
        }
        let scope = proc.contents("sys/kernel/yama/ptrace_scope");
        let restricted = scope.is_ok_and(|scope| scope.trim() != "0");
        let capable = own.effective.contains(CAP_SYS_PTRACE.u8());
        return (restricted && !capable).then_some(AccessObstacle::Yama);
    }
    let user = status.status.credentials.uid;
    if users().is_ok_and(|ids| ids.effective != user || ids.effective != status.status.real_uid) {
        return Some(AccessObstacle::OtherUser(user));
    }
    // In /proc, the entries of a process that is not dumpable belong to root.
    let flags = AtFlags::empty();
    let owner = rustix::fs::statat(&proc, tid.0.to_string(), flags)
        .ok()?
        .st_uid;
    if owner == user && status.status.cap_permitted & !own.permitted.0 != 0 {
        return Some(AccessObstacle::Capabilities);
    }
    Some(AccessObstacle::NotDumpable)
}

/// Processes that were reported to be unreadable.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<HashSet<(Pid, StartTime)>>);

/// Maximum number of processes remembered; beyond it all are forgotten, and reported again.
const LIMIT: usize = 4096;

impl Unreadable {
    /// Returns whether this is the first time that the process could not be read.
    pub(crate) fn is_new(&self, process: &Process) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= LIMIT {
            reported.clear();
        }
        reported.insert((process.pid, process.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_keeps_a_process_from_itself() {
        assert_eq!(obstacle(Tid(std::process::id().cast_signed())), None);
    }

    #[test]
    fn a_process_is_told_once() {
        let unreadable = Unreadable::default();
        let process = decoder::tree::stranger(Tid(7));
        assert!(unreadable.is_new(&process));
        assert!(!unreadable.is_new(&process));
    }
}
