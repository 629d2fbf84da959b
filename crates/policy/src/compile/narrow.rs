//! Choice of the enforcers of each rule: where one enforces the rule in full, others that would stop more than
//! that one leave the rule to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use serde_json::Value;

use super::denial_classifier::DenialClassifier;
use super::{Assessment, Grade, MachineFeatures, assess, landlock, seccomp};
use crate::diagnostic::Diagnostic;
use crate::enforcer::EnforcerKind;
use crate::policy::{Policy, Rule};
use crate::restriction::Restriction;

/// A policy with the choice of enforcers for each rule on one machine, and that machine. Everything that is
/// compiled, graded or reported of a policy comes from one value of this type, so that all of it agrees.
#[derive(Clone, Debug)]
pub struct NarrowedPolicy {
    policy: Policy,
    machine: MachineFeatures,
}

impl Deref for NarrowedPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

impl NarrowedPolicy {
    /// Chooses the enforcers of each rule: where one of them enforces a rule in full, those that would stop more
    /// leave it to that one. Choosing again changes nothing.
    ///
    /// No rule has a lower grade than without the choice: rules that rely on what another rule drops keep it, and
    /// if that does not suffice, every enforcer keeps everything.
    #[must_use]
    pub fn new(policy: &Policy, machine: &MachineFeatures) -> Self {
        let wide = with_each(policy, |_| BTreeMap::new());
        let narrow = with_each(&wide, |rule| left_by(&wide, rule, machine));
        let narrow = with_files_beside_domain(&wide, narrow, machine);
        let with_caps = with_each(&narrow, |rule| {
            let mut left = rule.left_to.clone();
            left.remove(&EnforcerKind::Caps);
            left
        });
        let before = grades(&wide, machine);
        let is_kept = |policy: &Policy| {
            let after = grades(policy, machine);
            after
                .iter()
                .zip(&before)
                .all(|(after, before)| after >= before)
        };
        let policy = [narrow, with_caps].into_iter().find(is_kept);
        Self {
            policy: policy.unwrap_or(wide),
            machine: machine.clone(),
        }
    }

    /// The policy in which each enforcer keeps all that it can enforce. For what stays in force while other
    /// enforcers keep an older policy, and to show an enforcer alone.
    #[must_use]
    pub fn wide(policy: &Policy, machine: &MachineFeatures) -> Self {
        Self {
            policy: with_each(policy, |_| BTreeMap::new()),
            machine: machine.clone(),
        }
    }

    /// The machine for which the enforcers were chosen.
    #[must_use]
    pub fn machine(&self) -> &MachineFeatures {
        &self.machine
    }

    /// Assesses an enforcer for one rule of the policy.
    #[must_use]
    pub fn assess(&self, rule: &Rule, enforcer: EnforcerKind) -> Assessment {
        assess(&self.policy, rule, enforcer, &self.machine)
    }

    /// The best grade of a rule among the enforcers of the policy.
    #[must_use]
    pub fn grade(&self, rule: &Rule) -> Grade {
        best(&self.policy, rule, &self.machine)
    }

    /// Reports the rules that the chosen enforcers do not enforce in full. `accepted` lists the rules that may be
    /// enforced only partially or not at all. Rules that the policy itself accepts may be enforced partially and
    /// are not reported then; a rule that nothing enforces remains an error.
    #[must_use]
    pub fn check(&self, accepted: &[String]) -> Vec<Diagnostic> {
        super::check(self, accepted)
    }

    /// The rules that the enforcers enforce only partially.
    #[must_use]
    pub fn partial_rules(&self) -> BTreeSet<String> {
        super::partial_rules(self)
    }

    /// The compiled policy for an enforcer as human-readable text.
    #[must_use]
    pub fn text(&self, enforcer: EnforcerKind) -> String {
        super::compiler(enforcer).text(&self.policy, &self.machine)
    }

    /// The compiled policy for an enforcer as JSON.
    #[must_use]
    pub fn json(&self, enforcer: EnforcerKind) -> Value {
        super::compiler(enforcer).json(&self.policy, &self.machine)
    }

    /// The classifier of denials that the kernel does not report.
    #[must_use]
    pub fn classifier(&self) -> DenialClassifier {
        DenialClassifier::compile(&self.policy, &self.machine)
    }
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

/// The best grade of each rule.
fn grades(policy: &Policy, machine: &MachineFeatures) -> Vec<Grade> {
    let rules = policy.rules.iter();
    rules.map(|rule| best(policy, rule, machine)).collect()
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

/// Keeps one rule on files with Landlock if a domain would be left alone: a domain alone must scope signals, which
/// no rule is about. The rule that stops least besides is kept.
fn with_files_beside_domain(wide: &Policy, narrow: Policy, machine: &MachineFeatures) -> Policy {
    let is_alone = machine.scopes_signals()
        && narrow.enforcers.contains(EnforcerKind::Landlock)
        && landlock::Profile::compile(&narrow, machine).is_domain_alone()
        && !landlock::Profile::compile(wide, machine).is_domain_alone();
    if !is_alone {
        return narrow;
    }
    let kept = wide.rules.iter().enumerate().filter(|(index, rule)| {
        let is_left = |rule: &Rule| rule.left_to.contains_key(&EnforcerKind::Landlock);
        let is_on_files = || landlock::handles_files(wide, rule, machine);
        narrow.rules.get(*index).is_some_and(is_left) && is_on_files()
    });
    let least = kept.min_by_key(|(_, rule)| {
        let assessment = assess(wide, rule, EnforcerKind::Landlock, machine);
        side_effects(&assessment).count()
    });
    let mut policy = narrow;
    if let Some(rule) = least.and_then(|(index, _)| policy.rules.get_mut(index)) {
        rule.left_to.remove(&EnforcerKind::Landlock);
    }
    policy
}

/// What an enforcer stops besides. What nearly every filter stops does not count: another rule of the policy has
/// the same effect.
fn side_effects(assessment: &Assessment) -> impl Iterator<Item = &String> {
    let of_any_filter = [seccomp::FOREIGN_BREAKS, seccomp::RING_BREAKS];
    let breaks = assessment.breaks.iter();
    breaks.filter(move |text| !of_any_filter.contains(&text.as_str()))
}
