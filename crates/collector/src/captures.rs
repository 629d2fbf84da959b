//! Captures: those that people ask agents for, on their way down, up, and to whoever asked, and those around alerts.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::{
    AgentId, AlertCaptureBegun, AlertDetail, Capture, CaptureAsked, CaptureEnd, CaptureId,
    CaptureParts, CaptureUse, CapturedAlert, MAX_CAPTURE_SECONDS, NewAlertCapture, NewCapture,
    Store, StoreError,
};

use crate::alert::time_text;
use crate::answer::{Refusal, json_response};
use crate::auth::{self, Caller};
use crate::download::{Download, ReadPart};
use crate::server::Shared;
use crate::{body, grouping};

type Answer = Result<Response, Refusal>;

/// Largest part of a capture in bytes.
const MAX_PART: usize = 1 << 20;

/// Largest body of the other requests in bytes.
const MAX_REQUEST: usize = 4096;

/// Longest time before or after an alert in a capture, whatever an agent says.
const MAX_AROUND_MS: u32 = MAX_CAPTURE_SECONDS * 1000;

/// Someone asks for a capture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    agent: i64,
    seconds: u32,
}

/// Reads the small JSON object of a request.
async fn small_json<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Refusal> {
    let text = body::small(headers, body, MAX_REQUEST).await?;
    serde_json::from_str(&text)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))
}

/// `POST /api/v1/captures`
pub(crate) async fn request(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let reader = auth::reader(&shared, &headers).await?;
    reader.may_change()?;
    let asked: Asked = small_json(&headers, body).await?;
    let bad = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
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
        "alert": capture.alert.as_ref().map(|alert| json!({
            "rule": alert.rule,
            "time": time_text(alert.time_ns),
            "before_ms": alert.before_ms,
            "after_ms": alert.after_ms,
        })),
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
    let opened = shared
        .blocking(move |store| store.open_capture(CaptureId(id), &actor, CaptureUse::Download));
    let gone = || Refusal::not_found("capture");
    let CaptureParts { bytes, .. } = opened.await?.ok_or_else(gone)?;
    // Before the head of the answer, which could not say any more that the store fails.
    let first = shared.blocking(move |store| store.capture_part(CaptureId(id), 0));
    let first = first.await?.ok_or_else(gone)?;
    let shared = Arc::clone(shared);
    let read: ReadPart = Box::new(move |number| {
        let shared = Arc::clone(&shared);
        Box::pin(async move {
            let part = shared.blocking(move |store| store.capture_part(CaptureId(id), number));
            let part = part
                .await
                .map_err(|refusal| io::Error::other(refusal.message))?;
            part.ok_or_else(|| io::Error::other("the capture was deleted meanwhile"))
        })
    });
    let mut response = Body::new(Download::new(first, bytes, read, turn)).into_response();
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

/// Returns the capture around an alert: its own one, or one around another alert in whose time it is.
pub(crate) fn around<'c>(alert: &AlertDetail, captures: &'c [Capture]) -> Option<&'c Capture> {
    let row = &alert.row;
    let is_around = |of: &CapturedAlert| {
        let ns = |ms: u32| i64::from(ms).saturating_add(1).saturating_mul(1_000_000);
        let from = of.time_ns.saturating_sub(ns(of.before_ms));
        (from..=of.time_ns.saturating_add(ns(of.after_ms))).contains(&row.time_ns)
    };
    let of_agent = captures.iter().filter(|it| it.agent == alert.agent);
    let around = of_agent.filter(|it| it.alert.as_ref().is_some_and(is_around));
    let is_own = |of: &CapturedAlert| of.rule == row.rule && of.time_ns == row.time_ns;
    around.max_by_key(|it| {
        let is_own = it.alert.as_ref().is_some_and(is_own);
        (it.state == store::CaptureState::Complete, is_own)
    })
}

/// Says how much of the time around its alert a capture has.
pub(crate) fn spans(alert: &CapturedAlert) -> String {
    let seconds = |ms: u32| f64::from(ms) / 1000.0;
    let (before, after) = (seconds(alert.before_ms), seconds(alert.after_ms));
    format!("{before:.1} s before and {after:.1} s after the alert")
}

/// An agent has recorded around an alert.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    rule: String,
    time_ns: i64,
    before_ms: u32,
    after_ms: u32,
}

/// `POST /api/v1/captures/alert`: an agent announces a capture around an alert. Answers with its number, and the part that is
/// expected.
pub(crate) async fn announce(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    body: Body,
) -> Answer {
    let agent = auth::agent(&shared, &caller).await?.id;
    let announced: Announced = small_json(&caller.headers, body).await?;
    let alert = CapturedAlert {
        rule: grouping::clipped(&announced.rule),
        time_ns: announced.time_ns,
        before_ms: announced.before_ms.min(MAX_AROUND_MS),
        after_ms: announced.after_ms.min(MAX_AROUND_MS),
    };
    let new = NewAlertCapture { agent, alert };
    let begun = shared.blocking(move |store| store.begin_alert_capture(new));
    match begun.await? {
        AlertCaptureBegun::Expected(id, parts) => Ok(json_response(
            StatusCode::CREATED,
            &json!({"capture": id.0, "parts": parts}),
        )),
        AlertCaptureBegun::Known(id) => Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("capture {} of this alert is over", id.0),
        )),
        // The agent tries again: that passes.
        AlertCaptureBegun::Busy => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many captures around alerts were begun lately, or are still to arrive; announce it again",
        )),
        AlertCaptureBegun::UnknownAgent => Err(Refusal::not_found("agent")),
    }
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
    let done: Done = small_json(&caller.headers, body).await?;
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
