//! The agents: where they run, what they are, and what of them is missing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use store::Agent;

use super::html as answer;
use super::session::Visitor;
use super::view::{self, Answer, ago, empty, number, or_dash, plain};
use crate::server::{Shared, now_ns};

const SECOND_NS: i64 = 1_000_000_000;

/// Agents on the page; the API has all.
const SHOWN: usize = 500;

/// Whether an agent shows signs of life. They come every 15 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Reporting,
    Late,
    Silent,
    Ended,
}

pub(super) fn presence(agent: &Agent, now_ns: i64) -> Presence {
    let silent = now_ns.saturating_sub(agent.last_seen_ns) / SECOND_NS;
    match silent {
        _ if agent.is_ended => Presence::Ended,
        // It has no heartbeat: it speaks when there is an alert.
        ..=86_400 if agent.is_direct => Presence::Reporting,
        ..=60 => Presence::Reporting,
        61..=600 => Presence::Late,
        _ => Presence::Silent,
    }
}

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

/// What an agent says about itself. A member that it does not know, or that is no text, is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Inventory {
    pub(super) version: String,
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) engine: String,
    pub(super) rules: String,
    pub(super) policy: String,
}

impl Inventory {
    pub(super) fn of(agent: &Agent) -> Self {
        // What is no inventory shows nothing; it is the sender's own page that suffers.
        serde_json::from_str(&agent.inventory).unwrap_or_else(|_other| Self::default())
    }
}

/// `GET /fleet`
pub(super) async fn show(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    let agents = shared.blocking(|store| store.agents()).await?;
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
            )) } @else { (table(&agents)) }
        }
        @if agents.len() > SHOWN { p.soft { "The first " (SHOWN) " are shown; " code { "GET /api/v1/agents" } " has all." } }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/fleet", "Fleet", &body),
    ))
}

fn table(agents: &[Agent]) -> Markup {
    let now = now_ns();
    html! {
        div.scroll { table.cards-on-phone {
            thead { tr {
                th { "Host" } th { "State" } th { "Version" } th { "Kernel" } th { "Engine" } th { "Rules" }
                th.num { "Stored" } th.num { "Missing" } th { "Last seen" }
            } }
            tbody { @for agent in agents.iter().take(SHOWN) {
                @let inventory = Inventory::of(agent);
                tr {
                    td.full { span.main { (name(agent)) } span.sub { "class " (plain(&agent.class)) } }
                    td { (state(agent, now)) }
                    td data-label="Version" { (or_dash(&inventory.version)) }
                    td data-label="Kernel" { (or_dash(&inventory.kernel)) span.sub { (plain(&inventory.architecture)) } }
                    td data-label="Engine" { (or_dash(&inventory.engine))
                        @if !inventory.policy.is_empty() { span.sub { "policy " (plain(&inventory.policy)) } } }
                    td data-label="Rules" { span.mono { (or_dash(&short(&inventory.rules))) } }
                    td.num data-label="Stored" { (number(agent.acknowledged)) }
                    td.num data-label="Missing" {
                        @if agent.missing > 0 { span class="badge s-loss" { (number(agent.missing)) } } @else { "0" } }
                    td data-label="Seen" { (ago(agent.last_seen_ns)) }
                }
            } }
        } }
    }
}

/// Returns the beginning of a digest.
fn short(digest: &str) -> String {
    let digest = digest.strip_prefix("sha256:").unwrap_or(digest);
    digest.chars().take(12).collect()
}
