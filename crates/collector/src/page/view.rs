//! The frame of all pages, and the small parts that they share.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use store::{Severity, StoreError};

use super::Visitor;
pub(crate) use super::text::{VIOLATION, empty, number, or_dash, plain, span, title};
use crate::alert::time_text;
use crate::answer::Refusal;
use crate::server::now_ns;

const SECOND_NS: i64 = 1_000_000_000;

/// A refusal, shown as a page.
#[derive(Debug)]
pub(crate) struct PageError(pub(crate) Refusal);

impl From<Refusal> for PageError {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        Self(error.into())
    }
}

impl PageError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self(Refusal::new(status, message))
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Refusal { status, message } = &self.0;
        let body = html! {
            div.panel {
                h1 { (status.canonical_reason().unwrap_or("Error")) }
                p.soft { (plain(message)) }
                a.button href="/" { "To the overview" }
            }
        };
        let mut response = super::html(*status, door("Error", &body));
        // A browser asks nobody for the token of a program, so that the other headers are not for it.
        if *status == StatusCode::SERVICE_UNAVAILABLE {
            self.0.add_headers(&mut response);
        }
        response
    }
}

/// An answer of the page.
pub(crate) type Answer = Result<Response, PageError>;

const LINKS: [(&str, &str); 8] = [
    ("/", "Overview"),
    ("/alerts", "Alerts"),
    ("/live", "Live"),
    ("/violations", "Violations"),
    ("/policies", "Policies"),
    ("/rules", "Rules"),
    ("/fleet", "Fleet"),
    ("/rollouts", "Roll-outs"),
];

fn mark() -> Markup {
    PreEscaped(
        "<svg viewBox=\"0 0 24 24\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" \
         stroke-linecap=\"round\" stroke-linejoin=\"round\" aria-hidden=\"true\">\
         <path d=\"M4 21V8M4 12h16M4 8l16-3v7M20 12v9M8 12v4M12 12v4M16 12v4\"/></svg>"
            .to_owned(),
    )
}

fn head(title: &str, more: &Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (plain(title)) " · tollgate" }
            link rel="stylesheet" href="/static/style.css";
            link rel="icon" href="/static/icon.svg" type="image/svg+xml";
            (more)
        }
    }
}

/// Returns the page of a visitor. `at` is the path of the entry in the navigation.
pub(crate) fn page(visitor: &Visitor, at: &str, title: &str, body: &Markup) -> Markup {
    page_with(visitor, at, title, (&html! {}, body))
}

/// The same with more in the head.
pub(crate) fn page_with(
    visitor: &Visitor,
    at: &str,
    title: &str,
    (more, body): (&Markup, &Markup),
) -> Markup {
    let users = visitor.is_admin().then_some(("/users", "Users"));
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, more))
            body {
                a.skip href="#main" { "Skip to the content" }
                header.bar { div {
                    a.brand href="/" { (mark()) "tollgate" }
                    nav aria-label="Pages" {
                        @for (path, name) in LINKS.into_iter().chain(users) {
                            a href=(path) aria-current=[(path == at).then_some("page")] { (name) }
                        }
                    }
                    div.who {
                        b { (plain(&visitor.user)) }
                        form method="post" action="/logout" {
                            (visitor.token())
                            button.link type="submit" { "Log out" }
                        }
                    }
                } }
                main #main { (body) }
            }
        }
    }
}

/// Returns a page for those who are not logged in.
pub(crate) fn door(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, &html! {}))
            body { main.door { div.brand { (mark()) "tollgate" } (body) } }
        }
    }
}

/// Returns the class of colours of a severity: five are told apart.
pub(crate) fn tone(severity: Severity) -> &'static str {
    match severity.number() {
        0..=2 => "critical",
        3 => "error",
        4 => "warning",
        5 | 6 => "notice",
        _ => "debug",
    }
}

pub(crate) fn badge(severity: Severity) -> Markup {
    html! { span class={ "badge s-" (tone(severity)) } { (severity.name()) } }
}

/// Returns how long ago a time is, with the time itself for machines and on hovering.
pub(crate) fn ago(time_ns: i64) -> Markup {
    let exact = stamp(time_ns);
    html! { time datetime=(time_text(time_ns)) title=(exact) { (distance(now_ns() - time_ns)) } }
}

fn distance(ns: i64) -> String {
    let span = span(ns.abs() / SECOND_NS);
    match ns < 0 {
        true => format!("in {span}"),
        false => format!("{span} ago"),
    }
}

/// Returns a time to the second, in UTC.
pub(crate) fn stamp(time_ns: i64) -> String {
    let text = time_text(time_ns.div_euclid(SECOND_NS).saturating_mul(SECOND_NS));
    text.replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_spelled_out_and_escaped() {
        let text = plain("a\u{202e}<b>\u{1b}[2J\u{0}\u{200b}é\"");
        assert_eq!(text, "a\\u202e<b>\\u001b[2J\\u0000\\u200bé\"");
        let shown = html! { p title=(text) { (text) } }.into_string();
        assert!(
            !shown.contains("<b>") && shown.contains("&lt;b&gt;"),
            "{shown}"
        );
        assert!(!shown.contains("é\"\">"), "{shown}");
    }

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(12), "12");
        assert_eq!(distance(90 * SECOND_NS), "1 min ago");
        assert_eq!(distance(-7200 * SECOND_NS), "in 2 h");
        assert_eq!(stamp(1_700_000_000_123_456_789), "2023-11-14 22:13:20 UTC");
    }
}
