//! Correction for multiple comparisons.

/// Adjusts p-values by Holm's method, so that each can be compared with the family-wise level.
///
/// The smallest is multiplied by the number of tests, the next by one less, and so on; no adjusted value is
/// below that of a smaller p-value. The order is that of `probabilities`.
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let mut adjusted = vec![1.0; probabilities.len()];
    let mut largest = 0.0_f64;
    for (rank, index) in order.into_iter().enumerate() {
        let left = (probabilities.len() - rank) as f64;
        largest = largest.max((probabilities[index] * left).min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in R's manual style: `p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")`.
    #[test]
    fn known_adjustments() {
        let adjusted = holm(&[0.01, 0.02, 0.03, 0.04, 0.05]);
        let expected = [0.05, 0.08, 0.09, 0.09, 0.09];
        for (got, want) in adjusted.iter().zip(expected) {
            assert!((got - want).abs() < 1e-12, "{adjusted:?}");
        }
    }

    #[test]
    fn the_order_of_the_input_is_kept() {
        let adjusted = holm(&[0.04, 0.001, 0.9]);
        assert!((adjusted[1] - 0.003).abs() < 1e-12);
        assert!((adjusted[0] - 0.08).abs() < 1e-12);
        assert!((adjusted[2] - 0.9).abs() < 1e-12);
        assert!(holm(&[]).is_empty());
    }

    /// At most 5 % of families of 10 equal comparisons may show a difference.
    #[test]
    fn false_alarms_in_a_family_stay_at_the_level() {
        let mut rng = crate::Rng::new(11);
        let families = 2000;
        let alarms = (0..families)
            .filter(|_| {
                let family: Vec<f64> = (0..10).map(|_| rng.unit()).collect();
                holm(&family).iter().any(|p| *p < 0.05)
            })
            .count();
        let rate = f64::from(u32::try_from(alarms).unwrap()) / f64::from(families);
        assert!((0.03..0.065).contains(&rate), "{rate}");
    }
}
