//! Tables as `kubectl` prints them, JSON and YAML.

use std::io::{self, Write as _};

use clap::ValueEnum;
use jiff::Timestamp;
use node::printable;
use serde_json::{Value, json};

use crate::session::Failure;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What a command shows: tables for people, and the same as data.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) tables: Vec<Table>,
    pub(crate) data: Value,
    /// For people, on stderr.
    pub(crate) notes: Vec<String>,
}

/// A table. Columns that `wide` has are not in the narrow one.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// A line before the table; empty for none.
    pub(crate) title: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    is_wide: bool,
}

/// Columns, of which those that begin with `+` are shown with `-o wide` alone.
pub(crate) fn columns(names: &[&'static str]) -> Vec<Column> {
    let column = |name: &&'static str| Column {
        name: name.trim_start_matches('+'),
        is_wide: name.starts_with('+'),
    };
    names.iter().map(column).collect()
}

impl Table {
    fn text(&self, is_wide: bool) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|index| is_wide || !self.columns[*index].is_wide)
            .collect();
        let head = self.columns.iter().map(|column| column.name.to_owned());
        let mut lines = vec![head.collect::<Vec<_>>()];
        let printable = |cell: &String| match cell.is_empty() {
            true => "<none>".to_owned(),
            false => printable(cell),
        };
        lines.extend(
            self.rows
                .iter()
                .map(|row| row.iter().map(printable).collect()),
        );
        let width = |index: usize| lines.iter().map(|line| line[index].chars().count()).max();
        let widths: Vec<usize> = shown
            .iter()
            .map(|index| width(*index).unwrap_or(0))
            .collect();
        let mut out = String::new();
        for line in &lines {
            let cells = shown.iter().zip(&widths);
            let cells = cells.map(|(index, width)| format!("{:width$}   ", line[*index]));
            let text: String = cells.collect();
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Prints what a command shows.
pub(crate) fn print(shown: &Shown, format: Format) -> Result<(), Failure> {
    let text = match format {
        Format::Json => format!("{:#}\n", shown.data),
        Format::Yaml => kinds::yaml_text::stream(std::slice::from_ref(&shown.data)),
        Format::Table | Format::Wide => {
            let tables = shown.tables.iter().filter(|table| !table.rows.is_empty());
            let texts = tables.map(|table| {
                let title = match table.title.is_empty() {
                    true => String::new(),
                    false => format!("{}\n", printable(&table.title)),
                };
                title + &table.text(format == Format::Wide)
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::Output)?;
    if text.is_empty() {
        eprintln!("No resources found");
    }
    for note in &shown.notes {
        eprintln!("{}", printable(note));
    }
    Ok(())
}

/// Data as a list of Kubernetes.
pub(crate) fn list(items: Vec<Value>) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// Time since a point in time, in the largest unit, as `kubectl` shows it.
pub(crate) fn age(time: &str, now: Timestamp) -> String {
    let Ok(time) = time.parse::<Timestamp>() else {
        return "<unknown>".to_owned();
    };
    let seconds = now.duration_since(time).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_columns_of_equal_width_and_no_control_characters() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let table = Table {
            title: String::new(),
            columns: columns(&["NAME", "+MODE", "REASON"]),
            rows: vec![
                row([
                    "a-long-name",
                    "x",
                    "\u{1b}[2Ja\nb\u{202e}c\u{2066}\u{200b}\u{2028}",
                ]),
                row(["b", "y", ""]),
            ],
        };
        assert_eq!(
            table.text(false),
            "NAME          REASON\na-long-name   \\u001b[2Ja\\nb\\u202ec\\u2066\\u200b\\u2028\nb             <none>\n"
        );
        assert!(
            table
                .text(true)
                .starts_with("NAME          MODE   REASON\n")
        );
    }

    #[test]
    fn an_age_has_the_largest_unit_that_says_enough() {
        let now: Timestamp = "2026-01-03T00:00:00Z".parse().unwrap();
        for (time, expected) in [
            ("2026-01-02T23:59:00Z", "60s"),
            ("2026-01-02T23:00:00Z", "60m"),
            ("2026-01-02T00:00:00Z", "24h"),
            ("2026-01-01T00:00:00Z", "2d"),
            ("2026-01-04T00:00:00Z", "0s"),
            ("soon", "<unknown>"),
        ] {
            assert_eq!(age(time, now), expected, "{time}");
        }
    }
}
