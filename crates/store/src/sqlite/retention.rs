//! Deleting what is too old, or too much.

use rusqlite::{Connection, params};

use super::{SqliteStore, sums};
use crate::error::StoreError;
use crate::intake::HOUR_NS;
use crate::model::{Pruned, Retention};
use crate::number::unsigned;
use crate::writer::Transactions;

/// Alerts deleted in one change, so that batches need not wait long.
const PIECE: u32 = 5000;

pub(super) fn prune(store: &SqliteStore, retention: Retention) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    if let Some(before) = retention.before_ns {
        drop_before(store, before.div_euclid(HOUR_NS), &mut pruned)?;
    }
    if let Some(max_bytes) = retention.max_bytes {
        // Captures are bounded by themselves: deleting alerts would make no room for them.
        while store.readers.with(bytes_without_captures)? > max_bytes {
            let Some(oldest) = store.readers.with(oldest_hour)? else {
                break;
            };
            drop_before(store, oldest + 1, &mut pruned)?;
        }
    }
    if pruned != Pruned::default() {
        store.write_with_sums(|state| {
            // The thread remembers numbers of groups that are deleted now.
            state.cache().forget();
            finish(state.connection())
        })?;
    }
    Ok(pruned)
}

/// Deletes everything of hours before this one.
fn drop_before(store: &SqliteStore, hour: i64, pruned: &mut Pruned) -> Result<(), StoreError> {
    let end_ns = hour.saturating_mul(HOUR_NS);
    loop {
        let deleted =
            store.write_with_sums(move |state| delete_alerts(state.connection(), end_ns))?;
        pruned.alerts += deleted;
        if deleted == 0 {
            break;
        }
    }
    pruned.losses += store.write_with_sums(move |state| {
        let connection = state.connection();
        sums::drop_before(connection, hour)?;
        let losses = connection.execute("DELETE FROM losses WHERE time_ns < ?1", [end_ns])?;
        Ok(losses as u64)
    })?;
    Ok(())
}

fn delete_alerts(connection: &Connection, end_ns: i64) -> Result<u64, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT id FROM alerts WHERE time_ns < ?1 ORDER BY time_ns LIMIT ?2")?;
    let ids = statement.query_map(params![end_ns, PIECE], |row| row.get::<_, i64>(0))?;
    let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
    let mut alerts = connection.prepare_cached("DELETE FROM alerts WHERE id = ?1")?;
    let mut words = connection.prepare_cached("DELETE FROM alert_words WHERE rowid = ?1")?;
    for id in &ids {
        words.execute([id])?;
        alerts.execute([id])?;
    }
    Ok(ids.len() as u64)
}

/// Deletes groups without alerts and gives free pages back.
fn finish(connection: &Connection) -> Result<(), StoreError> {
    connection.execute(
        "DELETE FROM groups WHERE acknowledged_ns IS NULL AND count = 0",
        [],
    )?;
    // A later group may get the same number.
    connection.execute(
        "DELETE FROM comments WHERE group_id NOT IN (SELECT id FROM groups)",
        [],
    )?;
    connection.execute_batch("PRAGMA incremental_vacuum(10000)")?;
    Ok(())
}

fn oldest_hour(connection: &Connection) -> Result<Option<i64>, StoreError> {
    Ok(connection.query_row("SELECT min(hour) FROM hours", [], |row| row.get(0))?)
}

fn bytes_without_captures(connection: &Connection) -> Result<u64, StoreError> {
    let captured: i64 = connection.query_row(
        "SELECT coalesce(sum(length(data)), 0) FROM capture_chunks",
        [],
        |row| row.get(0),
    )?;
    Ok(bytes(connection)?.saturating_sub(unsigned(captured)))
}

/// Returns the bytes of pages in use.
pub(super) fn bytes(connection: &Connection) -> Result<u64, StoreError> {
    let number = |name: &str| -> Result<u64, StoreError> {
        let value = connection.pragma_query_value(None, name, |row| row.get(0))?;
        Ok(unsigned(value))
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    Ok(pages * number("page_size")?)
}
