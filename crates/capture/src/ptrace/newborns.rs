//! Holds new processes until the kernel has named their parents.
//!
//! A new process is traced from its first instruction, but its first stop may come before the stop at which its
//! parent reports the birth. `/proc` does not name the parent reliably (`CLONE_PARENT`, orphans), and the first
//! call of a process may already be one that a rule asks for. So a new process stays in its first stop until
//! the report arrives. The parent is in the kernel between the two, waits for nobody there, and reports the
//! birth even if it waits for the child next (`vfork`).
//!
//! Only a parent that is killed between the two reports nothing. A child whose parent can be no thread that
//! still runs continues with a likely parent, and one that has been held for [`PATIENCE`] in any case; a report
//! that comes after all puts the parent right.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Errno;
use event::{Evaluator, Pid, Process, Tid};
use sys::ptrace;

use super::engine::{Engine, TraceMode, Tracee, event_tid};

/// Time after which the tracer looks whether the parent can still report the birth.
const GRACE: Duration = Duration::from_millis(100);
/// Maximum time for which a new process is held. Its parent may have to wait for a processor.
const PATIENCE: Duration = Duration::from_secs(2);

/// New processes in their first stop whose parents have not reported them yet.
#[derive(Debug, Default)]
pub(super) struct Newborns {
    held: HashMap<Tid, HeldProcess>,
}

#[derive(Debug)]
struct HeldProcess {
    since: Instant,
    /// The parent that `/proc` showed when it was stopped: the likely one, unless it was made by `CLONE_PARENT`.
    shown_parent: Option<Arc<Process>>,
}

impl Newborns {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Drops a process that has ended.
    pub(super) fn forget(&mut self, tid: Tid) {
        self.held.remove(&tid);
    }

    fn hold(&mut self, tid: Tid, shown_parent: Option<Arc<Process>>) {
        let since = Instant::now();
        let held = HeldProcess {
            since,
            shown_parent,
        };
        self.held.insert(tid, held);
    }

    fn release(&mut self, tid: Tid) -> Option<HeldProcess> {
        self.held.remove(&tid)
    }

    /// Returns the processes that have been held for at least this time.
    fn held_for(&self, time: Duration) -> Vec<Tid> {
        let held = self.held.iter();
        held.filter(|(_, held)| held.since.elapsed() >= time)
            .map(|(tid, _)| *tid)
            .collect()
    }
}

impl<J: Evaluator> Engine<J> {
    /// Handles the first stop of a thread whose birth has not been reported. Returns true if it stays in it.
    ///
    /// A thread of a known process continues: its parent does not matter.
    pub(super) fn holds_newborn(&mut self, tid: Tid) -> bool {
        let tree = &self.worker.shared.tree;
        match tree.inspector.thread_group_and_parent(tid) {
            Some((group, parent)) if group.0 == tid.0 => {
                self.newborns.hold(tid, tree.find(parent));
                self.note_waiting();
                true
            }
            _ => {
                self.adopt(tid, None);
                false
            }
        }
    }

    /// Handles the stop at which a thread reports a birth.
    pub(super) fn at_birth(&mut self, parent: Tid, event: u32) {
        let Some(child) = event_tid(parent) else {
            return;
        };
        let shared = Arc::clone(&self.worker.shared);
        let Some(tracee) = self.tracees.get(&parent) else {
            return;
        };
        let (how, parent_pid) = (tracee.how, tracee.pid);
        if !self.tracees.contains_key(&child) && is_gone(child) {
            // Killed before this report, and reported by a wait already: its number may have another owner next.
            return;
        }
        let is_process = event != ptrace::EVENT_CLONE
            || shared.tree.inspector.thread_group(child) == Some(Pid(child.0));
        let pid = if is_process { Pid(child.0) } else { parent_pid };
        self.tracees
            .entry(child)
            .or_insert_with(|| Tracee::born(pid, how));
        if is_process
            && how != TraceMode::Starting
            && let Some(parent) = shared.tree.of_thread(Tid(parent_pid.0), &shared.counters)
        {
            shared.tree.born(pid, &parent);
        }
        if is_process && self.redirecting.contains(&parent_pid) {
            self.redirecting.insert(pid);
        }
        if self.newborns.release(child).is_some() {
            self.note_waiting();
            self.go_on_from_stop(child);
        }
    }

    /// Lets new processes go whose parents will not report them any more.
    pub(super) fn overdue_newborns(&mut self) {
        if self.newborns.held_for(GRACE).is_empty() {
            return;
        }
        // In this order: a thread that has reported a birth by the look does not run, but its report is pending.
        let inspector = &self.worker.shared.tree.inspector;
        let may_report = self.tracees.keys().any(|tid| inspector.runs(*tid));
        let time = if may_report { PATIENCE } else { GRACE };
        let overdue = self.newborns.held_for(time);
        self.serve_stops();
        for tid in overdue {
            if let Some(held) = self.newborns.release(tid) {
                self.adopt(tid, held.shown_parent);
                self.go_on_from_stop(tid);
            }
        }
        self.note_waiting();
    }

    /// Starts tracing a thread whose birth has not been reported, or never will be. `shown_parent`: what `/proc`
    /// showed at its first stop.
    pub(super) fn adopt(&mut self, tid: Tid, shown_parent: Option<Arc<Process>>) {
        let shared = Arc::clone(&self.worker.shared);
        let inspector = &shared.tree.inspector;
        let Some(pid) = inspector.thread_group(tid) else {
            return;
        };
        let is_process = pid.0 == tid.0;
        let parent = match &shown_parent {
            Some(shown) => Some(shown.pid),
            None if is_process => inspector.identity(pid).map(|identity| identity.ppid),
            None => Some(pid),
        };
        if parent.is_some_and(|parent| self.redirecting.contains(&parent)) {
            self.redirecting.insert(pid);
        }
        let by_parent = parent.and_then(|parent| self.tracees.get(&Tid(parent.0)));
        let how = by_parent
            .or_else(|| self.tracees.values().next())
            .map_or(TraceMode::Filter, |tracee| tracee.how);
        if is_process && how != TraceMode::Starting {
            let counters = &shared.counters;
            shared
                .tree
                .born_to_likely_parent(pid, shown_parent, counters);
        }
        self.tracees.insert(tid, Tracee::born(pid, how));
    }
}

/// Returns whether no thread has this number.
fn is_gone(tid: Tid) -> bool {
    const NO_SIGNAL: i32 = 0;
    sys::signal::send(tid.0, NO_SIGNAL).is_err_and(|error| error.is(Errno::ESRCH.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newborn_is_held_until_it_is_named_or_ends() {
        let mut newborns = Newborns::default();
        for tid in [1, 2, 3] {
            newborns.hold(Tid(tid), None);
        }
        newborns.forget(Tid(2));
        assert!(newborns.release(Tid(1)).is_some() && newborns.release(Tid(1)).is_none());
        assert!(newborns.release(Tid(2)).is_none());
        assert_eq!(newborns.held_for(Duration::ZERO), [Tid(3)]);
        assert!(newborns.held_for(PATIENCE).is_empty());
        assert_eq!(newborns.len(), 1);
    }

    #[test]
    fn a_child_is_gone_once_it_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let tid = Tid(child.id().cast_signed());
        assert!(!is_gone(tid));
        child.wait().unwrap();
        assert!(is_gone(tid));
    }
}
