//! What is done to the process of an alert before it goes on.

use std::sync::Arc;
use std::time::Instant;

use event::Pid;

use crate::act::deny;
use crate::act::process::{Immediate, KILLED, STOPPED, would_have};
use crate::bound::{Bound, SIGKILL, SIGSTOP};
use crate::denials::WithheldCalls;
use crate::parameters::Operation;
use crate::responder::{Rule, Shared};
use crate::tree::{Selection, Tree};

impl Shared {
    /// Does what the first action of a rule begins with, before the process of the alert goes on.
    pub(crate) fn act_at_once(&self, rule: &Rule, process: &Arc<Bound>) -> Immediate {
        let Some(first) = rule.response.actions.first() else {
            return Immediate::None;
        };
        let (allowed, kills) = match &first.act {
            Operation::Terminate { allowed } => (allowed, true),
            Operation::Freeze { allowed, .. } => (allowed, false),
            act @ Operation::Deny { allowed, .. } => {
                return self.deny_at_once(rule, process, (act, allowed));
            }
            Operation::Thaw
            | Operation::Quarantine { .. }
            | Operation::Capture(_)
            | Operation::Script(_)
            | Operation::Webhook(_) => {
                return Immediate::None;
            }
        };
        if let Err(refusal) = self.guard.check(&self.proc, process, allowed) {
            // By the time that a thread asks, the process may have ended.
            return Immediate::Refused(refusal);
        }
        if rule.is_dry {
            let verb = if kills { KILLED } else { STOPPED };
            return self.rehearse_at_once(process, allowed, verb);
        }
        // Whatever fails here is tried again, and reported, by a thread.
        if kills && self.is_alone(process) && process.signal(SIGKILL) == Ok(true) {
            return Immediate::Killed;
        }
        match process.stat.state != b'T' && process.signal(SIGSTOP) == Ok(true) {
            true => Immediate::Stopped,
            false => Immediate::None,
        }
    }

    /// Withholds calls from the process of an alert and its descendants, that of the alert included if its answer is awaited.
    /// Descendants that the guard protects are found and spared afterwards: what is hit could make the search take long.
    fn deny_at_once(
        &self,
        rule: &Rule,
        process: &Arc<Bound>,
        (act, allowed): (&Operation, &[String]),
    ) -> Immediate {
        let Some(withheld) = WithheldCalls::of(act) else {
            return Immediate::None;
        };
        if let Err(refusal) = self.guard.check(&self.proc, process, allowed) {
            return Immediate::Refused(refusal);
        }
        if rule.is_dry {
            return self.rehearse_at_once(process, allowed, &deny::verb(withheld));
        }
        let who = (process.pid, process.stat.start);
        // Whatever fails here is tried again, and reported, by a thread.
        match self.denials.deny(who, rule.denial(0), withheld) {
            Ok(()) => Immediate::Denied,
            Err(_) => Immediate::None,
        }
    }

    /// Finds what the first action of a dry rule would hit. When a thread asks, the process may have ended: it was not
    /// stopped for the search. Keeps the result and not the tree, whose descriptors would be many.
    fn rehearse_at_once(&self, process: &Arc<Bound>, allowed: &[String], verb: &str) -> Immediate {
        if !self.settings.caller_waits {
            // A search takes long, and events are lost meanwhile.
            return match process.is_unreaped() {
                true => Immediate::Allowed,
                false => Immediate::None,
            };
        }
        let tree = if self.is_alone(process) {
            Tree::of_one(Arc::clone(process))
        } else {
            let (proc, guard) = (&self.proc, &self.guard);
            let select = Selection {
                proc,
                guard,
                allowed,
            };
            let deadline = Instant::now() + self.search_limit;
            match Tree::look_until(&select, Arc::clone(process), deadline) {
                Some(tree) => tree,
                // A child of the caller goes on, and may fork for ever. A thread has more time.
                None => return Immediate::Allowed,
            }
        };
        match tree.pids().is_empty() {
            true => Immediate::None,
            false => Immediate::Rehearsed(would_have(verb, &tree)),
        }
    }

    /// Returns true if a process leaves nothing behind: it has one thread and no child, and leads no session, whose
    /// processes may be orphans that it has started. A list that is empty at one moment is exact, and one thread that
    /// waits for this answer makes no child meanwhile.
    pub(super) fn is_alone(&self, process: &Bound) -> bool {
        let Pid(pid) = process.pid;
        let children = || self.proc.contents(&format!("{pid}/task/{pid}/children"));
        self.settings.caller_waits
            && process.stat.stat.threads == 1
            && process.stat.stat.sid != pid
            && children().is_ok_and(|children| children.trim().is_empty())
            && process.is_unreaped()
    }
}
