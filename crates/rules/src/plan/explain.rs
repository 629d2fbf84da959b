//! Explanation of a plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use abi::{RegisterTest, Syscall, TestOp};
use event::{CallPlan, EventKind, Need, Plan, Reason, Stage, StdioWatch};

use super::{BUSY_CALLS, HOT_CALLS, NOTIFY_COST_NS};
use crate::engine::Engine;

/// Explanation of a plan, by call and by rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The planned calls.
    pub calls: Vec<CallExplanation>,
    /// The rules in load order.
    pub rules: Vec<RuleExplanation>,
    /// Watch that replaces trapping every `dup`.
    pub stdio: StdioWatch,
}

/// One planned call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallExplanation {
    /// The call.
    pub call: Syscall,
    /// Tests on the call's registers, of which one must hold. Empty: the call always matters.
    pub predicate: Vec<String>,
    /// Whether a string argument can decide a rule.
    pub strings: bool,
    /// Need for the call's result.
    pub result: Need,
    /// Rules that need the call.
    pub rules: Vec<String>,
    /// Reasons other than rules.
    pub other_reasons: Vec<String>,
    /// Cost of trapping every such call, if it is noticeable.
    pub note: Option<String>,
}

/// Explanation of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleExplanation {
    /// Name of the rule.
    pub name: Arc<str>,
    /// Types of events that the rule can match.
    pub kinds: Vec<&'static str>,
    /// Comparisons of the rule, each with the stage from which it can be decided for all of these types.
    pub atoms: Vec<(Stage, String)>,
    /// What a match adds to the risk of its process tree; `None` if nothing.
    pub weight: Option<u32>,
    /// Whether the rule only adds to a risk and never alerts by itself.
    pub is_silent: bool,
    /// Names and weights of the rules whose matches the rule sums; empty if it sums none.
    pub signals: Vec<(Arc<str>, u32)>,
}

impl Engine {
    /// Explains a plan of this engine.
    #[must_use]
    pub fn explain(&self, plan: &Plan) -> Explanation {
        Explanation {
            calls: plan
                .calls
                .iter()
                .map(|(call, planned)| explain_call(*call, planned))
                .collect(),
            rules: (0..self.rules.len())
                .map(|rule| self.explain_rule(rule))
                .collect(),
            stdio: plan.stdio,
        }
    }

    fn explain_rule(&self, rule: usize) -> RuleExplanation {
        let program = &self.program;
        let mut kinds = Vec::new();
        let mut atoms = BTreeSet::new();
        for kind in EventKind::all() {
            let entries = &program.kind(kind).entries;
            let Some(entry) = entries.iter().find(|entry| entry.rule == rule) else {
                continue;
            };
            kinds.push(kind);
            if let Some(root) = entry.root {
                program.each_atom(root, &mut |atom| {
                    atoms.insert(atom);
                });
            }
        }
        let latest = |atom| {
            kinds
                .iter()
                .map(|kind| program.atom_stage(atom, *kind))
                .max()
        };
        let mut atoms: Vec<(Stage, String)> = atoms
            .into_iter()
            .map(|atom| {
                let stage = latest(atom).unwrap_or(Stage::Registers);
                (
                    stage,
                    program.atoms.show(atom, &program.operands).to_string(),
                )
            })
            .collect();
        atoms.sort();
        RuleExplanation {
            name: Arc::clone(&self.rules[rule].name),
            kinds: kinds.into_iter().map(EventKind::name).collect(),
            atoms,
            weight: self.rules[rule].weight(),
            is_silent: self.rules[rule].is_silent(),
            signals: match self.rules[rule].sums_risk() {
                true => self.signals(),
                false => Vec::new(),
            },
        }
    }

    /// Returns the rules with a weight, in load order.
    fn signals(&self) -> Vec<(Arc<str>, u32)> {
        let rules = self.rules.iter();
        rules
            .filter_map(|rule| Some((Arc::clone(&rule.name), rule.weight()?)))
            .collect()
    }
}

fn explain_call(call: Syscall, planned: &CallPlan) -> CallExplanation {
    let mut rules = Vec::new();
    let mut other_reasons = Vec::new();
    for reason in &planned.reasons {
        match reason {
            Reason::Rule(name) => rules.push(name.clone()),
            Reason::Floor(why) | Reason::State(why) => other_reasons.push(why.to_string()),
        }
    }
    let always = planned.any_of.iter().any(Vec::is_empty);
    let groups = planned.any_of.iter().filter(|_| !always);
    let is_felt = always && !rules.is_empty();
    let is_often_made = HOT_CALLS.contains(&call) || BUSY_CALLS.contains(&call);
    CallExplanation {
        call,
        predicate: groups.map(|group| show_group(call, group)).collect(),
        strings: planned.strings,
        result: planned.result,
        rules,
        other_reasons,
        note: (is_felt && is_often_made).then(|| every(call.name())),
    }
}

/// Describes the cost of trapping every one of some calls.
pub(super) fn every(calls: &str) -> String {
    let cost = NOTIFY_COST_NS / 1000;
    let tenths = NOTIFY_COST_NS % 1000 / 100;
    format!(
        "the rule needs every {calls}, {cost}.{tenths} microseconds each when watched without privileges"
    )
}

fn show_group(call: Syscall, group: &[RegisterTest]) -> String {
    let tests: Vec<String> = group.iter().map(|test| show_test(call, test)).collect();
    tests.join(" and ")
}

fn show_test(call: Syscall, test: &RegisterTest) -> String {
    let arg = call.args().get(usize::from(test.arg));
    let name = arg.map_or_else(|| format!("arg{}", test.arg), |arg| arg.name.to_owned());
    let value = test.value;
    match test.op {
        TestOp::AllBits => format!("{name} has all of {value:#x}"),
        TestOp::AnyBit => format!("{name} has any of {value:#x}"),
        TestOp::Eq => format!("{name} = {value}"),
        TestOp::Ge => format!("{name} >= {value}"),
        TestOp::Le => format!("{name} <= {value}"),
        TestOp::MaskedEq { mask } => format!("{name} & {mask:#x} = {value:#x}"),
        TestOp::Ne => format!("{name} != {value}"),
        TestOp::NoBit => format!("{name} has none of {value:#x}"),
    }
}
