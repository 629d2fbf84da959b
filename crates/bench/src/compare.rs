//! Comparison of two recordings: whether a subject became slower.

use std::path::Path;

use serde::Serialize;
use stats::{Interval, Pairs, Rng, Sample as Numbers, Thresholds};

use crate::Error;
use crate::plan::{NATIVE, NATIVE_AGAIN};
use crate::record::Recording;
use crate::summary::{Ratio, pairs, ratio, verdict_words};
use crate::table::{self, Table};

/// The rows that two recordings have in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// One row for each workload and subject, in the order of the first recording.
    pub changes: Vec<Change>,
}

/// One workload under one subject, before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The workload's name.
    pub workload: String,
    /// The subject's name.
    pub subject: String,
    /// Ratio to native in the first recording.
    pub before: f64,
    /// Ratio to native in the second recording.
    pub after: f64,
    /// The second ratio divided by the first.
    pub change: Ratio,
    /// Verdict, in words.
    pub verdict: String,
}

/// Compares two results folders by their ratios to native, so that the two may come from hosts (or hours) of
/// different speed.
///
/// # Errors
///
/// If a folder cannot be read, or the two have nothing to compare.
pub fn compare(before: &Path, after: &Path) -> Result<Comparison, Error> {
    let comparison = compare_recordings(&Recording::load(before)?, &Recording::load(after)?);
    comparison.ok_or_else(|| Error::Option {
        option: format!("bench compare {} {}", before.display(), after.display()),
        reason: "no workload of a subject has valid samples in both".to_owned(),
    })
}

/// Compares two recordings. `None` if they have no row in common.
fn compare_recordings(before: &Recording, after: &Recording) -> Option<Comparison> {
    let mut changes = Vec::new();
    for workload in &before.plan.workloads {
        for subject in before.plan.all_subjects() {
            if ![NATIVE, NATIVE_AGAIN].contains(&subject.name.as_str()) {
                changes.extend(change(before, after, &workload.name, &subject.name));
            }
        }
    }
    (!changes.is_empty()).then_some(Comparison { changes })
}

/// Compares one row. `None` if one of the recordings has no valid pair of samples.
fn change(before: &Recording, after: &Recording, workload: &str, subject: &str) -> Option<Change> {
    let old = pairs(before, workload, subject)?;
    let new = pairs(after, workload, subject)?;
    let plain = |pairs: &Pairs| pairs.candidate().median() / pairs.baseline().median();
    let (old_ratio, new_ratio) = (plain(&old), plain(&new));
    let interval = stats::bootstrap(new_ratio / old_ratio, 0.95, before.plan.seed, |rng| {
        resampled(&new, rng) / resampled(&old, rng)
    });
    let rounds = old.len().min(new.len());
    let control = larger_control(before, after, workload);
    let verdict = stats::verdict(interval, control, rounds, Thresholds::default());
    Some(Change {
        workload: workload.to_owned(),
        subject: subject.to_owned(),
        before: old_ratio,
        after: new_ratio,
        change: interval.into(),
        verdict: verdict_words(verdict),
    })
}

/// Returns the A/A control whose interval lies further from 1.
fn larger_control(before: &Recording, after: &Recording, workload: &str) -> Option<Interval> {
    [before, after]
        .into_iter()
        .filter_map(|recording| ratio(recording, workload, NATIVE_AGAIN))
        .max_by(|a, b| a.estimate.ln().abs().total_cmp(&b.estimate.ln().abs()))
}

/// Returns the ratio of medians of a bootstrap sample: as many rounds, drawn with replacement.
fn resampled(pairs: &Pairs, rng: &mut Rng) -> f64 {
    let rounds = pairs.as_slice();
    let drawn: Vec<(f64, f64)> = rounds
        .iter()
        .map(|_| rounds[rng.below(rounds.len())])
        .collect();
    let median = |member: fn(&(f64, f64)) -> f64| {
        Numbers::new(drawn.iter().map(member).collect::<Vec<_>>())
            .expect("pairs are finite and at least one")
            .median()
    };
    median(|pair| pair.1) / median(|pair| pair.0)
}

impl Comparison {
    /// Formats the comparison as text.
    pub fn text(&self) -> String {
        let header = [
            "workload",
            "subject",
            "before",
            "after",
            "change",
            "95 % interval",
            "verdict",
        ];
        let mut table = Table::new(2, header);
        for Change {
            workload,
            subject,
            before,
            after,
            change,
            verdict,
        } in &self.changes
        {
            table.push([
                workload.clone(),
                subject.clone(),
                table::ratio(*before),
                table::ratio(*after),
                table::ratio(change.estimate),
                change.ends(),
                verdict.clone(),
            ]);
        }
        table.text()
    }

    /// Formats the comparison as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a comparison has only string keys") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::recording;

    #[test]
    fn a_subject_that_became_dearer_is_slower() {
        let comparison = compare_recordings(&recording(2), &recording(3)).unwrap();
        let [change] = &comparison.changes[..] else {
            panic!("one subject")
        };
        assert!((change.change.estimate - 1.5).abs() < 0.02);
        assert_eq!(change.verdict, "slower");
        assert!(comparison.text().contains("1.500"), "{}", comparison.text());
    }

    #[test]
    fn the_same_recording_shows_no_difference() {
        let comparison = compare_recordings(&recording(2), &recording(2)).unwrap();
        assert!(
            comparison.changes[0]
                .verdict
                .starts_with("no difference found")
        );
    }

    #[test]
    fn recordings_with_nothing_in_common_cannot_be_compared() {
        let mut other = recording(2);
        other.samples.retain(|sample| sample.subject != "slow");
        assert!(compare_recordings(&recording(2), &other).is_none());
    }
}
