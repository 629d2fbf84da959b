//! The agents: where they run, what they are, and what of them is missing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;
use store::{Agent, AgentId, Capture, CaptureAsked, CaptureState, NewCapture};

use super::inventory::{Inventory, Presence, presence};
use super::session::Visitor;
use super::view::{self, Answer, PageError, ago, empty, number, or_dash, plain};
use super::{form, html as answer, policies, rules, see_other};
use crate::bundles::{Choice, Choices};
use crate::captures;
use crate::server::{Shared, now_ns};

/// Agents on the page; the API has all.
const SHOWN: usize = 500;

pub(super) fn state(agent: &Agent, now_ns: i64) -> Markup {
    let (class, text) = match presence(agent, now_ns) {
        Presence::Reporting => ("state on", "reporting"),
        Presence::Late => ("state late", "late"),
        Presence::Silent => ("state off", "silent"),
        Presence::Ended => ("state", "token ended"),
    };
    html! { span class=(class) { (text) } }
}

/// Returns the name of an agent for people.
pub(super) fn name(agent: &Agent) -> String {
    match (agent.is_direct, agent.host.is_empty()) {
        (true, _) => format!("direct senders of {}", plain(&agent.class)),
        (false, true) => format!("agent {}", agent.id.0),
        (false, false) => plain(&agent.host),
    }
}

/// `GET /fleet`
pub(super) async fn show(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    let asked =
        shared.blocking(|store| Ok((store.agents()?, store.rollouts()?, store.captures()?)));
    let (agents, rollouts, captures) = asked.await?;
    let choices = Choices::new(&rollouts);
    let here = agents
        .iter()
        .filter(|agent| presence(agent, now_ns()) == Presence::Reporting);
    let below = format!("{} senders, {} reporting", agents.len(), here.count());
    let body = html! {
        (view::title("Fleet", &below, &html! {}))
        div.panel.flush {
            @if agents.is_empty() { (empty(
                "No agent has enrolled",
                "Create a token, then start an agent with it:",
                "tollgate serve token create --agent-class default > token\n\
                 TOLLGATE_TOKEN_FILE=token tollgate watch --collector https://HOST:6443",
            )) } @else { (table(&visitor, &agents, &choices, &captures)) }
        }
        @if agents.len() > SHOWN { p.soft { "The first " (SHOWN) " are shown; " code { "GET /api/v1/agents" } " has all." } }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/fleet", "Fleet", &body),
    ))
}

/// `GET /policies`
pub(super) async fn policies(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    let agents = shared.blocking(|store| store.agents()).await?;
    let body = policies::page(&agents, now_ns());
    let page = view::page(&visitor, "/policies", "Policies", &body);
    Ok(answer(StatusCode::OK, page))
}

/// `GET /rules`
pub(super) async fn rules(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    let agents = shared.blocking(|store| store.agents()).await?;
    let body = rules::page(&agents);
    let page = view::page(&visitor, "/rules", "Rules", &body);
    Ok(answer(StatusCode::OK, page))
}

fn table(
    visitor: &Visitor,
    agents: &[Agent],
    choices: &Choices<'_>,
    captures: &[Capture],
) -> Markup {
    let now = now_ns();
    html! {
        div.scroll { table.cards-on-phone {
            thead { tr {
                th { "Host" } th { "State" } th { "Version" } th { "Kernel" } th { "Engine" } th { "Rules" } th { "Policy" } th { "Bundle" }
                th.num { "Dropped" }
                th.num { "Stored" } th.num { "Missing" } th.num { "Waiting" } th { "Last seen" }
            } }
            tbody { @for agent in agents.iter().take(SHOWN) {
                @let inventory = Inventory::of(agent);
                tr {
                    td.full { span.main { (name(agent)) } span.sub { "class " (plain(&agent.class)) } (labels(agent)) }
                    td { (state(agent, now)) }
                    td data-label="Version" { (or_dash(inventory.text("version"))) }
                    td data-label="Kernel" { (or_dash(inventory.text("kernel"))) span.sub { (plain(inventory.text("architecture"))) } }
                    td data-label="Engine" { (inventory.engine())
                        (captures_of(visitor, agent, captures, inventory.allows_captures())) }
                    td data-label="Rules" { (inventory.rules()) }
                    td data-label="Policy" { (inventory.policy()) }
                    td data-label="Bundle" { (bundle(&choices.of(agent))) (inventory.bundled_policies()) }
                    td.num data-label="Dropped" { (inventory.unseen()) }
                    td.num data-label="Stored" { (number(agent.acknowledged)) }
                    td.num data-label="Missing" {
                        @if agent.missing > 0 { span class="badge s-loss" { (number(agent.missing)) } } @else { "0" } }
                    td.num data-label="Waiting" { (inventory.waiting()) }
                    td data-label="Seen" { (ago(agent.last_seen_ns)) }
                }
            } }
        } }
    }
}

/// Seconds of a capture that the page asks for; the API takes others.
const SECONDS: u32 = 30;

/// Captures of an agent on the page.
const CAPTURES: usize = 3;

/// Returns the latest captures of an agent, and for operators what asks for another one.
fn captures_of(visitor: &Visitor, agent: &Agent, captures: &[Capture], is_allowed: bool) -> Markup {
    let own = captures.iter().filter(|capture| capture.agent == agent.id);
    html! {
        @for capture in own.take(CAPTURES) { span.sub {
            @match capture.state {
                CaptureState::Complete if visitor.is_operator() => {
                    a href={ "/captures/" (capture.id.0) } { "capture " (capture.id.0) }
                    ", " (number(capture.events)) " events"
                    @if capture.lost > 0 { ", " (number(capture.lost)) " lost" }
                }
                state => { "capture " (capture.id.0) ": " (state.name())
                    @if !capture.reason.is_empty() { ", " (plain(&capture.reason)) } }
            }
            " (" (ago(capture.requested_ns)) ")"
        } }
        @if is_allowed && visitor.is_operator() {
            form method="post" action="/captures" {
                (visitor.token())
                input type="hidden" name="agent" value=(agent.id.0);
                button type="submit" { "Capture " (SECONDS) " s" }
            }
        }
    }
}

/// `GET /captures/{id}/file`
pub(super) async fn download(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Path(id): Path<i64>,
) -> Answer {
    visitor.may_change()?;
    Ok(captures::download(&shared, id, visitor.user.clone()).await?)
}

#[derive(Deserialize)]
pub(super) struct Asked {
    token: String,
    agent: i64,
}

/// `POST /captures`
pub(super) async fn capture(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let form: Asked = form::read(&headers, body).await?;
    visitor.sent(&form.token)?;
    visitor.may_change()?;
    let agent = AgentId(form.agent);
    let new = NewCapture {
        agent,
        seconds: SECONDS,
        actor: visitor.user.clone(),
    };
    let asked = shared.blocking(move |store| match captures::allows(store, agent)? {
        Some(true) => store.request_capture(new).map(Some),
        _ => Ok(None),
    });
    let problem = match asked.await? {
        Some(CaptureAsked::Added(_)) => return Ok(see_other("/fleet")),
        Some(CaptureAsked::Busy(None)) => {
            "20 captures are still to arrive; ask again when one is over"
        }
        Some(CaptureAsked::Busy(Some(_))) => {
            "the agent has another capture to record or to send first"
        }
        Some(CaptureAsked::UnknownAgent) | None => "there is no such agent that allows captures",
    };
    Err(PageError::new(StatusCode::CONFLICT, problem))
}

/// Labels that an agent says it has.
fn labels(agent: &Agent) -> Markup {
    html! { @for (key, value) in agent.labels.iter() { span.sub.mono { (plain(key)) "=" (plain(value)) } } }
}

/// The bundle that an agent is to have, and why.
fn bundle(choice: &Choice<'_>) -> Markup {
    html! {
        @match choice.bundle {
            Some(bundle) => { "version " (bundle.version) }
            None => (or_dash("")),
        }
        span.sub { (plain(&choice.why)) }
    }
}
