//! Reading groups. Sums of alerts answer every question about them: which table is read depends on the filter.

use rusqlite::{Connection, Row, params_from_iter};

use super::conditions::{Conditions, host_id, of_group, words};
use super::query::severity;
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::limits::{self, SEARCHED};
use crate::model::{Filter, Group, GroupId};
use crate::number::unsigned;

/// Columns of a group after those of its sums.
const COLUMNS: &str = "g.rule, g.severity, g.program, g.object, g.acknowledged_by, g.note, g.assignee, g.muted_until_ns";

/// Returns groups of alerts that the filter accepts, the latest first.
pub(super) fn groups(
    connection: &Connection,
    filter: &Filter,
    now_ns: i64,
) -> Result<Vec<Group>, StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if !filter.with_acknowledged {
        conditions.add_plain("g.acknowledged_ns IS NULL");
        conditions.add("coalesce(g.muted_until_ns, 0) <= ?", now_ns);
    }
    if let Some(text) = &filter.text {
        conditions.add(
            &format!(
                "g.id IN (SELECT group_id FROM alerts WHERE id IN
                     (SELECT rowid FROM alert_words WHERE alert_words MATCH ?
                      ORDER BY rowid DESC LIMIT {SEARCHED}))"
            ),
            words(text),
        );
    }
    let from = filter.from_ns.map(|from| from.div_euclid(HOUR_NS));
    let to = to_hour(connection, filter)?;
    let sql = match (&filter.host, to) {
        (None, None) => latest(filter, from, &mut conditions),
        (None, Some(to)) => of_hours(filter, (from, Some(to)), ("group_hours", &mut conditions)),
        (Some(host), to) => {
            let host = host_id(connection, host)?;
            // No host has the number 0.
            conditions.add("s.host = ?", host.unwrap_or(0));
            of_hours(filter, (from, to), ("host_hours", &mut conditions))
        }
    };
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(&conditions.values), group)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the last hour of the filter; `None` if no alert is later.
fn to_hour(connection: &Connection, filter: &Filter) -> Result<Option<i64>, StoreError> {
    let Some(to_ns) = filter.to_ns else {
        return Ok(None);
    };
    let hour = to_ns.saturating_sub(1).div_euclid(HOUR_NS);
    let mut statement = connection.prepare_cached("SELECT max(hour) FROM hours")?;
    let last: Option<i64> = statement.query_row([], |row| row.get(0))?;
    Ok(last.is_some_and(|last| hour < last).then_some(hour))
}

/// Without an end the last alert of a group is the last in the range, so a page has its groups from their own table,
/// and sums in the range of these alone.
fn latest(filter: &Filter, from: Option<i64>, conditions: &mut Conditions) -> String {
    conditions.add_plain("g.count > 0");
    if let Some(cursor) = filter.after {
        conditions.add_after(["g.last_ns", "g.id"], cursor);
    }
    let (count, first, hosts) = match from {
        None => ("g.count".to_owned(), "g.first_ns".to_owned(), String::new()),
        Some(from) => {
            let start = from.saturating_mul(HOUR_NS);
            conditions.add("g.last_ns >= ?", start);
            // A group that began in the range has its sums already. For another one each hour is looked up: an index by
            // group would cost each alert a page of its own.
            let sum = |of_all: &str, what: &str| {
                format!(
                    "CASE WHEN g.first_ns >= {start} THEN {of_all} ELSE
                         (SELECT {what} FROM (SELECT DISTINCT hour FROM hours WHERE hour >= {from}) AS t
                          CROSS JOIN group_hours s ON s.hour = t.hour AND s.group_id = g.id) END"
                )
            };
            (
                sum("g.count", "sum(s.count)"),
                sum("g.first_ns", "min(s.first_ns)"),
                format!("AND o.last_hour >= {from}"),
            )
        }
    };
    format!(
        "SELECT g.id, {count}, {first}, g.last_ns,
             (SELECT count(*) FROM group_hosts o WHERE o.group_id = g.id {hosts}), {COLUMNS}
         FROM (SELECT * FROM groups g WHERE {} ORDER BY g.last_ns DESC, g.id DESC LIMIT {}) AS g
         ORDER BY g.last_ns DESC, g.id DESC",
        conditions.sql(),
        limits::rows(filter)
    )
}

/// With an end, or for a host, sums of hours are added up. `table` is `group_hours` or `host_hours`, called `s`.
fn of_hours(
    filter: &Filter,
    (from, to): (Option<i64>, Option<i64>),
    (table, conditions): (&str, &mut Conditions),
) -> String {
    if let Some(from) = from {
        conditions.add("s.hour >= ?", from);
    }
    if let Some(to) = to {
        conditions.add("s.hour <= ?", to);
    }
    let hosts = match table {
        "host_hours" => "1".to_owned(),
        _ => {
            // A host counts that has an alert of the group in these hours.
            let within = |bound: &str, hour: Option<i64>| {
                hour.map_or(String::new(), |hour| format!("AND h.hour {bound} {hour}"))
            };
            format!(
                "(SELECT count(*) FROM group_hosts o WHERE o.group_id = g.id AND EXISTS
                     (SELECT 1 FROM host_hours h WHERE h.host = o.host AND h.group_id = g.id {} {}))",
                within(">=", from),
                within("<=", to)
            )
        }
    };
    let where_clause = conditions.sql();
    let mut after = Conditions {
        clauses: Vec::new(),
        values: std::mem::take(&mut conditions.values),
    };
    if let Some(cursor) = filter.after {
        after.add_after(["max(s.last_ns)", "g.id"], cursor);
    }
    let having = after.sql();
    conditions.values = after.values;
    format!(
        "SELECT g.id, t.count, t.first_ns, t.last_ns, {hosts}, {COLUMNS}
         FROM (SELECT g.id AS id, sum(s.count) AS count, min(s.first_ns) AS first_ns, max(s.last_ns) AS last_ns
               FROM {table} s JOIN groups g ON g.id = s.group_id WHERE {where_clause}
               GROUP BY g.id HAVING {having} ORDER BY 4 DESC, 1 DESC LIMIT {}) AS t
         JOIN groups g ON g.id = t.id ORDER BY t.last_ns DESC, t.id DESC",
        limits::rows(filter)
    )
}

fn group(row: &Row<'_>) -> rusqlite::Result<Group> {
    Ok(Group {
        id: GroupId(row.get(0)?),
        count: unsigned(row.get(1)?),
        first_ns: row.get(2)?,
        last_ns: row.get(3)?,
        hosts: unsigned(row.get(4)?),
        rule: row.get(5)?,
        severity: severity(row, 6)?,
        program: row.get(7)?,
        object: row.get(8)?,
        acknowledged_by: row.get(9)?,
        note: row.get(10)?,
        assignee: row.get(11)?,
        muted_until_ns: row.get(12)?,
    })
}
