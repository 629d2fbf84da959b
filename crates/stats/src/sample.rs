//! Validated input: samples, and pairs measured in the same round.

use std::fmt;

/// Error of input validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The input is empty.
    Empty,
    /// A number is infinite or NaN.
    NotFinite {
        /// Position in the input.
        index: usize,
    },
    /// A number is not above zero, as a ratio requires.
    NotPositive {
        /// Position in the input.
        index: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Empty => write!(f, "cannot estimate anything from no sample"),
            Error::NotFinite { index } => {
                write!(
                    f,
                    "cannot use sample number {index}: it is not a finite number"
                )
            }
            Error::NotPositive { index } => {
                write!(
                    f,
                    "cannot form a ratio with sample number {index}: it is not above zero"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

/// At least one finite number, kept in ascending order.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    sorted: Vec<f64>,
}

impl Sample {
    /// Validates and sorts `values`.
    ///
    /// # Errors
    ///
    /// Fails if there is no value, or one is not finite.
    pub fn new(values: impl Into<Vec<f64>>) -> Result<Self, Error> {
        let mut sorted = values.into();
        if sorted.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(index) = sorted.iter().position(|value| !value.is_finite()) {
            return Err(Error::NotFinite { index });
        }
        sorted.sort_unstable_by(f64::total_cmp);
        Ok(Self { sorted })
    }

    /// Returns the values in ascending order.
    pub fn values(&self) -> &[f64] {
        &self.sorted
    }

    /// Returns the number of values; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a sample is never empty")]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the middle value, or the mean of the two middle values.
    pub fn median(&self) -> f64 {
        median_of_sorted(&self.sorted)
    }

    /// Returns the quantile at `p` by linear interpolation between order statistics (type 7, the default of R
    /// and NumPy). `p` is clamped to 0..=1.
    pub fn quantile(&self, p: f64) -> f64 {
        quantile_of_sorted(&self.sorted, p)
    }

    /// Returns the median absolute deviation from the median, unscaled.
    ///
    /// Multiply by 1.4826 to estimate the standard deviation of normally distributed data.
    pub fn mad(&self) -> f64 {
        let median = self.median();
        let mut distances: Vec<f64> = self.sorted.iter().map(|v| (v - median).abs()).collect();
        distances.sort_unstable_by(f64::total_cmp);
        median_of_sorted(&distances)
    }
}

/// Baseline and candidate measured in the same round; at least one pair, all above zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    pairs: Vec<(f64, f64)>,
}

impl Pairs {
    /// Validates `pairs` of (baseline, candidate).
    ///
    /// # Errors
    ///
    /// Fails if there is no pair, or a number is not finite or not above zero.
    pub fn new(pairs: impl Into<Vec<(f64, f64)>>) -> Result<Self, Error> {
        let pairs = pairs.into();
        if pairs.is_empty() {
            return Err(Error::Empty);
        }
        for (index, (baseline, candidate)) in pairs.iter().enumerate() {
            if !baseline.is_finite() || !candidate.is_finite() {
                return Err(Error::NotFinite { index });
            }
            if *baseline <= 0.0 || *candidate <= 0.0 {
                return Err(Error::NotPositive { index });
            }
        }
        Ok(Self { pairs })
    }

    /// Returns the pairs of (baseline, candidate) in the order of the rounds.
    pub fn as_slice(&self) -> &[(f64, f64)] {
        &self.pairs
    }

    /// Returns the number of rounds; never 0.
    #[expect(clippy::len_without_is_empty, reason = "pairs are never empty")]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the baseline's values.
    pub fn baseline(&self) -> Sample {
        Sample::new(self.pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())
            .expect("pairs hold at least one finite number")
    }

    /// Returns the candidate's values.
    pub fn candidate(&self) -> Sample {
        Sample::new(self.pairs.iter().map(|pair| pair.1).collect::<Vec<_>>())
            .expect("pairs hold at least one finite number")
    }
}

/// Returns the median of a sorted slice that is not empty.
pub(crate) fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted[middle];
    }
    f64::midpoint(sorted[middle - 1], sorted[middle])
}

/// Returns the type 7 quantile of a sorted slice that is not empty.
pub(crate) fn quantile_of_sorted(sorted: &[f64], p: f64) -> f64 {
    let last = sorted.len() - 1;
    let position = p.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "position lies between 0 and the last index"
    )]
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    sorted[below] + (position - below as f64) * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values).unwrap()
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(sample(&[5.0, 1.0, 3.0]).median(), 3.0);
        assert_eq!(sample(&[4.0, 1.0, 3.0, 2.0]).median(), 2.5);
        assert_eq!(sample(&[7.0]).median(), 7.0);
    }

    /// Type 7 puts quantile p at position p * (n - 1), counted from 0, and interpolates.
    #[test]
    fn quantiles_are_those_of_type_7() {
        let powers = sample(&[32.0, 16.0, 8.0, 4.0, 2.0, 1.0]);
        assert_eq!(powers.quantile(0.1), 1.5);
        assert_eq!(powers.quantile(0.25), 2.5);
        assert_eq!(powers.quantile(0.9), 24.0);
        assert_eq!(powers.quantile(0.0), 1.0);
        assert_eq!(powers.quantile(1.0), 32.0);
        assert_eq!(powers.quantile(7.0), 32.0);
        assert_eq!(powers.quantile(0.5), powers.median());
    }

    /// The manual of R's `mad` gives 2 for both, without the scaling constant.
    #[test]
    fn mad_is_not_moved_by_one_outlier() {
        let one_to_nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(sample(&one_to_nine).mad(), 2.0);
        let mut spoiled = one_to_nine;
        spoiled[8] = 1e9;
        assert_eq!(sample(&spoiled).mad(), 2.0);
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        assert_eq!(Sample::new([]), Err(Error::Empty));
        assert_eq!(
            Sample::new([1.0, f64::NAN]),
            Err(Error::NotFinite { index: 1 })
        );
        assert_eq!(
            Pairs::new([(1.0, 2.0), (0.0, 1.0)]),
            Err(Error::NotPositive { index: 1 })
        );
        assert_eq!(
            Pairs::new([(1.0, f64::INFINITY)]),
            Err(Error::NotFinite { index: 0 })
        );
    }
}
