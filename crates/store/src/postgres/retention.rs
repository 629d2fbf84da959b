//! Deleting what is too old, or too much. A day that is too old goes as a whole, with its partition.

use super::connection::{Connection, SCHEMA};
use super::writer::State;
use super::{PostgresStore, sums};
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::model::{Pruned, Retention};
use crate::number::unsigned;

const HOURS_OF_A_DAY: i64 = 24;

/// Alerts deleted in one change, so that batches need not wait long.
const PIECE: i64 = 5000;

pub(super) fn prune(store: &PostgresStore, retention: Retention) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    if let Some(before) = retention.before_ns {
        drop_before(store, before.div_euclid(HOUR_NS), &mut pruned)?;
    }
    if let Some(max_bytes) = retention.max_bytes {
        // Rows that are deleted one by one leave their space behind, so whole days go.
        // Other tables keep their space when a day goes: they must not make the limit delete every day.
        while store.readers.with(bytes_of_days)? > max_bytes {
            let Some(oldest) = store.readers.with(|it| Ok(days(it)?.first().copied()))? else {
                break;
            };
            drop_before(store, (oldest + 1) * HOURS_OF_A_DAY, &mut pruned)?;
        }
    }
    if pruned != Pruned::default() {
        store.write_with_sums(finish)?;
    }
    Ok(pruned)
}

/// Deletes everything of hours before this one.
fn drop_before(store: &PostgresStore, hour: i64, pruned: &mut Pruned) -> Result<(), StoreError> {
    for day in store.readers.with(days)? {
        if (day + 1) * HOURS_OF_A_DAY <= hour {
            pruned.alerts += store.write_with_sums(move |state| drop_day(state, day))?;
        }
    }
    let end_ns = hour.saturating_mul(HOUR_NS);
    loop {
        let deleted = store.write_with_sums(move |state| {
            state.connection()?.execute(
                "DELETE FROM alerts WHERE (id, day) IN
                     (SELECT id, day FROM alerts WHERE time_ns < $1 ORDER BY time_ns LIMIT $2)",
                &[&end_ns, &PIECE],
            )
        })?;
        pruned.alerts += deleted;
        if deleted == 0 {
            break;
        }
    }
    pruned.losses += store.write_with_sums(move |state| {
        let connection = state.connection()?;
        sums::drop_before(connection, hour)?;
        connection.execute("DELETE FROM losses WHERE time_ns < $1", &[&end_ns])
    })?;
    Ok(())
}

/// Drops the partition of a day. Returns the number of its alerts, 0 if another collector was faster.
fn drop_day(state: &mut State, day: i64) -> Result<u64, StoreError> {
    let connection = state.connection()?;
    if !days(connection)?.contains(&day) {
        return Ok(0);
    }
    let count = connection.number("SELECT count(*) FROM alerts WHERE day = $1", &[&day])?;
    connection.batch(&format!("DROP TABLE alerts_{day}"))?;
    state.count_deletion()?;
    Ok(unsigned(count))
}

/// Returns the days that have a partition, the oldest first.
fn days(connection: &mut Connection) -> Result<Vec<i64>, StoreError> {
    let rows = connection.query(
        "SELECT substr(c.relname, 8)::bigint FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = to_regclass($1)::oid ORDER BY 1",
        &[&format!("{SCHEMA}.alerts")],
    )?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Deletes groups without alerts. Numbers are not given out again.
fn finish(state: &mut State) -> Result<(), StoreError> {
    let connection = state.connection()?;
    connection.batch(
        "DELETE FROM groups WHERE acknowledged_ns IS NULL AND count = 0;
         DELETE FROM comments WHERE group_id NOT IN (SELECT id FROM groups)",
    )?;
    state.count_deletion()
}

/// Returns the bytes of the alerts of all days.
fn bytes_of_days(connection: &mut Connection) -> Result<u64, StoreError> {
    let sql = "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits
         WHERE inhparent = to_regclass($1)::oid";
    Ok(unsigned(
        connection.number(sql, &[&format!("{SCHEMA}.alerts")])?,
    ))
}

/// Returns the bytes of tables and indexes.
pub(super) fn bytes(connection: &mut Connection) -> Result<u64, StoreError> {
    let sql = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
         WHERE relnamespace = to_regnamespace($1)::oid AND relkind = 'r'";
    Ok(unsigned(connection.number(sql, &[&SCHEMA])?))
}
