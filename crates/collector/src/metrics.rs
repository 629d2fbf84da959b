//! Counters of the collector, as Prometheus reads them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use store::Statistics;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }
}

/// The counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) stored: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) missing: Counter,
    pub(crate) rejected: Counter,
    pub(crate) busy: Counter,
    pub(crate) failed: Counter,
    pub(crate) unauthorized: Counter,
    pub(crate) certificate: Counter,
    pub(crate) crowded: Counter,
    pub(crate) pruned: Counter,
}

/// Writes one metric: name, type, description, and labels with values.
type Write<'w> = dyn FnMut(&str, &str, &str, &[(&str, u64)]) + 'w;

impl Metrics {
    /// Returns the page.
    pub(crate) fn page(&self, statistics: &Statistics) -> String {
        let mut page = String::new();
        let metric = &mut |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(page, "{name}{labels} {value}");
            }
        };
        self.counters(metric);
        sizes(statistics, metric);
        page
    }

    fn counters(&self, metric: &mut Write<'_>) {
        let of = |counter: &Counter| counter.0.load(Ordering::Relaxed);
        metric(
            "tollgate_collector_records_total",
            "counter",
            "Records of senders by what became of them.",
            &[
                ("{result=\"stored\"}", of(&self.stored)),
                ("{result=\"duplicate\"}", of(&self.duplicates)),
                ("{result=\"missing\"}", of(&self.missing)),
                ("{result=\"rejected\"}", of(&self.rejected)),
            ],
        );
        metric(
            "tollgate_collector_refused_total",
            "counter",
            "Requests that were refused, by cause. Senders repeat those that were busy, crowded or failed.",
            &[
                ("{cause=\"unauthorized\"}", of(&self.unauthorized)),
                ("{cause=\"certificate\"}", of(&self.certificate)),
                ("{cause=\"crowded\"}", of(&self.crowded)),
                ("{cause=\"busy\"}", of(&self.busy)),
                ("{cause=\"failed\"}", of(&self.failed)),
            ],
        );
        let pruned = [("", of(&self.pruned))];
        metric(
            "tollgate_collector_pruned_total",
            "counter",
            "Alerts deleted by retention.",
            &pruned,
        );
    }
}

fn sizes(statistics: &Statistics, metric: &mut Write<'_>) {
    for (name, help, value) in [
        (
            "tollgate_store_bytes",
            "Bytes of the store in use.",
            statistics.bytes,
        ),
        (
            "tollgate_store_alerts",
            "Alerts in the store.",
            statistics.alerts,
        ),
        (
            "tollgate_store_groups",
            "Groups of alerts in the store.",
            statistics.groups,
        ),
        (
            "tollgate_store_agents",
            "Agents in the store.",
            statistics.agents,
        ),
    ] {
        metric(name, "gauge", help, &[("", value)]);
    }
}
