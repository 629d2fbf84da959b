//! What people do about groups of alerts.

use super::connection::Connection;
use super::fleet::record;
use super::text;
use crate::account::{Comment, Triage};
use crate::error::StoreError;
use crate::limits::{self, COMMENTS};
use crate::model::{Acknowledgement, GroupId};

pub(super) fn acknowledge(
    connection: &mut Connection,
    group: GroupId,
    how: &Acknowledgement,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let (time, actor) = match how.is_set {
        true => (Some(now_ns), Some(text(&how.actor))),
        false => (None, None),
    };
    let changed = connection.execute(
        "UPDATE groups SET acknowledged_ns = $2, acknowledged_by = $3, note = $4 WHERE id = $1",
        &[&group.0, &time, &actor, &text(&how.note)],
    )?;
    if changed > 0 {
        let (action, object) = limits::acknowledgement(group, how);
        record(connection, now_ns, &how.actor, (action, &object))?;
    }
    Ok(changed > 0)
}

pub(super) fn triage(
    connection: &mut Connection,
    group: GroupId,
    change: &Triage,
    (actor, now_ns): (&str, i64),
) -> Result<bool, StoreError> {
    let changed = match change {
        Triage::Assign(to) => connection.execute(
            "UPDATE groups SET assignee = $2 WHERE id = $1",
            &[&group.0, &text(to)],
        )?,
        Triage::Mute(until) => connection.execute(
            "UPDATE groups SET muted_until_ns = $2 WHERE id = $1",
            &[&group.0, until],
        )?,
        Triage::Comment(comment) => connection.execute(
            "INSERT INTO comments (group_id, time_ns, actor, text)
             SELECT id, $2, $3, $4 FROM groups WHERE id = $1",
            &[&group.0, &now_ns, &text(actor), &text(comment)],
        )?,
    };
    if changed == 0 {
        return Ok(false);
    }
    connection.execute(
        "DELETE FROM comments WHERE group_id = $1 AND id NOT IN
             (SELECT id FROM comments WHERE group_id = $1 ORDER BY id DESC LIMIT $2)",
        &[&group.0, &COMMENTS],
    )?;
    let (action, object) = limits::triage(group, change);
    record(connection, now_ns, actor, (action, &object))?;
    Ok(true)
}

pub(super) fn comments(
    connection: &mut Connection,
    group: GroupId,
) -> Result<Vec<Comment>, StoreError> {
    let rows = connection.query(
        "SELECT time_ns, actor, text FROM comments WHERE group_id = $1 ORDER BY id",
        &[&group.0],
    )?;
    let comment = |row: &postgres::Row| {
        Ok(Comment {
            time_ns: row.try_get(0)?,
            actor: row.try_get(1)?,
            text: row.try_get(2)?,
        })
    };
    rows.iter().map(comment).collect()
}
