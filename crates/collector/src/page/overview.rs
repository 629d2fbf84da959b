//! The first page.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use store::{Agent, LossKind, Overview};

use super::chart::{self, Axis};
use super::fleet;
use super::html as answer;
use super::inventory::{Inventory, Presence, presence};
use super::query::{PageQuery, RANGES};
use super::session::Visitor;
use super::view::{self, Answer, ago, empty, number, or_dash, plain};
use crate::server::{Shared, now_ns};

/// Hosts on the page.
const HOSTS: usize = 8;

/// `GET /`
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Query(query): Query<PageQuery>,
) -> Answer {
    let range = RANGES[..3].iter().find(|(name, ..)| *name == query.range);
    let (name, title, hours) = *range.unwrap_or(&RANGES[0]);
    let axis = Axis::until(now_ns(), hours);
    let (from, to) = axis.interval_ns();
    let (overview, agents) = shared
        .blocking(move |store| Ok((store.overview(from, to)?, store.agents()?)))
        .await?;
    let beside = html! {
        div.tabs { @for (known, title, _) in &RANGES[..3] {
            a href={ "/?range=" (known) } aria-current=[(*known == name).then_some("true")] { (title) }
        } }
    };
    let below = format!("The last {title}, times in UTC");
    let body = html! {
        (view::title("Overview", &below, &beside))
        @if agents.is_empty() { (first_steps()) } @else {
            (cards(&overview, &agents, name))
            section.panel { h2 { "Alerts over time" } (chart::draw(&overview, axis)) }
            div.columns {
                section.panel { h2 { "Top rules" } (top(&overview.rules, "rule", name)) }
                section.panel { h2 { "Top hosts" } (top(&overview.hosts, "host", name)) }
            }
            div.columns {
                section.panel.flush { h2 { "Hosts" } (hosts(&agents)) }
                section.panel.flush { h2 { "Latest losses" } (losses(&overview)) }
            }
        }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/", "Overview", &body),
    ))
}

fn first_steps() -> Markup {
    html! { div.panel { (empty(
        "No agent has reported yet",
        "Create a token, then start an agent with it:",
        "tollgate serve token create --agent-class default > token\n\
         TOLLGATE_TOKEN_FILE=token tollgate watch --collector https://HOST:6443",
    )) } }
}

fn cards(overview: &Overview, agents: &[Agent], range: &str) -> Markup {
    let total: u64 = overview.alerts.iter().map(|row| row.count).sum();
    let severe = overview
        .alerts
        .iter()
        .filter(|row| row.severity.number() <= 2);
    let severe: u64 = severe.map(|row| row.count).sum();
    let lost = |unwatched: bool| -> u64 {
        let rows = overview.losses_by_hour.iter();
        rows.filter(|(_, kind, _)| (*kind == LossKind::Unwatched) == unwatched)
            .map(|(.., count)| count)
            .sum()
    };
    let (dropped, unwatched) = (lost(false), lost(true));
    let present = agents.iter().filter(|agent| !agent.is_ended);
    let known = present.clone().count();
    let here = present.filter(|agent| presence(agent, now_ns()) == Presence::Reporting);
    html! {
        div.cards {
            a.card href={ "/alerts?range=" (range) "&hidden=1" } { span { "Alerts" } b { (number(total)) } }
            a.card.bad[severe > 0] href={ "/alerts?range=" (range) "&severity=Critical&hidden=1" } {
                span { "Critical and above" } b { (number(severe)) } }
            a.card href="/fleet" { span { "Senders reporting" } b { (here.count()) " / " (known) } }
            div.card.lost[dropped > 0] { span { "Dropped" } b { (number(dropped)) } }
            div.card.lost[unwatched > 0] { span { "Unwatched calls" } b { (number(unwatched)) } }
        }
    }
}

fn top(rows: &[(String, u64)], member: &str, range: &str) -> Markup {
    let most = rows
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    html! {
        @if rows.is_empty() { p.soft { "No alerts in this time." } }
        ul.top { @for (name, count) in rows {
            @let width = (u128::from(*count) * 1000 / u128::from(most)).max(8);
            li {
                a href=(link(member, name, range)) title=(plain(name)) { (or_dash(name)) }
                span.num { (number(*count)) }
                svg viewBox="0 0 1000 5" preserveAspectRatio="none" aria-hidden="true" {
                    rect.f-brand width=(width) height="5" {} }
            }
        } }
    }
}

fn link(member: &str, value: &str, range: &str) -> String {
    let query = PageQuery {
        range: range.to_owned(),
        hidden: "1".to_owned(),
        ..PageQuery::default()
    };
    query.link("/alerts", &[(member, value)])
}

fn hosts(agents: &[Agent]) -> Markup {
    html! {
        div.scroll { table.cards-on-phone {
            thead { tr { th { "Host" } th { "State" } th { "Layers" } th { "Seen" } } }
            tbody { @for agent in agents.iter().filter(|agent| !agent.is_ended).take(HOSTS) {
                @let inventory = Inventory::of(agent);
                tr {
                    td.full { a.main href=(link("host", &agent.host, "")) { (fleet::name(agent)) } }
                    td { (fleet::state(agent, now_ns())) }
                    td data-label="Layers" { (inventory.layers()) }
                    td data-label="Seen" { (ago(agent.last_seen_ns)) }
                }
            } }
        } }
    }
}

fn losses(overview: &Overview) -> Markup {
    html! {
        @if overview.losses.is_empty() {
            (empty("Nothing was lost", "No drops and no unwatched intervals in this time.", ""))
        } @else {
            div.scroll { table.cards-on-phone {
                thead { tr { th { "When" } th { "Host" } th { "What" } th.num { "Count" } } }
                tbody { @for row in &overview.losses {
                    tr {
                        td { (ago(row.loss.time_ns)) }
                        td { (or_dash(&row.host)) }
                        td.full { span class="badge s-loss" { (row.loss.kind.name().replace('_', " ")) }
                            span.sub { (plain(&row.loss.detail)) } }
                        td.num { (number(row.loss.count)) }
                    }
                } }
            } }
        }
    }
}
