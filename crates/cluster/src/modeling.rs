//! The behaviour of a workload, merged over its pods, replicas and nodes.
//!
//! [`Modeling`] is a join: any order of reports, any repetition of them and any split over nodes gives the same model. Nodes
//! report what the containers of a profile have done so far; a report that is lost is made good by the next.
//!
//! Every part has a limit, because a node that was taken over reports what it likes. What exceeds a limit makes the model
//! incomplete, and the reason is part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kinds::{
    ArmorProfileModel, BehaviorItem, BehaviorReport, MAX_REASON, MAX_TEXT, ModelingRun, Recording,
};

/// Maximum number of single things of one workload.
pub const MAX_ITEMS: usize = 10_000;
/// Maximum length in bytes of a model's data as JSON: an object of the API server has 1.5 MiB.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of nodes of one workload.
pub const MAX_NODES: usize = 20_000;
/// Maximum number of reasons why a model is incomplete.
const MAX_REASONS: usize = 16;
/// What separates reasons in a condition. No reason has it.
const SEPARATOR: &str = "; ";
/// Reason of the condition of a model that lacks something.
pub(crate) const INCOMPLETE: &str = "Incomplete";
/// Condition of a model: whether it has all that the workload did.
pub(crate) const COMPLETE: &str = "Complete";

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeWatch {
    since: u64,
    until: u64,
    containers: u64,
    from_start: u64,
}

/// What a model that was written says of earlier observations: their nodes may be gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Earlier {
    containers: u64,
    from_start: u64,
    observed: u64,
}

/// The behaviour of a workload in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modeling {
    /// What was done, and when it was first known, in seconds since 1970.
    items: BTreeMap<BehaviorItem, u64>,
    /// What is known of each node.
    nodes: BTreeMap<String, NodeWatch>,
    earlier: Earlier,
    /// Why something is missing: those of nodes, and those of limits here.
    incomplete: BTreeSet<String>,
}

/// How far a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Containers that were observed.
    pub containers: u64,
    /// Of these, observed from their first program on.
    pub from_start: u64,
    /// Between the first observation and the last.
    pub observed: Duration,
    /// When something new was observed last, in seconds since 1970.
    pub newest: u64,
    /// Between the last thing that was new and the last observation.
    pub nothing_new_for: Duration,
}

impl Modeling {
    /// Adds what a node has seen.
    pub fn observe(&mut self, node: &str, report: &BehaviorReport) {
        let until = report.until.max(report.since);
        let watch = NodeWatch {
            since: report.since,
            until,
            containers: report.containers,
            from_start: report.from_start.min(report.containers),
        };
        let reasons = report.incomplete.iter();
        let mut new = Self {
            nodes: BTreeMap::from([(node.to_owned(), watch)]),
            incomplete: reasons
                .map(|reason| in_short(&format!("{node}: {reason}")))
                .collect(),
            ..Self::default()
        };
        new.take_items(&report.recorded, until);
        self.merge(new);
    }

    /// Adds what a model says that was written earlier.
    ///
    /// # Errors
    ///
    /// If its data are none of ours.
    pub fn adopt(&mut self, model: &ArmorProfileModel) -> Result<(), serde_json::Error> {
        let data = &model.data["dynamicResult"];
        let recording = match data.is_null() {
            true => Recording::default(),
            false => serde_json::from_value(data.clone())?,
        };
        // A model without a status is new, and gives no reason to be incomplete.
        let status = model.status.clone().unwrap_or_default();
        let reasons = status
            .conditions
            .iter()
            .filter(|one| (&*one.condition.kind, &*one.condition.reason) == (COMPLETE, INCOMPLETE));
        let reasons = reasons.flat_map(|one| one.condition.message.split(SEPARATOR));
        let mut new = Self {
            earlier: Earlier {
                containers: status.containers,
                from_start: status.from_start.min(status.containers),
                observed: status.observed_seconds,
            },
            incomplete: reasons.map(in_short).collect(),
            ..Self::default()
        };
        new.take_items(&recording, status.newest);
        self.merge(new);
        Ok(())
    }

    fn take_items(&mut self, recording: &Recording, at: u64) {
        for item in recording.items() {
            match is_short(&item) {
                true => drop(self.items.insert(item, at)),
                false => self.lack(format!("a name has more than {MAX_TEXT} bytes")),
            }
        }
    }

    fn lack(&mut self, reason: String) {
        self.incomplete.insert(reason);
    }

    /// Adds what another operator, or this one before, has merged.
    pub fn merge(&mut self, other: Self) {
        for (item, at) in other.items {
            let first = self.items.entry(item).or_insert(at);
            *first = at.min(*first);
        }
        for (node, new) in other.nodes {
            let known = self.nodes.entry(node).or_insert(new);
            *known = NodeWatch {
                since: known.since.min(new.since),
                until: known.until.max(new.until),
                containers: known.containers.max(new.containers),
                from_start: known.from_start.max(new.from_start),
            };
        }
        self.earlier = Earlier {
            containers: self.earlier.containers.max(other.earlier.containers),
            from_start: self.earlier.from_start.max(other.earlier.from_start),
            observed: self.earlier.observed.max(other.earlier.observed),
        };
        self.incomplete.extend(other.incomplete);
        // The least of all are kept, so that what is kept does not depend on the order: what is cut here is no less in the end.
        if self.items.len() > MAX_ITEMS {
            cut(&mut self.items, MAX_ITEMS);
            self.lack(format!("there are more than {MAX_ITEMS} single things"));
        }
        if self.nodes.len() > MAX_NODES {
            cut(&mut self.nodes, MAX_NODES);
            self.lack(format!("there are more than {MAX_NODES} nodes"));
        }
        while self.incomplete.len() > MAX_REASONS {
            self.incomplete.pop_last();
        }
    }

    /// All that was done, as far as it is known and has room in an object.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.data().0
    }

    /// All that was done, and whether that has room in an object. Without room, the least part of it that has.
    pub(crate) fn data(&self) -> (Recording, bool) {
        let mut count = self.items.len();
        loop {
            let recording: Recording = self.items.keys().take(count).collect();
            let text = serde_json::to_vec(&recording).expect("a recording is JSON");
            if text.len() <= MAX_BYTES {
                return (recording, count == self.items.len());
            }
            count /= 2;
        }
    }

    /// Why the model lacks something that the workload did.
    pub fn lacks(&self) -> impl Iterator<Item = &str> {
        self.incomplete.iter().map(String::as_str)
    }

    /// Why the model lacks something, as a message that [`Modeling::adopt`] reads; `None` if it lacks nothing.
    pub(crate) fn lacks_in_words(&self, has_room: bool) -> Option<String> {
        let room = format!("the data have more than {MAX_BYTES} bytes");
        let room = (!has_room).then_some(&*room);
        let reasons: BTreeSet<&str> = self.lacks().chain(room).collect();
        (!reasons.is_empty()).then(|| Vec::from_iter(reasons).join(SEPARATOR))
    }

    /// The nodes that have observed containers, and whether each has done so until the end of the run.
    pub fn nodes(&self, run: ModelingRun) -> impl Iterator<Item = (&str, bool)> {
        let nodes = self.nodes.iter();
        nodes.map(move |(node, watch)| (node.as_str(), watch.until >= run.end()))
    }

    /// How far the model is; `None` if nothing was observed. Times outside of the run are taken for its start or end: clocks of
    /// nodes differ, and a node may say what it likes.
    #[must_use]
    pub fn progress(&self, run: ModelingRun) -> Option<Progress> {
        let inside = |time: u64| time.clamp(run.start, run.end());
        let sum = |of: fn(&NodeWatch) -> u64| {
            let counts = self.nodes.values().map(of);
            counts.fold(0, u64::saturating_add)
        };
        let containers = self.earlier.containers.max(sum(|node| node.containers));
        if containers == 0 {
            return None;
        }
        let newest = inside(self.items.values().copied().max().unwrap_or(run.start));
        let since = self.nodes.values().map(|node| inside(node.since)).min();
        let until = self.nodes.values().map(|node| inside(node.until)).max();
        let observed = match (since, until) {
            (Some(since), Some(until)) => until - since,
            _ => 0,
        };
        let last = until.unwrap_or(newest);
        Some(Progress {
            containers,
            from_start: self.earlier.from_start.max(sum(|node| node.from_start)),
            observed: Duration::from_secs(self.earlier.observed.max(observed)),
            newest,
            nothing_new_for: Duration::from_secs(last.saturating_sub(newest)),
        })
    }
}

/// Keeps the first entries.
fn cut<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, count: usize) {
    if let Some(key) = map.keys().nth(count).cloned() {
        map.split_off(&key);
    }
}

fn is_short(item: &BehaviorItem) -> bool {
    let texts: [&str; 3] = match item {
        BehaviorItem::WatchedFiles | BehaviorItem::WatchedCalls => return true,
        BehaviorItem::Execution(text)
        | BehaviorItem::Capability(text)
        | BehaviorItem::Call(text) => [text, "", ""],
        BehaviorItem::File(path, permission) => [path, permission, ""],
        BehaviorItem::Socket(socket) => [&socket.domain, &socket.kind, &socket.protocol],
        BehaviorItem::Egress(ip, _) => [ip, "", ""],
    };
    texts.iter().all(|text| text.len() <= MAX_TEXT)
}

/// A reason as part of a condition: in one line, without the separator, and not too long.
fn in_short(reason: &str) -> String {
    let plain = reason.chars().map(|char| match char {
        ';' => ',',
        char if char.is_control() => ' ',
        char => char,
    });
    let mut text: String = plain.take(MAX_REASON).collect();
    while text.len() > MAX_REASON {
        text.pop();
    }
    text.trim().to_owned()
}
