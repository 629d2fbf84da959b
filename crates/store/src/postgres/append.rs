//! Storing batches.

use postgres::Row;

use super::connection::{Connection, Values};
use super::text;
use super::writer::State;
use crate::error::StoreError;
use crate::intake::{self, Cache, GroupKey, HOUR_NS, Hole, LOSSES, Names, NewRecord, Sums};
use crate::model::{AgentId, Batch, Loss, NewAlert, Receipt};
use crate::number::{signed, unsigned};
use crate::writer::Transactions;

/// Nanoseconds of a day.
const DAY_NS: i64 = 24 * HOUR_NS;

/// Days before the day of arrival that have a partition of their own: a sender chooses the times of its alerts,
/// and must not make partitions without end. Older alerts are in the last of them.
const OLDEST: i64 = 30;

/// Words of a message that a search finds, and characters of a word.
const WORDS: usize = 2000;
const WORD: usize = 200;

/// Returns the day whose partition has an alert.
fn day(alert: &NewAlert, received_ns: i64) -> i64 {
    let received = received_ns.div_euclid(DAY_NS);
    let oldest = (received - OLDEST).max(0);
    alert
        .time_ns
        .div_euclid(DAY_NS)
        .clamp(oldest, received.max(0) + 1)
}

/// Splits a text into the words that a search finds, in lower case.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.take(WORDS).map(|word| {
        let beginning = word.chars().take(WORD);
        beginning.flat_map(char::to_lowercase).collect()
    })
}

/// Size up to which new entries of an index of words wait to be sorted in. Each search reads them, of each day.
const PENDING_KB: u32 = 256;

/// Columns of alerts that differ within a batch.
#[derive(Default)]
struct Columns {
    days: Vec<i64>,
    sequences: Vec<Option<i64>>,
    times: Vec<i64>,
    groups: Vec<i64>,
    hosts: Vec<i64>,
    bodies: Vec<String>,
    words: Vec<String>,
}

/// Stores what was not stored before.
pub(super) fn append(
    state: &mut State,
    batch: &mut Batch,
    hole: Hole,
) -> Result<Receipt, StoreError> {
    let (sender, received_ns) = (batch.sender, batch.received_ns);
    let row = state.first(SENDER, &[&sender.0])?;
    let (before, host) = sender_of(row, sender)?;
    intake::check_order(batch, before, hole)?;
    let (receipt, records) = intake::new_records(batch, before, &host);
    let (mut sums, mut columns) = (Sums::default(), Columns::default());
    let mut room = None;
    for NewRecord {
        sequence,
        alert,
        loss,
    } in records
    {
        if let Some(alert) = alert {
            let alert = clean(alert);
            let host = intake::host(state, &alert.host)?;
            let group = intake::group(state, &alert)?;
            sums.add(&alert, group, host);
            let day = day(&alert, received_ns);
            make_partition(state, day)?;
            columns.days.push(day);
            columns.sequences.push(sequence.map(signed));
            columns.times.push(alert.time_ns);
            columns.groups.push(group);
            columns.hosts.push(host);
            let found: Vec<String> = words(&alert.message).collect();
            columns.words.push(found.join(" "));
            columns.bodies.push(alert.body);
        }
        if let Some(loss) = loss {
            insert_loss(state.connection()?, sender, (loss, &mut room))?;
        }
    }
    insert(
        state.connection()?,
        (sender, received_ns),
        (&columns, &receipt),
    )?;
    // Last: what is undone must not leave its sums.
    state.sums.merge(sums);
    Ok(receipt)
}

/// Returns the alert without the character that no text of the server can hold.
fn clean(alert: &NewAlert) -> NewAlert {
    NewAlert {
        time_ns: alert.time_ns,
        severity: alert.severity,
        rule: text(&alert.rule),
        host: text(&alert.host),
        program: text(&alert.program),
        object: text(&alert.object),
        message: text(&alert.message),
        body: text(&alert.body),
    }
}

/// The number up to which the records of a sender are stored, and its host.
const SENDER: &str = "SELECT acknowledged, host FROM agents WHERE id = $1";

/// Returns the number up to which the sender's records are stored, and its host.
pub(super) fn sender_state(
    connection: &mut Connection,
    sender: AgentId,
) -> Result<(u64, String), StoreError> {
    sender_of(connection.first(SENDER, &[&sender.0])?, sender)
}

fn sender_of(row: Option<Row>, sender: AgentId) -> Result<(u64, String), StoreError> {
    let row = row.ok_or(StoreError::UnknownAgent { id: sender.0 })?;
    Ok((unsigned(row.try_get(0)?), row.try_get(1)?))
}

/// Stores what a sender has sent. Numbers come from the sender: the sum stays at the largest number instead of failing.
const ADVANCE: &str = "UPDATE agents SET acknowledged = $2, missing = missing + least($3, 9223372036854775807 - missing),
         last_seen_ns = greatest(last_seen_ns, $4) WHERE id = $1";

const INSERT: &str = "INSERT INTO alerts (agent, received_ns, day, sequence, time_ns, group_id, host, body, words)
         SELECT $1, $2, day, sequence, time_ns, group_id, host, body,
             array_to_tsvector(string_to_array(words, ' '))
         FROM UNNEST($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
             $9::text[]) WITH ORDINALITY
             AS n (day, sequence, time_ns, group_id, host, body, words, place) ORDER BY place";

/// Makes the partition of a day, if it has none.
fn make_partition(state: &mut State, day: i64) -> Result<(), StoreError> {
    if state.days.contains(&day) {
        return Ok(());
    }
    let next = day + 1;
    state.connection()?.batch(&format!(
        "CREATE TABLE IF NOT EXISTS alerts_{day} PARTITION OF alerts FOR VALUES FROM ({day}) TO ({next});
         CREATE INDEX IF NOT EXISTS alerts_{day}_time ON alerts_{day} (time_ns, id);
         CREATE INDEX IF NOT EXISTS alerts_{day}_group ON alerts_{day} (group_id, time_ns, id);
         CREATE INDEX IF NOT EXISTS alerts_{day}_host ON alerts_{day} (host, time_ns, id);
         CREATE INDEX IF NOT EXISTS alerts_{day}_words ON alerts_{day} USING gin (words)
             WITH (gin_pending_list_limit = {PENDING_KB})"
    ))?;
    state.days.insert(day);
    Ok(())
}

/// Stores the alerts of a batch, and how far its sender has come.
fn insert(
    connection: &mut Connection,
    (sender, received_ns): (AgentId, i64),
    (columns, receipt): (&Columns, &Receipt),
) -> Result<(), StoreError> {
    let (acknowledged, missing) = (signed(receipt.acknowledged), signed(receipt.missing));
    let advance: Values<'_> = &[&sender.0, &acknowledged, &missing, &received_ns];
    if columns.days.is_empty() {
        return connection.execute_all(&[(ADVANCE, advance)]);
    }
    let insert: Values<'_> = &[
        &sender.0,
        &received_ns,
        &columns.days,
        &columns.sequences,
        &columns.times,
        &columns.groups,
        &columns.hosts,
        &columns.bodies,
        &columns.words,
    ];
    connection.execute_all(&[(INSERT, insert), (ADVANCE, advance)])
}

/// Stores a loss. `room` is the number of rows that the sender may still have, once it is known.
fn insert_loss(
    connection: &mut Connection,
    sender: AgentId,
    (loss, room): (&Loss, &mut Option<i64>),
) -> Result<(), StoreError> {
    let rows = match *room {
        Some(rows) => rows,
        None => {
            let of_sender = "SELECT count(*) FROM losses WHERE agent = $1";
            LOSSES - connection.number(of_sender, &[&sender.0])?
        }
    };
    if rows <= 0 {
        let added = connection.execute(
            "UPDATE losses SET count = count + least($3, 9223372036854775807 - count) WHERE id =
                 (SELECT id FROM losses WHERE agent = $1 AND kind = $2 ORDER BY time_ns DESC, id DESC LIMIT 1)",
            &[&sender.0, &loss.kind.name(), &signed(loss.count)],
        )?;
        *room = Some(rows);
        if added > 0 {
            return Ok(());
        }
    }
    *room = Some(rows - 1);
    connection.execute(
        "INSERT INTO losses (agent, time_ns, kind, count, detail) VALUES ($1, $2, $3, $4, $5)",
        &[
            &sender.0,
            &loss.time_ns,
            &loss.kind.name(),
            &signed(loss.count),
            &text(&loss.detail),
        ],
    )?;
    Ok(())
}

impl Names for State {
    fn cache(&mut self) -> &mut Cache {
        Transactions::cache(self)
    }

    fn find_host(&mut self, name: &str) -> Result<Option<i64>, StoreError> {
        find_host(self.connection()?, name)
    }

    fn add_host(&mut self, name: &str) -> Result<i64, StoreError> {
        let add = "INSERT INTO hosts (name) VALUES ($1) RETURNING id";
        self.connection()?.number(add, &[&name])
    }

    fn host_count(&mut self) -> Result<i64, StoreError> {
        let count = "SELECT count(*) FROM hosts";
        self.connection()?.number(count, &[])
    }

    fn find_group(&mut self, key: &GroupKey) -> Result<Option<i64>, StoreError> {
        let (rule, severity, program, object) = key;
        let find =
            "SELECT id FROM groups WHERE md5(rule || program || object) = md5($1 || $3 || $4)
             AND rule = $1 AND severity = $2 AND program = $3 AND object = $4";
        let values: [&(dyn postgres::types::ToSql + Sync); 4] =
            [rule, &i64::from(*severity), program, object];
        let row = self.connection()?.first(find, &values)?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    fn add_group(&mut self, key: &GroupKey) -> Result<i64, StoreError> {
        let (rule, severity, program, object) = key;
        let add = "INSERT INTO groups (rule, severity, program, object) VALUES ($1, $2, $3, $4)
             RETURNING id";
        let severity = i64::from(*severity);
        self.connection()?
            .number(add, &[rule, &severity, program, object])
    }

    fn groups_of(&mut self, rule: &str) -> Result<i64, StoreError> {
        let of_rule = "SELECT count(*) FROM groups WHERE md5(rule) = md5($1) AND rule = $1";
        self.connection()?.number(of_rule, &[&rule])
    }

    fn rule_count(&mut self) -> Result<i64, StoreError> {
        let rules = "SELECT count(DISTINCT rule) FROM groups";
        self.connection()?.number(rules, &[])
    }
}

/// Returns the number of a host.
pub(super) fn find_host(
    connection: &mut Connection,
    name: &str,
) -> Result<Option<i64>, StoreError> {
    let find = "SELECT id FROM hosts WHERE md5(name) = md5($1) AND name = $1";
    let row = connection.first(find, &[&text(name)])?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
