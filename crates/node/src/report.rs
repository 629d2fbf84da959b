//! The report of a node, and its metrics.

use std::fmt::Write as _;
use std::fs;

use apiserver::{ApiError, Client, Resource};
use jiff::Timestamp;
use kinds::crd::Definition;
use kinds::{DetectionState, EnforcerState, NodeReportStatus, ObjectKey, ProfileState, Scope};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::detect::DetectorFigures;
use crate::pod_events::EventFigures;
use crate::state::{Durations, LIMITS, State};

/// File with the id of the boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The kind of reports.
pub(crate) fn definition() -> &'static Definition {
    Definition::of_kind("NodeReport").expect("the kind is in the table")
}

/// Id of the running boot.
pub(crate) fn boot_id() -> std::io::Result<String> {
    Ok(fs::read_to_string(BOOT)?.trim().to_owned())
}

/// The report.
pub(crate) fn status(
    state: &State,
    detection: Option<DetectionState>,
    enforcers: Vec<EnforcerState>,
    boot: &str,
) -> NodeReportStatus {
    NodeReportStatus {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: boot.to_owned(),
        observed_version: state.index.version.to_string(),
        renew_time: Timestamp::now().strftime("%FT%TZ").to_string(),
        enforcers,
        profiles: state.profiles(),
        detection,
        behaviors: match &state.recorder {
            Some(recorder) => recorder.reports(),
            None => Vec::new(),
        },
    }
}

/// Writes a report, and makes the object if there is none.
pub(crate) fn write(
    client: &Client,
    node: &str,
    status: &NodeReportStatus,
) -> Result<(), ApiError> {
    let resource = Resource::of(definition());
    let object = |status: Option<&NodeReportStatus>| {
        let mut object = json!({
            "apiVersion": definition().api_version(),
            "kind": "NodeReport",
            "metadata": { "name": node },
        });
        if let Some(status) = status {
            object["status"] = json!(status);
        }
        object
    };
    let written = client.apply_status(&resource, &object(Some(status)));
    match written {
        Err(error) if error.code() == Some(404) => {
            client.apply(&resource, &object(None))?;
            client
                .apply_status(&resource, &object(Some(status)))
                .map(drop)
        }
        other => other.map(drop),
    }
}

/// The body of an ArmorProfile.
pub(crate) fn profile(client: &Client, key: &ObjectKey) -> Result<Value, ApiError> {
    let definition = Definition::of_kind("ArmorProfile").expect("the kind is in the table");
    client.get(&Resource::of(definition), key)
}

/// Returns true if a policy exists whose profile has this name, for pods of this namespace. One that is being deleted
/// counts as deleted, and so does one on which another installation acts: its agents confine the pod.
pub(crate) fn has_policy(
    client: &Client,
    profile: &str,
    namespace: &str,
    installation: &str,
) -> Result<bool, ApiError> {
    let candidates = [
        (Scope::Namespace, format!("varmor-{namespace}-"), namespace),
        (
            Scope::Cluster,
            format!("varmor-cluster-{installation}-"),
            "",
        ),
    ];
    let mut is_ours = false;
    for (scope, prefix, namespace) in candidates {
        let Some(name) = profile.strip_prefix(&prefix) else {
            continue;
        };
        is_ours = true;
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let definition = Definition::of_kind(scope.kind()).expect("the kind is in the table");
        match client.get(&Resource::of(definition), &key) {
            // Also one on which another installation acts: it may be gone, and nobody confine the container.
            Ok(policy) if policy["metadata"]["deletionTimestamp"].is_null() => return Ok(true),
            Ok(_) => {}
            Err(error) if error.code() == Some(404) => {}
            Err(error) => return Err(error),
        }
    }
    // The mark of another installation: its policies are not known here.
    Ok(!is_ours)
}

/// A metric: name, kind, help, and its value.
type Metric = (&'static str, &'static str, &'static str, fn(&Sample) -> u64);

/// What metrics are taken from.
struct Sample<'s> {
    state: &'s State,
    profiles: Vec<ProfileState>,
}

impl Sample<'_> {
    fn modeled(&self) -> (u64, u64) {
        let recorder = self.state.recorder.as_ref();
        recorder.map_or((0, 0), |recorder| recorder.counts())
    }

    fn sum(&self, of: fn(&ProfileState) -> u64) -> u64 {
        self.profiles.iter().map(of).sum()
    }
}

#[rustfmt::skip]
const METRICS: [Metric; 23] = [
    ("profiles", "gauge", "ArmorProfiles of the cluster that the node knows.", |s| s.state.index.len() as u64),
    ("containers", "gauge", "Running containers that a policy is for.", |s| s.sum(|one| one.containers)),
    ("containers_unprotected", "gauge", "Of these, not confined as a whole.", |s| s.sum(|one| one.unprotected)),
    ("confined_total", "counter", "Containers that were confined before they started.", |s| s.state.counters.confined),
    ("refused_total", "counter", "Containers that were not created or started.", |s| s.state.counters.refused),
    ("opened_total", "counter", "Containers that run without their policy, by its fail mode.", |s| s.state.counters.opened),
    ("late_answers_total", "counter", "Answers that missed their deadline.", |s| s.state.counters.too_late),
    ("runtime_connections_total", "counter", "Connections to the container runtime.", |s| s.state.counters.connections),
    ("runtime_connected", "gauge", "1 while the container runtime is connected, else 0.", |s| u64::from(s.state.is_connected)),
    ("reports_total", "counter", "Reports that were written.", |s| s.state.counters.reports),
    ("api_errors_total", "counter", "Requests to the API server that failed.", |s| s.state.counters.errors),
    ("questions_turned_away_total", "counter", "Questions to the API server that found the queue full.", |s| s.state.counters.turned_away),
    ("violations_total", "counter", "Violations of policies that tollgate runtime and the kernel have reported.", |s| s.state.violations.read),
    ("violations_unnamed_total", "counter", "Of these, of containers that the container runtime has not named.", |s| s.state.violations.unnamed),
    ("violations_too_long_total", "counter", "Alerts of tollgate runtime that are too long to be read as a whole.", |s| s.state.violations.too_long),
    ("violations_skipped_total", "counter", "Lines of its alerts that cannot be read.", |s| s.state.violations.skipped),
    ("violations_gaps_total", "counter", "Times that its alerts were gone, or cut, perhaps before they were read.", |s| s.state.violations.gaps),
    ("violations_lost_total", "counter", "Violations that could not be written to the log.", |s| s.state.violations.lost),
    ("violations_lost_by_kernel_total", "counter", "Violations that the kernel had no room for, since it began to report.", |s| s.state.violations.lost_by_kernel),
    ("violations_unknown_losses_total", "counter", "Times that the kernel's losses cannot be known.", |s| s.state.violations.unknown_losses),
    ("modeled_profiles", "gauge", "Profiles whose containers are observed.", |s| s.modeled().0),
    ("modeled_profiles_incomplete", "gauge", "Of these, profiles of which something is missing.", |s| s.modeled().1),
    ("slowest_answer_microseconds", "gauge", "Longest time that an answer took.", |s| s.state.counters.slowest),
];

/// The metrics in Prometheus' format.
pub(crate) fn metrics(agent: &Agent) -> String {
    let state = agent.state();
    let profiles = state.profiles();
    let sample = Sample {
        state: &state,
        profiles,
    };
    let mut text = String::new();
    for (name, kind, help, value) in METRICS {
        text.push_str(&line((
            &format!("tollgate_node_{name}"),
            kind,
            help,
            value(&sample),
        )));
    }
    let counters = &sample.state.counters;
    let answers = [("create", counters.creating), ("start", counters.starting)];
    text.push_str(&histogram(answers));
    if let Some(detection) = &agent.detection {
        text.push_str(&of_detection(detection.figures().as_ref()));
    }
    if let Some(events) = &agent.events {
        text.push_str(&of_events(&events.figures()));
    }
    text
}

/// Names of all metrics that an agent may have, for what refers to them.
#[must_use]
pub fn metric_names() -> Vec<String> {
    let none = || Durations::default();
    let texts = [
        histogram([("create", none()), ("start", none())]),
        of_detection(Some(&DetectorFigures::default())),
        of_events(&EventFigures::default()),
    ];
    let typed = |text: &String| -> Vec<String> {
        let lines = text.lines();
        let names = lines.filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        names.map(str::to_owned).collect()
    };
    let own = METRICS
        .iter()
        .map(|(name, ..)| format!("tollgate_node_{name}"));
    own.chain(texts.iter().flat_map(typed)).collect()
}

/// A metric in Prometheus' format.
fn line((name, kind, help, value): (&str, &str, &str, u64)) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
}

/// The metrics of detection in Prometheus' format; `None` if no engine watches.
fn of_detection(figures: Option<&DetectorFigures>) -> String {
    let mut values = vec![(
        "running",
        "gauge",
        "1 while an engine watches the node, else 0.",
        u64::from(figures.is_some()),
    )];
    // Without an engine these are unknown, and not 0.
    if let Some(figures) = figures {
        values.extend([
            ("rules", "gauge", "Rules in force.", figures.rules),
            (
                "alerts_total",
                "counter",
                "Alerts of rules.",
                figures.alerts,
            ),
            (
                "events_lost_total",
                "counter",
                "Events that the engine lost.",
                figures.lost,
            ),
        ]);
    }
    let values = values.into_iter();
    let named = values.map(|(name, kind, help, value)| {
        let name = format!("tollgate_node_detection_{name}");
        line((&name, kind, help, value))
    });
    named.collect()
}

/// The metrics of Events in Prometheus' format.
fn of_events(figures: &EventFigures) -> String {
    let name = "tollgate_node_event";
    let mut text = String::new();
    for (part, kind, help, value) in [
        (
            "s_total",
            "counter",
            "Events of pods that were written.",
            figures.written,
        ),
        (
            "_errors_total",
            "counter",
            "Attempts to write an Event that are repeated.",
            figures.errors,
        ),
        (
            "_occurrences_total",
            "counter",
            "Alerts and violations for Events of pods.",
            figures.occurrences,
        ),
        (
            "_occurrences_waiting",
            "gauge",
            "Of these, not in an Event yet.",
            figures.waiting,
        ),
    ] {
        text.push_str(&line((&format!("{name}{part}"), kind, help, value)));
    }
    let lost = format!("{name}_occurrences_lost_total");
    let _ = writeln!(text, "# HELP {lost} Of these, lost.\n# TYPE {lost} counter");
    for (reason, value) in [
        ("full", figures.lost_full),
        ("refused", figures.lost_refused),
        ("failed", figures.lost_failed),
    ] {
        let _ = writeln!(text, "{lost}{{reason=\"{reason}\"}} {value}");
    }
    text
}

/// How long answers took, as a histogram in Prometheus' format.
fn histogram(answers: [(&str, Durations); 2]) -> String {
    let name = "tollgate_node_answer_microseconds";
    let mut text = format!("# HELP {name} How long answers took.\n# TYPE {name} histogram\n");
    for (event, durations) in answers {
        let mut count = 0;
        let limits = LIMITS.iter().map(ToString::to_string);
        let limits = limits.chain(["+Inf".to_owned()]);
        for (limit, more) in limits.zip(durations.counts) {
            count += more;
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                "{name}_bucket{{event=\"{event}\",le=\"{limit}\"}} {count}"
            );
        }
        let sum = durations.sum;
        let _ = writeln!(text, "{name}_sum{{event=\"{event}\"}} {sum}");
        let _ = writeln!(text, "{name}_count{{event=\"{event}\"}} {count}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_all_that_took_no_longer_than_each_limit() {
        let mut starting = Durations::default();
        for microseconds in [50, 51, 200_000, 200_001] {
            starting.add(microseconds);
        }
        let text = histogram([("create", Durations::default()), ("start", starting)]);
        for line in [
            "bucket{event=\"start\",le=\"50\"} 1",
            "bucket{event=\"start\",le=\"100\"} 2",
            "bucket{event=\"start\",le=\"200000\"} 3",
            "bucket{event=\"start\",le=\"+Inf\"} 4",
            "count{event=\"start\"} 4",
            "sum{event=\"start\"} 400102",
            "count{event=\"create\"} 0",
        ] {
            assert!(
                text.contains(&format!("tollgate_node_answer_microseconds_{line}\n")),
                "{text}"
            );
        }
    }
}
