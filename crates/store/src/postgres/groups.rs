//! Reading groups. Sums of alerts answer every question about them: which table is read depends on the filter.

use postgres::Row;

use super::conditions::{Conditions, of_group, of_host, with_words};
use super::connection::Connection;
use super::query::severity;
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::limits;
use crate::model::{Filter, Group, GroupId};
use crate::number::unsigned;

/// Columns of a group after those of its sums.
const COLUMNS: &str = "g.rule, g.severity, g.program, g.object, g.acknowledged_by, g.note, g.assignee, g.muted_until_ns";

/// Returns groups of alerts that the filter accepts, the latest first.
pub(super) fn groups(
    connection: &mut Connection,
    filter: &Filter,
    now_ns: i64,
) -> Result<Vec<Group>, StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if !filter.with_acknowledged {
        let shown = "g.acknowledged_ns IS NULL AND coalesce(g.muted_until_ns, 0) <= ?";
        conditions.add(shown, now_ns);
    }
    if let Some(searched) = &filter.text {
        let found = with_words(connection, ("group_id", searched), &mut conditions)?;
        let clause = format!("g.id IN (SELECT group_id FROM ({found}) AS found)");
        conditions.clauses.push(clause);
    }
    let from = filter.from_ns.map(|from| from.div_euclid(HOUR_NS));
    let to = to_hour(connection, filter)?;
    let sql = match (&filter.host, to) {
        (None, None) => latest(filter, from, &mut conditions),
        (None, Some(to)) => of_hours(filter, (from, Some(to)), ("group_hours", &mut conditions)),
        (Some(_), to) => {
            of_host(connection, filter, ("s.host", &mut conditions))?;
            of_hours(filter, (from, to), ("host_hours", &mut conditions))
        }
    };
    let rows = conditions.query(connection, &sql)?;
    rows.iter().map(group).collect()
}

/// Returns the last hour of the filter; `None` if no alert is later.
fn to_hour(connection: &mut Connection, filter: &Filter) -> Result<Option<i64>, StoreError> {
    let Some(to_ns) = filter.to_ns else {
        return Ok(None);
    };
    let hour = to_ns.saturating_sub(1).div_euclid(HOUR_NS);
    let any = connection.first("SELECT max(hour) FROM hours", &[])?;
    let last = any
        .map(|row| row.try_get::<_, Option<i64>>(0))
        .transpose()?;
    Ok(last
        .flatten()
        .is_some_and(|last| hour < last)
        .then_some(hour))
}

/// Without an end the last alert of a group is the last in the range, so a page has its groups from their own table,
/// and sums in the range of these alone.
fn latest(filter: &Filter, from: Option<i64>, conditions: &mut Conditions) -> String {
    conditions.clauses.push("g.count > 0".to_owned());
    if let Some(cursor) = filter.after {
        let after = conditions.after(["g.last_ns", "g.id"], cursor);
        conditions.clauses.push(after);
    }
    let (count, first, hosts) = match from {
        None => ("g.count".to_owned(), "g.first_ns".to_owned(), String::new()),
        Some(from) => {
            let start = from.saturating_mul(HOUR_NS);
            conditions.add("g.last_ns >= ?", start);
            let sum = |what: &str| {
                format!(
                    "(SELECT {what} FROM group_hours s WHERE s.group_id = g.id AND s.hour >= {from})"
                )
            };
            let hosts = format!("AND o.last_hour >= {from}");
            (sum("sum(s.count)::bigint"), sum("min(s.first_ns)"), hosts)
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
        "host_hours" => "1::bigint".to_owned(),
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
    let having = filter.after.map_or("true".to_owned(), |cursor| {
        conditions.after(["max(s.last_ns)", "g.id"], cursor)
    });
    format!(
        "SELECT g.id, t.count, t.first_ns, t.last_ns, {hosts}, {COLUMNS}
         FROM (SELECT g.id AS id, sum(s.count)::bigint AS count, min(s.first_ns) AS first_ns, max(s.last_ns) AS last_ns
               FROM {table} s JOIN groups g ON g.id = s.group_id WHERE {where_clause}
               GROUP BY g.id HAVING {having} ORDER BY 4 DESC, 1 DESC LIMIT {}) AS t
         JOIN groups g ON g.id = t.id ORDER BY t.last_ns DESC, t.id DESC",
        limits::rows(filter)
    )
}

fn group(row: &Row) -> Result<Group, StoreError> {
    Ok(Group {
        id: GroupId(row.try_get(0)?),
        count: unsigned(row.try_get(1)?),
        first_ns: row.try_get(2)?,
        last_ns: row.try_get(3)?,
        hosts: unsigned(row.try_get(4)?),
        rule: row.try_get(5)?,
        severity: severity(row, 6)?,
        program: row.try_get(7)?,
        object: row.try_get(8)?,
        acknowledged_by: row.try_get(9)?,
        note: row.try_get(10)?,
        assignee: row.try_get(11)?,
        muted_until_ns: row.try_get(12)?,
    })
}
