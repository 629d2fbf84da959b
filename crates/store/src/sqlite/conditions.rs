//! Conditions of questions about groups and alerts.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension};

use crate::error::StoreError;
use crate::limits::searched;
use crate::model::{Cursor, Filter};

/// A WHERE clause with its values.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) clauses: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl Conditions {
    /// Adds a condition in which `?` is the value.
    pub(super) fn add(&mut self, clause: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        let place = format!("?{}", self.values.len());
        self.clauses.push(clause.replace('?', &place));
    }

    /// Adds the condition that a row, sorted descending by these columns, follows the cursor.
    pub(super) fn add_after(&mut self, columns: [&str; 2], cursor: Cursor) {
        let [time, id] = columns;
        let at = self.values.len();
        self.values.push(cursor.time_ns.into());
        self.values.push(cursor.id.into());
        let clause = format!("({time}, {id}) < (?{}, ?{})", at + 1, at + 2);
        self.clauses.push(clause);
    }

    pub(super) fn add_plain(&mut self, clause: &str) {
        self.clauses.push(clause.to_owned());
    }

    pub(super) fn sql(&self) -> String {
        if self.clauses.is_empty() {
            return "1".to_owned();
        }
        self.clauses.join(" AND ")
    }
}

/// Adds what the filter says about groups, which are called `g`.
pub(super) fn of_group(filter: &Filter, conditions: &mut Conditions) {
    if let Some(severity) = filter.severity {
        conditions.add("g.severity <= ?", i64::from(severity.number()));
    }
    if let Some(rule) = &filter.rule {
        conditions.add("g.rule = ?", rule.clone());
    }
    if let Some(program) = &filter.program {
        conditions.add("g.program = ?", program.clone());
    }
    if let Some(group) = filter.group {
        conditions.add("g.id = ?", group.0);
    }
}

pub(super) fn host_id(connection: &Connection, name: &str) -> Result<Option<i64>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT id FROM hosts WHERE name = ?1")?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

/// Turns what a user typed into a query: words that all have to occur, each whole, or by its beginning if an asterisk
/// ends it. Nothing of the query language gets through.
///
/// Not each by its beginning: for that FTS5 first collects all alerts of all words that begin so, a second for a common
/// one among a million alerts.
pub(super) fn words(text: &str) -> String {
    let words: Vec<String> = searched(text)
        .map(|(word, is_beginning)| format!("\"{word}\"{}", if is_beginning { "*" } else { "" }))
        .collect();
    match words.is_empty() {
        // An empty query is an error; this one matches nothing.
        true => "\"\"".to_owned(),
        false => words.join(" AND "),
    }
}
