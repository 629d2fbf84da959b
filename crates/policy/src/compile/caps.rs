//! Rules as capabilities that are dropped before the command starts.

use std::collections::BTreeSet;
use std::fmt;

use abi::{Capabilities, capability};

use super::{CompiledPart, MachineFeatures, denial_classifier, lower_rule};
use crate::policy::{Enforcer, Policy, Rule};
use crate::restriction::{PtraceScope, Restriction};

/// Capabilities that a rule drops, from all five sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drop(pub Capabilities);

/// What the command starts without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The capabilities.
    pub dropped: Capabilities,
    /// Set if no program may get them back from its file: `no_new_privs`.
    pub no_new_privs: bool,
}

impl Profile {
    /// What a policy drops.
    #[must_use]
    pub fn compile(policy: &Policy) -> Self {
        // What is told of it is another thing.
        let machine = MachineFeatures::default();
        let lowered = policy
            .rules
            .iter()
            .map(|rule| lower(policy, rule, &machine));
        let drops = lowered.flat_map(|lowered| lowered.entries);
        let dropped = drops.fold(0, |sum, Drop(set)| sum | set.0);
        Self {
            dropped: Capabilities(dropped),
            no_new_privs: dropped != 0,
        }
    }
}

/// What a rule compiles to.
#[must_use]
pub fn lower(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> CompiledPart<Drop> {
    let lowered = lower_rule(rule, Enforcer::Caps, |restriction| {
        lower_one(policy, restriction)
    });
    if !lowered.entries.is_empty() && !rule.verdict.denies() {
        return CompiledPart::missing(
            "a capability is there or not: its use cannot be allowed and reported",
        );
    }
    if lowered.entries.is_empty() || !rule.verdict.audits() {
        return lowered;
    }
    let Some(held) = machine.held.filter(|_| machine.watches) else {
        return lowered.gap("a capability that is not there is not reported");
    };
    let dropped = lowered.entries.iter().fold(0, |sum, Drop(set)| sum | set.0);
    let misses = denial_classifier::misses(Capabilities(dropped & held.0));
    match misses.is_empty() {
        true => lowered,
        false => lowered.gap(format!("a denial is not reported {}", of_each(&misses))),
    }
}

/// "of this; of that".
fn of_each(things: &BTreeSet<&str>) -> String {
    let each: Vec<String> = things.iter().map(|thing| format!("of {thing}")).collect();
    each.join("; ")
}

fn lower_one(policy: &Policy, restriction: &Restriction) -> CompiledPart<Drop> {
    let mut gaps = Vec::new();
    let set = match restriction {
        Restriction::Capabilities(set) => *set,
        Restriction::Operation(operation) if operation.capabilities.0 != 0 => {
            let dropped = operation.capabilities;
            gaps = operation.coverage(|hook| asks_for(hook, dropped)).gaps;
            gaps.extend(operation.weak(Enforcer::Caps));
            dropped
        }
        // Without them a process is as any other to processes outside.
        Restriction::Ptrace {
            scope: PtraceScope::Outside,
            ..
        } => {
            let names = ["sys_ptrace", "perfmon"].into_iter();
            let bits = names
                .filter_map(capability::from_name)
                .fold(0, |sum, n| sum | 1 << n);
            return CompiledPart::one(Drop(Capabilities(bits)))
                .gap("processes of the same user stay within reach");
        }
        _ => return CompiledPart::missing("no capability decides about it"),
    };
    let lowered = CompiledPart {
        gaps,
        ..CompiledPart::one(Drop(set))
    };
    let blocks = |enforcer| policy.enforcers.contains(enforcer);
    match blocks(Enforcer::Seccomp) || blocks(Enforcer::Bpf) {
        true => lowered,
        false => lowered.gap("a new user namespace has all capabilities again; add Seccomp or BPF"),
    }
}

/// Whether a hook is the question for one of these capabilities.
fn asks_for(hook: &str, set: Capabilities) -> bool {
    let name = hook.strip_prefix("capable:");
    let number = name.and_then(capability::from_name);
    number.is_some_and(|number| set.contains(number))
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "drop {}", self.0)
    }
}
