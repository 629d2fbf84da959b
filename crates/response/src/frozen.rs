//! Stopped trees, until they go on or have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::tree::Tree;

/// A stopped tree.
pub(crate) struct Frozen {
    pub(crate) tree: Tree,
    /// When it goes on.
    pub(crate) until: Option<Instant>,
    /// Number of the alert and the rule that have stopped it; see [`FrozenTrees::owner`].
    pub(crate) owner: u64,
}

/// All stopped trees.
#[derive(Default)]
pub(crate) struct FrozenTrees {
    trees: Mutex<Vec<Frozen>>,
    owners: AtomicU64,
}

impl FrozenTrees {
    fn trees(&self) -> MutexGuard<'_, Vec<Frozen>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other owner of trees has.
    pub(crate) fn owner(&self) -> u64 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps trees that were stopped, so that they go on when their time is up.
    pub(crate) fn keep(&self, trees: impl IntoIterator<Item = Frozen>) {
        self.trees().extend(trees);
    }

    /// Takes the trees of an owner.
    pub(crate) fn take(&self, owner: u64) -> Vec<Frozen> {
        let mut trees = self.trees();
        trees.extract_if(.., |tree| tree.owner == owner).collect()
    }

    /// Resumes trees whose time is up, and forgets those that have ended.
    pub(crate) fn resume_due(&self) {
        let now = Instant::now();
        self.trees().retain_mut(|frozen| {
            let is_due = frozen.until.is_some_and(|until| until <= now);
            if is_due {
                frozen.tree.resume();
            }
            !is_due && !frozen.tree.has_ended()
        });
    }

    /// Resumes trees that would go on later. Returns the number of processes that stay stopped.
    pub(crate) fn end(&self) -> usize {
        let mut left = 0;
        for mut frozen in self.trees().drain(..) {
            match frozen.until {
                Some(_) => {
                    frozen.tree.resume();
                }
                None => left += frozen.tree.pids().len(),
            }
        }
        left
    }
}
