//! Output formats of a recording: HTML, JSON, Markdown and others.

use std::collections::BTreeMap;
use std::path::Path;

use report::{
    Body, Case, Cells, Curve, Curves, Forest, ForestRow, Heat, Measure, Outcome, Page, Part, Strip,
    Strips,
};
use stats::Sample as Numbers;

use crate::limit::BrokenLimit;
use crate::plan::{NATIVE, NATIVE_AGAIN};
use crate::record::{self, Recording};
use crate::summary::{QUICK, Row, Summary, summarise};
use crate::table::time;
use crate::{Error, tables};

/// Files of a results folder that other programs read.
pub(crate) const FORMS: [&str; 5] = [
    "report.html",
    "rows.csv",
    "rows.jsonl",
    "junit.xml",
    "bencher.json",
];

/// Writes every format into `folder`. `history` holds earlier recordings, oldest first.
pub(crate) fn write(
    folder: &Path,
    recording: &Recording,
    summary: &Summary,
    broken: &[BrokenLimit],
    history: &[Recording],
) -> Result<(), Error> {
    let texts = [
        page(recording, summary, history).html(),
        report::csv(&csv_rows(summary)),
        json_lines(summary),
        report::junit(&summary.plan, &cases(recording, summary, broken)),
        report::bencher(&measures(summary)),
    ];
    for (name, text) in FORMS.iter().zip(texts) {
        record::write(&folder.join(name), &text)?;
    }
    Ok(())
}

fn page(recording: &Recording, summary: &Summary, history: &[Recording]) -> Page {
    let mut parts = vec![Part {
        heading: "Overhead".to_owned(),
        note: "Time over native's time: ratio of medians with its 95 % interval. Right of the dashed line is \
               slower. native-again is native measured against itself: no smaller difference is called one."
            .to_owned(),
        body: Body::Forest(forest(summary)),
    }];
    parts.extend(heat(summary));
    parts.extend(knee(recording));
    parts.extend(trend(recording, history));
    parts.extend(tables::besides(summary).into_iter().map(|titled| {
        let (left, mut rows) = titled.table.into_cells();
        Part {
            heading: titled.title,
            note: String::new(),
            body: Body::Table(Cells {
                header: rows.remove(0),
                left,
                rows,
            }),
        }
    }));
    parts.push(Part {
        heading: "Every sample".to_owned(),
        note: "Dots are samples, the box is the middle half, the line is the median.".to_owned(),
        body: Body::Strips(strips(recording, summary)),
    });
    let setup = summary
        .setup
        .as_ref()
        .map_or_else(String::new, |name| format!(", {name}"));
    let quick = if summary.quick { " (quick run)" } else { "" };
    Page {
        title: format!("What it costs: {}{setup}{quick}", summary.plan),
        lead: lead(summary),
        facts: facts(recording),
        parts,
    }
}

/// Returns one sentence for each subject.
fn lead(summary: &Summary) -> Vec<String> {
    let mut lead: Vec<String> = Vec::new();
    if summary.quick {
        lead.push(format!("{QUICK}."));
    }
    let sentences = (summary.indices.iter())
        .filter(|index| ![NATIVE, NATIVE_AGAIN].contains(&index.subject.as_str()))
        .filter_map(|index| {
            let group = if index.group.is_empty() {
                String::new()
            } else {
                format!(" ({})", index.group)
            };
            let Some(ratio) = index.conclusive_ratio() else {
                let verdict = index.verdict.as_ref()?;
                return Some(format!("{}{group}: no figure, {verdict}.", index.subject));
            };
            Some(format!(
                "{}{group}: {} of native's speed over {} workloads ({} to {} at 95 %).",
                index.subject,
                percent(ratio.estimate),
                index.workloads,
                percent(ratio.low),
                percent(ratio.high)
            ))
        });
    lead.extend(sentences);
    let failed: usize = summary.rows.iter().map(|row| row.invalid).sum();
    if failed > 0 {
        lead.push(format!(
            "{failed} samples failed and are left out of all figures; see summary.txt."
        ));
    }
    lead
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns the colour of each subject: 0 for native and its control.
fn series(summary: &Summary) -> BTreeMap<&str, usize> {
    let mut next = 0;
    let mut series = BTreeMap::from([(NATIVE, 0), (NATIVE_AGAIN, 0)]);
    for row in &summary.rows {
        series.entry(&row.subject).or_insert_with(|| {
            next = next % 7 + 1;
            next
        });
    }
    series
}

fn forest(summary: &Summary) -> Forest {
    let series = series(summary);
    let row = |row: &Row| {
        let ratio = row.ratio?;
        Some(ForestRow {
            group: row.workload.clone(),
            label: row.subject.clone(),
            estimate: ratio.estimate,
            low: ratio.low,
            high: ratio.high,
            // Native rows have no verdict.
            verdict: row.verdict.clone().unwrap_or_default(),
            series: series.get(row.subject.as_str()).copied().unwrap_or(0),
        })
    };
    Forest {
        rows: summary.rows.iter().filter_map(row).collect(),
    }
}

/// Makes the heat map. `None` unless there are several mechanisms to compare.
fn heat(summary: &Summary) -> Option<Part> {
    let mut columns: Vec<String> = Vec::new();
    let mut rows: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    let subjects = || summary.rows.iter().filter(|row| row.subject != NATIVE);
    for row in subjects() {
        if !columns.contains(&row.workload) {
            columns.push(row.workload.clone());
        }
    }
    for row in subjects() {
        if rows.iter().all(|(name, _)| *name != row.subject) {
            rows.push((row.subject.clone(), vec![None; columns.len()]));
        }
        let column = columns.iter().position(|name| *name == row.workload)?;
        let cells = rows.iter_mut().find(|(name, _)| *name == row.subject)?;
        cells.1[column] = row.ratio.map(|ratio| ratio.estimate);
    }
    (rows.len() > 1 && columns.len() > 1).then_some(Part {
        heading: "Mechanism by test".to_owned(),
        note: "Time / native time; darker red is slower.".to_owned(),
        body: Body::Heat(Heat { columns, rows }),
    })
}

/// Plots lost events over the rate of events. `None` unless workloads have a rate.
fn knee(recording: &Recording) -> Option<Part> {
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in recording
        .samples
        .iter()
        .filter(|sample| sample.invalid.is_none())
    {
        let (Some(drops), Some(rate)) = (sample.drops, sample.extra.get("events_per_second"))
        else {
            continue;
        };
        let all = drops + sample.events.unwrap_or(0);
        let share = if all == 0 {
            0.0
        } else {
            drops as f64 / all as f64 * 100.0
        };
        curves
            .entry(&sample.subject)
            .or_default()
            .push((*rate, share));
    }
    if curves.is_empty() {
        return None;
    }
    let curves = curves
        .into_iter()
        .enumerate()
        .map(|(index, (label, mut points))| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve {
                label: label.to_owned(),
                points,
                series: index + 1,
            }
        });
    Some(Part {
        heading: "Losses by rate".to_owned(),
        note: "Events are dropped where a line rises above zero.".to_owned(),
        body: Body::Curves(Curves {
            x_title: "events made in a second".to_owned(),
            y_title: "lost, per cent".to_owned(),
            x_names: Vec::new(),
            curves: curves.collect(),
        }),
    })
}

/// Plots the speed of each subject over earlier recordings and this one.
fn trend(recording: &Recording, history: &[Recording]) -> Option<Part> {
    if history.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (place, one) in (0_u32..).zip(history.iter().chain([recording])) {
        names.push(commit(one));
        for index in summarise(one).indices {
            let Some(ratio) = index.conclusive_ratio() else {
                continue;
            };
            let name = format!("{} {}", index.subject, index.group);
            let points = curves.entry(name.trim().to_owned()).or_default();
            points.push((f64::from(place), ratio.estimate));
        }
    }
    let curves = curves
        .into_iter()
        .enumerate()
        .map(|(at, (label, points))| Curve {
            series: if label.starts_with(NATIVE_AGAIN) {
                0
            } else {
                at % 7 + 1
            },
            label,
            points,
        });
    Some(Part {
        heading: "Trend".to_owned(),
        note: "Speed over native's, all workloads of a recording, by commit; 1 is native."
            .to_owned(),
        body: Body::Curves(Curves {
            x_title: "commit, oldest first".to_owned(),
            y_title: "speed / native speed".to_owned(),
            x_names: names,
            curves: curves.collect(),
        }),
    })
}

fn commit(recording: &Recording) -> String {
    let host = &recording.host;
    let commit = host.commit.as_deref().unwrap_or("unknown");
    let dirty = if host.commit_dirty == Some(true) {
        "+"
    } else {
        ""
    };
    format!("{}{dirty}", commit.get(..7).unwrap_or(commit))
}

fn strips(recording: &Recording, summary: &Summary) -> Vec<Strips> {
    let series = series(summary);
    (recording.plan.workloads.iter())
        .map(|workload| {
            let rows = summary
                .rows
                .iter()
                .filter(|row| row.workload == workload.name);
            Strips {
                title: format!("{}: time per {}", workload.name, workload.unit),
                rows: rows.map(|row| strip(recording, row, &series)).collect(),
            }
        })
        .collect()
}

fn strip(recording: &Recording, row: &Row, series: &BTreeMap<&str, usize>) -> Strip {
    let is_of_row =
        |sample: &&record::Sample| sample.workload == row.workload && sample.subject == row.subject;
    let values: Vec<f64> = (recording.samples.iter())
        .filter(is_of_row)
        .filter_map(record::Sample::ns_per_operation)
        .collect();
    // A row without values gets no box; it shows n = 0.
    let quartiles = Numbers::new(values.clone()).ok();
    Strip {
        label: row.subject.clone(),
        quartiles: quartiles.map(|numbers| [0.25, 0.5, 0.75].map(|at| numbers.quantile(at))),
        values,
        figure: row.median_ns.map_or_else(|| "-".to_owned(), time),
        series: series.get(row.subject.as_str()).copied().unwrap_or(0),
    }
}

fn facts(recording: &Recording) -> Vec<(String, String)> {
    let host = &recording.host;
    let mut facts: Vec<(String, Option<String>)> = vec![
        ("command".to_owned(), Some(host.command.clone())),
        ("commit".to_owned(), Some(commit(recording))),
        ("kernel".to_owned(), host.kernel.clone()),
        ("processor".to_owned(), host.cpu_model.clone()),
        (
            "processors".to_owned(),
            host.cpus.map(|cpus| cpus.to_string()),
        ),
        ("governor".to_owned(), host.governor.clone()),
        (
            "load before".to_owned(),
            host.before.load.map(|load| format!("{:.2}", load[0])),
        ),
        ("seed".to_owned(), Some(recording.plan.seed.to_string())),
        (
            "set-up".to_owned(),
            recording
                .plan
                .setup
                .as_ref()
                .map(|setup| setup.wrapper.clone()),
        ),
    ];
    for subject in &recording.plan.subjects {
        facts.push((
            format!("subject {}", subject.name),
            Some(subject.wrapper.clone()),
        ));
    }
    for (subject, version) in &host.versions {
        facts.push((format!("version of {subject}"), Some(version.clone())));
    }
    let mitigations: Vec<String> = (host.mitigations.iter())
        .filter(|(_, what)| *what != "Not affected")
        .map(|(name, what)| format!("{name}: {what}"))
        .collect();
    facts.push(("mitigations".to_owned(), Some(mitigations.join("; "))));
    facts
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
        .collect()
}

fn csv_rows(summary: &Summary) -> Vec<Vec<String>> {
    const HEADER: [&str; 17] = [
        "workload",
        "subject",
        "unit",
        "n",
        "invalid",
        "median_ns",
        "mad_ns",
        "ratio",
        "ratio_low",
        "ratio_high",
        "shift_ns",
        "p",
        "p_adjusted",
        "score",
        "index",
        "drops",
        "verdict",
    ];
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    rows.extend(summary.rows.iter().map(|row| {
        vec![
            row.workload.clone(),
            row.subject.clone(),
            row.unit.clone(),
            row.n.to_string(),
            row.invalid.to_string(),
            number(row.median_ns),
            number(row.mad_ns),
            number(row.ratio.map(|ratio| ratio.estimate)),
            number(row.ratio.map(|ratio| ratio.low)),
            number(row.ratio.map(|ratio| ratio.high)),
            number(row.shift_ns),
            number(row.p),
            number(row.p_adjusted),
            number(row.score),
            number(row.index),
            row.drops
                .map_or_else(String::new, |drops| drops.to_string()),
            // Native rows have no verdict.
            row.verdict.clone().unwrap_or_default(),
        ]
    }));
    rows
}

fn json_lines(summary: &Summary) -> String {
    let line = |row: &Row| serde_json::to_string(row).expect("a row has only string keys") + "\n";
    summary.rows.iter().map(line).collect()
}

fn cases(recording: &Recording, summary: &Summary, broken: &[BrokenLimit]) -> Vec<Case> {
    let mut cases: Vec<Case> = (summary.rows.iter())
        .map(|row| {
            let is_of_row = |sample: &&record::Sample| {
                sample.workload == row.workload && sample.subject == row.subject
            };
            let walls = recording
                .samples
                .iter()
                .filter(is_of_row)
                .map(|sample| sample.wall_ns);
            let mine = |limit: &&BrokenLimit| {
                limit.subject == row.subject && limit.workload.as_ref() == Some(&row.workload)
            };
            let outcome = match (broken.iter().find(mine), &row.first_failure) {
                (Some(limit), _) => Outcome::Failed(limit.said.clone()),
                (None, Some(reason)) if row.n == 0 => Outcome::Error(reason.clone()),
                _ => Outcome::Passed,
            };
            let ratio = row.ratio.map_or_else(String::new, |ratio| {
                format!(
                    "ratio {} ({})",
                    report::number(ratio.estimate),
                    ratio.ends()
                )
            });
            Case {
                class: format!("{}.{}", summary.plan, row.workload),
                name: row.subject.clone(),
                seconds: walls.sum::<u64>() as f64 / 1e9,
                outcome,
                // Native rows have no verdict.
                said: format!("{ratio} {}", row.verdict.clone().unwrap_or_default())
                    .trim()
                    .to_owned(),
            }
        })
        .collect();
    // Limits on all workloads together are test cases of their own.
    cases.extend(
        broken
            .iter()
            .filter(|limit| limit.workload.is_none())
            .map(|limit| Case {
                class: summary.plan.clone(),
                name: format!("index of {}", limit.subject),
                seconds: 0.0,
                outcome: Outcome::Failed(limit.said.clone()),
                said: String::new(),
            }),
    );
    cases
}

fn measures(summary: &Summary) -> Vec<Measure> {
    let mut measures = Vec::new();
    for row in &summary.rows {
        let benchmark = format!("{}/{}/{}", summary.plan, row.workload, row.subject);
        let mut push = |measure: &str, value: Option<f64>, bounds| {
            measures.extend(value.map(|value| Measure {
                benchmark: benchmark.clone(),
                measure: measure.to_owned(),
                value,
                bounds,
            }));
        };
        push("latency", row.median_ns, None);
        let bounds = row.ratio.map(|ratio| (ratio.low, ratio.high));
        push("ratio", row.ratio.map(|ratio| ratio.estimate), bounds);
        push("score", row.score, None);
    }
    measures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::recording;

    #[test]
    fn every_form_is_written_and_holds_the_subject() {
        let recording = recording(2);
        let summary = summarise(&recording);
        let limit: crate::limit::Limit = "ratio>1.5".parse().unwrap();
        let broken = limit.broken(&summary).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &recording, &summary, &broken, &[]).unwrap();
        for form in FORMS {
            let text = std::fs::read_to_string(folder.path().join(form)).unwrap();
            assert!(text.contains("slow"), "{form}: {text}");
        }
        let junit = std::fs::read_to_string(folder.path().join("junit.xml")).unwrap();
        assert!(junit.contains("failures=\"1\""), "{junit}");
        let csv = std::fs::read_to_string(folder.path().join("rows.csv")).unwrap();
        assert!(
            csv.lines().all(|line| line.split(',').count() >= 17),
            "{csv}"
        );
    }

    #[test]
    fn a_history_becomes_a_trend() {
        let recordings = [recording(2), recording(3)];
        let html = page(&recordings[1], &summarise(&recordings[1]), &recordings[..1]).html();
        assert!(html.contains("Trend"));
        // Two recordings, two subjects other than native.
        assert_eq!(html.matches(" point\"").count(), 4);
        // One round says nothing, so it is no point.
        let mut short = recording(3);
        short.samples.truncate(3);
        let html = page(&recordings[1], &summarise(&recordings[1]), &[short]).html();
        assert_eq!(html.matches(" point\"").count(), 2);
    }

    #[test]
    fn losses_are_drawn_over_rates() {
        let mut recording = recording(1);
        assert!(knee(&recording).is_none());
        for sample in recording
            .samples
            .iter_mut()
            .filter(|sample| sample.subject == "slow")
        {
            sample.extra.insert(
                "events_per_second".to_owned(),
                f64::from(sample.round) * 1e5,
            );
            (sample.events, sample.drops) = (Some(90), Some(10));
        }
        let Some(Part {
            body: Body::Curves(curves),
            ..
        }) = knee(&recording)
        else {
            panic!("a knee")
        };
        assert_eq!(curves.curves[0].points.len(), 10);
        assert!((curves.curves[0].points[0].1 - 10.0).abs() < 1e-9);
    }
}
