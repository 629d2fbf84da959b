//! Status of Rulesfiles and Configs, from what nodes report.

use std::collections::BTreeMap;

use kinds::artifact::{ArtifactStatus, Config, Rulesfile};
use kinds::{ConditionStatus, LabelSelector, NodeArtifact};
use serde_json::Value;

use crate::artifacts::{ArtifactId, ArtifactKind, identify};
use crate::node::Detecting;
use crate::status::condition;
use crate::{Cluster, ObjectKind};

/// Maximum number of reasons in a condition: an object has to stay small however many nodes fail.
const MAX_REASONS: usize = 3;

/// A Rulesfile or Config as the API server has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredArtifact {
    generation: i64,
    /// For which nodes it is, and whether it refers to a ConfigMap; or why it cannot be read.
    spec: Result<(Option<LabelSelector>, bool), String>,
    status: Option<ArtifactStatus>,
}

impl StoredArtifact {
    /// Reads an object of a kind.
    pub(crate) fn read(kind: ArtifactKind, object: Value) -> (ArtifactId, Self) {
        let (id, generation, object) = identify(kind, object);
        let status = serde_json::from_value(object["status"].clone()).ok();
        let spec = match kind {
            ArtifactKind::Rulesfile => serde_json::from_value(object)
                .map(|one: Rulesfile| (one.spec.selector, one.spec.config_map_ref.is_some())),
            ArtifactKind::Config => serde_json::from_value(object)
                .map(|one: Config| (one.spec.selector, one.spec.config_map_ref.is_some())),
        };
        let stored = Self {
            generation,
            spec: spec.map_err(|error| error.to_string()),
            status,
        };
        (id, stored)
    }
}

/// Status, reason and message of a condition.
type Found = (ConditionStatus, &'static str, String);

/// What all nodes say of an object.
#[derive(Debug, Default)]
struct Sum {
    nodes: u64,
    programmed: u64,
    /// Messages of nodes on which it is not in force, with their numbers.
    failed: BTreeMap<String, u64>,
    /// Of these, for lack of a ConfigMap.
    unresolved: BTreeMap<String, u64>,
    /// Why it is not known of nodes, with their numbers.
    unknown: BTreeMap<String, u64>,
    /// Of those on which it is not in force, how many have not even looked for a ConfigMap.
    unread: u64,
}

impl Cluster {
    /// The status of a Rulesfile or Config, without times: [`keep_condition_times`](crate::keep_condition_times) adds them.
    /// `None` if there is no such object.
    #[must_use]
    pub fn artifact_status(&self, id: &ArtifactId) -> Option<ArtifactStatus> {
        let stored = self.artifacts.get(id)?;
        let status = |conditions| ArtifactStatus {
            conditions,
            observed_generation: Some(stored.generation),
        };
        let condition =
            |kind, (status, reason, message): Found| condition(kind, status, reason, message);
        let (selector, has_reference) = match &stored.spec {
            Ok(spec) => spec,
            Err(problem) => {
                let message = format!("the object cannot be read: {problem}");
                let reason = (ConditionStatus::False, "ProgramFailed", message);
                return Some(status(vec![condition("Programmed", reason)]));
            }
        };
        let sum = self.sum_of_artifact(id, stored.generation, selector.as_ref());
        let mut conditions = vec![condition("Programmed", sum.programmed())];
        if *has_reference {
            conditions.push(condition("ResolvedRefs", sum.resolved()));
        }
        Some(status(conditions))
    }

    /// The status that the API server has of a Rulesfile or Config.
    #[must_use]
    pub fn stored_artifact_status(&self, id: &ArtifactId) -> Option<&ArtifactStatus> {
        self.artifacts.get(id)?.status.as_ref()
    }

    fn sum_of_artifact(
        &self,
        id: &ArtifactId,
        generation: i64,
        selector: Option<&LabelSelector>,
    ) -> Sum {
        let mut sum = Sum::default();
        for kind in [ObjectKind::Nodes, ObjectKind::Reports] {
            if !self.synced.contains(&kind) {
                sum.nodes += 1;
                sum.unknown
                    .insert(format!("not all {kind:?} are known yet"), 1);
                return sum;
            }
        }
        for (labels, detecting) in self.nodes.detecting() {
            if selector.is_none_or(|selector| selector.matches_by(|key| labels.value(key))) {
                sum.add(id, generation, &detecting);
            }
        }
        sum
    }
}

impl Sum {
    fn add(&mut self, id: &ArtifactId, generation: i64, detecting: &Detecting<'_>) {
        self.nodes += 1;
        let state = match detecting {
            Detecting::Unknown(cause) => return count(&mut self.unknown, cause),
            Detecting::Off => {
                self.unread += 1;
                return count(&mut self.failed, "the agent does not detect");
            }
            Detecting::Known(state) if !state.running => {
                self.unread += 1;
                let message = format!("no engine watches the node: {}", state.reason);
                return count(&mut self.failed, &message);
            }
            Detecting::Known(state) => state,
        };
        let is_it = |one: &&NodeArtifact| {
            one.kind == id.kind.name()
                && one.namespace == id.key.namespace
                && one.name == id.key.name
        };
        match state.artifacts.iter().find(is_it) {
            Some(one) if one.generation != generation => {
                count(&mut self.unknown, "the agent has not seen this version yet");
            }
            None => count(&mut self.unknown, "the agent has not seen the object yet"),
            Some(one) if one.programmed => self.programmed += 1,
            Some(one) if one.reason == "ReferenceResolutionFailed" => {
                count(&mut self.unresolved, &one.message);
                count(&mut self.failed, &one.message);
            }
            Some(one) => count(&mut self.failed, &one.message),
        }
    }

    fn programmed(&self) -> Found {
        let nodes = self.nodes;
        if !self.failed.is_empty() {
            let reason = match self.unresolved.is_empty() {
                true => "ProgramFailed",
                false => "ReferenceResolutionFailed",
            };
            return (ConditionStatus::False, reason, self.said(&self.failed));
        }
        if !self.unknown.is_empty() {
            return (
                ConditionStatus::Unknown,
                "Pending",
                self.said(&self.unknown),
            );
        }
        if nodes == 0 {
            let message = "the selector is for no node".to_owned();
            return (ConditionStatus::Unknown, "Pending", message);
        }
        let message = format!("in force on {} of {nodes} nodes", self.programmed);
        (ConditionStatus::True, "Programmed", message)
    }

    fn resolved(&self) -> Found {
        if !self.unresolved.is_empty() {
            let message = self.said(&self.unresolved);
            return (ConditionStatus::False, "ReferenceResolutionFailed", message);
        }
        if !self.unknown.is_empty() || self.unread > 0 || self.nodes == 0 {
            let message = "not all nodes have read the ConfigMap".to_owned();
            return (ConditionStatus::Unknown, "Pending", message);
        }
        let message = "the ConfigMap is read".to_owned();
        (ConditionStatus::True, "ReferenceResolved", message)
    }

    /// The most frequent reasons, with the numbers of nodes.
    fn said(&self, reasons: &BTreeMap<String, u64>) -> String {
        let mut sorted: Vec<_> = reasons.iter().collect();
        sorted
            .sort_by(|(one, of_one), (other, of_other)| of_other.cmp(of_one).then(one.cmp(other)));
        let said = sorted.iter().take(MAX_REASONS);
        let said = said.map(|(reason, count)| format!("{count} of {} nodes: {reason}", self.nodes));
        said.collect::<Vec<_>>().join("; ")
    }
}

fn count(reasons: &mut BTreeMap<String, u64>, reason: &str) {
    *reasons.entry(reason.to_owned()).or_default() += 1;
}
