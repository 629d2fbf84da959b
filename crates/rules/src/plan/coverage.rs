//! Check whether an installed filter serves rules other than those it was compiled from.
//!
//! The filter of a process tree cannot be replaced, so rules that are loaded later may need only calls that
//! the filter already traps.

use std::collections::BTreeSet;
use std::sync::Arc;

use abi::Syscall;
use event::{EventKind, Plan};

use super::{groups, project, register, stdio};
use crate::engine::Engine;

/// A rule that needs calls which an installed filter does not trap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncoveredRule {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Names of the calls, or of their variants on other architectures.
    pub calls: BTreeSet<&'static str>,
}

impl Engine {
    /// Returns the rules that need calls which the filter of `installed` does not trap, in load order.
    #[must_use]
    pub fn unserved(&self, installed: &Plan) -> Vec<UncoveredRule> {
        let mut missing = vec![BTreeSet::new(); self.rules.len()];
        for call in Syscall::all() {
            let kind = EventKind::of_syscall(call);
            for entry in &self.program.kind(kind).entries {
                let any_of = match entry.root {
                    Some(root) => project(&self.program, root, kind, call),
                    None => register::always(),
                };
                if any_of.is_empty() {
                    continue;
                }
                let watch =
                    (call == Syscall::DUP).then(|| stdio::watch(&self.program, entry, kind));
                let is_served = match watch.flatten() {
                    Some(watch) => installed.stdio >= watch,
                    None => serves(installed, call, &any_of),
                };
                if !is_served {
                    missing[entry.rule].insert(call.name());
                }
            }
        }
        let unserved = |(rule, calls): (usize, BTreeSet<&'static str>)| UncoveredRule {
            rule: Arc::clone(&self.rules[rule].name),
            calls,
        };
        let missing = missing.into_iter().enumerate();
        missing
            .filter(|(_, calls)| !calls.is_empty())
            .map(unserved)
            .collect()
    }
}

fn serves(installed: &Plan, call: Syscall, needed: &register::Groups) -> bool {
    installed.calls.get(&call).is_some_and(|known| {
        let is_handed_over =
            |group: &Vec<_>| known.any_of.iter().any(|wide| groups::covers(wide, group));
        needed.iter().all(is_handed_over)
    })
}
