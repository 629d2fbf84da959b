//! What senders send: enrolment, batches of agents, alerts of Falco, log records of OpenTelemetry.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use store::{AgentId, Batch, Loss, LossKind, NewAgent, Receipt, Record, Store, StoreError};
use tokio::sync::oneshot;

use crate::alert;
use crate::answer::{Refusal, json_response};
use crate::auth::{self, Caller};
use crate::body::{self, MAX_RECORDS};
use crate::bundles;
use crate::captures;
use crate::grouping;
use crate::otlp::{self, Encoding, Sorted};
use crate::secret::NewSecret;
use crate::server::{Shared, now_ns};

/// Longest inventory in bytes.
const MAX_INVENTORY: usize = 64 << 10;

/// Header with the sequence number of the first record of a batch.
const SEQUENCE: &str = outputs::collector::SEQUENCE_HEADER;

/// Largest number of the first record of a batch: databases have no larger ones, and no agent gets so far.
const MAX_SEQUENCE: u64 = (i64::MAX / 2) as u64;

/// Line in place of a record that the sender had to drop.
const DROPPED_RECORD: &str = outputs::collector::DROPPED_RECORD;

type Answer = Result<Response, Refusal>;

/// What an agent says when it enrols.
#[derive(Deserialize)]
struct Enrolment {
    host: String,
}

/// `POST /api/v1/agents`: gives an agent a number and a secret of its own.
pub(crate) async fn enrol(State(shared): State<Arc<Shared>>, caller: Caller, body: Body) -> Answer {
    let enrolling = auth::enrolling(&shared, &caller).await?;
    let text = shared.text_in_turn(&caller.headers, body).await?;
    let enrolment: Enrolment = serde_json::from_str(&text)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let secret = NewSecret::of_agent().ok_or_else(Refusal::without_random)?;
    // What an agent with a certificate claims to be does not count.
    let claimed = || grouping::clipped(&enrolment.host);
    let agent = NewAgent {
        token: enrolling.token,
        hash: secret.hash,
        host: enrolling.name.unwrap_or_else(claimed),
    };
    let id = shared.blocking(move |store| store.enrol(agent)).await?;
    let answer = json!({"agent": id.0, "secret": secret.text});
    Ok(json_response(StatusCode::CREATED, &answer))
}

/// `PUT /api/v1/inventory`: a sign of life, with what the agent says about itself.
pub(crate) async fn inventory(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    body: Body,
) -> Answer {
    let sender = auth::agent(&shared, &caller).await?;
    let text = shared.text_in_turn(&caller.headers, body).await?;
    let inventory = serde_json::from_str::<serde_json::Value>(&text);
    let inventory = inventory
        .ok()
        .filter(|it| it.is_object() && text.len() <= MAX_INVENTORY);
    let Some(inventory) = inventory else {
        let message = format!("expected a JSON object of at most {MAX_INVENTORY} bytes");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    };
    let labels = bundles::labels_of(&inventory)
        .map_err(|problem| Refusal::new(StatusCode::BAD_REQUEST, problem))?;
    let id = sender.id;
    let tell = move |store: &dyn Store| {
        store.heartbeat(id, text)?;
        let bundle = bundles::exchange(store, id, &labels, &inventory)?;
        Ok((bundle, captures::order(store, id)?))
    };
    let (bundle, capture) = match &shared.queue {
        None => shared.blocking(tell).await?,
        Some(queue) => match queue.while_store_answers(tell).await {
            Some(told) => told,
            // An agent sends its records only if this is answered. What it is to have is not known, so it stays as it is.
            None => {
                let answer = json!({"agent": id.0, "stored": false});
                return Ok(json_response(StatusCode::OK, &answer));
            }
        },
    };
    let capture_on = shared.capture_on.as_ref().map(|on| on.as_json());
    let answer = json!({
        "agent": id.0,
        "bundle": bundle,
        "capture": capture,
        "capture_on": capture_on,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// `POST /api/v1/batches`: records of an agent, one JSON object a line, numbered from the value of the
/// sequence header on.
pub(crate) async fn batch(State(shared): State<Arc<Shared>>, caller: Caller, body: Body) -> Answer {
    let sender = auth::agent(&shared, &caller).await?;
    let first = caller
        .headers
        .get(SEQUENCE)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let first = first.filter(|first| (1..=MAX_SEQUENCE).contains(first));
    let first = first.ok_or_else(|| {
        let message = format!("the header {SEQUENCE} has to be a number from 1 to {MAX_SEQUENCE}");
        Refusal::new(StatusCode::BAD_REQUEST, message)
    })?;
    let _turn = shared.turn(&caller.headers).await?;
    let text = body::text(&caller.headers, body).await?;
    let received_ns = now_ns();
    let receipt = match &shared.queue {
        None => {
            let records = records(&text, received_ns)?;
            // Many batches wait for a commit: each without its text.
            drop(text);
            store(&shared, sender.id, Some(first), records).await?
        }
        Some(queue) => {
            let lines = lines(&text)?;
            queue.put(sender.id, (first, &lines), received_ns).await?
        }
    };
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "acknowledged": receipt.acknowledged,
            "stored": receipt.stored,
            "duplicates": receipt.duplicates,
            "missing": receipt.missing,
        }),
    ))
}

/// A line of a batch that is not an alert.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LossLine {
    loss: String,
    count: u64,
    #[serde(default)]
    detail: String,
}

/// Returns the lines with records.
fn lines(text: &str) -> Result<Vec<&str>, Refusal> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<&str> = lines.collect();
    if lines.len() > MAX_RECORDS {
        let message = format!("the batch has more than {MAX_RECORDS} records");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    Ok(lines)
}

/// Reads the records of a batch.
pub(crate) fn records(text: &str, received_ns: i64) -> Result<Vec<Record>, Refusal> {
    let lines = lines(text)?;
    let dropped = lines.iter().filter(|line| **line == DROPPED_RECORD).count();
    let last = lines.iter().rposition(|line| *line == DROPPED_RECORD);
    let read = |(at, line): (usize, &&str)| {
        if *line == DROPPED_RECORD {
            return match last == Some(at) {
                true => Record::Loss(spool_loss(dropped, received_ns)),
                false => Record::Dropped,
            };
        }
        if line.starts_with("{\"loss\":")
            && let Some(loss) = loss(line, received_ns)
        {
            return Record::Loss(loss);
        }
        alert::read(line, received_ns)
            .unwrap_or_else(|error| alert::unreadable(line, &error, received_ns))
    };
    Ok(lines.iter().enumerate().map(read).collect())
}

/// One loss for all records of a batch that its sender had to drop.
fn spool_loss(count: usize, received_ns: i64) -> Loss {
    Loss {
        time_ns: received_ns,
        kind: LossKind::Spool,
        count: count as u64,
        detail: "the spool of the agent was full".to_owned(),
    }
}

fn loss(line: &str, received_ns: i64) -> Option<Loss> {
    let line: LossLine = serde_json::from_str(line).ok()?;
    Some(Loss {
        time_ns: received_ns,
        kind: LossKind::named(&line.loss)?,
        count: line.count,
        detail: grouping::clipped(&line.detail),
    })
}

/// `POST /` and `POST /api/v1/`: one alert as Falco, falcosidekick and event-generator's receivers know it.
/// Without a sequence number, an alert that is sent again is stored again.
pub(crate) async fn falco(State(shared): State<Arc<Shared>>, caller: Caller, body: Body) -> Answer {
    let sender = auth::direct(&shared, &caller).await?;
    let _turn = shared.turn(&caller.headers).await?;
    let text = body::text(&caller.headers, body).await?;
    let record = alert::read(&text, now_ns())
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    store(&shared, sender.id, None, vec![record]).await?;
    Ok(json_response(StatusCode::OK, &json!({"stored": 1})))
}

/// `POST /v1/logs`: log records, from a token of agents. Without sequence numbers, a record that is sent again is stored
/// again.
pub(crate) async fn logs(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    body: Body,
) -> Response {
    let encoding = Encoding::of(&caller.headers);
    match take_logs(&shared, &caller, body, encoding).await {
        Ok(sorted) => otlp::taken(encoding, sorted.rejected, &sorted.reason),
        Err(refusal) => otlp::refused(encoding, &refusal),
    }
}

/// Stores the records of a request that can be alerts.
async fn take_logs(
    shared: &Arc<Shared>,
    caller: &Caller,
    body: Body,
    encoding: Option<Encoding>,
) -> Result<Sorted, Refusal> {
    let sender = auth::direct(shared, caller).await?;
    let encoding = encoding.ok_or_else(|| {
        let message = "unknown Content-Type: expected application/x-protobuf or application/json";
        Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })?;
    let _turn = shared.turn(&caller.headers).await?;
    let bytes = body::message(&caller.headers, body).await?;
    let decoding = shared.decoder_turn().await?;
    let received_ns = now_ns();
    let sorted = shared.working(move || {
        let _turn = decoding;
        let request = encoding.decode(&bytes);
        request.and_then(|request| otlp::sort(&request, received_ns))
    });
    let mut sorted = sorted.await??;
    let accepted = std::mem::take(&mut sorted.accepted);
    if !accepted.is_empty() {
        store(shared, sender.id, None, accepted).await?;
    }
    shared.metrics.rejected.add(sorted.rejected);
    Ok(sorted)
}

/// Stores a batch, and returns after the commit.
pub(crate) async fn store(
    shared: &Shared,
    sender: AgentId,
    first: Option<u64>,
    records: Vec<Record>,
) -> Result<Receipt, Refusal> {
    let (done, committed) = oneshot::channel();
    let batch = Batch {
        sender,
        first,
        records,
        received_ns: now_ns(),
    };
    let answer = move |result| {
        // The client may have gone; it will send the batch again.
        let _ = done.send(result);
    };
    let submitted = shared.store.append(batch, Box::new(answer));
    let result = match submitted {
        Ok(()) => committed.await.unwrap_or(Err(StoreError::Stopped)),
        Err(error) => Err(error),
    };
    let metrics = &shared.metrics;
    match &result {
        Ok(receipt) => {
            metrics.stored.add(receipt.stored);
            metrics.duplicates.add(receipt.duplicates);
            metrics.missing.add(receipt.missing);
        }
        Err(StoreError::Busy) => metrics.busy.add(1),
        Err(_) => metrics.failed.add(1),
    }
    Ok(result?)
}
