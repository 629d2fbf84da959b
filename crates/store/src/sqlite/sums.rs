//! Sums of alerts, which pages about many alerts are made of: they never count alerts.

use rusqlite::{Connection, params};

use crate::error::StoreError;
use crate::intake::{DAY, HOUR_NS, Sums};

/// Adds the sums of a batch, a row for each instead of one for each alert.
pub(super) fn add(connection: &Connection, sums: &Sums) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO host_hours (host, hour, group_id, count, first_ns, last_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (host, hour, group_id) DO UPDATE SET count = count + excluded.count,
             first_ns = min(first_ns, excluded.first_ns), last_ns = max(last_ns, excluded.last_ns)",
    )?;
    for ((host, hour, group), sum) in &sums.host_hours {
        statement.execute(params![
            host,
            hour,
            group,
            sum.count,
            sum.first_ns,
            sum.last_ns
        ])?;
    }
    let mut statement = connection.prepare_cached(
        "INSERT INTO hours (hour, severity, count) VALUES (?1, ?2, ?3)
         ON CONFLICT (hour, severity) DO UPDATE SET count = count + excluded.count",
    )?;
    for ((hour, severity), count) in &sums.hours {
        statement.execute(params![hour, severity.number(), count])?;
    }
    add_groups(connection, sums)?;
    add_tops(connection, sums)
}

fn add_groups(connection: &Connection, sums: &Sums) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO group_hours (hour, group_id, count, first_ns, last_ns) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (hour, group_id) DO UPDATE SET count = count + excluded.count,
             first_ns = min(first_ns, excluded.first_ns), last_ns = max(last_ns, excluded.last_ns)",
    )?;
    for ((hour, group), sum) in sums.group_hours() {
        statement.execute(params![hour, group, sum.count, sum.first_ns, sum.last_ns])?;
    }
    let mut statement = connection.prepare_cached(
        "INSERT INTO group_hosts (group_id, host, last_hour) VALUES (?1, ?2, ?3)
         ON CONFLICT (group_id, host) DO UPDATE SET last_hour = excluded.last_hour
             WHERE last_hour < excluded.last_hour",
    )?;
    for ((group, host), sum) in sums.group_hosts() {
        statement.execute(params![group, host, sum.last_ns.div_euclid(HOUR_NS)])?;
    }
    let mut statement = connection.prepare_cached(
        "UPDATE groups SET count = count + ?2,
             first_ns = CASE count WHEN 0 THEN ?3 ELSE min(first_ns, ?3) END,
             last_ns = CASE count WHEN 0 THEN ?4 ELSE max(last_ns, ?4) END WHERE id = ?1",
    )?;
    for (group, sum) in sums.groups() {
        statement.execute(params![group, sum.count, sum.first_ns, sum.last_ns])?;
    }
    Ok(())
}

fn add_tops(connection: &Connection, sums: &Sums) -> Result<(), StoreError> {
    let mut statement =
        connection.prepare_cached("UPDATE hosts SET count = count + ?2 WHERE id = ?1")?;
    for (host, sum) in sums.hosts() {
        statement.execute(params![host, sum.count])?;
    }
    let mut statement = connection.prepare_cached(
        "INSERT INTO rule_sums (span, start, rule, count) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (span, start, rule) DO UPDATE SET count = count + excluded.count",
    )?;
    for ((span, start, rule), count) in sums.rules() {
        statement.execute(params![span, start, rule, count])?;
    }
    let mut statement = connection.prepare_cached(
        "INSERT INTO host_sums (span, start, host, count) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (span, start, host) DO UPDATE SET count = count + excluded.count",
    )?;
    for ((span, start, host), count) in sums.host_spans() {
        statement.execute(params![span, start, host, count])?;
    }
    Ok(())
}

/// Deletes the sums of hours before this one, whose alerts have gone, and corrects those that go on.
pub(super) fn drop_before(connection: &Connection, hour: i64) -> Result<(), StoreError> {
    let (day, end_ns) = (hour.div_euclid(DAY), hour.saturating_mul(HOUR_NS));
    for sql in [
        "DELETE FROM host_hours WHERE host IN (SELECT id FROM hosts) AND hour < ?1",
        "DELETE FROM group_hours WHERE hour < ?1",
        "DELETE FROM hours WHERE hour < ?1",
        "DELETE FROM rule_sums WHERE span = 1 AND start < ?1",
        "DELETE FROM host_sums WHERE span = 1 AND start < ?1",
    ] {
        connection.execute(sql, [hour])?;
    }
    for (table, name) in [("rule_sums", "rule"), ("host_sums", "host")] {
        // The day of the hour begins later now.
        let sql = format!("DELETE FROM {table} WHERE span = {DAY} AND start <= ?1");
        connection.execute(&sql, [day])?;
        let sql = format!(
            "INSERT INTO {table} (span, start, {name}, count)
             SELECT {DAY}, ?1, {name}, sum(count) FROM {table}
             WHERE span = 1 AND start BETWEEN ?1 * {DAY} AND ?1 * {DAY} + {DAY} - 1 GROUP BY {name}"
        );
        connection.execute(&sql, [day])?;
    }
    connection.execute("DELETE FROM group_hosts WHERE last_hour < ?1", [hour])?;
    connection.execute(
        "UPDATE groups SET count = 0, first_ns = 0, last_ns = 0 WHERE first_ns < ?1",
        [end_ns],
    )?;
    connection.execute(
        "UPDATE groups SET count = s.count, first_ns = s.first_ns, last_ns = s.last_ns
         FROM (SELECT group_id, sum(count) AS count, min(first_ns) AS first_ns, max(last_ns) AS last_ns
               FROM group_hours GROUP BY 1) AS s
         WHERE s.group_id = groups.id AND groups.count = 0",
        [],
    )?;
    connection.execute("UPDATE hosts SET count = 0", [])?;
    connection.execute(
        &format!(
            "UPDATE hosts SET count = s.count
             FROM (SELECT host, sum(count) AS count FROM host_sums WHERE span = {DAY} GROUP BY 1) AS s
             WHERE s.host = hosts.id"
        ),
        [],
    )?;
    Ok(())
}
