//! Choice of the enforcers of each rule: where one enforces the rule in full, others that would stop more than
//! that one leave the rule to it.

use std::collections::BTreeMap;

use super::{Assessment, Grade, MachineFeatures, assess, seccomp};
use crate::enforcer::EnforcerKind;
use crate::policy::{Policy, Rule};
use crate::restriction::Restriction;

/// Returns the policy in which each rule names the enforcers that leave it to a narrower one. Applying the
/// function to its own result changes nothing.
///
/// Rules that rely on what another rule drops keep it: Caps leaves no rule to others if that lowers the grade of
/// any rule.
#[must_use]
pub fn narrowed(policy: &Policy, machine: &MachineFeatures) -> Policy {
    let wide = with_each(policy, |_| BTreeMap::new());
    let narrow = with_each(&wide, |rule| left_by(&wide, rule, machine));
    let best = |policy: &Policy| -> Vec<Grade> {
        let rules = policy.rules.iter();
        rules.map(|rule| best(policy, rule, machine)).collect()
    };
    let (before, after) = (best(&wide), best(&narrow));
    if before
        .iter()
        .zip(after)
        .all(|(before, after)| after >= *before)
    {
        return narrow;
    }
    with_each(&narrow, |rule| {
        let mut left = rule.left_to.clone();
        left.remove(&EnforcerKind::Caps);
        left
    })
}

fn with_each(
    policy: &Policy,
    left_to: impl Fn(&Rule) -> BTreeMap<EnforcerKind, EnforcerKind>,
) -> Policy {
    let rule = |rule: &Rule| Rule {
        left_to: left_to(rule),
        ..rule.clone()
    };
    Policy {
        rules: policy.rules.iter().map(rule).collect(),
        ..policy.clone()
    }
}

fn best(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> Grade {
    let grades = policy
        .enforcers
        .iter()
        .map(|enforcer| assess(policy, rule, enforcer, machine).grade);
    grades.max().unwrap_or(Grade::None)
}

/// The enforcers that leave a rule to another one, and that one.
fn left_by(
    policy: &Policy,
    rule: &Rule,
    machine: &MachineFeatures,
) -> BTreeMap<EnforcerKind, EnforcerKind> {
    let assessed: Vec<(EnforcerKind, Assessment)> = policy
        .enforcers
        .iter()
        .map(|enforcer| (enforcer, assess(policy, rule, enforcer, machine)))
        .filter(|(_, assessment)| !assessment.output.is_empty())
        .collect();
    let full = assessed.iter().filter(|(enforcer, assessment)| {
        let is_known = !machine.is_elsewhere || *enforcer == EnforcerKind::Seccomp;
        assessment.grade == Grade::Full && is_known && machine.lacks(*enforcer).is_none()
    });
    let Some((narrowest, least)) = full.min_by_key(|(_, other)| side_effects(other).count()) else {
        return BTreeMap::new();
    };
    let stops_more =
        |other: &Assessment| side_effects(other).any(|text| !least.breaks.contains(text));
    let wider = assessed.iter().filter(|(_, other)| stops_more(other));
    let wider = wider.filter(|(wider, _)| !relies_on(*narrowest, *wider, rule));
    wider.map(|(wider, _)| (*wider, *narrowest)).collect()
}

/// Returns true if an enforcer is graded full only because another one does its part of the same rule.
fn relies_on(full: EnforcerKind, other: EnforcerKind, rule: &Rule) -> bool {
    match (full, other) {
        // What is dropped stays dropped only while new user namespaces are refused.
        (EnforcerKind::Caps, EnforcerKind::Seccomp) => true,
        // CAP_PERFMON reads processes outside of a domain.
        (EnforcerKind::Landlock, EnforcerKind::Caps) => {
            let mut restrictions = rule.restrictions.iter();
            restrictions.any(|restriction| matches!(restriction, Restriction::Ptrace { .. }))
        }
        _ => false,
    }
}

/// What an enforcer stops besides. What nearly every filter stops does not count: another rule of the policy has
/// the same effect.
fn side_effects(assessment: &Assessment) -> impl Iterator<Item = &String> {
    let of_any_filter = [seccomp::FOREIGN_BREAKS, seccomp::RING_BREAKS];
    let breaks = assessment.breaks.iter();
    breaks.filter(move |text| !of_any_filter.contains(&text.as_str()))
}
