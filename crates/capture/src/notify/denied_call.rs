//! Refuses the calls that are withheld from their callers.
//!
//! A caller is known by its true ancestors: children of processes that have ended by their marks ([`decoder::lineage`]), or by
//! their birth under a tracer. While calls are withheld from any process, those of a caller that cannot be read fail.

use std::sync::{Arc, Weak};

use abi::Errno;
use bumpalo::Bump;
use event::{
    Denial, DenialId, Evaluator, LiveProcess, Outcome, Pid, Plan, Process, ProcessDenier, Stage,
    StartTime, Tid,
};
use sys::notify::Notification;
use sys::time::{Clock, now_ns};

use super::denials::{deniable, uncovered};
use super::receiver::Receiver;
use super::worker::{CallEvaluator, CallView};
use super::{Processes, Shared};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode::{self, Decoded};
use decoder::tree::{Tree, stranger};

/// Withholds calls from the processes of an engine that holds its callers.
struct Denier {
    tree: Weak<Tree>,
    /// Why it cannot.
    lack: Option<String>,
}

impl Processes {
    /// Returns what withholds calls from these processes. `installed`: the calls that their filter traps. `denies_rings`: none
    /// of them has an io_uring.
    #[must_use]
    pub fn denier(&self, installed: &Plan, denies_rings: bool) -> Arc<dyn ProcessDenier> {
        let lack = match uncovered(installed) {
            Some(call) => Some(format!(
                "the filter of the program lets `{call}` pass: it was made before a response file named `process:deny`"
            )),
            None if !denies_rings => Some("the program may have an io_uring".to_owned()),
            None => None,
        };
        Arc::new(Denier {
            tree: Arc::downgrade(&self.0),
            lack,
        })
    }
}

impl ProcessDenier for Denier {
    fn deny(&self, process: (Pid, StartTime), denial: Denial) -> Result<bool, String> {
        let Some(tree) = self.tree.upgrade() else {
            return Ok(false);
        };
        let Some(process) = tree.remembered(process) else {
            return Ok(false);
        };
        if let Some(lack) = &self.lack {
            return Err(lack.clone());
        }
        if process.comes_from_outside() {
            let lack =
                "the process entered, or descends from one that did, and may have an io_uring";
            return Err(lack.to_owned());
        }
        tree.deny(&process, denial);
        Ok(true)
    }

    fn spare(&self, process: (Pid, StartTime), denial: DenialId) -> bool {
        let tree = self.tree.upgrade();
        tree.is_some_and(|tree| tree.spare(process, denial))
    }

    fn is_denied(&self, process: (Pid, StartTime), denial: DenialId) -> bool {
        let Some(tree) = self.tree.upgrade().filter(|tree| tree.has_denials()) else {
            return false;
        };
        let found = tree.find(process.0);
        let found = found.filter(|found| found.start == process.1);
        found.is_some_and(|found| found.has_denial(denial, now_ns(Clock::Monotonic)))
    }

    fn denied_descendants(
        &self,
        process: (Pid, StartTime),
        denial: DenialId,
    ) -> Vec<(Pid, StartTime)> {
        let Some(tree) = self.tree.upgrade() else {
            // The engine has ended, and with it what it watched.
            return Vec::new();
        };
        let now = now_ns(Clock::Monotonic);
        let mut found: Vec<_> = tree
            .watched()
            .iter()
            .filter(|below| below.has_denial(denial, now))
            .filter_map(|below| Some((below.generations_from(process)?, below.pid, below.start)))
            .collect();
        found.sort_unstable();
        let named = found.into_iter().map(|(_, pid, start)| (pid, start));
        named.collect()
    }

    fn is_alive(&self) -> bool {
        self.tree.strong_count() > 0
    }
}

impl<J: Evaluator> Shared<J> {
    /// Returns the caller if the call is withheld from it, or from others while it cannot be told who calls.
    pub(crate) fn denied_caller(&self, notification: &Notification) -> Option<Arc<Process>> {
        if !self.tree.has_denials() {
            return None;
        }
        let calls = deniable(notification)?;
        let tid = Tid(notification.tid);
        let Some(process) = self.tree.of_thread(tid, &self.counters) else {
            // A caller that was killed makes no call.
            return self.may_wait(notification).then(|| Arc::new(stranger(tid)));
        };
        let now = now_ns(Clock::Monotonic);
        let is_denied = calls.iter().any(|call| process.is_denied(*call, now));
        is_denied.then_some(process)
    }

    /// Returns whether the caller waits for an answer, as far as that can be told. A tracer has no listener to ask.
    fn may_wait(&self, notification: &Notification) -> bool {
        self.listener.is_valid(notification.id).unwrap_or(true)
    }
}

impl<J: Evaluator> CallEvaluator<J> {
    /// Evaluates a call that fails because it is withheld, if a rule asks for it.
    pub(crate) fn conclude_denied<'a>(
        &mut self,
        call: &'a Call,
        process: &Process,
        decoded: Decoded<'a>,
        arena: &'a Bump,
    ) {
        let shared = Arc::clone(&self.shared);
        if !shared.is_evaluated(call) {
            return;
        }
        let time_ns = now_ns(Clock::Real);
        let outcome = Outcome::Returned(-i64::from(Errno::EPERM.0));
        let mut decoded = decoded.returned(call, outcome, arena);
        if let Some(descriptor) = decoded.descriptor {
            let (inspector, pid) = (&shared.tree.inspector, process.pid);
            let result = Some(-i64::from(Errno::EPERM.0));
            let resolved = decode::resolve(inspector, call, descriptor, result, pid, arena);
            decoded.descriptor = Some(resolved);
        }
        let live = LiveProcess::default();
        let view = CallView::at_entry(call, time_ns, decoded, &live, arena).returned(outcome);
        self.conclude(&view, Stage::Exit, process);
    }
}

impl<J: Evaluator + 'static> Receiver<J> {
    /// Refuses a call that is withheld from its caller, and has rules see that it fails.
    pub(super) fn deny(&mut self, call: &Call, process: &Process) {
        // What the policy refuses is reported as that. The guard has none of these calls.
        if self.is_refused(call) {
            return;
        }
        let shared = Arc::clone(&self.worker.shared);
        let arena = Bump::new();
        let decoded = decode::decode(call, &self.memory, &arena);
        if !self.seat.proceed() {
            // A read missed its deadline, and a successor has the call.
            return;
        }
        if !shared.listener.is_valid(call.id).unwrap_or(false) {
            // What was read may be another process's.
            Counters::add(&shared.counters.gone);
            return;
        }
        self.worker.conclude_denied(call, process, decoded, &arena);
        shared.answer_instead(call.id, Err(Errno::EPERM.0));
    }
}
