//! What the containers of one profile have done.

use std::collections::BTreeSet;

use kinds::{
    BehaviorItem, BehaviorReport, MAX_REASON, MAX_REASONS, MAX_TEXT, ModelingRun, ObjectKey,
    Recording,
};
use policy::Model;
use policy::model::WorkloadAction;

/// Maximum number of single things that a node records of a profile.
pub(super) const MAX_ITEMS: usize = 4000;
/// Maximum length in bytes of their names.
const MAX_NAMES: usize = 128 << 10;

/// What the containers of a profile have done.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) run: ModelingRun,
    pub(super) since: u64,
    pub(super) until: u64,
    pub(super) containers: u64,
    pub(super) from_start: u64,
    pub(super) model: Model,
    /// Upper bound of the length of all names of the model.
    pub(super) name_bytes: usize,
    pub(super) is_full: bool,
    pub(super) incomplete: BTreeSet<String>,
    /// What an agent before has recorded.
    pub(super) earlier: Option<BehaviorReport>,
}

impl Recorded {
    pub(super) fn new(run: ModelingRun, now: u64) -> Self {
        Self {
            run,
            since: now,
            until: now,
            containers: 0,
            from_start: 0,
            // Which capabilities are used is not observed, so all are listed.
            model: Model {
                had_capabilities: true,
                ..Model::default()
            },
            name_bytes: 0,
            is_full: false,
            incomplete: BTreeSet::new(),
            earlier: None,
        }
    }

    /// Returns true if the run has ended: what happens later is none of it.
    pub(super) fn has_ended(&self) -> bool {
        self.until >= self.run.end()
    }

    /// Returns true if something is new.
    pub(super) fn note(&mut self, action: &WorkloadAction) -> bool {
        if action.path().len() > MAX_TEXT {
            return self.lack(&format!("a name has more than {MAX_TEXT} bytes"));
        }
        if self.is_full {
            return false;
        }
        let before = self.model.item_count();
        self.model.note(action);
        let count = self.model.item_count();
        if count == before {
            return false;
        }
        self.name_bytes += action.path().len();
        if self.name_bytes > MAX_NAMES {
            // Many files of one folder have become one name.
            self.name_bytes = self.model.text_bytes();
        }
        self.is_full = count >= MAX_ITEMS || self.name_bytes > MAX_NAMES;
        if self.is_full {
            self.lack(&format!(
                "a node records at most {MAX_ITEMS} single things and {MAX_NAMES} bytes of names"
            ));
        }
        true
    }

    /// Notes why something is missing; true if that is new.
    pub(super) fn lack(&mut self, reason: &str) -> bool {
        let mut reason = reason.to_owned();
        while reason.len() > MAX_REASON {
            reason.pop();
        }
        let has_room = self.incomplete.len() < MAX_REASONS;
        has_room && self.incomplete.insert(reason)
    }

    pub(super) fn report(&self, key: &ObjectKey) -> BehaviorReport {
        let made = self.model.to_recorded(&key.name)["dynamicResult"].take();
        let made: Recording =
            serde_json::from_value(made).expect("a model has the form of a recording");
        let mut items: BTreeSet<BehaviorItem> = made.items();
        let mut incomplete = self.incomplete.clone();
        let (mut containers, mut from_start) = (self.containers, self.from_start);
        let mut since = self.since;
        if let Some(earlier) = &self.earlier {
            items.extend(earlier.recorded.items());
            incomplete.extend(earlier.incomplete.iter().cloned());
            // Those that still run are counted again.
            containers = containers.max(earlier.containers);
            from_start = from_start.max(earlier.from_start);
            since = since.min(earlier.since);
        }
        BehaviorReport {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            run: self.run.start,
            since,
            until: self.until.min(self.run.end()).max(since),
            containers,
            from_start,
            incomplete: incomplete.into_iter().take(MAX_REASONS).collect(),
            recorded: items.iter().collect(),
        }
    }
}
