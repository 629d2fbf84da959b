//! The state of a cluster, as a function of its objects.
//!
//! [`Cluster`] takes [`Event`]s, in any order that keeps the order of each single object, and says what there has to
//! be: the [`profile`](Cluster::profile) and the [`status`](Cluster::status) of each policy, and the
//! [`marks`](Cluster::marks) of a workload. An operator that starts again, or becomes leader, applies the objects that
//! exist and comes to the same answers.
//!
//! Unknown is never success: before all objects of a kind are known, and while a node has not reported, nothing is
//! ready.
//!
//! ```
//! use cluster::{Cluster, Event};
//! use kinds::{ConditionStatus, Scope};
//!
//! let policy = r#"{"apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
//!     "metadata": {"name": "web", "namespace": "demo"},
//!     "spec": {"target": {"kind": "Pod", "name": "web"}, "policy": {"enforcer": "Seccomp", "mode": "AlwaysAllow"}}}"#;
//! let mut cluster = Cluster::new("tollgate", false);
//! cluster.apply(Event::Policy(Box::new(serde_json::from_str(policy).unwrap())));
//! let id = cluster.take_changes().pop_first().unwrap();
//! assert_eq!(cluster.profile(&id).unwrap().name, "varmor-demo-web");
//! let status = cluster.status(&id).unwrap();
//! assert_eq!(status.conditions.last().unwrap().status, ConditionStatus::Unknown);
//! assert!(!status.ready);
//! ```

mod admission;
mod artifact_status;
pub mod artifacts;
mod claim;
mod egress;
mod event;
mod marks;
pub mod modeling;
mod models;
mod node;
mod profile;
mod restart;
mod review;
mod rollout;
mod shared;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kinds::{ObjectKey, PolicyObject, Scope};

pub use kinds::annotations::{FINALIZER, INSTALLATION};

pub use admission::Admission;
pub use claim::{PolicyClaim, Rival, inactive_condition};
pub use event::{Event, ObjectKind};
pub use marks::{PatchOperation, Workload};
pub use models::DesiredModel;
pub use node::NodeState;
pub use profile::{DesiredProfile, ProfileError};
pub use restart::{Patch, Progress, RESTARTED_KINDS, Restart, RestartState, Step, undo_restart};
pub use review::{Decision, Review, ReviewError};
pub use rollout::{Replacement, replacement};
pub use status::{CONDITIONS, keep_condition_times, keep_times};

use artifact_status::StoredArtifact;
use artifacts::ArtifactId;
use egress::Network;
use models::Models;
use node::{Nodes, StoredProfile, Touched};
use restart::is_restartable;

/// Age at which the report of a node is worth nothing.
pub const SILENCE: Duration = Duration::from_secs(120);

/// A policy: scope, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// Whether the policy is one of a namespace or of the cluster.
    pub scope: Scope,
    /// Namespace and name.
    pub key: ObjectKey,
}

/// An ArmorProfile that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Unique id.
    pub uid: String,
    /// The finalizers that it keeps: those of others.
    pub finalizers: Vec<String>,
    /// All nodes have seen the deletion.
    pub is_seen: bool,
    /// The time of the deletion is over: no node is waited for any longer.
    pub is_overdue: bool,
    /// Kind and namespace (`None` for all) of the workloads that may have been restarted for it, also if its policy does not ask
    /// for that any more. `None` if they cannot be restarted.
    pub restarted: Option<(String, Option<String>)>,
}

fn has_finalizer(profile: &StoredProfile) -> bool {
    profile.finalizers.iter().any(|one| one == FINALIZER)
}

/// The state of a cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Namespace of this installation.
    installation: String,
    /// Nodes record behaviour, so that the mode BehaviorModeling can be used.
    behavior_modeling: bool,
    /// The operator restarts workloads.
    updates_workloads: bool,
    /// How far restarts are.
    restarts: BTreeMap<PolicyId, RestartState>,
    policies: BTreeMap<PolicyId, PolicyObject>,
    /// Policies by the name of the ArmorProfile that they need. Several may come to one name.
    by_profile: BTreeMap<String, BTreeSet<PolicyId>>,
    /// ArmorProfiles as the API server has them.
    stored: BTreeMap<ObjectKey, StoredProfile>,
    /// Of these, those of other installations and programs, by the unique id of the policy that owns them.
    foreign: BTreeMap<String, BTreeSet<ObjectKey>>,
    nodes: Nodes,
    artifacts: BTreeMap<ArtifactId, StoredArtifact>,
    network: Network,
    models: Models,
    synced: BTreeSet<ObjectKind>,
    /// Policies whose profile or status may have changed.
    changes: BTreeSet<PolicyId>,
    /// Besides, those of all policies may have changed. Each node that comes changes all: they are named once a round.
    all_changed: bool,
    /// Rulesfiles and Configs whose status may have changed.
    changed_artifacts: BTreeSet<ArtifactId>,
}

impl Cluster {
    /// An empty cluster. `installation` is the namespace of the operator, where the profiles of VarmorClusterPolicies
    /// lie. Without `behavior_modeling`, policies of the mode BehaviorModeling are refused.
    #[must_use]
    pub fn new(installation: &str, behavior_modeling: bool) -> Self {
        Self {
            installation: installation.to_owned(),
            behavior_modeling,
            updates_workloads: false,
            restarts: BTreeMap::new(),
            policies: BTreeMap::new(),
            by_profile: BTreeMap::new(),
            stored: BTreeMap::new(),
            foreign: BTreeMap::new(),
            nodes: Nodes::default(),
            artifacts: BTreeMap::new(),
            network: Network::default(),
            models: Models::default(),
            synced: BTreeSet::new(),
            changes: BTreeSet::new(),
            all_changed: false,
            changed_artifacts: BTreeSet::new(),
        }
    }

    /// The operator restarts existing workloads of policies that ask for it.
    #[must_use]
    pub fn with_workload_updates(self, updates_workloads: bool) -> Self {
        Self {
            updates_workloads,
            ..self
        }
    }

    /// Takes an event. A state that is known already changes nothing.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Policy(policy) => self.add_policy(*policy),
            Event::PolicyGone(id) => self.remove_policy(&id),
            Event::Profile(profile) => self.add_profile(&profile),
            Event::ProfileGone(key) => self.remove_profile(&key),
            Event::Model(model) => self.add_model(&model),
            Event::ModelGone(key) => self.remove_model(&key),
            Event::Restarts(id, state) => {
                let before = self.restarts.insert(id.clone(), state.clone());
                if before.as_ref() != Some(&state) {
                    self.changes.insert(id);
                }
            }
            Event::Time(now) => self.take_time(now),
            Event::Node(node) => {
                if self.nodes.add(&node) {
                    self.touch_all();
                }
            }
            Event::NodeGone(name) => {
                if self.nodes.remove(&name) {
                    self.touch_all();
                }
            }
            Event::Report(report) => self.add_report(&report),
            Event::ReportGone(name) => {
                if self.nodes.remove_report(&name) {
                    self.touch_all();
                }
            }
            Event::Silent { node, since } => {
                if self.nodes.silent(&node, &since) {
                    self.touch_all();
                }
            }
            Event::Artifact(kind, object) => {
                let (id, stored) = StoredArtifact::read(kind, *object);
                self.changed_artifacts.insert(id.clone());
                self.artifacts.insert(id, stored);
            }
            Event::ArtifactGone(id) => {
                self.artifacts.remove(&id);
            }
            Event::Service(service) => self.change_network(|all| all.add_service(&service)),
            Event::ServiceGone(key) => self.change_network(|all| all.remove_service(&key)),
            Event::Endpoints(slice) => self.change_network(|all| all.add_slice(&slice)),
            Event::EndpointsGone(key) => self.change_network(|all| all.remove_slice(&key)),
            Event::Pod(pod) => self.change_network(|all| all.add_pod(&pod)),
            Event::PodGone(key) => self.change_network(|all| all.remove_pod(&key)),
            Event::Synced(kind) => {
                if self.synced.insert(kind) {
                    self.touch_all();
                }
            }
        }
    }

    /// Takes the policies whose profile or status may have changed since the last call.
    pub fn take_changes(&mut self) -> BTreeSet<PolicyId> {
        if std::mem::take(&mut self.all_changed) {
            self.changes.extend(self.policies.keys().cloned());
        }
        std::mem::take(&mut self.changes)
    }

    /// Takes the Rulesfiles and Configs whose status may have changed since the last call.
    pub fn take_changed_artifacts(&mut self) -> BTreeSet<ArtifactId> {
        std::mem::take(&mut self.changed_artifacts)
    }

    /// A policy.
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> Option<&PolicyObject> {
        self.policies.get(id)
    }

    /// Returns true if every object of the kind that existed at the start is known.
    #[must_use]
    pub fn is_synced(&self, kind: ObjectKind) -> bool {
        self.synced.contains(&kind)
    }

    /// The kinds of objects that egress rules of policies are about.
    #[must_use]
    pub fn needs(&self) -> BTreeSet<ObjectKind> {
        self.policies.values().flat_map(egress::needs).collect()
    }

    /// Returns true if the API server has this profile, from this installation.
    #[must_use]
    pub fn is_written(&self, profile: &DesiredProfile) -> bool {
        let key = ObjectKey {
            namespace: profile.namespace.clone(),
            name: profile.name.clone(),
        };
        let stored = self.stored.get(&key);
        stored.is_some_and(|stored| {
            stored.installation == self.installation
                && stored.spec == profile.spec
                && stored.notes == profile.notes
                && !profile.starts_run
                // An object that is being deleted can have no further finalizer.
                && (stored.deleting.is_some() || has_finalizer(stored))
        })
    }

    /// ArmorProfiles of this installation whose policies are gone, each with its unique id, but those that are being
    /// deleted. Before all policies and profiles are known there are none.
    #[must_use]
    pub fn orphans(&self) -> Vec<(ObjectKey, String)> {
        let orphans = self
            .without_policy()
            .filter(|(_, profile)| profile.deleting.is_none());
        orphans
            .map(|(key, profile)| (key.clone(), profile.uid.clone()))
            .collect()
    }

    /// ArmorProfiles of this installation that are being deleted and may go: their policies are gone, and all nodes have
    /// seen the deletion, or the time of the deletion is overdue. A node that is late or dead is not waited for longer.
    #[must_use]
    pub fn released(&self, is_overdue: impl Fn(&str) -> bool) -> Vec<Release> {
        let nodes = [ObjectKind::Nodes, ObjectKind::Reports];
        let are_known = nodes.iter().all(|kind| self.synced.contains(kind));
        let released = self.without_policy().filter_map(|(key, profile)| {
            let deleting = profile
                .deleting
                .as_ref()
                .filter(|_| has_finalizer(profile))?;
            let is_seen = are_known && self.nodes.have_seen(deleting.version);
            let is_overdue = is_overdue(&deleting.since);
            let others = profile.finalizers.iter().filter(|one| *one != FINALIZER);
            (is_seen || is_overdue).then(|| Release {
                key: key.clone(),
                uid: profile.uid.clone(),
                finalizers: others.cloned().collect(),
                is_seen,
                is_overdue,
                restarted: is_restartable(&profile.spec.target.kind).then(|| {
                    let namespace =
                        (profile.scope == Scope::Namespace).then(|| key.namespace.clone());
                    (profile.spec.target.kind.clone(), namespace)
                }),
            })
        });
        released.collect()
    }

    /// Profiles of this installation without a policy; none before all policies and profiles are known.
    fn without_policy(&self) -> impl Iterator<Item = (&ObjectKey, &StoredProfile)> {
        let needed = [ObjectKind::Policies, ObjectKind::Profiles];
        let are_known = needed.iter().all(|kind| self.synced.contains(kind));
        let is_owned = |key: &ObjectKey| {
            let mut ids = self.by_profile.get(&key.name).into_iter().flatten();
            ids.any(|id| self.profile_key(id).as_ref() == Ok(key) && !self.is_handed_over(id))
        };
        let ours = |profile: &StoredProfile| profile.installation == self.installation;
        self.stored
            .iter()
            .filter(move |(key, profile)| are_known && ours(profile) && !is_owned(key))
    }

    /// Names of the nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.names()
    }

    /// What is known on each node of the profile of a policy; `None` if there is no such profile of this installation.
    ///
    /// It is about the policy only if the operator has seen the policy as it is: compare `observedGeneration`.
    pub fn nodes_of(
        &self,
        id: &PolicyId,
    ) -> Option<impl Iterator<Item = (&str, NodeState<'_>)> + use<'_>> {
        let key = self.profile_key(id).ok()?;
        let (key, profile) = self.stored.get_key_value(&key)?;
        let is_ours = profile.installation == self.installation;
        is_ours.then(|| self.nodes.states(key, profile))
    }

    /// The policies.
    pub fn policies(&self) -> impl Iterator<Item = (&PolicyId, &PolicyObject)> {
        self.policies.iter()
    }

    fn add_policy(&mut self, policy: PolicyObject) {
        let Some(scope) = Scope::of_kind(&policy.kind) else {
            return;
        };
        let id = PolicyId {
            scope,
            key: policy.key(),
        };
        // A policy whose name is too long has no profile; its status says so.
        if let Ok(key) = self.profile_key(&id) {
            self.touch_profile(&key);
            self.by_profile
                .entry(key.name)
                .or_default()
                .insert(id.clone());
        }
        self.changes.insert(id.clone());
        self.policies.insert(id, policy);
    }

    fn remove_policy(&mut self, id: &PolicyId) {
        self.policies.remove(id);
        self.restarts.remove(id);
        self.changes.insert(id.clone());
        let Ok(key) = self.profile_key(id) else {
            return;
        };
        self.touch_profile(&key);
        if let Some(ids) = self.by_profile.get_mut(&key.name) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_profile.remove(&key.name);
            }
        }
    }

    fn add_profile(&mut self, profile: &kinds::ArmorProfile) {
        let key = profile.key();
        let Some(stored) = StoredProfile::of(profile, self.stored.get(&key)) else {
            return;
        };
        self.touch_profile(&key);
        let (owner, is_foreign) = (
            stored.owner.clone(),
            stored.installation != self.installation,
        );
        let before = self.stored.insert(key.clone(), stored);
        if let Some(before) = before.filter(|before| before.owner != owner) {
            self.note_foreign(&key, &before.owner, false);
        }
        self.note_foreign(&key, &owner, is_foreign);
    }

    fn remove_profile(&mut self, key: &ObjectKey) {
        self.touch_profile(key);
        if let Some(before) = self.stored.remove(key) {
            self.note_foreign(key, &before.owner, false);
        }
        self.models.forget(key);
    }

    fn add_model(&mut self, model: &kinds::ArmorProfileModel) {
        self.touch_profile(&model.key());
        self.models.take_model(model, &self.installation);
    }

    fn remove_model(&mut self, key: &ObjectKey) {
        self.touch_profile(key);
        self.models.remove_model(key);
    }

    fn add_report(&mut self, report: &kinds::NodeReport) {
        if self.models.is_full() {
            self.forget_runs();
        }
        for key in self.models.take_report(report) {
            self.touch_profile(&key);
        }
        let status = report.status.as_ref();
        let detection = status.map(|status| status.detection.as_ref());
        if self.nodes.detection(&report.metadata.name) != detection {
            self.touch_artifacts();
        }
        let (keys, versions) = match self.nodes.add_report(report) {
            Touched::Everything => return self.touch_all(),
            Touched::Profiles { keys, versions } => (keys, versions),
        };
        let is_seen = |profile: &StoredProfile| {
            versions.is_some_and(|(old, new)| profile.version > old && profile.version <= new)
        };
        let seen = self.stored.iter().filter(|(_, profile)| is_seen(profile));
        let seen: Vec<ObjectKey> = seen.map(|(key, _)| key.clone()).collect();
        for key in keys.iter().chain(&seen) {
            self.touch_profile(key);
        }
    }

    fn change_network(&mut self, change: impl FnOnce(&mut Network) -> bool) {
        if change(&mut self.network) {
            let users = self
                .policies
                .iter()
                .filter(|(_, policy)| egress::is_used(policy));
            self.changes.extend(users.map(|(id, _)| id.clone()));
        }
    }

    /// Notes that the status of the policies of a profile may have changed.
    fn touch_profile(&mut self, key: &ObjectKey) {
        let ids = self.by_profile.get(&key.name).into_iter().flatten();
        self.changes.extend(ids.cloned());
    }

    fn touch_artifacts(&mut self) {
        self.changed_artifacts
            .extend(self.artifacts.keys().cloned());
    }

    fn touch_all(&mut self) {
        self.touch_artifacts();
        self.all_changed = true;
    }
}
