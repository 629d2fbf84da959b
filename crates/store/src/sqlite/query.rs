//! Reading alerts and sums. Alerts are read a page at a time, along the index that leads to the fewest.

use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::conditions::{Conditions, host_id, of_group, words};
use super::{retention, schema};
use crate::error::StoreError;
use crate::intake::{HOUR_NS, parts};
use crate::limits::{self, Index, SEARCHED, TOP};
use crate::model::{
    AgentId, AlertDetail, AlertId, AlertRow, Filter, GroupId, HourCount, Loss, LossKind, LossRow,
    Overview, Statistics,
};
use crate::number::unsigned;
use crate::severity::Severity;

pub(super) fn severity(row: &Row<'_>, column: usize) -> rusqlite::Result<Severity> {
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
    let mut by = clause(index, filter, &mut conditions);
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

/// Returns the clause that names the index, and adds the condition that it serves.
fn clause(index: Index, filter: &Filter, conditions: &mut Conditions) -> &'static str {
    match index {
        Index::Time => "INDEXED BY alerts_by_time",
        Index::Host => "INDEXED BY alerts_by_host",
        Index::Group => {
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

/// Chooses the index along which the fewest alerts are read.
fn index(connection: &Connection, filter: &Filter) -> Result<Index, StoreError> {
    let mut of_groups = Conditions::default();
    of_group(filter, &mut of_groups);
    let by_group = match of_groups.clauses.is_empty() {
        true => None,
        false => {
            let sql = format!(
                "SELECT coalesce(sum(g.count), 0) FROM groups g WHERE {}",
                of_groups.sql()
            );
            let mut statement = connection.prepare_cached(&sql)?;
            Some(statement.query_row(params_from_iter(&of_groups.values), |row| row.get(0))?)
        }
    };
    let by_host = match &filter.host {
        None => None,
        Some(host) => {
            let mut statement =
                connection.prepare_cached("SELECT count FROM hosts WHERE name = ?1")?;
            let count = statement.query_row([host], |row| row.get(0)).optional()?;
            Some(count.unwrap_or(0))
        }
    };
    let total: i64 = connection
        .prepare_cached("SELECT coalesce(sum(count), 0) FROM hours")?
        .query_row([], |row| row.get(0))?;
    Ok(limits::index(filter, total, (by_group, by_host)))
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
    let [from, to] = hours;
    let parts = parts(from, to).map(|(span, first, last)| [span, first, last]);
    let parts = parts.concat();
    let top = |name: &str, table: &str| -> Result<Vec<(String, u64)>, StoreError> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {name}, sum(s.count) FROM {table}
             WHERE (s.span = ?1 AND s.start BETWEEN ?2 AND ?3) OR (s.span = ?4 AND s.start BETWEEN ?5 AND ?6)
                 OR (s.span = ?7 AND s.start BETWEEN ?8 AND ?9)
             GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}"
        ))?;
        let rows = statement.query_map(params_from_iter(&parts), |row| {
            Ok((row.get(0)?, unsigned(row.get(1)?)))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    Ok(Overview {
        alerts: alerts.collect::<Result<_, _>>()?,
        losses_by_hour: by_hour.collect::<Result<_, _>>()?,
        losses: losses(connection, from_ns, to_ns)?,
        rules: top("s.rule", "rule_sums s")?,
        hosts: top("h.name", "host_sums s CROSS JOIN hosts h ON h.id = s.host")?,
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
