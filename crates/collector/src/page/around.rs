//! The capture around an alert, on the alert's page.

use maud::{Markup, html};
use outputs::CaptureOnAlert;
use serde_json::Value;
use store::{Agent, AlertDetail, Capture, CaptureState};

use super::session::Visitor;
use super::view::{number, plain};
use crate::captures;

/// Draws the section.
pub(super) fn draw(
    visitor: &Visitor,
    alert: &AlertDetail,
    agent: Option<&Agent>,
    all: &[Capture],
) -> Markup {
    let found = captures::around(alert, all);
    html! { section.panel { h2 { "The capture around it" }
        @match found {
            Some(capture) => (state(visitor, alert, capture)),
            None => (why_none(alert, agent)),
        }
    } }
}

fn state(visitor: &Visitor, alert: &AlertDetail, capture: &Capture) -> Markup {
    let id = capture.id.0;
    html! {
        p {
            @match capture.state {
                CaptureState::Complete if visitor.is_operator() => a href={ "/captures/" (id) } { "Capture " (id) },
                _ => { "Capture " (id) }
            }
            ": " (capture.state.name())
            @if !capture.reason.is_empty() { ", " (plain(&capture.reason)) }
            @if capture.state == CaptureState::Complete {
                ", " (number(capture.events)) " events, " (number(capture.bytes)) " bytes"
                @if capture.lost > 0 { ", " (number(capture.lost)) " lost" }
            }
        }
        @if let Some(around) = &capture.alert { p.soft.small {
            (captures::spans(around))
            @if around.rule != alert.row.rule || around.time_ns != alert.row.time_ns {
                ", recorded around an alert of " (plain(&around.rule)) }
        } }
        @if capture.state == CaptureState::Complete && !visitor.is_operator() {
            p.soft.small { "It has arguments of commands and names of files: operators can look at it." } }
    }
}

/// Says why there is none, as far as the agent tells.
fn why_none(alert: &AlertDetail, agent: Option<&Agent>) -> Markup {
    let direct = "None: its sender is no agent of tollgate, and records nothing.";
    let Some(agent) = agent.filter(|agent| !agent.is_direct) else {
        return html! { p.soft { (direct) } };
    };
    // What is no inventory says nothing.
    let inventory: Value = serde_json::from_str(&agent.inventory).unwrap_or(Value::Null);
    if inventory["captures"] != true {
        return html! { p.soft { "None: the agent allows no captures (" code { "--allow-captures" } ")." } };
    }
    let told = &inventory["captures_on_alert"];
    let condition = CaptureOnAlert::of_json(&told["condition"], &CaptureOnAlert::default());
    // One that tells more than an agent does tells nothing.
    let Some(condition) = condition.ok().flatten() else {
        return html! { p.soft { "None: the agent records around no alerts. "
        code { "tollgate serve --capture-on" } " names some for all agents that allow captures." } };
    };
    let left_out = |cause: &str| told["left_out"][cause].as_u64().unwrap_or(0);
    html! {
        @if condition.fits_named(&alert.row.rule, alert.row.severity.name()) {
            p { "None has arrived." }
            p.soft.small {
                "Since its start the agent has begun " (number(told["begun"].as_u64().unwrap_or(0))) " and left out "
                (number(left_out("busy"))) " while another one was recorded or sent, "
                (number(left_out("rate"))) " beyond its number in an hour, and "
                (number(left_out("refused"))) " that the collector did not take. The latest ten of an agent are kept."
            }
        } @else {
            p.soft { "None: the agent records around alerts of " (plain(&condition.to_string())) "." }
        }
    }
}
