//! The trait that each rule compiler implements, in a file of its own.

use serde_json::Value;

use super::machine::{MachineFeatures, NameKind};
use super::part::Assessment;
use crate::policy::{Policy, Rule};

/// A rule to compile.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) policy: &'a Policy,
    pub(super) rule: &'a Rule,
    pub(super) machine: &'a MachineFeatures,
}

/// Compiles rules for one enforcer.
pub(super) trait RuleCompiler {
    /// Compiles and grades a rule. `names` lists further names of the rule's files that bypass the enforcer.
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment;

    /// Returns true if the enforcer denies a file under this kind of further name as well.
    fn covers(&self, kind: NameKind) -> bool;

    /// A note on further names that the files of a rule may have and that were not searched.
    fn possible_names(&self, _request: &Request<'_>) -> Vec<String> {
        Vec::new()
    }

    /// The compiled policy as human-readable text.
    fn text(&self, policy: &Policy, machine: &MachineFeatures) -> String;

    /// The compiled policy as JSON.
    fn json(&self, policy: &Policy, machine: &MachineFeatures) -> Value;
}

/// Formats each item as one line.
pub(super) fn lines<T: ToString>(items: &[T]) -> String {
    items.iter().map(|item| item.to_string() + "\n").collect()
}

/// Formats each item as a JSON string.
pub(super) fn strings<T: ToString>(items: &[T]) -> Value {
    items.iter().map(ToString::to_string).collect()
}
