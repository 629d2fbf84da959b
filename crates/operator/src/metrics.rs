//! Counters of an operator, and their pages.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::Decision;
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
    /// Questions to the webhook.
    pub(crate) reviews: AtomicU64,
    /// Of these, objects that got or lost marks.
    pub(crate) mutated: AtomicU64,
    /// Of these, objects that stayed as they are, or were refused.
    pub(crate) non_mutated: AtomicU64,
    /// Of these, objects that were refused.
    pub(crate) refused: AtomicU64,
    /// 1 while the webhook gives no answers, because what it knows of policies is old.
    pub(crate) stale: AtomicU64,
}

/// A metric: its name, kind and help, and where its value is.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Metrics) -> u64,
);

fn of(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

const ROWS: [Row; 11] = [
    (
        "tollgate_operator_leader",
        "gauge",
        "Whether this operator is the one that acts.",
        |all| of(&all.leader),
    ),
    (
        "tollgate_operator_events_total",
        "counter",
        "Changes of objects that were seen.",
        |all| of(&all.events),
    ),
    (
        "tollgate_operator_writes_total",
        "counter",
        "Policies whose profile or status was written.",
        |all| of(&all.writes),
    ),
    (
        "tollgate_operator_errors_total",
        "counter",
        "Requests to the API server that failed.",
        |all| of(&all.errors),
    ),
    (
        "tollgate_operator_reviews_total",
        "counter",
        "Objects that the webhook was asked about.",
        |all| of(&all.reviews),
    ),
    (
        "tollgate_operator_reviews_mutated_total",
        "counter",
        "Objects to which the webhook gave marks, or from which it took some.",
        |all| of(&all.mutated),
    ),
    (
        "tollgate_operator_reviews_refused_total",
        "counter",
        "Objects that the webhook refused.",
        |all| of(&all.refused),
    ),
    (
        "tollgate_operator_policies_stale",
        "gauge",
        "1 while the webhook answers nothing, because the API server has not answered about policies for a minute.",
        |all| of(&all.stale),
    ),
    // vArmor's names, for its dashboards and alerts.
    (
        "varmor_admission_requests_total",
        "counter",
        "As tollgate_operator_reviews_total.",
        |all| of(&all.reviews),
    ),
    (
        "varmor_mutated_requests",
        "counter",
        "As tollgate_operator_reviews_mutated_total.",
        |all| of(&all.mutated),
    ),
    (
        "varmor_non_mutated_requests",
        "counter",
        "Objects that the webhook left as they are, or refused.",
        |all| of(&all.non_mutated),
    ),
];

/// Names of all metrics of an operator.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, ..)| *name)
}

impl Metrics {
    /// The metrics in Prometheus' format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in ROWS {
            let value = value(self);
            // Writing to a text cannot fail.
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
            );
        }
        text
    }

    /// Counts what the webhook has decided.
    pub(crate) fn decided(&self, decision: &Decision) {
        let is_mutated = matches!(decision, Decision::Allowed(patch) if !patch.is_empty());
        Self::add(if is_mutated {
            &self.mutated
        } else {
            &self.non_mutated
        });
        if matches!(decision, Decision::Refused(..)) {
            Self::add(&self.refused);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decision_is_counted_once_by_whether_it_changes_the_object() {
        let metrics = Metrics::default();
        metrics.decided(&Decision::Allowed(Vec::new()));
        metrics.decided(&Decision::Allowed(vec![serde_json::json!({ "op": "add" })]));
        metrics.decided(&Decision::Refused(400, "no".to_owned()));
        let text = metrics.text();
        for line in [
            "varmor_mutated_requests 1\n",
            "varmor_non_mutated_requests 2\n",
            "tollgate_operator_reviews_refused_total 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
