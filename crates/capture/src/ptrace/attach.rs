//! Attaches to running processes.

use std::fmt;
use std::sync::Arc;

use abi::Errno;
use event::{Evaluator, Pid, Tid};
use sys::SyscallError;

use super::engine::Engine;

/// Maximum number of rounds of listing threads that are not traced yet. A traced thread's children are
/// traced, so each round can find only threads made before the previous one.
const ROUNDS: usize = 64;
const EPERM: i32 = Errno::EPERM.0;
const ESRCH: i32 = Errno::ESRCH.0;

/// Error: a process may not be traced.
#[derive(Debug, thiserror::Error)]
#[error("cannot attach to process {pid}: {hindrance}")]
pub struct AttachError {
    /// Pid of the process.
    pub pid: i32,
    /// Reason.
    pub hindrance: TraceObstacle,
    #[source]
    cause: Option<SyscallError>,
}

/// Reason why a process may not be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceObstacle {
    /// The process does not exist, or has ended.
    Gone,
    /// A thread of the process has a tracer.
    TracedBy {
        /// Pid of the tracer.
        pid: i32,
        /// Name of the tracer.
        name: String,
    },
    /// The process is a kernel thread, or this process itself.
    Untraceable,
    /// The setting `kernel.yama.ptrace_scope` forbids it.
    Yama(i32),
    /// The process has privileges or a user that this process lacks.
    Privileges,
    /// Any other reason.
    Other,
}

impl TraceObstacle {
    /// Returns whether the tracer is a thread of this process: what that one traces is watched.
    fn is_traced_by_us(&self) -> bool {
        let own = std::process::id().cast_signed();
        matches!(self, Self::TracedBy { pid, .. } if *pid == own)
    }
}

impl fmt::Display for TraceObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("no such process"),
            Self::TracedBy { pid, name } => {
                write!(f, "it is traced already, by process {pid} ({name})")
            }
            Self::Untraceable => f.write_str("it is a process of the kernel, or this one"),
            Self::Yama(scope) => write!(f, "kernel.yama.ptrace_scope is {scope}"),
            Self::Privileges => {
                f.write_str("it belongs to another user, or has privileges that this process lacks")
            }
            Self::Other => f.write_str("the kernel refused"),
        }
    }
}

impl AttachError {
    pub(super) fn of(tid: Tid, pid: Pid, error: &SyscallError) -> Self {
        let hindrance = match error.errno() {
            ESRCH => TraceObstacle::Gone,
            EPERM => refusal(tid),
            _ => TraceObstacle::Other,
        };
        Self {
            pid: pid.0,
            hindrance,
            cause: Some(*error),
        }
    }

    fn gone(pid: Pid) -> Self {
        Self {
            pid: pid.0,
            hindrance: TraceObstacle::Gone,
            cause: None,
        }
    }
}

/// Pid of the parent of all kernel threads.
const KTHREADD: i32 = 2;

/// Returns the reason why a thread may not be traced.
fn refusal(tid: Tid) -> TraceObstacle {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", tid.0)) else {
        return TraceObstacle::Gone;
    };
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.map(str::trim)
    };
    let number = |name: &str| line(name).and_then(|text| text.parse::<i32>().ok());
    match number("TracerPid:") {
        Some(thread) if thread != 0 => {
            let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
            let process = status.ok().and_then(|status| {
                let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
                line.trim().parse().ok()
            });
            let pid: i32 = process.unwrap_or(thread);
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            let name = name.map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned());
            return TraceObstacle::TracedBy { pid, name };
        }
        _ => {}
    }
    let own = std::process::id().cast_signed();
    let has_memory = line("VmSize:").is_some();
    // Linux before 6.8 does not say so, but kernel threads are visible in the initial pid namespace only.
    let of_kernel = line("Kthread:").map_or_else(
        || !has_memory && [number("Tgid:"), number("PPid:")].contains(&Some(KTHREADD)),
        |kernel| kernel == "1",
    );
    if number("Tgid:") == Some(own) || of_kernel {
        return TraceObstacle::Untraceable;
    }
    // The process is about to end, or has ended and waits for its parent.
    if !has_memory {
        return TraceObstacle::Gone;
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.ok().and_then(|scope| scope.trim().parse().ok()) {
        Some(scope) if scope > 0 => TraceObstacle::Yama(scope),
        _ => TraceObstacle::Privileges,
    }
}

impl<J: Evaluator> Engine<J> {
    /// Attaches to a process with all its threads and children.
    pub(super) fn attach(&mut self, pid: Pid) -> Result<(), AttachError> {
        self.worker.shared.names.expect_roots();
        self.attach_process(pid)?;
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            // Children born since are traced already.
            self.serve_stops();
            let children = self.worker.shared.tree.inspector.children(parent);
            for child in children {
                if self.tracees.contains_key(&Tid(child.0)) {
                    continue;
                }
                match self.attach_process(child) {
                    Ok(()) => parents.push(child),
                    Err(error) if error.hindrance == TraceObstacle::Gone => {}
                    // A child that may not be traced does not keep the others from it.
                    Err(error) => {
                        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.0));
                        let name = name.unwrap_or_default();
                        let why = error.hindrance.to_string();
                        let notices = &self.worker.shared.notices;
                        notices.unwatched(child, name.trim_end(), &why, true);
                    }
                }
            }
        }
        Ok(())
    }

    /// Attaches to all threads. The process counts as traceable if one thread is.
    ///
    /// A thread that this process traces already is one whose birth the kernel has not reported yet, or is
    /// traced with the workload's filter by another thread.
    fn attach_process(&mut self, pid: Pid) -> Result<(), AttachError> {
        let shared = Arc::clone(&self.worker.shared);
        if self.tracees.contains_key(&Tid(pid.0)) {
            // Attached with all its threads, or born to a process that was.
            return Ok(());
        }
        let mut outcome = Err(AttachError::gone(pid));
        for _ in 0..ROUNDS {
            let threads = shared.tree.inspector.threads(pid);
            let mut is_complete = true;
            for tid in threads {
                if self.tracees.contains_key(&tid) {
                    continue;
                }
                match self.attach_unfiltered(tid, pid) {
                    Ok(()) => {
                        is_complete = false;
                        outcome = Ok(());
                    }
                    Err(error) if error.hindrance.is_traced_by_us() => outcome = Ok(()),
                    // The thread may have been born to a traced thread.
                    Err(error) if outcome.is_err() => outcome = Err(error),
                    Err(_) => {}
                }
                self.serve_stops();
            }
            if is_complete {
                break;
            }
        }
        outcome?;
        shared.tree.attach(pid);
        Ok(())
    }
}
