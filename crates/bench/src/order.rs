//! The order of samples within a round.

use stats::Rng;

/// One position in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Index of the workload in the plan.
    pub(crate) workload: usize,
    /// Index of the subject in [`crate::plan::Plan::all_subjects`].
    pub(crate) subject: usize,
}

/// Draws rounds. Every second round mirrors the one before (ABBA), so that over two rounds each subject has the
/// same mean position and a steady drift of the host cancels out.
pub(crate) struct Schedule {
    rng: Rng,
    workloads: usize,
    subjects: usize,
    mirror: Option<Vec<Slot>>,
}

impl Schedule {
    pub(crate) fn new(workloads: usize, subjects: usize, seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            workloads,
            subjects,
            mirror: None,
        }
    }

    /// Draws the next round. All subjects of one workload are adjacent, close in time.
    pub(crate) fn next_round(&mut self) -> Vec<Slot> {
        if let Some(mut round) = self.mirror.take() {
            round.reverse();
            return round;
        }
        let mut workloads: Vec<usize> = (0..self.workloads).collect();
        self.rng.shuffle(&mut workloads);
        let mut round = Vec::with_capacity(self.workloads * self.subjects);
        for workload in workloads {
            let mut subjects: Vec<usize> = (0..self.subjects).collect();
            self.rng.shuffle(&mut subjects);
            round.extend(
                subjects
                    .into_iter()
                    .map(|subject| Slot { workload, subject }),
            );
        }
        self.mirror = Some(round.clone());
        round
    }

    /// Draws the seed of one sample.
    pub(crate) fn sample_seed(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_round_holds_every_pair_once() {
        let mut schedule = Schedule::new(3, 4, 5);
        for _ in 0..6 {
            let round = schedule.next_round();
            let distinct: BTreeSet<_> = round.iter().map(|s| (s.workload, s.subject)).collect();
            assert_eq!((round.len(), distinct.len()), (12, 12));
            assert!(
                round
                    .chunks(4)
                    .all(|c| c.iter().all(|s| s.workload == c[0].workload))
            );
        }
    }

    #[test]
    fn a_round_is_mirrored_by_the_next_and_pairs_of_rounds_differ() {
        let mut schedule = Schedule::new(2, 5, 6);
        let first = schedule.next_round();
        let mut second = schedule.next_round();
        second.reverse();
        assert_eq!(first, second);
        assert_ne!(first, schedule.next_round());
    }

    #[test]
    fn the_seed_decides_the_order() {
        let order = |seed| Schedule::new(4, 4, seed).next_round();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
