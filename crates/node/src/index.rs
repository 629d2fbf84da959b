//! What the node knows of all ArmorProfiles: their metadata, and for which containers they are.

mod entry;

use std::collections::{BTreeMap, BTreeSet};

use kinds::annotations::{
    FAIL_MODE, FailMode, HASH, INSTALLATION, MARK, MODELING, OF_POLICY, TARGET,
};
use kinds::{Meta, ModelingRun, ObjectKey, OwnerReference, Scope};
use nri::message::PodSandbox;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::workload::Match;
use entry::{Entries, GROUP};

pub(crate) use entry::Entry;

/// Maximum number of marks of a pod that are asked for.
const MARK_LIMIT: usize = 64;

/// An object lacks what the operator writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the ArmorProfile {key}: {problem}")]
pub(crate) struct Unusable {
    key: ObjectKey,
    problem: String,
}

/// It cannot be told which profile a container has. That does not mean that it has none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Undecided {
    #[error("there is no ArmorProfile {0}, which the pod is marked with")]
    NoProfile(String),
    #[error(
        "the name of the pod is cut and may be of {first} or of {second}: restart its workload, so that it is marked"
    )]
    CutName { first: ObjectKey, second: ObjectKey },
}

/// All ArmorProfiles.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Namespace of the installation, in which the profiles of the cluster's policies are. Only the operator writes there.
    installation: String,
    entries: Entries,
    /// Objects from the disk that the API server has not given since the agent began.
    unconfirmed: BTreeSet<ObjectKey>,
    /// Highest resource version that was seen.
    pub(crate) version: u64,
    /// All objects that exist were seen since the agent began.
    pub(crate) is_complete: bool,
    /// All objects that exist were seen, by this agent or by one before.
    pub(crate) is_usable: bool,
}

impl Index {
    /// An index of nothing.
    pub(crate) fn new(installation: String) -> Self {
        Self {
            installation,
            ..Self::default()
        }
    }

    /// Namespace and name of an object.
    pub(crate) fn key_of(object: &Value) -> ObjectKey {
        // An object without them has no profile that a container could have: the empty name is nobody's.
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        ObjectKey {
            namespace: text("namespace").to_owned(),
            name: text("name").to_owned(),
        }
    }

    /// Adds or replaces an object, of which only the metadata is read. True if anything changes.
    ///
    /// # Errors
    ///
    /// If the object lacks what the operator writes. What was known of it stays. If nothing was, and the object is of
    /// this installation, its containers are refused from now on: that its policy is unknown does not mean that there
    /// is none.
    pub(crate) fn apply(&mut self, object: &Value) -> Result<bool, Unusable> {
        let key = Self::key_of(object);
        self.unconfirmed.remove(&key);
        let meta: Meta =
            serde_json::from_value(object["metadata"].clone()).map_err(|error| Unusable {
                key: key.clone(),
                problem: error.to_string(),
            })?;
        let version = meta.resource_version.as_deref().map(str::parse);
        if let Some(Ok(version)) = version {
            self.version = self.version.max(version);
        }
        let installation = meta.annotations.get(INSTALLATION);
        let is_ours = installation == Some(&self.installation);
        if installation.is_some() && !is_ours {
            // The agents of the other installation enforce it.
            return Ok(self.delete(&key));
        }
        let entry = self.entry(&key, &meta);
        let before = self.get(&key);
        let is_known = before.is_some();
        let is_same = before.as_ref() == Some(&entry);
        let problem = entry.problem.clone();
        if problem.is_none() || (is_ours && !is_known) {
            let text = (!self.says_all(&entry)).then(|| kept(object).to_string());
            self.entries.insert(entry, text, &self.installation);
        }
        match problem {
            Some(problem) => Err(Unusable { key, problem }),
            None => Ok(!is_same),
        }
    }

    /// The agent after this one has the same entry of the object that is made of it.
    fn says_all(&self, entry: &Entry) -> bool {
        let object = entry.object(&self.installation);
        let meta = serde_json::from_value(object["metadata"].clone());
        meta.is_ok_and(|meta| self.entry(&entry.key, &meta) == *entry)
    }

    /// The entry of an object.
    fn entry(&self, key: &ObjectKey, meta: &Meta) -> Entry {
        let text = |name: &str| {
            let value = meta.annotations.get(name);
            value.ok_or_else(|| {
                format!("the annotation {name} is missing: it is not of tollgate's operator")
            })
        };
        let target = text(TARGET).and_then(|text| {
            serde_json::from_str(text)
                .map_err(|error| format!("the annotation {TARGET} is wrong: {error}"))
        });
        let hash = text(HASH);
        let modeling = meta.annotations.get(MODELING).map(|text| {
            let run: Result<ModelingRun, _> = text.parse();
            run.map_err(|error| format!("the annotation {MODELING} is wrong: {error}"))
        });
        let modeling = modeling.transpose();
        let causes = [
            target.as_ref().err(),
            hash.as_ref().err(),
            modeling.as_ref().err(),
        ];
        let problem = causes.into_iter().flatten().next().cloned();
        // Whoever writes an object chooses its owners, and nobody but the operator writes where it is.
        let is_at_home = key.namespace == self.installation && !self.installation.is_empty();
        let owns = |owner: &OwnerReference| {
            let is_ours = owner.api_version.split('/').next() == Some(GROUP);
            owner.controller && is_ours && Scope::of_kind(&owner.kind) == Some(Scope::Cluster)
        };
        Entry {
            target: target.ok(),
            is_of_cluster: is_at_home && meta.owner_references.iter().any(owns),
            hash: hash.cloned().unwrap_or_default(),
            fail_mode: FailMode::of(meta.annotations.get(FAIL_MODE).map(String::as_str)),
            // One that cannot be read is no reason to let a container run unconfined.
            modeling: modeling.unwrap_or(None),
            problem,
            // A policy without it counts as the oldest.
            created: meta.creation_timestamp.clone().unwrap_or_default(),
            policy: policy_of(&meta.owner_references),
            is_ours: meta.annotations.get(INSTALLATION) == Some(&self.installation),
            key: key.clone(),
        }
    }

    /// Takes what the agent before has kept. It may be old until a list has confirmed it.
    pub(crate) fn load(&mut self, objects: &[Value]) {
        for object in objects {
            // An unusable object was reported when it came.
            let _ = self.apply(object);
        }
        // The version of objects that may be old says nothing about what was seen since.
        self.version = 0;
        self.unconfirmed = self.entries.keys().collect();
        self.is_usable = true;
    }

    /// Notes that the API server has given every object; returns those that it no longer has.
    pub(crate) fn complete(&mut self) -> BTreeSet<ObjectKey> {
        self.is_complete = true;
        self.is_usable = true;
        std::mem::take(&mut self.unconfirmed)
    }

    /// Removes an object; true if it was there.
    pub(crate) fn delete(&mut self, key: &ObjectKey) -> bool {
        self.unconfirmed.remove(key);
        self.entries.remove(key)
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Entry> {
        self.entries.get(&key.namespace, &key.name)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.entries.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries that may be of a pod: those of its namespace, and those of policies of the cluster.
    fn near<'e>(&'e self, pod: &'e PodSandbox) -> impl Iterator<Item = Entry> + use<'e> {
        let is_elsewhere = self.installation != pod.namespace;
        let of_cluster = self.entries.of_namespace(&self.installation);
        let of_cluster = of_cluster.filter(move |entry| is_elsewhere && entry.is_of_cluster);
        self.entries.of_namespace(&pod.namespace).chain(of_cluster)
    }

    /// The entries of a name that may be of a pod.
    fn named(&self, pod: &PodSandbox, name: &str) -> impl Iterator<Item = Entry> {
        let is_elsewhere = self.installation != pod.namespace;
        let of_cluster = is_elsewhere.then(|| self.entries.get(&self.installation, name));
        let both = [self.entries.get(&pod.namespace, name), of_cluster.flatten()];
        let near = both.into_iter().flatten();
        near.filter(|entry| entry.is_near(pod))
    }

    /// The runs of behaviour modelling, by profile.
    pub(crate) fn runs(&self) -> BTreeMap<ObjectKey, ModelingRun> {
        let runs = self.entries();
        runs.filter_map(|entry| Some((entry.key, entry.modeling?)))
            .collect()
    }

    /// Kind and name of the policy of a profile, as its owner.
    pub(crate) fn policy_of(&self, key: &ObjectKey) -> Option<(String, String)> {
        self.get(key)?.policy
    }

    /// The objects as they are now, to be applied again by an agent that starts without an API server.
    pub(crate) fn objects(&self) -> Objects {
        Objects {
            entries: self.entries.clone(),
            installation: self.installation.clone(),
        }
    }

    /// The profile of a container. A policy of the cluster wins over one of the namespace, and an older one over a
    /// newer. Marks count if no target is about the pod: authors of pods may write marks. Of several targets of which a
    /// cut name does not tell which one it is, the mark does.
    ///
    /// # Errors
    ///
    /// If a mark names no profile, or if it cannot be told which profile it is.
    pub(crate) fn find(
        &self,
        pod: &PodSandbox,
        container: &str,
    ) -> Result<Option<Entry>, Undecided> {
        self.find_without(pod, container, |_| false)
    }

    /// Like [`Index::find`]. Marks without a profile of which `is_gone` is true are those of deleted policies, and do
    /// not count.
    ///
    /// # Errors
    ///
    /// As of [`Index::find`].
    pub(crate) fn find_without(
        &self,
        pod: &PodSandbox,
        container: &str,
        is_gone: impl Fn(&str) -> bool,
    ) -> Result<Option<Entry>, Undecided> {
        let found = self
            .near(pod)
            .filter(|entry| entry.compare(pod) != Match::No && entry.has_container(container));
        let mut all: Vec<Entry> = found.collect();
        if all.is_empty() {
            return self.marked(pod, container, is_gone);
        }
        // A cut name that fits does not put a policy before those that are certain; its mark on the pod does.
        let marks = marks(pod, container);
        let is_certain =
            |entry: &Entry| entry.compare(pod) == Match::Yes || marks.contains(&&*entry.key.name);
        if all.iter().any(is_certain) {
            all.retain(is_certain);
        }
        if all.iter().any(|entry| entry.is_of_cluster) {
            all.retain(|entry| entry.is_of_cluster);
        }
        let sure = all.iter().filter(|entry| entry.compare(pod) == Match::Yes);
        if let Some(best) = sure.min_by_key(|entry| entry.rank()) {
            return Ok(Some(best.clone()));
        }
        let marked = all.iter();
        let marked = marked.filter(|entry| marks.contains(&&*entry.key.name));
        if let Some(best) = marked.min_by_key(|entry| entry.rank()) {
            return Ok(Some(best.clone()));
        }
        match &*all {
            [first, second, ..] => Err(Undecided::CutName {
                first: first.key.clone(),
                second: second.key.clone(),
            }),
            one => Ok(one.first().cloned()),
        }
    }

    /// The best profile that a container is marked with.
    fn marked(
        &self,
        pod: &PodSandbox,
        container: &str,
        is_gone: impl Fn(&str) -> bool,
    ) -> Result<Option<Entry>, Undecided> {
        let mut found = Vec::new();
        for mark in marks(pod, container) {
            let before = found.len();
            found.extend(self.named(pod, mark));
            if found.len() == before && !is_gone(mark) {
                return Err(Undecided::NoProfile(mark.to_owned()));
            }
        }
        found.retain(|entry| entry.has_container(container));
        let best = found.iter().min_by_key(|entry| entry.rank());
        Ok(best.cloned())
    }

    /// Marks of a pod, for any container, without a profile; at most [`MARK_LIMIT`]. Each of them is a question to the API
    /// server, and whoever creates pods writes marks. One that is not asked for is unknown, so the container is refused.
    pub(crate) fn unknown_marks(&self, pod: &PodSandbox) -> Vec<String> {
        let is_known = |name: &str| self.named(pod, name).next().is_some();
        let marks = pod.annotations.iter().filter_map(|(key, value)| {
            key.strip_prefix(OF_POLICY)
                .or_else(|| key.strip_prefix(MARK).map(|_| value.as_str()))
        });
        let unknown = marks.filter(|name| !is_known(name));
        unknown.take(MARK_LIMIT).map(str::to_owned).collect()
    }

    /// Profiles of any container of a pod.
    pub(crate) fn of_pod(&self, pod: &PodSandbox) -> Vec<ObjectKey> {
        self.near(pod)
            .filter(|entry| entry.problem.is_none() && entry.may_be_of(pod))
            .map(|entry| entry.key)
            .collect()
    }
}

/// The objects of an index at a time. Each is made when it is written.
#[derive(Debug)]
pub(crate) struct Objects {
    entries: Entries,
    installation: String,
}

impl Objects {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Value> {
        self.entries.objects(&self.installation)
    }
}

impl Serialize for Objects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// Kind and name of the policy among the owners of a profile.
fn policy_of(owners: &[OwnerReference]) -> Option<(String, String)> {
    let mut policies = owners.iter().filter(|owner| {
        let is_ours = owner.api_version.split('/').next() == Some(GROUP);
        is_ours && Scope::of_kind(&owner.kind).is_some()
    });
    let policy = policies.next()?;
    Some((policy.kind.clone(), policy.name.clone()))
}

/// The profiles that a container is marked with. The mark of earlier builds counts if there is no other.
fn marks<'p>(pod: &'p PodSandbox, container: &str) -> Vec<&'p str> {
    let names = pod
        .annotations
        .keys()
        .filter_map(|key| key.strip_prefix(OF_POLICY));
    let names: Vec<&str> = names.collect();
    match names.is_empty() {
        false => names,
        true => {
            let old = pod.annotations.get(&format!("{MARK}{container}"));
            old.into_iter().map(String::as_str).collect()
        }
    }
}

/// What is kept of an object on disk.
fn kept(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

#[cfg(test)]
pub(crate) mod tests;
