//! Stopped trees, until they go on or have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::tree::Tree;

/// A stopped tree.
pub(crate) struct Frozen {
    pub(crate) tree: Tree,
    /// When it goes on.
    pub(crate) until: Option<Instant>,
    /// Number of the alert and the rule that have stopped it; see [`FrozenTrees::owner`].
    pub(crate) owner: u64,
}

/// How often stopped trees are looked at.
const TICK: Duration = Duration::from_millis(100);

/// All stopped trees.
#[derive(Default)]
pub(crate) struct FrozenTrees {
    trees: Mutex<Trees>,
    /// Notified when a tree is kept, and when there will be no more.
    changed: Condvar,
    owners: AtomicU64,
}

#[derive(Default)]
struct Trees {
    stopped: Vec<Frozen>,
    /// True if nobody keeps a tree any more.
    is_closed: bool,
}

impl FrozenTrees {
    fn trees(&self) -> MutexGuard<'_, Trees> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resumes trees whose time is up until the trees are closed. Sleeps while there is none.
    pub(crate) fn keep_time(&self) {
        loop {
            let trees = self.trees();
            let idle = |trees: &mut Trees| trees.stopped.is_empty() && !trees.is_closed;
            let trees = self.changed.wait_while(trees, idle);
            let trees = trees.unwrap_or_else(PoisonError::into_inner);
            let open = |trees: &mut Trees| !trees.is_closed;
            let waited = self.changed.wait_timeout_while(trees, TICK, open);
            let (trees, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if trees.is_closed {
                return;
            }
            drop(trees);
            self.resume_due();
        }
    }

    /// Ends [`FrozenTrees::keep_time`].
    pub(crate) fn close(&self) {
        self.trees().is_closed = true;
        self.changed.notify_all();
    }

    /// Returns a number that no other owner of trees has.
    pub(crate) fn owner(&self) -> u64 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps trees that were stopped, so that they go on when their time is up.
    pub(crate) fn keep(&self, trees: impl IntoIterator<Item = Frozen>) {
        self.trees().stopped.extend(trees);
        self.changed.notify_all();
    }

    /// Takes the trees of an owner.
    pub(crate) fn take(&self, owner: u64) -> Vec<Frozen> {
        let mut trees = self.trees();
        let stopped = &mut trees.stopped;
        stopped.extract_if(.., |tree| tree.owner == owner).collect()
    }

    /// Resumes trees whose time is up, and forgets those that have ended.
    fn resume_due(&self) {
        let now = Instant::now();
        self.trees().stopped.retain_mut(|frozen| {
            let is_due = frozen.until.is_some_and(|until| until <= now);
            if is_due {
                frozen.tree.resume();
            }
            !is_due && !frozen.tree.has_ended()
        });
    }

    /// Resumes trees that would go on later. Returns the number of processes that stay stopped: those that were killed
    /// meanwhile do not, though the time keeper may not have forgotten them yet.
    pub(crate) fn end(&self) -> usize {
        let mut left = 0;
        for mut frozen in self.trees().stopped.drain(..) {
            match frozen.until {
                Some(_) => {
                    frozen.tree.resume();
                }
                None => left += frozen.tree.alive(),
            }
        }
        left
    }
}
