//! Bundles of rules, and which agents have which.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use labels::Selector;
use maud::{Markup, html};
use serde::Deserialize;
use store::{Bundle, Gate, Rollout, Target};

use super::session::Visitor;
use super::view::{self, Answer, PageError, ago, empty, number, plain};
use super::{form, html as answer, see_other};
use crate::server::Shared;

/// Bundles on the page; the API has all.
const SHOWN: usize = 50;

/// `GET /rollouts`
pub(super) async fn show(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    let asked = shared.blocking(|store| Ok((store.bundles()?, store.rollouts()?)));
    let (bundles, rollouts) = asked.await?;
    let below = "Signed rules, and which agents have them";
    let body = html! {
        (view::title("Roll-outs", below, &html! {}))
        @if bundles.is_empty() { div.panel { (empty(
            "No bundle of rules",
            "Sign one where its key is, then assign it here; agents pin the public key:",
            "tollgate serve bundle create --version 1 --output web.bundle RULES.yaml\n\
             tollgate serve bundle sign web.bundle --key web.key\n\
             tollgate serve bundle assign web.bundle --agent-class web --percent 10",
        )) } } @else {
            div.panel.flush { (rollout_table(&visitor, &rollouts)) }
            section.panel.flush { h2 { "Bundles" } (bundle_table(&bundles)) }
        }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/rollouts", "Roll-outs", &body),
    ))
}

fn rollout_table(visitor: &Visitor, rollouts: &[Rollout]) -> Markup {
    html! { div.scroll { table.cards-on-phone {
        thead { tr { th { "Class" } th { "Bundle" } th.num { "Part" } th.num { "In force" } th.num { "Refused" } th { "State" } th { "Since" } th {} } }
        tbody { @for rollout in rollouts {
            @let health = &rollout.health;
            @let selector = rollout.target.selector.to_string();
            tr {
                td.full {
                    b { (plain(&rollout.target.class)) }
                    @if rollout.target.selector.tests() > 0 { span.sub.mono { (plain(&selector)) } }
                    @if rollout.priority != 0 { span.sub { "priority " (rollout.priority) } }
                    span.sub { (gate(&rollout.gate)) }
                }
                td data-label="Bundle" { (name(&rollout.bundle)) }
                td.num data-label="Part" { (rollout.percent) " %" }
                td.num data-label="In force" { (number(health.in_force)) " / " (number(health.agents)) }
                td.num data-label="Refused" { (number(health.refused)) }
                td data-label="State" { @match &rollout.halted {
                    Some(why) => { span class="badge s-loss" { "halted" } span.sub { (plain(why)) } }
                    None => { span class="badge s-good" { "open" } }
                } }
                td data-label="Since" { (ago(rollout.started_ns)) " by " (plain(&rollout.actor)) }
                td { @if let Some(previous) = rollout.previous.as_ref().filter(|_| visitor.is_operator()) {
                    form method="post" action="/rollouts/back" {
                        (visitor.token())
                        input type="hidden" name="class" value=(plain(&rollout.target.class));
                        input type="hidden" name="selector" value=(plain(&selector));
                        input type="hidden" name="bundle" value=(rollout.bundle.id.0);
                        button type="submit" { "Roll back to " (previous.version) }
                    }
                } }
            }
        } }
    } } }
}

fn gate(gate: &Gate) -> String {
    let limits = [
        ("refusals", gate.failures),
        ("losses of an agent", gate.losses),
        ("alerts of an agent in a minute", gate.alerts),
    ];
    let limits: Vec<_> = limits
        .iter()
        .filter_map(|(name, limit)| Some(format!("{} {name}", (*limit)?)))
        .collect();
    match limits.is_empty() {
        true => "no gate".to_owned(),
        false => format!("halts beyond {}", limits.join(", ")),
    }
}

fn name(bundle: &Bundle) -> Markup {
    let digest: String = bundle.digest.chars().take(12).collect();
    html! { "version " (bundle.version) span.sub.mono { (plain(&digest)) } }
}

fn bundle_table(bundles: &[Bundle]) -> Markup {
    html! { div.scroll { table.cards-on-phone {
        thead { tr { th { "Bundle" } th { "Key" } th { "Added" } } }
        tbody { @for bundle in bundles.iter().take(SHOWN) {
            tr {
                td.full { (name(bundle)) }
                td.mono data-label="Key" { (plain(&bundle.key)) }
                td data-label="Added" { (ago(bundle.created_ns)) " by " (plain(&bundle.created_by)) }
            }
        } }
    } } }
}

#[derive(Deserialize)]
pub(super) struct Back {
    token: String,
    class: String,
    selector: String,
    bundle: i64,
}

/// `POST /rollouts/back`
pub(super) async fn back(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let form: Back = form::read(&headers, body).await?;
    visitor.sent(&form.token)?;
    visitor.may_change()?;
    let actor = visitor.user.clone();
    let selector = Selector::parse(&form.selector)
        .map_err(|error| PageError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let target = Target {
        class: form.class,
        selector,
    };
    let bundle = form.bundle;
    let rolled_back = shared.blocking(move |store| {
        let rollouts = store.rollouts()?;
        // A second click, or a page that is out of date, must not roll forward again.
        let is_shown = |it: &Rollout| it.target == target && it.bundle.id.0 == bundle;
        Ok(rollouts.iter().any(is_shown) && store.roll_back(&target, &actor)?)
    });
    match rolled_back.await? {
        true => Ok(see_other("/rollouts")),
        false => Err(PageError::new(
            StatusCode::CONFLICT,
            "the roll-out has changed since, or has no bundle before",
        )),
    }
}
