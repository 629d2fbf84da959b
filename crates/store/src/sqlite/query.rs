//! Reading groups, alerts and sums.
//!
//! Sums by hour, group and host answer every question about many alerts. Alerts themselves are read a page at
//! a time, along the index that leads to the fewest.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::{retention, schema};
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::limits::{self, SEARCHED, TOP};
use crate::model::{
    AgentId, AlertDetail, AlertId, AlertRow, Cursor, Filter, Group, GroupId, HourCount, Loss,
    LossKind, LossRow, Overview, Statistics,
};
use crate::number::unsigned;
use crate::severity::Severity;

/// Up to this number of alerts, sorting them is cheaper than looking for them by time.
const FEW: i64 = 20_000;

/// A WHERE clause with its values.
#[derive(Default)]
struct Conditions {
    clauses: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    /// Adds a condition in which `?` is the value.
    fn add(&mut self, clause: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        let place = format!("?{}", self.values.len());
        self.clauses.push(clause.replace('?', &place));
    }

    /// Adds the condition that a row, sorted descending by these columns, follows the cursor.
    fn add_after(&mut self, columns: [&str; 2], cursor: Cursor) {
        let [time, id] = columns;
        let at = self.values.len();
        self.values.push(cursor.time_ns.into());
        self.values.push(cursor.id.into());
        let clause = format!("({time}, {id}) < (?{}, ?{})", at + 1, at + 2);
        self.clauses.push(clause);
    }

    fn add_plain(&mut self, clause: &str) {
        self.clauses.push(clause.to_owned());
    }

    fn sql(&self) -> String {
        if self.clauses.is_empty() {
            return "1".to_owned();
        }
        self.clauses.join(" AND ")
    }
}

/// Adds what the filter says about groups, which are called `g`.
fn of_group(filter: &Filter, conditions: &mut Conditions) {
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

/// Adds what the filter says about rows of `counts`, which are called `c`.
fn of_counts(
    connection: &Connection,
    filter: &Filter,
    conditions: &mut Conditions,
) -> Result<(), StoreError> {
    if let Some(from) = filter.from_ns {
        conditions.add("c.hour >= ?", from.div_euclid(HOUR_NS));
    }
    if let Some(to) = filter.to_ns {
        conditions.add("c.hour <= ?", to.saturating_sub(1).div_euclid(HOUR_NS));
    }
    if let Some(host) = &filter.host {
        // No host has the number 0.
        conditions.add("c.host = ?", host_id(connection, host)?.unwrap_or(0));
    }
    Ok(())
}

fn host_id(connection: &Connection, name: &str) -> Result<Option<i64>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT id FROM hosts WHERE name = ?1")?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

pub(super) fn groups(
    connection: &Connection,
    filter: &Filter,
    now_ns: i64,
) -> Result<Vec<Group>, StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    of_counts(connection, filter, &mut conditions)?;
    if !filter.with_acknowledged {
        conditions.add_plain("g.acknowledged_ns IS NULL");
        conditions.add("coalesce(g.muted_until_ns, 0) <= ?", now_ns);
    }
    if let Some(text) = &filter.text {
        let words = words(text);
        conditions.add(
            &format!(
                "g.id IN (SELECT group_id FROM alerts WHERE id IN
                     (SELECT rowid FROM alert_words WHERE alert_words MATCH ?
                      ORDER BY rowid DESC LIMIT {SEARCHED}))"
            ),
            words,
        );
    }
    let mut after = Conditions {
        clauses: Vec::new(),
        values: std::mem::take(&mut conditions.values),
    };
    if let Some(cursor) = filter.after {
        after.add_after(["max(c.last_ns)", "g.id"], cursor);
    }
    let sql = format!(
        "SELECT g.id, g.rule, g.severity, g.program, g.object, g.acknowledged_by, g.note,
             sum(c.count), min(c.first_ns), max(c.last_ns), count(DISTINCT c.host),
             g.assignee, g.muted_until_ns
         FROM counts c JOIN groups g ON g.id = c.group_id
         WHERE {} GROUP BY g.id HAVING {} ORDER BY max(c.last_ns) DESC, g.id DESC LIMIT {}",
        conditions.sql(),
        after.sql(),
        limits::rows(filter)
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(&after.values), group)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn group(row: &Row<'_>) -> rusqlite::Result<Group> {
    Ok(Group {
        id: GroupId(row.get(0)?),
        rule: row.get(1)?,
        severity: severity(row, 2)?,
        program: row.get(3)?,
        object: row.get(4)?,
        acknowledged_by: row.get(5)?,
        note: row.get(6)?,
        count: unsigned(row.get(7)?),
        first_ns: row.get(8)?,
        last_ns: row.get(9)?,
        hosts: unsigned(row.get(10)?),
        assignee: row.get(11)?,
        muted_until_ns: row.get(12)?,
    })
}

/// Turns what a user typed into a query: words that all have to occur, each by its beginning. Nothing of the
/// query language gets through.
fn words(text: &str) -> String {
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| format!("\"{word}\"*")).collect();
    match words.is_empty() {
        // An empty query is an error; this one matches nothing.
        true => "\"\"".to_owned(),
        false => words.join(" AND "),
    }
}

fn severity(row: &Row<'_>, column: usize) -> rusqlite::Result<Severity> {
    let number: i64 = row.get(column)?;
    let known = u8::try_from(number).ok().and_then(Severity::new);
    known.ok_or(rusqlite::Error::IntegralValueOutOfRange(column, number))
}

/// The columns of an [`AlertRow`].
pub(super) const ROW: &str =
    "a.id, a.time_ns, g.severity, g.rule, h.name, g.program, a.group_id, a.body";

pub(super) fn row(row: &Row<'_>) -> rusqlite::Result<AlertRow> {
    Ok(AlertRow {
        id: AlertId(row.get(0)?),
        time_ns: row.get(1)?,
        severity: severity(row, 2)?,
        rule: row.get(3)?,
        host: row.get(4)?,
        program: row.get(5)?,
        group: GroupId(row.get(6)?),
        body: row.get(7)?,
    })
}

pub(super) fn alerts(
    connection: &Connection,
    filter: &Filter,
) -> Result<Vec<AlertRow>, StoreError> {
    let index = index(connection, filter)?;
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if let Some(from) = filter.from_ns {
        conditions.add("a.time_ns >= ?", from);
    }
    if let Some(to) = filter.to_ns {
        conditions.add("a.time_ns < ?", to);
    }
    if let Some(host) = &filter.host {
        conditions.add("a.host = ?", host_id(connection, host)?.unwrap_or(0));
    }
    if let Some(cursor) = filter.after {
        conditions.add("a.time_ns <= ?", cursor.time_ns);
        conditions.add_after(["a.time_ns", "a.id"], cursor);
    }
    let mut by = index.clause(filter, &mut conditions);
    if let Some(text) = &filter.text {
        conditions.add(
            &format!(
                "a.id IN (SELECT rowid FROM alert_words WHERE alert_words MATCH ?
                     ORDER BY rowid DESC LIMIT {SEARCHED})"
            ),
            words(text),
        );
        by = "NOT INDEXED";
    }
    let sql = format!(
        "SELECT {ROW} FROM alerts a {by} CROSS JOIN groups g ON g.id = a.group_id
             CROSS JOIN hosts h ON h.id = a.host
         WHERE {} ORDER BY a.time_ns DESC, a.id DESC LIMIT {}",
        conditions.sql(),
        limits::rows(filter)
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(&conditions.values), row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The index along which alerts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    Time,
    Group,
    Host,
}

impl Index {
    fn clause(self, filter: &Filter, conditions: &mut Conditions) -> &'static str {
        match self {
            Self::Time => "INDEXED BY alerts_by_time",
            Self::Host => "INDEXED BY alerts_by_host",
            Self::Group => {
                let mut inner = Conditions {
                    clauses: Vec::new(),
                    values: std::mem::take(&mut conditions.values),
                };
                of_group(filter, &mut inner);
                let clause = format!(
                    "a.group_id IN (SELECT g.id FROM groups g WHERE {})",
                    inner.sql()
                );
                conditions.values = inner.values;
                conditions.clauses.push(clause);
                "INDEXED BY alerts_by_group"
            }
        }
    }
}

/// Chooses by the number of alerts that each index leads to.
fn index(connection: &Connection, filter: &Filter) -> Result<Index, StoreError> {
    let mut best = (FEW, Index::Time);
    let mut of_groups = Conditions::default();
    of_group(filter, &mut of_groups);
    if !of_groups.clauses.is_empty() {
        let without_host = Filter {
            host: None,
            ..filter.clone()
        };
        of_counts(connection, &without_host, &mut of_groups)?;
        let count = sum(connection, &of_groups)?;
        if count < best.0 {
            best = (count, Index::Group);
        }
    }
    if filter.host.is_some() {
        let mut of_host = Conditions::default();
        of_counts(connection, filter, &mut of_host)?;
        let count = sum(connection, &of_host)?;
        if count < best.0 {
            best = (count, Index::Host);
        }
    }
    Ok(best.1)
}

fn sum(connection: &Connection, conditions: &Conditions) -> Result<i64, StoreError> {
    let sql = format!(
        "SELECT coalesce(sum(c.count), 0) FROM counts c JOIN groups g ON g.id = c.group_id WHERE {}",
        conditions.sql()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_row(params_from_iter(&conditions.values), |row| row.get(0))?)
}

pub(super) fn alert(
    connection: &Connection,
    alert: AlertId,
) -> Result<Option<AlertDetail>, StoreError> {
    let sql = format!(
        "SELECT {ROW}, g.object, a.received_ns, a.agent, t.class, a.sequence, g.acknowledged_by
         FROM alerts a JOIN groups g ON g.id = a.group_id JOIN hosts h ON h.id = a.host
             JOIN agents ON agents.id = a.agent JOIN tokens t ON t.id = agents.token
         WHERE a.id = ?1"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([alert.0], |found| {
        Ok(AlertDetail {
            row: row(found)?,
            object: found.get(8)?,
            received_ns: found.get(9)?,
            agent: AgentId(found.get(10)?),
            class: found.get(11)?,
            sequence: found.get::<_, Option<i64>>(12)?.map(unsigned),
            acknowledged_by: found.get(13)?,
        })
    });
    Ok(found.optional()?)
}

pub(super) fn overview(
    connection: &Connection,
    from_ns: i64,
    to_ns: i64,
) -> Result<Overview, StoreError> {
    let hours = [
        from_ns.div_euclid(HOUR_NS),
        to_ns.saturating_sub(1).div_euclid(HOUR_NS),
    ];
    let mut statement = connection.prepare_cached(
        "SELECT hour, severity, count FROM hours WHERE hour BETWEEN ?1 AND ?2
         ORDER BY hour, severity",
    )?;
    let alerts = statement.query_map(hours, |row| {
        Ok(HourCount {
            hour: row.get(0)?,
            severity: severity(row, 1)?,
            count: unsigned(row.get(2)?),
        })
    })?;
    let mut statement = connection.prepare_cached(&format!(
        "SELECT time_ns / {HOUR_NS}, kind, sum(count) FROM losses
         WHERE time_ns >= ?1 AND time_ns < ?2 GROUP BY 1, 2 ORDER BY 1, 2"
    ))?;
    let by_hour = statement.query_map([from_ns, to_ns], |row| {
        Ok((row.get(0)?, kind(row, 1)?, unsigned(row.get(2)?)))
    })?;
    let top = |name: &str, from: &str| -> Result<Vec<(String, u64)>, StoreError> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {name}, sum(c.count) FROM counts c {from}
             WHERE c.hour BETWEEN ?1 AND ?2 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}"
        ))?;
        let rows = statement.query_map(hours, |row| Ok((row.get(0)?, unsigned(row.get(1)?))))?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    Ok(Overview {
        alerts: alerts.collect::<Result<_, _>>()?,
        losses_by_hour: by_hour.collect::<Result<_, _>>()?,
        losses: losses(connection, from_ns, to_ns)?,
        rules: top("g.rule", "JOIN groups g ON g.id = c.group_id")?,
        hosts: top("h.name", "JOIN hosts h ON h.id = c.host")?,
    })
}

fn kind(row: &Row<'_>, column: usize) -> rusqlite::Result<LossKind> {
    let name: String = row.get(column)?;
    LossKind::named(&name).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(
            column,
            rusqlite::types::Type::Text,
            format!("unknown kind of loss `{name}`").into(),
        )
    })
}

fn losses(connection: &Connection, from_ns: i64, to_ns: i64) -> Result<Vec<LossRow>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT time_ns, kind, count, detail, agent,
             coalesce((SELECT host FROM agents WHERE id = agent), '')
         FROM losses WHERE time_ns >= ?1 AND time_ns < ?2 ORDER BY time_ns DESC, id DESC LIMIT {TOP}"
    ))?;
    let rows = statement.query_map([from_ns, to_ns], |row| {
        Ok(LossRow {
            loss: Loss {
                time_ns: row.get(0)?,
                kind: kind(row, 1)?,
                count: unsigned(row.get(2)?),
                detail: row.get(3)?,
            },
            agent: AgentId(row.get(4)?),
            host: row.get(5)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn statistics(connection: &Connection) -> Result<Statistics, StoreError> {
    let count = |sql: &str| -> Result<u64, StoreError> {
        let mut statement = connection.prepare_cached(sql)?;
        Ok(unsigned(statement.query_row([], |row| row.get(0))?))
    };
    Ok(Statistics {
        bytes: retention::bytes(connection)?,
        alerts: count("SELECT coalesce(sum(count), 0) FROM hours")?,
        groups: count("SELECT count(*) FROM groups")?,
        agents: count("SELECT count(*) FROM agents")?,
        schema: schema::LATEST,
    })
}
