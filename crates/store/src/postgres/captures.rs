//! Captures that people ask agents for.

use postgres::Row;

use super::PostgresStore;
use super::connection::Connection;
use super::fleet::record;
use super::text;
use crate::captures::{
    Capture, CaptureAsked, CaptureEnd, CaptureId, CaptureState, Captures, KEPT, MAX_CAPTURE,
    NewCapture, PATIENCE_NS, ended, named,
};
use crate::error::StoreError;
use crate::model::AgentId;
use crate::number::{now_ns, signed, unsigned};

impl Captures for PostgresStore {
    fn request_capture(&self, capture: NewCapture) -> Result<CaptureAsked, StoreError> {
        self.write(move |state| request(state.connection()?, &capture, now_ns()))
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

    fn capture_data(&self, capture: CaptureId, actor: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| data(state.connection()?, capture, &actor, now_ns()))
    }
}

/// Columns of a capture.
const COLUMNS: &str =
    "id, agent, seconds, requested_ns, actor, state, chunks, bytes, events, lost, reason";

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
    })
}

fn all(connection: &mut Connection) -> Result<Vec<Capture>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM captures ORDER BY id DESC");
    let rows = connection.query(&sql, &[])?;
    rows.iter().map(capture).collect()
}

/// Returns the capture of an agent that is not over.
fn open_of(
    connection: &mut Connection,
    agent: AgentId,
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM captures WHERE agent = $1 AND state IN ('requested', 'arriving')
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
    connection.execute(
        "UPDATE captures SET state = 'failed', reason = 'it has not arrived in time'
         WHERE state IN ('requested', 'arriving') AND requested_ns + seconds * 1000000000 + $1 <= $2",
        &[&PATIENCE_NS, &now_ns],
    )?;
    let find = "SELECT count(*) FROM captures WHERE state IN ('requested', 'arriving')";
    if connection.number(find, &[])? >= KEPT {
        return Ok(CaptureAsked::Busy(None));
    }
    let id = connection.number(
        "INSERT INTO captures (agent, seconds, requested_ns, actor, state) VALUES ($1, $2, $3, $4, 'requested')
         RETURNING id",
        &[&new.agent.0, &i64::from(new.seconds), &now_ns, &text(&new.actor)],
    )?;
    // One that is open comes to those that are over.
    let sql = "DELETE FROM captures WHERE id IN
         (SELECT id FROM captures WHERE state IN ('complete', 'failed') ORDER BY id DESC OFFSET $1)";
    connection.execute(sql, &[&(KEPT - 1)])?;
    let object = format!("{}, {} s", named(id, new.agent), new.seconds);
    record(connection, now_ns, &new.actor, ("request capture", &object))?;
    Ok(CaptureAsked::Added(CaptureId(id)))
}

/// Returns the capture of this number if it is the one that the agent is to send.
fn sent(
    connection: &mut Connection,
    (agent, id): (AgentId, CaptureId),
    now_ns: i64,
) -> Result<Option<Capture>, StoreError> {
    Ok(open_of(connection, agent, now_ns)?.filter(|open| open.id == id))
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

fn finish(
    connection: &mut Connection,
    whose: (AgentId, CaptureId),
    end: &CaptureEnd,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let Some(open) = sent(connection, whose, now_ns)? else {
        return Ok(false);
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

fn data(
    connection: &mut Connection,
    id: CaptureId,
    actor: &str,
    now_ns: i64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let find = "SELECT agent FROM captures WHERE id = $1 AND state = 'complete'";
    let Some(row) = connection.first(find, &[&id.0])? else {
        return Ok(None);
    };
    let agent = AgentId(row.try_get(0)?);
    let sql = "SELECT data FROM capture_chunks WHERE capture = $1 ORDER BY number";
    let rows = connection.query(sql, &[&id.0])?;
    let chunks = rows.iter().map(|row| row.try_get::<_, Vec<u8>>(0));
    let chunks: Vec<_> = chunks.collect::<Result<_, _>>()?;
    record(
        connection,
        now_ns,
        actor,
        ("download capture", &named(id.0, agent)),
    )?;
    Ok(Some(chunks.concat()))
}
