//! Counters of an operator, and their pages.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serve::{Page, ServeError, WebListener, WebServer};

/// What an operator counts.
#[derive(Debug, Default)]
pub struct Metrics {
    /// 1 while it is the leader.
    pub(crate) leader: AtomicU64,
    /// Objects of the cluster that were seen or gone.
    pub(crate) events: AtomicU64,
    /// Policies for which something was written.
    pub(crate) writes: AtomicU64,
    /// Requests that failed.
    pub(crate) errors: AtomicU64,
}

impl Metrics {
    /// The metrics in Prometheus' format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in [
            (
                "leader",
                "gauge",
                "Whether this operator is the one that acts.",
                &self.leader,
            ),
            (
                "events_total",
                "counter",
                "Changes of objects that were seen.",
                &self.events,
            ),
            (
                "writes_total",
                "counter",
                "Policies whose profile or status was written.",
                &self.writes,
            ),
            (
                "errors_total",
                "counter",
                "Requests to the API server that failed.",
                &self.errors,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            // Writing to a text cannot fail.
            let _ = write!(
                text,
                "# HELP tollgate_operator_{name} {help}\n# TYPE tollgate_operator_{name} {kind}\n\
                 tollgate_operator_{name} {value}\n"
            );
        }
        text
    }

    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves `/metrics` and `/healthz`.
///
/// # Errors
///
/// If the address cannot be listened on.
pub fn serve_pages(metrics: Arc<Metrics>, address: SocketAddr) -> Result<WebServer, ServeError> {
    let page = |path: &str, content: Box<dyn Fn() -> String + Send + Sync>| Page {
        path: path.to_owned(),
        content_type: "text/plain; version=0.0.4",
        is_instant: true,
        content,
    };
    let pages = vec![
        page("/metrics", Box::new(move || metrics.text())),
        page("/healthz", Box::new(|| "ok\n".to_owned())),
    ];
    WebListener::bind(address, None)?.start(pages)
}
