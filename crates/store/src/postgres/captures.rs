//! Captures that people ask agents for, and those that agents record around alerts.

use postgres::Row;

use super::PostgresStore;
use super::connection::Connection;
use super::fleet::record;
use super::text;
use crate::captures::{
    AlertCaptureBegun, CROWDED_NS, Capture, CaptureAsked, CaptureEnd, CaptureId, CaptureParts,
    CaptureState, CaptureUse, CapturedAlert, Captures, KEPT, KEPT_OF_AGENT, KEPT_OF_ALERTS,
    MAX_CAPTURE, NewAlertCapture, NewCapture, PATIENCE_NS, REPLACED, ended, named, seconds,
};
use crate::error::StoreError;
use crate::model::AgentId;
use crate::number::{now_ns, signed, unsigned};

impl Captures for PostgresStore {
    fn request_capture(&self, capture: NewCapture) -> Result<CaptureAsked, StoreError> {
        self.write(move |state| request(state.connection()?, &capture, now_ns()))
    }

    fn begin_alert_capture(
        &self,
        capture: NewAlertCapture,
    ) -> Result<AlertCaptureBegun, StoreError> {
        self.write(move |state| begin(state.connection()?, &capture, now_ns()))
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
                state.connection()?,
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
        self.write(move |state| finish(state.connection()?, (agent, capture), &end, now_ns()))
    }

    fn open_capture(
        &self,
        capture: CaptureId,
        actor: &str,
        used: CaptureUse,
    ) -> Result<Option<CaptureParts>, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| open(state.connection()?, capture, (&actor, used), now_ns()))
    }

    fn capture_part(&self, capture: CaptureId, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.readers
            .with(|connection| part(connection, capture, number))
    }
}

/// Columns of a capture.
const COLUMNS: &str = "id, agent, seconds, requested_ns, actor, state, chunks, bytes, events, lost, reason, \
     rule, alert_ns, before_ms, after_ms";

fn capture(row: &Row) -> Result<Capture, StoreError> {
    let seconds: i64 = row.try_get(2)?;
    let state: &str = row.try_get(5)?;
    let unknown = |what: &str| StoreError::Row {
        problem: what.to_owned(),
    };
    Ok(Capture {
        id: CaptureId(row.try_get(0)?),
        agent: AgentId(row.try_get(1)?),
        seconds: u32::try_from(seconds).map_err(|_error| unknown("seconds out of range"))?,
        requested_ns: row.try_get(3)?,
        actor: row.try_get(4)?,
        state: CaptureState::named(state).ok_or_else(|| unknown("unknown state"))?,
        chunks: unsigned(row.try_get(6)?),
        bytes: unsigned(row.try_get(7)?),
        events: unsigned(row.try_get(8)?),
        lost: unsigned(row.try_get(9)?),
        reason: row.try_get(10)?,
        alert: alert(row)?,
    })
}

/// Returns the alert of a row of a capture.
fn alert(row: &Row) -> Result<Option<CapturedAlert>, StoreError> {
    let Some(rule) = row.try_get(11)? else {
        return Ok(None);
    };
    let milliseconds = |column| {
        let value: i64 = row.try_get(column)?;
        u32::try_from(value).map_err(|_error| StoreError::Row {
            problem: "milliseconds out of range".to_owned(),
        })
    };
    Ok(Some(CapturedAlert {
        rule,
        time_ns: row.try_get(12)?,
        before_ms: milliseconds(13)?,
        after_ms: milliseconds(14)?,
    }))
}

fn all(connection: &mut Connection) -> Result<Vec<Capture>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM captures ORDER BY id DESC");
    let rows = connection.query(&sql, &[])?;
    rows.iter().map(capture).collect()
}

/// Returns the capture that an agent was asked for, and that is not over.
fn open_of(
    connection: &mut Connection,
    agent: AgentId,
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM captures WHERE agent = $1 AND rule IS NULL AND state IN ('requested', 'arriving')
             AND requested_ns + seconds * 1000000000 + $2 > $3 ORDER BY id LIMIT 1"
    );
    let row = connection.first(&sql, &[&agent.0, &PATIENCE_NS, &now_ns])?;
    row.as_ref().map(capture).transpose()
}

fn request(
    connection: &mut Connection,
    new: &NewCapture,
    now_ns: i64,
) -> Result<CaptureAsked, StoreError> {
    let find = "SELECT count(*) FROM agents WHERE id = $1 AND hash IS NOT NULL";
    if connection.number(find, &[&new.agent.0])? == 0 {
        return Ok(CaptureAsked::UnknownAgent);
    }
    if let Some(open) = open_of(connection, new.agent, now_ns)? {
        return Ok(CaptureAsked::Busy(Some(open.id)));
    }
    fail_overdue(connection, now_ns)?;
    let find =
        "SELECT count(*) FROM captures WHERE rule IS NULL AND state IN ('requested', 'arriving')";
    if connection.number(find, &[])? >= KEPT {
        return Ok(CaptureAsked::Busy(None));
    }
    let id = connection.number(
        "INSERT INTO captures (agent, seconds, requested_ns, actor, state) VALUES ($1, $2, $3, $4, 'requested')
         RETURNING id",
        &[&new.agent.0, &i64::from(new.seconds), &now_ns, &text(&new.actor)],
    )?;
    // One that is open comes to those that are over.
    forget_oldest(connection, "rule IS NULL", KEPT - 1)?;
    let object = format!("{}, {} s", named(id, new.agent), new.seconds);
    record(connection, now_ns, &new.actor, ("request capture", &object))?;
    Ok(CaptureAsked::Added(CaptureId(id)))
}

/// Ends captures that have not arrived in time.
fn fail_overdue(connection: &mut Connection, now_ns: i64) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE captures SET state = 'failed', reason = 'it has not arrived in time'
         WHERE state IN ('requested', 'arriving') AND requested_ns + seconds * 1000000000 + $1 <= $2",
        &[&PATIENCE_NS, &now_ns],
    )?;
    // Nobody reads a part of a capture.
    connection.execute(
        "DELETE FROM capture_chunks WHERE capture IN (SELECT id FROM captures WHERE state = 'failed')",
        &[],
    )?;
    Ok(())
}

/// Deletes all captures that are over but the latest, of those that `which` selects.
fn forget_oldest(connection: &mut Connection, which: &str, kept: i64) -> Result<(), StoreError> {
    let sql = format!(
        "DELETE FROM captures WHERE id IN (SELECT id FROM captures
             WHERE {which} AND state IN ('complete', 'failed') ORDER BY id DESC OFFSET $1)"
    );
    connection.execute(&sql, &[&kept])?;
    Ok(())
}

/// Deletes captures around alerts that are over until as many are kept: each time the oldest of the agent that has the most, which is
/// `beginner` if it has as many as any other.
fn forget_of_greediest(
    connection: &mut Connection,
    beginner: AgentId,
    kept: i64,
) -> Result<(), StoreError> {
    // An agent's captures have places from its latest one on, so the last places are the oldest of those that have the most.
    let sql = "DELETE FROM captures WHERE id IN (SELECT id FROM (
             SELECT id, agent, state, row_number() OVER (PARTITION BY agent ORDER BY id DESC) AS place
             FROM captures WHERE rule IS NOT NULL) AS ranked
         WHERE state IN ('complete', 'failed') ORDER BY place, agent = $1, id DESC OFFSET $2)";
    connection.execute(sql, &[&beginner.0, &kept])?;
    Ok(())
}

/// Begins a capture around an alert, unless the agent has begun it before.
fn begin(
    connection: &mut Connection,
    new: &NewAlertCapture,
    now_ns: i64,
) -> Result<AlertCaptureBegun, StoreError> {
    let find = "SELECT count(*) FROM agents WHERE id = $1 AND hash IS NOT NULL";
    if connection.number(find, &[&new.agent.0])? == 0 {
        return Ok(AlertCaptureBegun::UnknownAgent);
    }
    fail_overdue(connection, now_ns)?;
    let sql =
        format!("SELECT {COLUMNS} FROM captures WHERE agent = $1 AND alert_ns = $2 AND rule = $3");
    let row = connection.first(
        &sql,
        &[&new.agent.0, &new.alert.time_ns, &text(&new.alert.rule)],
    )?;
    let same = row.as_ref().map(capture).transpose()?;
    if let Some(same) = same {
        return Ok(match same.state.is_over() {
            true => AlertCaptureBegun::Known(same.id),
            false => AlertCaptureBegun::Expected(same.id, same.chunks),
        });
    }
    let find =
        "SELECT count(*) FROM captures WHERE agent = $1 AND rule IS NOT NULL AND requested_ns > $2";
    let since = now_ns.saturating_sub(CROWDED_NS);
    let lately = connection.number(find, &[&new.agent.0, &since])?;
    let find = "SELECT count(*) FROM captures WHERE rule IS NOT NULL AND state IN ('requested', 'arriving')";
    let open = connection.number(find, &[])?;
    if lately >= KEPT_OF_AGENT || open >= KEPT_OF_ALERTS {
        return Ok(AlertCaptureBegun::Busy);
    }
    insert(connection, new, now_ns).map(|id| AlertCaptureBegun::Expected(id, 0))
}

/// Adds a capture around an alert. An earlier one of the agent that is open has failed: it sends one at a time.
fn insert(
    connection: &mut Connection,
    new: &NewAlertCapture,
    now_ns: i64,
) -> Result<CaptureId, StoreError> {
    let alert = &new.alert;
    let actor = format!("agent {}", new.agent.0);
    connection.execute(
        "UPDATE captures SET state = 'failed', reason = $2
         WHERE agent = $1 AND rule IS NOT NULL AND state IN ('requested', 'arriving')",
        &[&new.agent.0, &REPLACED],
    )?;
    connection.execute(
        "DELETE FROM capture_chunks WHERE capture IN (SELECT id FROM captures WHERE agent = $1 AND state = 'failed')",
        &[&new.agent.0],
    )?;
    let id = connection.number(
        "INSERT INTO captures (agent, seconds, requested_ns, actor, state, rule, alert_ns, before_ms, after_ms)
         VALUES ($1, $2, $3, $4, 'requested', $5, $6, $7, $8) RETURNING id",
        &[
            &new.agent.0,
            &i64::from(seconds(alert)),
            &now_ns,
            &actor,
            &text(&alert.rule),
            &alert.time_ns,
            &i64::from(alert.before_ms),
            &i64::from(alert.after_ms),
        ],
    )?;
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
    connection: &mut Connection,
    (agent, id): (AgentId, CaptureId),
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM captures WHERE agent = $1 AND id = $2");
    let row = connection.first(&sql, &[&agent.0, &id.0])?;
    let found = row.as_ref().map(capture).transpose()?;
    Ok(found.filter(|found| !found.clone().at(now_ns).state.is_over()))
}

fn add(
    connection: &mut Connection,
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
        "INSERT INTO capture_chunks (capture, number, data) VALUES ($1, $2, $3)",
        &[&open.id.0, &signed(number), &data],
    )?;
    connection.execute(
        "UPDATE captures SET state = 'arriving', chunks = $2, bytes = $3 WHERE id = $1",
        &[&open.id.0, &signed(number + 1), &signed(bytes)],
    )?;
    Ok(Some(number + 1))
}

/// Returns true if this is the end of a capture that is complete: its agent did not hear that it is.
fn is_complete(
    connection: &mut Connection,
    (agent, id): (AgentId, CaptureId),
    end: &CaptureEnd,
) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM captures WHERE agent = $1 AND id = $2 AND state = 'complete' AND chunks = $3";
    let found = connection.first(sql, &[&agent.0, &id.0, &signed(end.chunks)])?;
    Ok(found.is_some() && end.failure.is_none())
}

fn finish(
    connection: &mut Connection,
    whose: (AgentId, CaptureId),
    end: &CaptureEnd,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let Some(open) = sent(connection, whose, now_ns)? else {
        return is_complete(connection, whose, end);
    };
    let (state, reason) = ended(end, open.chunks);
    connection.execute(
        "UPDATE captures SET state = $2, events = $3, lost = $4, reason = $5 WHERE id = $1",
        &[
            &open.id.0,
            &state.name(),
            &signed(end.events),
            &signed(end.lost),
            &text(&reason),
        ],
    )?;
    if state == CaptureState::Failed {
        connection.execute(
            "DELETE FROM capture_chunks WHERE capture = $1",
            &[&open.id.0],
        )?;
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
    connection: &mut Connection,
    id: CaptureId,
    (actor, used): (&str, CaptureUse),
    now_ns: i64,
) -> Result<Option<CaptureParts>, StoreError> {
    let find = "SELECT agent, chunks, bytes FROM captures WHERE id = $1 AND state = 'complete'";
    let Some(row) = connection.first(find, &[&id.0])? else {
        return Ok(None);
    };
    let object = named(id.0, AgentId(row.try_get(0)?));
    record(connection, now_ns, actor, (used.action(), &object))?;
    Ok(Some(CaptureParts {
        parts: unsigned(row.try_get(1)?),
        bytes: unsigned(row.try_get(2)?),
    }))
}

fn part(
    connection: &mut Connection,
    id: CaptureId,
    number: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let sql = "SELECT data FROM capture_chunks JOIN captures ON captures.id = capture
         WHERE capture = $1 AND number = $2 AND state = 'complete'";
    let row = connection.first(sql, &[&id.0, &signed(number)])?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
