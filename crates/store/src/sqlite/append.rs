//! Storing batches.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::writer::State;
use super::{signed, unsigned};
use crate::error::StoreError;
use crate::model::{AgentId, Batch, Loss, NewAlert, Receipt, Record};
use crate::severity::Severity;

/// Nanoseconds of an hour.
pub(super) const HOUR_NS: i64 = 3_600_000_000_000;

/// Groups of one rule at most. Programs and objects have names that a hostile workload chooses: beyond this
/// number its alerts share one group, so that it cannot fill the pages of others.
const GROUPS_OF_A_RULE: i64 = 2000;

/// Rules, and hosts, at most, for the same reason: a sender names them.
const NAMES: i64 = 20_000;

/// Program and object of the alerts beyond [`GROUPS_OF_A_RULE`], host beyond [`NAMES`].
pub(super) const OTHER: &str = "(other)";

/// Number, first and last time of alerts in one hour, of one group and host.
type Counts = BTreeMap<(i64, i64, i64), (i64, i64, i64)>;

/// What a batch adds to the sums.
#[derive(Default)]
struct Sums {
    counts: Counts,
    hours: BTreeMap<(i64, Severity), i64>,
}

/// Stores what was not stored before.
pub(super) fn append(state: &mut State, batch: Batch) -> Result<Receipt, StoreError> {
    let sender = batch.sender;
    let (before, host) = sender_state(state.connection(), sender)?;
    let mut receipt = Receipt {
        acknowledged: before,
        ..Receipt::default()
    };
    let mut sums = Sums::default();
    if let Some(first) = batch.first {
        receipt.missing = first.saturating_sub(before.saturating_add(1));
    }
    for (sequence, record) in numbered(batch.first, batch.records) {
        if let Some(sequence) = sequence {
            if sequence <= before {
                receipt.duplicates += 1;
                continue;
            }
            receipt.acknowledged = sequence;
        }
        receipt.stored += 1;
        let (alert, loss) = match record {
            Record::Alert(alert, loss) => (Some(alert), loss),
            Record::Loss(loss) => (None, Some(loss)),
            Record::Dropped => (None, None),
        };
        if let Some(mut alert) = alert {
            if !host.is_empty() {
                // An agent that has enrolled writes as itself, whatever its alerts say.
                alert.host.clone_from(&host);
            }
            let from = Origin {
                sender,
                sequence,
                received_ns: batch.received_ns,
            };
            insert(state, &alert, &from, &mut sums)?;
        }
        if let Some(loss) = loss {
            insert_loss(state.connection(), sender, &loss)?;
        }
    }
    add(state.connection(), &sums)?;
    advance(state.connection(), sender, &receipt, batch.received_ns)?;
    Ok(receipt)
}

/// Returns the number up to which the sender's records are stored, and its host.
fn sender_state(connection: &Connection, sender: AgentId) -> Result<(u64, String), StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT acknowledged, host FROM agents WHERE id = ?1")?;
    let found = statement.query_row([sender.0], |row| Ok((unsigned(row.get(0)?), row.get(1)?)))?;
    Ok(found)
}

fn advance(
    connection: &Connection,
    sender: AgentId,
    receipt: &Receipt,
    received_ns: i64,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE agents SET acknowledged = ?2, missing = missing + ?3,
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

/// Pairs each record with its sequence number.
fn numbered(
    first: Option<u64>,
    records: Vec<Record>,
) -> impl Iterator<Item = (Option<u64>, Record)> {
    let numbers = (0_u64..).map(move |at| first.map(|first| first.saturating_add(at)));
    numbers.zip(records)
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
    let host = host(state, &alert.host)?;
    let group = group(state, alert)?;
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
    let hour = alert.time_ns.div_euclid(HOUR_NS);
    let time = alert.time_ns;
    let entry = sums
        .counts
        .entry((hour, group, host))
        .or_insert((0, time, time));
    *entry = (entry.0 + 1, entry.1.min(time), entry.2.max(time));
    *sums.hours.entry((hour, alert.severity)).or_default() += 1;
    Ok(())
}

/// Adds the sums of a batch, a row for each instead of one for each alert.
fn add(connection: &Connection, sums: &Sums) -> Result<(), StoreError> {
    let mut counts = connection.prepare_cached(
        "INSERT INTO counts (hour, group_id, host, count, first_ns, last_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (hour, group_id, host) DO UPDATE SET count = count + excluded.count,
             first_ns = min(first_ns, excluded.first_ns), last_ns = max(last_ns, excluded.last_ns)",
    )?;
    for ((hour, group, host), (count, first, last)) in &sums.counts {
        counts.execute(params![hour, group, host, count, first, last])?;
    }
    let mut hours = connection.prepare_cached(
        "INSERT INTO hours (hour, severity, count) VALUES (?1, ?2, ?3)
         ON CONFLICT (hour, severity) DO UPDATE SET count = count + excluded.count",
    )?;
    for ((hour, severity), count) in &sums.hours {
        hours.execute(params![hour, severity.number(), count])?;
    }
    Ok(())
}

fn insert_loss(connection: &Connection, sender: AgentId, loss: &Loss) -> Result<(), StoreError> {
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

/// Returns the number of a host, and adds it if it is new.
fn host(state: &mut State, name: &str) -> Result<i64, StoreError> {
    if let Some(id) = state.hosts.get(name) {
        return Ok(*id);
    }
    let find = "SELECT id FROM hosts WHERE name = ?1";
    let known = find_id(state.connection(), find, params![name])?;
    let id = match known {
        Some(id) => id,
        None if name != OTHER
            && count(state.connection(), "SELECT count(*) FROM hosts", [])? >= NAMES =>
        {
            host(state, OTHER)?
        }
        None => state
            .connection()
            .prepare_cached("INSERT INTO hosts (name) VALUES (?1)")?
            .insert([name])?,
    };
    state.hosts.insert(name.to_owned(), id);
    Ok(id)
}

/// Returns the number of the group of an alert, and adds it if it is new.
fn group(state: &mut State, alert: &NewAlert) -> Result<i64, StoreError> {
    let key = (
        alert.rule.clone(),
        alert.severity.number(),
        alert.program.clone(),
        alert.object.clone(),
    );
    if let Some(id) = state.groups.get(&key) {
        return Ok(*id);
    }
    let id = match find_group(state.connection(), &key)? {
        Some(id) => id,
        None => new_group(state.connection(), &key)?,
    };
    state.groups.insert(key, id);
    Ok(id)
}

fn find_group(
    connection: &Connection,
    (rule, severity, program, object): &(String, u8, String, String),
) -> Result<Option<i64>, StoreError> {
    let find =
        "SELECT id FROM groups WHERE rule = ?1 AND severity = ?2 AND program = ?3 AND object = ?4";
    find_id(connection, find, params![rule, severity, program, object])
}

/// Adds a group, or returns the one for all that exceeds the limits.
fn new_group(
    connection: &Connection,
    key: &(String, u8, String, String),
) -> Result<i64, StoreError> {
    let (rule, severity, ..) = key;
    let of_rule = "SELECT count(*) FROM groups WHERE rule = ?1";
    let mut key = key.clone();
    let known = count(connection, of_rule, [rule])?;
    if known == 0 {
        let rules = "SELECT count(*) FROM (SELECT DISTINCT rule FROM groups)";
        if count(connection, rules, [])? >= NAMES {
            key = (
                OTHER.to_owned(),
                *severity,
                OTHER.to_owned(),
                OTHER.to_owned(),
            );
        }
    } else if known >= GROUPS_OF_A_RULE {
        key = (rule.clone(), *severity, OTHER.to_owned(), OTHER.to_owned());
    }
    if let Some(id) = find_group(connection, &key)? {
        return Ok(id);
    }
    let (rule, severity, program, object) = key;
    let id = connection
        .prepare_cached(
            "INSERT INTO groups (rule, severity, program, object) VALUES (?1, ?2, ?3, ?4)",
        )?
        .insert(params![rule, severity, program, object])?;
    Ok(id)
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
