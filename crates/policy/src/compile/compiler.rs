//! What an enforcer implements to have rules compiled for it, in a file of its own.

use serde_json::Value;

use super::{Assessment, MachineFeatures, NameKind};
use crate::policy::{Policy, Rule};

/// Compiles rules for one enforcer.
pub(super) trait RuleCompiler {
    /// What a rule compiles to, and how good that is. `names` are other names of its files that get past the
    /// enforcer.
    fn assess(
        &self,
        policy: &Policy,
        rule: &Rule,
        machine: &MachineFeatures,
        names: Vec<String>,
    ) -> Assessment;

    /// Whether the enforcer denies a file by such a name as by the one that a rule has.
    fn covers(&self, kind: NameKind) -> bool;

    /// Other names that the files of a rule can have and that nobody looked for.
    fn possible_names(
        &self,
        _policy: &Policy,
        _rule: &Rule,
        _machine: &MachineFeatures,
    ) -> Vec<String> {
        Vec::new()
    }

    /// What a whole policy compiles to, for people.
    fn text(&self, policy: &Policy, machine: &MachineFeatures) -> String;

    /// The same for programs.
    fn json(&self, policy: &Policy, machine: &MachineFeatures) -> Value;
}

/// A line for each item.
pub(super) fn lines<T: ToString>(items: &[T]) -> String {
    items.iter().map(|item| item.to_string() + "\n").collect()
}

/// A string for each item.
pub(super) fn strings<T: ToString>(items: &[T]) -> Value {
    items.iter().map(ToString::to_string).collect()
}
