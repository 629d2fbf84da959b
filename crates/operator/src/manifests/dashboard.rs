//! A dashboard for Grafana, from one list of what it shows.

use serde_json::{Value, json};

/// A panel: title, description, unit as Grafana names it, and queries with their legends.
type Panel = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// Width of a panel; the whole has 24.
const WIDTH: usize = 8;
const HEIGHT: usize = 8;

#[rustfmt::skip]
const PANELS: [Panel; 12] = [
    ("Containers", "Running containers that a policy is for, and those of them that are not confined as a whole.", "short", &[
        ("sum(tollgate_node_containers)", "all"),
        ("sum(tollgate_node_containers_unprotected)", "not confined"),
    ]),
    ("Containers not confined, by node", "Each of them is an object of the NodeReport of its node.", "short", &[
        ("topk(10, tollgate_node_containers_unprotected > 0)", "{{instance}}"),
    ]),
    ("Decisions", "Containers that were confined before they started, that were refused, and that run without their policy by its fail mode.", "cps", &[
        ("sum(rate(tollgate_node_confined_total[5m]))", "confined"),
        ("sum(rate(tollgate_node_refused_total[5m]))", "refused"),
        ("sum(rate(tollgate_node_opened_total[5m]))", "opened"),
    ]),
    ("Answers to the container runtime", "How long the runtime waits: 99 of 100 answers take no longer.", "µs", &[
        ("histogram_quantile(0.99, sum by (event, le) (rate(tollgate_node_answer_microseconds_bucket[5m])))", "{{event}}"),
    ]),
    ("Late answers", "Answers that missed their deadline: such a container is refused, or runs as its policy says.", "cps", &[
        ("sum(rate(tollgate_node_late_answers_total[5m]))", "late"),
    ]),
    ("Agents without a container runtime", "They confine no new container. What they have confined stays so.", "short", &[
        ("count(tollgate_node_runtime_connected == 0) or vector(0)", "agents"),
    ]),
    ("Violations", "What policies denied, as tollgate runtime reports it.", "cps", &[
        ("sum(rate(tollgate_node_violations_total[5m]))", "violations"),
    ]),
    ("Alerts of rules", "Alerts, and events that engines lost.", "cps", &[
        ("sum(rate(tollgate_node_detection_alerts_total[5m]))", "alerts"),
        ("sum(rate(tollgate_node_detection_events_lost_total[5m]))", "lost events"),
    ]),
    ("Engines", "Agents whose engine watches the node.", "short", &[
        ("sum(tollgate_node_detection_running)", "running"),
    ]),
    ("Operators", "One acts; none means that no status is kept current.", "short", &[
        ("sum(tollgate_operator_leader)", "leaders"),
    ]),
    ("Requests that failed", "Requests to the API server.", "cps", &[
        ("sum(rate(tollgate_operator_errors_total[5m]))", "operators"),
        ("sum(rate(tollgate_node_api_errors_total[5m]))", "agents"),
    ]),
    ("Webhook", "Objects that it was asked about, gave marks, and refused.", "cps", &[
        ("sum(rate(tollgate_operator_reviews_total[5m]))", "asked"),
        ("sum(rate(tollgate_operator_reviews_mutated_total[5m]))", "marked"),
        ("sum(rate(tollgate_operator_reviews_refused_total[5m]))", "refused"),
    ]),
];

/// The dashboard, as Grafana imports it.
#[must_use]
pub fn dashboard() -> Value {
    let source = json!({ "type": "prometheus", "uid": "${source}" });
    let panels = PANELS.iter().enumerate().map(|(index, panel)| {
        let (title, description, unit, queries) = panel;
        let targets = queries.iter().zip('A'..).map(|((expression, legend), id)| {
            json!({ "datasource": source, "expr": expression, "legendFormat": legend, "refId": id })
        });
        let columns = 24 / WIDTH;
        json!({
            "id": index + 1,
            "type": "timeseries",
            "title": title,
            "description": description,
            "datasource": source,
            "fieldConfig": { "defaults": { "unit": unit, "min": 0 }, "overrides": [] },
            "gridPos": { "x": index % columns * WIDTH, "y": index / columns * HEIGHT, "w": WIDTH, "h": HEIGHT },
            "targets": targets.collect::<Vec<_>>(),
        })
    });
    json!({
        "uid": "tollgate",
        "title": "tollgate",
        "tags": ["tollgate"],
        "schemaVersion": 39,
        "time": { "from": "now-6h", "to": "now" },
        "refresh": "1m",
        "templating": { "list": [
            { "name": "source", "label": "Data source", "type": "datasource", "query": "prometheus" },
        ] },
        "panels": panels.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names of metrics in an expression.
    fn metrics(expression: &str) -> impl Iterator<Item = &str> {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("tollgate_") || word.starts_with("varmor_"))
    }

    #[test]
    fn each_metric_of_the_dashboard_is_one_of_the_programs() {
        let mut known: BTreeSet<String> = node::metric_names().into_iter().collect();
        known.extend(crate::metrics::names().map(str::to_owned));
        let mut count = 0;
        for (title, .., queries) in PANELS {
            for name in queries
                .iter()
                .flat_map(|(expression, _)| metrics(expression))
            {
                let name = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(known.contains(name), "{title}: {name}");
                count += 1;
            }
        }
        assert!(count >= PANELS.len());
    }

    #[test]
    fn the_file_of_the_dashboard_is_what_the_program_makes() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/grafana/tollgate.json"
        );
        let made = format!("{:#}\n", dashboard());
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), made);
    }

    #[test]
    fn the_names_of_varmor_are_those_of_the_document() {
        let text = include_str!("../../../../docs/reference/metrics.md");
        let (_, section) = text.split_once("## vArmor's names").unwrap();
        let rows = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `varmor_"));
        let (mut served, mut missing) = (BTreeSet::new(), 0);
        for row in rows {
            let (name, meaning) = row.split_once("` | ").unwrap();
            match meaning.starts_with('`') {
                true => drop(served.insert(format!("varmor_{name}"))),
                false => missing += 1,
            }
        }
        let names = crate::metrics::names().filter(|name| name.starts_with("varmor_"));
        assert_eq!(served, names.map(str::to_owned).collect());
        assert_eq!(missing, 4);
    }
}
