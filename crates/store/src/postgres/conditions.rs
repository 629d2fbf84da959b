//! Conditions of questions about groups and alerts.

use postgres::Row;
use postgres::types::ToSql;

use super::append::{find_host, words};
use super::connection::Connection;
use super::text;
use crate::error::StoreError;
use crate::limits::{SEARCHED, searched};
use crate::model::{Cursor, Filter};

/// A WHERE clause with its values.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) clauses: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync>>,
}

impl Conditions {
    /// Adds a condition in which `?` is the value.
    pub(super) fn add(&mut self, clause: &str, value: impl ToSql + Sync + 'static) {
        let place = self.place(value);
        self.clauses.push(clause.replace('?', &place));
    }

    fn place(&mut self, value: impl ToSql + Sync + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    /// Returns the condition that a row, sorted descending by these columns, follows the cursor.
    pub(super) fn after(&mut self, [time, id]: [&str; 2], cursor: Cursor) -> String {
        let (at, number) = (self.place(cursor.time_ns), self.place(cursor.id));
        format!("({time}, {id}) < ({at}, {number})")
    }

    pub(super) fn sql(&self) -> String {
        match self.clauses.is_empty() {
            true => "true".to_owned(),
            false => self.clauses.join(" AND "),
        }
    }

    pub(super) fn query(
        &self,
        connection: &mut Connection,
        sql: &str,
    ) -> Result<Vec<Row>, StoreError> {
        let values: Vec<&(dyn ToSql + Sync)> = self.values.iter().map(|it| &**it).collect();
        connection.query(sql, &values)
    }
}

/// Adds what the filter says about groups, which are called `g`.
pub(super) fn of_group(filter: &Filter, conditions: &mut Conditions) {
    if let Some(severity) = filter.severity {
        conditions.add("g.severity <= ?", i64::from(severity.number()));
    }
    if let Some(rule) = &filter.rule {
        conditions.add("md5(g.rule) = md5(?) AND g.rule = ?", text(rule));
    }
    if let Some(program) = &filter.program {
        conditions.add("g.program = ?", text(program));
    }
    if let Some(group) = filter.group {
        conditions.add("g.id = ?", group.0);
    }
}

/// Adds that the row is one of this host, whose column is given. No host has the number 0.
pub(super) fn of_host(
    connection: &mut Connection,
    filter: &Filter,
    (column, conditions): (&str, &mut Conditions),
) -> Result<(), StoreError> {
    if let Some(host) = &filter.host {
        let id = find_host(connection, host)?.unwrap_or(0);
        conditions.add(&format!("{column} = ?"), id);
    }
    Ok(())
}

/// Turns what a user typed into a query: words that all have to occur, each whole, or by its beginning if an asterisk
/// ends it. Nothing of the query language gets through.
pub(super) fn words_query(text: &str) -> String {
    let words = searched(text).flat_map(|(word, is_beginning)| {
        let beginning = if is_beginning { ":*" } else { "" };
        words(word).map(move |word| format!("'{word}'{beginning}"))
    });
    words.collect::<Vec<_>>().join(" & ")
}

/// Alerts by which it is estimated how many have the words of a search.
const SAMPLE: i64 = 4000;

/// Returns the query for these columns of the latest alerts that have the words.
///
/// Words that many alerts have are found along the numbers, from the last one on; others by the index of words, whose
/// alerts are sorted then. The planner cannot tell which: words of new alerts are not in its statistics.
pub(super) fn with_words(
    connection: &mut Connection,
    (columns, searched): (&str, &str),
    conditions: &mut Conditions,
) -> Result<String, StoreError> {
    /// One of this number is many.
    const MANY: i64 = 20;
    let query = words_query(searched);
    let sample = format!(
        "SELECT count(*) FILTER (WHERE words @@ $1::text::tsquery)
         FROM (SELECT words FROM alerts ORDER BY id DESC LIMIT {SAMPLE}) AS sample"
    );
    let is_common = connection.number(&sample, &[&query])? * MANY >= SAMPLE;
    // What is no plain column has no index.
    let order = if is_common { "id" } else { "id + 0" };
    let place = conditions.place(query);
    Ok(format!(
        "SELECT {columns} FROM alerts WHERE words @@ {place}::text::tsquery ORDER BY {order} DESC LIMIT {SEARCHED}"
    ))
}
