//! Storing batches.

use rusqlite::{Connection, OptionalExtension, params};

use super::writer::State;
use crate::error::StoreError;
use crate::intake::{self, Cache, GroupKey, Hole, LOSSES, Names, Sums};
use crate::model::{AgentId, Batch, Loss, NewAlert, Receipt};
use crate::number::{signed, unsigned};

/// Stores what was not stored before.
pub(super) fn append(
    state: &mut State,
    batch: &mut Batch,
    hole: Hole,
) -> Result<Receipt, StoreError> {
    let (sender, received_ns) = (batch.sender, batch.received_ns);
    let (before, host) = sender_state(state.connection(), sender)?;
    intake::check_order(batch, before, hole)?;
    let (receipt, records) = intake::new_records(batch, before, &host);
    let mut sums = Sums::default();
    let mut room = None;
    for record in records {
        if let Some(alert) = record.alert {
            let from = Origin {
                sender,
                sequence: record.sequence,
                received_ns,
            };
            insert(state, alert, &from, &mut sums)?;
        }
        if let Some(loss) = record.loss {
            insert_loss(state.connection(), sender, (loss, &mut room))?;
        }
    }
    advance(state.connection(), sender, &receipt, received_ns)?;
    // Last: what is undone must not leave its sums.
    state.sums.merge(sums);
    Ok(receipt)
}

/// Returns the number up to which the sender's records are stored, and its host.
pub(super) fn sender_state(
    connection: &Connection,
    sender: AgentId,
) -> Result<(u64, String), StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT acknowledged, host FROM agents WHERE id = ?1")?;
    let found = statement.query_row([sender.0], |row| Ok((unsigned(row.get(0)?), row.get(1)?)));
    found
        .optional()?
        .ok_or(StoreError::UnknownAgent { id: sender.0 })
}

/// Numbers come from the sender: the sum stays at the largest number instead of failing.
fn advance(
    connection: &Connection,
    sender: AgentId,
    receipt: &Receipt,
    received_ns: i64,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE agents SET acknowledged = ?2, missing = missing + min(?3, 9223372036854775807 - missing),
             last_seen_ns = max(last_seen_ns, ?4) WHERE id = ?1",
        )?
        .execute(params![
            sender.0,
            signed(receipt.acknowledged),
            signed(receipt.missing),
            received_ns
        ])?;
    Ok(())
}

/// Where an alert came from.
struct Origin {
    sender: AgentId,
    sequence: Option<u64>,
    received_ns: i64,
}

fn insert(
    state: &mut State,
    alert: &NewAlert,
    from: &Origin,
    sums: &mut Sums,
) -> Result<(), StoreError> {
    let host = intake::host(state, &alert.host)?;
    let group = intake::group(state, alert)?;
    let connection = state.connection();
    let id = connection
        .prepare_cached(
            "INSERT INTO alerts (agent, sequence, time_ns, received_ns, group_id, host, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .insert(params![
            from.sender.0,
            from.sequence.map(signed),
            alert.time_ns,
            from.received_ns,
            group,
            host,
            alert.body
        ])?;
    connection
        .prepare_cached("INSERT INTO alert_words (rowid, message) VALUES (?1, ?2)")?
        .execute(params![id, alert.message])?;
    sums.add(alert, group, host);
    Ok(())
}

/// Stores a loss. `room` is the number of rows that the sender may still have, once it is known.
fn insert_loss(
    connection: &Connection,
    sender: AgentId,
    (loss, room): (&Loss, &mut Option<i64>),
) -> Result<(), StoreError> {
    let rows = match *room {
        Some(rows) => rows,
        None => {
            let of_sender = "SELECT count(*) FROM losses WHERE agent = ?1";
            LOSSES - count(connection, of_sender, [sender.0])?
        }
    };
    if rows <= 0 {
        let added = connection
            .prepare_cached(
                "UPDATE losses SET count = count + min(?3, 9223372036854775807 - count) WHERE id =
                     (SELECT id FROM losses WHERE agent = ?1 AND kind = ?2 ORDER BY time_ns DESC, id DESC LIMIT 1)",
            )?
            .execute(params![sender.0, loss.kind.name(), signed(loss.count)])?;
        *room = Some(rows);
        if added > 0 {
            return Ok(());
        }
    }
    *room = Some(rows - 1);
    connection
        .prepare_cached(
            "INSERT INTO losses (agent, time_ns, kind, count, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            sender.0,
            loss.time_ns,
            loss.kind.name(),
            signed(loss.count),
            loss.detail
        ])?;
    Ok(())
}

impl Names for State {
    fn cache(&mut self) -> &mut Cache {
        crate::writer::Transactions::cache(self)
    }

    fn find_host(&mut self, name: &str) -> Result<Option<i64>, StoreError> {
        let find = "SELECT id FROM hosts WHERE name = ?1";
        find_id(self.connection(), find, params![name])
    }

    fn add_host(&mut self, name: &str) -> Result<i64, StoreError> {
        let add = "INSERT INTO hosts (name) VALUES (?1)";
        Ok(self.connection().prepare_cached(add)?.insert([name])?)
    }

    fn host_count(&mut self) -> Result<i64, StoreError> {
        count(self.connection(), "SELECT count(*) FROM hosts", [])
    }

    fn find_group(&mut self, key: &GroupKey) -> Result<Option<i64>, StoreError> {
        let (rule, severity, program, object) = key;
        let find = "SELECT id FROM groups
             WHERE rule = ?1 AND severity = ?2 AND program = ?3 AND object = ?4";
        let values = params![rule, severity, program, object];
        find_id(self.connection(), find, values)
    }

    fn add_group(&mut self, key: &GroupKey) -> Result<i64, StoreError> {
        let (rule, severity, program, object) = key;
        let add = "INSERT INTO groups (rule, severity, program, object) VALUES (?1, ?2, ?3, ?4)";
        let values = params![rule, severity, program, object];
        Ok(self.connection().prepare_cached(add)?.insert(values)?)
    }

    fn groups_of(&mut self, rule: &str) -> Result<i64, StoreError> {
        let of_rule = "SELECT count(*) FROM groups WHERE rule = ?1";
        count(self.connection(), of_rule, [rule])
    }

    fn rule_count(&mut self) -> Result<i64, StoreError> {
        let rules = "SELECT count(*) FROM (SELECT DISTINCT rule FROM groups)";
        count(self.connection(), rules, [])
    }
}

fn find_id(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Option<i64>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params, |row| row.get(0)).optional()?)
}

fn count(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<i64, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params, |row| row.get(0))?)
}
