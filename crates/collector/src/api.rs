//! Questions about what is stored, answered in JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{
    Acknowledgement, Agent, AlertId, AlertRow, Cursor, Filter, Group, GroupId, LossRow, Overview,
    Severity, Store, StoreError,
};

use crate::alert::time_text;
use crate::answer::{Refusal, json_response};
use crate::auth;
use crate::bundles::Choices;
use crate::grouping;
use crate::server::{Shared, now_ns};

type Answer = Result<Response, Refusal>;

/// The filter as it stands in a URL. An empty value filters nothing, so that forms can send all of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Asked {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) severity: String,
    pub(crate) rule: String,
    pub(crate) host: String,
    pub(crate) program: String,
    pub(crate) group: String,
    pub(crate) q: String,
    pub(crate) acknowledged: String,
    pub(crate) after: String,
    pub(crate) limit: String,
}

impl Asked {
    /// Returns the filter, or what is wrong with it.
    pub(crate) fn filter(self) -> Result<Filter, Refusal> {
        let bad = |name: &str, expected: &str| {
            let message = format!("cannot use the filter `{name}`: expected {expected}");
            Refusal::new(StatusCode::BAD_REQUEST, message)
        };
        let filled = |text: String| (!text.is_empty()).then_some(text);
        let time = |name: &str, text: String| {
            let parse = |text: String| {
                let time = text.parse::<Timestamp>().ok()?;
                i64::try_from(time.as_nanosecond()).ok()
            };
            let example = "a time such as 2026-01-02T03:04:05Z";
            filled(text)
                .map(|text| parse(text).ok_or_else(|| bad(name, example)))
                .transpose()
        };
        let number = |name: &str, text: String| {
            filled(text)
                .map(|text| {
                    text.parse::<i64>()
                        .map_err(|_no_number| bad(name, "a number"))
                })
                .transpose()
        };
        let severity = filled(self.severity).map(|name| {
            Severity::named(&name)
                .ok_or_else(|| bad("severity", "a priority of Falco, such as Warning"))
        });
        let after = filled(self.after).map(|text| {
            cursor(&text).ok_or_else(|| bad("after", "the value `next` of the page before"))
        });
        let limit = number("limit", self.limit)?.unwrap_or(0);
        let limit =
            u32::try_from(limit).map_err(|_out_of_range| bad("limit", "a number from 1 on"))?;
        let with_acknowledged = match &*self.acknowledged {
            "" | "false" => false,
            "true" => true,
            _ => return Err(bad("acknowledged", "true or false")),
        };
        Ok(Filter {
            from_ns: time("from", self.from)?,
            to_ns: time("to", self.to)?,
            severity: severity.transpose()?,
            rule: filled(self.rule),
            host: filled(self.host),
            program: filled(self.program),
            group: number("group", self.group)?.map(GroupId),
            text: filled(self.q),
            with_acknowledged,
            after: after.transpose()?,
            limit,
        })
    }
}

fn cursor(text: &str) -> Option<Cursor> {
    let (time, id) = text.split_once('.')?;
    Some(Cursor {
        time_ns: time.parse().ok()?,
        id: id.parse().ok()?,
    })
}

fn cursor_text(time_ns: i64, id: i64) -> Value {
    format!("{time_ns}.{id}").into()
}

fn asked(query: Result<Query<Asked>, QueryRejection>) -> Result<Filter, Refusal> {
    match query {
        Ok(Query(asked)) => asked.filter(),
        Err(error) => Err(Refusal::new(StatusCode::BAD_REQUEST, error.body_text())),
    }
}

/// A list of the API: its name, and a row with its position.
struct List {
    name: &'static str,
    rows: Vec<Value>,
    last: Option<(i64, i64)>,
}

/// Answers with the part of a list that the filter of the URL asks for, and where the next one begins.
async fn listed(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
    ask: impl FnOnce(&dyn Store, &Filter) -> Result<List, StoreError> + Send + 'static,
) -> Answer {
    auth::reader(shared, headers).await?;
    let filter = asked(query)?;
    let list = shared.blocking(move |store| ask(store, &filter)).await?;
    let next = list.last.map(|(time, id)| cursor_text(time, id));
    Ok(json_response(
        StatusCode::OK,
        &json!({list.name: list.rows, "next": next}),
    ))
}

/// `GET /api/v1/groups`
pub(crate) async fn groups(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer {
    let ask = |store: &dyn Store, filter: &Filter| {
        let groups = store.groups(filter)?;
        Ok(List {
            name: "groups",
            rows: groups.iter().map(group_json).collect(),
            last: groups.last().map(|group| (group.last_ns, group.id.0)),
        })
    };
    listed(&shared, &headers, query, ask).await
}

fn group_json(group: &Group) -> Value {
    json!({
        "id": group.id.0,
        "rule": group.rule,
        "priority": group.severity.name(),
        "program": group.program,
        "object": group.object,
        "count": group.count,
        "first": time_text(group.first_ns),
        "last": time_text(group.last_ns),
        "hosts": group.hosts,
        "acknowledged_by": group.acknowledged_by,
        "note": group.note,
        "assignee": group.assignee,
        "muted_until": group.muted_until_ns.map(time_text),
    })
}

/// `GET /api/v1/alerts`
pub(crate) async fn alerts(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer {
    let ask = |store: &dyn Store, filter: &Filter| {
        let alerts = store.alerts(filter)?;
        Ok(List {
            name: "alerts",
            rows: alerts.iter().map(alert_json).collect(),
            last: alerts.last().map(|alert| (alert.time_ns, alert.id.0)),
        })
    };
    listed(&shared, &headers, query, ask).await
}

fn alert_json(alert: &AlertRow) -> Value {
    json!({
        "id": alert.id.0,
        "time": time_text(alert.time_ns),
        "priority": alert.severity.name(),
        "rule": alert.rule,
        "host": alert.host,
        "program": alert.program,
        "group": alert.group.0,
        // Stored only after it was read as JSON.
        "alert": serde_json::from_str::<Value>(&alert.body).unwrap_or(Value::Null),
    })
}

/// `GET /api/v1/alerts/{id}`
pub(crate) async fn alert(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(id): Path<i64>,
) -> Answer {
    auth::reader(&shared, &headers).await?;
    let found = shared
        .blocking(move |store| store.alert(AlertId(id)))
        .await?;
    let found = found.ok_or_else(|| Refusal::not_found("alert"))?;
    let mut answer = alert_json(&found.row);
    answer["object"] = found.object.into();
    answer["received"] = time_text(found.received_ns).into();
    answer["agent"] = found.agent.0.into();
    answer["class"] = found.class.into();
    answer["sequence"] = found.sequence.into();
    answer["acknowledged_by"] = found.acknowledged_by.into();
    Ok(json_response(StatusCode::OK, &answer))
}

/// `GET /api/v1/agents`
pub(crate) async fn agents(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Answer {
    auth::reader(&shared, &headers).await?;
    let asked = shared.blocking(|store| Ok((store.agents()?, store.rollouts()?)));
    let (agents, rollouts) = asked.await?;
    let choices = Choices::new(&rollouts);
    let rows: Vec<_> = agents.iter().map(|it| agent_json(it, &choices)).collect();
    Ok(json_response(StatusCode::OK, &json!({"agents": rows})))
}

fn agent_json(agent: &Agent, choices: &Choices<'_>) -> Value {
    let choice = choices.of(agent);
    json!({
        "id": agent.id.0,
        "class": agent.class,
        "host": agent.host,
        "direct": agent.is_direct,
        "ended": agent.is_ended,
        "first_seen": time_text(agent.first_seen_ns),
        "last_seen": time_text(agent.last_seen_ns),
        "acknowledged": agent.acknowledged,
        "missing": agent.missing,
        "labels": agent.labels.iter().collect::<Value>(),
        "bundle": choice.bundle.map(|bundle| bundle.version),
        "bundle_why": choice.why,
        "inventory": serde_json::from_str::<Value>(&agent.inventory).unwrap_or(Value::Null),
    })
}

/// `GET /api/v1/overview`: the interval of the filter, or the last 24 hours.
pub(crate) async fn overview(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer {
    const DAY_NS: i64 = 86_400_000_000_000;
    auth::reader(&shared, &headers).await?;
    let filter = asked(query)?;
    let to_ns = filter.to_ns.unwrap_or_else(now_ns);
    let from_ns = filter.from_ns.unwrap_or(to_ns.saturating_sub(DAY_NS));
    let overview = shared
        .blocking(move |store| store.overview(from_ns, to_ns))
        .await?;
    Ok(json_response(StatusCode::OK, &overview_json(&overview)))
}

fn overview_json(overview: &Overview) -> Value {
    let hour = |hour: i64| time_text(hour.saturating_mul(3_600_000_000_000));
    let alerts = overview.alerts.iter().map(
        |row| json!({"hour": hour(row.hour), "priority": row.severity.name(), "count": row.count}),
    );
    let by_hour = overview
        .losses_by_hour
        .iter()
        .map(|(at, kind, count)| json!({"hour": hour(*at), "kind": kind.name(), "count": count}));
    let loss = |row: &LossRow| {
        json!({
            "time": time_text(row.loss.time_ns),
            "kind": row.loss.kind.name(),
            "count": row.loss.count,
            "detail": row.loss.detail,
            "agent": row.agent.0,
            "host": row.host,
        })
    };
    let top = |rows: &[(String, u64)]| -> Vec<Value> {
        let rows = rows
            .iter()
            .map(|(name, count)| json!({"name": name, "count": count}));
        rows.collect()
    };
    json!({
        "alerts": alerts.collect::<Vec<_>>(),
        "losses_by_hour": by_hour.collect::<Vec<_>>(),
        "losses": overview.losses.iter().map(loss).collect::<Vec<_>>(),
        "rules": top(&overview.rules),
        "hosts": top(&overview.hosts),
    })
}

/// What an operator says when acknowledging.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcknowledgementBody {
    #[serde(default)]
    note: String,
    acknowledged: bool,
}

/// `PUT /api/v1/groups/{id}/acknowledgement`
pub(crate) async fn acknowledge(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(id): Path<i64>,
    body: Body,
) -> Answer {
    let reader = auth::reader(&shared, &headers).await?;
    reader.may_change()?;
    let text = shared.text_in_turn(&headers, body).await?;
    let asked: AcknowledgementBody = serde_json::from_str(&text)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let how = Acknowledgement {
        actor: reader.actor,
        note: grouping::clipped(&asked.note),
        is_set: asked.acknowledged,
    };
    let found = shared
        .blocking(move |store| store.acknowledge(GroupId(id), how))
        .await?;
    if !found {
        return Err(Refusal::not_found("group"));
    }
    Ok(json_response(
        StatusCode::OK,
        &json!({"acknowledged": asked.acknowledged}),
    ))
}

/// `GET /healthz`: the process answers.
pub(crate) async fn health() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

/// `GET /readyz`: the store answers, too. With a queue, what agents need is the queue; the store may be away.
pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> Answer {
    let Some(queue) = &shared.queue else {
        shared.blocking(|store| store.statistics()).await?;
        return Ok(json_response(StatusCode::OK, &json!({"status": "ready"})));
    };
    if queue.depth().await.is_none() {
        let message = "the queue does not answer";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    let answers = queue.while_store_answers(|store| store.statistics());
    let answers = answers.await.is_some();
    let store = if answers { "ready" } else { "away" };
    let answer = json!({"status": "ready", "queue": "ready", "store": store});
    Ok(json_response(StatusCode::OK, &answer))
}

/// `GET /metrics`
pub(crate) async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Answer {
    auth::metrics_reader(&shared, &headers).await?;
    let text = match &shared.queue {
        None => {
            let statistics = shared.blocking(|store| store.statistics()).await?;
            shared.metrics.page(Some(&statistics), None)
        }
        Some(queue) => {
            let statistics = queue.while_store_answers(|store| store.statistics());
            let statistics = statistics.await;
            let depth = queue.depth().await;
            let queue = Some((&queue.counters, depth));
            shared.metrics.page(statistics.as_ref(), queue)
        }
    };
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4");
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// `GET /api/v1/openapi.json`: what this interface is, for programs that make clients. It tells nothing about the
/// fleet, so everybody may read it.
pub(crate) async fn openapi() -> Response {
    let content_type = HeaderValue::from_static("application/json");
    let document = include_str!("openapi.json");
    ([(header::CONTENT_TYPE, content_type)], document).into_response()
}
