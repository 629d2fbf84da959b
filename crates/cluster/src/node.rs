//! Nodes, and what they report.

use std::collections::BTreeMap;

use kinds::{
    ArmorProfile, ArmorProfileSpec, ArmorProfileStatus, DetectionState, Meta, Node, NodeReport,
    ObjectKey, OwnerReference, ProfileState, Scope,
};

use crate::INSTALLATION;
use crate::profile::NOTES;

/// An ArmorProfile as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredProfile {
    /// Resource version with which the spec was written. Later writes of status or labels do not count: nodes need not
    /// see them.
    pub(crate) version: u64,
    pub(crate) generation: Option<i64>,
    pub(crate) uid: String,
    /// Unique id of the policy that owns it; empty if there is none.
    pub(crate) owner: String,
    /// Scope of that policy.
    pub(crate) scope: Scope,
    pub(crate) spec: ArmorProfileSpec,
    pub(crate) status: Option<ArmorProfileStatus>,
    /// The installation that wrote it; empty for another program.
    pub(crate) installation: String,
    /// Annotations by which nodes decide.
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) finalizers: Vec<String>,
    /// Set while the object waits for its finalizers.
    pub(crate) deleting: Option<Deleting>,
}

/// An object that waits for its finalizers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deleting {
    /// Time of the deletion, in RFC 3339.
    pub(crate) since: String,
    /// Resource version with which the deletion was seen first.
    pub(crate) version: u64,
}

impl StoredProfile {
    /// `before` is the same object as it was known before. `None` if the object has no version, and so does not come
    /// from an API server.
    pub(crate) fn of(profile: &ArmorProfile, before: Option<&Self>) -> Option<Self> {
        let metadata = &profile.metadata;
        let generation = metadata.generation;
        let own: u64 = metadata.resource_version.as_deref()?.parse().ok()?;
        let status = profile.status.as_ref();
        let status = status
            .filter(|status| generation.is_some() && status.observed_generation == generation);
        let written = status.and_then(|status| status.spec_version.as_deref()?.parse().ok());
        let uid = metadata.uid.clone().unwrap_or_default();
        let owner = owner(metadata);
        let known = before.filter(|before| before.uid == uid);
        let known = known.and_then(|before| before.deleting.clone());
        let deleting = metadata.deletion_timestamp.as_ref().map(|since| {
            known.unwrap_or_else(|| Deleting {
                since: since.clone(),
                version: own,
            })
        });
        let before =
            before.filter(|before| generation.is_some() && before.generation == generation);
        Some(Self {
            version: written
                .or(before.map(|before| before.version))
                .unwrap_or(own),
            generation,
            uid,
            // Empty: no policy owns it, and no unique id is empty.
            owner: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
            scope: owner
                .and_then(|owner| Scope::of_kind(&owner.kind))
                .unwrap_or(Scope::Namespace),
            finalizers: metadata.finalizers.clone(),
            deleting,
            spec: profile.spec.clone(),
            status: profile.status.clone(),
            // vArmor takes a profile over by its name, and keeps the annotations. It knows no hash.
            installation: metadata
                .annotations
                .get(INSTALLATION)
                .filter(|_| !profile.spec.profile.hash.is_empty())
                .cloned()
                .unwrap_or_default(),
            notes: metadata
                .annotations
                .iter()
                .filter(|(key, _)| NOTES.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        })
    }
}

/// The policy that owns an object.
fn owner(metadata: &Meta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter();
    owners.find(|owner| owner.controller && Scope::of_kind(&owner.kind).is_some())
}

/// All nodes. A report whose node is not known is kept, because events of different objects may come in any order.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// Boot id by name.
    boots: BTreeMap<String, String>,
    /// Labels by name.
    labels: BTreeMap<String, BTreeMap<String, String>>,
    reports: BTreeMap<String, Report>,
    /// `renewTime` of the last report that was too old, by node.
    silences: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Report {
    boot_id: String,
    renew_time: String,
    /// Resource version up to which profiles were seen; `None` if the report has no number there.
    observed: Option<u64>,
    /// In the order of their keys.
    profiles: Vec<(ObjectKey, ProfileState)>,
    detection: Option<DetectionState>,
}

/// What is known about detection on a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Detecting<'n> {
    /// Nothing, for this cause.
    Unknown(&'static str),
    /// The agent does not watch the node.
    Off,
    /// What the agent reports.
    Known(&'n DetectionState),
}

impl Report {
    fn profile(&self, key: &ObjectKey) -> Option<&ProfileState> {
        let found = self.profiles.binary_search_by(|(known, _)| known.cmp(key));
        found.ok().map(|index| &self.profiles[index].1)
    }
}

/// What a report changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// Whether the node is known at all: every profile.
    Everything,
    /// These profiles, and those with a version in the range (first excluded, last included).
    Profiles {
        keys: Vec<ObjectKey>,
        versions: Option<(u64, u64)>,
    },
}

/// What is known about a profile on a node.
#[derive(Debug, PartialEq, Eq)]
pub enum NodeState<'n> {
    /// No container uses the profile, and the node would enforce it.
    Idle,
    /// The node enforces the profile.
    Ready(&'n ProfileState),
    /// The node cannot enforce the profile, for this cause.
    Failed(&'n ProfileState, &'n str),
    /// Nothing is known about the current profile, for this cause.
    Unknown(&'static str),
}

impl Nodes {
    /// Adds a node; true if anything changes.
    pub(crate) fn add(&mut self, node: &Node) -> bool {
        let boot = node.status.node_info.boot_id.clone();
        let name = &node.metadata.name;
        let labels = node.metadata.labels.clone();
        let before = self.labels.insert(name.clone(), labels.clone());
        let old = self.boots.insert(name.clone(), boot.clone());
        old != Some(boot) || before != Some(labels)
    }

    /// Removes a node; true if it was known. Its silence goes with it: the name may come back with another machine.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.silences.remove(name);
        self.labels.remove(name);
        self.boots.remove(name).is_some()
    }

    pub(crate) fn remove_report(&mut self, name: &str) -> bool {
        self.reports.remove(name).is_some()
    }

    /// Notes that the report of `since` is too old; true if that is the current one.
    pub(crate) fn silent(&mut self, name: &str, since: String) -> bool {
        let before = self.silences.get(name);
        if before.is_some_and(|before| *before >= since) {
            return false;
        }
        self.silences.insert(name.to_owned(), since);
        self.reports
            .get(name)
            .is_some_and(|report| !self.is_fresh(name, report))
    }

    pub(crate) fn add_report(&mut self, report: &NodeReport) -> Touched {
        let name = &report.metadata.name;
        let Some(status) = &report.status else {
            return match self.reports.remove(name) {
                Some(_) => Touched::Everything,
                None => nothing(),
            };
        };
        let mut profiles: Vec<_> = status.profiles.iter().map(keyed).collect();
        profiles.sort_by(|(one, _), (other, _)| one.cmp(other));
        let new = Report {
            boot_id: status.boot_id.clone(),
            renew_time: status.renew_time.clone(),
            observed: status.observed_version.parse().ok(),
            profiles,
            detection: status.detection.clone(),
        };
        let is_fresh = self.is_fresh(name, &new);
        let old = self.reports.remove(name);
        let touched = match &old {
            Some(old) if self.is_fresh(name, old) == is_fresh && old.boot_id == new.boot_id => {
                difference(old, &new)
            }
            _ => Touched::Everything,
        };
        self.reports.insert(name.clone(), new);
        touched
    }

    fn is_fresh(&self, name: &str, report: &Report) -> bool {
        // Times of the same node in RFC 3339 are in the order of their texts.
        let silent = self.silences.get(name);
        silent.is_none_or(|since| report.renew_time > *since)
    }

    /// Returns true if every node has reported, and has seen profiles up to this version.
    pub(crate) fn have_seen(&self, version: u64) -> bool {
        self.boots.iter().all(|(name, boot)| {
            let report = self.reports.get(name);
            report.is_some_and(|report| {
                report.boot_id == *boot
                    && self.is_fresh(name, report)
                    && report.observed.is_some_and(|observed| observed >= version)
            })
        })
    }

    /// What the last report of a node says about detection; `None` if there is no report.
    pub(crate) fn detection(&self, name: &str) -> Option<&Option<DetectionState>> {
        self.reports.get(name).map(|report| &report.detection)
    }

    /// What is known about detection on each node, with the labels of the node.
    pub(crate) fn detecting(
        &self,
    ) -> impl Iterator<Item = (&BTreeMap<String, String>, Detecting<'_>)> {
        self.boots.iter().map(|(name, boot)| {
            let detecting = match self.report(name, boot) {
                Err(cause) => Detecting::Unknown(cause),
                Ok(report) => match &report.detection {
                    None => Detecting::Off,
                    Some(state) => Detecting::Known(state),
                },
            };
            (&self.labels[name], detecting)
        })
    }

    /// The current report of a node, or why there is none.
    fn report(&self, name: &str, boot: &str) -> Result<&Report, &'static str> {
        let report = self.reports.get(name).ok_or("there is no report")?;
        if report.boot_id != boot {
            return Err("the report is about an earlier boot");
        }
        if !self.is_fresh(name, report) {
            return Err("the agent has stopped to report");
        }
        Ok(report)
    }

    /// Returns true if the node exists.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        self.boots.contains_key(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.boots.keys().map(String::as_str)
    }

    /// Number of nodes.
    pub(crate) fn count(&self) -> u64 {
        self.boots.len() as u64
    }

    /// What is known about a profile on each node.
    pub(crate) fn states<'n>(
        &'n self,
        key: &'n ObjectKey,
        profile: &'n StoredProfile,
    ) -> impl Iterator<Item = (&'n str, NodeState<'n>)> {
        let nodes = self.boots.iter();
        nodes.map(move |(name, boot)| (name.as_str(), self.state(name, boot, key, profile)))
    }

    fn state<'n>(
        &'n self,
        name: &str,
        boot: &str,
        key: &ObjectKey,
        profile: &StoredProfile,
    ) -> NodeState<'n> {
        let report = match self.report(name, boot) {
            Ok(report) => report,
            Err(cause) => return NodeState::Unknown(cause),
        };
        let Some(observed) = report.observed else {
            return NodeState::Unknown("the report does not say what the agent has seen");
        };
        if observed < profile.version {
            return NodeState::Unknown("the agent has not seen the profile yet");
        }
        let Some(state) = report.profile(key) else {
            return NodeState::Idle;
        };
        if let Some(cause) = &state.failure {
            return NodeState::Failed(state, cause);
        }
        if state.hash != profile.spec.profile.hash {
            return NodeState::Unknown("the agent enforces an earlier profile");
        }
        let counted = [state.enforced, state.late, state.unprotected];
        let counted = counted.into_iter().try_fold(0_u64, u64::checked_add);
        match counted == Some(state.containers) {
            true => NodeState::Ready(state),
            false => NodeState::Unknown("the numbers in the report do not add up"),
        }
    }
}

fn keyed(state: &ProfileState) -> (ObjectKey, ProfileState) {
    let key = ObjectKey {
        namespace: state.namespace.clone(),
        name: state.name.clone(),
    };
    (key, state.clone())
}

fn nothing() -> Touched {
    Touched::Profiles {
        keys: Vec::new(),
        versions: None,
    }
}

/// What differs between two reports of the same boot.
fn difference(old: &Report, new: &Report) -> Touched {
    let versions = match (old.observed, new.observed) {
        (old, new) if old == new => None,
        (Some(old), Some(new)) => Some((old.min(new), old.max(new))),
        _ => return Touched::Everything,
    };
    let (of_old, of_new) = (old.profiles.iter(), new.profiles.iter());
    let gone = of_old.filter(|(key, state)| new.profile(key) != Some(state));
    let come = of_new.filter(|(key, state)| old.profile(key) != Some(state));
    let keys = gone.chain(come).map(|(key, _)| key.clone()).collect();
    Touched::Profiles { keys, versions }
}
