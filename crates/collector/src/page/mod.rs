//! The page: what people see of the fleet, as HTML that the server writes.
//!
//! Text of senders is hostile. It is escaped by `maud` wherever it is shown, and characters that nobody sees or
//! that change the direction of writing are spelled out by [`view::plain`]. The policy of each answer allows no
//! script and no style but the files that this server serves.

mod account;
mod alert;
mod around;
mod browse;
mod chart;
mod clauses;
mod door;
mod fleet;
mod form;
mod groups;
mod inventory;
mod live;
mod oidc;
mod overview;
mod password;
mod policies;
mod query;
mod rollouts;
mod rules;
mod session;
mod text;
mod throttle;
mod tree;
mod turns;
mod view;

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::Markup;

use crate::oidc::CALLBACK;
use crate::routes::Routes;
use crate::server::Shared;

pub use account::{AccountError, add_user, first_link, set_password};
pub use alert::{Exception, ProposeException};
pub use browse::BrowseCapture;
pub use clauses::{AlertToExplain, ClauseValue, ExplainAlert, MatchedClause, MatchedRule};
pub(crate) use door::Door;
pub(crate) use live::Tails;
pub(crate) use oidc::OidcDoor;
pub(crate) use session::Visitor;

/// What every answer of the page says about itself.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// A file that is served to everybody.
type Asset = (&'static str, &'static str);

const STYLE: Asset = ("text/css; charset=utf-8", include_str!("style.css"));
const SCRIPT: Asset = ("text/javascript; charset=utf-8", include_str!("live.js"));
const ICON: Asset = ("image/svg+xml", include_str!("icon.svg"));

/// Returns the routes of the page; `/` is [`overview::show`], beside what senders post there.
pub(crate) fn routes() -> Routes<Arc<Shared>> {
    Routes::new()
        .route("/login", get(door::login).post(door::log_in))
        .route("/logout", post(door::log_out))
        .route("/oidc/login", get(oidc::begin))
        .route(CALLBACK, get(oidc::come_back))
        .route("/oidc/logout", get(oidc::leave))
        .route("/setup/{secret}", get(door::setup).post(door::set_up))
        .route("/alerts", get(groups::list))
        .route("/alerts/{id}", get(alert::show))
        .route("/alerts/{id}/exception", post(alert::propose))
        .route("/groups/{id}", get(groups::show))
        .route("/groups/{id}/acknowledge", post(groups::acknowledge))
        .route("/groups/{id}/assign", post(groups::assign))
        .route("/groups/{id}/comment", post(groups::comment))
        .route("/groups/{id}/mute", post(groups::mute))
        .route("/violations", get(groups::violations))
        .route("/live", get(live::show))
        .route("/live/events", get(live::events))
        .route("/fleet", get(fleet::show))
        .route("/policies", get(fleet::policies))
        .route("/rules", get(fleet::rules))
        .route("/captures", post(fleet::capture))
        .route("/captures/{id}", get(browse::show))
        .route("/captures/{id}/file", get(fleet::download))
        .route("/rollouts", get(rollouts::show))
        .route("/rollouts/back", post(rollouts::back))
        .route("/users", get(account::users))
        .route("/users/remove", post(account::remove))
        .route("/users/invite", post(account::invite))
        .route("/static/style.css", get(|| async { asset(STYLE) }))
        .route("/static/live.js", get(|| async { asset(SCRIPT) }))
        .route("/static/icon.svg", get(|| async { asset(ICON) }))
}

pub(crate) use overview::show as overview;

/// Returns a page with the headers of all pages.
fn html(status: StatusCode, markup: Markup) -> Response {
    let content_type = HeaderValue::from_static("text/html; charset=utf-8");
    let mut response = (status, markup.into_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn asset((content_type, text): Asset) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("max-age=600"),
    );
    response
}

/// Returns the answer that leads elsewhere on this server. `to` begins with `/`.
fn see_other(to: &str) -> Response {
    let mut response = html(StatusCode::SEE_OTHER, maud::html! {});
    let location = HeaderValue::from_str(to);
    let location = location.unwrap_or_else(|_no_header| HeaderValue::from_static("/"));
    response.headers_mut().insert(header::LOCATION, location);
    response
}
