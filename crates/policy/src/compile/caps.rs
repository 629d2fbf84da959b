//! Rule compiler for `Caps`: capabilities that are dropped before the command starts.

use std::collections::BTreeSet;
use std::fmt;

use abi::{Capabilities, capability};
use serde_json::{Value, json};

use super::compiler::{Request, RuleCompiler};
use super::part::{Assessment, CompiledPart, lower_rule};
use super::{MachineFeatures, NameKind, denial_classifier};
use crate::enforcer::EnforcerKind;
use crate::policy::{Policy, Rule};
use crate::restriction::{PtraceScope, Restriction};

/// The capabilities that a rule drops, from all five sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drop(pub Capabilities);

/// The capabilities that a policy drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The dropped capabilities.
    pub dropped: Capabilities,
    /// Set if no program may regain the capabilities from its file: `no_new_privs`.
    pub no_new_privs: bool,
}

impl Profile {
    /// Compiles a policy.
    #[must_use]
    pub fn compile(policy: &Policy) -> Self {
        // Reports do not affect which capabilities are dropped.
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

/// Rule compiler for `Caps`.
pub(super) struct Compiler;

impl RuleCompiler for Compiler {
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment {
        lower(request.policy, request.rule, request.machine).assess(names, ToString::to_string)
    }

    /// Capabilities do not name files.
    fn covers(&self, _kind: NameKind) -> bool {
        true
    }

    fn text(&self, policy: &Policy, _machine: &MachineFeatures) -> String {
        let profile = Profile::compile(policy);
        let no_new_privs = profile.no_new_privs;
        format!("drop {}\nno_new_privs {no_new_privs}\n", profile.dropped)
    }

    fn json(&self, policy: &Policy, _machine: &MachineFeatures) -> Value {
        let profile = Profile::compile(policy);
        let dropped = profile.dropped.to_string();
        let dropped: Vec<_> = dropped.split_whitespace().collect();
        json!({ "dropped": dropped, "no_new_privs": profile.no_new_privs })
    }
}

/// Lowers a rule.
#[must_use]
pub fn lower(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> CompiledPart<Drop> {
    let lowered = lower_rule(rule, EnforcerKind::Caps, |restriction| {
        lower_one(policy, restriction)
    });
    let lowered = match lowered.entries.is_empty() {
        true => lowered,
        false => lowered.breaks(
            "set-user-ID programs and capabilities of files: they give nothing (no_new_privs)",
        ),
    };
    if !lowered.entries.is_empty() && !rule.verdict.denies() {
        return CompiledPart::missing(
            "a capability is granted or not: its use cannot be allowed and reported",
        );
    }
    if lowered.entries.is_empty() || !rule.verdict.audits() {
        return lowered;
    }
    let Some(held) = machine.held.filter(|_| machine.watches) else {
        return lowered.gap("the use of a missing capability is not reported");
    };
    let dropped = lowered.entries.iter().fold(0, |sum, Drop(set)| sum | set.0);
    let misses = denial_classifier::misses(Capabilities(dropped & held.0));
    match misses.is_empty() {
        true => lowered,
        false => lowered.gap(format!("a denial is not reported {}", of_each(&misses))),
    }
}

/// Formats "of this; of that".
fn of_each(things: &BTreeSet<&str>) -> String {
    let each: Vec<String> = things.iter().map(|thing| format!("of {thing}")).collect();
    each.join("; ")
}

fn lower_one(policy: &Policy, restriction: &Restriction) -> CompiledPart<Drop> {
    let (mut gaps, mut breaks) = (Vec::new(), Vec::new());
    let set = match restriction {
        Restriction::Capabilities(set) => *set,
        Restriction::Operation(operation) if operation.capabilities.0 != 0 => {
            let dropped = operation.capabilities;
            gaps = operation.coverage(|hook| asks_for(hook, dropped)).gaps;
            gaps.extend(operation.weak(EnforcerKind::Caps));
            breaks.push(whatever_else_needs(dropped));
            dropped
        }
        // Without capabilities, processes outside treat the process like any other.
        Restriction::Ptrace {
            scope: PtraceScope::Outside,
            ..
        } => {
            let names = ["sys_ptrace", "perfmon"].into_iter();
            let bits = names
                .filter_map(capability::from_name)
                .fold(0, |sum, n| sum | 1 << n);
            return CompiledPart::one(Drop(Capabilities(bits)))
                .breaks(whatever_else_needs(Capabilities(bits)))
                .gap("processes of the same user can still be accessed");
        }
        _ => return CompiledPart::missing("no capability decides about it"),
    };
    let lowered = CompiledPart {
        gaps,
        breaks,
        ..CompiledPart::one(Drop(set))
    };
    let blocks = |enforcer| policy.enforcers.contains(enforcer);
    match blocks(EnforcerKind::Seccomp) || blocks(EnforcerKind::Bpf) {
        true => lowered,
        false => lowered.gap("a new user namespace restores all capabilities; add Seccomp or BPF"),
    }
}

/// What dropping capabilities stops besides what a rule is about.
fn whatever_else_needs(set: Capabilities) -> String {
    format!(
        "everything else that needs {}",
        set.to_string().replace(' ', " or ")
    )
}

/// Returns true if a hook is the check for one of these capabilities.
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
