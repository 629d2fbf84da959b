//! Rank-based comparison of two samples.

use crate::normal::upper_tail;
use crate::sample::{Sample, median_of_sorted};

/// Returns the shift from `baseline` to `candidate`: the median of all pairwise differences, in the unit of
/// the data. Negative if the candidate's values are smaller.
pub fn hodges_lehmann(baseline: &Sample, candidate: &Sample) -> f64 {
    let mut differences: Vec<f64> = candidate
        .values()
        .iter()
        .flat_map(|y| baseline.values().iter().map(move |x| y - x))
        .collect();
    differences.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&differences)
}

/// The result of [`mann_whitney`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MannWhitney {
    /// Number of pairs in which the candidate is larger than the baseline; a tie counts one half.
    pub u: f64,
    /// Distance of `u` from its expectation under equal distributions, in standard deviations, with
    /// continuity correction.
    pub z: f64,
    /// Two-sided probability of a `z` at least this far from 0 under equal distributions.
    pub p: f64,
}

/// Runs the Mann-Whitney (Wilcoxon rank sum) test by normal approximation, corrected for ties.
///
/// The approximation is good from about eight values on each side; with fewer it errs on the cautious side
/// for the levels used here because of the continuity correction.
pub fn mann_whitney(baseline: &Sample, candidate: &Sample) -> MannWhitney {
    let (m, n) = (baseline.len() as f64, candidate.len() as f64);
    let u: f64 = candidate
        .values()
        .iter()
        .map(|y| wins(*y, baseline.values()))
        .sum();
    let distance = u - m * n / 2.0;
    let deviation = variance(baseline, candidate).sqrt();
    if deviation == 0.0 {
        // All values are equal: there is no evidence of a difference.
        return MannWhitney { u, z: 0.0, p: 1.0 };
    }
    let corrected = (distance.abs() - 0.5).max(0.0).copysign(distance);
    let z = corrected / deviation;
    MannWhitney {
        u,
        z,
        p: (2.0 * upper_tail(z.abs())).min(1.0),
    }
}

/// Counts the sorted `others` that are below `value`; a tie counts one half.
fn wins(value: f64, others: &[f64]) -> f64 {
    let below = others.partition_point(|other| *other < value);
    let through = others.partition_point(|other| *other <= value);
    f64::midpoint(below as f64, through as f64)
}

/// Returns the variance of U under equal distributions, reduced by the tie correction.
fn variance(baseline: &Sample, candidate: &Sample) -> f64 {
    let (m, n) = (baseline.len() as f64, candidate.len() as f64);
    let total = m + n;
    let mut all = [baseline.values(), candidate.values()].concat();
    all.sort_unstable_by(f64::total_cmp);
    let ties: f64 = all
        .chunk_by(|a, b| a == b)
        .map(|tied| {
            let t = tied.len() as f64;
            t * t * t - t
        })
        .sum();
    m * n / 12.0 * ((total + 1.0) - ties / (total * (total - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values).unwrap()
    }

    /// Permeability of human placental membranes: Hollander and Wolfe, "Nonparametric Statistical
    /// Methods" (1973), page 69, the example that R prints for `wilcox.test`: W = 35, shift 0.305.
    fn placenta() -> (Sample, Sample) {
        let at_term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        (sample(&early), sample(&at_term))
    }

    #[test]
    fn hollander_and_wolfe_example() {
        let (early, at_term) = placenta();
        let test = mann_whitney(&early, &at_term);
        assert_eq!(test.u, 35.0);
        // Their large-sample z has no continuity correction: 10 / 8.165 = 1.2247.
        let uncorrected = (test.u - 25.0) / variance(&early, &at_term).sqrt();
        assert!((uncorrected - 1.224_744_871).abs() < 1e-9);
        assert!((upper_tail(uncorrected) - 0.110_335_68).abs() < 1e-7);
        assert!((hodges_lehmann(&early, &at_term) - 0.305).abs() < 1e-9);
    }

    /// Ages at diagnosis of diabetes, the worked example in SciPy's manual of `mannwhitneyu`:
    /// U = 17, p = 0.11134688653 by the normal approximation.
    #[test]
    fn scipy_manual_example() {
        let (males, females) = (
            sample(&[19., 22., 16., 29., 24.]),
            sample(&[20., 11., 17., 12.]),
        );
        let test = mann_whitney(&females, &males);
        assert_eq!(test.u, 17.0);
        assert!((test.p - 0.111_346_886_53).abs() < 1e-10, "{}", test.p);
        let swapped = mann_whitney(&males, &females);
        assert_eq!((swapped.u, swapped.z, swapped.p), (3.0, -test.z, test.p));
    }

    /// The tie-corrected variance is the true variance over all ways to split the values.
    #[test]
    fn tie_correction_equals_full_enumeration() {
        let values = [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0];
        let mut all_u = Vec::new();
        for chosen in 0_u32..1 << values.len() {
            if chosen.count_ones() != 3 {
                continue;
            }
            let (inside, outside): (Vec<_>, Vec<_>) = values
                .iter()
                .enumerate()
                .partition(|(index, _)| chosen >> index & 1 == 1);
            let strip = |side: Vec<(usize, &f64)>| -> Vec<f64> {
                side.into_iter().map(|(_, value)| *value).collect()
            };
            all_u.push(mann_whitney(&sample(&strip(outside)), &sample(&strip(inside))).u);
        }
        let count = all_u.len() as f64;
        let mean = all_u.iter().sum::<f64>() / count;
        let enumerated = all_u.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / count;
        let formula = variance(&sample(&values[..4]), &sample(&values[4..]));
        assert_eq!(mean, 6.0);
        assert!(
            (enumerated - formula).abs() < 1e-12,
            "{enumerated} {formula}"
        );
    }

    #[test]
    fn equal_constants_are_no_evidence() {
        let constant = sample(&[2.0; 6]);
        assert_eq!(mann_whitney(&constant, &constant).p, 1.0);
        assert_eq!(hodges_lehmann(&constant, &constant), 0.0);
    }

    #[test]
    fn a_shift_is_recovered() {
        let baseline = sample(&[10.0, 11.0, 12.0, 40.0]);
        let candidate = sample(&[13.0, 14.0, 15.0, 43.0]);
        assert_eq!(hodges_lehmann(&baseline, &candidate), 3.0);
    }
}
