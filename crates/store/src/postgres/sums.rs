//! Sums of alerts, which pages about many alerts are made of: they never count alerts.

use std::collections::BTreeMap;

use postgres::types::ToSql;

use super::connection::Connection;
use crate::error::StoreError;
use crate::intake::{DAY, HOUR_NS, Sum, Sums};

/// The parts of a number's columns: one vector a column.
type Column = Vec<i64>;

/// Returns count, first and last time as columns.
fn columns<K>(sums: &BTreeMap<K, Sum>) -> [Column; 3] {
    let column = |of: fn(&Sum) -> i64| sums.values().map(of).collect();
    [
        column(|sum| sum.count),
        column(|sum| sum.first_ns),
        column(|sum| sum.last_ns),
    ]
}

/// Returns a column of the keys.
fn keys<K, V>(sums: &BTreeMap<K, V>, of: impl Fn(&K) -> i64) -> Column {
    sums.keys().map(of).collect()
}

/// Statements with their values, which are sent at once.
#[derive(Default)]
struct Statements(Vec<(&'static str, Vec<Value>)>);

type Value = Box<dyn ToSql + Sync>;

impl Statements {
    fn add<const N: usize>(&mut self, sql: &'static str, values: [Value; N]) {
        self.0.push((sql, values.into()));
    }

    fn run(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let values = self.0.iter().map(|(_, values)| {
            let values = values.iter().map(|value| &**value);
            values.collect::<Vec<&(dyn ToSql + Sync)>>()
        });
        let values: Vec<_> = values.collect();
        let sql = self.0.iter().map(|(sql, _)| *sql);
        let statements: Vec<_> = sql.zip(values.iter().map(|it| &**it)).collect();
        connection.execute_all(&statements)
    }
}

/// Adds the sums of batches.
pub(super) fn add(connection: &mut Connection, sums: &Sums) -> Result<(), StoreError> {
    let mut statements = Statements::default();
    add_hours(&mut statements, sums);
    add_groups(&mut statements, sums);
    add_tops(&mut statements, sums);
    statements.run(connection)
}

fn add_hours(statements: &mut Statements, sums: &Sums) {
    let of = &sums.host_hours;
    let [counts, firsts, lasts] = columns(of);
    statements.add(
        "INSERT INTO host_hours (host, hour, group_id, count, first_ns, last_ns)
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
             $6::bigint[])
         ON CONFLICT (host, hour, group_id) DO UPDATE SET count = host_hours.count + excluded.count,
             first_ns = least(host_hours.first_ns, excluded.first_ns),
             last_ns = greatest(host_hours.last_ns, excluded.last_ns)",
        [
            Box::new(keys(of, |key| key.0)),
            Box::new(keys(of, |key| key.1)),
            Box::new(keys(of, |key| key.2)),
            Box::new(counts),
            Box::new(firsts),
            Box::new(lasts),
        ],
    );
    let of = &sums.hours;
    let counts: Column = of.values().copied().collect();
    statements.add(
        "INSERT INTO hours (hour, severity, count)
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[])
         ON CONFLICT (hour, severity) DO UPDATE SET count = hours.count + excluded.count",
        [
            Box::new(keys(of, |key| key.0)),
            Box::new(keys(of, |key| i64::from(key.1.number()))),
            Box::new(counts),
        ],
    );
}

fn add_groups(statements: &mut Statements, sums: &Sums) {
    let of = &sums.group_hours();
    let [counts, firsts, lasts] = columns(of);
    statements.add(
        "INSERT INTO group_hours (hour, group_id, count, first_ns, last_ns)
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
         ON CONFLICT (hour, group_id) DO UPDATE SET count = group_hours.count + excluded.count,
             first_ns = least(group_hours.first_ns, excluded.first_ns),
             last_ns = greatest(group_hours.last_ns, excluded.last_ns)",
        [
            Box::new(keys(of, |key| key.0)),
            Box::new(keys(of, |key| key.1)),
            Box::new(counts),
            Box::new(firsts),
            Box::new(lasts),
        ],
    );
    let of = &sums.group_hosts();
    let hours: Column = of
        .values()
        .map(|sum| sum.last_ns.div_euclid(HOUR_NS))
        .collect();
    statements.add(
        "INSERT INTO group_hosts (group_id, host, last_hour)
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[])
         ON CONFLICT (group_id, host) DO UPDATE SET last_hour = excluded.last_hour
             WHERE group_hosts.last_hour < excluded.last_hour",
        [
            Box::new(keys(of, |key| key.0)),
            Box::new(keys(of, |key| key.1)),
            Box::new(hours),
        ],
    );
    let of = &sums.groups();
    let [counts, firsts, lasts] = columns(of);
    statements.add(
        "UPDATE groups SET count = groups.count + n.count,
             first_ns = CASE groups.count WHEN 0 THEN n.first_ns ELSE least(groups.first_ns, n.first_ns) END,
             last_ns = CASE groups.count WHEN 0 THEN n.last_ns ELSE greatest(groups.last_ns, n.last_ns) END
         FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS n (id, count, first_ns, last_ns)
         WHERE groups.id = n.id",
        [Box::new(keys(of, |key| *key)), Box::new(counts), Box::new(firsts), Box::new(lasts) as Value],
    );
}

fn add_tops(statements: &mut Statements, sums: &Sums) {
    let of = &sums.hosts();
    let [counts, ..] = columns(of);
    statements.add(
        "UPDATE hosts SET count = hosts.count + n.count
         FROM UNNEST($1::bigint[], $2::bigint[]) AS n (id, count) WHERE hosts.id = n.id",
        [Box::new(keys(of, |key| *key)), Box::new(counts)],
    );
    let of = &sums.rules();
    // Two rules can have one digest, and a sender may choose them so: both are counted under one name. A row that a statement
    // changes twice would be an error.
    let rules: Vec<String> = of.keys().map(|key| key.2.to_owned()).collect();
    let counts: Column = of.values().copied().collect();
    statements.add(
        "INSERT INTO rule_sums (span, start, digest, rule, count)
         SELECT span, start, md5(rule), min(rule), sum(count)::bigint
         FROM UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) AS n (span, start, rule, count)
         GROUP BY 1, 2, 3
         ON CONFLICT (span, start, digest) DO UPDATE SET count = rule_sums.count + excluded.count",
        [Box::new(keys(of, |key| key.0)), Box::new(keys(of, |key| key.1)), Box::new(rules), Box::new(counts) as Value],
    );
    let of = &sums.host_spans();
    let counts: Column = of.values().copied().collect();
    statements.add(
        "INSERT INTO host_sums (span, start, host, count)
         SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
         ON CONFLICT (span, start, host) DO UPDATE SET count = host_sums.count + excluded.count",
        [
            Box::new(keys(of, |key| key.0)),
            Box::new(keys(of, |key| key.1)),
            Box::new(keys(of, |key| key.2)),
            Box::new(counts),
        ],
    );
}

/// Deletes the sums of hours before this one, whose alerts have gone, and corrects those that go on.
pub(super) fn drop_before(connection: &mut Connection, hour: i64) -> Result<(), StoreError> {
    let (day, end_ns) = (hour.div_euclid(DAY), hour.saturating_mul(HOUR_NS));
    for sql in [
        "DELETE FROM host_hours WHERE hour < $1",
        "DELETE FROM group_hours WHERE hour < $1",
        "DELETE FROM hours WHERE hour < $1",
        "DELETE FROM rule_sums WHERE span = 1 AND start < $1",
        "DELETE FROM host_sums WHERE span = 1 AND start < $1",
    ] {
        connection.execute(sql, &[&hour])?;
    }
    // Hours can have different rules with one digest.
    for (table, key, names, values) in [
        ("rule_sums", "digest", "digest, rule", "digest, min(rule)"),
        ("host_sums", "host", "host", "host"),
    ] {
        // The day of the hour begins later now.
        let sql = format!("DELETE FROM {table} WHERE span = {DAY} AND start <= $1");
        connection.execute(&sql, &[&day])?;
        let sql = format!(
            "INSERT INTO {table} (span, start, {names}, count)
             SELECT {DAY}, $1::bigint, {values}, sum(count) FROM {table}
             WHERE span = 1 AND start BETWEEN $1::bigint * {DAY} AND $1::bigint * {DAY} + {DAY} - 1 GROUP BY {key}"
        );
        connection.execute(&sql, &[&day])?;
    }
    connection.execute("DELETE FROM group_hosts WHERE last_hour < $1", &[&hour])?;
    connection.execute(
        "UPDATE groups SET (count, first_ns, last_ns) =
             (SELECT coalesce(sum(h.count), 0), coalesce(min(h.first_ns), 0), coalesce(max(h.last_ns), 0)
              FROM group_hours h WHERE h.group_id = groups.id)
         WHERE count > 0 AND first_ns < $1",
        &[&end_ns],
    )?;
    connection.batch(&format!(
        "UPDATE hosts SET count = coalesce(
             (SELECT s.count FROM (SELECT host, sum(count) AS count FROM host_sums WHERE span = {DAY} GROUP BY 1) AS s
              WHERE s.host = hosts.id), 0)"
    ))
}
