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
    let (sql, conditions) = question(connection, filter)?;
    let rows = conditions.query(connection, &sql)?;
    rows.iter().map(row).collect()
}

/// Returns the query for alerts that the filter accepts, and its values.
fn question(
    connection: &mut Connection,
    filter: &Filter,
) -> Result<(String, Conditions), StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if let Some(searched) = &filter.text {
        of_groups(LOOKED_UP, &mut conditions);
        of_host(connection, filter, ("a.host", &mut conditions))?;
        let columns = "id, time_ns, group_id, host, body";
        let found = with_words(connection, (columns, searched), &mut conditions)?;
        let with = format!("WITH found AS MATERIALIZED ({found})");
        return Ok(page(filter, ([&*with, "found", "time_ns"], conditions)));
    }
    if let Some(from) = filter.from_ns {
        // No partition of an earlier day has such an alert.
        conditions.add("a.day >= ?", from.div_euclid(24 * HOUR_NS));
    }
    let (index, groups) = index(connection, filter)?;
    let listed = match groups > LONG_LIST {
        true => LOOKED_UP,
        false => LISTED,
    };
    // The planner knows nothing of how groups and hosts are spread over the times. What is no plain column has no index.
    let (groups, host, time) = match index {
        Index::Time => (listed, "a.host + 0", "time_ns"),
        Index::Group => (INDEXED, "a.host + 0", "time_ns + 0"),
        Index::Host => (listed, "a.host", "time_ns"),
    };
    of_groups(groups, &mut conditions);
    of_host(connection, filter, (host, &mut conditions))?;
    Ok(page(filter, (["", "alerts", time], conditions)))
}

/// Each alert's group is looked up by its number. A subquery that is a value keeps the planner from a join, which may compare each
/// alert with each group, and from a table of all accepted groups, of which there would be one for each partition.
const LOOKED_UP: &str = "(SELECT true FROM groups g WHERE g.id = a.group_id AND ?) IS TRUE";

/// Each alert's group is looked up in a list of the accepted ones, which is read once and searched from its beginning. What is no
/// plain column has no index.
const LISTED: &str = "a.group_id + 0 = ANY (ARRAY(SELECT g.id FROM groups g WHERE ?))";

/// Accepted groups beyond which a list takes longer to search than [`LOOKED_UP`]. A sender can make any number of groups whose
/// alerts are old, so that no alert of the first days is in the list.
const LONG_LIST: i64 = 200;

/// Alerts are read along the index of groups, and sorted.
const INDEXED: &str = "a.group_id = ANY (ARRAY(SELECT g.id FROM groups g WHERE ?))";

/// Turns the conditions of groups into one of alerts: [`LOOKED_UP`], [`LISTED`] or [`INDEXED`].
fn of_groups(how: &str, conditions: &mut Conditions) {
    if !conditions.clauses.is_empty() {
        conditions.clauses = vec![how.replace('?', &conditions.sql())];
    }
}

/// Returns the query for a page of alerts, the latest first, from a table with a name and its time, and a query that makes the
/// table or nothing.
///
/// The page is complete before its groups and hosts are looked up, and no alert is looked up twice: by its number it would be
/// sought in each day, and the planner prefers to read all days.
fn page(
    filter: &Filter,
    ([with, table, time], mut conditions): ([&str; 3], Conditions),
) -> (String, Conditions) {
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
    (sql, conditions)
}

/// Chooses the index along which the fewest alerts are read, and returns how many groups the filter accepts, too.
fn index(connection: &mut Connection, filter: &Filter) -> Result<(Index, i64), StoreError> {
    let mut of_groups = Conditions::default();
    of_group(filter, &mut of_groups);
    let (mut by_group, mut groups) = (None, 0);
    if !of_groups.clauses.is_empty() {
        let condition = of_groups.sql();
        let sql = format!(
            "SELECT coalesce(sum(g.count), 0)::bigint, count(*) FROM groups g WHERE {condition}"
        );
        if let Some(row) = of_groups.query(connection, &sql)?.first() {
            (by_group, groups) = (Some(row.try_get(0)?), row.try_get(1)?);
        }
    }
    let by_host = match &filter.host {
        None => None,
        Some(host) => {
            let count = "SELECT count FROM hosts WHERE md5(name) = md5($1) AND name = $1";
            Some(connection.number(count, &[&text(host)])?)
        }
    };
    let total = connection.number("SELECT sum(count)::bigint FROM hours", &[])?;
    let index = limits::index(filter, total, (by_group, by_host));
    Ok((index, groups))
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

#[cfg(test)]
mod tests {
    use testing::postgres::Server;

    use super::super::connection::{Readers, Target};
    use super::*;
    use crate::PostgresStore;

    /// Adds many critical groups whose alerts are older than all others, and some critical alerts between those.
    fn fill(url: &str) {
        PostgresStore::open(url).expect("a store");
        let mut client = ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
        let rows = "SET search_path TO tollgate;
            CREATE TABLE alerts_0 PARTITION OF alerts FOR VALUES FROM (0) TO (1);
            CREATE INDEX ON alerts_0 (time_ns, id);
            INSERT INTO hosts (name, count) VALUES ('box', 12000);
            INSERT INTO groups (rule, severity, program, object, count) VALUES ('known', 4, 'p', 'o', 1960);
            INSERT INTO groups (rule, severity, program, object, count) VALUES ('urgent', 2, 'p', 'o', 40);
            INSERT INTO groups (rule, severity, program, object, count)
                SELECT 'hostile', 2, 'p', n::text, 1 FROM generate_series(1, 10000) n;
            INSERT INTO alerts (day, agent, time_ns, received_ns, group_id, host, body, words)
                SELECT 0, 1, 20000 + n, 0, CASE WHEN n % 50 = 0 THEN 2 ELSE 1 END, 1, '{}', '' FROM generate_series(1, 2000) n;
            INSERT INTO alerts (day, agent, time_ns, received_ns, group_id, host, body, words)
                SELECT 0, 1, n, 0, 2 + n, 1, '{}', '' FROM generate_series(1, 10000) n;
            INSERT INTO hours VALUES (0, 2, 10040), (0, 4, 1960);
            ANALYZE";
        client.batch_execute(rows).expect("added");
    }

    /// Returns rows that a node of a plan returns in all.
    fn rows(line: &str) -> Option<f64> {
        let number = |name: &str| {
            let (_, after) = line.split_once(name)?;
            let end = after.find([' ', ')']).unwrap_or(after.len());
            after[..end].parse::<f64>().ok()
        };
        Some(number("rows=")? * number("loops=")?)
    }

    #[test]
    fn groups_of_old_alerts_do_not_make_a_list_of_alerts_long() {
        let server = Server::shared();
        let url = server.database();
        fill(&url);
        let readers = Readers::new(Target::parse(&url).expect("a URL"));
        let filter = Filter {
            severity: Severity::named("Critical"),
            ..Filter::default()
        };
        let (found, plan) = readers
            .with(|connection| {
                let found = alerts(connection, &filter)?;
                let (sql, conditions) = question(connection, &filter)?;
                let sql = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {sql}");
                let plan = conditions.query(connection, &sql)?;
                let plan: Result<Vec<String>, _> = plan.iter().map(|row| row.try_get(0)).collect();
                Ok((found, plan?))
            })
            .expect("readable");
        let rules: Vec<_> = found.iter().map(|row| &*row.rule).collect();
        assert_eq!(
            rules,
            [["urgent"; 40].as_slice(), &["hostile"; 10]].concat()
        );
        let plan = plan.join("\n");
        // 2,010 alerts are read until the page is complete, and a group for each, but never all that are accepted.
        assert!(
            plan.contains("SubPlan") && plan.contains("groups_pkey"),
            "{plan}"
        );
        let most = plan.lines().filter_map(rows).fold(0.0, f64::max);
        assert!((50.0..4000.0).contains(&most), "{most}: {plan}");
    }
}
