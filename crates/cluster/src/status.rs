//! Status of policies and profiles.

use std::collections::BTreeMap;

use kinds::{
    ArmorProfileStatus, Condition, ConditionStatus, Coverage, NodeCondition, ObjectKey, Phase,
    PolicyObject, PolicyStatus,
};

use crate::node::{NodeState, StoredProfile};
use crate::profile::{DesiredProfile, ProfileError};
use crate::{Cluster, ObjectKind, PolicyId};

/// Maximum number of reasons in a status, and of nodes in the status of a profile: an object has to stay small however
/// many nodes fail.
const MAX_LISTED: usize = 16;

/// Conditions of a policy that the installation writes which acts on it.
pub const CONDITIONS: [&str; 4] = ["Created", "Updated", "WorkloadsUpdated", "Ready"];

/// A condition without its time.
pub(crate) fn condition(
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: String,
) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
        last_transition_time: None,
    }
}

/// What stands before the reason why a node is unknown.
const UNKNOWN: &str = "node unknown: ";
/// What stands before the reason why a node has failed.
const FAILED: &str = "node failed: ";

/// Everything that nodes say about a profile.
#[derive(Default)]
struct Sum<'n> {
    coverage: Coverage,
    /// Nodes that know the profile.
    known: u64,
    failed: Vec<NodeCondition>,
    failures: u64,
    /// How often each reason was given, by what is written before it and its text.
    reasons: BTreeMap<(&'static str, &'n str), u64>,
}

impl Cluster {
    /// The status of a policy, without times: [`keep_times`] adds them. `None` if there is no such policy.
    #[must_use]
    pub fn status(&self, id: &PolicyId) -> Option<PolicyStatus> {
        self.status_with(id, &self.profile(id))
    }

    /// Like [`Cluster::status`], for a caller that has the [`profile`](Cluster::profile) of the policy: it takes time to make.
    #[must_use]
    pub fn status_with(
        &self,
        id: &PolicyId,
        profile: &Result<DesiredProfile, ProfileError>,
    ) -> Option<PolicyStatus> {
        let policy = self.policies.get(id)?;
        let key = self.profile_key(id);
        let sum = key
            .as_ref()
            .map_or_else(|_| Sum::default(), |key| self.sum(key));
        let (ready, phase) = self.ready(profile, key.as_ref().ok(), &sum);
        let updated = self.updated(policy, profile, key.as_ref().ok());
        let created = match key.as_ref().is_ok_and(|key| self.stored.contains_key(key)) {
            true => condition("Created", ConditionStatus::True, "Created", String::new()),
            false => condition(
                "Created",
                ConditionStatus::False,
                "Processing",
                String::new(),
            ),
        };
        Some(PolicyStatus {
            // Empty, as vArmor has it: the policy has no profile.
            profile_name: key.as_ref().map(|key| key.name.clone()).unwrap_or_default(),
            ready: ready.status == ConditionStatus::True,
            phase: Some(phase),
            conditions: [
                Some(created),
                updated,
                self.workloads_updated(id),
                Some(ready),
            ]
            .into_iter()
            .flatten()
            .collect(),
            observed_generation: policy.metadata.generation,
            installation: Some(self.installation.clone()),
            coverage: Some(sum.coverage),
        })
    }

    /// The status of an ArmorProfile. `None` if the API server has none.
    #[must_use]
    pub fn profile_status(&self, key: &ObjectKey) -> Option<ArmorProfileStatus> {
        let stored = self.stored.get(key)?;
        let sum = self.sum(key);
        Some(ArmorProfileStatus {
            desired_number_loaded: sum.coverage.nodes,
            current_number_loaded: sum.known,
            conditions: sum.failed,
            observed_generation: stored.generation,
            spec_version: Some(stored.version.to_string()),
        })
    }

    /// The status of the ArmorProfile of a policy, whose profile is to be this one, if it differs from what the API server has.
    #[must_use]
    pub fn profile_status_to_write(
        &self,
        id: &PolicyId,
        profile: &Result<DesiredProfile, ProfileError>,
    ) -> Option<(ObjectKey, ArmorProfileStatus)> {
        let key = self.profile_key(id).ok()?;
        let stored = self.stored.get(&key)?;
        let status = self.profile_status(&key)?;
        // The profile may be another policy's, or another installation's.
        (profile.is_ok() && stored.status.as_ref() != Some(&status)).then_some((key, status))
    }

    /// The condition Ready, and the phase.
    fn ready(
        &self,
        profile: &Result<DesiredProfile, ProfileError>,
        key: Option<&ObjectKey>,
        sum: &Sum<'_>,
    ) -> (Condition, Phase) {
        let profile = match profile {
            Ok(profile) => profile,
            Err(error) => return of_error(error),
        };
        let needed = [ObjectKind::Nodes, ObjectKind::Reports, ObjectKind::Profiles];
        if let Some(kind) = needed.into_iter().find(|kind| !self.synced.contains(kind)) {
            return unknown(format!("not all {kind:?} are known yet"));
        }
        let stored = key.and_then(|key| self.stored.get(key));
        let is_written = |stored: &StoredProfile| {
            stored.spec == profile.spec && stored.installation == self.installation
        };
        if !stored.is_some_and(is_written) {
            return unknown("the ArmorProfile is not written yet".to_owned());
        }
        if sum.failures == 0 && !profile.needs_proxy.is_empty() {
            let rules = profile.needs_proxy.join(", ");
            let message = format!("rules inside of connections are not enforced: {rules}");
            return no("NeedsProxy", message);
        }
        let of_nodes = of_nodes(sum);
        match (of_nodes.1, key) {
            (Phase::Protecting, Some(key)) if profile.spec.behavior_modeling.enable => {
                self.modeling_state(key)
            }
            _ => of_nodes,
        }
    }

    /// Whether a change of a policy is in its ArmorProfile; `None` if it was not changed since it was created. A change that is
    /// refused leaves the profile before in force.
    fn updated(
        &self,
        policy: &PolicyObject,
        profile: &Result<DesiredProfile, ProfileError>,
        key: Option<&ObjectKey>,
    ) -> Option<Condition> {
        if policy
            .metadata
            .generation
            .is_none_or(|generation| generation < 2)
        {
            return None;
        }
        let stored = key.and_then(|key| self.stored.get(key));
        Some(match profile {
            Ok(profile) if stored.is_some_and(|stored| stored.spec == profile.spec) => {
                condition("Updated", ConditionStatus::True, "", String::new())
            }
            Err(error) if !error.is_temporary() => {
                let (ready, _) = of_error(error);
                condition(
                    "Updated",
                    ConditionStatus::False,
                    &ready.reason,
                    ready.message,
                )
            }
            Ok(_) | Err(_) => {
                let (status, reason) = (ConditionStatus::Unknown, "Processing");
                condition("Updated", status, reason, String::new())
            }
        })
    }

    /// What nodes say of a profile, and how many of them failed.
    pub(crate) fn coverage(&self, key: &ObjectKey) -> (Coverage, u64) {
        let sum = self.sum(key);
        (sum.coverage, sum.failures)
    }

    /// Adds up what all nodes say about a profile.
    fn sum<'n>(&'n self, key: &'n ObjectKey) -> Sum<'n> {
        let mut sum = Sum::default();
        let Some(stored) = self.stored.get(key) else {
            return sum;
        };
        for (node, state) in self.nodes.states(key, stored) {
            sum.add(node, &state);
        }
        let reasons = sum.reasons.iter();
        let mut reasons: Vec<(String, u64)> = reasons
            .map(|((before, reason), count)| (format!("{before}{reason}"), *count))
            .collect();
        // The most frequent first; reasons of equal frequency by their texts.
        reasons
            .sort_by(|(one, of_one), (other, of_other)| of_other.cmp(of_one).then(one.cmp(other)));
        let listed = reasons.iter().take(MAX_LISTED);
        sum.coverage.reasons = listed
            .map(|(reason, count)| format!("{count} x {reason}"))
            .collect();
        sum
    }
}

/// The policy is not in force.
fn no(reason: &str, message: String) -> (Condition, Phase) {
    let ready = condition("Ready", ConditionStatus::False, reason, message);
    (ready, Phase::Error)
}

/// Nobody knows whether the policy is in force.
fn unknown(message: String) -> (Condition, Phase) {
    let ready = condition("Ready", ConditionStatus::Unknown, "Processing", message);
    (ready, Phase::Pending)
}

/// The condition Ready of a policy without a profile.
fn of_error(error: &ProfileError) -> (Condition, Phase) {
    match error {
        error if error.is_temporary() => unknown(error.to_string()),
        ProfileError::OtherInstallation { .. } => no("OtherInstallation", error.to_string()),
        ProfileError::Invalid(_) => no("Forbidden", error.to_string()),
        error => no("Error", error.to_string()),
    }
}

/// The condition Ready of a policy whose profile is written.
fn of_nodes(sum: &Sum<'_>) -> (Condition, Phase) {
    let Coverage {
        containers,
        late,
        unprotected,
        nodes,
        unknown_nodes,
        ..
    } = sum.coverage;
    if sum.failures > 0 {
        return no("Error", format!("{} of {nodes} nodes failed", sum.failures));
    }
    if nodes == 0 {
        return unknown("there are no nodes".to_owned());
    }
    if unknown_nodes > 0 {
        return unknown(format!("{unknown_nodes} of {nodes} nodes are unknown"));
    }
    if unprotected > 0 {
        let message = format!("{unprotected} of {containers} containers are not confined");
        return no("Unprotected", message);
    }
    let message = match late {
        0 => String::new(),
        _ => format!("{late} of {containers} containers were confined after they had begun"),
    };
    let ready = condition("Ready", ConditionStatus::True, "AllAgentsReady", message);
    (ready, Phase::Protecting)
}

impl<'n> Sum<'n> {
    fn add(&mut self, node: &str, state: &NodeState<'n>) {
        let coverage = &mut self.coverage;
        coverage.nodes += 1;
        let state = match state {
            NodeState::Idle => {
                self.known += 1;
                return;
            }
            NodeState::Unknown(cause) => {
                coverage.unknown_nodes += 1;
                *self.reasons.entry((UNKNOWN, cause)).or_default() += 1;
                return;
            }
            NodeState::Ready(state) => {
                self.known += 1;
                state
            }
            NodeState::Failed(state, cause) => {
                self.failures += 1;
                *self.reasons.entry((FAILED, cause)).or_default() += 1;
                if self.failed.len() < MAX_LISTED {
                    self.failed.push(NodeCondition {
                        kind: "Ready".to_owned(),
                        status: ConditionStatus::False,
                        reason: "Error".to_owned(),
                        message: (*cause).to_owned(),
                        node_name: node.to_owned(),
                    });
                }
                state
            }
        };
        for (total, part) in [
            (&mut coverage.containers, state.containers),
            (&mut coverage.enforced, state.enforced),
            (&mut coverage.late, state.late),
            (&mut coverage.unprotected, state.unprotected),
        ] {
            *total = total.saturating_add(part);
        }
        for reason in &state.reasons {
            *self.reasons.entry(("", reason)).or_default() += 1;
        }
    }
}

/// Gives each condition the time of its last change: that of `old` if its status is the same, else `now`.
pub fn keep_times(new: &mut PolicyStatus, old: Option<&PolicyStatus>, now: &str) {
    let old = old.map_or(&[][..], |old| &old.conditions);
    keep_condition_times(&mut new.conditions, old, now);
}

/// Gives each condition the time of its last change: that of the condition of `old` if its status is the same, else `now`.
pub fn keep_condition_times(new: &mut [Condition], old: &[Condition], now: &str) {
    for condition in new {
        let before = old.iter().find(|before| before.kind == condition.kind);
        let kept = before.filter(|before| before.status == condition.status);
        let time = kept.and_then(|before| before.last_transition_time.clone());
        condition.last_transition_time = Some(time.unwrap_or_else(|| now.to_owned()));
    }
}
