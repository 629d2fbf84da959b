//! What the report says of the containers of each profile.

use std::collections::BTreeMap;

use kinds::{ObjectKey, ProfileState};

use crate::index::{Entry, Undecided};
use crate::late::CHECKED;
use crate::state::{Seen, State};

impl State {
    /// The state of each profile that a container of the node uses.
    pub(crate) fn profiles(&self) -> Vec<ProfileState> {
        let mut all: BTreeMap<ObjectKey, ProfileState> = BTreeMap::new();
        for (id, seen) in &self.seen {
            let entry = match self.find_running(seen) {
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
            if let Some(run) = entry.modeling {
                self.add_modeled(state, id, run);
                continue;
            }
            let Standing {
                mut reasons,
                notes,
                is_late,
            } = self.standing(id, &entry);
            add(&mut state.reasons, notes);
            match (reasons.is_empty(), is_late) {
                (true, false) => state.enforced += 1,
                (true, true) => {
                    state.late += 1;
                    reasons.push(CHECKED.to_owned());
                }
                (false, _) => state.unprotected += 1,
            }
            add(&mut state.reasons, reasons);
        }
        all.into_values().collect()
    }

    /// What is known of a container that has a profile.
    fn standing(&self, id: &str, entry: &Entry) -> Standing {
        let mut found = Standing::default();
        match self.records.get(id) {
            _ if self.opened_late.contains_key(id) => {
                let reason = self.opened_late.get(id);
                found
                    .reasons
                    .extend(reason.map(|&reason| reason.to_owned()));
            }
            None => found.reasons.push(match self.opened.get(id) {
                Some(cause) => cause.clone(),
                None => "it ran before the agent or the policy".to_owned(),
            }),
            Some(record)
                if record.name != entry.key.name || record.namespace != entry.key.namespace =>
            {
                let reason = format!("it runs with the profile {}", record.name);
                found.reasons.push(reason);
            }
            Some(record) if record.hash != entry.hash => {
                let reason = "it runs with an earlier version of the policy".to_owned();
                found.reasons.push(reason);
                found.reasons.extend(self.foreign_note(record));
                if let Some((hash, cause)) = self.refusals.get(&entry.key)
                    && *hash == entry.hash
                {
                    let reason = format!("the kernel has not taken the policy: {cause}");
                    found.reasons.push(reason);
                }
            }
            Some(record) => {
                found.reasons.clone_from(&record.gaps);
                found.notes.clone_from(&record.notes);
                found.notes.extend(self.foreign_note(record));
                found.is_late = record.is_late;
            }
        }
        found
    }
}

/// What is known of a container that has a profile.
#[derive(Default)]
struct Standing {
    /// Why it is not confined as the profile says.
    reasons: Vec<String>,
    /// What a reader of the report has to know besides.
    notes: Vec<String>,
    /// That it is confined was found only after it had begun.
    is_late: bool,
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

pub(crate) fn add(all: &mut Vec<String>, more: Vec<String>) {
    for reason in more {
        if !all.contains(&reason) && all.len() < MAX_REASONS {
            all.push(reason);
        }
    }
}
