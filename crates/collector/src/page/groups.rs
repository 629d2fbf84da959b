//! Alerts in groups, and what people do about a group.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use store::{Acknowledgement, AlertRow, Comment, Filter, Group, GroupId, Triage};

use super::alert;
use super::form::{self, Change};
use super::query::PageQuery;
use super::session::Visitor;
use super::view::{
    self, Answer, PageError, VIOLATION, ago, badge, empty, number, or_dash, plain, stamp,
};
use super::{html as answer, see_other};
use crate::answer::Refusal;
use crate::grouping;
use crate::server::{Shared, now_ns};

/// Longest comment in characters.
const COMMENT: usize = 4000;

/// Times for which a group can be muted: name, title, hours.
const MUTES: [(&str, &str, i64); 4] = [
    ("1h", "1 hour", 1),
    ("8h", "8 hours", 8),
    ("1d", "1 day", 24),
    ("7d", "7 days", 168),
];

/// Alerts on the page of a group.
const LATEST: u32 = 20;

/// Rows of a page.
const PAGE: usize = 50;

/// `GET /alerts`
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Query(query): Query<PageQuery>,
) -> Answer {
    listed(&shared, &visitor, query, ("/alerts", "Alerts")).await
}

/// `GET /violations`: the alerts of policies.
pub(super) async fn violations(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Query(mut query): Query<PageQuery>,
) -> Answer {
    query.rule = VIOLATION.to_owned();
    listed(&shared, &visitor, query, ("/violations", "Violations")).await
}

async fn listed(
    shared: &Arc<Shared>,
    visitor: &Visitor,
    query: PageQuery,
    (path, name): (&str, &str),
) -> Answer {
    let filter = query.filter()?;
    let each = query.view == "each";
    let (table, cursor) = if each {
        let rows = shared.blocking(move |store| store.alerts(&filter)).await?;
        let last = rows.last().map(|row| (row.time_ns, row.id.0));
        (
            rows_or_nothing(&rows, path),
            last.filter(|_| rows.len() == PAGE),
        )
    } else {
        let groups = shared.blocking(move |store| store.groups(&filter)).await?;
        let last = groups.last().map(|group| (group.last_ns, group.id.0));
        (
            groups_or_nothing(&groups, path),
            last.filter(|_| groups.len() == PAGE),
        )
    };
    let beside = html! { div.tabs {
        a href=(query.link(path, &[("view", "")])) aria-current=[(!each).then_some("true")] { "Grouped" }
        a href=(query.link(path, &[("view", "each")])) aria-current=[each.then_some("true")] { "Each" }
    } };
    let below = match path {
        "/violations" => "What policies refused or would have refused",
        _ if each => "Newest first",
        _ => "By rule, program and object; the latest first",
    };
    let shown = PageQuery {
        rule: if path == "/violations" {
            String::new()
        } else {
            query.rule.clone()
        },
        ..query.clone()
    };
    let body = html! {
        (view::title(name, below, &beside))
        (shown.form(path))
        div.panel.flush { (table) }
        @if let Some((time, id)) = cursor { div.pager {
            @if !query.after.is_empty() { a.button href=(query.link(path, &[])) { "First page" } }
            a.button href=(query.link(path, &[("after", &format!("{time}.{id}"))])) rel="next" { "Next page" }
        } } @else if !query.after.is_empty() { div.pager { a.button href=(query.link(path, &[])) { "First page" } } }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(visitor, path, name, &body),
    ))
}

fn nothing(path: &str) -> Markup {
    match path {
        "/violations" => empty(
            "No violation matches",
            "A policy reports what it refuses. Try one in audit mode first:",
            "tollgate run --policy POLICY.yaml --audit --collector https://HOST:6443 -- CMD",
        ),
        _ => empty(
            "No alert matches",
            "Acknowledged and muted groups are hidden. Make an alert to see one:",
            "tollgate run --collector https://HOST:6443 -- cat /etc/shadow",
        ),
    }
}

fn groups_or_nothing(groups: &[Group], path: &str) -> Markup {
    html! { @if groups.is_empty() { (nothing(path)) } @else {
        div.scroll { table.cards-on-phone {
            thead { tr { th { "Priority" } th { "Rule" } th { "Program" } th.num { "Alerts" } th.num { "Hosts" } th { "Last" } th { "First" } th { "State" } } }
            tbody { @for group in groups {
                tr {
                    td { (badge(group.severity)) }
                    td.full { a.main href={ "/groups/" (group.id.0) } { (plain(&group.rule)) }
                        span.sub.mono { (or_dash(&group.object)) } }
                    td { (or_dash(&group.program)) }
                    td.num data-label="Alerts" { (number(group.count)) }
                    td.num data-label="Hosts" { (number(group.hosts)) }
                    td data-label="Last" { (ago(group.last_ns)) }
                    td data-label="First" { (ago(group.first_ns)) }
                    td { (state(group)) }
                }
            } }
        } }
    } }
}

/// Returns what people have done about a group.
fn state(group: &Group) -> Markup {
    let is_muted = group.muted_until_ns.is_some_and(|until| until > now_ns());
    html! {
        @if group.acknowledged_by.is_some() { span class="badge s-good" { "acknowledged" } " " }
        @if is_muted { span.badge { "muted" } " " }
        @if !group.assignee.is_empty() { span class="badge s-notice" { (plain(&group.assignee)) } }
    }
}

fn rows_or_nothing(rows: &[AlertRow], path: &str) -> Markup {
    html! { @if rows.is_empty() { (nothing(path)) } @else { (rows_table(rows)) } }
}

fn rows_table(rows: &[AlertRow]) -> Markup {
    html! { div.scroll { table.cards-on-phone {
        thead { (row_head()) }
        tbody { @for row in rows { (alert_row(row)) } }
    } } }
}

/// Returns the head of a table of [`alert_row`].
pub(super) fn row_head() -> Markup {
    html! { tr { th { "Priority" } th { "Alert" } th { "Host" } th { "Time" } } }
}

/// Returns an alert as a row.
pub(super) fn alert_row(row: &AlertRow) -> Markup {
    let body = alert::body_of(row);
    html! { tr {
        td { (badge(row.severity)) }
        td.full { a.main href={ "/alerts/" (row.id.0) } { (plain(&row.rule)) }
            span.sub.mono { (plain(&clipped(alert::text(&body, "output")))) } }
        td.host { (or_dash(&row.host)) }
        td { time datetime=(crate::alert::time_text(row.time_ns)) { (stamp(row.time_ns)) } }
    } }
}

fn clipped(text: &str) -> String {
    const LENGTH: usize = 240;
    let mut out: String = text.chars().take(LENGTH).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

/// `GET /groups/{id}`
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Path(id): Path<i64>,
) -> Answer {
    let id = GroupId(id);
    let filter = Filter {
        group: Some(id),
        with_acknowledged: true,
        limit: LATEST,
        ..Filter::default()
    };
    let found = shared.blocking(move |store| {
        let Some(group) = store.groups(&filter)?.into_iter().next() else {
            return Ok(None);
        };
        Ok(Some((group, store.alerts(&filter)?, store.comments(id)?)))
    });
    let (group, alerts, comments) = found
        .await?
        .ok_or_else(|| Refusal::not_found("group; retention may have deleted it"))?;
    let body = html! {
        div.title {
            div { h1 { (badge(group.severity)) " " (plain(&group.rule)) }
                p { (number(group.count)) " alerts on " (number(group.hosts)) " hosts, first "
                    (ago(group.first_ns)) ", last " (ago(group.last_ns)) " " (state(&group)) } }
        }
        div.columns.wide {
            div {
                section.panel { dl.fields {
                    dt { "Program" } dd.mono { (or_dash(&group.program)) }
                    dt { "Object" } dd.mono { (or_dash(&group.object)) }
                } }
                section.panel.flush { h2 { "Latest alerts" } (rows_or_nothing(&alerts, "/alerts")) }
                @if group.count > u64::from(LATEST) { div.pager { a.button href=(all_of(&group)) { "All alerts of this rule" } } }
            }
            div { (triage_panel(&visitor, &group)) (comment_panel(&visitor, &group, &comments)) }
        }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(&visitor, "/alerts", &group.rule, &body),
    ))
}

/// Returns the list of all alerts of the rule and program of a group.
fn all_of(group: &Group) -> String {
    let query = PageQuery {
        rule: group.rule.clone(),
        program: group.program.clone(),
        view: "each".to_owned(),
        ..PageQuery::default()
    };
    query.link("/alerts", &[])
}

fn triage_panel(visitor: &Visitor, group: &Group) -> Markup {
    let action = |verb: &str| format!("/groups/{}/{verb}", group.id.0);
    let muted = group.muted_until_ns.filter(|until| *until > now_ns());
    html! { section.panel { h2 { "Triage" } div.actions {
        @if let Some(actor) = &group.acknowledged_by {
            p { "Acknowledged by " b { (plain(actor)) } @if !group.note.is_empty() { ": " (plain(&group.note)) } }
        }
        @if let Some(until) = muted { p { "Muted until " (stamp(until)) } }
        @if !visitor.is_operator() { p.soft { "Operators acknowledge, assign, comment and mute." } } @else {
            form.stack method="post" action=(action("acknowledge")) {
                (visitor.token())
                @if group.acknowledged_by.is_none() {
                    label { "Note" input name="note" maxlength="160" placeholder="why this is fine"; }
                    button.first type="submit" name="acknowledged" value="true" { "Acknowledge" }
                } @else { button type="submit" name="acknowledged" value="false" { "Take back" } }
            }
            form.row method="post" action=(action("assign")) {
                (visitor.token())
                label { "Assigned to" input name="to" value=(plain(&group.assignee)) maxlength="64" placeholder="nobody"; }
                button type="submit" { "Assign" }
            }
            form.row method="post" action=(action("mute")) {
                (visitor.token())
                label { "Hide for" select name="for" {
                    @for (name, title, _) in MUTES { option value=(name) { (title) } }
                    @if muted.is_some() { option value="" { "show again now" } }
                } }
                button type="submit" { "Mute" }
            }
        }
    } } }
}

fn comment_panel(visitor: &Visitor, group: &Group, comments: &[Comment]) -> Markup {
    html! { section.panel { h2 { "Comments" }
        @if comments.is_empty() { p.soft { "None yet." } } @else {
            ul.comments { @for comment in comments {
                li { p { b { (plain(&comment.actor)) } " " span.soft.small { (ago(comment.time_ns)) } } p { (plain(&comment.text)) } }
            } }
        }
        @if visitor.is_operator() {
            form.stack method="post" action={ "/groups/" (group.id.0) "/comment" } {
                (visitor.token())
                label { "Comment" textarea name="text" rows="3" maxlength=(COMMENT) required {} }
                button type="submit" { "Comment" }
            }
        }
    } }
}

#[derive(Deserialize)]
pub(super) struct AcknowledgeForm {
    token: String,
    #[serde(default)]
    note: String,
    acknowledged: bool,
}

#[derive(Deserialize)]
pub(super) struct AssignForm {
    token: String,
    to: String,
}

#[derive(Deserialize)]
pub(super) struct CommentForm {
    token: String,
    text: String,
}

#[derive(Deserialize)]
pub(super) struct MuteForm {
    token: String,
    r#for: String,
}

form::sealed!(AcknowledgeForm, AssignForm, CommentForm, MuteForm);

fn done(found: bool, id: i64) -> Answer {
    match found {
        true => Ok(see_other(&format!("/groups/{id}"))),
        false => Err(Refusal::not_found("group").into()),
    }
}

/// `POST /groups/{id}/acknowledge`
pub(super) async fn acknowledge(asked: Change<AcknowledgeForm>) -> Answer {
    let how = Acknowledgement {
        actor: asked.visitor.user,
        note: grouping::clipped(&asked.form.note),
        is_set: asked.form.acknowledged,
    };
    let id = asked.id;
    let found = asked
        .shared
        .blocking(move |store| store.acknowledge(GroupId(id), how));
    done(found.await?, id)
}

async fn triage<F>(asked: Change<F>, what: Triage) -> Answer {
    let (id, actor) = (asked.id, asked.visitor.user);
    let found = asked
        .shared
        .blocking(move |store| store.triage(GroupId(id), what, &actor));
    done(found.await?, id)
}

/// `POST /groups/{id}/assign`
pub(super) async fn assign(asked: Change<AssignForm>) -> Answer {
    let to: String = asked.form.to.chars().filter(|c| !c.is_control()).collect();
    let to = grouping::clipped(to.trim());
    triage(asked, Triage::Assign(to)).await
}

/// `POST /groups/{id}/comment`
pub(super) async fn comment(asked: Change<CommentForm>) -> Answer {
    let text: String = asked
        .form
        .text
        .trim()
        .replace('\r', "")
        .chars()
        .take(COMMENT)
        .collect();
    if text.is_empty() {
        let message = "the comment is empty";
        return Err(PageError::new(StatusCode::BAD_REQUEST, message));
    }
    triage(asked, Triage::Comment(text)).await
}

/// `POST /groups/{id}/mute`
pub(super) async fn mute(asked: Change<MuteForm>) -> Answer {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let hours = MUTES.iter().find(|(name, ..)| *name == asked.form.r#for);
    let until = match (hours, &*asked.form.r#for) {
        (Some((_, _, hours)), _) => Some(now_ns().saturating_add(hours * HOUR_NS)),
        (None, "") => None,
        (None, _) => {
            let message = "unknown time to mute";
            return Err(PageError::new(StatusCode::BAD_REQUEST, message));
        }
    };
    triage(asked, Triage::Mute(until)).await
}
