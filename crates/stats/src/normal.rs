//! Tail of the normal distribution.

use std::f64::consts::{PI, SQRT_2};

/// Returns the probability that a standard normal variable exceeds `z`.
///
/// Near zero it sums the series of the error function; further out it uses the continued fraction of the
/// complement, which converges faster and keeps its relative accuracy (Abramowitz and Stegun, "Handbook of
/// Mathematical Functions", 7.1.6 and 7.1.14).
pub fn upper_tail(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - upper_tail(-z);
    }
    let x = z / SQRT_2;
    if x < 2.5 {
        0.5 * (1.0 - erf_by_series(x))
    } else {
        0.5 * erfc_by_fraction(x)
    }
}

fn erf_by_series(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut denominator = 1.0;
    while term > sum * f64::EPSILON {
        denominator += 2.0;
        term *= 2.0 * x * x / denominator;
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

fn erfc_by_fraction(x: f64) -> f64 {
    // From x = 2.5 on, 60 levels are exact to double precision.
    let fraction = (1..=60)
        .rev()
        .fold(x, |below, level| x + f64::from(level) / 2.0 / below);
    (-x * x).exp() / (PI.sqrt() * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tail probabilities printed in every table of the normal distribution.
    #[test]
    fn tail_gives_the_tabulated_values() {
        for (z, expected) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457),
            (1.959_963_984_540_054, 0.025),
            (3.0, 1.349_898_031_630_095e-3),
            (4.0, 3.167_124_183_311_992e-5),
            (6.0, 9.865_876_450_376_946e-10),
        ] {
            let tail = upper_tail(z);
            assert!(
                (tail / expected - 1.0).abs() < 1e-11,
                "{z}: {tail} {expected}"
            );
            assert!((upper_tail(-z) - (1.0 - expected)).abs() < 1e-14);
        }
    }

    #[test]
    fn the_two_methods_meet() {
        let gap = (1.0 - erf_by_series(2.5)) - erfc_by_fraction(2.5);
        assert!(gap.abs() < 1e-15, "{gap}");
    }
}
