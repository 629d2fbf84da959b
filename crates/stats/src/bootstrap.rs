//! Bootstrap confidence intervals.

use crate::rng::Rng;
use crate::sample::{Pairs, median_of_sorted, quantile_of_sorted};

/// An estimate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Estimate from the unresampled data.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Resamples drawn for an interval. The ends of a 95 % interval are then the 125th value from either side,
/// which repeats to about a tenth of the interval's width between seeds.
const RESAMPLES: usize = 5_000;

/// Computes the percentile interval of any statistic: `resampled` draws one resample with the generator and
/// returns its statistic.
pub fn bootstrap(
    estimate: f64,
    confidence: f64,
    seed: u64,
    mut resampled: impl FnMut(&mut Rng) -> f64,
) -> Interval {
    let mut rng = Rng::new(seed);
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| resampled(&mut rng)).collect();
    values.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Interval {
        estimate,
        low: quantile_of_sorted(&values, tail),
        high: quantile_of_sorted(&values, 1.0 - tail),
    }
}

/// Computes the ratio median(candidate) / median(baseline) with its interval.
///
/// Whole rounds are drawn, not single samples: a disturbance of a round affects both of its members, and
/// drawing them together keeps that in the interval.
pub fn ratio_of_medians(pairs: &Pairs, confidence: f64, seed: u64) -> Interval {
    let rounds = pairs.as_slice();
    let mut drawn = Resample::with_capacity(rounds.len());
    let estimate = drawn.ratio(rounds.iter().copied());
    bootstrap(estimate, confidence, seed, |rng| {
        drawn.ratio((0..rounds.len()).map(|_| rounds[rng.below(rounds.len())]))
    })
}

/// Computes the geometric mean of the ratios of medians of several tests, with its interval.
///
/// Every test has rounds of its own; in each resample each test draws from its rounds.
///
/// # Panics
///
/// Panics if there is no test.
pub fn mean_of_ratios(tests: &[Pairs], confidence: f64, seed: u64) -> Interval {
    assert!(!tests.is_empty(), "a mean needs a test");
    let most = tests.iter().map(Pairs::len).max().unwrap_or(0);
    let mut drawn = Resample::with_capacity(most);
    let mean = |logarithms: f64| (logarithms / tests.len() as f64).exp();
    let estimate = mean(
        tests
            .iter()
            .map(|test| drawn.ratio(test.as_slice().iter().copied()).ln())
            .sum(),
    );
    bootstrap(estimate, confidence, seed, |rng| {
        let mut sum = 0.0;
        for test in tests {
            let rounds = test.as_slice();
            let resample = (0..rounds.len()).map(|_| rounds[rng.below(rounds.len())]);
            sum += drawn.ratio(resample).ln();
        }
        mean(sum)
    })
}

/// Two buffers that are reused for every resample.
struct Resample {
    baseline: Vec<f64>,
    candidate: Vec<f64>,
}

impl Resample {
    fn with_capacity(rounds: usize) -> Self {
        Self {
            baseline: Vec::with_capacity(rounds),
            candidate: Vec::with_capacity(rounds),
        }
    }

    fn ratio(&mut self, rounds: impl Iterator<Item = (f64, f64)>) -> f64 {
        self.baseline.clear();
        self.candidate.clear();
        for (baseline, candidate) in rounds {
            self.baseline.push(baseline);
            self.candidate.push(candidate);
        }
        self.baseline.sort_unstable_by(f64::total_cmp);
        self.candidate.sort_unstable_by(f64::total_cmp);
        median_of_sorted(&self.candidate) / median_of_sorted(&self.baseline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skewed times as on a shared machine: a floor, an exponential tail, and a disturbance that
    /// both members of a round share.
    fn rounds(rng: &mut Rng, count: usize, factor: f64) -> Pairs {
        let pairs: Vec<(f64, f64)> = (0..count)
            .map(|_| {
                let shared = 1.0 + 0.3 * rng.unit();
                let mut time = || shared * (100.0 - 10.0 * (1.0 - rng.unit()).ln());
                (time(), factor * time())
            })
            .collect();
        Pairs::new(pairs).unwrap()
    }

    /// 95 % of the intervals must hold the true ratio. 400 trials, which slow tests make, have a standard error of
    /// 1.1 %, 100 have one of 2.2 %; the percentile interval of a median is known to be a little wide at small counts.
    #[test]
    fn interval_covers_the_true_ratio_as_often_as_it_says() {
        let mut rng = Rng::new(20);
        let trials = if crate::slow() { 400 } else { 100 };
        let covered = (0..trials)
            .filter(|trial| {
                let interval = ratio_of_medians(&rounds(&mut rng, 15, 1.3), 0.95, *trial);
                interval.low <= 1.3 && 1.3 <= interval.high
            })
            .count();
        let coverage = covered as f64 / trials as f64;
        assert!((0.92..=0.99).contains(&coverage), "{coverage}");
    }

    #[test]
    fn interval_narrows_with_more_rounds() {
        let mut rng = Rng::new(3);
        let width = |interval: Interval| interval.high - interval.low;
        let few = width(ratio_of_medians(&rounds(&mut rng, 10, 1.0), 0.95, 1));
        let many = width(ratio_of_medians(&rounds(&mut rng, 160, 1.0), 0.95, 1));
        assert!(many < few / 2.0, "{few} {many}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let pairs = rounds(&mut Rng::new(4), 12, 1.1);
        assert_eq!(
            ratio_of_medians(&pairs, 0.95, 7),
            ratio_of_medians(&pairs, 0.95, 7)
        );
        assert_ne!(
            ratio_of_medians(&pairs, 0.95, 7),
            ratio_of_medians(&pairs, 0.95, 8)
        );
    }

    #[test]
    fn the_mean_of_ratios_is_geometric_and_turns_with_the_sides() {
        let twice = Pairs::new([(1.0, 2.0), (2.0, 4.0)]).unwrap();
        let eightfold = Pairs::new([(1.0, 8.0)]).unwrap();
        let tests = [twice, eightfold];
        let mean = mean_of_ratios(&tests, 0.95, 1);
        assert!((mean.estimate - 4.0).abs() < 1e-12);
        assert!(mean.low <= 4.0 && mean.high >= 4.0);
        let turned: Vec<Pairs> = tests
            .iter()
            .map(|test| {
                let turned: Vec<_> = test.as_slice().iter().map(|(a, b)| (*b, *a)).collect();
                Pairs::new(turned).unwrap()
            })
            .collect();
        let turned = mean_of_ratios(&turned, 0.95, 1);
        assert!((turned.estimate * mean.estimate - 1.0).abs() < 1e-12);
    }

    /// The mean of many tests is known better than each of them, and covers the truth.
    #[test]
    fn the_interval_of_a_mean_covers_the_true_mean() {
        let mut rng = Rng::new(21);
        let trials = if crate::slow() { 60 } else { 20 };
        let covered = (0..trials)
            .filter(|trial| {
                let tests: Vec<Pairs> = (0..3).map(|_| rounds(&mut rng, 10, 1.3)).collect();
                let interval = mean_of_ratios(&tests, 0.95, *trial);
                interval.low <= 1.3 && 1.3 <= interval.high
            })
            .count();
        assert!(
            covered as f64 >= 0.9 * trials as f64,
            "{covered} of {trials}"
        );
    }

    #[test]
    fn the_estimate_is_the_plain_ratio_of_medians() {
        let pairs = Pairs::new([(1.0, 2.0), (2.0, 4.0), (3.0, 9.0)]).unwrap();
        let interval = ratio_of_medians(&pairs, 0.95, 1);
        assert_eq!(interval.estimate, 2.0);
        assert!(interval.low <= 2.0 && interval.high >= 2.0);
    }
}
