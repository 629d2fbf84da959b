//! Tables of figures in documents are made from the results that they link to.
//!
//! A comment describes a table, and the table below it is computed from the samples of the named folders, as
//! `tollgate bench report` computes them. `cargo run -p xtask -- figures --write` writes the table; the check
//! compares.
//!
//! ```text
//! <!-- figures: begin
//! load
//! column on the host = results/RUN SUBJECT
//! column another = results/RUN SUBJECT or results/OTHER SUBJECT
//! row `read`, `write` of a byte = read, write
//! row start = time of start
//! -->
//! | ... |
//! <!-- figures: end -->
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bench::record::Recording;
use bench::summary::summarise;

use crate::tree::{File, Finding, Tree};

const BEGIN: &str = "<!-- figures: begin";
const END: &str = "<!-- figures: end -->";
/// Prefix of a workload: show the time itself, not its ratio to native's.
const TIME: &str = "time of ";

/// The figures of a run for a workload under a subject.
#[derive(Clone, Debug)]
struct Figure {
    workload: String,
    subject: String,
    /// Time divided by native time.
    ratio: Option<f64>,
    median_ns: Option<f64>,
}

/// Figures of runs by folder, computed once for all tables.
struct Runs<'a> {
    measure: &'a dyn Fn(&str) -> Result<Vec<Figure>>,
    known: BTreeMap<String, Vec<Figure>>,
}

impl<'a> Runs<'a> {
    fn new(measure: &'a dyn Fn(&str) -> Result<Vec<Figure>>) -> Self {
        Self {
            measure,
            known: BTreeMap::new(),
        }
    }

    /// Computes the figures of a folder, once.
    fn load(&mut self, folder: &str) -> Result<()> {
        if !self.known.contains_key(folder) {
            self.known
                .insert(folder.to_owned(), (self.measure)(folder)?);
        }
        Ok(())
    }
}

/// Computes the figures of a folder below `root` from its samples.
fn measured(root: &Path, folder: &str) -> Result<Vec<Figure>> {
    let recording =
        Recording::load(&root.join(folder)).with_context(|| format!("cannot read {folder}"))?;
    let rows = summarise(&recording).rows.into_iter();
    let figures = rows.map(|row| Figure {
        // A row whose rounds do not say has no ratio in a document.
        ratio: row.conclusive_ratio().map(|ratio| ratio.estimate),
        median_ns: row.median_ns,
        workload: row.workload,
        subject: row.subject,
    });
    Ok(figures.collect())
}

/// Reports tables that differ from their results.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let measure = |folder: &str| measured(&tree.root, folder);
    let mut runs = Runs::new(&measure);
    for document in documents(tree) {
        let line = 1 + document
            .text
            .lines()
            .take_while(|line| !line.starts_with(BEGIN))
            .count();
        match renewed(&mut runs, &document.path, &document.text) {
            Ok(text) if text == document.text => {}
            Ok(_) => findings.push(Finding {
                path: document.path.clone(),
                line,
                message: "the table is not what its results say; run `cargo run -p xtask -- figures --write`"
                    .to_owned(),
            }),
            Err(error) => findings.push(Finding {
                path: document.path.clone(),
                line,
                message: format!("{error:#}"),
            }),
        }
    }
    Ok(findings)
}

/// Rewrites every table.
pub(crate) fn write(tree: &Tree) -> Result<()> {
    let measure = |folder: &str| measured(&tree.root, folder);
    let mut runs = Runs::new(&measure);
    for document in documents(tree) {
        let text = renewed(&mut runs, &document.path, &document.text)
            .with_context(|| format!("cannot write the tables of {}", document.path))?;
        let path = tree.root.join(&document.path);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn documents(tree: &Tree) -> impl Iterator<Item = &File> {
    let has_table = |file: &&File| file.text.lines().any(|line| line.starts_with(BEGIN));
    tree.files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .filter(has_table)
}

/// Returns the document with all its tables recomputed. Links lead from its folder to the results.
fn renewed(runs: &mut Runs<'_>, path: &str, text: &str) -> Result<String> {
    let up = "../".repeat(path.matches('/').count());
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let end_of_order = rest[at..]
            .find("-->")
            .context("a comment with figures does not end")?
            + at
            + 3;
        let end = rest[end_of_order..]
            .find(END)
            .with_context(|| format!("`{END}` is missing"))?;
        let order = &rest[at + BEGIN.len()..end_of_order - 3];
        out += &rest[..end_of_order];
        out += "\n\n";
        out += &table(runs, order)?.replace("](results/", &format!("]({up}results/"));
        out += "\n";
        rest = &rest[end_of_order + end..];
    }
    Ok(out + rest)
}

/// The sources of a column's figures: the first source that has the workload counts.
struct Column<'a> {
    title: &'a str,
    sources: Vec<(&'a str, &'a str)>,
}

fn table(runs: &mut Runs<'_>, order: &str) -> Result<String> {
    let mut corner = "";
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for line in order.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let assigned = |text: &'static str| {
            line.strip_prefix(text)
                .and_then(|rest| rest.rsplit_once(" = "))
        };
        if let Some((title, sources)) = assigned("column ") {
            columns.push(column(title, sources)?);
        } else if let Some((label, workloads)) = assigned("row ") {
            rows.push((label, workloads));
        } else {
            corner = line;
        }
    }
    ensure!(
        !columns.is_empty() && !rows.is_empty(),
        "a table needs columns and rows"
    );
    for (folder, _) in columns.iter().flat_map(|column| &column.sources) {
        runs.load(folder)?;
    }
    let titles: Vec<String> = columns.iter().map(heading).collect();
    let mut out = format!(
        "| {corner} | {} |\n|---{}|\n",
        titles.join(" | "),
        "|---".repeat(titles.len())
    );
    for (label, workloads) in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| cell(column, workloads, &runs.known))
            .collect::<Result<_>>()?;
        ensure!(
            cells.iter().any(|cell| !cell.is_empty()),
            "no run has a figure for `{workloads}`; correct the name"
        );
        out += &format!("| {label} | {} |\n", cells.join(" | "));
    }
    Ok(out.replace("|  |", "| |"))
}

fn column<'a>(title: &'a str, sources: &'a str) -> Result<Column<'a>> {
    let sources = sources
        .split(" or ")
        .map(|source| {
            source
                .trim()
                .split_once(' ')
                .context("a source is FOLDER SUBJECT")
        })
        .collect::<Result<Vec<_>>>()?;
    if sources.is_empty() {
        bail!("column `{title}` has no source");
    }
    Ok(Column { title, sources })
}

/// Formats the title of a column. A column of one run links to it in the title; others link in their cells.
fn heading(column: &Column<'_>) -> String {
    match column.sources[..] {
        [(folder, _)] => format!("[{}]({folder}/README.md)", column.title),
        _ => column.title.to_owned(),
    }
}

fn cell(
    column: &Column<'_>,
    workloads: &str,
    runs: &BTreeMap<String, Vec<Figure>>,
) -> Result<String> {
    for (folder, subject) in &column.sources {
        let rows = &runs[*folder];
        let figure = |workload: &str| {
            let (workload, is_time) = match workload.strip_prefix(TIME) {
                Some(workload) => (workload, true),
                None => (workload, false),
            };
            let row = rows
                .iter()
                .find(|row| row.workload == workload && row.subject == *subject)?;
            if is_time {
                row.median_ns.map(milliseconds)
            } else {
                row.ratio.map(ratio)
            }
        };
        let figures: Vec<String> = workloads
            .split(',')
            .filter_map(|name| figure(name.trim()))
            .collect();
        if !figures.is_empty() {
            let text = figures.join(", ");
            return Ok(match column.sources.len() {
                1 => text,
                _ => format!("[{text}]({folder}/README.md)"),
            });
        }
    }
    Ok(String::new())
}

/// Formats a ratio. Most runs do not resolve more than three digits; two digits are kept from 3 on.
fn ratio(ratio: f64) -> String {
    if ratio < 3.0 {
        format!("{ratio:.2}")
    } else {
        format!("{ratio:.1}")
    }
}

fn milliseconds(ns: f64) -> String {
    format!("{:.0} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "before\n<!-- figures: begin\nload\ncolumn here = results/a t\n\
        column there = results/b t or results/a t\nrow `x` = x\nrow y = y, x\nrow start = time of y\n-->\n\n\
        | old |\n\n<!-- figures: end -->\nafter\n";

    fn figures(folder: &str) -> Result<Vec<Figure>> {
        let figure = |workload: &str, ratio, median_ns| Figure {
            workload: workload.to_owned(),
            subject: "t".to_owned(),
            ratio: Some(ratio),
            median_ns: Some(median_ns),
        };
        match folder {
            "results/a" => Ok(vec![figure("x", 1.234, 1.0), figure("y", 5.678, 31e6)]),
            "results/b" => Ok(vec![figure("x", 2.0, 1.0)]),
            _ => bail!("cannot read {folder}"),
        }
    }

    fn renew(path: &str, text: &str) -> Result<String> {
        renewed(&mut Runs::new(&figures), path, text)
    }

    #[test]
    fn a_table_is_made_from_results_and_then_stays() {
        let once = renew("a.md", DOCUMENT).unwrap();
        let table = "| load | [here](results/a/README.md) | there |\n|---|---|---|\n\
                     | `x` | 1.23 | [2.00](results/b/README.md) |\n\
                     | y | 5.7, 1.23 | [2.00](results/b/README.md) |\n\
                     | start | 31 ms | [31 ms](results/a/README.md) |\n";
        assert!(once.contains(table), "{once}");
        assert!(once.starts_with("before\n") && once.ends_with("<!-- figures: end -->\nafter\n"));
        assert_eq!(renew("a.md", &once).unwrap(), once);
        let below = renew("docs/explanation/a.md", DOCUMENT).unwrap();
        assert!(
            below.contains("[here](../../results/a/README.md)"),
            "{below}"
        );
    }

    #[test]
    fn orders_that_lead_nowhere_are_refused() {
        let fail = |old: &str, new: &str| {
            format!(
                "{:#}",
                renew("a.md", &DOCUMENT.replace(old, new)).unwrap_err()
            )
        };
        assert!(fail("= x\n", "= nothing\n").contains("no run has a figure for `nothing`"));
        assert!(
            fail("results/a t\ncolumn", "results/c t\ncolumn").contains("cannot read results/c")
        );
        assert!(fail("<!-- figures: end -->", "").contains("is missing"));
    }

    #[test]
    fn figures_of_a_published_run_come_from_its_samples() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let figures = measured(&root, "results/2026-11-21-engine").unwrap();
        let is_notify =
            |figure: &&Figure| figure.workload == "open_close" && figure.subject == "notify";
        let figure = figures.iter().find(is_notify).unwrap();
        assert_eq!(
            figure.ratio.map(ratio),
            Some("5.5".to_owned()),
            "{figure:?}"
        );
    }
}
