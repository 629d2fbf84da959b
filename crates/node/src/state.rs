//! What an agent knows, and what it reports of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use kinds::{ObjectKey, ProfileState};
use nri::message::{LinuxSeccomp, PodSandbox};

use crate::filter::Filter;
use crate::index::{Index, Undecided};
use crate::store::{Body, Record, policy_name};

/// A container that exists.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) pod: PodSandbox,
    pub(crate) name: String,
}

/// What has to be true of a container when it starts.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) record: Record,
    /// The seccomp policy that it has to have.
    pub(crate) policy: Option<LinuxSeccomp>,
}

/// State of an agent.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) bodies: HashMap<ObjectKey, Body>,
    /// The filter that was compiled last for a profile, with the hash of its policy.
    pub(crate) filters: HashMap<ObjectKey, (String, Arc<Filter>)>,
    /// Containers that run, by id.
    pub(crate) seen: HashMap<String, Seen>,
    /// Containers that were confined, by id.
    pub(crate) records: HashMap<String, Record>,
    /// Containers between creation and start, by id.
    pub(crate) expected: HashMap<String, Expected>,
    /// Why the policy of a profile cannot be had.
    pub(crate) failures: BTreeMap<ObjectKey, String>,
    /// When an answer to the runtime last waited in vain for a policy of a namespace. No policy has come since.
    pub(crate) gave_up: BTreeMap<String, Instant>,
    /// The container runtime has given its containers, and the connection stands.
    pub(crate) is_connected: bool,
    /// The report has to be written.
    pub(crate) is_changed: bool,
    /// The index has to be written to disk.
    pub(crate) is_index_changed: bool,
    pub(crate) counters: Counters,
}

/// Counters of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) confined: u64,
    pub(crate) refused: u64,
    pub(crate) opened: u64,
    pub(crate) too_late: u64,
    pub(crate) connections: u64,
    pub(crate) reports: u64,
    pub(crate) errors: u64,
    /// Longest time in microseconds that an answer took.
    pub(crate) slowest: u64,
}

impl State {
    /// Why the agent does not do its work.
    ///
    /// # Errors
    ///
    /// If it knows no profiles yet, or hears of no containers.
    pub(crate) fn health(&self) -> Result<(), String> {
        match (self.index.is_usable, self.is_connected) {
            (false, _) => Err("the API server has not listed the profiles yet".to_owned()),
            (true, false) => Err("the container runtime is not connected".to_owned()),
            (true, true) => Ok(()),
        }
    }

    /// Returns true if what the state says of profiles is all that there is, and is so now.
    pub(crate) fn can_report(&self) -> bool {
        self.index.is_complete && self.is_connected
    }

    /// Removes all that is known of a profile; true if it was known.
    pub(crate) fn forget(&mut self, key: &ObjectKey) -> bool {
        self.bodies.remove(key);
        self.failures.remove(key);
        self.filters.remove(key);
        self.index.delete(key)
    }

    /// Takes the body of a profile, which the API server has given.
    pub(crate) fn take_body(&mut self, key: &ObjectKey, body: Body) {
        self.bodies.insert(key.clone(), body);
        self.failures.remove(key);
        self.gave_up.clear();
    }

    /// The body of a profile, if it is the current one.
    pub(crate) fn body(&self, key: &ObjectKey) -> Option<&Body> {
        let entry = self.index.get(key)?;
        self.bodies.get(key).filter(|body| body.hash == entry.hash)
    }

    /// Names of the policy files that containers may need.
    pub(crate) fn policy_names(&self) -> BTreeSet<String> {
        let current = self
            .index
            .entries()
            .map(|entry| policy_name(&entry.key.namespace, &entry.key.name, &entry.hash));
        let created = self.expected.values().map(|expected| &expected.record);
        let used = self.records.values().chain(created);
        current.chain(used.map(Record::policy_name)).collect()
    }

    /// Profiles that running containers use, and whose body is not here.
    pub(crate) fn missing_bodies(&self) -> BTreeSet<ObjectKey> {
        let used = self.seen.values().filter_map(|seen| {
            let found = self.index.find(&seen.pod, &seen.name).ok()??;
            found.problem.is_none().then(|| found.key.clone())
        });
        used.filter(|key| self.body(key).is_none()).collect()
    }

    /// The state of each profile that a container of the node uses.
    pub(crate) fn profiles(&self) -> Vec<ProfileState> {
        let mut all: BTreeMap<ObjectKey, ProfileState> = BTreeMap::new();
        for (id, seen) in &self.seen {
            let entry = match self.index.find(&seen.pod, &seen.name) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(undecided) => {
                    add_undecided(&mut all, seen, &undecided);
                    continue;
                }
            };
            let failure = self.failures.get(&entry.key).or(entry.problem.as_ref());
            let state = all
                .entry(entry.key.clone())
                .or_insert_with(|| ProfileState {
                    namespace: entry.key.namespace.clone(),
                    name: entry.key.name.clone(),
                    hash: entry.hash.clone(),
                    failure: failure.cloned(),
                    ..ProfileState::default()
                });
            state.containers += 1;
            let mut reasons = Vec::new();
            match self.records.get(id) {
                None => reasons.push("it ran before the agent or the policy".to_owned()),
                Some(record)
                    if record.name != entry.key.name || record.namespace != entry.key.namespace =>
                {
                    reasons.push(format!("it runs with the profile {}", record.name));
                }
                Some(record) if record.hash != entry.hash => {
                    reasons.push("it runs with an earlier version of the policy".to_owned());
                }
                Some(record) => {
                    reasons.clone_from(&record.gaps);
                    add(&mut state.reasons, record.notes.clone());
                }
            }
            match reasons.is_empty() {
                true => state.enforced += 1,
                false => state.unprotected += 1,
            }
            add(&mut state.reasons, reasons);
        }
        all.into_values().collect()
    }
}

/// Counts a container of which it cannot be told which profile it has, for all that it may be.
fn add_undecided(all: &mut BTreeMap<ObjectKey, ProfileState>, seen: &Seen, undecided: &Undecided) {
    let keys = match undecided {
        Undecided::NoProfile(mark) => vec![ObjectKey {
            namespace: seen.pod.namespace.clone(),
            name: mark.clone(),
        }],
        Undecided::CutName { first, second } => vec![first.clone(), second.clone()],
    };
    for key in keys {
        let state = all.entry(key.clone()).or_insert_with(|| ProfileState {
            failure: Some(undecided.to_string()),
            namespace: key.namespace,
            name: key.name,
            ..ProfileState::default()
        });
        state.containers += 1;
        state.unprotected += 1;
    }
}

/// Maximum number of reasons of a profile in a report.
const MAX_REASONS: usize = 20;

fn add(all: &mut Vec<String>, more: Vec<String>) {
    for reason in more {
        if !all.contains(&reason) && all.len() < MAX_REASONS {
            all.push(reason);
        }
    }
}
