//! Alerts in order of arrival, for pages that follow. Numbers of alerts are committed in their order.

use super::connection::Connection;
use super::query::row;
use crate::error::StoreError;
use crate::limits::{COUNTED, MAX_TAIL, OUTPUT};
use crate::model::{AlertId, TailRows};
use crate::number::unsigned;
use crate::severity::Severity;

/// What an arrival is looked for in: alerts from one number to another, as severe as that.
const FROM: &str = "FROM alerts a JOIN groups g ON g.id = a.group_id JOIN hosts h ON h.id = a.host
     WHERE a.id > $1 AND a.id <= $2 AND g.severity <= $3";

pub(super) fn stored_after(
    connection: &mut Connection,
    alert: AlertId,
    least: Severity,
    limit: u32,
) -> Result<TailRows, StoreError> {
    let last = last_stored(connection)?;
    let (limit, least) = (limit.min(MAX_TAIL), i64::from(least.number()));
    // The bodies are cut after the rows are chosen, not before.
    let sql = format!(
        "SELECT id, time_ns, severity, rule, name, program, group_id, excerpt(body, {OUTPUT})
         FROM (SELECT a.id, a.time_ns, g.severity, g.rule, h.name, g.program, a.group_id, a.body
               {FROM} ORDER BY a.id LIMIT {limit}) AS found ORDER BY id"
    );
    let found = connection.query(&sql, &[&alert.0, &last.0, &least])?;
    let rows = found.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    let is_full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let shown = rows.last().map_or(alert, |row| row.id);
    let left_out = match is_full {
        false => 0,
        true => connection.number(
            &format!("SELECT count(*) FROM (SELECT 1 {FROM} LIMIT {COUNTED}) AS found"),
            &[&shown.0, &last.0, &least],
        )?,
    };
    Ok(TailRows {
        rows,
        left_out: unsigned(left_out),
        is_more: left_out >= i64::from(COUNTED),
        last,
    })
}

pub(super) fn last_stored(connection: &mut Connection) -> Result<AlertId, StoreError> {
    Ok(AlertId(
        connection.number("SELECT max(id) FROM alerts", &[])?,
    ))
}
