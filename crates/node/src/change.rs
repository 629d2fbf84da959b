//! Policies that change while containers run: the kernel takes the new version in their place.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use kinds::ObjectKey;

use crate::agent::Agent;
use crate::index::Entry;

/// How often the kernel is asked to remove what it has of containers that have ended, and to take what it has refused.
const SWEEP: Duration = Duration::from_secs(10);

impl Agent {
    /// Keeps the policies of running containers current in the kernel, and removes what it has of containers that have ended,
    /// for as long as the program runs.
    pub(crate) fn keep_current(&self) {
        let mut sweep = Instant::now();
        loop {
            let left = sweep.saturating_duration_since(Instant::now());
            if left.is_zero() {
                sweep = Instant::now() + SWEEP;
                self.sweep();
            }
            self.wait_for_change(left);
            let outdated = self.state().outdated();
            for (key, containers) in outdated {
                if !self.has_refused(&key) {
                    self.change(&key, &containers);
                }
            }
        }
    }

    /// Waits until the policy of a container has changed, or until the time has passed.
    fn wait_for_change(&self, limit: Duration) {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, limit, |state| {
            let outdated = state.outdated();
            let is_refused = |key: &ObjectKey| {
                let hash = state.index.get(key).map(|entry| entry.hash);
                state.refusals.get(key).map(|(refused, _)| refused) == hash.as_ref()
            };
            outdated.keys().all(is_refused)
        });
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns true if the kernel has not taken the current version a moment ago.
    fn has_refused(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        let hash = state.index.get(key).map(|entry| entry.hash);
        state.refusals.get(key).map(|(refused, _)| refused) == hash.as_ref()
    }

    fn sweep(&self) {
        let removed = self.kernel.enforcer().map(|kernel| kernel.remove_ended());
        if let Some(Err(cause)) = removed {
            self.say(format!(
                "cannot remove ended containers from the kernel: {cause}"
            ));
        }
        let mut state = self.state();
        state.refusals.clear();
        state.retain_numbers();
    }

    /// Has the kernel take the current version of a policy in containers that were confined before.
    fn change(&self, key: &ObjectKey, containers: &[String]) {
        let state = self.state();
        let entry = state.index.get(key);
        let body = state.body(key).cloned();
        drop(state);
        let (Some(entry), Some(body)) = (entry, body) else {
            return;
        };
        let changed = self.filter(&entry, &body).and_then(|filter| {
            let policy = filter.kernel.as_ref();
            let policy = policy.ok_or("it has nothing for the kernel")?;
            let kernel = self.kernel.enforcer();
            let kernel = kernel.ok_or("the node has no such enforcer")?;
            kernel.change(&key.to_string(), policy)?;
            Ok(filter)
        });
        match changed {
            Ok(filter) => {
                let is_whole = filter.is_empty();
                self.note_change(&entry, containers, |record| {
                    record.gaps.clone_from(&filter.gaps);
                    record.notes.clone_from(&filter.notes);
                    is_whole
                });
            }
            Err(cause) => {
                self.say(format!(
                    "{key}: the kernel has not taken the policy for running containers: {cause}"
                ));
                let mut state = self.state();
                let refusal = (entry.hash.clone(), cause);
                state.refusals.insert(key.clone(), refusal);
                state.is_changed = true;
            }
        }
    }

    /// Notes which version containers have. Those with a filter keep it: their version stays the one before in reports.
    fn note_change(
        &self,
        entry: &Entry,
        containers: &[String],
        update: impl Fn(&mut crate::store::Record) -> bool,
    ) {
        let mut state = self.state();
        state.unconfirmed.remove(&entry.key);
        let mut changed = Vec::new();
        for id in containers {
            let Some(record) = state.records.get_mut(id) else {
                continue;
            };
            let Some(kernel) = &mut record.kernel else {
                continue;
            };
            kernel.hash.clone_from(&entry.hash);
            if !kernel.has_filter && update(record) {
                record.hash.clone_from(&entry.hash);
            }
            changed.push((id.clone(), record.clone()));
        }
        state.is_changed = true;
        drop(state);
        for (id, record) in changed {
            // A container that has ended meanwhile is removed by the next agent at the latest.
            if let Err(error) = self.store.write_record(&id, &record) {
                self.say(crate::chain(&error));
            }
        }
    }
}
