//! The behaviour of a workload, merged over its pods and nodes.
//!
//! [`Modeling`] is a join: any order of observations, and any repetition of them, gives the same model. Agents report what
//! a container has done so far; a report that is lost is made good by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kinds::crd::{VARMOR_GROUP, VARMOR_VERSION};
use kinds::{BehaviorItem, Recording};
use serde_json::{Value, json};

/// Maximum number of single things of one workload: an ArmorProfileModel with more does not fit into an object.
pub const MAX_ITEMS: usize = 10_000;

/// What an agent has seen of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The node.
    pub node: String,
    /// Id of the container.
    pub container: String,
    /// When the agent began to watch the container, in seconds since 1970.
    pub began: u64,
    /// Until when it has watched.
    pub until: u64,
    /// What the container did between them.
    pub recording: Recording,
}

/// The behaviour of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modeling {
    /// What was done, and when it was first known.
    items: BTreeMap<BehaviorItem, u64>,
    /// By node and container: from when to when it was watched.
    watched: BTreeMap<(String, String), (u64, u64)>,
    /// There were more than [`MAX_ITEMS`] items; those that were known first are kept.
    is_cut: bool,
}

/// How far a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Containers that were watched.
    pub containers: usize,
    /// Nodes that have reported.
    pub nodes: BTreeSet<String>,
    /// From the first observation to the last.
    pub watched: Duration,
    /// From the last thing that was new to the last observation.
    pub nothing_new_for: Duration,
    /// Some behaviour is left out, because there is more than [`MAX_ITEMS`].
    pub is_cut: bool,
}

impl Modeling {
    /// Adds what an agent has seen.
    pub fn observe(&mut self, observation: &Observation) {
        let key = (observation.node.clone(), observation.container.clone());
        let new = (observation.began, observation.until.max(observation.began));
        let items = observation.recording.items().into_iter();
        self.merge(Self {
            items: items.map(|item| (item, new.1)).collect(),
            watched: BTreeMap::from([(key, new)]),
            is_cut: false,
        });
    }

    /// Adds what another operator, or this one before, has merged.
    pub fn merge(&mut self, other: Self) {
        for (item, at) in other.items {
            let first = self.items.entry(item).or_insert(at);
            *first = at.min(*first);
        }
        for (container, (began, until)) in other.watched {
            let known = self.watched.entry(container).or_insert((began, until));
            *known = (began.min(known.0), until.max(known.1));
        }
        self.is_cut |= other.is_cut || self.items.len() > MAX_ITEMS;
        if self.items.len() > MAX_ITEMS {
            self.cut();
        }
    }

    /// Keeps the items that were known first. What is cut here is cut by every order of merges: it is known no earlier elsewhere,
    /// or is added again by the merge that knows better.
    fn cut(&mut self) {
        let mut items: Vec<_> = std::mem::take(&mut self.items)
            .into_iter()
            .map(|(item, at)| (at, item))
            .collect();
        items.sort_unstable();
        items.truncate(MAX_ITEMS);
        self.items = items.into_iter().map(|(at, item)| (item, at)).collect();
    }

    /// All that was done. If it is too much, what was known first.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.items.keys().collect()
    }

    /// How far the model is; `None` if nobody has reported.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        let began = self.watched.values().map(|(began, _)| *began).min()?;
        let until = self.watched.values().map(|(_, until)| *until).max()?;
        let newest = self.items.values().copied().max().unwrap_or(began);
        Some(Progress {
            containers: self.watched.len(),
            nodes: self.watched.keys().map(|(node, _)| node.clone()).collect(),
            watched: Duration::from_secs(until - began),
            nothing_new_for: Duration::from_secs(until.saturating_sub(newest)),
            is_cut: self.is_cut,
        })
    }

    /// The ArmorProfileModel of the profile `name`. `nodes` are those with containers of the workload, of which each is to
    /// have reported. It is ready when they have, the time `duration` has passed, and nothing is left out.
    #[must_use]
    pub fn object(
        &self,
        (namespace, name): (&str, &str),
        nodes: &BTreeSet<String>,
        duration: Duration,
    ) -> Value {
        let progress = self.progress();
        let reported = progress.as_ref();
        let reported = reported.map_or(0, |progress| progress.nodes.intersection(nodes).count());
        let is_over = |progress: &Progress| progress.watched >= duration && !progress.is_cut;
        json!({
            "apiVersion": format!("{VARMOR_GROUP}/{VARMOR_VERSION}"),
            "kind": "ArmorProfileModel",
            "metadata": { "name": name, "namespace": namespace },
            "storageType": "CRDInternal",
            "data": { "dynamicResult": self.recording() },
            "status": {
                "desiredNumber": nodes.len(),
                "completedNumber": reported,
                "ready": reported == nodes.len() && progress.as_ref().is_some_and(is_over),
            },
        })
    }
}
