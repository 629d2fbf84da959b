//! The agents: where they run, what they are, and what of them is missing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use store::{Agent, AgentId, Capture, CaptureAsked, CaptureState, NewCapture};

use super::session::Visitor;
use super::view::{self, Answer, PageError, ago, empty, number, or_dash, plain, short};
use super::{form, html as answer, see_other};
use crate::bundles::{Choice, Choices};
use crate::captures;
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

/// What an agent says about itself. A member that it does not name, or of another type, is empty.
#[derive(Debug)]
pub(super) struct Inventory(Value);

impl Inventory {
    pub(super) fn of(agent: &Agent) -> Self {
        // What is no inventory shows nothing; it is the sender's own page that suffers.
        Self(serde_json::from_str(&agent.inventory).unwrap_or(Value::Null))
    }

    /// Returns what the agent said; nothing for what it did not say, which the page does not guess.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// Returns all that it said.
    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.0["counters"][name].as_u64()
    }

    fn allows_captures(&self) -> bool {
        self.0["captures"] == true
    }

    /// Engine, with the number of rules that could not be evaluated.
    fn engine(&self) -> Markup {
        let undecided = self.count("undecided").unwrap_or(0);
        html! {
            (or_dash(self.text("engine")))
            @if undecided > 0 { span.sub { (number(undecided)) " undecided" } }
        }
    }

    /// Beginning of the digest of the rules, with their number.
    fn rules(&self) -> Markup {
        let enabled = self.0["rules_enabled"].as_u64();
        let refused = self.0["rules_refused"].as_u64().unwrap_or(0);
        html! {
            span.mono { (or_dash(&short(self.text("rules")))) }
            @if let Some(enabled) = enabled { span.sub { (number(enabled)) " enabled" } }
            @if refused > 0 { span.sub { (number(refused)) " not in force" } }
        }
    }

    /// Policy, with the extent to which each enforcer enforces it. A policy that the agent has not named is not
    /// shown as none.
    fn policy(&self) -> Markup {
        let policy = &self.0["policy"];
        let name = policy.as_str().or_else(|| policy["name"].as_str());
        let audits = policy["audits"].as_bool() == Some(true);
        let extents = policy["enforcers"].as_object();
        html! {
            @match name {
                Some(name) => (or_dash(name)),
                None if policy.is_object() => "unknown",
                None if policy.is_null() && self.0.get("policy").is_some() => "none",
                None => (or_dash("")),
            }
            @if let Some(digest) = policy["digest"].as_str() { span.sub.mono { (plain(&short(digest))) } }
            @if audits { span.sub { "only reports" } }
            @for (enforcer, extent) in extents.into_iter().flatten().take(ENFORCERS) {
                span.sub { (plain(enforcer)) ": " (plain(extent.as_str().unwrap_or("unknown"))) }
            }
        }
    }

    /// What became of the policies of the bundle. One that is kept confines nobody before the command starts again.
    fn bundled_policies(&self) -> Markup {
        let policies = self.0["bundle"]["policies"].as_array();
        html! {
            @for policy in policies.into_iter().flatten().take(POLICIES) {
                @let (name, state) = (policy["name"].as_str(), policy["state"].as_str());
                @let state = match state { Some("next start") => "in force from the next start", Some(state) => state, None => "unknown" };
                span.sub { "policy " (plain(name.unwrap_or("unknown"))) ": " (plain(state))
                    @if let Some(why) = policy["reason"].as_str() { ", " (plain(&clipped(why))) } }
            }
        }
    }

    /// What watches and confines there: the engine, and the enforcers that enforce some of the policy.
    pub(super) fn layers(&self) -> Markup {
        let extents = self.0["policy"]["enforcers"].as_object();
        let active = extents.into_iter().flatten().take(ENFORCERS);
        let active = active.filter(|(_, extent)| **extent != "not enforced");
        let active: Vec<_> = active.map(|(name, _)| plain(&clipped(name))).collect();
        let audits = self.0["policy"]["audits"] == true;
        html! {
            (or_dash(self.text("engine")))
            @if !active.is_empty() { span.sub { (active.join(", ")) @if audits { " (only report)" } } }
        }
    }

    /// Records that had not been acknowledged when the agent last spoke, with the age of the oldest.
    fn waiting(&self) -> Markup {
        let spool = &self.0["spool"];
        html! {
            @match spool["pending"].as_u64() {
                None => (or_dash("")),
                Some(0) => "0",
                Some(pending) => span class="badge s-warning" { (number(pending)) },
            }
            @if let Some(age) = spool["oldest_seconds"].as_i64() { span.sub { "oldest " (view::span(age)) } }
        }
    }

    /// Events that were dropped, and intervals in which nobody watched.
    fn unseen(&self) -> Markup {
        let (drops, gaps) = (self.count("drops"), self.count("gaps").unwrap_or(0));
        html! {
            @match drops {
                Some(0) => "0",
                Some(drops) => span class="badge s-loss" { (number(drops)) },
                None => (or_dash("")),
            }
            @if gaps > 0 { span.sub { (number(gaps)) " unwatched intervals" } }
        }
    }
}

/// Policies of a bundle on the page for each agent.
const POLICIES: usize = 8;

/// Characters of a reason on the page.
const REASON: usize = 200;

/// Returns the beginning of a text of an agent.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(REASON).collect()
}

/// Enforcers of an agent on the page: more than there are, and fewer than a hostile agent can name.
pub(super) const ENFORCERS: usize = 8;

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

/// `GET /captures/{id}`
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(inventory: &Value) -> String {
        Inventory(inventory.clone()).policy().into_string()
    }

    #[test]
    fn a_policy_that_is_not_named_is_not_shown_as_none() {
        assert_eq!(policy(&json!({"policy": null})), "none");
        assert_eq!(policy(&json!({"policy": {}})), "unknown");
        assert_eq!(policy(&json!({})), "–");
        assert_eq!(policy(&json!({"policy": "p"})), "p");
        let known = policy(&json!({"policy": {
            "name": "<p>", "audits": true, "digest": "sha256:0123456789abcdef",
            "enforcers": {"BPF": "fully enforced", "Caps": 7},
        }}));
        for part in [
            "&lt;p&gt;",
            "0123456789ab<",
            "only reports",
            "BPF: fully enforced",
        ] {
            assert!(known.contains(part), "{part} in {known}");
        }
        let hostile: Value = (0..1000).map(|n| (n.to_string(), json!("x"))).collect();
        let shown = policy(&json!({"policy": {"name": "p", "enforcers": hostile}}));
        assert_eq!(shown.matches(": x").count(), ENFORCERS);
    }

    #[test]
    fn a_policy_that_waits_for_the_next_start_is_not_shown_as_in_force() {
        let policies = json!([
            {"name": "web", "state": "next start", "reason": null},
            {"name": "<db>", "state": "refused", "reason": "z".repeat(1000)},
            {},
        ]);
        let inventory = Inventory(json!({"bundle": {"policies": policies}}));
        let shown = inventory.bundled_policies().into_string();
        for part in [
            "policy web: in force from the next start<",
            "policy &lt;db&gt;: refused, zzz",
            "policy unknown: unknown<",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(shown.matches('z').count(), REASON);
        let hostile = json!({"bundle": {"policies": vec![json!({}); 1000]}});
        let shown = Inventory(hostile).bundled_policies().into_string();
        assert_eq!(shown.matches("policy unknown").count(), POLICIES);
    }

    #[test]
    fn layers_that_enforce_nothing_and_an_unknown_lag_are_not_shown() {
        let of = |inventory| Inventory(inventory);
        let layers = of(
            json!({"engine": "notify", "policy": {"audits": true, "enforcers":
            {"<b>": "fully enforced", "BPF": "not enforced", "Caps": "partially enforced"}}}),
        );
        let layers = layers.layers().into_string();
        assert!(
            layers.contains("notify") && layers.contains("&lt;b&gt;, Caps (only report)"),
            "{layers}"
        );
        assert!(!layers.contains("BPF"), "{layers}");
        let waiting = |inventory| of(inventory).waiting().into_string();
        assert_eq!(waiting(json!({})), "–");
        assert_eq!(waiting(json!({"spool": {"pending": 0}})), "0");
        let some = waiting(json!({"spool": {"pending": 12, "oldest_seconds": 7300}}));
        assert!(
            some.contains(">12<") && some.contains("oldest 2 h"),
            "{some}"
        );
    }

    #[test]
    fn an_agent_that_does_not_count_drops_is_not_shown_with_zero() {
        let unseen = |inventory: Value| Inventory(inventory).unseen().into_string();
        assert_eq!(unseen(json!({})), "–");
        assert_eq!(unseen(json!({"counters": {"drops": 0}})), "0");
        let some = unseen(json!({"counters": {"drops": 1234, "gaps": 2}}));
        assert!(
            some.contains("badge s-loss") && some.contains("2 unwatched intervals"),
            "{some}"
        );
    }
}
