//! What is in a capture: the events that a condition selects, and the processes.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use scap::browse::{BrowseQuery, Browsed, BrowsedProcess, FilterError};
use serde::Deserialize;
use store::{Capture, CaptureId, CaptureState, CaptureUse};

use super::html as answer;
use super::session::Visitor;
use super::text::address;
use super::view::{self, Answer, ago, number, or_dash, plain, stamp};
use crate::answer::Refusal;
use crate::captured::CapturedBytes;
use crate::captures;
use crate::server::Shared;

/// Events on a page.
const EVENTS: usize = 100;

/// Processes on a page.
const PROCESSES: usize = 300;

/// Events that are looked at for one page: more than an agent's capture of 16 MiB has.
const MAX_EVENTS: u64 = 500_000;

/// Time for one page.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Generations that are drawn apart.
const DEPTH: usize = 24;

/// Longest condition in bytes.
const MAX_FILTER: usize = 4096;

/// Characters of the arguments of a call, and of a command, on the page; the file has all.
const TEXT: usize = 300;

/// Looks into the capture that the source has. Its time is bounded.
pub type BrowseCapture =
    Arc<dyn Fn(&mut dyn Read, BrowseQuery<'_>) -> Result<Browsed, FilterError> + Send + Sync>;

/// What someone wants to see.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    filter: String,
    after: u64,
}

/// `GET /captures/{id}`
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Path(id): Path<i64>,
    Query(asked): Query<Asked>,
) -> Answer {
    visitor.may_change()?;
    let captures = shared.blocking(|store| store.captures()).await?;
    let capture = captures.into_iter().find(|capture| capture.id.0 == id);
    let capture = capture.ok_or_else(|| Refusal::not_found("capture"))?;
    let (status, found) = match &shared.browse {
        Some(browse) if capture.state == CaptureState::Complete => {
            let browsed = browsed(&shared, &visitor, &capture, &asked, Arc::clone(browse));
            match browsed.await? {
                Ok(view) => (StatusCode::OK, draw(&capture, &asked, &view)),
                Err(problem) => (StatusCode::BAD_REQUEST, mistake(&asked.filter, &problem)),
            }
        }
        _ => (StatusCode::OK, html! {}),
    };
    let body = page(&capture, &asked, &found);
    let title = format!("Capture {id}");
    Ok(answer(
        status,
        view::page(&visitor, "/fleet", &title, &body),
    ))
}

/// Looks into a capture on a thread that may block, in turns by its size. It is read while it is evaluated, part by part.
async fn browsed(
    shared: &Arc<Shared>,
    visitor: &Visitor,
    capture: &Capture,
    asked: &Asked,
    browse: BrowseCapture,
) -> Result<Result<Browsed, FilterError>, Refusal> {
    let filter = asked.filter.trim().to_owned();
    if filter.len() > MAX_FILTER {
        return Ok(Err(FilterError {
            message: format!("the condition has more than {MAX_FILTER} bytes"),
            at: None,
            help: None,
        }));
    }
    let turns = shared.browser_turns(capture.bytes).await?;
    let (id, actor) = (capture.id, visitor.user.clone());
    let opened = shared.blocking(move |store| store.open_capture(id, &actor, CaptureUse::Browse));
    let opened = opened.await?.ok_or_else(|| Refusal::not_found("capture"))?;
    let (store, after) = (Arc::clone(&shared.store), asked.after);
    shared
        .working(move || {
            let _turns = turns;
            let mut bytes = CapturedBytes::new(store, id, opened);
            let query = BrowseQuery {
                filter: &filter,
                after,
                events: EVENTS,
                processes: PROCESSES,
                scanned: MAX_EVENTS,
                time: MAX_TIME,
            };
            browse(&mut bytes, query)
        })
        .await
}

/// Returns the address of the file of a capture.
pub(super) fn file(id: CaptureId) -> String {
    format!("/captures/{}/file", id.0)
}

fn page(capture: &Capture, asked: &Asked, found: &Markup) -> Markup {
    let path = format!("/captures/{}", capture.id.0);
    let is_complete = capture.state == CaptureState::Complete;
    html! {
        div.title {
            div { h1 { "Capture " (capture.id.0) }
                p { (summary(capture)) } }
            @if is_complete { div.row { a.button href=(file(capture.id)) { "Download" } } }
        }
        @if is_complete {
            form.filter method="get" action=(path) {
                label.grow { "Condition, as in rules"
                    input.mono type="text" name="filter" value=(plain(&asked.filter)) maxlength=(MAX_FILTER) spellcheck="false"
                        autocomplete="off" placeholder="evt.type = openat and fd.name startswith /etc"; }
                button.first type="submit" { "Filter" }
                @if !asked.filter.is_empty() { a.button href=(path) { "All events" } }
            }
        }
        (found)
    }
}

/// Says what a capture is.
fn summary(capture: &Capture) -> Markup {
    html! {
        @match &capture.alert {
            Some(alert) => {
                "around an alert of "
                a href=(address("/alerts", &[("rule", &alert.rule), ("range", "all")])) { (plain(&alert.rule)) }
                " at " (stamp(alert.time_ns)) ", " (captures::spans(alert))
            }
            None => { (capture.seconds) " s, asked for by " (plain(&capture.actor)) " " (ago(capture.requested_ns)) }
        }
        "; agent " (capture.agent.0) ", " (capture.state.name())
        @if !capture.reason.is_empty() { ", " (plain(&capture.reason)) }
        ", " (number(capture.events)) " events"
        @if capture.lost > 0 { ", " (number(capture.lost)) " lost" }
        ", " (number(capture.bytes)) " bytes"
    }
}

/// Shows where a condition is wrong.
fn mistake(filter: &str, problem: &FilterError) -> Markup {
    let filter = filter.trim();
    html! {
        div.note.bad role="alert" {
            "The condition cannot be used"
            @if let Some(at) = problem.at { ", character " (at + 1) }
            ": " (plain(&problem.message))
            @if let Some(help) = &problem.help { " (" (plain(help)) ")" }
        }
        @if let Some(at) = problem.at {
            // One character for each, so that the mark stands below its place.
            pre { (visible(filter)) "\n" (" ".repeat(at)) "^" }
        }
    }
}

/// Returns text with one visible character for each that it has.
fn visible(text: &str) -> String {
    let of = |c: char| match plain(c.encode_utf8(&mut [0; 4])) {
        same if same.chars().count() == 1 => same,
        _ => "\u{fffd}".to_owned(),
    };
    text.chars().map(of).collect()
}

fn draw(capture: &Capture, asked: &Asked, view: &Browsed) -> Markup {
    html! {
        @if let Some(stopped) = &view.stopped { div.note.lost role="note" { (plain(stopped)) } }
        div.panel.flush {
            @if view.events.is_empty() {
                (view::empty("No event", "The condition selects none of the events that were looked at.", ""))
            } @else { (table(view)) }
        }
        (pages(capture, asked, view))
        section.panel { h2 { "Processes" }
            @if view.processes.is_empty() { p.soft { "No process has an event." } }
            (tree(&view.processes))
            @if view.has_more_processes { p.soft.small { "The first " (PROCESSES) " are shown." } }
        }
    }
}

fn table(view: &Browsed) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th.num { "Number" } th { "Time" } th { "Process" } th { "Call" } th { "Arguments" } } }
            tbody { @for event in &view.events { tr {
                td.num { (event.number) }
                td.mono { (plain(&event.time)) }
                td { (or_dash(&clipped(&event.process))) " " span.soft.small { (plain(&event.thread)) } }
                td.mono { (plain(&event.call)) }
                td.mono { (plain(&clipped(&event.arguments))) }
            } } }
        } }
    }
}

fn pages(capture: &Capture, asked: &Asked, view: &Browsed) -> Markup {
    let path = format!("/captures/{}", capture.id.0);
    let filter = &*asked.filter;
    let last = view.events.last().map(|event| event.number.to_string());
    html! { p.row {
        span.soft.small { (view.events.len()) " shown, " (number(view.scanned)) " looked at" }
        @if asked.after > 0 { a.button href=(address(&path, &[("filter", filter)])) { "First" } }
        @if let (true, Some(last)) = (view.has_more, &last) {
            a.button href=(address(&path, &[("filter", filter), ("after", last)])) { "Next" }
        }
    } }
}

/// Draws processes below their parents.
fn tree(processes: &[BrowsedProcess]) -> Markup {
    let mut children = vec![Vec::new(); processes.len()];
    let mut oldest = Vec::new();
    for (at, process) in processes.iter().enumerate() {
        match process.parent.and_then(|parent| children.get_mut(parent)) {
            Some(siblings) => siblings.push(at),
            None => oldest.push(at),
        }
    }
    html! { @if !oldest.is_empty() { ul.tree { (branches(processes, &children, &oldest, 0)) } } }
}

fn branches(
    processes: &[BrowsedProcess],
    children: &[Vec<usize>],
    which: &[usize],
    depth: usize,
) -> Markup {
    html! { @for at in which { @if let (Some(process), Some(below)) = (processes.get(*at), children.get(*at)) {
        li {
            div { span.here { (or_dash(&process.name)) } " " span.soft.small { (process.pid) }
                @if !process.command.is_empty() && process.command != process.name {
                    br; code.soft { (plain(&clipped(&process.command))) } } }
            @if depth < DEPTH && !below.is_empty() { ul { (branches(processes, children, below, depth + 1)) } }
        }
        // Deeper ones stand beside one another.
        @if depth >= DEPTH { (branches_below(processes, children, below)) }
    } } }
}

/// Draws descendants beside one another, in their order.
fn branches_below(
    processes: &[BrowsedProcess],
    children: &[Vec<usize>],
    which: &[usize],
) -> Markup {
    let mut waiting: Vec<usize> = which.iter().rev().copied().collect();
    let mut lines = Vec::new();
    while let Some(at) = waiting.pop() {
        if let (Some(process), Some(below)) = (processes.get(at), children.get(at)) {
            waiting.extend(below.iter().rev());
            lines.push(process);
        }
    }
    html! { @for process in lines {
        li { div { span.here { (or_dash(&process.name)) } " " span.soft.small { (process.pid) } } }
    } }
}

fn clipped(text: &str) -> String {
    let mut out: String = text.chars().take(TEXT).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_stand_below_their_parents_however_deep_and_hostile() {
        let of = |pid: i32, parent| BrowsedProcess {
            pid,
            parent,
            name: format!("<b>{pid}\u{1b}[2J"),
            command: String::new(),
        };
        let mut processes = vec![of(0, None)];
        processes.extend((1..200).map(|at| of(at, usize::try_from(at - 1).ok())));
        let drawn = tree(&processes).into_string();
        for pid in 0..200 {
            assert!(drawn.contains(&format!("&lt;b&gt;{pid}")), "{pid}");
        }
        assert!(!drawn.contains("<b>") && !drawn.contains('\u{1b}'));
        assert_eq!(drawn.matches("<ul").count(), drawn.matches("</ul").count());
        assert!(drawn.matches("<ul").count() <= DEPTH + 1);
    }

    #[test]
    fn a_mistake_is_marked_below_its_character() {
        let problem = FilterError {
            message: "unknown <field>".to_owned(),
            at: Some(4),
            help: None,
        };
        let shown = mistake("é = <x\u{202e}", &problem).into_string();
        assert!(
            shown.contains("character 5: unknown &lt;field&gt;"),
            "{shown}"
        );
        assert!(shown.contains("é = &lt;x\u{fffd}\n    ^"), "{shown}");
    }
}
