//! Counters of the collector, as Prometheus reads them.

use std::fmt::Write as _;

use store::Statistics;

use crate::counter::Counter;
use crate::queue::{self, Depth};

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
    /// Returns the page. What does not answer has no sizes there; `queue` is that of a collector with a queue.
    pub(crate) fn page(
        &self,
        statistics: Option<&Statistics>,
        queue: Option<(&queue::Counters, Option<Depth>)>,
    ) -> String {
        let mut page = String::new();
        let metric = &mut |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(page, "{name}{labels} {value}");
            }
        };
        self.counters(queue.map(|(counters, _)| counters), metric);
        if let Some((counters, depth)) = queue {
            let up = [("", u64::from(statistics.is_some()))];
            metric("tollgate_store_up", "gauge", "The store answers.", &up);
            queued(counters, depth, metric);
        }
        if let Some(statistics) = statistics {
            sizes(statistics, metric);
        }
        page
    }

    /// Writes the counters. With a queue, records are stored by it, and without one by requests.
    fn counters(&self, queue: Option<&queue::Counters>, metric: &mut Write<'_>) {
        let of = |counter: &Counter| counter.value();
        let both = |counter: &Counter, queued: fn(&queue::Counters) -> &Counter| {
            of(counter).saturating_add(queue.map_or(0, |counters| of(queued(counters))))
        };
        metric(
            "tollgate_collector_records_total",
            "counter",
            "Records of senders by what became of them.",
            &[
                ("{result=\"stored\"}", both(&self.stored, |it| &it.stored)),
                (
                    "{result=\"duplicate\"}",
                    both(&self.duplicates, |it| &it.duplicates),
                ),
                (
                    "{result=\"missing\"}",
                    both(&self.missing, |it| &it.missing),
                ),
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

/// Writes what a queue has done, and what waits in it.
fn queued(counters: &queue::Counters, depth: Option<Depth>, metric: &mut Write<'_>) {
    let of = |counter: &Counter| counter.value();
    metric(
        "tollgate_queue_batches_total",
        "counter",
        "Batches by what this server did with them; delayed are those that waited for one before them.",
        &[
            ("{result=\"queued\"}", of(&counters.queued)),
            ("{result=\"redelivered\"}", of(&counters.redelivered)),
            ("{result=\"delayed\"}", of(&counters.delayed)),
            ("{result=\"set_aside\"}", of(&counters.set_aside)),
        ],
    );
    metric(
        "tollgate_queue_refused_total",
        "counter",
        "Batches that the queue did not take, by cause. Senders repeat them.",
        &[
            ("{cause=\"away\"}", of(&counters.away)),
            ("{cause=\"full\"}", of(&counters.full)),
            ("{cause=\"refused\"}", of(&counters.refused)),
        ],
    );
    let up = [("", u64::from(depth.is_some()))];
    metric("tollgate_queue_up", "gauge", "The queue answers.", &up);
    let Some(depth) = depth else { return };
    let gauges = [
        ("batches", "Batches that wait for the store.", depth.batches),
        ("bytes", "Bytes of the batches that wait.", depth.bytes),
        (
            "lag_seconds",
            "Age of the oldest batch that waits.",
            depth.lag_seconds,
        ),
        (
            "in_work",
            "Batches that are delivered and not confirmed.",
            depth.in_work,
        ),
        (
            "redelivered",
            "Batches in work that were delivered before.",
            depth.redelivered,
        ),
        (
            "set_aside",
            "Batches that cannot be stored and are set aside.",
            depth.set_aside,
        ),
    ];
    for (name, help, value) in gauges {
        metric(
            &format!("tollgate_queue_{name}"),
            "gauge",
            help,
            &[("", value)],
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
