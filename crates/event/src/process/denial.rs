//! Calls that are withheld from running processes.

use abi::Deniable;

use super::{Pid, StartTime};

/// Names a denial. A later one of the same name replaces the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenialId(pub u64);

/// Calls of a process and its descendants, those to come included, that fail with EPERM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Its name.
    pub id: DenialId,
    /// What is withheld.
    pub calls: Vec<Deniable>,
    /// Monotonic time at which it ends, in nanoseconds; `None` for never.
    pub until_ns: Option<u64>,
}

impl Denial {
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.until_ns.is_some_and(|until| now_ns >= until)
    }
}

/// Whoever can withhold calls from processes.
pub trait ProcessDenier: Send + Sync {
    /// Withholds calls from a process, which may just have ended, and its descendants. Returns false if the process is none
    /// of those that it sees.
    ///
    /// # Errors
    ///
    /// Why no call can be withheld from those.
    fn deny(&self, process: (Pid, StartTime), denial: Denial) -> Result<bool, String>;

    /// Leaves a process and its descendants out of a denial of an ancestor. Returns false as above.
    fn spare(&self, process: (Pid, StartTime), denial: DenialId) -> bool;

    /// Returns whether a denial is in force for a process, by itself or an ancestor.
    fn is_denied(&self, process: (Pid, StartTime), denial: DenialId) -> bool;

    /// Returns the descendants of a process that it has seen and for which a denial is in force, parents first.
    fn denied_descendants(
        &self,
        process: (Pid, StartTime),
        denial: DenialId,
    ) -> Vec<(Pid, StartTime)>;

    /// Returns false once it sees no process any more.
    fn is_alive(&self) -> bool;
}

/// What is withheld from one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Denials {
    /// One for each name.
    in_force: Vec<Denial>,
    /// Denials of ancestors that leave the process and its descendants out.
    spared: Vec<DenialId>,
}

impl Denials {
    pub(crate) fn put(&mut self, denial: Denial) {
        self.in_force.retain(|known| known.id != denial.id);
        self.in_force.push(denial);
    }

    pub(crate) fn spare(&mut self, denial: DenialId) {
        if !self.spared.contains(&denial) {
            self.spared.push(denial);
        }
    }

    /// Returns true if one of them is looked for and not left out. `spared` are denials that leave the descendants between
    /// out; adds those of this process.
    pub(crate) fn hit(
        &self,
        is_sought: &impl Fn(&Denial) -> bool,
        spared: &mut Vec<DenialId>,
    ) -> bool {
        let mut hits = self.in_force.iter().filter(|denial| is_sought(denial));
        if hits.any(|denial| !spared.contains(&denial.id)) {
            return true;
        }
        spared.extend_from_slice(&self.spared);
        false
    }

    /// Adds those of a parent, unless they are left out.
    pub(crate) fn inherit(&mut self, parent: &Self) {
        for denial in &parent.in_force {
            let is_known = self.in_force.iter().any(|known| known.id == denial.id);
            if !is_known && !self.spared.contains(&denial.id) {
                self.in_force.push(denial.clone());
            }
        }
        for id in &parent.spared {
            self.spare(*id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Comm, Image, Process};

    fn child(pid: i32, parent: Option<&Arc<Process>>) -> Arc<Process> {
        let (image, comm) = (Arc::default(), Comm::new(b"sh"));
        let parent = parent.cloned();
        Arc::new(Process::new(
            Pid(pid),
            StartTime(0),
            0,
            parent,
            image as Arc<Image>,
            comm,
        ))
    }

    fn denial(number: u64) -> Denial {
        Denial {
            id: DenialId(number),
            calls: vec![Deniable::Exec],
            until_ns: None,
        }
    }

    #[test]
    fn descendants_are_hit_and_spared_ones_with_their_children_are_not() {
        let above = child(1, None);
        let root = child(2, Some(&above));
        let hit = child(3, Some(&root));
        let spared = child(4, Some(&root));
        let below = child(5, Some(&spared));
        let twin = child(6, Some(&above));
        let denied = |process: &Arc<Process>| process.is_denied(Deniable::Exec, 0);
        root.deny(denial(1));
        assert!(denied(&root) && denied(&hit) && denied(&spared) && denied(&below));
        spared.spare(DenialId(1));
        assert!(denied(&root) && denied(&hit));
        assert!(hit.has_denial(DenialId(1), 0) && !hit.has_denial(DenialId(2), 0));
        assert!(!below.has_denial(DenialId(1), 0));
        for other in [&above, &spared, &below, &twin] {
            assert!(!denied(other), "{}", other.pid.0);
        }
        assert!(!root.is_denied(Deniable::Connect, 0));
        // Another denial does not spare it.
        root.deny(denial(2));
        assert!(denied(&spared) && denied(&below) && !denied(&twin));
    }

    #[test]
    fn a_denial_ends_in_time() {
        let root = child(1, None);
        let below = child(2, Some(&root));
        root.deny(Denial {
            until_ns: Some(10),
            ..denial(1)
        });
        assert!(below.is_denied(Deniable::Exec, 9));
        assert!(!below.is_denied(Deniable::Exec, 10));
        assert!(below.has_denial(DenialId(1), 9));
        assert!(!below.has_denial(DenialId(1), 10));
    }

    #[test]
    fn a_likely_parent_withholds_nothing_and_a_dropped_ancestor_still_does() {
        let root = child(1, None);
        root.deny(denial(1));
        let guessed = child(2, Some(&root));
        guessed.set_has_likely_parent();
        assert!(!guessed.is_denied(Deniable::Exec, 0));
        let below = child(3, Some(&root));
        below.drop_parent();
        assert!(below.parent().is_none());
        assert!(below.is_denied(Deniable::Exec, 0));
    }

    #[test]
    fn an_ancestor_that_is_dropped_hides_no_guess() {
        let root = child(1, None);
        root.deny(denial(1));
        // The guess is above the one that is dropped.
        let guessed = child(2, Some(&root));
        guessed.set_has_likely_parent();
        let below = child(3, Some(&guessed));
        below.drop_parent();
        assert!(Arc::ptr_eq(&below.parent().expect("the next"), &root));
        assert!(!below.is_denied(Deniable::Exec, 0));
        // The guess is the one to the ancestor that is dropped.
        let guessed = child(4, Some(&root));
        guessed.set_has_likely_parent();
        guessed.drop_parent();
        assert!(!guessed.is_denied(Deniable::Exec, 0));
    }
}
