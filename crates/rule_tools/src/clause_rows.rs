//! Clauses of a condition, one a line.

use rules::AlertValue;
use rules::trace::{Clause, Part};
use yaml::quote::comment;

/// A part of a condition in an explanation: parts that follow with a greater depth are its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ClauseRow {
    /// Depth; the parts of the condition itself have 0.
    pub depth: usize,
    /// The part as written, shortened, or the name of its macro.
    pub text: String,
    /// Fields of a comparison with their values; `None` for an unknown value.
    pub values: Vec<(String, Option<AlertValue>)>,
    /// Result; `None` if it depends on an unknown value.
    pub holds: Option<bool>,
}

/// Returns the parts of a condition that holds, each with the values of its fields. Parts that do not decide the result are
/// left out.
#[must_use]
pub fn rows(clause: &Clause) -> Vec<ClauseRow> {
    let mut rows = Vec::new();
    push_parts(&mut rows, clause);
    rows
}

/// Returns [`rows`] as text, one a line.
#[must_use]
pub fn reasons(clause: &Clause) -> Vec<String> {
    rows(clause).iter().map(|row| line(row, 0)).collect()
}

/// Formats a row, indented by `depth` more than its own.
pub(crate) fn line(row: &ClauseRow, depth: usize) -> String {
    let mark = match row.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    let indent = "  ".repeat(depth + row.depth);
    let line = comment(&format!("{}{}", row.text, values(&row.values)));
    format!("{mark:4}{indent}{line}")
}

/// Appends the parts of a condition. All parts of a conjunction are its own, so it needs no row.
fn push_parts(out: &mut Vec<ClauseRow>, clause: &Clause) {
    match clause.part {
        Part::All => {
            for part in &clause.parts {
                push(out, part, true, 0);
            }
        }
        Part::Any | Part::Not | Part::Test => push(out, clause, true, 0),
    }
}

fn push(out: &mut Vec<ClauseRow>, clause: &Clause, wanted: bool, depth: usize) {
    // `not` precedes the clause that it negates.
    let (mut not, mut wants, mut inner) = ("", wanted, clause);
    while let (Part::Not, None, [child]) = (inner.part, &inner.name, &inner.parts[..]) {
        (not, wants, inner) = (if not.is_empty() { "not " } else { "" }, !wants, child);
    }
    let title = match (&inner.name, inner.part) {
        (Some(name), _) => name.to_string(),
        (None, Part::All) => "all of".to_owned(),
        (None, Part::Any) => "any of".to_owned(),
        (None, _) => brief(&inner.text),
    };
    out.push(ClauseRow {
        depth,
        text: format!("{not}{title}"),
        values: inner.values.clone(),
        holds: clause.holds,
    });
    let is_as_wanted = clause.holds == Some(wanted);
    let is_shown = match inner.part {
        Part::Test => false,
        // Clauses that hold are shown in full; excluded alternatives would be a long list.
        _ if is_as_wanted => wants && not.is_empty(),
        _ => true,
    };
    if is_shown {
        for part in &inner.parts {
            // Of alternatives, shows only those that hold.
            if is_as_wanted && inner.part == Part::Any && part.holds != Some(true) {
                continue;
            }
            push(out, part, wants, depth + 1);
        }
    }
}

pub(crate) fn values(values: &[(String, Option<AlertValue>)]) -> String {
    let values = values.iter().map(|(field, value)| match value {
        None => format!("   {field}: unknown"),
        Some(AlertValue::Absent) => format!("   {field}: absent"),
        Some(AlertValue::Text(text)) => format!("   {field}: {text:?}"),
        Some(value) => format!("   {field}: {}", shown(value)),
    });
    values.collect()
}

/// Shortens a clause to one line; lists can be long.
pub(crate) fn brief(text: &str) -> String {
    const ENOUGH: usize = 100;
    if text.chars().count() <= ENOUGH {
        return text.to_owned();
    }
    let start: String = text.chars().take(ENOUGH).collect();
    let start = start.rsplit_once(", ").map_or(&*start, |(start, _)| start);
    format!("{start}, ...")
}

/// Formats a value as outputs do.
#[must_use]
pub fn shown(value: &AlertValue) -> String {
    match value {
        AlertValue::Absent => "<NA>".to_owned(),
        AlertValue::Bool(value) => value.to_string(),
        AlertValue::Int(number) => number.to_string(),
        AlertValue::Uint(number) => number.to_string(),
        AlertValue::Float(number) => number.to_string(),
        AlertValue::Text(text) => text.clone(),
        AlertValue::List(values) => {
            let values: Vec<String> = values.iter().map(shown).collect();
            format!("({})", values.join(","))
        }
    }
}
