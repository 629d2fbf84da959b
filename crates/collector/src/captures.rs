//! Captures that people ask agents for: on their way down, up, and to whoever asked.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{
    AgentId, Capture, CaptureAsked, CaptureEnd, CaptureId, MAX_CAPTURE_SECONDS, NewCapture, Store,
    StoreError,
};

use crate::alert::time_text;
use crate::answer::{Refusal, json_response};
use crate::auth::{self, Caller};
use crate::download::Download;
use crate::server::Shared;
use crate::{body, grouping};

type Answer = Result<Response, Refusal>;

/// Largest part of a capture in bytes.
const MAX_PART: usize = 1 << 20;

/// Largest body of the other requests in bytes.
const MAX_REQUEST: usize = 4096;

/// Someone asks for a capture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    agent: i64,
    seconds: u32,
}

/// `POST /api/v1/captures`
pub(crate) async fn request(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let reader = auth::reader(&shared, &headers).await?;
    reader.may_change()?;
    let text = body::small(&headers, body, MAX_REQUEST).await?;
    let bad = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let asked: Asked = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if !(1..=MAX_CAPTURE_SECONDS).contains(&asked.seconds) {
        return Err(bad(format!(
            "`seconds` has to be from 1 to {MAX_CAPTURE_SECONDS}"
        )));
    }
    let agent = AgentId(asked.agent);
    let new = NewCapture {
        agent,
        seconds: asked.seconds,
        actor: reader.actor,
    };
    let added = shared.blocking(move |store| match allows(store, agent)? {
        Some(true) => store.request_capture(new).map(Ok),
        allows => Ok(Err(allows)),
    });
    let conflict = |why: String| Refusal::new(StatusCode::CONFLICT, why);
    match added.await? {
        Ok(CaptureAsked::Added(id)) => Ok(json_response(
            StatusCode::CREATED,
            &json!({"capture": id.0}),
        )),
        Ok(CaptureAsked::Busy(Some(id))) => Err(conflict(format!(
            "the agent has capture {} to record or to send first",
            id.0
        ))),
        Ok(CaptureAsked::Busy(None)) => Err(conflict(
            "as many captures as the collector keeps are still to arrive; ask again when one is over"
                .to_owned(),
        )),
        Ok(CaptureAsked::UnknownAgent) | Err(None) => Err(Refusal::not_found("agent")),
        Err(Some(_)) => Err(conflict(
            "the agent allows no captures; start it with --allow-captures".to_owned(),
        )),
    }
}

/// Returns whether an agent says that it allows captures; `None` if there is no such agent.
pub(crate) fn allows(store: &dyn Store, agent: AgentId) -> Result<Option<bool>, StoreError> {
    let agents = store.agents()?;
    let agent = agents.iter().find(|it| it.id == agent);
    Ok(agent.map(|agent| {
        // What is no inventory allows nothing.
        let inventory = serde_json::from_str::<Value>(&agent.inventory);
        inventory.is_ok_and(|inventory| inventory["captures"] == true)
    }))
}

/// `GET /api/v1/captures`
pub(crate) async fn list(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Answer {
    auth::reader(&shared, &headers).await?;
    let captures = shared.blocking(|store| store.captures()).await?;
    let captures: Vec<_> = captures.iter().map(capture_json).collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({"captures": captures}),
    ))
}

fn capture_json(capture: &Capture) -> Value {
    json!({
        "id": capture.id.0,
        "agent": capture.agent.0,
        "seconds": capture.seconds,
        "requested": time_text(capture.requested_ns),
        "actor": capture.actor,
        "state": capture.state.name(),
        "bytes": capture.bytes,
        "events": capture.events,
        "lost": capture.lost,
        "reason": capture.reason,
    })
}

/// `GET /api/v1/captures/{id}/file`: the capture, for those who may change something: it has arguments of commands and names of files.
pub(crate) async fn file(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(id): Path<i64>,
) -> Answer {
    let reader = auth::reader(&shared, &headers).await?;
    reader.may_change()?;
    download(&shared, id, reader.actor).await
}

/// Answers with the data of a capture.
pub(crate) async fn download(shared: &Arc<Shared>, id: i64, actor: String) -> Answer {
    let turn = shared.download_turn().await?;
    let data = shared.blocking(move |store| store.capture_data(CaptureId(id), &actor));
    let data = data.await?.ok_or_else(|| Refusal::not_found("capture"))?;
    let mut response = Body::new(Download::new(data, turn)).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let name = format!("attachment; filename=\"capture-{id}.scap\"");
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// Returns what an agent is to record, as the answer to its sign of life says it.
pub(crate) fn order(store: &dyn Store, agent: AgentId) -> Result<Value, StoreError> {
    let capture = store.capture_of(agent)?;
    Ok(capture.map_or(
        Value::Null,
        |capture| json!({"id": capture.id.0, "seconds": capture.seconds, "parts": capture.chunks}),
    ))
}

/// `PUT /api/v1/captures/{id}/chunks/{number}`: a part of a capture. Answers with the number of the part that is expected next.
pub(crate) async fn chunk(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path((id, number)): Path<(i64, u64)>,
    body: Body,
) -> Answer {
    let agent = auth::agent(&shared, &caller).await?.id;
    let _turn = shared.turn(&caller.headers).await?;
    let data = body::bytes(&caller.headers, body, MAX_PART).await?;
    let next = shared.blocking(move |store| store.add_chunk(agent, CaptureId(id), number, data));
    let next = next.await?.ok_or_else(|| Refusal::not_found("capture"))?;
    Ok(json_response(StatusCode::OK, &json!({"next": next})))
}

/// What an agent says at the end of a capture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {
    chunks: u64,
    events: u64,
    lost: u64,
    failure: Option<String>,
}

/// `PUT /api/v1/captures/{id}/done`: the end of a capture.
pub(crate) async fn done(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(id): Path<i64>,
    body: Body,
) -> Answer {
    let agent = auth::agent(&shared, &caller).await?.id;
    let text = body::small(&caller.headers, body, MAX_REQUEST).await?;
    let done: Done = serde_json::from_str(&text)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let end = CaptureEnd {
        chunks: done.chunks,
        events: done.events,
        lost: done.lost,
        failure: done.failure.map(|why| grouping::clipped(&why)),
    };
    let ended = shared.blocking(move |store| store.end_capture(agent, CaptureId(id), end));
    match ended.await? {
        true => Ok(json_response(StatusCode::OK, &json!({"capture": id}))),
        false => Err(Refusal::not_found("capture")),
    }
}
