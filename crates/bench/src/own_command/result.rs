//! Times of a command, and what they say.

use std::fmt::Write as _;

use serde::Serialize;
use stats::{Interval, Pairs, Sample, Thresholds, Verdict};

use super::{SUBJECTS, WATCHED};
use crate::execute::Execution;
use crate::record::Exit;
use crate::summary::verdict_words;
use crate::{command_line, table};

/// Confidence level of the intervals.
const CONFIDENCE: f64 = 0.95;

/// One run of the command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Wall time in seconds.
    wall: f64,
    user: f64,
    system: f64,
    exit_code: Option<i32>,
}

impl From<&Execution> for Run {
    fn from(done: &Execution) -> Self {
        Self {
            wall: done.wall.as_secs_f64(),
            user: done.user.as_secs_f64(),
            system: done.sys.as_secs_f64(),
            exit_code: match done.exit {
                Exit::Code(code) => Some(code),
                _ => None,
            },
        }
    }
}

/// All rounds of a comparison.
#[derive(Debug)]
pub(super) struct Result {
    command: Vec<String>,
    engine: String,
    seed: u64,
    rounds: Vec<[Run; 3]>,
}

/// Figures of one subject, with the keys of hyperfine; times are in seconds.
#[derive(Debug, Serialize)]
struct Figures {
    command: String,
    mean: f64,
    stddev: Option<f64>,
    median: f64,
    user: f64,
    system: f64,
    min: f64,
    max: f64,
    times: Vec<f64>,
    exit_codes: Vec<Option<i32>>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    estimate: f64,
    low: f64,
    high: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    results: Vec<Figures>,
    engine: &'a str,
    rounds: usize,
    seed: u64,
    confidence: f64,
    /// Time watched divided by time plain; absent if the rounds do not say.
    ratio: Option<Ratio>,
    /// Time plain again divided by time plain.
    control: Option<Ratio>,
    verdict: String,
}

impl From<Interval> for Ratio {
    fn from(interval: Interval) -> Self {
        let Interval {
            estimate,
            low,
            high,
        } = interval;
        Self {
            estimate,
            low,
            high,
        }
    }
}

impl Result {
    pub(super) fn new(command: Vec<String>, engine: String, seed: u64) -> Self {
        Self {
            command,
            engine,
            seed,
            rounds: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, round: [Run; 3]) {
        self.rounds.push(round);
    }

    /// The ratio of medians of a subject to plain; `None` without a complete round.
    fn ratio(&self, subject: usize) -> Option<Interval> {
        let pairs = self.rounds.iter().map(|round| (round[0].wall, round[subject].wall));
        let pairs = Pairs::new(pairs.collect::<Vec<_>>()).ok()?;
        Some(stats::ratio_of_medians(&pairs, CONFIDENCE, self.seed))
    }

    fn verdict(&self) -> Option<Verdict> {
        let (ratio, control) = (self.ratio(WATCHED)?, self.ratio(1));
        let thresholds = Thresholds::default();
        Some(stats::verdict(ratio, control, self.rounds.len(), thresholds))
    }

    fn figures(&self, subject: usize) -> Option<Figures> {
        let runs: Vec<Run> = self.rounds.iter().map(|round| round[subject]).collect();
        let times: Vec<f64> = runs.iter().map(|run| run.wall).collect();
        let sample = Sample::new(times.clone()).ok()?;
        let mean = mean(&times);
        let prefix = if subject == WATCHED { "tollgate run -- " } else { "" };
        Some(Figures {
            command: format!("{prefix}{}", command_line::join(&self.command)),
            mean,
            stddev: deviation(&times, mean),
            median: sample.median(),
            user: self::mean(&runs.iter().map(|run| run.user).collect::<Vec<_>>()),
            system: self::mean(&runs.iter().map(|run| run.system).collect::<Vec<_>>()),
            min: sample.quantile(0.0),
            max: sample.quantile(1.0),
            times,
            exit_codes: runs.iter().map(|run| run.exit_code).collect(),
        })
    }

    pub(super) fn json(&self) -> String {
        let verdict = self.verdict();
        let report = Report {
            results: (0..SUBJECTS.len()).filter_map(|subject| self.figures(subject)).collect(),
            engine: &self.engine,
            rounds: self.rounds.len(),
            seed: self.seed,
            confidence: CONFIDENCE,
            ratio: verdict.filter(is_conclusive).and_then(|_| self.ratio(WATCHED)).map(Ratio::from),
            control: self.ratio(1).map(Ratio::from),
            verdict: verdict.map_or_else(|| "too few rounds".to_owned(), verdict_words),
        };
        serde_json::to_string_pretty(&report).expect("a report has only string keys") + "\n"
    }

    pub(super) fn text(&self) -> String {
        let command = command_line::join(&self.command);
        let mut out = format!("{command}\n");
        let heading = ["", "mean ± σ", "min … max", "user + system"];
        let mut lines = table::Table::new(1, heading);
        for (subject, name) in SUBJECTS.into_iter().enumerate() {
            let Some(figures) = self.figures(subject) else {
                return out + "no complete round\n";
            };
            let deviation = figures.stddev.map_or_else(String::new, |d| format!(" ± {}", time(d)));
            lines.push([
                name.to_owned(),
                format!("{}{deviation}", time(figures.mean)),
                format!("{} … {}", time(figures.min), time(figures.max)),
                format!("{} + {}", time(figures.user), time(figures.system)),
            ]);
        }
        out += &lines.text();
        out += &self.conclusion();
        out
    }

    /// The ratio with its interval, or why there is none; then the control and failed runs.
    fn conclusion(&self) -> String {
        let (rounds, engine) = (self.rounds.len(), &self.engine);
        let mut out = String::from("\n");
        let (Some(ratio), Some(verdict)) = (self.ratio(WATCHED), self.verdict()) else {
            return out;
        };
        let words = verdict_words(verdict);
        // Writing to a String cannot fail.
        let _ = match is_conclusive(&verdict) {
            true => writeln!(
                out,
                "watched takes {:.2} times as long as plain ({:.2} to {:.2} at 95 %, {rounds} rounds, \
                 engine {engine}): {words}",
                ratio.estimate, ratio.low, ratio.high
            ),
            false => writeln!(out, "no ratio: {words} ({rounds} rounds); try more --rounds"),
        };
        if let Some(control) = self.ratio(1) {
            let _ = writeln!(
                out,
                "control: plain again takes {:.2} times as long as plain ({:.2} to {:.2})",
                control.estimate, control.low, control.high
            );
        }
        let all = self.rounds.iter().flatten();
        let failed: Vec<_> = all.filter(|run| run.exit_code != Some(0)).collect();
        if let Some(first) = failed.first() {
            let code = first.exit_code.map_or_else(|| "a signal".to_owned(), |c| c.to_string());
            let _ = writeln!(out, "{} runs failed, the first with exit status {code}", failed.len());
        }
        out
    }
}

fn is_conclusive(verdict: &Verdict) -> bool {
    !matches!(verdict, Verdict::TooNoisy { .. })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample; `None` for a single value.
fn deviation(values: &[f64], mean: f64) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", s * 1000.0),
        s => format!("{s:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let deviation = deviation(&values, mean(&values)).unwrap();
        assert!((deviation - 1.290_994).abs() < 1e-6, "{deviation}");
        assert_eq!(super::deviation(&[1.0], 1.0), None);
    }
}
