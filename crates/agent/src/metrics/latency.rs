//! The time from a call to its alert.

use std::sync::atomic::{AtomicU64, Ordering};

use rules::Alert;

use super::{Area, Metric, Value};

/// Upper bounds of the histogram's buckets in nanoseconds. Longer times are in no bucket.
const ENDS_NS: [u64; 8] = [
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    60_000_000_000,
];

/// Histogram of alert latency.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    classes: [AtomicU64; ENDS_NS.len()],
    count: AtomicU64,
    total_ns: AtomicU64,
}

impl Latency {
    /// Records an alert.
    pub(crate) fn note(&self, alert: &Alert) {
        // Both times are from one clock, which may have been set back in between.
        let took = alert.made_ns.saturating_sub(alert.time_ns);
        if let Some(class) = ENDS_NS.iter().position(|end| took <= *end) {
            self.classes[class].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// Returns a Prometheus histogram, in which each bucket includes those before it.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut below = 0;
        let mut all = Vec::new();
        let bucket = |below, end: String| {
            let name = "alert_latency_ns_bucket";
            Metric::new(Area::Tollgate, name, Value::Gauge(below)).label("le", end)
        };
        for (class, end) in self.classes.iter().zip(ENDS_NS) {
            below += class.load(Ordering::Relaxed);
            all.push(bucket(below, end.to_string()));
        }
        let count = self.count.load(Ordering::Relaxed);
        let total = self.total_ns.load(Ordering::Relaxed);
        all.push(bucket(count, "+Inf".to_owned()));
        for (name, value) in [
            ("alert_latency_ns_sum", total),
            ("alert_latency_ns_count", count),
        ] {
            all.push(Metric::new(Area::Tollgate, name, Value::Gauge(value)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::Priority;

    #[test]
    fn classes_hold_those_before_them() {
        let latency = Latency::default();
        for took in [5_000, 50_000, 50_000, 70_000_000_000] {
            latency.note(&Alert {
                time_ns: 1,
                made_ns: 1 + took,
                rule: "R".into(),
                priority: Priority::Debug,
                source: "syscall".into(),
                tags: [].into(),
                hostname: "h".into(),
                message: String::new(),
                fields: Vec::new(),
                details: rules::AlertDetails::default(),
            });
        }
        let values: Vec<_> = latency
            .metrics()
            .into_iter()
            .map(|metric| metric.value)
            .collect();
        let expected = [1, 3, 3, 3, 3, 3, 3, 3, 4, 70_000_105_000, 4].map(Value::Gauge);
        assert_eq!(values, expected);
    }
}
