//! What the node knows of all ArmorProfiles: their metadata, and for which containers they are.

use std::collections::{BTreeMap, BTreeSet};

use kinds::annotations::{
    FAIL_MODE, FailMode, HASH, INSTALLATION, MARK, MODELING, OF_POLICY, TARGET,
};
use kinds::{Meta, ModelingRun, ObjectKey, OwnerReference, Scope, Target};
use nri::message::PodSandbox;
use serde_json::Value;

use crate::workload::{Match, compare};

/// Maximum number of marks of a pod that are asked for.
const MARK_LIMIT: usize = 64;

/// Group of the kinds of policies.
const GROUP: &str = "crd.varmor.org";

/// An ArmorProfile without its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: ObjectKey,
    /// `None` if it cannot be read: a policy of a namespace is for all pods of it then, one of the cluster for those
    /// with its mark.
    target: Option<Target>,
    /// It is of a policy of the cluster.
    pub(crate) is_of_cluster: bool,
    /// Hash of the policy; empty if it cannot be read.
    pub(crate) hash: String,
    pub(crate) fail_mode: FailMode,
    /// The containers are observed, and not confined.
    pub(crate) modeling: Option<ModelingRun>,
    /// Why no container can have the policy.
    pub(crate) problem: Option<String>,
    created: String,
}

impl Entry {
    fn is_near(&self, pod: &PodSandbox) -> bool {
        self.is_of_cluster || self.key.namespace == pod.namespace
    }

    fn compare(&self, pod: &PodSandbox) -> Match {
        match &self.target {
            _ if !self.is_near(pod) => Match::No,
            Some(target) => compare(target, pod),
            None if self.is_of_cluster => Match::No,
            None => Match::Yes,
        }
    }

    fn has_container(&self, name: &str) -> bool {
        let target = self.target.as_ref();
        target.is_none_or(|target| target.has_container(name))
    }

    /// The best is the least: a policy of the cluster, then one whose target is known, then the oldest.
    fn rank(&self) -> impl Ord + '_ {
        let (target, created) = (self.target.is_none(), &self.created);
        (!self.is_of_cluster, target, created, &self.key)
    }
}

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
    entries: BTreeMap<ObjectKey, Entry>,
    /// The objects as they came, for the disk.
    objects: BTreeMap<ObjectKey, Value>,
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

    /// Adds or replaces an object, of which only the metadata is read. True if anything changes.
    ///
    /// # Errors
    ///
    /// If the object lacks what the operator writes. What was known of it stays. If nothing was, and the object is of
    /// this installation, its containers are refused from now on: that its policy is unknown does not mean that there
    /// is none.
    pub(crate) fn apply(&mut self, object: &Value) -> Result<bool, Unusable> {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let key = ObjectKey {
            namespace: text("namespace").to_owned(),
            name: text("name").to_owned(),
        };
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
        let (entry, problem) = self.entry(&key, &meta);
        if problem.is_some() && (!is_ours || self.entries.contains_key(&key)) {
            let problem = problem.unwrap_or_default();
            return Err(Unusable { key, problem });
        }
        self.objects.insert(key.clone(), kept(object));
        let before = self.entries.insert(key.clone(), entry.clone());
        match problem {
            Some(problem) => Err(Unusable { key, problem }),
            None => Ok(before.as_ref() != Some(&entry)),
        }
    }

    /// The entry of an object, and why no container can have it.
    fn entry(&self, key: &ObjectKey, meta: &Meta) -> (Entry, Option<String>) {
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
        let entry = Entry {
            target: target.ok(),
            is_of_cluster: is_at_home && meta.owner_references.iter().any(owns),
            hash: hash.cloned().unwrap_or_default(),
            fail_mode: FailMode::of(meta.annotations.get(FAIL_MODE).map(String::as_str)),
            // One that cannot be read is no reason to let a container run unconfined.
            modeling: modeling.unwrap_or(None),
            problem: problem.clone(),
            created: meta.creation_timestamp.clone().unwrap_or_default(),
            key: key.clone(),
        };
        (entry, problem)
    }

    /// Takes what the agent before has kept. It may be old until a list has confirmed it.
    pub(crate) fn load(&mut self, objects: &[Value]) {
        for object in objects {
            // An unusable object was reported when it came.
            let _ = self.apply(object);
        }
        // The version of objects that may be old says nothing about what was seen since.
        self.version = 0;
        self.unconfirmed = self.objects.keys().cloned().collect();
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
        self.objects.remove(key);
        self.entries.remove(key).is_some()
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The runs of behaviour modelling, by profile.
    pub(crate) fn runs(&self) -> BTreeMap<ObjectKey, ModelingRun> {
        let runs = self.entries();
        runs.filter_map(|entry| Some((entry.key.clone(), entry.modeling?)))
            .collect()
    }

    /// Kind and name of the policy of a profile, as its owner.
    pub(crate) fn policy_of(&self, key: &ObjectKey) -> Option<(String, String)> {
        let object = self.objects.get(key)?;
        let owners = object["metadata"]["ownerReferences"].as_array()?;
        let mut policies = owners.iter().filter_map(|owner| {
            let text = |name: &str| owner[name].as_str();
            let is_ours = text("apiVersion")?.split('/').next() == Some(GROUP);
            let kind = text("kind").filter(|kind| is_ours && Scope::of_kind(kind).is_some())?;
            Some((kind.to_owned(), text("name")?.to_owned()))
        });
        policies.next()
    }

    /// The objects, to be applied again by an agent that starts without an API server.
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.objects.values().cloned().collect()
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
    ) -> Result<Option<&Entry>, Undecided> {
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
    ) -> Result<Option<&Entry>, Undecided> {
        let found = self
            .entries()
            .filter(|entry| entry.compare(pod) != Match::No && entry.has_container(container));
        let all: Vec<&Entry> = found.collect();
        if all.is_empty() {
            return self.marked(pod, container, is_gone);
        }
        // A cut name that fits does not put a policy before those that are certain; its mark on the pod does.
        let marks = marks(pod, container);
        let is_certain =
            |entry: &&Entry| entry.compare(pod) == Match::Yes || marks.contains(&&*entry.key.name);
        let certain: Vec<&Entry> = all.iter().copied().filter(is_certain).collect();
        let all = if certain.is_empty() { all } else { certain };
        let is_of_cluster = all.iter().any(|entry| entry.is_of_cluster);
        let level = || all.iter().filter(|one| one.is_of_cluster == is_of_cluster);
        let sure = level().filter(|entry| entry.compare(pod) == Match::Yes);
        if let Some(best) = sure.min_by_key(|entry| entry.rank()) {
            return Ok(Some(*best));
        }
        let marked = level().filter(|entry| marks.contains(&&*entry.key.name));
        if let Some(best) = marked.min_by_key(|entry| entry.rank()) {
            return Ok(Some(*best));
        }
        let mut one = level();
        match (one.next(), one.next()) {
            (Some(first), Some(second)) => Err(Undecided::CutName {
                first: first.key.clone(),
                second: second.key.clone(),
            }),
            (first, _) => Ok(first.copied()),
        }
    }

    /// The best profile that a container is marked with.
    fn marked(
        &self,
        pod: &PodSandbox,
        container: &str,
        is_gone: impl Fn(&str) -> bool,
    ) -> Result<Option<&Entry>, Undecided> {
        let mut found = Vec::new();
        for mark in marks(pod, container) {
            let before = found.len();
            let named = self
                .entries()
                .filter(|entry| entry.key.name == mark && entry.is_near(pod));
            found.extend(named);
            if found.len() == before && !is_gone(mark) {
                return Err(Undecided::NoProfile(mark.to_owned()));
            }
        }
        let own = found
            .into_iter()
            .filter(|entry| entry.has_container(container));
        Ok(own.min_by_key(|entry| entry.rank()))
    }

    /// Marks of a pod, for any container, without a profile; at most [`MARK_LIMIT`]. Each of them is a question to the API
    /// server, and whoever creates pods writes marks. One that is not asked for is unknown, so the container is refused.
    pub(crate) fn unknown_marks(&self, pod: &PodSandbox) -> Vec<String> {
        let is_known = |name: &str| {
            let mut entries = self.entries();
            entries.any(|entry| entry.key.name == name && entry.is_near(pod))
        };
        let marks = pod.annotations.iter().filter_map(|(key, value)| {
            key.strip_prefix(OF_POLICY)
                .or_else(|| key.strip_prefix(MARK).map(|_| value.as_str()))
        });
        let unknown = marks.filter(|name| !is_known(name));
        unknown.take(MARK_LIMIT).map(str::to_owned).collect()
    }

    /// Profiles of any container of a pod.
    pub(crate) fn of_pod(&self, pod: &PodSandbox) -> Vec<ObjectKey> {
        let is_mark = |key: &str, value: &str, name: &str| {
            (key.starts_with(MARK) && value == name) || key.strip_prefix(OF_POLICY) == Some(name)
        };
        let is_marked = |name: &str| {
            let mut marks = pod.annotations.iter();
            marks.any(|(key, value)| is_mark(key, value, name))
        };
        self.entries()
            .filter(|entry| entry.problem.is_none() && entry.is_near(pod))
            .filter(|entry| entry.compare(pod) != Match::No || is_marked(&entry.key.name))
            .map(|entry| entry.key.clone())
            .collect()
    }
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
