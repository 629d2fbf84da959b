//! Classification of a comparison.

use crate::bootstrap::Interval;

/// Conclusion of a comparison of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The candidate takes less time than the baseline.
    Faster,
    /// No difference was found.
    NoDifference {
        /// Smallest effect, as a share of the baseline, that this many rounds with this much noise would have
        /// detected with a power of 80 %.
        smallest_visible: f64,
    },
    /// The candidate takes more time than the baseline.
    Slower,
    /// The data are inconclusive: too few rounds, or noise could hide an effect that matters.
    TooNoisy {
        /// As for [`Verdict::NoDifference`]; infinite with too few rounds.
        smallest_visible: f64,
    },
}

/// Thresholds of [`verdict`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Minimum number of rounds; fewer are inconclusive.
    pub min_rounds: usize,
    /// Largest effect, as a share of the baseline, that may stay hidden when [`Verdict::NoDifference`] is
    /// returned.
    pub hidden_effect: f64,
}

impl Default for Thresholds {
    /// Returns six rounds and a hidden effect of a quarter. Five rounds all point the same way by chance one
    /// time in 16, which is more than 5 %. Beyond a quarter, this project's limits (1.25x) could not be
    /// distinguished from 1.
    fn default() -> Self {
        Self {
            min_rounds: 6,
            hidden_effect: 0.25,
        }
    }
}

/// An interval's half width is 1.96 standard errors; an effect is detected four times in five when it is 1.96
/// + 0.84 standard errors.
const POWER_FACTOR: f64 = (1.96 + 0.84) / 1.96;

/// Classifies the ratio candidate / baseline of `rounds` rounds.
///
/// `control` is the same ratio for the baseline measured against itself in the same rounds: a difference
/// between the baseline and itself is noise, whatever the interval says.
pub fn verdict(
    ratio: Interval,
    control: Option<Interval>,
    rounds: usize,
    thresholds: Thresholds,
) -> Verdict {
    if rounds < thresholds.min_rounds {
        return Verdict::TooNoisy {
            smallest_visible: f64::INFINITY,
        };
    }
    let floor = control.map_or(0.0, |control| control.estimate.ln().abs());
    let excludes_one = ratio.low > 1.0 || ratio.high < 1.0;
    if excludes_one && ratio.estimate.ln().abs() > floor {
        return if ratio.estimate > 1.0 {
            Verdict::Slower
        } else {
            Verdict::Faster
        };
    }
    let half_width = (ratio.high.ln() - ratio.low.ln()) / 2.0;
    let smallest_visible = (half_width * POWER_FACTOR).max(floor).exp_m1();
    if smallest_visible > thresholds.hidden_effect {
        return Verdict::TooNoisy { smallest_visible };
    }
    Verdict::NoDifference { smallest_visible }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pairs, Rng, ratio_of_medians};

    fn interval(low: f64, estimate: f64, high: f64) -> Interval {
        Interval {
            estimate,
            low,
            high,
        }
    }

    fn verdict_of(ratio: Interval, control: Interval, rounds: usize) -> Verdict {
        verdict(ratio, Some(control), rounds, Thresholds::default())
    }

    #[test]
    fn clear_differences_have_a_direction() {
        let quiet = interval(0.99, 1.0, 1.01);
        assert_eq!(
            verdict_of(interval(1.1, 1.2, 1.3), quiet, 10),
            Verdict::Slower
        );
        assert_eq!(
            verdict_of(interval(0.7, 0.8, 0.9), quiet, 10),
            Verdict::Faster
        );
        assert_eq!(
            verdict_of(interval(20.0, 30.0, 60.0), quiet, 10),
            Verdict::Slower
        );
    }

    #[test]
    fn a_difference_that_the_baseline_shows_to_itself_is_not_one() {
        let biased = interval(1.02, 1.06, 1.1);
        assert!(matches!(
            verdict_of(interval(1.01, 1.04, 1.07), biased, 10),
            Verdict::NoDifference { .. }
        ));
        assert_eq!(
            verdict_of(interval(1.01, 1.08, 1.12), biased, 10),
            Verdict::Slower
        );
    }

    #[test]
    fn no_difference_names_what_could_have_been_seen() {
        let quiet = interval(0.99, 1.0, 1.01);
        let Verdict::NoDifference { smallest_visible } =
            verdict_of(interval(0.98, 1.0, 1.02), quiet, 10)
        else {
            panic!("a narrow interval around 1");
        };
        assert!(
            (0.028..0.030).contains(&smallest_visible),
            "{smallest_visible}"
        );
    }

    #[test]
    fn wide_intervals_and_few_rounds_say_nothing() {
        let quiet = interval(0.99, 1.0, 1.01);
        assert!(matches!(
            verdict_of(interval(0.7, 1.0, 1.4), quiet, 10),
            Verdict::TooNoisy { .. }
        ));
        assert!(matches!(
            verdict_of(interval(1.1, 1.2, 1.3), quiet, 5),
            Verdict::TooNoisy { .. }
        ));
    }

    /// Equal programs must be reported as different no more often than the confidence allows, and a 10 %
    /// slow-down under 5 % noise must be detected nearly always.
    #[test]
    fn error_rates_are_what_the_confidence_promises() {
        // Fewer trials have a larger error, so their bound is looser.
        let (trials, most) = if crate::slow() {
            (300_u64, 0.08)
        } else {
            (200, 0.09)
        };
        let mut rng = Rng::new(9);
        let mut rate = |factor: f64| {
            let found = (0..trials).filter(|trial| {
                let pairs: Vec<(f64, f64)> = (0..12)
                    .map(|_| (1.0 + 0.05 * rng.unit(), factor * (1.0 + 0.05 * rng.unit())))
                    .collect();
                let ratio = ratio_of_medians(&Pairs::new(pairs).unwrap(), 0.95, *trial);
                let verdict = verdict(ratio, None, 12, Thresholds::default());
                matches!(verdict, Verdict::Slower | Verdict::Faster)
            });
            found.count() as f64 / trials as f64
        };
        let (false_alarms, hits) = (rate(1.0), rate(1.1));
        assert!(false_alarms < most, "{false_alarms}");
        assert!(hits > 0.98, "{hits}");
    }
}
