//! Alerts as they arrive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use maud::{Markup, html};
use serde::Deserialize;
use store::{AlertId, Severity, TailRows};

use super::groups::{alert_row, row_head};
use super::html as answer;
use super::session::Visitor;
use super::view::{self, Answer, PageError, empty};
use crate::server::Shared;

/// Pages that follow at the same time: of all users, and of one.
const TAILS: usize = 64;
const TAILS_OF_USER: usize = 8;

/// Interval at which the store is asked. Replicas share a store, so a server does not know of all alerts itself.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval of signs of life, at which the session is looked at again, too.
const SIGN: Duration = Duration::from_secs(15);

/// Time after which the browser has to ask again.
const LASTS: Duration = Duration::from_secs(3600);

/// Alerts of one interval that are shown at most: nobody reads more.
const BURST: u32 = 100;

/// Alerts that the page begins with.
const BEGIN: i64 = 50;

/// Pages that follow, by user.
pub(crate) struct Tails(Arc<Mutex<HashMap<String, usize>>>);

impl Tails {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Takes a place for a page of `user`, or returns none if too many follow.
    fn take(&self, user: &str) -> Option<Place> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = users.get(user).copied().unwrap_or(0);
        if of_user >= TAILS_OF_USER || users.values().sum::<usize>() >= TAILS {
            return None;
        }
        users.insert(user.to_owned(), of_user + 1);
        Some(Place {
            users: Arc::clone(&self.0),
            user: user.to_owned(),
        })
    }
}

/// Place of a page that follows, given back when dropped.
struct Place {
    users: Arc<Mutex<HashMap<String, usize>>>,
    user: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TailQuery {
    severity: String,
    after: Option<i64>,
}

impl TailQuery {
    fn severity(&self) -> Result<Severity, PageError> {
        match &*self.severity {
            "" => Ok(Severity::DEBUG),
            name => Severity::named(name)
                .ok_or_else(|| PageError::new(StatusCode::BAD_REQUEST, "unknown priority")),
        }
    }
}

/// `GET /live`
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Query(query): Query<TailQuery>,
) -> Answer {
    let least = query.severity()?;
    let TailRows { rows, last, .. } = shared
        .blocking(move |store| {
            let last = store.last_stored()?;
            let from = AlertId(last.0.saturating_sub(BEGIN));
            store.stored_after(from, least, BURST)
        })
        .await?;
    let last = last.0;
    let source = format!("/live/events?severity={}&after={last}", query.severity);
    let more = html! {
        script src="/static/live.js" defer {}
        noscript { meta http-equiv="refresh" content="10"; }
    };
    let beside = html! { form.row method="get" action="/live" {
        label { "At least" select name="severity" {
            option value="" { "any priority" }
            @for severity in Severity::all() {
                option value=(severity.name()) selected[severity.name() == query.severity] { (severity.name()) }
            }
        } }
        button type="submit" { "Show" }
    } };
    let body = html! {
        (view::title("Live", "", &beside))
        p.soft { span.state #live-state aria-live="polite" { "not following; this page reloads every 10 seconds without scripts" } }
        div.panel.flush {
            div.scroll { table.cards-on-phone {
                thead { (row_head()) }
                tbody #live data-source=(source) { @for row in rows.iter().rev() { (alert_row(row)) } }
            } }
            @if rows.is_empty() { div #live-empty { (empty(
                "Waiting for the first alert",
                "Alerts appear here as they arrive. Make one:",
                "tollgate run --collector https://HOST:6443 -- cat /etc/shadow",
            )) } }
        }
    };
    Ok(answer(
        StatusCode::OK,
        view::page_with(&visitor, "/live", "Live", (&more, &body)),
    ))
}

/// `GET /live/events`: server-sent events, one alert each, as a row of the page.
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    Query(query): Query<TailQuery>,
    headers: HeaderMap,
) -> Answer {
    let least = query.severity()?;
    let place = shared.tails.take(&visitor.user).ok_or_else(|| {
        let message = "too many pages follow at the same time; try again later";
        PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    // The browser's own, after a break.
    let seen = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let after = match seen.or(query.after) {
        Some(after) => AlertId(after),
        None => shared.blocking(|store| store.last_stored()).await?,
    };
    let (sender, body) = Channel::new(4);
    let tail = Tail {
        session: visitor.hash(),
        after,
        least,
        _place: place,
    };
    tokio::spawn(tail.follow(shared, sender));
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    let event_stream = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, event_stream);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A page that follows.
struct Tail {
    session: [u8; 32],
    after: AlertId,
    least: Severity,
    _place: Place,
}

impl Tail {
    /// Sends what arrives until the client goes, the session ends, or it has lasted long enough.
    async fn follow(mut self, shared: Arc<Shared>, mut sender: Sender<Bytes>) {
        let (began, mut signed) = (Instant::now(), Instant::now());
        if sender
            .send_data(Bytes::from_static(b": begin\n\n"))
            .await
            .is_err()
        {
            return;
        }
        while began.elapsed() < LASTS {
            tokio::time::sleep(INTERVAL).await;
            let (after, least) = (self.after, self.least);
            let arrivals = shared.blocking(move |store| store.stored_after(after, least, BURST));
            // The browser connects again; until then the store may work again.
            let Ok(arrivals) = arrivals.await else { return };
            let mut text = self.events(&arrivals);
            if signed.elapsed() >= SIGN {
                signed = Instant::now();
                let session = self.session;
                let known = shared.blocking(move |store| store.session(&session));
                if !matches!(known.await, Ok(Some(_))) {
                    return;
                }
                // Where to go on after a break, though nothing that is shown may have arrived.
                text.push_str(&format!("id: {}\n\n", self.after.0));
            }
            // At each interval, so that the place of a client that has gone becomes free.
            text.push_str(": here\n\n");
            if sender.send_data(Bytes::from(text)).await.is_err() {
                return;
            }
        }
    }

    /// Returns what arrived as events, and goes on after it, also after what is left out.
    fn events(&mut self, arrivals: &TailRows) -> String {
        let mut text = String::new();
        let mut event = |id: AlertId, row: &Markup| {
            // Markup of ours has no line breaks, and `plain` leaves those of senders.
            let row = row.0.replace(['\n', '\r'], " ");
            text.push_str(&format!("id: {}\nevent: alert\ndata: {row}\n\n", id.0));
        };
        for row in &arrivals.rows {
            event(row.id, &alert_row(row));
        }
        if arrivals.left_out > 0 {
            event(arrivals.last, &left_out_row(arrivals));
        }
        self.after = arrivals.last;
        text
    }
}

/// Returns the row that stands for alerts that are not shown.
fn left_out_row(arrivals: &TailRows) -> Markup {
    html! { tr { td colspan="4" {
        a href="/alerts?view=each" {
            @if arrivals.is_more { "More than " }
            (arrivals.left_out) " further alerts are left out here"
        }
    } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_does_not_take_all_places_and_gives_them_back() {
        let tails = Tails::new();
        let of = |user: &str| {
            std::iter::from_fn(|| tails.take(user))
                .take(TAILS)
                .collect::<Vec<_>>()
        };
        let ann = of("ann");
        assert_eq!(ann.len(), TAILS_OF_USER);
        let others: Vec<_> = (0..20).flat_map(|n| of(&n.to_string())).collect();
        assert_eq!(ann.len() + others.len(), TAILS);
        assert!(tails.take("bob").is_none());
        drop(ann);
        assert!(tails.take("bob").is_some());
        drop(others);
        assert!(tails.0.lock().expect("no panic").is_empty());
    }

    #[test]
    fn a_burst_says_what_is_left_out_and_goes_on_after_it() {
        let mut tail = Tail {
            session: [0; 32],
            after: AlertId(3),
            least: Severity::DEBUG,
            _place: Tails::new().take("ann").expect("a place"),
        };
        let mut arrivals = TailRows {
            rows: Vec::new(),
            left_out: 0,
            is_more: false,
            last: AlertId(9),
        };
        assert_eq!(tail.events(&arrivals), "");
        assert_eq!(tail.after, AlertId(9));
        arrivals.left_out = 202;
        arrivals.last = AlertId(400);
        let text = tail.events(&arrivals);
        assert!(
            text.starts_with("id: 400\nevent: alert\ndata: <tr>"),
            "{text}"
        );
        assert!(text.contains("202 further alerts are left out"), "{text}");
        assert_eq!(tail.after, AlertId(400));
    }
}
