//! Why the agent may not look into a process.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use event::{Pid, Process, StartTime, Tid};
use rustix::fs::AtFlags;
use sys::credential::{capabilities, users};

use process_info::procfs::{LINK_LIMIT, Proc, ProcError};

/// What keeps the agent from reading a process's memory or from learning its calls' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessObstacle {
    /// It holds capabilities that the agent lacks.
    Capabilities,
    /// It made itself unreadable (`PR_SET_DUMPABLE` 0, a change of user), or its program's file may
    /// be executed but not read.
    NotDumpable,
    /// It runs as this user, and the agent lacks `CAP_SYS_PTRACE`.
    OtherUser(u32),
    /// Another process traces it.
    Traced(Pid),
    /// It is no descendant of the agent, as Yama's `ptrace_scope` demands.
    Yama,
}

impl fmt::Display for AccessObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capabilities => write!(f, "it holds capabilities that the agent lacks"),
            Self::NotDumpable => {
                write!(f, "it is not dumpable, and the agent lacks CAP_SYS_PTRACE")
            }
            Self::OtherUser(uid) => {
                write!(
                    f,
                    "it runs as user {uid}, and the agent lacks CAP_SYS_PTRACE"
                )
            }
            Self::Traced(tracer) => write!(f, "process {} traces it", tracer.0),
            Self::Yama => write!(f, "kernel.yama.ptrace_scope forbids to trace it"),
        }
    }
}

const CAP_SYS_PTRACE: u8 = 19;

/// What keeps the agent from looking into the process of a thread; `None` if nothing does, or it is
/// gone.
pub(crate) fn obstacle(tid: Tid) -> Option<AccessObstacle> {
    let proc = Proc::open().ok()?;
    let status = proc.status(tid.0).ok()?;
    let own = capabilities(0).ok()?;
    let mut buffer = [0; LINK_LIMIT];
    // Takes the same right as reading the memory does, and touches none.
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
        let capable = own.effective.contains(CAP_SYS_PTRACE);
        return (restricted && !capable).then_some(AccessObstacle::Yama);
    }
    let user = status.status.credentials.uid;
    if users().is_ok_and(|ids| ids.effective != user || ids.effective != status.status.real_uid) {
        return Some(AccessObstacle::OtherUser(user));
    }
    // What is not dumpable belongs to root in /proc.
    let flags = AtFlags::empty();
    let owner = rustix::fs::statat(&proc, tid.0.to_string(), flags)
        .ok()?
        .st_uid;
    if owner == user && status.status.cap_permitted & !own.permitted.0 != 0 {
        return Some(AccessObstacle::Capabilities);
    }
    Some(AccessObstacle::NotDumpable)
}

/// Processes that were told to be unreadable.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<HashSet<(Pid, StartTime)>>);

/// How many are remembered; then all are forgotten, and told again.
const LIMIT: usize = 4096;

impl Unreadable {
    /// Whether this is the first time that the process could not be read.
    pub(crate) fn is_new(&self, process: &Process) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= LIMIT {
            told.clear();
        }
        told.insert((process.pid, process.start))
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
        let process = super::super::tree::stranger(Tid(7));
        assert!(unreadable.is_new(&process));
        assert!(!unreadable.is_new(&process));
    }
}
