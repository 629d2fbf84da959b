//! The knee: the highest rate at which a detector loses nothing.

use super::meter::float;
use super::round::{Round, Sample, mean};

/// Smallest factor that counts as growth of the rate.
const GROWTH: f64 = 1.05;

/// Number of rounds without growth after which the rate cannot grow further.
const PATIENCE: usize = 2;

/// Results of the rounds before the first loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knee {
    /// Most actions per second in a round without a loss.
    pub(super) eps: f64,
    /// Most calls per second in such a round.
    pub(super) calls_per_s: Option<f64>,
    /// Alerts per second, averaged over the samples of the last such round and those of the next up to the
    /// first that shows a loss.
    pub(super) average_eps: f64,
    /// Calls per second in those samples.
    pub(super) average_calls_per_s: Option<f64>,
    /// True if anything was lost at all.
    pub(super) is_found: bool,
}

/// Returns true if the search is over: something was lost, or playing faster does not raise the rate.
pub(super) fn is_over(rounds: &[Round]) -> bool {
    if rounds.last().is_some_and(Round::is_dropping) {
        return true;
    }
    let best = |rounds: &[Round]| rounds.iter().map(Round::eps).fold(0.0, f64::max);
    let Some(at) = rounds.len().checked_sub(PATIENCE).filter(|at| *at > 0) else {
        return false;
    };
    let (earlier, later) = rounds.split_at(at);
    best(later) < best(earlier) * GROWTH
}

/// Finds the knee. `None` if the first round already lost something.
pub(super) fn find(rounds: &[Round]) -> Option<Knee> {
    let clean = rounds
        .iter()
        .take_while(|round| !round.is_dropping())
        .count();
    let (before, after) = rounds.split_at(clean);
    let last = before.last()?;
    let mut samples: Vec<Sample> = last.samples.clone();
    if let Some(dropping) = after.first() {
        let lossless = |sample: &&Sample| sample.drops == Some(0);
        samples.extend(dropping.samples.iter().take_while(lossless));
    }
    let most = |values: Vec<f64>| values.into_iter().reduce(f64::max);
    Some(Knee {
        eps: most(before.iter().map(Round::eps).collect()).unwrap_or_default(),
        calls_per_s: most(before.iter().filter_map(Round::calls_per_s).collect()),
        average_eps: average_eps(&samples),
        average_calls_per_s: mean(samples.iter().filter_map(|sample| sample.calls_per_s)),
        is_found: !after.is_empty(),
    })
}

fn average_eps(samples: &[Sample]) -> f64 {
    let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
    let alerts: u64 = samples.iter().map(|sample| sample.alerts).sum();
    if seconds > 0.0 {
        float(alerts) / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::round::tests::round;
    use super::*;

    #[test]
    fn the_knee_lies_before_the_first_loss() {
        let rounds = [
            round(1, 100, 0),
            round(2, 200, 0),
            round(3, 400, 1),
            round(4, 800, 0),
        ];
        let knee = find(&rounds).unwrap();
        assert!((knee.eps - 200.0).abs() < 1e-9 && knee.is_found);
        assert_eq!(knee.calls_per_s, Some(2000.0));
        // The third round's only sample shows a loss.
        assert!((knee.average_eps - 200.0).abs() < 1e-9);
        assert_eq!(knee.average_calls_per_s, Some(2000.0));
        assert!(find(&rounds[2..]).is_none());
    }

    #[test]
    fn samples_up_to_the_first_loss_count() {
        let mut dropping = round(2, 400, 1);
        dropping.samples.insert(
            0,
            Sample {
                drops: Some(0),
                ..dropping.samples[0]
            },
        );
        let knee = find(&[round(1, 100, 0), dropping]).unwrap();
        assert_eq!(knee.average_calls_per_s, Some(2500.0));
    }

    #[test]
    fn the_search_ends_with_a_loss_or_where_nothing_grows() {
        assert!(is_over(&[round(1, 100, 0), round(2, 200, 5)]));
        assert!(!is_over(&[
            round(1, 100, 0),
            round(2, 200, 0),
            round(3, 390, 0)
        ]));
        assert!(is_over(&[
            round(1, 100, 0),
            round(2, 101, 0),
            round(3, 102, 0)
        ]));
        assert!(!is_over(&[round(1, 100, 0), round(2, 101, 0)]));
        let knee = find(&[round(1, 100, 0)]).unwrap();
        assert!(!knee.is_found);
    }
}
