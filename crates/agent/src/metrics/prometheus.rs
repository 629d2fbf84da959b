//! Prometheus text format, with Falco's metric names.

use std::fmt::Write as _;

use super::{Area, Metric, Value};

/// Formats a page of metrics.
pub(super) fn page(metrics: &[Metric]) -> String {
    let mut out = String::new();
    let mut last = String::new();
    // Samples with the same name must be adjacent, under one header.
    let mut metrics: Vec<(String, &Metric)> = metrics
        .iter()
        .map(|metric| (name(metric), metric))
        .collect();
    let first: Vec<String> = metrics.iter().map(|(name, _)| name.clone()).collect();
    metrics.sort_by_key(|(name, _)| first.iter().position(|other| other == name));
    for (name, metric) in metrics {
        if name != last {
            let kind = match metric.value {
                Value::Count(_) | Value::Seconds(_) | Value::Nanoseconds(_) => "counter",
                _ => "gauge",
            };
            let help = match metric.area {
                Area::Tollgate => "see docs/reference/metrics.md",
                _ => "https://falco.org/docs/metrics/",
            };
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            last.clone_from(&name);
        }
        let _ = writeln!(out, "{name}{} {}", labels(metric), number(&metric.value));
    }
    out
}

fn name(metric: &Metric) -> String {
    let area = match metric.area {
        Area::Falco => "falcosecurity_falco",
        Area::Scap | Area::State => "falcosecurity_scap",
        Area::Evt => "falcosecurity_evt",
        Area::Tollgate => "tollgate",
    };
    let unit = match (&metric.value, metric.area) {
        (Value::Gauge(_), Area::Tollgate) => "",
        (Value::Count(_) | Value::Gauge(_), _) => "_total",
        (Value::Percent(_), _) => "_ratio",
        (Value::Kib(_) | Value::Bytes(_), _) => "_bytes",
        (Value::TimestampNs(_), _) => "_timestamp_nanoseconds",
        (Value::Seconds(_), _) => "_seconds_total",
        (Value::Nanoseconds(_), _) => "_nanoseconds_total",
        (Value::Info(..), _) => "_info",
    };
    format!("{area}_{}{unit}", metric.name)
}

fn labels(metric: &Metric) -> String {
    let mut labels: Vec<(String, &str)> = metric
        .labels
        .iter()
        .map(|(name, text)| (sanitized(name), text.as_str()))
        .collect();
    if let Value::Info(name, text) = &metric.value {
        labels.push(((*name).to_owned(), text));
    }
    if labels.is_empty() {
        return String::new();
    }
    labels.sort();
    let labels: Vec<_> = labels
        .iter()
        .map(|(name, text)| format!("{name}=\"{}\"", escaped(text)))
        .collect();
    format!("{{{}}}", labels.join(","))
}

/// Returns a valid label name: letters, digits and underscores, without two underscores in a row.
fn sanitized(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if c != '_' || !out.ends_with('_') {
            out.push(c);
        }
    }
    out
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

fn number(value: &Value) -> String {
    match value {
        Value::Count(n) | Value::Gauge(n) | Value::Bytes(n) => n.to_string(),
        Value::TimestampNs(n) | Value::Seconds(n) | Value::Nanoseconds(n) => n.to_string(),
        Value::Percent(percent) => format!("{:.6}", percent / 100.0),
        Value::Kib(n) => n.saturating_mul(1024).to_string(),
        Value::Info(..) => "1".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_falcos() {
        let matches = |rule: &str, count| {
            Metric::new(Area::Falco, "rules_matches", Value::Count(count))
                .label("priority", "4")
                .label("rule_name", rule)
                .label("tag_mitre-x.y", "true")
        };
        let metrics = [
            Metric::new(
                Area::Falco,
                "version",
                Value::Info("version", "0.44.1".to_owned()),
            ),
            matches("A \"b\"", 3),
            Metric::new(Area::Scap, "n_evts", Value::Count(7)),
            Metric::new(Area::State, "n_threads", Value::Gauge(9)),
            matches("C", 1),
            Metric::new(Area::Falco, "cpu_usage", Value::Percent(12.5)),
            Metric::new(Area::Falco, "memory_rss", Value::Kib(2)),
            Metric::new(Area::Falco, "duration", Value::Seconds(5)),
        ];
        let samples: Vec<_> = page(&metrics)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect();
        assert_eq!(
            samples,
            [
                r#"falcosecurity_falco_version_info{version="0.44.1"} 1"#,
                r#"falcosecurity_falco_rules_matches_total{priority="4",rule_name="A \"b\"",tag_mitre_x_y="true"} 3"#,
                r#"falcosecurity_falco_rules_matches_total{priority="4",rule_name="C",tag_mitre_x_y="true"} 1"#,
                "falcosecurity_scap_n_evts_total 7",
                "falcosecurity_scap_n_threads_total 9",
                "falcosecurity_falco_cpu_usage_ratio 0.125000",
                "falcosecurity_falco_memory_rss_bytes 2048",
                "falcosecurity_falco_duration_seconds_total 5",
            ]
        );
        let heads = page(&metrics);
        assert_eq!(
            heads
                .matches("# TYPE falcosecurity_falco_rules_matches_total counter")
                .count(),
            1
        );
    }
}
