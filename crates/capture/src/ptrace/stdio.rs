//! Tracks descriptors 0..2, so that the filter need not stop every plain `dup`.
//!
//! As under `notify` ([`decoder::stdio`]): the few calls that can close one of them are planned, and a
//! process that has one closed, and may have a socket to put there, stops at every call until all three are
//! open again. Its threads are traced already, so only the mode of resuming them changes.

use std::sync::Arc;

use event::{Evaluator, Pid, Process, Tid};
use sys::ptrace;

use abi::Syscall;

use super::engine::{Engine, TraceMode, low};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::stdio;

impl<J: Evaluator> Engine<J> {
    /// Notes the effect of a call on descriptors 0..2.
    pub(super) fn keep_stdio(&mut self, call: &Call, process: &Arc<Process>) {
        let shared = Arc::clone(&self.worker.shared);
        if !shared.watch_stdio {
            return;
        }
        let is_followed = || self.redirecting.contains(&process.pid) || !self.is_filtered(call.tid);
        let (effect, any) = (stdio::effect(call), shared.watch_stdio_any);
        if shared.tree.keep_stdio(process, effect, any, is_followed) {
            self.follow_calls(process.pid, call.tid);
        }
    }

    /// Makes the threads of a process stop at every call. The caller is held, the others are interrupted: a
    /// thread that runs enters no call before it has stopped.
    fn follow_calls(&mut self, pid: Pid, caller: Tid) {
        Counters::add(&self.worker.shared.counters.stdio_watches);
        self.redirecting.insert(pid);
        let others = self
            .tracees
            .iter()
            .filter(|(tid, tracee)| tracee.pid == pid && **tid != caller);
        for (tid, tracee) in others {
            if tracee.how == TraceMode::Filter {
                // Fails only if the thread has ended, which the next wait reports.
                let _ = ptrace::interrupt(tid.0);
            }
        }
    }

    /// Follows a new program that may start with one of descriptors 0..2 closed.
    pub(super) fn follow_stdio_of_program(&mut self, pid: Pid) {
        let shared = Arc::clone(&self.worker.shared);
        if !shared.watch_stdio || !self.is_filtered(Tid(pid.0)) {
            return;
        }
        let process = shared.tree.find(pid);
        let is_open = |process: &Arc<Process>| {
            !shared.tree.may_redirect(process, shared.watch_stdio_any)
                || shared.tree.inspector.has_stdio(pid)
        };
        if process.as_ref().is_none_or(is_open) {
            if process.is_some() && self.redirecting.remove(&pid) {
                self.settle_stdio(pid);
            }
        } else if !self.redirecting.contains(&pid) {
            self.follow_calls(pid, Tid(pid.0));
        }
    }

    /// Returns whether a thread stops at planned calls only.
    fn is_filtered(&self, tid: Tid) -> bool {
        let tracee = self.tracees.get(&tid);
        tracee.is_some_and(|tracee| tracee.how == TraceMode::Filter)
    }

    /// Returns whether a call at which a thread stops may fill one of descriptors 0..2.
    pub(super) fn is_redirection(&self, nr: u64, audit: u32) -> bool {
        self.worker.shared.watch_stdio
            && abi::arch::decode(audit, low(nr)).and_then(|(_, call)| call) == Some(Syscall::DUP)
    }

    /// Notes the result of a call: only a result of 0..2 can mean that one of them is open again.
    pub(super) fn note_filled(&mut self, tid: Tid, result: i64) {
        let Some(pid) = self.tracees.get(&tid).map(|tracee| tracee.pid) else {
            return;
        };
        if (0..=2).contains(&result)
            && self.redirecting.contains(&pid)
            && self.worker.shared.tree.inspector.has_stdio(pid)
        {
            self.redirecting.remove(&pid);
            self.settle_stdio(pid);
        }
    }

    /// Stops following the process once all of them are open.
    fn settle_stdio(&self, pid: Pid) {
        let tree = &self.worker.shared.tree;
        if !tree.inspector.closes_stdio_on_exec(pid) {
            tree.clear_stdio(pid);
        }
    }
}
