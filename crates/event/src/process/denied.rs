//! Calls that are withheld from a process and its descendants.

use std::sync::atomic::Ordering;

use super::denial::{Denial, DenialId};
use super::{Pid, Process, StartTime};

impl Process {
    /// Records that the process was not born to the workload: nobody saw what it did before.
    pub fn set_has_entered(&self) {
        self.has_entered.store(true, Ordering::Release);
    }

    /// Returns true if the process or an ancestor was not born to the workload.
    #[must_use]
    pub fn comes_from_outside(&self) -> bool {
        let mut has_entered = self.has_entered.load(Ordering::Acquire);
        let mut ancestor = self.parent();
        while let Some(process) = ancestor.filter(|_| !has_entered) {
            has_entered = process.has_entered.load(Ordering::Acquire);
            ancestor = process.parent();
        }
        has_entered
    }

    /// Withholds calls from the process and its descendants, in the place of what was withheld for the same reason before.
    pub fn deny(&self, denial: Denial) {
        self.state().denials.put(denial);
    }

    /// Leaves the process and its descendants out of a denial of an ancestor.
    pub fn spare(&self, denial: DenialId) {
        self.state().denials.spare(denial);
    }

    /// Returns true if this call fails: what is withheld from the process or an ancestor has it. Ancestors beyond a parent
    /// that is not certain do not count. `now_ns`: monotonic time.
    #[must_use]
    pub fn is_denied(&self, call: abi::Deniable, now_ns: u64) -> bool {
        self.is_hit(|denial| denial.calls.contains(&call) && !denial.is_over(now_ns))
    }

    /// Returns true if the denial of this name is in force for the process, by itself or an ancestor.
    #[must_use]
    pub fn has_denial(&self, id: DenialId, now_ns: u64) -> bool {
        self.is_hit(|denial| denial.id == id && !denial.is_over(now_ns))
    }

    fn is_hit(&self, is_sought: impl Fn(&Denial) -> bool) -> bool {
        let mut spared = Vec::new();
        let state = self.state();
        if state.denials.hit(&is_sought, &mut spared) {
            return true;
        }
        let mut ancestor = state.certain_parent();
        drop(state);
        while let Some(process) = ancestor {
            let state = process.state();
            if state.denials.hit(&is_sought, &mut spared) {
                return true;
            }
            let parent = state.certain_parent();
            drop(state);
            ancestor = parent;
        }
        false
    }

    /// Returns the number of generations from an ancestor to the process, if it is one by certain parents.
    #[must_use]
    pub fn generations_from(&self, ancestor: (Pid, StartTime)) -> Option<usize> {
        let mut next = self.state().certain_parent();
        let mut generations = 1;
        while let Some(process) = next {
            if (process.pid, process.start) == ancestor {
                return Some(generations);
            }
            generations += 1;
            next = process.state().certain_parent();
        }
        None
    }

    /// Puts the parent's parent in the place of the parent. What is withheld from the parent stays withheld, unless the parent
    /// was not certain.
    pub fn drop_parent(&self) {
        let Some(parent) = self.parent() else {
            return;
        };
        let (denials, above, is_likely) = {
            let state = parent.state();
            (
                state.denials.clone(),
                state.parent.clone(),
                state.has_likely_parent,
            )
        };
        let mut state = self.state();
        if !state.has_likely_parent {
            state.denials.inherit(&denials);
        }
        state.has_likely_parent |= is_likely;
        state.parent = above;
    }
}
