//! Alerts as they arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use maud::html;
use serde::Deserialize;
use store::{AlertId, AlertRow, Severity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::groups::{alert_row, row_head};
use super::html as answer;
use super::session::Visitor;
use super::view::{self, Answer, PageError, empty};
use crate::server::Shared;

/// Pages that follow at the same time.
const TAILS: usize = 64;

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

/// Places for pages that follow.
pub(crate) struct Tails(Arc<Semaphore>);

impl Tails {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(TAILS)))
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
    let (last, mut rows) = shared
        .blocking(|store| {
            let last = store.last_stored()?;
            let from = AlertId(last.0.saturating_sub(BEGIN));
            Ok((last, store.stored_after(from, BURST)?))
        })
        .await?;
    rows.retain(|row| row.severity <= least);
    let last = rows.last().map_or(last.0, |row| row.id.0.max(last.0));
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
    let place = Arc::clone(&shared.tails.0).try_acquire_owned();
    let place = place.map_err(|_full| {
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
    _place: OwnedSemaphorePermit,
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
            let after = self.after;
            let rows = shared.blocking(move |store| store.stored_after(after, BURST));
            // The browser connects again; until then the store may work again.
            let Ok(rows) = rows.await else { return };
            let mut text = self.events(&rows);
            if signed.elapsed() >= SIGN {
                signed = Instant::now();
                let session = self.session;
                let known = shared.blocking(move |store| store.session(&session));
                if !matches!(known.await, Ok(Some(_))) {
                    return;
                }
                text.push_str(": here\n\n");
            }
            if !text.is_empty() && sender.send_data(Bytes::from(text)).await.is_err() {
                return;
            }
        }
    }

    fn events(&mut self, rows: &[AlertRow]) -> String {
        let mut text = String::new();
        for row in rows {
            self.after = row.id;
            if row.severity <= self.least {
                // Markup of ours has no line breaks, and `plain` leaves those of senders.
                let row_text = alert_row(row).into_string().replace(['\n', '\r'], " ");
                text.push_str(&format!(
                    "id: {}\nevent: alert\ndata: {row_text}\n\n",
                    row.id.0
                ));
            }
        }
        text
    }
}
