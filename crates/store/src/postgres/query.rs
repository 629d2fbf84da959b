//! Reading groups, alerts and sums. Sums by hour, group and host answer every question about many alerts.

use postgres::Row;
use postgres::types::ToSql;

use super::append::{find_host, words};
use super::connection::Connection;
use super::{retention, schema, text};
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::limits::{self, SEARCHED, TOP};
use crate::model::{
    AgentId, AlertDetail, AlertId, AlertRow, Cursor, Filter, Group, GroupId, HourCount, Loss,
    LossKind, LossRow, Overview, Statistics,
};
use crate::number::unsigned;
use crate::severity::Severity;

/// A WHERE clause with its values.
#[derive(Default)]
struct Conditions {
    clauses: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync>>,
}

impl Conditions {
    /// Adds a condition in which `?` is the value.
    fn add(&mut self, clause: &str, value: impl ToSql + Sync + 'static) {
        let place = self.place(value);
        self.clauses.push(clause.replace('?', &place));
    }

    fn place(&mut self, value: impl ToSql + Sync + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    /// Returns the condition that a row, sorted descending by these columns, follows the cursor.
    fn after(&mut self, [time, id]: [&str; 2], cursor: Cursor) -> String {
        let (at, number) = (self.place(cursor.time_ns), self.place(cursor.id));
        format!("({time}, {id}) < ({at}, {number})")
    }

    fn sql(&self) -> String {
        match self.clauses.is_empty() {
            true => "true".to_owned(),
            false => self.clauses.join(" AND "),
        }
    }

    fn query(&self, connection: &mut Connection, sql: &str) -> Result<Vec<Row>, StoreError> {
        let values: Vec<&(dyn ToSql + Sync)> = self.values.iter().map(|it| &**it).collect();
        connection.query(sql, &values)
    }
}

/// Adds what the filter says about groups, which are called `g`.
fn of_group(filter: &Filter, conditions: &mut Conditions) {
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
fn of_host(
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

/// Turns what a user typed into a query: words that all have to occur, each by its beginning. Nothing of the
/// query language gets through.
fn words_query(text: &str) -> String {
    let words: Vec<String> = words(text).map(|word| format!("'{word}':*")).collect();
    words.join(" & ")
}

pub(super) fn groups(
    connection: &mut Connection,
    filter: &Filter,
    now_ns: i64,
) -> Result<Vec<Group>, StoreError> {
    let mut conditions = Conditions::default();
    of_group(filter, &mut conditions);
    if let Some(from) = filter.from_ns {
        conditions.add("c.hour >= ?", from.div_euclid(HOUR_NS));
    }
    if let Some(to) = filter.to_ns {
        conditions.add("c.hour <= ?", to.saturating_sub(1).div_euclid(HOUR_NS));
    }
    of_host(connection, filter, ("c.host", &mut conditions))?;
    if !filter.with_acknowledged {
        let shown = "g.acknowledged_ns IS NULL AND coalesce(g.muted_until_ns, 0) <= ?";
        conditions.add(shown, now_ns);
    }
    if let Some(searched) = &filter.text {
        let found = format!(
            "g.id IN (SELECT group_id FROM (SELECT group_id FROM alerts
                 WHERE words @@ ?::text::tsquery ORDER BY id DESC LIMIT {SEARCHED}) AS found)"
        );
        conditions.add(&found, words_query(searched));
    }
    let after = filter.after.map(|cursor| {
        let columns = ["max(c.last_ns)", "g.id"];
        conditions.after(columns, cursor)
    });
    let sql = format!(
        "SELECT g.id, g.rule, g.severity, g.program, g.object, g.acknowledged_by, g.note,
             sum(c.count)::bigint, min(c.first_ns), max(c.last_ns), count(DISTINCT c.host),
             g.assignee, g.muted_until_ns
         FROM counts c JOIN groups g ON g.id = c.group_id
         WHERE {} GROUP BY g.id HAVING {} ORDER BY max(c.last_ns) DESC, g.id DESC LIMIT {}",
        conditions.sql(),
        after.as_deref().unwrap_or("true"),
        limits::rows(filter)
    );
    let rows = conditions.query(connection, &sql)?;
    rows.iter().map(group).collect()
}

fn group(row: &Row) -> Result<Group, StoreError> {
    Ok(Group {
        id: GroupId(row.try_get(0)?),
        rule: row.try_get(1)?,
        severity: severity(row, 2)?,
        program: row.try_get(3)?,
        object: row.try_get(4)?,
        acknowledged_by: row.try_get(5)?,
        note: row.try_get(6)?,
        count: unsigned(row.try_get(7)?),
        first_ns: row.try_get(8)?,
        last_ns: row.try_get(9)?,
        hosts: unsigned(row.try_get(10)?),
        assignee: row.try_get(11)?,
        muted_until_ns: row.try_get(12)?,
    })
}

fn severity(row: &Row, column: usize) -> Result<Severity, StoreError> {
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
    if let Some(from) = filter.from_ns {
        conditions.add("a.time_ns >= ?", from);
        // No partition of an earlier day has such an alert.
        conditions.add("a.day >= ?", from.div_euclid(24 * HOUR_NS));
    }
    if let Some(to) = filter.to_ns {
        conditions.add("a.time_ns < ?", to);
    }
    of_host(connection, filter, ("a.host", &mut conditions))?;
    if let Some(cursor) = filter.after {
        let after = conditions.after(["a.time_ns", "a.id"], cursor);
        conditions.clauses.push(after);
    }
    if let Some(searched) = &filter.text {
        let found = format!(
            "a.id IN (SELECT id FROM alerts WHERE words @@ ?::text::tsquery
                 ORDER BY id DESC LIMIT {SEARCHED})"
        );
        conditions.add(&found, words_query(searched));
    }
    let sql = format!(
        "SELECT {ROW} {ROWS} WHERE {} ORDER BY a.time_ns DESC, a.id DESC LIMIT {}",
        conditions.sql(),
        limits::rows(filter)
    );
    let rows = conditions.query(connection, &sql)?;
    rows.iter().map(row).collect()
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
    let mut top = |name: &str, from_table: &str| -> Result<Vec<(String, u64)>, StoreError> {
        let rows = connection.query(
            &format!(
                "SELECT {name}, sum(c.count)::bigint FROM counts c {from_table}
                 WHERE c.hour BETWEEN $1 AND $2 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}"
            ),
            &[&from, &to],
        )?;
        let entry = |row: &Row| Ok((row.try_get(0)?, unsigned(row.try_get(1)?)));
        rows.iter().map(entry).collect()
    };
    let rules = top("g.rule", "JOIN groups g ON g.id = c.group_id")?;
    let hosts = top("h.name", "JOIN hosts h ON h.id = c.host")?;
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
