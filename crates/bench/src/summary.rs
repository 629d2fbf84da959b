//! Statistics of a recording: medians, ratios to native, verdicts.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use stats::{Interval, Pairs, Sample as Numbers, Thresholds, Verdict};

use crate::plan::{NATIVE, NATIVE_AGAIN, Suite, Workload};
use crate::record::{self, Recording, Sample};
use crate::suite::unix;
use crate::table::{self, Table, time};
use crate::{Error, tables};

/// Confidence level of every interval.
const CONFIDENCE: f64 = 0.95;

/// All figures of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The plan's name.
    pub plan: String,
    /// Confidence level of the intervals.
    pub confidence: f64,
    /// The suite, if the plan belongs to one.
    pub suite: Option<Suite>,
    /// Environment of native and subjects, if the plan sets one.
    pub setup: Option<String>,
    /// Set if the samples were short: the figures are a first impression.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// One index for each group of workloads and subject.
    pub indices: Vec<Index>,
    /// One row for each workload and subject, in the order of the plan.
    pub rows: Vec<Row>,
}

/// All workloads of a group under one subject as one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Index {
    /// The group's name; empty if the plan has none.
    pub group: String,
    /// The subject's name.
    pub subject: String,
    /// Number of workloads in the index.
    pub workloads: usize,
    /// Number of workloads left out, because no round has valid samples of both native and the subject.
    #[serde(skip_serializing_if = "is_none")]
    pub failed: usize,
    /// Speed divided by native speed: the geometric mean of all workloads. Below 1 is slower.
    pub ratio: Option<Ratio>,
    /// UnixBench's system index, if all twelve tests are present.
    pub system: Option<f64>,
    /// Verdict, in words.
    pub verdict: Option<String>,
}

/// Stands at the head of every form of a quick run.
pub(crate) const QUICK: &str =
    "quick run: short samples, for a first impression; do not cite these figures";

impl Index {
    /// The ratio, unless its verdict is that the rounds do not say.
    pub fn conclusive_ratio(&self) -> Option<Ratio> {
        self.ratio
            .filter(|_| is_conclusive(self.verdict.as_deref()))
    }

    /// UnixBench's system index, unless the subject's verdict is that the rounds do not say. Native has no verdict.
    pub(crate) fn conclusive_system(&self) -> Option<f64> {
        self.system
            .filter(|_| is_conclusive(self.verdict.as_deref()))
    }
}

/// Whether a verdict allows a headline figure. What is compared with nothing has no verdict, and is what it is.
fn is_conclusive(verdict: Option<&str>) -> bool {
    verdict.is_none_or(|verdict| {
        !verdict.starts_with(TOO_FEW_ROUNDS) && !verdict.starts_with(INCONCLUSIVE)
    })
}

/// Beginnings of the verdicts that have no headline figure.
const TOO_FEW_ROUNDS: &str = "too few rounds";
const INCONCLUSIVE: &str = "inconclusive";

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The figures of one workload under one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// Unit of one operation.
    pub unit: String,
    /// The subject's name.
    pub subject: String,
    /// Number of valid samples.
    pub n: usize,
    /// Number of invalid samples.
    pub invalid: usize,
    /// Reason why the first invalid sample failed.
    pub first_failure: Option<String>,
    /// Median time per operation.
    pub median_ns: Option<f64>,
    /// Median absolute deviation from that median.
    pub mad_ns: Option<f64>,
    /// Time per operation of the fastest sample.
    pub min_ns: Option<f64>,
    /// Number of rounds in which this subject and native both have a valid sample.
    pub rounds: usize,
    /// Time divided by native time.
    pub ratio: Option<Ratio>,
    /// Hodges-Lehmann shift against native, per operation.
    pub shift_ns: Option<f64>,
    /// Two-sided p-value of the Mann-Whitney test against native.
    pub p: Option<f64>,
    /// The p-value after Holm's adjustment for all comparisons of this summary.
    pub p_adjusted: Option<f64>,
    /// The score in UnixBench's unit, if the workload is one of its tests.
    pub score: Option<f64>,
    /// UnixBench's index of that score.
    pub index: Option<f64>,
    /// Medians of the other figures that the workload reports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, f64>,
    /// 95th percentiles of the other figures, from twenty samples on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_p95: BTreeMap<String, f64>,
    /// Verdict, in words.
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

impl Row {
    /// The ratio, unless its verdict is that the rounds do not say.
    pub fn conclusive_ratio(&self) -> Option<Ratio> {
        self.ratio
            .filter(|_| is_conclusive(self.verdict.as_deref()))
    }
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
    /// Formats the interval for tables.
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

/// Computes all figures from the raw samples.
pub fn summarise(recording: &Recording) -> Summary {
    let subjects = recording.plan.all_subjects();
    let mut rows = Vec::new();
    for workload in &recording.plan.workloads {
        let control = ratio(recording, &workload.name, NATIVE_AGAIN);
        let bare = |name: &str| [NATIVE, NATIVE_AGAIN].contains(&name);
        for subject in subjects
            .iter()
            .filter(|s| !workload.is_bare || bare(&s.name))
        {
            let mut row = row(recording, &workload.name, &subject.name, control);
            row.unit.clone_from(&workload.unit);
            rows.push(row);
        }
    }
    adjust(&mut rows);
    Summary {
        plan: recording.plan.name.clone(),
        confidence: CONFIDENCE,
        suite: recording.plan.suite,
        setup: recording
            .plan
            .setup
            .as_ref()
            .map(|setup| setup.name.clone()),
        quick: recording.plan.quick,
        indices: indices(recording, &rows),
        rows,
    }
}

/// Applies Holm's adjustment to all comparisons with native, except the control's. Marks a verdict that is not
/// significant after the adjustment.
fn adjust(rows: &mut [Row]) {
    let compared = |row: &&mut Row| row.subject != NATIVE_AGAIN && row.p.is_some();
    let all: Vec<f64> = rows
        .iter_mut()
        .filter(compared)
        .filter_map(|row| row.p)
        .collect();
    let count = all.len();
    let adjusted = stats::holm(&all);
    for (row, p) in rows.iter_mut().filter(compared).zip(adjusted) {
        row.p_adjusted = Some(p);
        let Some(verdict) = &mut row.verdict else {
            continue;
        };
        let is_difference = verdict.starts_with("slower") || verdict.starts_with("faster");
        if is_difference && p > 1.0 - CONFIDENCE {
            *verdict += &format!(", but not significant after correcting for {count} comparisons");
        }
    }
}

/// Returns the groups of the plan in order. Bare workloads belong to none.
fn groups(workloads: &[Workload]) -> Vec<(String, Vec<&Workload>)> {
    let mut groups: Vec<(String, Vec<&Workload>)> = Vec::new();
    for workload in workloads.iter().filter(|workload| !workload.is_bare) {
        // Workloads without a group name form one group.
        let name = workload.group.clone().unwrap_or_default();
        match groups.iter_mut().find(|(group, _)| *group == name) {
            Some((_, members)) => members.push(workload),
            None => groups.push((name, vec![workload])),
        }
    }
    groups
}

fn indices(recording: &Recording, rows: &[Row]) -> Vec<Index> {
    let mut indices = Vec::new();
    for (group, members) in groups(&recording.plan.workloads) {
        let mut control = None;
        for subject in recording.plan.all_subjects() {
            let is_native = subject.name == NATIVE;
            // Speed is the inverse of time.
            let tests: Vec<Pairs> = members
                .iter()
                .filter_map(|workload| pairs(recording, &workload.name, &subject.name))
                .filter_map(|pairs| inverse(&pairs))
                .collect();
            let ratio = (!is_native && !tests.is_empty())
                .then(|| stats::mean_of_ratios(&tests, CONFIDENCE, recording.plan.seed));
            let rounds = tests.iter().map(Pairs::len).min().unwrap_or(0);
            let is_asked = |workload: &&&Workload| {
                let is_row = |row: &&Row| row.workload == workload.name;
                let mut rows = rows.iter().filter(is_row);
                rows.any(|row| row.subject == subject.name && row.n + row.invalid > 0)
            };
            let asked = members.iter().filter(is_asked).count();
            let verdict = ratio.map(|ratio| {
                // The verdict's words are about time, not speed.
                let [time, control] = [Some(ratio), control].map(|interval| interval.map(turned));
                let time = time.expect("it is there");
                verdict_words(stats::verdict(time, control, rounds, Thresholds::default()))
            });
            if subject.name == NATIVE_AGAIN {
                control = ratio;
            }
            indices.push(Index {
                workloads: tests.len(),
                failed: asked - tests.len().min(asked),
                ratio: ratio.map(Ratio::from),
                system: system_index(rows, &members, &subject.name),
                verdict,
                group: group.clone(),
                subject: subject.name,
            });
        }
    }
    indices
}

fn inverse(pairs: &Pairs) -> Option<Pairs> {
    let inverse: Vec<_> = pairs
        .as_slice()
        .iter()
        .map(|(a, b)| (1.0 / a, 1.0 / b))
        .collect();
    Pairs::new(inverse).ok()
}

fn turned(interval: Interval) -> Interval {
    Interval {
        estimate: 1.0 / interval.estimate,
        low: 1.0 / interval.high,
        high: 1.0 / interval.low,
    }
}

/// Returns ten times the geometric mean of score divided by baseline. `None` unless all twelve tests are
/// present.
fn system_index(rows: &[Row], members: &[&Workload], subject: &str) -> Option<f64> {
    let of = |workload: &&Workload| {
        let wanted = |row: &&Row| row.workload == workload.name && row.subject == subject;
        rows.iter().find(wanted)?.index
    };
    let indices: Vec<f64> = members.iter().map(of).collect::<Option<_>>()?;
    if indices.len() != workload::unixbench::TESTS.len() {
        return None;
    }
    let sum: f64 = indices.iter().map(|index| index.ln()).sum();
    Some((sum / indices.len() as f64).exp())
}

/// Summarises a results folder and writes `summary.txt`, `summary.md` and `summary.json` to it.
///
/// # Errors
///
/// If the folder cannot be written.
pub fn write(folder: &Path, recording: &Recording) -> Result<Summary, Error> {
    let summary = summarise(recording);
    record::write(&folder.join("summary.txt"), &summary.text())?;
    record::write(&folder.join("summary.md"), &summary.markdown())?;
    record::write(&folder.join("summary.json"), &summary.json())?;
    Ok(summary)
}

/// Returns the valid figures of native and a subject from the same rounds.
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

/// Returns the ratio of a subject's median to native's.
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
    let is_valid = |sample: &&&Sample| sample.ns_per_operation().is_some();
    let valid: Vec<&Sample> = all.iter().filter(is_valid).copied().collect();
    let times = numbers(&valid, Sample::ns_per_operation);
    let pairs = match subject {
        NATIVE => None,
        _ => pairs(recording, workload, subject),
    };
    let ratio = pairs
        .as_ref()
        .map(|pairs| stats::ratio_of_medians(pairs, CONFIDENCE, recording.plan.seed));
    let rounds = pairs.as_ref().map_or(0, Pairs::len);
    let score = unixbench_score(recording, workload, times.as_ref());
    let index = score.and_then(|score| Some(unix::test_of(workload)?.0.index(score)));
    let drops = all.iter().filter_map(|sample| sample.drops);
    let drops = drops.reduce(|a, b| a + b);
    let control = control.filter(|_| subject != NATIVE_AGAIN);
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
        shift_ns: (pairs.as_ref()).map(|p| stats::hodges_lehmann(&p.baseline(), &p.candidate())),
        p: (pairs.as_ref()).map(|p| stats::mann_whitney(&p.baseline(), &p.candidate()).p),
        p_adjusted: None,
        score,
        index,
        extra: extras(&valid, 0.5, 1),
        extra_p95: extras(&valid, 0.95, ENOUGH_FOR_P95),
        verdict: verdict.map(|verdict| words(verdict, subject, drops)),
        user_us: numbers(&valid, |sample| Some(sample.user_us as f64)).map(|n| n.median()),
        sys_us: numbers(&valid, |sample| Some(sample.sys_us as f64)).map(|n| n.median()),
        max_rss_kib: valid.iter().map(|sample| sample.max_rss_kib).max(),
        drops,
    }
}

/// Collects one figure of the samples that have it.
fn numbers(samples: &[&Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<Numbers> {
    let values: Vec<f64> = samples.iter().filter_map(|sample| figure(sample)).collect();
    Numbers::new(values).ok()
}

/// Returns the score as UnixBench computes it: from the median, or in a classic run the geometric mean of the
/// passes without the worst third.
fn unixbench_score(recording: &Recording, workload: &str, times: Option<&Numbers>) -> Option<f64> {
    if recording.plan.suite != Some(Suite::Unix) {
        return None;
    }
    let (test, _) = unix::test_of(workload)?;
    let times = times?;
    let is_classic = recording
        .plan
        .workloads
        .iter()
        .any(|workload| workload.rounds.is_some());
    if !is_classic {
        return Some(test.score(times.median()));
    }
    // Times are in ascending order, so the worst are at the end.
    let kept = &times.values()[..times.len() - times.len() / 3];
    let sum: f64 = kept.iter().map(|time| test.score(*time).ln()).sum();
    Some((sum / kept.len() as f64).exp())
}

/// Number of samples needed for a 95th percentile: one in twenty lies beyond it.
const ENOUGH_FOR_P95: usize = 20;

fn extras(valid: &[&Sample], at: f64, least: usize) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in valid.iter().flat_map(|sample| &sample.extra) {
        all.entry(name.clone()).or_default().push(*value);
    }
    all.into_iter()
        .filter(|(_, values)| values.len() >= least)
        .filter_map(|(name, values)| Some((name, Numbers::new(values).ok()?.quantile(at))))
        .collect()
}

/// Formats a verdict. A time of a subject that lost events is always marked.
fn words(verdict: Verdict, subject: &str, drops: Option<u64>) -> String {
    let words = verdict_words(verdict);
    let words = match verdict {
        Verdict::Slower | Verdict::Faster if subject == NATIVE_AGAIN => {
            format!("{words} than itself: smaller differences are noise")
        }
        _ => words,
    };
    match drops {
        Some(lost @ 1..) => format!("{words}, with {lost} events dropped"),
        _ => words,
    }
}

/// Formats a verdict as the report does.
pub(crate) fn verdict_words(verdict: Verdict) -> String {
    let percent = |effect: f64| format!("{:.1} %", effect * 100.0);
    match verdict {
        Verdict::Faster => "faster".to_owned(),
        Verdict::Slower => "slower".to_owned(),
        Verdict::NoDifference { smallest_visible } => {
            format!(
                "no difference found (effects above {} would show)",
                percent(smallest_visible)
            )
        }
        Verdict::TooNoisy { smallest_visible } if smallest_visible.is_finite() => {
            format!(
                "{INCONCLUSIVE}: noise hides effects below {}",
                percent(smallest_visible)
            )
        }
        Verdict::TooNoisy { .. } => TOO_FEW_ROUNDS.to_owned(),
    }
}

impl Summary {
    /// Formats the summary as text.
    pub fn text(&self) -> String {
        self.forms(Table::text, "")
    }

    /// Formats the summary as Markdown.
    pub fn markdown(&self) -> String {
        self.forms(Table::markdown, "\n")
    }

    fn forms(&self, form: fn(&Table) -> String, before: &str) -> String {
        let mut out = match self.quick {
            true => format!("{QUICK}\n\n"),
            false => String::new(),
        };
        out += &form(&self.table());
        for table in tables::besides(self) {
            out += &format!("\n{}\n\n{}", table.title, form(&table.table));
        }
        out + &self.failures(before)
    }

    /// Formats the summary as JSON.
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

    /// Returns the subjects of which every sample failed, once each, with the first reason. They have no
    /// figures.
    pub(crate) fn failed_subjects(&self) -> Vec<(&str, &str)> {
        let mut failed: Vec<(&str, &str)> = Vec::new();
        for row in &self.rows {
            let mut rows = self
                .rows
                .iter()
                .filter(|other| other.subject == row.subject);
            let is_new = failed.iter().all(|(subject, _)| *subject != row.subject);
            if row.invalid > 0 && is_new && rows.all(|row| row.n == 0) {
                let reason = row.first_failure.as_deref().unwrap_or("unknown");
                failed.push((&row.subject, reason));
            }
        }
        failed
    }

    /// Formats one line for each row that has invalid samples.
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
    use crate::record::{Exit, WorkCheck};

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
            extra: BTreeMap::new(),
            wall_ns: ns,
            user_us: 1,
            sys_us: 2,
            max_rss_kib: 3,
            exit: Exit::Code(0),
            witness: WorkCheck::default(),
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
            host: crate::host::Host::default(),
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
                .ends_with("with 7 events dropped"),
            "{row:?}"
        );
    }

    #[test]
    fn all_workloads_make_one_index() {
        let summary = summarise(&recording(2));
        let [native, again, slow] = &summary.indices[..] else {
            panic!("three subjects")
        };
        assert_eq!((native.ratio, slow.system), (None, None));
        assert!((again.ratio.unwrap().estimate - 1.0).abs() < 0.01);
        assert!((slow.ratio.unwrap().estimate - 0.5).abs() < 0.005);
        assert_eq!(slow.verdict.as_deref(), Some("slower"));
    }

    #[test]
    fn a_difference_that_holds_only_by_itself_says_so() {
        let mut recording = recording(1);
        // Thirty more subjects that are like native, and one that is slightly slower.
        for number in 0..30 {
            let mut subject = recording.plan.subjects[0].clone();
            subject.name = format!("like-{number}");
            recording.plan.subjects.push(subject);
        }
        let samples: Vec<Sample> = recording.samples.clone();
        for one in samples.iter().filter(|one| one.subject == NATIVE) {
            for number in 0..30 {
                recording.samples.push(Sample {
                    subject: format!("like-{number}"),
                    ..one.clone()
                });
            }
        }
        for one in recording
            .samples
            .iter_mut()
            .filter(|one| one.subject == "slow")
        {
            one.elapsed_ns = one.elapsed_ns.map(|ns| ns + 3);
        }
        let summary = summarise(&recording);
        let slow = &summary.rows[2];
        assert!(slow.p_adjusted.unwrap() > slow.p.unwrap());
        if slow.verdict.as_deref().unwrap().starts_with("slower") {
            let words = slow.verdict.as_deref().unwrap();
            assert!(
                words.ends_with("but not significant after correcting for 31 comparisons"),
                "{words}"
            );
        }
    }

    /// Twelve tests whose scores equal the baselines have the index 10, and the worst third of the passes of a
    /// classic run is ignored.
    #[test]
    fn unixbenchs_index_is_computed_as_its_script_does() {
        let mut recording = recording(1);
        let pattern = recording.plan.workloads[0].clone();
        recording.plan.suite = Some(Suite::Unix);
        recording.plan.workloads.clear();
        recording.samples.clear();
        for test in workload::unixbench::TESTS {
            recording.plan.workloads.push(Workload {
                name: test.name.to_owned(),
                rounds: Some(3),
                group: Some("1 copy".to_owned()),
                ..pattern.clone()
            });
            for round in 0..3 {
                // A score of the baseline, and a disturbed pass.
                let worse = if round == 1 { 5.0 } else { 1.0 };
                let ns = test.weight * 1e9 / test.baseline * worse;
                let mut one = sample(round, NATIVE, 0);
                one.workload = test.name.to_owned();
                one.operations = Some(1_000_000);
                let elapsed = std::time::Duration::from_secs_f64(ns * 1e6 / 1e9);
                one.elapsed_ns = u64::try_from(elapsed.as_nanos()).ok();
                recording.samples.push(one);
            }
        }
        let summary = summarise(&recording);
        let system = summary.indices[0].system.unwrap();
        assert!((system - 10.0).abs() < 0.001, "{system}");
        assert!(summary.text().contains("Dhrystone") || summary.text().contains("dhry2reg"));
        recording.plan.workloads.pop();
        assert_eq!(
            summarise(&recording).indices[0].system,
            None,
            "eleven tests have no system index"
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
        let short = &summarise(&recording).rows[2];
        assert!(short.ratio.is_some() && short.conclusive_ratio().is_none());
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
