//! Reading alerts and sums.

use postgres::Row;
use postgres::types::ToSql;

use super::conditions::{Conditions, of_group, of_host, with_words};
use super::connection::Connection;
use super::{retention, schema, text};
use crate::error::StoreError;
use crate::intake::{HOUR_NS, parts};
use crate::limits::{self, Index, TOP};
use crate::model::{
    AgentId, AlertDetail, AlertId, AlertRow, Filter, GroupId, HourCount, Loss, LossKind, LossRow,
    Overview, Statistics,
};
use crate::number::unsigned;
use crate::severity::Severity;

pub(super) fn severity(row: &Row, column: usize) -> Result<Severity, StoreError> {
    let number: i64 = row.try_get(column)?;
    let known = u8::try_from(number).ok().and_then(Severity::new);
    known.ok_or_else(|| StoreError::Row {
        problem: format!("unknown severity {number}"),
    })
}

/// The columns of an [`AlertRow`].
const ROW: &str = "a.id, a.time_ns, g.severity, g.rule, h.name, g.program, a.group_id, a.body";

/// Where they come from.
const ROWS: &str = "FROM alerts a JOIN groups g ON g.id = a.group_id JOIN hosts h ON h.id = a.host";

pub(super) fn row(row: &Row) -> Result<AlertRow, StoreError> {
    Ok(AlertRow {
        id: AlertId(row.try_get(0)?),
        time_ns: row.try_get(1)?,
        severity: severity(row, 2)?,
        rule: row.try_get(3)?,
        host: row.try_get(4)?,
        program: row.try_get(5)?,
        group: GroupId(row.try_get(6)?),
        body: row.try_get(7)?,
    })
}

pub(super) fn alerts(
    connection: &mut Connection,
    filter: &Filter,
) -> Result<Vec<AlertRow>, StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if let Some(searched) = &filter.text {
        of_groups(HASHED, &mut conditions);
        of_host(connection, filter, ("a.host", &mut conditions))?;
        let columns = "id, time_ns, group_id, host, body";
        let found = with_words(connection, (columns, searched), &mut conditions)?;
        let with = format!("WITH found AS MATERIALIZED ({found})");
        return page(
            connection,
            filter,
            ([&*with, "found", "time_ns"], conditions),
        );
    }
    if let Some(from) = filter.from_ns {
        // No partition of an earlier day has such an alert.
        conditions.add("a.day >= ?", from.div_euclid(24 * HOUR_NS));
    }
    // The planner knows nothing of how groups and hosts are spread over the times. What is no plain column has no index.
    let (groups, host, time) = match index(connection, filter)? {
        Index::Time => (LISTED, "a.host + 0", "time_ns"),
        Index::Group => (INDEXED, "a.host + 0", "time_ns + 0"),
        Index::Host => (LISTED, "a.host", "time_ns"),
    };
    of_groups(groups, &mut conditions);
    of_host(connection, filter, (host, &mut conditions))?;
    page(connection, filter, (["", "alerts", time], conditions))
}

/// Each alert's group is looked up in a hash table of the accepted ones. `IS TRUE` keeps the planner from a join, which may
/// compare each alert with each group. With partitions there is a hash table for each.
const HASHED: &str = "(a.group_id IN (SELECT g.id FROM groups g WHERE ?)) IS TRUE";

/// Each alert's group is looked up in a list of the accepted ones, which is read once. The longer the list, the sooner a page is
/// complete. What is no plain column has no index.
const LISTED: &str = "a.group_id + 0 = ANY (ARRAY(SELECT g.id FROM groups g WHERE ?))";

/// Alerts are read along the index of groups, and sorted.
const INDEXED: &str = "a.group_id = ANY (ARRAY(SELECT g.id FROM groups g WHERE ?))";

/// Turns the conditions of groups into one of alerts: [`HASHED`], [`LISTED`] or [`INDEXED`].
fn of_groups(how: &str, conditions: &mut Conditions) {
    if !conditions.clauses.is_empty() {
        conditions.clauses = vec![how.replace('?', &conditions.sql())];
    }
}

/// Returns a page of alerts, the latest first, from a table with a name and its time, and a query that makes the table or nothing.
///
/// The page is complete before its groups and hosts are looked up, and no alert is looked up twice: by its number it would be
/// sought in each day, and the planner prefers to read all days.
fn page(
    connection: &mut Connection,
    filter: &Filter,
    ([with, table, time], mut conditions): ([&str; 3], Conditions),
) -> Result<Vec<AlertRow>, StoreError> {
    if let Some(from) = filter.from_ns {
        conditions.add("a.time_ns >= ?", from);
    }
    if let Some(to) = filter.to_ns {
        conditions.add("a.time_ns < ?", to);
    }
    if let Some(cursor) = filter.after {
        let after = conditions.after(["a.time_ns", "a.id"], cursor);
        conditions.clauses.push(after);
    }
    let sql = format!(
        "{with} SELECT {ROW}
         FROM (SELECT a.id, a.time_ns, a.group_id, a.host, a.body FROM {table} a
               WHERE {} ORDER BY a.{time} DESC, a.id DESC LIMIT {}) AS a
         JOIN groups g ON g.id = a.group_id JOIN hosts h ON h.id = a.host
         ORDER BY a.time_ns DESC, a.id DESC",
        conditions.sql(),
        limits::rows(filter)
    );
    let rows = conditions.query(connection, &sql)?;
    rows.iter().map(row).collect()
}

/// Chooses the index along which the fewest alerts are read.
fn index(connection: &mut Connection, filter: &Filter) -> Result<Index, StoreError> {
    let mut of_groups = Conditions::default();
    of_group(filter, &mut of_groups);
    let by_group = match of_groups.clauses.is_empty() {
        true => None,
        false => {
            let condition = of_groups.sql();
            let sql =
                format!("SELECT coalesce(sum(g.count), 0)::bigint FROM groups g WHERE {condition}");
            let rows = of_groups.query(connection, &sql)?;
            rows.first().map(|row| row.try_get(0)).transpose()?
        }
    };
    let by_host = match &filter.host {
        None => None,
        Some(host) => {
            let count = "SELECT count FROM hosts WHERE md5(name) = md5($1) AND name = $1";
            Some(connection.number(count, &[&text(host)])?)
        }
    };
    let total = connection.number("SELECT sum(count)::bigint FROM hours", &[])?;
    Ok(limits::index(filter, total, (by_group, by_host)))
}

pub(super) fn alert(
    connection: &mut Connection,
    alert: AlertId,
) -> Result<Option<AlertDetail>, StoreError> {
    let sql = format!(
        "SELECT {ROW}, g.object, a.received_ns, a.agent, t.class, a.sequence, g.acknowledged_by
         {ROWS} JOIN agents ON agents.id = a.agent JOIN tokens t ON t.id = agents.token
         WHERE a.id = $1"
    );
    let found = connection.first(&sql, &[&alert.0])?;
    let detail = |found: Row| {
        Ok(AlertDetail {
            row: row(&found)?,
            object: found.try_get(8)?,
            received_ns: found.try_get(9)?,
            agent: AgentId(found.try_get(10)?),
            class: found.try_get(11)?,
            sequence: found.try_get::<_, Option<i64>>(12)?.map(unsigned),
            acknowledged_by: found.try_get(13)?,
        })
    };
    found.map(detail).transpose()
}

pub(super) fn overview(
    connection: &mut Connection,
    from_ns: i64,
    to_ns: i64,
) -> Result<Overview, StoreError> {
    let (from, to) = (
        from_ns.div_euclid(HOUR_NS),
        to_ns.saturating_sub(1).div_euclid(HOUR_NS),
    );
    let alerts = connection.query(
        "SELECT hour, severity, count FROM hours WHERE hour BETWEEN $1 AND $2 ORDER BY 1, 2",
        &[&from, &to],
    )?;
    let hour = |row: &Row| {
        Ok(HourCount {
            hour: row.try_get(0)?,
            severity: severity(row, 1)?,
            count: unsigned(row.try_get(2)?),
        })
    };
    let losses_by_hour = connection.query(
        &format!(
            "SELECT time_ns / {HOUR_NS}, kind, sum(count)::bigint FROM losses
             WHERE time_ns >= $1 AND time_ns < $2 GROUP BY 1, 2 ORDER BY 1, 2"
        ),
        &[&from_ns, &to_ns],
    )?;
    let by_hour = |row: &Row| Ok((row.try_get(0)?, kind(row, 1)?, unsigned(row.try_get(2)?)));
    let parts = parts(from, to).map(|(span, first, last)| [span, first, last]);
    let parts = parts.concat();
    let parts: Vec<&(dyn ToSql + Sync)> = parts.iter().map(|it| it as _).collect();
    let mut top = |name: &str, table: &str| -> Result<Vec<(String, u64)>, StoreError> {
        let rows = connection.query(
            &format!(
                "SELECT {name}, sum(s.count)::bigint FROM {table}
                 WHERE (s.span = $1 AND s.start BETWEEN $2 AND $3) OR (s.span = $4 AND s.start BETWEEN $5 AND $6)
                     OR (s.span = $7 AND s.start BETWEEN $8 AND $9)
                 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}"
            ),
            &parts,
        )?;
        let entry = |row: &Row| Ok((row.try_get(0)?, unsigned(row.try_get(1)?)));
        rows.iter().map(entry).collect()
    };
    let rules = top("s.rule", "rule_sums s")?;
    let hosts = top("h.name", "host_sums s JOIN hosts h ON h.id = s.host")?;
    Ok(Overview {
        alerts: alerts.iter().map(hour).collect::<Result<_, StoreError>>()?,
        losses_by_hour: losses_by_hour
            .iter()
            .map(by_hour)
            .collect::<Result<_, StoreError>>()?,
        losses: losses(connection, from_ns, to_ns)?,
        rules,
        hosts,
    })
}

fn kind(row: &Row, column: usize) -> Result<LossKind, StoreError> {
    let name: &str = row.try_get(column)?;
    LossKind::named(name).ok_or_else(|| StoreError::Row {
        problem: format!("unknown kind of loss `{name}`"),
    })
}

fn losses(
    connection: &mut Connection,
    from_ns: i64,
    to_ns: i64,
) -> Result<Vec<LossRow>, StoreError> {
    let rows = connection.query(
        &format!(
            "SELECT time_ns, kind, count, detail, agent,
                 coalesce((SELECT host FROM agents WHERE id = agent), '')
             FROM losses WHERE time_ns >= $1 AND time_ns < $2
             ORDER BY time_ns DESC, id DESC LIMIT {TOP}"
        ),
        &[&from_ns, &to_ns],
    )?;
    let loss = |row: &Row| {
        Ok(LossRow {
            loss: Loss {
                time_ns: row.try_get(0)?,
                kind: kind(row, 1)?,
                count: unsigned(row.try_get(2)?),
                detail: row.try_get(3)?,
            },
            agent: AgentId(row.try_get(4)?),
            host: row.try_get(5)?,
        })
    };
    rows.iter().map(loss).collect()
}

pub(super) fn statistics(connection: &mut Connection) -> Result<Statistics, StoreError> {
    let mut count = |sql: &str| connection.number(sql, &[]).map(unsigned);
    let alerts = count("SELECT sum(count)::bigint FROM hours")?;
    let groups = count("SELECT count(*) FROM groups")?;
    let agents = count("SELECT count(*) FROM agents")?;
    Ok(Statistics {
        bytes: retention::bytes(connection)?,
        alerts,
        groups,
        agents,
        schema: schema::LATEST,
    })
}
