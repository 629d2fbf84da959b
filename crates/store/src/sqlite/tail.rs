//! Alerts in order of arrival, for pages that follow.

use rusqlite::{Connection, params};

use super::query::{ROW, row};
use crate::error::StoreError;
use crate::limits::{COUNTED, MAX_TAIL, OUTPUT};
use crate::model::{AlertId, TailRows};
use crate::number::unsigned;
use crate::severity::Severity;

/// What an arrival is looked for in: alerts from one number to another, as severe as that.
const FROM: &str = "FROM alerts a CROSS JOIN groups g ON g.id = a.group_id
     CROSS JOIN hosts h ON h.id = a.host
     WHERE a.id > ?1 AND a.id <= ?2 AND g.severity <= ?3";

pub(super) fn stored_after(
    connection: &Connection,
    alert: AlertId,
    least: Severity,
    limit: u32,
) -> Result<TailRows, StoreError> {
    let last = last_stored(connection)?;
    let columns = ROW.replace(
        "a.body",
        &format!(
            "CASE WHEN json_valid(a.body) THEN json_object('output',
                 substr(json_extract(a.body, '$.output'), 1, {OUTPUT})) ELSE '{{}}' END"
        ),
    );
    let mut statement =
        connection.prepare_cached(&format!("SELECT {columns} {FROM} ORDER BY a.id LIMIT ?4"))?;
    let limit = limit.min(MAX_TAIL);
    let found = statement.query_map(params![alert.0, last.0, least.number(), limit], row)?;
    let rows = found.collect::<Result<Vec<_>, _>>()?;
    let is_full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let shown = rows.last().map_or(alert, |row| row.id);
    let left_out: i64 = match is_full {
        false => 0,
        true => connection
            .prepare_cached(&format!(
                "SELECT count(*) FROM (SELECT 1 {FROM} LIMIT {COUNTED})"
            ))?
            .query_row(params![shown.0, last.0, least.number()], |row| row.get(0))?,
    };
    Ok(TailRows {
        rows,
        left_out: unsigned(left_out),
        is_more: left_out >= i64::from(COUNTED),
        last,
    })
}

pub(super) fn last_stored(connection: &Connection) -> Result<AlertId, StoreError> {
    let mut statement = connection.prepare_cached("SELECT coalesce(max(id), 0) FROM alerts")?;
    Ok(AlertId(statement.query_row([], |row| row.get(0))?))
}
