//! Facts about containers that this program was told before they started, by the container runtime itself.
//!
//! The agent of a Kubernetes node is asked by the runtime before each container starts (NRI). What it is told then is known
//! at the first event of the container, without files of the runtime and without the API server.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use event::Container;

/// How long facts stay after their container has ended: events of its last processes are evaluated later.
const LINGER: Duration = Duration::from_secs(60);

/// What a runtime says about a container. What it does not say stays unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Name of the container in its pod.
    pub name: Option<String>,
    /// Name of the image.
    pub image: Option<String>,
    /// Digest of the image (`sha256:...`).
    pub image_digest: Option<String>,
    /// Name, namespace and unique id of the pod.
    pub pod: Option<(String, String, String)>,
    /// Address of the pod.
    pub pod_ip: Option<String>,
    /// Labels of the pod.
    pub pod_labels: BTreeMap<String, String>,
    /// Id of the pod's sandbox.
    pub sandbox_id: Option<String>,
    /// Labels of the container.
    pub labels: BTreeMap<String, String>,
}

impl ContainerFacts {
    /// Adds the facts to a container. They are newer than what files say, and go before it.
    fn describe(&self, container: &mut Container) {
        let set = |known: &mut Option<String>, fact: &Option<String>| {
            if fact.is_some() {
                known.clone_from(fact);
            }
        };
        set(&mut container.name, &self.name);
        set(&mut container.image, &self.image);
        if self.pod.is_some() {
            container.pod.clone_from(&self.pod);
        }
        let details = Arc::make_mut(&mut container.details);
        set(&mut details.image_digest, &self.image_digest);
        set(&mut details.sandbox_id, &self.sandbox_id);
        set(&mut details.pod_ip, &self.pod_ip);
        details.pod_labels.extend(self.pod_labels.clone());
        details.labels.extend(self.labels.clone());
        container.undescribed = None;
    }
}

#[derive(Debug)]
struct Entry {
    facts: Arc<ContainerFacts>,
    ended: Option<Instant>,
}

/// Facts about containers by their full ids. One thread adds what a runtime says, others read it at the next event.
#[derive(Debug, Default)]
pub struct Registry {
    entries: Mutex<HashMap<String, Entry>>,
    /// Number of changes, by which readers notice that there is something new.
    changes: AtomicU64,
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // No method leaves it half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a container, or replaces what is known of it.
    pub fn insert(&self, id: &str, facts: ContainerFacts) {
        let mut entries = self.entries();
        entries.retain(|_, entry| !has_lingered(entry));
        if let Some(entry) = entries.get_mut(id).filter(|entry| *entry.facts == facts) {
            entry.ended = None;
            return;
        }
        let entry = Entry {
            facts: Arc::new(facts),
            ended: None,
        };
        entries.insert(id.to_owned(), entry);
        drop(entries);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Notes that a container has ended. Its facts stay for a minute.
    pub fn end(&self, id: &str) {
        if let Some(entry) = self.entries().get_mut(id) {
            entry.ended.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that all containers but these have ended.
    pub fn retain(&self, is_running: impl Fn(&str) -> bool) {
        for (id, entry) in self.entries().iter_mut() {
            if !is_running(id) {
                entry.ended.get_or_insert_with(Instant::now);
            }
        }
    }

    /// What is known of a container.
    #[must_use]
    pub fn facts(&self, id: &str) -> Option<Arc<ContainerFacts>> {
        let entries = self.entries();
        entries.get(id).map(|entry| Arc::clone(&entry.facts))
    }

    /// What is known of a container that was identified.
    pub(crate) fn facts_of(&self, container: &Container) -> Option<Arc<ContainerFacts>> {
        self.facts(container.full_id.as_deref()?)
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Adds what is known of a container to it, or says that nothing is.
    pub(crate) fn describe(&self, container: &mut Container) {
        match self.facts_of(container) {
            Some(facts) => facts.describe(container),
            None if container.pod.is_none() && container.name.is_none() => {
                let reason = "the container runtime has not named it to this agent";
                container.undescribed = Some(reason.to_owned());
            }
            None => {}
        }
    }
}

fn has_lingered(entry: &Entry) -> bool {
    entry.ended.is_some_and(|ended| ended.elapsed() >= LINGER)
}

#[cfg(test)]
mod tests {
    use event::cgroup::Identity;

    use super::*;

    const ID: &str = "65c3b4d6b9ca29f676aeeaa520e2addea568c9d77430f1d6e6829e396ffe9fd1";

    fn facts() -> ContainerFacts {
        ContainerFacts {
            name: Some("web".to_owned()),
            pod: Some(("web-1".to_owned(), "demo".to_owned(), "uid".to_owned())),
            pod_labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
            ..ContainerFacts::default()
        }
    }

    fn described(registry: &Registry) -> Container {
        let mut container = Identity::named(ID.to_owned()).into_container();
        registry.describe(&mut container);
        container
    }

    #[test]
    fn what_a_runtime_says_is_known_also_shortly_after_the_end() {
        let registry = Registry::default();
        let unknown = described(&registry);
        assert_eq!((unknown.pod, unknown.name), (None, None));
        let reason = unknown.undescribed.unwrap();
        assert!(reason.contains("has not named it"), "{reason}");

        let before = registry.changes();
        registry.insert(ID, facts());
        assert_ne!(registry.changes(), before);
        let known = described(&registry);
        assert_eq!(known.pod, facts().pod);
        assert_eq!(known.details.pod_labels["app"], "web");
        assert_eq!(known.undescribed, None);
        // What the runtime does not say stays unknown.
        assert_eq!(known.image, None);

        registry.end(ID);
        registry.insert("other", ContainerFacts::default());
        assert_eq!(described(&registry).pod, facts().pod);
    }

    #[test]
    fn facts_of_ended_containers_go_in_the_end() {
        let registry = Registry::default();
        registry.insert(ID, facts());
        registry.retain(|id| id != ID);
        let before = Instant::now()
            .checked_sub(LINGER)
            .expect("the machine runs for a minute");
        registry.entries().get_mut(ID).unwrap().ended = Some(before);
        registry.insert("other", ContainerFacts::default());
        assert_eq!(registry.facts(ID), None);
    }

    #[test]
    fn a_fact_of_the_runtime_goes_before_that_of_a_file() {
        let registry = Registry::default();
        registry.insert(ID, facts());
        let mut container = Identity::named(ID.to_owned()).into_container();
        container.name = Some("from a file".to_owned());
        container.image = Some("nginx".to_owned());
        registry.describe(&mut container);
        assert_eq!(container.name.as_deref(), Some("web"));
        assert_eq!(container.image.as_deref(), Some("nginx"));
    }
}
