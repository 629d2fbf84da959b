//! Nodes, and what they report.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::{
    ArmorProfile, ArmorProfileSpec, ArmorProfileStatus, DetectionState, Meta, Node, NodeReport,
    NodeReportStatus, ObjectKey, OwnerReference, ProfileState, Scope,
};

use crate::INSTALLATION;
use crate::profile::NOTES;
use crate::shared::SharedValues;

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
///
/// There may be tens of thousands. Of each is kept what status needs, and what many have in common is kept once.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// By name.
    entries: BTreeMap<Box<str>, Entry>,
    /// Number of entries that have a node.
    count: u64,
    texts: SharedValues<str>,
    states: SharedValues<ProfileState>,
    detections: SharedValues<DetectionState>,
}

/// What is known under the name of a node: it has a node, a report, or both.
#[derive(Debug, Default)]
struct Entry {
    node: Option<KnownNode>,
    report: Option<Report>,
    /// `renewTime` of the last report that was too old; only with a report.
    silence: Option<Box<str>>,
}

/// A node that exists.
#[derive(Debug, PartialEq, Eq)]
struct KnownNode {
    boot: Arc<str>,
    labels: NodeLabels,
}

/// Labels of a node, in the order of their keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeLabels(Box<[(Arc<str>, Arc<str>)]>);

impl NodeLabels {
    /// The value of a label.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(known, _)| (**known).cmp(key));
        found.ok().map(|index| &*self.0[index].1)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Report {
    boot_id: Arc<str>,
    renew_time: Box<str>,
    /// Resource version up to which profiles were seen; `None` if the report has no number there.
    observed: Option<u64>,
    /// In the order of their keys.
    profiles: Box<[Arc<ProfileState>]>,
    detection: Option<Arc<DetectionState>>,
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
        self.shared_profile((&key.namespace, &key.name))
            .map(|state| &**state)
    }

    fn shared_profile(&self, key: (&str, &str)) -> Option<&Arc<ProfileState>> {
        let found = self.profiles.binary_search_by(|one| key_of(one).cmp(&key));
        found.ok().map(|index| &self.profiles[index])
    }
}

impl Entry {
    /// Returns true if the report is not too old.
    fn is_fresh(&self, report: &Report) -> bool {
        // Times of the same node in RFC 3339 are in the order of their texts.
        let silent = self.silence.as_ref();
        silent.is_none_or(|since| report.renew_time > *since)
    }

    /// The current report of a node, or why there is none.
    fn current(&self, node: &KnownNode) -> Result<&Report, &'static str> {
        let report = self.report.as_ref().ok_or("there is no report")?;
        if report.boot_id != node.boot {
            return Err("the report is about an earlier boot");
        }
        if !self.is_fresh(report) {
            return Err("the agent has stopped to report");
        }
        Ok(report)
    }

    fn state(&self, node: &KnownNode, key: &ObjectKey, profile: &StoredProfile) -> NodeState<'_> {
        let report = match self.current(node) {
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
        let labels = node.metadata.labels.iter();
        let labels = labels.map(|(key, value)| (self.texts.share(key), self.texts.share(value)));
        let known = KnownNode {
            labels: NodeLabels(labels.collect()),
            boot: self.texts.share(&node.status.node_info.boot_id),
        };
        let entry = self.entry(&node.metadata.name);
        let is_changed = entry.node.as_ref() != Some(&known);
        let before = entry.node.replace(known);
        self.count += u64::from(before.is_none());
        is_changed
    }

    /// Removes a node; true if it was known. Its silence goes with it: the name may come back with another machine.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        entry.silence = None;
        let was_known = entry.node.take().is_some();
        if entry.report.is_none() {
            self.entries.remove(name);
        }
        self.count -= u64::from(was_known);
        was_known
    }

    pub(crate) fn remove_report(&mut self, name: &str) -> bool {
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        let was_known = entry.report.take().is_some();
        entry.silence = None;
        if entry.node.is_none() {
            self.entries.remove(name);
        }
        was_known
    }

    fn entry(&mut self, name: &str) -> &mut Entry {
        if !self.entries.contains_key(name) {
            self.entries.insert(name.into(), Entry::default());
        }
        self.entries.get_mut(name).expect("it was inserted")
    }

    /// Notes that the report of `since` is too old; true if that is the current one. Without a report, nothing is noted.
    pub(crate) fn silent(&mut self, name: &str, since: &str) -> bool {
        let known = self.entries.get_mut(name);
        let Some(entry) = known.filter(|entry| entry.report.is_some()) else {
            return false;
        };
        let before = entry.silence.as_deref();
        if before.is_some_and(|before| before >= since) {
            return false;
        }
        entry.silence = Some(since.into());
        let report = entry.report.as_ref();
        report.is_some_and(|report| !entry.is_fresh(report))
    }

    pub(crate) fn add_report(&mut self, report: &NodeReport) -> Touched {
        let name = &report.metadata.name;
        let Some(status) = &report.status else {
            return match self.remove_report(name) {
                true => Touched::Everything,
                false => nothing(),
            };
        };
        let new = self.shared(status);
        let entry = self.entry(name);
        let is_fresh = entry.is_fresh(&new);
        let touched = match &entry.report {
            Some(old) if entry.is_fresh(old) == is_fresh && old.boot_id == new.boot_id => {
                difference(old, &new)
            }
            _ => Touched::Everything,
        };
        entry.report = Some(new);
        touched
    }

    /// What is kept of a report.
    fn shared(&mut self, status: &NodeReportStatus) -> Report {
        let states = status.profiles.iter();
        let mut profiles: Box<[_]> = states.map(|state| self.states.share(state)).collect();
        profiles.sort_by(|one, other| key_of(one).cmp(&key_of(other)));
        let detection = status.detection.as_ref();
        Report {
            boot_id: self.texts.share(&status.boot_id),
            renew_time: status.renew_time.as_str().into(),
            observed: status.observed_version.parse().ok(),
            profiles,
            detection: detection.map(|detection| self.detections.share(detection)),
        }
    }

    /// The nodes that exist, each with its name and entry.
    fn known(&self) -> impl Iterator<Item = (&str, &KnownNode, &Entry)> {
        let all = self.entries.iter();
        all.filter_map(|(name, entry)| Some((&**name, entry.node.as_ref()?, entry)))
    }

    /// Returns true if every node has reported, and has seen profiles up to this version.
    pub(crate) fn have_seen(&self, version: u64) -> bool {
        self.known().all(|(_, node, entry)| {
            let report = entry.current(node).ok();
            let observed = report.and_then(|report| report.observed);
            observed.is_some_and(|observed| observed >= version)
        })
    }

    /// What the last report of a node says about detection; `None` if there is no report.
    pub(crate) fn detection(&self, name: &str) -> Option<Option<&DetectionState>> {
        let report = self.entries.get(name)?.report.as_ref()?;
        Some(report.detection.as_deref())
    }

    /// What is known about detection on each node, with the labels of the node.
    pub(crate) fn detecting(&self) -> impl Iterator<Item = (&NodeLabels, Detecting<'_>)> {
        self.known().map(|(_, node, entry)| {
            let detecting = match entry.current(node) {
                Err(cause) => Detecting::Unknown(cause),
                Ok(report) => match &report.detection {
                    None => Detecting::Off,
                    Some(state) => Detecting::Known(state),
                },
            };
            (&node.labels, detecting)
        })
    }

    /// Returns true if the node exists.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.node.is_some())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.known().map(|(name, ..)| name)
    }

    /// Number of names about which something is known.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Number of nodes.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// What is known about a profile on each node.
    pub(crate) fn states<'n>(
        &'n self,
        key: &'n ObjectKey,
        profile: &'n StoredProfile,
    ) -> impl Iterator<Item = (&'n str, NodeState<'n>)> {
        self.known()
            .map(move |(name, node, entry)| (name, entry.state(node, key, profile)))
    }
}

fn key_of(state: &ProfileState) -> (&str, &str) {
    (&state.namespace, &state.name)
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
    // Equal states are one.
    let lacks = |report: &Report, state: &Arc<ProfileState>| {
        let known = report.shared_profile(key_of(state));
        !known.is_some_and(|known| Arc::ptr_eq(known, state))
    };
    let (of_old, of_new) = (old.profiles.iter(), new.profiles.iter());
    let gone = of_old.filter(|state| lacks(new, state));
    let come = of_new.filter(|state| lacks(old, state));
    let keys = gone.chain(come).map(|state| ObjectKey {
        namespace: state.namespace.clone(),
        name: state.name.clone(),
    });
    Touched::Profiles {
        keys: keys.collect(),
        versions,
    }
}
