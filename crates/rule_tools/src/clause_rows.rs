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
    push_parts(&mut rows, clause, Vec::clone);
    rows
}

/// Characters of a value in [`short_rows`].
const SHORT: usize = 300;

/// Returns [`rows`] with the beginnings of their values: a sender decides how long the values of an alert are, and each clause that
/// compares one would have a copy.
pub(crate) fn short_rows(clause: &Clause) -> Vec<ClauseRow> {
    let mut rows = Vec::new();
    push_parts(&mut rows, clause, |values| {
        let values = values.iter();
        let short = values.map(|(field, value)| (field.clone(), value.as_ref().map(shortened)));
        short.collect()
    });
    rows
}

/// Returns the beginning of a value.
fn shortened(value: &AlertValue) -> AlertValue {
    shorten(value, &mut { SHORT })
}

/// Returns what of a value fits into so many characters, and takes them; `…` stands for the rest.
fn shorten(value: &AlertValue, left: &mut usize) -> AlertValue {
    match value {
        AlertValue::Text(text) => {
            let end = text.char_indices().nth(*left).map(|(end, _)| end);
            let Some(end) = end else {
                *left -= text.chars().count();
                return value.clone();
            };
            *left = 0;
            AlertValue::Text(format!("{}…", &text[..end]))
        }
        AlertValue::List(values) => {
            let mut kept = Vec::new();
            for value in values {
                if *left == 0 {
                    kept.push(AlertValue::Text("…".to_owned()));
                    break;
                }
                // Empty texts are no characters, and still items.
                *left -= 1;
                kept.push(shorten(value, left));
            }
            AlertValue::List(kept)
        }
        // A few characters.
        AlertValue::Absent
        | AlertValue::Bool(_)
        | AlertValue::Int(_)
        | AlertValue::Uint(_)
        | AlertValue::Float(_) => value.clone(),
    }
}

/// Fields of a comparison with their values; `None` for an unknown value.
type Values = Vec<(String, Option<AlertValue>)>;

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
fn push_parts(out: &mut Vec<ClauseRow>, clause: &Clause, copy: fn(&Values) -> Values) {
    match clause.part {
        Part::All => {
            for part in &clause.parts {
                push(out, part, (true, 0), copy);
            }
        }
        Part::Any | Part::Not | Part::Test => push(out, clause, (true, 0), copy),
    }
}

fn push(
    out: &mut Vec<ClauseRow>,
    clause: &Clause,
    (wanted, depth): (bool, usize),
    copy: fn(&Values) -> Values,
) {
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
        values: copy(&inner.values),
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
            push(out, part, (wants, depth + 1), copy);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> AlertValue {
        AlertValue::Text(text.to_owned())
    }

    #[test]
    fn a_long_value_has_its_beginning_and_a_short_one_is_whole() {
        for whole in [
            AlertValue::Absent,
            AlertValue::Uint(7),
            text(&"ä".repeat(SHORT)),
            AlertValue::List(vec![text("a"), AlertValue::Bool(true), text("")]),
        ] {
            assert_eq!(shortened(&whole), whole);
        }
        let long = text(&"ä".repeat(SHORT + 1));
        assert_eq!(shortened(&long), text(&format!("{}…", "ä".repeat(SHORT))));
        for items in [
            vec![text(""); 100_000],
            vec![text("abc"); 100_000],
            vec![text(&"z".repeat(100_000)); 2],
            vec![AlertValue::List(vec![text("abc"); 100_000]); 3],
        ] {
            let short = shown(&shortened(&AlertValue::List(items)));
            assert!(short.ends_with("…)"), "{short}");
            assert!(short.chars().count() <= 3 * SHORT, "{short}");
        }
    }
}
