//! Captures that people ask agents for, and those that agents record around alerts.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::fleet::{record, unknown};
use crate::captures::{
    AlertCaptureBegun, CROWDED_NS, Capture, CaptureAsked, CaptureEnd, CaptureId, CaptureParts,
    CaptureState, CaptureUse, CapturedAlert, Captures, KEPT, KEPT_OF_AGENT, KEPT_OF_ALERTS,
    MAX_CAPTURE, NewAlertCapture, NewCapture, PATIENCE_NS, REPLACED, ended, named, seconds,
};
use crate::error::StoreError;
use crate::model::AgentId;
use crate::number::{now_ns, signed, unsigned};

impl Captures for SqliteStore {
    fn request_capture(&self, capture: NewCapture) -> Result<CaptureAsked, StoreError> {
        self.write(move |state| request(state.connection(), &capture, now_ns()))
    }

    fn begin_alert_capture(
        &self,
        capture: NewAlertCapture,
    ) -> Result<AlertCaptureBegun, StoreError> {
        self.write(move |state| begin(state.connection(), &capture, now_ns()))
    }

    fn captures(&self) -> Result<Vec<Capture>, StoreError> {
        let now_ns = now_ns();
        let captures = self.readers.with(all)?;
        let captures = captures.into_iter();
        Ok(captures.map(|capture| capture.at(now_ns)).collect())
    }

    fn capture_of(&self, agent: AgentId) -> Result<Option<Capture>, StoreError> {
        self.readers
            .with(|connection| open_of(connection, agent, now_ns()))
    }

    fn add_chunk(
        &self,
        agent: AgentId,
        capture: CaptureId,
        number: u64,
        data: Vec<u8>,
    ) -> Result<Option<u64>, StoreError> {
        self.write(move |state| {
            add(
                state.connection(),
                (agent, capture),
                number,
                &data,
                now_ns(),
            )
        })
    }

    fn end_capture(
        &self,
        agent: AgentId,
        capture: CaptureId,
        end: CaptureEnd,
    ) -> Result<bool, StoreError> {
        self.write(move |state| finish(state.connection(), (agent, capture), &end, now_ns()))
    }

    fn open_capture(
        &self,
        capture: CaptureId,
        actor: &str,
        used: CaptureUse,
    ) -> Result<Option<CaptureParts>, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| open(state.connection(), capture, (&actor, used), now_ns()))
    }

    fn capture_part(&self, capture: CaptureId, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.readers
            .with(|connection| part(connection, capture, number))
    }
}

/// Columns of a capture.
const COLUMNS: &str = "id, agent, seconds, requested_ns, actor, state, chunks, bytes, events, lost, reason, \
     rule, alert_ns, before_ms, after_ms";

fn capture(row: &Row<'_>) -> rusqlite::Result<Capture> {
    let state: String = row.get(5)?;
    Ok(Capture {
        id: CaptureId(row.get(0)?),
        agent: AgentId(row.get(1)?),
        seconds: row.get(2)?,
        requested_ns: row.get(3)?,
        actor: row.get(4)?,
        state: CaptureState::named(&state).ok_or_else(|| unknown(5, "unknown state"))?,
        chunks: unsigned(row.get(6)?),
        bytes: unsigned(row.get(7)?),
        events: unsigned(row.get(8)?),
        lost: unsigned(row.get(9)?),
        reason: row.get(10)?,
        alert: alert(row)?,
    })
}

/// Returns the alert of a row of a capture.
fn alert(row: &Row<'_>) -> rusqlite::Result<Option<CapturedAlert>> {
    let Some(rule) = row.get(11)? else {
        return Ok(None);
    };
    Ok(Some(CapturedAlert {
        rule,
        time_ns: row.get(12)?,
        before_ms: row.get(13)?,
        after_ms: row.get(14)?,
    }))
}

fn all(connection: &Connection) -> Result<Vec<Capture>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM captures ORDER BY id DESC");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], capture)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the capture that an agent was asked for, and that is not over.
fn open_of(
    connection: &Connection,
    agent: AgentId,
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM captures WHERE agent = ?1 AND rule IS NULL AND state IN ('requested', 'arriving')
             AND requested_ns + seconds * 1000000000 + ?2 > ?3 ORDER BY id LIMIT 1"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let values = params![agent.0, PATIENCE_NS, now_ns];
    Ok(statement.query_row(values, capture).optional()?)
}

fn request(
    connection: &Connection,
    new: &NewCapture,
    now_ns: i64,
) -> Result<CaptureAsked, StoreError> {
    let find = "SELECT count(*) FROM agents WHERE id = ?1 AND hash IS NOT NULL";
    let known: i64 = connection.query_row(find, [new.agent.0], |row| row.get(0))?;
    if known == 0 {
        return Ok(CaptureAsked::UnknownAgent);
    }
    if let Some(open) = open_of(connection, new.agent, now_ns)? {
        return Ok(CaptureAsked::Busy(Some(open.id)));
    }
    fail_overdue(connection, now_ns)?;
    let find =
        "SELECT count(*) FROM captures WHERE rule IS NULL AND state IN ('requested', 'arriving')";
    let open: i64 = connection.query_row(find, [], |row| row.get(0))?;
    if open >= KEPT {
        return Ok(CaptureAsked::Busy(None));
    }
    connection.execute(
        "INSERT INTO captures (agent, seconds, requested_ns, actor, state) VALUES (?1, ?2, ?3, ?4, 'requested')",
        params![new.agent.0, new.seconds, now_ns, new.actor],
    )?;
    let id = connection.last_insert_rowid();
    forget_oldest(connection, "rule IS NULL", KEPT - 1)?;
    let object = format!("{}, {} s", named(id, new.agent), new.seconds);
    record(connection, now_ns, &new.actor, ("request capture", &object))?;
    Ok(CaptureAsked::Added(CaptureId(id)))
}

/// Ends captures that have not arrived in time.
fn fail_overdue(connection: &Connection, now_ns: i64) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE captures SET state = 'failed', reason = 'it has not arrived in time'
         WHERE state IN ('requested', 'arriving') AND requested_ns + seconds * 1000000000 + ?1 <= ?2",
        params![PATIENCE_NS, now_ns],
    )?;
    // Nobody reads a part of a capture.
    connection.execute(
        "DELETE FROM capture_chunks WHERE capture IN (SELECT id FROM captures WHERE state = 'failed')",
        [],
    )?;
    Ok(())
}

/// Deletes all captures that are over but the latest, of those that `which` selects.
fn forget_oldest(connection: &Connection, which: &str, kept: i64) -> Result<(), StoreError> {
    let old = format!(
        "SELECT id FROM captures WHERE {which} AND state IN ('complete', 'failed')
         ORDER BY id DESC LIMIT -1 OFFSET ?1"
    );
    for (table, column) in [("capture_chunks", "capture"), ("captures", "id")] {
        let sql = format!("DELETE FROM {table} WHERE {column} IN ({old})");
        connection.execute(&sql, [kept])?;
    }
    Ok(())
}

/// Deletes captures around alerts that are over until as many are kept: each time the oldest of the agent that has the most, which is
/// `beginner` if it has as many as any other.
fn forget_of_greediest(
    connection: &Connection,
    beginner: AgentId,
    kept: i64,
) -> Result<(), StoreError> {
    // An agent's captures have places from its latest one on, so the last places are the oldest of those that have the most.
    let old = "SELECT id FROM (
             SELECT id, agent, state, row_number() OVER (PARTITION BY agent ORDER BY id DESC) AS place
             FROM captures WHERE rule IS NOT NULL) AS ranked
         WHERE state IN ('complete', 'failed') ORDER BY place, agent = ?1, id DESC LIMIT -1 OFFSET ?2";
    for (table, column) in [("capture_chunks", "capture"), ("captures", "id")] {
        let sql = format!("DELETE FROM {table} WHERE {column} IN ({old})");
        connection.execute(&sql, [beginner.0, kept])?;
    }
    Ok(())
}

/// Begins a capture around an alert, unless the agent has begun it before.
fn begin(
    connection: &Connection,
    new: &NewAlertCapture,
    now_ns: i64,
) -> Result<AlertCaptureBegun, StoreError> {
    let find = "SELECT count(*) FROM agents WHERE id = ?1 AND hash IS NOT NULL";
    if connection.query_row(find, params![new.agent.0], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(AlertCaptureBegun::UnknownAgent);
    }
    fail_overdue(connection, now_ns)?;
    let sql =
        format!("SELECT {COLUMNS} FROM captures WHERE agent = ?1 AND alert_ns = ?2 AND rule = ?3");
    let values = params![new.agent.0, new.alert.time_ns, new.alert.rule];
    let same = connection.query_row(&sql, values, capture).optional()?;
    if let Some(same) = same {
        return Ok(match same.state.is_over() {
            true => AlertCaptureBegun::Known(same.id),
            false => AlertCaptureBegun::Expected(same.id, same.chunks),
        });
    }
    let find =
        "SELECT count(*) FROM captures WHERE agent = ?1 AND rule IS NOT NULL AND requested_ns > ?2";
    let since = now_ns.saturating_sub(CROWDED_NS);
    let lately = connection.query_row(find, params![new.agent.0, since], |row| {
        row.get::<_, i64>(0)
    })?;
    let find = "SELECT count(*) FROM captures WHERE rule IS NOT NULL AND state IN ('requested', 'arriving')";
    let open = connection.query_row(find, params![], |row| row.get::<_, i64>(0))?;
    if lately >= KEPT_OF_AGENT || open >= KEPT_OF_ALERTS {
        return Ok(AlertCaptureBegun::Busy);
    }
    insert(connection, new, now_ns).map(|id| AlertCaptureBegun::Expected(id, 0))
}

/// Adds a capture around an alert. An earlier one of the agent that is open has failed: it sends one at a time.
fn insert(
    connection: &Connection,
    new: &NewAlertCapture,
    now_ns: i64,
) -> Result<CaptureId, StoreError> {
    let alert = &new.alert;
    let actor = format!("agent {}", new.agent.0);
    connection.execute(
        "UPDATE captures SET state = 'failed', reason = ?2
         WHERE agent = ?1 AND rule IS NOT NULL AND state IN ('requested', 'arriving')",
        params![new.agent.0, REPLACED],
    )?;
    connection.execute(
        "DELETE FROM capture_chunks WHERE capture IN (SELECT id FROM captures WHERE agent = ?1 AND state = 'failed')",
        [new.agent.0],
    )?;
    connection.execute(
        "INSERT INTO captures (agent, seconds, requested_ns, actor, state, rule, alert_ns, before_ms, after_ms)
         VALUES (?1, ?2, ?3, ?4, 'requested', ?5, ?6, ?7, ?8)",
        params![
            new.agent.0,
            seconds(alert),
            now_ns,
            actor,
            alert.rule,
            alert.time_ns,
            alert.before_ms,
            alert.after_ms
        ],
    )?;
    let id = connection.last_insert_rowid();
    let which = format!("rule IS NOT NULL AND agent = {}", new.agent.0);
    forget_oldest(connection, &which, KEPT_OF_AGENT - 1)?;
    forget_of_greediest(connection, new.agent, KEPT_OF_ALERTS - 1)?;
    let object = format!(
        "{}, around an alert of {}",
        named(id, new.agent),
        alert.rule
    );
    record(connection, now_ns, &actor, ("begin capture", &object))?;
    Ok(CaptureId(id))
}

/// Returns the capture of this number if the agent is to send it.
fn sent(
    connection: &Connection,
    (agent, id): (AgentId, CaptureId),
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM captures WHERE agent = ?1 AND id = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([agent.0, id.0], capture).optional()?;
    Ok(found.filter(|found| !found.clone().at(now_ns).state.is_over()))
}

fn add(
    connection: &Connection,
    whose: (AgentId, CaptureId),
    number: u64,
    data: &[u8],
    now_ns: i64,
) -> Result<Option<u64>, StoreError> {
    let Some(open) = sent(connection, whose, now_ns)? else {
        return Ok(None);
    };
    if number != open.chunks || data.is_empty() {
        return Ok(Some(open.chunks));
    }
    let bytes = open.bytes.saturating_add(data.len() as u64);
    if bytes > MAX_CAPTURE {
        let end = CaptureEnd {
            failure: Some(format!("it exceeds {MAX_CAPTURE} bytes")),
            ..CaptureEnd::default()
        };
        finish(connection, whose, &end, now_ns)?;
        return Ok(None);
    }
    connection.execute(
        "INSERT INTO capture_chunks (capture, number, data) VALUES (?1, ?2, ?3)",
        params![open.id.0, signed(number), data],
    )?;
    connection.execute(
        "UPDATE captures SET state = 'arriving', chunks = ?2, bytes = ?3 WHERE id = ?1",
        params![open.id.0, signed(number + 1), signed(bytes)],
    )?;
    Ok(Some(number + 1))
}

/// Returns true if this is the end of a capture that is complete: its agent did not hear that it is.
fn is_complete(
    connection: &Connection,
    (agent, id): (AgentId, CaptureId),
    end: &CaptureEnd,
) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM captures WHERE agent = ?1 AND id = ?2 AND state = 'complete' AND chunks = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let is_complete = statement.exists(params![agent.0, id.0, signed(end.chunks)])?;
    Ok(is_complete && end.failure.is_none())
}

fn finish(
    connection: &Connection,
    whose: (AgentId, CaptureId),
    end: &CaptureEnd,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let Some(open) = sent(connection, whose, now_ns)? else {
        return is_complete(connection, whose, end);
    };
    let (state, reason) = ended(end, open.chunks);
    connection.execute(
        "UPDATE captures SET state = ?2, events = ?3, lost = ?4, reason = ?5 WHERE id = ?1",
        params![
            open.id.0,
            state.name(),
            signed(end.events),
            signed(end.lost),
            reason
        ],
    )?;
    if state == CaptureState::Failed {
        connection.execute("DELETE FROM capture_chunks WHERE capture = ?1", [open.id.0])?;
    }
    let actor = format!("agent {}", open.agent.0);
    let action = format!("{} capture", state.name());
    let object = match reason.is_empty() {
        true => named(open.id.0, open.agent),
        false => format!("{}: {reason}", named(open.id.0, open.agent)),
    };
    record(connection, now_ns, &actor, (&action, &object))?;
    Ok(true)
}

fn open(
    connection: &Connection,
    id: CaptureId,
    (actor, used): (&str, CaptureUse),
    now_ns: i64,
) -> Result<Option<CaptureParts>, StoreError> {
    let find = "SELECT agent, chunks, bytes FROM captures WHERE id = ?1 AND state = 'complete'";
    let found = connection.query_row(find, [id.0], |row| {
        let parts = CaptureParts {
            parts: unsigned(row.get(1)?),
            bytes: unsigned(row.get(2)?),
        };
        Ok((AgentId(row.get(0)?), parts))
    });
    let Some((agent, parts)) = found.optional()? else {
        return Ok(None);
    };
    let object = named(id.0, agent);
    record(connection, now_ns, actor, (used.action(), &object))?;
    Ok(Some(parts))
}

fn part(
    connection: &Connection,
    id: CaptureId,
    number: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let sql = "SELECT data FROM capture_chunks JOIN captures ON captures.id = capture
         WHERE capture = ?1 AND number = ?2 AND state = 'complete'";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![id.0, signed(number)], |row| row.get(0));
    Ok(found.optional()?)
}
