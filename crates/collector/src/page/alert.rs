//! One alert: what it says, who did it, and what someone can do about it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Map, Value};
use store::{AlertDetail, AlertId, AlertRow};

use super::clauses::{self, AlertToExplain, ExplainAlert};
use super::form::{self, Change};
use super::session::Visitor;
use super::tree;
use super::view::{self, Answer, PageError, VIOLATION, ago, badge, number, or_dash, plain, stamp};
use super::{around, html as answer};
use crate::answer::Refusal;
use crate::server::Shared;

/// A way to not raise an alert again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// What it compares.
    pub condition: String,
    /// A similar event that the rule still detects; `None` if the exception silences the rule altogether.
    pub still_detected: Option<String>,
    /// The rule file with it.
    pub file: String,
}

/// Proposes exceptions for an alert in JSON, the best first, or says why there are none.
pub type ProposeException = Arc<dyn Fn(&str) -> Result<Vec<Exception>, String> + Send + Sync>;

/// Time limit for why the clauses matched: the rest of the page waits for it.
const EXPLANATION: Duration = Duration::from_secs(10);

/// Parts of the fields: title, and beginnings of names.
const PARTS: [(&str, &[&str]); 6] = [
    ("Process", &["proc.", "thread."]),
    ("File or connection", &["fd.", "fs."]),
    ("Event", &["evt.", "syscall."]),
    ("User", &["user.", "group."]),
    (
        "Container and Kubernetes",
        &["container.", "k8s.", "k8smeta.", "ka."],
    ),
    ("Other", &[""]),
];

/// Reads the alert as the sender wrote it. It was stored only after it was read as an object.
pub(super) fn body_of(row: &AlertRow) -> Map<String, Value> {
    match serde_json::from_str(&row.body) {
        Ok(Value::Object(body)) => body,
        _ => Map::new(),
    }
}

/// Returns a member as text.
pub(super) fn text<'a>(body: &'a Map<String, Value>, name: &str) -> &'a str {
    body.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn fields(body: &Map<String, Value>) -> Map<String, Value> {
    match body.get("output_fields") {
        Some(Value::Object(fields)) => fields.clone(),
        _ => Map::new(),
    }
}

async fn found(shared: &Arc<Shared>, id: i64) -> Result<AlertDetail, PageError> {
    let alert = shared
        .blocking(move |store| store.alert(AlertId(id)))
        .await?;
    Ok(alert.ok_or_else(|| Refusal::not_found("alert; retention may have deleted it"))?)
}

/// `GET /alerts/{id}`
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Path(id): Path<i64>,
) -> Answer {
    let alert = found(&shared, id).await?;
    let more = more(&shared, &visitor, &alert).await?;
    let body = page(&shared, &visitor, &alert, (&html! {}, &more));
    let title = format!("{} on {}", alert.row.rule, alert.row.host);
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/alerts", &title, &body),
    ))
}

fn page(
    shared: &Shared,
    visitor: &Visitor,
    alert: &AlertDetail,
    (exceptions, more): (&Markup, &More),
) -> Markup {
    let row = &alert.row;
    let body = body_of(row);
    let fields = fields(&body);
    let tree = tree::draw(&fields);
    html! {
        div.title {
            div { h1 { (badge(row.severity)) " " (plain(&row.rule)) }
                p { (stamp(row.time_ns)) ", " (ago(row.time_ns)) } }
            div.row {
                a.button href={ "/groups/" (row.group.0) } { "Group" }
                @if shared.propose.is_some() && visitor.is_operator() { (propose_form(visitor, row)) }
            }
        }
        (exceptions)
        section.panel { h2 { "Message" } p.mono { (or_dash(text(&body, "output"))) }
            (reasons(&fields)) }
        (more.clauses)
        div.columns.wide {
            section.panel { h2 { "Fields" } (field_list(&fields)) }
            div {
                @if let Some(tree) = &tree { section.panel { h2 { "Process tree" } (tree) } }
                (more.capture)
                section.panel { h2 { "Where from" } (origin(alert, &body)) }
            }
        }
        details.panel { summary { "As the sender wrote it (JSON)" }
            pre { (plain(&serde_json::to_string_pretty(&body).unwrap_or_else(|_no_text| row.body.clone()))) } }
    }
}

/// Sections that more than the alert decides.
struct More {
    clauses: Markup,
    capture: Markup,
}

async fn more(
    shared: &Arc<Shared>,
    visitor: &Visitor,
    alert: &AlertDetail,
) -> Result<More, Refusal> {
    let id = alert.agent;
    let asked = shared.blocking(move |store| Ok((store.agent(id)?, store.captures()?)));
    let (agent, captures) = asked.await?;
    Ok(More {
        clauses: why(shared, alert).await,
        capture: around::draw(visitor, alert, agent.as_ref(), &captures),
    })
}

/// Returns the section of the page of an alert; nothing where the collector has no rules, or the alert no rule. The page has
/// the alert itself, so that it does not fail with this section.
async fn why(shared: &Arc<Shared>, alert: &AlertDetail) -> Markup {
    let Some(explain) = shared.explain.clone() else {
        return html! {};
    };
    // A policy has no condition: its message says what it refused.
    if alert.row.rule == VIOLATION {
        return html! {};
    }
    let clauses = tokio::time::timeout(EXPLANATION, evaluated(shared, alert, explain));
    match clauses.await {
        Ok(Ok(clauses)) => clauses,
        Ok(Err(refusal)) => clauses::draw_failed(&refusal.message),
        Err(_late) => clauses::draw_failed("it takes too long; look at this alert again"),
    }
}

/// Evaluates the clauses of an alert's rule.
async fn evaluated(
    shared: &Arc<Shared>,
    alert: &AlertDetail,
    explain: ExplainAlert,
) -> Result<Markup, Refusal> {
    let id = alert.agent;
    let of_agent = shared.blocking(move |store| {
        let agent = store.agent(id)?;
        clauses::rules_of(store, agent.as_ref())
    });
    let of_agent = of_agent.await?;
    let turn = shared.explanation_turn().await?;
    let body = alert.row.body.clone();
    let explained = shared.working(move || {
        let _turn = turn;
        let asked = AlertToExplain {
            alert: &body,
            bundle: of_agent.bundle.as_deref(),
        };
        (explain(asked), of_agent)
    });
    let (explained, of_agent) = explained.await?;
    Ok(clauses::draw(&explained, &of_agent))
}

fn propose_form(visitor: &Visitor, row: &AlertRow) -> Markup {
    html! { form method="post" action={ "/alerts/" (row.id.0) "/exception" } {
        (visitor.token())
        button type="submit" { "Propose an exception" }
    } }
}

/// Returns what the alert says about why its rule could not be decided, or which rule of a policy it is about.
fn reasons(fields: &Map<String, Value>) -> Markup {
    let shown = [
        (
            "tollgate.undecided",
            "Not decided, because it could not be learnt",
        ),
        ("policy.rule", "Policy rule"),
        ("policy.enforcer", "Enforced by"),
    ];
    html! { @for (name, title) in shown { @if let Some(value) = fields.get(name) {
        p.small { span.soft { (title) ": " } (plain(&value_text(value))) }
    } } }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

fn field_list(fields: &Map<String, Value>) -> Markup {
    let part_of = |name: &str| {
        PARTS
            .iter()
            .position(|(_, starts)| starts.iter().any(|start| name.starts_with(start)))
    };
    html! {
        @if fields.is_empty() { p.soft { "The alert has no fields. Falco sends them with " code { "json_include_output_fields_property: true" } "." } }
        @for (at, (title, _)) in PARTS.iter().enumerate() {
            @let rows: Vec<_> = fields.iter().filter(|(name, _)| part_of(name) == Some(at)).collect();
            @if !rows.is_empty() {
                div.part { (title) }
                dl.fields { @for (name, value) in rows {
                    dt { (plain(name)) }
                    dd.mono { (plain(&value_text(value))) }
                } }
            }
        }
    }
}

fn origin(alert: &AlertDetail, body: &Map<String, Value>) -> Markup {
    let row = &alert.row;
    let tags = body.get("tags").and_then(Value::as_array);
    let tags: Vec<_> = tags
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    html! { dl.fields.narrow {
        dt { "Host" } dd { (or_dash(&row.host)) }
        @if text(body, "hostname") != row.host { dt { "Host it names" } dd { (or_dash(text(body, "hostname"))) } }
        dt { "Program" } dd { (or_dash(&row.program)) }
        dt { "Object pattern" } dd { (or_dash(&alert.object)) }
        dt { "Source" } dd { (or_dash(text(body, "source"))) }
        dt { "Agent" } dd { "agent " (alert.agent.0) ", class " (plain(&alert.class)) }
        dt { "Received" } dd { (stamp(alert.received_ns)) }
        @if let Some(sequence) = alert.sequence { dt { "Sequence number" } dd { (number(sequence)) } }
        @if !tags.is_empty() { dt { "Tags" } dd { @for tag in tags { span.badge { (plain(tag)) } " " } } }
        @if let Some(actor) = &alert.acknowledged_by { dt { "Acknowledged by" } dd { (plain(actor)) } }
    } }
}

#[derive(Deserialize)]
pub(super) struct Token {
    token: String,
}

form::sealed!(Token);

/// `POST /alerts/{id}/exception`
pub(super) async fn propose(asked: Change<Token>) -> Answer {
    let Change {
        shared,
        visitor,
        id,
        ..
    } = asked;
    let alert = found(&shared, id).await?;
    let propose = shared
        .propose
        .clone()
        .ok_or_else(|| Refusal::not_found("tool for exceptions in this build"))?;
    let text = alert.row.body.clone();
    let proposed = shared.working(move || propose(&text)).await?;
    let shown = match proposed {
        Ok(exceptions) => html! { @for exception in &exceptions { (exception_panel(exception)) } },
        Err(problem) => html! { div.note.bad role="alert" { (plain(&problem)) } },
    };
    let more = more(&shared, &visitor, &alert).await?;
    let body = page(&shared, &visitor, &alert, (&shown, &more));
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/alerts", "Exception", &body),
    ))
}

fn exception_panel(exception: &Exception) -> Markup {
    html! { section.panel {
        h2 { "Exception: " code { (plain(&exception.condition)) } }
        @match &exception.still_detected {
            Some(event) => p.soft.small { "Still detected: " (plain(event)) },
            None => div.note.bad { "This silences the rule altogether: no similar event is detected any more." },
        }
        pre { (plain(&exception.file)) }
        p.soft.small { "Save it as a rule file and load it with " code { "--add-rules FILE" } ". "
            code { "tollgate rules silence" } " also writes its test." }
    } }
}
