//! What the node knows of all ArmorProfiles: their metadata, and for which containers they are.

use std::collections::{BTreeMap, BTreeSet};

use kinds::annotations::{FAIL_MODE, FailMode, HASH, INSTALLATION, MARK, OF_POLICY, TARGET};
use kinds::{Meta, ObjectKey, OwnerReference, Scope, Target};
use nri::message::PodSandbox;
use serde_json::Value;

use crate::workload::{Match, compare};

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
        let causes = [target.as_ref().err(), hash.as_ref().err()];
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
        let found = self
            .entries()
            .filter(|entry| entry.compare(pod) != Match::No && entry.has_container(container));
        let all: Vec<&Entry> = found.collect();
        if all.is_empty() {
            return self.marked(pod, container);
        }
        let is_of_cluster = all.iter().any(|entry| entry.is_of_cluster);
        let level = || all.iter().filter(|one| one.is_of_cluster == is_of_cluster);
        let sure = level().filter(|entry| entry.compare(pod) == Match::Yes);
        if let Some(best) = sure.min_by_key(|entry| entry.rank()) {
            return Ok(Some(*best));
        }
        let marks = marks(pod, container);
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
    fn marked(&self, pod: &PodSandbox, container: &str) -> Result<Option<&Entry>, Undecided> {
        let mut found = Vec::new();
        for mark in marks(pod, container) {
            let before = found.len();
            let named = self
                .entries()
                .filter(|entry| entry.key.name == mark && entry.is_near(pod));
            found.extend(named);
            if found.len() == before {
                return Err(Undecided::NoProfile(mark.to_owned()));
            }
        }
        let own = found
            .into_iter()
            .filter(|entry| entry.has_container(container));
        Ok(own.min_by_key(|entry| entry.rank()))
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
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn profile(name: &str, target: Value, owner: &str, created: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "demo", "resourceVersion": "7",
            "creationTimestamp": created,
            "annotations": { TARGET: target.to_string(), HASH: format!("hash-of-{name}") },
            "ownerReferences": [{ "apiVersion": "crd.varmor.org/v1beta1", "kind": owner, "name": "x", "uid": "1",
                "controller": true }] } })
    }

    pub(crate) fn pod(name: &str, labels: &[(&str, &str)]) -> PodSandbox {
        PodSandbox {
            name: name.to_owned(),
            namespace: "demo".to_owned(),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..PodSandbox::default()
        }
    }

    fn index(objects: &[Value]) -> Index {
        let mut index = Index::new("tollgate".to_owned());
        for object in objects {
            index.apply(object).unwrap();
        }
        index
    }

    fn name<'i>(index: &'i Index, pod: &PodSandbox) -> Option<&'i str> {
        let found = index.find(pod, "app").unwrap();
        found.map(|entry| entry.key.name.as_str())
    }

    #[test]
    fn pods_of_a_workload_are_found_by_name_and_by_labels() {
        let by_name = |kind: &str| {
            profile(
                "p",
                json!({"kind": kind, "name": "web"}),
                "VarmorPolicy",
                "1",
            )
        };
        let deployed = pod(
            "web-abc-x1",
            &[("pod-template-hash", "abc"), ("app", "web")],
        );
        let set = pod(
            "web-0",
            &[
                ("controller-revision-hash", "r"),
                ("statefulset.kubernetes.io/pod-name", "web-0"),
            ],
        );
        let daemon = pod("web-x1", &[("controller-revision-hash", "r")]);
        let bare = pod("web", &[("app", "web")]);
        for (kind, own) in [
            ("Deployment", &deployed),
            ("StatefulSet", &set),
            ("DaemonSet", &daemon),
            ("Pod", &bare),
        ] {
            let index = index(&[by_name(kind)]);
            for pod in [&deployed, &set, &daemon, &bare] {
                let expected = (pod == own).then_some("p");
                assert_eq!(name(&index, pod), expected, "{kind} {}", pod.name);
            }
            let mut elsewhere = own.clone();
            elsewhere.namespace = "other".to_owned();
            assert_eq!(name(&index, &elsewhere), None, "{kind}");
        }
        let selector = json!({"kind": "Deployment", "selector": {"matchLabels": {"app": "web"}}});
        let index = index(&[profile("p", selector, "VarmorPolicy", "1")]);
        assert_eq!(name(&index, &deployed), Some("p"));
        assert_eq!(name(&index, &bare), None);
    }

    #[test]
    fn a_policy_of_the_cluster_wins_then_an_older_one_and_then_a_mark() {
        let target = json!({"kind": "Pod", "name": "web"});
        let bare = |mark: Option<&str>| {
            let mut pod = pod("web", &[]);
            let mark = mark.map(|mark| (format!("{MARK}app"), mark.to_owned()));
            pod.annotations.extend(mark);
            pod
        };
        let of = |name: &str, owner: &str, age: &str| profile(name, target.clone(), owner, age);
        let other = profile(
            "m",
            json!({"kind": "Pod", "name": "x"}),
            "VarmorPolicy",
            "0",
        );
        let mut cluster = of("c", "VarmorClusterPolicy", "3");
        cluster["metadata"]["namespace"] = json!("tollgate");
        let mut all = index(&[
            cluster,
            of("a", "VarmorPolicy", "2"),
            of("b", "VarmorPolicy", "1"),
            other,
        ]);
        for (namespace, expected) in [("tollgate", "c"), ("demo", "b"), ("demo", "a")] {
            assert_eq!(name(&all, &bare(Some("m"))), Some(expected));
            assert!(all.delete(&ObjectKey {
                namespace: namespace.to_owned(),
                name: expected.to_owned(),
            }));
        }
        assert_eq!(name(&all, &bare(Some("m"))), Some("m"));
        assert_eq!(name(&all, &bare(None)), None);
        assert_eq!(
            all.find(&bare(Some("n")), "app").unwrap_err(),
            Undecided::NoProfile("n".to_owned())
        );
    }

    #[test]
    fn two_targets_that_meet_in_a_cut_name_are_told_apart_by_the_mark_or_refused() {
        let long = "n".repeat(60);
        let of = |profile_name: &str, end: &str, age: &str| {
            let target = json!({"kind": "Deployment", "name": format!("{long}{end}")});
            profile(profile_name, target, "VarmorPolicy", age)
        };
        let other = json!({"kind": "Pod", "name": "x"});
        let all = index(&[
            of("a", "a", "1"),
            of("b", "b", "2"),
            profile("weak", other, "VarmorPolicy", "0"),
        ]);
        let mut pod = pod(
            &format!("{}x1y2z", &long[..58]),
            &[("pod-template-hash", "h")],
        );
        let error = all.find(&pod, "app").unwrap_err().to_string();
        assert!(error.contains("demo/a or of demo/b"), "{error}");
        let mark = |name: &str| (format!("{OF_POLICY}{name}"), "target".to_owned());
        // A mark of something else does not help.
        pod.annotations.extend([mark("weak")]);
        all.find(&pod, "app").unwrap_err();
        pod.annotations.extend([mark("b")]);
        assert_eq!(name(&all, &pod), Some("b"));
        assert_eq!(name(&index(&[of("a", "a", "1")]), &pod), Some("a"));
    }

    #[test]
    fn marks_of_several_policies_are_ranked_and_all_have_to_be_known() {
        let target = json!({"kind": "Deployment", "name": "x", "containers": ["app"]});
        let mut cluster = profile("c", target.clone(), "VarmorClusterPolicy", "9");
        cluster["metadata"]["namespace"] = json!("tollgate");
        let of = |name: &str, age: &str| profile(name, target.clone(), "VarmorPolicy", age);
        let all = index(&[cluster, of("a", "2"), of("b", "1")]);
        let marked = |names: &[&str]| {
            let mut pod = pod("web", &[]);
            let marks = names
                .iter()
                .map(|name| (format!("{OF_POLICY}{name}"), "target".to_owned()));
            pod.annotations.extend(marks);
            // That of an earlier build does not count beside them.
            pod.annotations
                .insert(format!("{MARK}app"), "gone".to_owned());
            pod
        };
        assert_eq!(name(&all, &marked(&["a", "b", "c"])), Some("c"));
        assert_eq!(name(&all, &marked(&["a", "b"])), Some("b"));
        assert_eq!(all.find(&marked(&["a"]), "side"), Ok(None));
        let expected = Err(Undecided::NoProfile("d".to_owned()));
        assert_eq!(all.find(&marked(&["a", "d"]), "app"), expected);
        assert_eq!(all.of_pod(&marked(&["a"])).len(), 1);
    }

    #[test]
    fn a_profile_of_another_installation_is_left_to_its_agents() {
        let target = json!({"kind": "Pod", "name": "web"});
        let of = |installation: &str| {
            let mut object = profile("p", target.clone(), "VarmorPolicy", "1");
            object["metadata"]["annotations"][INSTALLATION] = json!(installation);
            object
        };
        let web = pod("web", &[]);
        let mut all = index(&[of("tollgate")]);
        assert_eq!(name(&all, &web), Some("p"));
        assert_eq!(all.apply(&of("other")), Ok(true));
        assert_eq!((name(&all, &web), all.objects().len()), (None, 0));
        assert_eq!(all.apply(&of("other")), Ok(false));
    }

    #[test]
    fn an_object_that_cannot_be_read_refuses_or_changes_nothing() {
        let target = json!({"kind": "Pod", "name": "web"});
        let good = profile("p", target.clone(), "VarmorPolicy", "1");
        let mut foreign = good.clone();
        foreign["metadata"]["annotations"] = json!({});
        foreign["metadata"]["resourceVersion"] = json!("9");
        let mut ours = foreign.clone();
        ours["metadata"]["annotations"] = json!({ INSTALLATION: "tollgate" });
        let web = pod("web", &[]);
        // What was known stays.
        for broken in [&foreign, &ours] {
            let mut all = index(std::slice::from_ref(&good));
            let error = all.apply(broken).unwrap_err().to_string();
            assert!(
                error.contains("demo/p") && error.contains(TARGET),
                "{error}"
            );
            assert_eq!((all.version, name(&all, &web)), (9, Some("p")));
        }
        let mut all = index(&[]);
        all.apply(&foreign).unwrap_err();
        assert_eq!(name(&all, &web), None);
        all.apply(&ours).unwrap_err();
        let found = all.find(&pod("any", &[]), "app").unwrap().unwrap();
        assert!(found.problem.is_some());
        let mut other = pod("any", &[]);
        other.namespace = "other".to_owned();
        assert_eq!(name(&all, &other), None);
        // Its target is known, and not its policy.
        ours["metadata"]["annotations"][TARGET] = json!(target.to_string());
        let mut all = index(&[]);
        all.apply(&ours).unwrap_err();
        assert_eq!(name(&all, &web), Some("p"));
        assert_eq!(name(&all, &pod("any", &[])), None);
    }

    #[test]
    fn a_profile_is_of_the_cluster_only_in_the_namespace_of_the_installation() {
        let target = json!({"kind": "Pod", "name": "web"});
        let of = |namespace: &str, owner: &str| {
            let mut object = profile("p", target.clone(), owner, "0");
            object["metadata"]["namespace"] = json!(namespace);
            object
        };
        let web = pod("web", &[]);
        let forged = index(&[of("evil", "VarmorClusterPolicy")]);
        assert_eq!(name(&forged, &web), None);
        let mut marked = web.clone();
        marked
            .annotations
            .insert(format!("{MARK}app"), "p".to_owned());
        assert_eq!(
            forged.find(&marked, "app").unwrap_err(),
            Undecided::NoProfile("p".to_owned())
        );
        let real = of("tollgate", "VarmorClusterPolicy");
        assert_eq!(name(&index(std::slice::from_ref(&real)), &web), Some("p"));
        let mut of_another_group = real;
        of_another_group["metadata"]["ownerReferences"][0]["apiVersion"] = json!("evil.io/v1");
        assert_eq!(name(&index(&[of_another_group]), &web), None);
    }
}
