//! `kubectl tollgate alerts`.

use apiserver::Resource;
use jiff::Timestamp;
use kinds::NodeReport;
use serde_json::{Value, json};

use crate::output::{Shown, Table, age, columns, list};
use crate::session::{Failure, Session};
use crate::state::reports;

/// Writer of the operator's Events.
const OPERATOR: &str = "tollgate.dev/operator";
/// What the kubelet's Event of a container that an agent has refused contains.
const REFUSAL: &str = "tollgate: ";
/// Writer of the agents' Events.
const NODE: &str = "tollgate.dev/node";
/// Events are a part of what happens.
const ELSEWHERE: &str = "note: violations of policies and alerts of rules are Events where agents run with --events, some for \
     many; outputs of the nodes have each, such as a collector (`tollgate serve`). A seccomp filter without `tollgate runtime` \
     reports none";

/// One line.
struct Alert {
    time: String,
    kind: String,
    reason: String,
    object: String,
    reporter: String,
    message: String,
}

/// Shows what Events and reports have.
pub(crate) fn show(session: &Session) -> Result<Shown, Failure> {
    let events = Resource::new("events.k8s.io", "v1", "events");
    let namespace = session.namespace.as_deref();
    let mut objects = session.list_any(&events, namespace)?;
    if namespace.is_some_and(|namespace| namespace != "default") {
        // Those of objects of the cluster.
        let more = session.list_any(&events, Some("default"))?;
        let of_cluster = |event: &Value| event["regarding"]["namespace"].is_null();
        objects.extend(more.into_iter().filter(of_cluster));
    }
    let mut alerts: Vec<Alert> = objects.iter().filter_map(of_event).collect();
    for report in reports(session)? {
        alerts.extend(of_report(&report, namespace));
    }
    alerts.sort_by(|one, other| one.time.cmp(&other.time));
    let now = Timestamp::now();
    let table = Table {
        columns: columns(&[
            "LAST-SEEN",
            "TYPE",
            "REASON",
            "OBJECT",
            "+REPORTER",
            "MESSAGE",
        ]),
        rows: alerts.iter().map(|alert| row(alert, now)).collect(),
        ..Table::default()
    };
    Ok(Shown {
        tables: vec![table],
        data: list(alerts.iter().map(data).collect()),
        notes: vec![ELSEWHERE.to_owned()],
    })
}

fn of_event(event: &Value) -> Option<Alert> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let reporter = text(&event["reportingController"]);
    let message = text(&event["note"]);
    // An agent is one of many: which one it is says the instance.
    let shown = match &*reporter {
        NODE => format!("node {}", text(&event["reportingInstance"])),
        _ => reporter.clone(),
    };
    if ![OPERATOR, NODE].contains(&&*reporter) && !message.contains(REFUSAL) {
        return None;
    }
    let times = [
        &event["series"]["lastObservedTime"],
        &event["deprecatedLastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    let time = times.into_iter().find_map(Value::as_str);
    let regarding = &event["regarding"];
    let namespace = text(&regarding["namespace"]);
    let name = match namespace.is_empty() {
        true => text(&regarding["name"]),
        false => format!("{namespace}/{}", text(&regarding["name"])),
    };
    Some(Alert {
        time: time.unwrap_or_default().to_owned(),
        kind: text(&event["type"]),
        reason: text(&event["reason"]),
        object: format!("{} {name}", text(&regarding["kind"])),
        reporter: shown,
        message,
    })
}

/// What a node does not enforce.
fn of_report<'r>(
    report: &'r NodeReport,
    namespace: Option<&'r str>,
) -> impl Iterator<Item = Alert> + use<'r> {
    let status = report.status.iter();
    let profiles = status.flat_map(|status| status.profiles.iter().map(move |one| (status, one)));
    let is_open = |unprotected: u64, failure: &Option<String>| unprotected > 0 || failure.is_some();
    let wanted = profiles.filter(move |(_, profile)| {
        let is_near = namespace.is_none_or(|namespace| namespace == profile.namespace);
        is_near && is_open(profile.unprotected, &profile.failure)
    });
    wanted.map(|(status, profile)| {
        let reasons: Vec<&str> = profile
            .failure
            .iter()
            .chain(&profile.reasons)
            .map(String::as_str)
            .collect();
        Alert {
            time: status.renew_time.clone(),
            kind: "Warning".to_owned(),
            reason: match profile.failure {
                Some(_) => "Failed".to_owned(),
                None => "Unprotected".to_owned(),
            },
            object: format!("ArmorProfile {}/{}", profile.namespace, profile.name),
            reporter: format!("node {}", report.metadata.name),
            message: format!(
                "node {}: {} of {} containers unprotected: {}",
                report.metadata.name,
                profile.unprotected,
                profile.containers,
                reasons.join("; ")
            ),
        }
    })
}

fn row(alert: &Alert, now: Timestamp) -> Vec<String> {
    vec![
        age(&alert.time, now),
        alert.kind.clone(),
        alert.reason.clone(),
        alert.object.clone(),
        alert.reporter.clone(),
        alert.message.clone(),
    ]
}

fn data(alert: &Alert) -> Value {
    json!({
        "time": alert.time,
        "type": alert.kind,
        "reason": alert.reason,
        "object": alert.object,
        "reporter": alert.reporter,
        "message": alert.message,
    })
}
