//! Additional tables of a report.

use crate::plan::{NATIVE, NATIVE_AGAIN, Suite};
use crate::suite::unix::ORIGINAL;
use crate::suite::{Published, published};
use crate::summary::{Ratio, Row, Summary};
use crate::table::{self, Table, time};

/// A table with a title.
pub(crate) struct Titled {
    pub(crate) title: String,
    pub(crate) table: Table,
}

/// Returns the additional tables that have figures.
pub(crate) fn besides(summary: &Summary) -> Vec<Titled> {
    [
        scores(summary),
        indices(summary),
        cross_check(summary),
        others(summary),
        beside_published(summary),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn row<'a>(summary: &'a Summary, workload: &str, subject: &str) -> Option<&'a Row> {
    let wanted = |row: &&Row| row.workload == workload && row.subject == subject;
    summary.rows.iter().find(wanted)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Returns UnixBench's own report: scores in its units, and the index.
fn scores(summary: &Summary) -> Option<Titled> {
    let mut table = Table::new(2, ["test", "subject", "score", "unit", "index"]);
    for row in &summary.rows {
        let (Some(score), Some(index)) = (row.score, row.index) else {
            continue;
        };
        let (test, _) = crate::suite::unix::test_of(&row.workload)?;
        table.push([
            row.workload.clone(),
            row.subject.clone(),
            format!("{score:.1}"),
            test.unit.to_owned(),
            format!("{index:.1}"),
        ]);
    }
    (!table.is_empty()).then(|| Titled {
        title: "UnixBench's scores and index (10 is a SPARCstation 20-61)".to_owned(),
        table,
    })
}

fn indices(summary: &Summary) -> Option<Titled> {
    let mut table = Table::new(
        2,
        [
            "all of",
            "subject",
            "workloads",
            "index",
            "speed",
            "95 % interval",
            "verdict",
        ],
    );
    for index in &summary.indices {
        if index.subject == NATIVE && index.system.is_none() {
            continue;
        }
        table.push([
            if index.group.is_empty() {
                "all".to_owned()
            } else {
                index.group.clone()
            },
            index.subject.clone(),
            index.workloads.to_string(),
            or_dash(
                index
                    .conclusive_system()
                    .map(|system| format!("{system:.1}")),
            ),
            or_dash(
                index
                    .conclusive_ratio()
                    .map(|ratio| table::ratio(ratio.estimate)),
            ),
            or_dash(index.conclusive_ratio().map(Ratio::ends)),
            or_dash(index.verdict.clone()),
        ]);
    }
    (!table.is_empty()).then(|| Titled {
        title:
            "All workloads in one figure: speed / native speed, geometric mean; below 1 is slower"
                .to_owned(),
        table,
    })
}

/// Largest difference at which scores of our tests and of UnixBench's own programs agree.
const AGREEMENT: f64 = 0.10;

fn cross_check(summary: &Summary) -> Option<Titled> {
    let mut table = Table::new(1, ["test", "ours", "UnixBench's", "ratio", "within 10 %"]);
    for theirs in &summary.rows {
        let Some(name) = theirs.workload.strip_suffix(ORIGINAL) else {
            continue;
        };
        let ours = row(summary, name, NATIVE)?;
        let (Some(own), Some(original)) = (ours.score, theirs.score) else {
            continue;
        };
        if theirs.subject != NATIVE {
            continue;
        }
        let ratio = own / original;
        let agrees = (1.0 - AGREEMENT..=1.0 + AGREEMENT).contains(&ratio);
        table.push([
            name.to_owned(),
            format!("{own:.1}"),
            format!("{original:.1}"),
            table::ratio(ratio),
            if agrees { "yes" } else { "no" }.to_owned(),
        ]);
    }
    (!table.is_empty()).then(|| Titled {
        title: "Cross-check: native scores of our tests and of UnixBench's own programs".to_owned(),
        table,
    })
}

/// Returns the medians of the other figures that workloads report.
fn others(summary: &Summary) -> Option<Titled> {
    let mut table = Table::new(
        3,
        [
            "workload",
            "subject",
            "figure",
            "median",
            "p95",
            "over native's",
        ],
    );
    // The clock, which every loop reports, adds nothing to the time.
    let says_more = |row: &&Row| row.extra.keys().any(|name| name != "clock_ms");
    for row in summary.rows.iter().filter(says_more) {
        for (name, value) in &row.extra {
            let native =
                self::row(summary, &row.workload, NATIVE).and_then(|native| native.extra.get(name));
            let ratio = native
                .filter(|native| **native > 0.0)
                .map(|native| table::ratio(value / native));
            table.push([
                row.workload.clone(),
                row.subject.clone(),
                name.clone(),
                named(name, *value),
                or_dash(row.extra_p95.get(name).map(|value| named(name, *value))),
                or_dash(ratio),
            ]);
        }
    }
    (!table.is_empty()).then(|| Titled {
        title: "Other figures of the workloads".to_owned(),
        table,
    })
}

/// Formats a figure. Its unit is the end of its name.
fn named(name: &str, value: f64) -> String {
    match name.rsplit_once('_') {
        Some((_, "ns")) => time(value),
        Some((_, "us")) => time(value * 1e3),
        Some((_, "ms")) => time(value * 1e6),
        _ => report::number(value),
    }
}

/// Returns our figures and published ones side by side, as time / native time.
fn beside_published(summary: &Summary) -> Option<Titled> {
    let figures = published(summary.suite?);
    let mut table = Table::new(
        3,
        [
            "workload",
            "measured by",
            "subject",
            "time / native time",
            "speed / native speed",
        ],
    );
    for Published { workload, .. } in unique(&figures) {
        let of_all = ours(summary, workload);
        if of_all.is_empty() {
            continue;
        }
        for theirs in figures.iter().filter(|theirs| theirs.workload == workload) {
            let time = theirs.time();
            table.push([
                workload.to_owned(),
                "published".to_owned(),
                theirs.environment.to_owned(),
                table::ratio(time),
                table::ratio(1.0 / time),
            ]);
        }
        for (subject, time) in of_all {
            // Figures that the rounds do not bear out have a row, which says why it has no number.
            let (time, speed) = match time {
                Ok(time) => (table::ratio(time), table::ratio(1.0 / time)),
                Err(verdict) => (verdict, "-".to_owned()),
            };
            table.push([workload.to_owned(), "here".to_owned(), subject, time, speed]);
        }
    }
    (!table.is_empty()).then(|| Titled {
        title: "Beside published figures (other machines: compare ratios, not more)".to_owned(),
        table,
    })
}

/// Returns the first figure of each workload.
fn unique(figures: &[Published]) -> Vec<Published> {
    let mut unique: Vec<Published> = Vec::new();
    for figure in figures {
        if unique.iter().all(|known| known.workload != figure.workload) {
            unique.push(*figure);
        }
    }
    unique
}

/// Returns each subject that was measured with its time / native time, or the verdict that denies the figure.
fn ours(summary: &Summary, workload: &str) -> Vec<(String, Result<f64, String>)> {
    let is_subject = |name: &str| ![NATIVE, NATIVE_AGAIN].contains(&name);
    let figure = |ratio: Option<Ratio>, verdict: &Option<String>| {
        ratio
            .map(|ratio| ratio.estimate)
            .ok_or_else(|| or_dash(verdict.clone()))
    };
    if workload == "index" {
        return (summary.indices.iter())
            .filter(|index| is_subject(&index.subject) && index.ratio.is_some())
            .map(|index| {
                let name = format!("{} {}", index.subject, index.group);
                let speed = figure(index.conclusive_ratio(), &index.verdict);
                (name.trim().to_owned(), speed.map(|speed| 1.0 / speed))
            })
            .collect();
    }
    let matches = |row: &&Row| match summary.suite {
        Some(Suite::Unix) => crate::suite::unix::test_of(&row.workload)
            .is_some_and(|(test, original)| test.name == workload && !original),
        _ => row.workload == workload,
    };
    (summary.rows.iter())
        .filter(matches)
        .filter(|row| is_subject(&row.subject) && row.ratio.is_some())
        .map(|row| {
            // Rows with one of these names as prefix belong to the workload.
            let copies = row.workload.strip_prefix(workload).unwrap_or_default();
            let name = format!("{} {}", row.subject, copies.trim_start_matches('-'));
            let time = figure(row.conclusive_ratio(), &row.verdict);
            (name.trim().to_owned(), time)
        })
        .collect()
}
