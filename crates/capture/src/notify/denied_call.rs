//! Refuses the calls that are withheld from their callers.
//!
//! A caller is known by its true ancestors: children of processes that have ended by their marks ([`decoder::lineage`]), or by
//! their birth under a tracer.

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
use decoder::tree::Tree;

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
        let found = tree.find(process.0);
        if !found.is_some_and(|found| found.start == process.1) {
            return Ok(false);
        }
        match &self.lack {
            Some(lack) => Err(lack.clone()),
            None => Ok(tree.deny(process, denial)),
        }
    }

    fn spare(&self, process: (Pid, StartTime), denial: DenialId) -> bool {
        let tree = self.tree.upgrade();
        tree.is_some_and(|tree| tree.spare(process, denial))
    }

    fn is_alive(&self) -> bool {
        self.tree.strong_count() > 0
    }
}

impl<J: Evaluator> Shared<J> {
    /// Returns the caller if the call is withheld from it.
    pub(crate) fn denied_caller(&self, notification: &Notification) -> Option<Arc<Process>> {
        if !self.tree.has_denials() {
            return None;
        }
        let calls = deniable(notification)?;
        let process = self.tree.of_thread(Tid(notification.tid), &self.counters)?;
        let now = now_ns(Clock::Monotonic);
        let is_denied = calls.iter().any(|call| process.is_denied(*call, now));
        is_denied.then_some(process)
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
