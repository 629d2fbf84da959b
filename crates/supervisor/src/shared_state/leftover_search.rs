//! Ids of calls that dead agents may hold and that the keeper must still look up.
//!
//! The ids are in the shared state, so that a killed keeper leaves them to the next one. Each entry
//! is the first id and a count: the lookup goes downwards, so that one store records its progress.

use super::SharedState;
use super::layout::{UNSWEPT_RANGES, UnsweptFields};

/// Ranges of ids to look up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftoverSearch<'a>(&'a [UnsweptFields; UNSWEPT_RANGES]);

/// A range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    entry: usize,
    /// The next id to look up, downwards.
    pub(crate) next: u64,
    /// Number of remaining ids.
    pub(crate) left: u64,
}

impl SharedState {
    pub(crate) fn unswept(&self) -> LeftoverSearch<'_> {
        LeftoverSearch(&self.unswept)
    }
}

impl LeftoverSearch<'_> {
    /// Adds the ids from `first` to `newest`, which are higher than all others. The operation is
    /// idempotent.
    pub(crate) fn add(&self, first: u64, newest: u64) {
        let left = |first: u64| newest.wrapping_sub(first).saturating_add(1);
        let in_use = |entry: &&UnsweptFields| entry.left.get() != 0;
        let same = |entry: &&UnsweptFields| in_use(entry) && entry.first.get() == first;
        if let Some(entry) = self.0.iter().find(same) {
            entry.left.set(left(first));
        } else if let Some(entry) = self.0.iter().find(|entry| !in_use(entry)) {
            // In this order: an entry is valid when its count is not 0.
            entry.first.set(first);
            entry.left.set(left(first));
        } else {
            // The newest of the other ranges is extended to here. Looking up an id twice finds
            // nothing the second time.
            let distance = |entry: &&UnsweptFields| first.wrapping_sub(entry.first.get());
            let nearest = self.0.iter().min_by_key(distance).unwrap_or(&self.0[0]);
            nearest.left.set(left(nearest.first.get()));
        }
    }

    /// Returns the range to look up now.
    pub(crate) fn next(&self) -> Option<Range> {
        self.0.iter().enumerate().find_map(|(entry, range)| {
            let (first, left) = (range.first.get(), range.left.get());
            (left > 0).then(|| Range {
                entry,
                next: first.wrapping_add(left - 1),
                left,
            })
        })
    }

    /// Records that `ids` of the range were looked up.
    pub(crate) fn looked_up(&self, range: Range, ids: u64) {
        self.0[range.entry].left.set(range.left.saturating_sub(ids));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next().is_none()
    }

    /// Removes all ranges, because no caller is left.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|entry| entry.left.set(0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    use super::*;

    /// Looks up ids in steps, with another process's shared state.
    fn sweep(shared_state: &SharedState, step: u64, steps: usize) -> Vec<u64> {
        let unswept = shared_state.unswept();
        let mut found = Vec::new();
        for _ in 0..steps {
            let Some(range) = unswept.next() else { break };
            let now = range.left.min(step);
            found.extend((0..now).map(|back| range.next.wrapping_sub(back)));
            unswept.looked_up(range, now);
        }
        found
    }

    #[test]
    fn what_a_keeper_has_not_looked_for_is_left_to_the_next_one() {
        let (shared_state, file) = SharedState::create().expect("memory");
        shared_state.unswept().add(u64::MAX - 4, 10);
        assert_eq!(sweep(&shared_state, 5, 1), [10, 9, 8, 7, 6]);
        let next = SharedState::open(file.as_fd()).expect("this layout");
        let rest = [
            5,
            4,
            3,
            2,
            1,
            0,
            u64::MAX,
            u64::MAX - 1,
            u64::MAX - 2,
            u64::MAX - 3,
        ];
        assert_eq!(sweep(&next, 5, 2), rest);
        assert_eq!(sweep(&next, 5, 9), [u64::MAX - 4]);
        assert!(next.unswept().is_empty() && shared_state.unswept().is_empty());
    }

    #[test]
    fn of_any_number_of_dead_agents_every_id_is_looked_for() {
        for agents in 1..3 * UNSWEPT_RANGES as u64 {
            let (shared_state, _file) = SharedState::create().expect("memory");
            for agent in 0..agents {
                shared_state.unswept().add(100 * agent, 100 * agent + 9);
                // A keeper that was killed before it noted that this agent is dealt with.
                shared_state.unswept().add(100 * agent, 100 * agent + 9);
            }
            let found: BTreeSet<_> = sweep(&shared_state, 7, 1000).into_iter().collect();
            let held = (0..agents).flat_map(|agent| 100 * agent..100 * agent + 10);
            assert!(held.into_iter().all(|id| found.contains(&id)), "{agents}");
            assert!(found.iter().all(|id| *id < 100 * agents), "{agents}");
        }
    }
}
