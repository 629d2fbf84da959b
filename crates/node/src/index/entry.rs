//! An ArmorProfile without its policy, and its few bytes in memory.
//!
//! A node knows the metadata of every policy of the cluster, and has containers of a few. So an entry is packed, and read when a
//! pod is compared with it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kinds::annotations::{
    FAIL_MODE, FailMode, HASH, INSTALLATION, MARK, MODELING, OF_POLICY, TARGET,
};
use kinds::{
    LabelSelector, ModelingRun, ObjectKey, Operator, Requirement, Scope, Target, profile_name,
};
use nri::message::PodSandbox;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::workload::{Match, compare};

/// Group of the kinds of policies.
pub(super) const GROUP: &str = "crd.varmor.org";
/// Kinds of targets, most of which have one of these.
const KINDS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Pod"];

/// An ArmorProfile without its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: ObjectKey,
    /// `None` if it cannot be read: a policy of a namespace is for all pods of it then, one of the cluster for those
    /// with its mark.
    pub(super) target: Option<Target>,
    /// It is of a policy of the cluster.
    pub(crate) is_of_cluster: bool,
    /// Hash of the policy; empty if it cannot be read.
    pub(crate) hash: String,
    pub(crate) fail_mode: FailMode,
    /// The containers are observed, and not confined.
    pub(crate) modeling: Option<ModelingRun>,
    /// Why no container can have the policy.
    pub(crate) problem: Option<String>,
    pub(super) created: String,
    /// Kind and name of its policy.
    pub(super) policy: Option<(String, String)>,
    /// The operator of this installation has written it.
    pub(super) is_ours: bool,
}

impl Entry {
    pub(super) fn is_near(&self, pod: &PodSandbox) -> bool {
        self.is_of_cluster || self.key.namespace == pod.namespace
    }

    pub(super) fn compare(&self, pod: &PodSandbox) -> Match {
        match &self.target {
            _ if !self.is_near(pod) => Match::No,
            Some(target) => compare(target, pod),
            None if self.is_of_cluster => Match::No,
            None => Match::Yes,
        }
    }

    /// It may be that of a container of a pod, by its target or by a mark of the pod.
    pub(crate) fn may_be_of(&self, pod: &PodSandbox) -> bool {
        let name = &self.key.name;
        let is_mark = |(key, value): (&String, &String)| {
            (key.starts_with(MARK) && value == name)
                || key.strip_prefix(OF_POLICY) == Some(name.as_str())
        };
        self.is_near(pod) && (self.compare(pod) != Match::No || pod.annotations.iter().any(is_mark))
    }

    pub(super) fn has_container(&self, name: &str) -> bool {
        let target = self.target.as_ref();
        target.is_none_or(|target| target.has_container(name))
    }

    /// The best is the least: a policy of the cluster, then one whose target is known, then the oldest.
    pub(super) fn rank(&self) -> impl Ord + '_ {
        let (target, created) = (self.target.is_none(), &self.created);
        (!self.is_of_cluster, target, created, &self.key)
    }

    /// An object of which this is the entry, if nothing but the metadata that an entry has was in it.
    pub(super) fn object(&self, installation: &str) -> Value {
        let mut notes = Map::new();
        let mut note = |key: &str, value: String| drop(notes.insert(key.to_owned(), value.into()));
        if let Some(target) = &self.target {
            note(TARGET, json!(target).to_string());
        }
        note(HASH, self.hash.clone());
        if self.fail_mode != FailMode::default() {
            note(FAIL_MODE, self.fail_mode.name().to_owned());
        }
        if let Some(run) = self.modeling {
            note(MODELING, run.to_string());
        }
        if self.is_ours {
            note(INSTALLATION, installation.to_owned());
        }
        let owner = self.policy.as_ref().map(|(kind, name)| {
            json!({ "apiVersion": format!("{GROUP}/v1beta1"), "kind": kind, "name": name, "uid": "",
                "controller": self.is_of_cluster })
        });
        json!({ "metadata": { "namespace": self.key.namespace, "name": self.key.name,
            "creationTimestamp": self.created, "annotations": notes,
            "ownerReferences": owner.into_iter().collect::<Vec<_>>() } })
    }
}

/// What is kept of an object in memory.
#[derive(Debug, Serialize, Deserialize)]
struct Kept<'k> {
    namespace: &'k str,
    name: &'k str,
    target: Option<PackedTarget>,
    is_of_cluster: bool,
    is_open: bool,
    is_ours: bool,
    hash: Hash,
    created: Time,
    policy: Option<Policy>,
    modeling: Option<(u64, u64, bool)>,
    /// Why no container can have the policy, and the object as JSON where an entry does not say all of it.
    problem: Option<String>,
    text: Option<String>,
}

/// Labels with their values, and key, test and values of further tests.
type PackedSelector = (
    BTreeMap<String, String>,
    Vec<(String, Operator, Vec<String>)>,
);

/// What a target has, in a form that needs no names of fields.
#[derive(Debug, Serialize, Deserialize)]
struct PackedTarget {
    /// Its place in [`KINDS`].
    kind: Result<u8, String>,
    name: String,
    selector: Option<PackedSelector>,
    containers: Vec<String>,
}

impl From<Target> for PackedTarget {
    fn from(target: Target) -> Self {
        let place = KINDS.iter().position(|kind| *kind == target.kind);
        let place = place.and_then(|place| u8::try_from(place).ok());
        let selector = target.selector.map(|selector| {
            let tests = selector.match_expressions.into_iter();
            let tests = tests.map(|test| (test.key, test.operator, test.values));
            (selector.match_labels, tests.collect())
        });
        Self {
            kind: place.ok_or(target.kind),
            name: target.name,
            selector,
            containers: target.containers,
        }
    }
}

impl From<PackedTarget> for Target {
    fn from(packed: PackedTarget) -> Self {
        let selector = packed.selector.map(|(match_labels, tests)| LabelSelector {
            match_labels,
            match_expressions: tests
                .into_iter()
                .map(|(key, operator, values)| Requirement {
                    key,
                    operator,
                    values,
                })
                .collect(),
        });
        Self {
            kind: match packed.kind {
                Ok(place) => KINDS[usize::from(place)].to_owned(),
                Err(kind) => kind,
            },
            name: packed.name,
            selector,
            containers: packed.containers,
        }
    }
}

/// A hash: the bytes that a text of hexadecimal digits stands for, or another text.
#[derive(Debug, Serialize, Deserialize)]
enum Hash {
    Bytes(Vec<u8>),
    Text(String),
}

impl Hash {
    fn of(text: &str) -> Self {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs.iter();
        let bytes = bytes.map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        match bytes.collect() {
            Some(bytes) if rest.is_empty() => Self::Bytes(bytes),
            _ => Self::Text(text.to_owned()),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => {
                let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
                let digits = bytes
                    .into_iter()
                    .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
                digits.collect()
            }
            Self::Text(text) => text,
        }
    }
}

/// A time: seconds since 1970 of a text in RFC 3339, or another text.
#[derive(Debug, Serialize, Deserialize)]
enum Time {
    Seconds(i64),
    Text(String),
}

impl Time {
    fn of(text: &str) -> Self {
        let time = text.parse::<Timestamp>().ok();
        match time.filter(|time| time.to_string() == text && time.subsec_nanosecond() == 0) {
            Some(time) => Self::Seconds(time.as_second()),
            None => Self::Text(text.to_owned()),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Seconds(seconds) => Timestamp::from_second(seconds)
                .expect("it was one")
                .to_string(),
            Self::Text(text) => text,
        }
    }
}

/// Kind and name of a policy.
#[derive(Debug, Serialize, Deserialize)]
enum Policy {
    /// Its profile is named after it, from this byte on.
    After(u8, u8),
    Named(String, String),
}

/// Kinds of policies, by their place in [`Policy::After`].
const POLICIES: [(&str, Scope); 2] = [
    ("VarmorPolicy", Scope::Namespace),
    ("VarmorClusterPolicy", Scope::Cluster),
];

impl Policy {
    fn of((kind, name): (String, String), key: &ObjectKey, installation: &str) -> Self {
        let place = POLICIES.iter().position(|(known, _)| *known == kind);
        let begin = key.name.len().checked_sub(name.len());
        let is_after = place.is_some_and(|place| {
            let namespace = match POLICIES[place].1 {
                Scope::Namespace => Some(&*key.namespace),
                Scope::Cluster => None,
            };
            let profile = profile_name(namespace, &name, installation);
            profile.is_ok_and(|profile| profile == key.name) && key.name.ends_with(&name)
        });
        let place = place.and_then(|place| u8::try_from(place).ok());
        let begin = begin.and_then(|begin| u8::try_from(begin).ok());
        match (place, begin) {
            (Some(place), Some(begin)) if is_after => Self::After(place, begin),
            _ => Self::Named(kind, name),
        }
    }

    fn names(self, profile: &str) -> (String, String) {
        match self {
            Self::After(place, begin) => {
                let (kind, _) = POLICIES[usize::from(place)];
                (kind.to_owned(), profile[usize::from(begin)..].to_owned())
            }
            Self::Named(kind, name) => (kind, name),
        }
    }
}

/// The entries, sorted by namespace and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries(Vec<Box<[u8]>>);

/// Namespace and name of what was packed.
fn key(packed: &[u8]) -> (&str, &str) {
    let (key, _) = postcard::take_from_bytes(packed).expect("it was packed here");
    key
}

fn unpack(packed: &[u8]) -> (Entry, Option<String>) {
    let kept: Kept<'_> = postcard::from_bytes(packed).expect("it was packed here");
    let entry = Entry {
        key: ObjectKey {
            namespace: kept.namespace.to_owned(),
            name: kept.name.to_owned(),
        },
        target: kept.target.map(Target::from),
        is_of_cluster: kept.is_of_cluster,
        hash: kept.hash.text(),
        fail_mode: match kept.is_open {
            true => FailMode::Open,
            false => FailMode::Closed,
        },
        modeling: kept.modeling.map(|(start, minutes, is_over)| ModelingRun {
            start,
            minutes,
            is_over,
        }),
        problem: kept.problem,
        created: kept.created.text(),
        policy: kept.policy.map(|policy| policy.names(kept.name)),
        is_ours: kept.is_ours,
    };
    (entry, kept.text)
}

impl Entries {
    fn place(&self, namespace: &str, name: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|packed| key(packed).cmp(&(namespace, name)))
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Entry> {
        let place = self.place(namespace, name).ok()?;
        Some(unpack(&self.0[place]).0)
    }

    /// Adds or replaces an entry. `text` is the object where the entry does not say all of it.
    pub(super) fn insert(&mut self, entry: Entry, text: Option<String>, installation: &str) {
        let policy = entry.policy;
        let policy = policy.map(|policy| Policy::of(policy, &entry.key, installation));
        let modeling = entry.modeling;
        let kept = Kept {
            namespace: &entry.key.namespace,
            name: &entry.key.name,
            target: entry.target.map(PackedTarget::from),
            is_of_cluster: entry.is_of_cluster,
            is_open: entry.fail_mode == FailMode::Open,
            is_ours: entry.is_ours,
            hash: Hash::of(&entry.hash),
            created: Time::of(&entry.created),
            policy,
            modeling: modeling.map(|run| (run.start, run.minutes, run.is_over)),
            problem: entry.problem,
            text,
        };
        let packed = postcard::to_allocvec(&kept).expect("memory can be written");
        let packed = packed.into_boxed_slice();
        match self.place(&entry.key.namespace, &entry.key.name) {
            Ok(place) => self.0[place] = packed,
            Err(place) => self.0.insert(place, packed),
        }
    }

    /// Removes an entry; true if it was there.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> bool {
        let place = self.place(&key.namespace, &key.name);
        place.map(|place| drop(self.0.remove(place))).is_ok()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.0.iter().map(|packed| unpack(packed).0)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.0.iter().map(|packed| {
            let (namespace, name) = key(packed);
            ObjectKey {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }
        })
    }

    /// The entries of a namespace.
    pub(super) fn of_namespace<'e>(&'e self, namespace: &'e str) -> impl Iterator<Item = Entry> {
        let begin = self.0.partition_point(|packed| key(packed).0 < namespace);
        let all = self.0[begin..].iter();
        all.take_while(move |packed| key(packed).0 == namespace)
            .map(|packed| unpack(packed).0)
    }

    /// Objects of which these are the entries.
    pub(super) fn objects<'e>(&'e self, installation: &'e str) -> impl Iterator<Item = Value> {
        self.0.iter().map(move |packed| {
            let (entry, text) = unpack(packed);
            let text = text.map(|text| serde_json::from_str(&text).expect("it was JSON"));
            text.unwrap_or_else(|| entry.object(installation))
        })
    }
}
