//! What a recording says: medians, ratios to native, verdicts.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use stats::{Interval, Pairs, Sample as Numbers, Thresholds, Verdict};

use crate::Error;
use crate::plan::{NATIVE, NATIVE_AGAIN};
use crate::record::{self, Recording, Sample};
use crate::table::{self, Table, time};

/// How sure every interval is.
const CONFIDENCE: f64 = 0.95;

/// All figures of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The plan's name.
    pub plan: String,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// One row for each workload and subject, in the order of the plan.
    pub rows: Vec<Row>,
}

/// The figures of one workload under one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// What one operation is.
    pub unit: String,
    /// The subject's name.
    pub subject: String,
    /// Valid samples.
    pub n: usize,
    /// Samples that failed, with the first reason.
    pub invalid: usize,
    /// Why the first of them failed.
    pub first_failure: Option<String>,
    /// Median time per operation.
    pub median_ns: Option<f64>,
    /// Median distance from that median.
    pub mad_ns: Option<f64>,
    /// Fastest sample.
    pub min_ns: Option<f64>,
    /// Rounds in which this subject and native both have a valid sample.
    pub rounds: usize,
    /// Time over native's time.
    pub ratio: Option<Ratio>,
    /// Hodges-Lehmann shift against native, per operation.
    pub shift_ns: Option<f64>,
    /// Two-sided Mann-Whitney probability that chance alone separates the two this far.
    pub p: Option<f64>,
    /// What may be said.
    pub verdict: Option<String>,
    /// Median CPU time in user mode of one sample.
    pub user_us: Option<f64>,
    /// Median CPU time in the kernel of one sample.
    pub sys_us: Option<f64>,
    /// Largest resident set of any sample.
    pub max_rss_kib: Option<u64>,
    /// Events lost in all samples together, if the subject counts them.
    pub drops: Option<u64>,
}

/// A ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the medians.
    pub estimate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    /// The interval as it stands in tables.
    pub(crate) fn ends(self) -> String {
        format!("{} - {}", table::ratio(self.low), table::ratio(self.high))
    }
}

impl From<Interval> for Ratio {
    fn from(
        Interval {
            estimate,
            low,
            high,
        }: Interval,
    ) -> Self {
        Self {
            estimate,
            low,
            high,
        }
    }
}

/// Computes everything anew from raw samples.
pub fn summarise(recording: &Recording) -> Summary {
    let subjects = recording.plan.all_subjects();
    let mut rows = Vec::new();
    for workload in &recording.plan.workloads {
        let control = ratio(recording, &workload.name, NATIVE_AGAIN);
        for subject in &subjects {
            let mut row = row(recording, &workload.name, &subject.name, control);
            row.unit.clone_from(&workload.unit);
            rows.push(row);
        }
    }
    Summary {
        plan: recording.plan.name.clone(),
        confidence: CONFIDENCE,
        rows,
    }
}

/// Summarises a results folder and writes `summary.txt`, `summary.md` and `summary.json` there.
///
/// # Errors
///
/// When the folder cannot be read or written.
pub fn write(folder: &Path) -> Result<Summary, Error> {
    let summary = summarise(&Recording::load(folder)?);
    record::write(&folder.join("summary.txt"), &summary.text())?;
    record::write(&folder.join("summary.md"), &summary.markdown())?;
    record::write(&folder.join("summary.json"), &summary.json())?;
    Ok(summary)
}

/// Valid figures of native and a subject in the same rounds.
pub(crate) fn pairs(recording: &Recording, workload: &str, subject: &str) -> Option<Pairs> {
    let figures = |subject: &str| -> BTreeMap<u32, f64> {
        samples(recording, workload, subject)
            .filter_map(|sample| Some((sample.round, sample.ns_per_operation()?)))
            .collect()
    };
    let (native, candidate) = (figures(NATIVE), figures(subject));
    let both = native
        .iter()
        .filter_map(|(round, base)| Some((*base, *candidate.get(round)?)));
    Pairs::new(both.collect::<Vec<_>>()).ok()
}

/// The ratio of a subject's median to native's.
pub(crate) fn ratio(recording: &Recording, workload: &str, subject: &str) -> Option<Interval> {
    let pairs = pairs(recording, workload, subject)?;
    Some(stats::ratio_of_medians(
        &pairs,
        CONFIDENCE,
        recording.plan.seed,
    ))
}

fn samples<'a>(
    recording: &'a Recording,
    workload: &'a str,
    subject: &'a str,
) -> impl Iterator<Item = &'a Sample> {
    let wanted = move |sample: &&Sample| sample.workload == workload && sample.subject == subject;
    recording.samples.iter().filter(wanted)
}

fn row(recording: &Recording, workload: &str, subject: &str, control: Option<Interval>) -> Row {
    let all: Vec<&Sample> = samples(recording, workload, subject).collect();
    let valid: Vec<&Sample> = all
        .iter()
        .copied()
        .filter(|sample| sample.ns_per_operation().is_some())
        .collect();
    let numbers = |figure: &dyn Fn(&Sample) -> Option<f64>| {
        Numbers::new(
            valid
                .iter()
                .filter_map(|sample| figure(sample))
                .collect::<Vec<_>>(),
        )
        .ok()
    };
    let times = numbers(&Sample::ns_per_operation);
    let pairs = if subject == NATIVE {
        None
    } else {
        pairs(recording, workload, subject)
    };
    let ratio = pairs
        .as_ref()
        .map(|pairs| stats::ratio_of_medians(pairs, CONFIDENCE, recording.plan.seed));
    let rounds = pairs.as_ref().map_or(0, Pairs::len);
    let drops = all
        .iter()
        .filter_map(|sample| sample.drops)
        .reduce(|a, b| a + b);
    let control = if subject == NATIVE_AGAIN {
        None
    } else {
        control
    };
    let verdict = ratio.map(|ratio| stats::verdict(ratio, control, rounds, Thresholds::default()));
    Row {
        workload: workload.to_owned(),
        unit: String::new(),
        subject: subject.to_owned(),
        n: valid.len(),
        invalid: all.len() - valid.len(),
        first_failure: all.iter().find_map(|sample| sample.invalid.clone()),
        median_ns: times.as_ref().map(Numbers::median),
        mad_ns: times.as_ref().map(Numbers::mad),
        min_ns: times.as_ref().map(|times| times.values()[0]),
        rounds,
        ratio: ratio.map(Ratio::from),
        shift_ns: pairs
            .as_ref()
            .map(|p| stats::hodges_lehmann(&p.baseline(), &p.candidate())),
        p: pairs
            .as_ref()
            .map(|p| stats::mann_whitney(&p.baseline(), &p.candidate()).p),
        verdict: verdict.map(|verdict| words(verdict, subject, drops)),
        user_us: numbers(&|sample| Some(sample.user_us as f64)).map(|n| n.median()),
        sys_us: numbers(&|sample| Some(sample.sys_us as f64)).map(|n| n.median()),
        max_rss_kib: valid.iter().map(|sample| sample.max_rss_kib).max(),
        drops,
    }
}

/// A verdict in words. A time that was bought with lost events is never given plainly.
fn words(verdict: Verdict, subject: &str, drops: Option<u64>) -> String {
    let words = verdict_words(verdict);
    let words = match verdict {
        Verdict::Slower | Verdict::Faster if subject == NATIVE_AGAIN => {
            format!("{words} than itself: only larger differences count")
        }
        _ => words,
    };
    match drops {
        Some(lost @ 1..) => format!("{words}, with {lost} events lost"),
        _ => words,
    }
}

/// The words of the report for a verdict.
pub(crate) fn verdict_words(verdict: Verdict) -> String {
    let percent = |effect: f64| format!("{:.1} %", effect * 100.0);
    match verdict {
        Verdict::Faster => "faster".to_owned(),
        Verdict::Slower => "slower".to_owned(),
        Verdict::NoDifference { smallest_visible } => {
            format!(
                "no difference found (>= {} would show)",
                percent(smallest_visible)
            )
        }
        Verdict::TooNoisy { smallest_visible } if smallest_visible.is_finite() => {
            format!(
                "too noisy (only >= {} would show)",
                percent(smallest_visible)
            )
        }
        Verdict::TooNoisy { .. } => "too few rounds".to_owned(),
    }
}

impl Summary {
    /// For a terminal.
    pub fn text(&self) -> String {
        self.table().text() + &self.failures("")
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        self.table().markdown() + &self.failures("\n")
    }

    /// For a program.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a summary has only string keys") + "\n"
    }

    fn table(&self) -> Table {
        let header = [
            "workload",
            "subject",
            "n",
            "median",
            "mad",
            "ratio",
            "95 % interval",
            "verdict",
        ];
        let mut table = Table::new(2, header);
        for row in &self.rows {
            let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let per_unit = |ns: f64| format!("{}/{}", time(ns), row.unit);
            table.push([
                row.workload.clone(),
                row.subject.clone(),
                row.n.to_string(),
                optional(row.median_ns.map(per_unit)),
                optional(row.mad_ns.map(time)),
                optional(row.ratio.map(|ratio| format!("{:.3}", ratio.estimate))),
                optional(
                    row.ratio
                        .map(|ratio| format!("{:.3} - {:.3}", ratio.low, ratio.high)),
                ),
                optional(row.verdict.clone()),
            ]);
        }
        table
    }

    /// One line for each row that has invalid samples.
    fn failures(&self, before: &str) -> String {
        let failed = self.rows.iter().filter(|row| row.invalid > 0);
        failed
            .map(|row| {
                let reason = row.first_failure.as_deref().unwrap_or("unknown");
                format!(
                    "{before}left out: {} of {} samples of {} under {}: {reason}\n",
                    row.invalid,
                    row.invalid + row.n,
                    row.workload,
                    row.subject
                )
            })
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::record::{Exit, Witness};

    fn sample(round: u32, subject: &str, ns: u64) -> Sample {
        Sample {
            round,
            order: 0,
            workload: "w".to_owned(),
            subject: subject.to_owned(),
            seed: 0,
            operations: Some(1),
            elapsed_ns: Some(ns),
            windows_ns_per_op: Vec::new(),
            wall_ns: ns,
            user_us: 1,
            sys_us: 2,
            max_rss_kib: 3,
            exit: Exit::Code(0),
            witness: Witness::default(),
            events: None,
            drops: None,
            load_1m: None,
            steal_ms: None,
            timestamp_ms: 0,
            invalid: None,
            stderr: None,
        }
    }

    /// Ten rounds in which `slow` takes `factor` times as long as native.
    pub(crate) fn recording(factor: u64) -> Recording {
        let plan: Plan = serde_json::from_str(
            r#"{"name": "p", "workload": [{"name": "w", "command": "x", "figure": "wall"}],
                "subject": [{"name": "slow", "wrapper": "y {}"}]}"#,
        )
        .unwrap();
        let samples = (0..10).flat_map(|round| {
            let jitter = u64::from(round * 7 % 10);
            [
                sample(round, NATIVE, 1000 + jitter),
                sample(round, NATIVE_AGAIN, 1009 - jitter),
                sample(round, "slow", factor * (1000 + (jitter + 3) % 10)),
            ]
        });
        Recording {
            plan,
            samples: samples.collect(),
        }
    }

    #[test]
    fn a_subject_is_judged_against_native_and_the_control() {
        let summary = summarise(&recording(2));
        let [native, again, slow] = &summary.rows[..] else {
            panic!("three subjects")
        };
        assert_eq!(
            (native.n, native.ratio, native.verdict.as_ref()),
            (10, None, None)
        );
        assert!(
            again
                .verdict
                .as_ref()
                .unwrap()
                .starts_with("no difference found")
        );
        assert_eq!((slow.rounds, slow.verdict.as_deref()), (10, Some("slower")));
        assert!((slow.ratio.unwrap().estimate - 2.0).abs() < 0.01);
        assert!((slow.shift_ns.unwrap() - 1004.0).abs() < 10.0);
        assert!(slow.p.unwrap() < 0.001);
    }

    #[test]
    fn an_invalid_sample_takes_its_whole_round_out_of_the_ratio() {
        let mut recording = recording(2);
        let spoil = |sample: &mut Sample| {
            sample.elapsed_ns = Some(1);
            sample.invalid = Some("exit status 1".to_owned());
        };
        spoil(&mut recording.samples[0]);
        spoil(&mut recording.samples[5]);
        let summary = summarise(&recording);
        let slow = &summary.rows[2];
        assert_eq!((slow.n, slow.invalid, slow.rounds), (9, 1, 8));
        assert!(slow.min_ns.unwrap() >= 2000.0);
        let line = "left out: 1 of 10 samples of w under slow: exit status 1";
        assert!(summary.text().contains(line), "{}", summary.text());
    }

    #[test]
    fn lost_events_stand_beside_the_verdict() {
        let mut recording = recording(1);
        recording.samples[2].drops = Some(7);
        let row = &summarise(&recording).rows[2];
        assert!(
            row.verdict
                .as_ref()
                .unwrap()
                .ends_with("with 7 events lost"),
            "{row:?}"
        );
    }

    #[test]
    fn a_run_of_one_round_says_so() {
        let mut recording = recording(2);
        recording.samples.truncate(3);
        assert_eq!(
            summarise(&recording).rows[2].verdict.as_deref(),
            Some("too few rounds")
        );
        recording.samples.clear();
        let nothing = summarise(&recording);
        assert!(
            nothing
                .rows
                .iter()
                .all(|row| row.n == 0 && row.ratio.is_none())
        );
        assert!(nothing.text().contains("slow"));
    }
}
