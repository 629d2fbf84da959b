//! Tables of figures in documents are made from the results that they link to.
//!
//! A comment says what a table shows, and the table below it is written from `summary.json` of the named
//! folders. `cargo run -p xtask -- figures --write` writes it; the check compares.
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
use serde_json::Value;

use crate::tree::{File, Finding, Tree};

const BEGIN: &str = "<!-- figures: begin";
const END: &str = "<!-- figures: end -->";
/// Before a workload: the time itself, not its ratio to native's.
const TIME: &str = "time of ";

/// Reports tables that are not what their results say.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        let line = 1 + document
            .text
            .lines()
            .take_while(|line| !line.starts_with(BEGIN))
            .count();
        match renewed(&tree.root, &document.path, &document.text) {
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

/// Writes every table anew.
pub(crate) fn write(tree: &Tree) -> Result<()> {
    for document in documents(tree) {
        let text = renewed(&tree.root, &document.path, &document.text)
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

/// The document with all its tables as they should be. Links lead from its folder to the results.
fn renewed(root: &Path, path: &str, text: &str) -> Result<String> {
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
        out += &table(root, order)?.replace("](results/", &format!("]({up}results/"));
        out += "\n";
        rest = &rest[end_of_order + end..];
    }
    Ok(out + rest)
}

/// Where a column's figures come from: the first source that has the workload counts.
struct Column<'a> {
    title: &'a str,
    sources: Vec<(&'a str, &'a str)>,
}

fn table(root: &Path, order: &str) -> Result<String> {
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
    let mut summaries = BTreeMap::new();
    for folder in columns
        .iter()
        .flat_map(|column| column.sources.iter().map(|source| source.0))
    {
        let path = root.join(folder).join("summary.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {folder}/summary.json"))?;
        let summary: Value =
            serde_json::from_str(&text).with_context(|| format!("cannot parse {folder}"))?;
        summaries.insert(folder, summary);
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
            .map(|column| cell(column, workloads, &summaries))
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

/// A column of one run links to it in its title; others link in their cells.
fn heading(column: &Column<'_>) -> String {
    match column.sources[..] {
        [(folder, _)] => format!("[{}]({folder}/README.md)", column.title),
        _ => column.title.to_owned(),
    }
}

fn cell(column: &Column<'_>, workloads: &str, summaries: &BTreeMap<&str, Value>) -> Result<String> {
    for (folder, subject) in &column.sources {
        let rows = summaries[folder]["rows"]
            .as_array()
            .context("a summary without rows")?;
        let figure = |workload: &str| {
            let (workload, is_time) = match workload.strip_prefix(TIME) {
                Some(workload) => (workload, true),
                None => (workload, false),
            };
            let row = rows
                .iter()
                .find(|row| row["workload"] == workload && row["subject"] == *subject)?;
            if is_time {
                row["median_ns"].as_f64().map(milliseconds)
            } else {
                row["ratio"]["estimate"].as_f64().map(ratio)
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

/// Three digits are more than most runs can tell; two are kept from 3 on.
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

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, rows) in [
            (
                "a",
                r#"[{"workload":"x","subject":"t","ratio":{"estimate":1.234},"median_ns":1},
                     {"workload":"y","subject":"t","ratio":{"estimate":5.678},"median_ns":31000000}]"#,
            ),
            (
                "b",
                r#"[{"workload":"x","subject":"t","ratio":{"estimate":2.0},"median_ns":1}]"#,
            ),
        ] {
            let run = folder.path().join("results").join(name);
            fs::create_dir_all(&run).unwrap();
            fs::write(run.join("summary.json"), format!("{{\"rows\":{rows}}}")).unwrap();
        }
        folder
    }

    #[test]
    fn a_table_is_made_from_results_and_then_stays() {
        let folder = repository();
        let once = renewed(folder.path(), "a.md", DOCUMENT).unwrap();
        let table = "| load | [here](results/a/README.md) | there |\n|---|---|---|\n\
                     | `x` | 1.23 | [2.00](results/b/README.md) |\n\
                     | y | 5.7, 1.23 | [2.00](results/b/README.md) |\n\
                     | start | 31 ms | [31 ms](results/a/README.md) |\n";
        assert!(once.contains(table), "{once}");
        assert!(once.starts_with("before\n") && once.ends_with("<!-- figures: end -->\nafter\n"));
        assert_eq!(renewed(folder.path(), "a.md", &once).unwrap(), once);
        let below = renewed(folder.path(), "docs/explanation/a.md", DOCUMENT).unwrap();
        assert!(
            below.contains("[here](../../results/a/README.md)"),
            "{below}"
        );
    }

    #[test]
    fn orders_that_lead_nowhere_are_refused() {
        let folder = repository();
        let fail = |old: &str, new: &str| {
            format!(
                "{:#}",
                renewed(folder.path(), "a.md", &DOCUMENT.replace(old, new)).unwrap_err()
            )
        };
        assert!(fail("= x\n", "= nothing\n").contains("no run has a figure for `nothing`"));
        assert!(
            fail("results/a t\ncolumn", "results/c t\ncolumn").contains("results/c/summary.json")
        );
        assert!(fail("<!-- figures: end -->", "").contains("is missing"));
    }
}
