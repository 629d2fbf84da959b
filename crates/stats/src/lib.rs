//! Estimators and tests on slices of numbers.
//!
//! The crate compares the time of a *candidate* with that of a *baseline*, measured in alternation on a host
//! that also runs other work. Times on such a host are skewed and have outliers, so every function rests on
//! medians and ranks; none assumes a normal distribution of the data.
//!
//! | statistic | function | source |
//! |---|---|---|
//! | quantile, type 7 | [`Sample::quantile`] | Hyndman and Fan, "Sample quantiles in statistical packages", The American Statistician 50 (1996) |
//! | median absolute deviation | [`Sample::mad`] | Hampel, "The influence curve and its role in robust estimation", JASA 69 (1974) |
//! | percentile bootstrap | [`bootstrap`] | Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13 |
//! | shift between two samples | [`hodges_lehmann`] | Hodges and Lehmann, "Estimates of location based on rank tests", Ann. Math. Stat. 34 (1963) |
//! | rank test | [`mann_whitney`] | Mann and Whitney, Ann. Math. Stat. 18 (1947); tie correction: Lehmann, "Nonparametrics" (1975) |
//! | multiple comparisons | [`holm`] | Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979) |
//! | mean of ratios | [`mean_of_ratios`] | geometric, because the result may not depend on which side is the baseline: Fleming and Wallace, CACM 29 (1986) |
//! | random numbers | [`Rng`] | Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS 47 (2021) |
//!
//! The crate does no input or output, and every result is a pure function of its arguments: the random
//! numbers of the bootstrap come from a seed that the caller passes.

mod bootstrap;
mod holm;
mod normal;
mod rank;
mod rng;
mod sample;
mod verdict;

pub use bootstrap::{Interval, bootstrap, mean_of_ratios, ratio_of_medians};
pub use holm::holm;
pub use normal::upper_tail;
pub use rank::{MannWhitney, hodges_lehmann, mann_whitney};
pub use rng::Rng;
pub use sample::{Error, Pairs, Sample};
pub use verdict::{Thresholds, Verdict, verdict};

/// Returns true if slow tests are requested.
#[cfg(test)]
fn slow() -> bool {
    std::env::var_os("TOLLGATE_TEST_SLOW").is_some_and(|value| value == "1")
}
