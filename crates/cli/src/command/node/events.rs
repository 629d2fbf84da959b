//! Alerts as Events of pods.

use std::sync::Arc;

use agent::observer::AlertObserver;
use node::{EventReason, Occurrence, PodEvents, PodRef};
use rules::{Alert, AlertValue, Priority};

/// Tag of alerts about a policy.
const POLICY: &str = "policy";

/// Notes each alert about a pod.
pub(super) fn observer(events: Arc<PodEvents>) -> AlertObserver {
    AlertObserver::new("events", move |alert| {
        if let Some(occurrence) = occurrence(alert) {
            events.note(occurrence);
        }
    })
}

/// What an alert says of its pod; `None` if it is about no pod, or about one that no runtime has named.
fn occurrence(alert: &Alert) -> Option<Occurrence> {
    let text = |name: &str| {
        let mut fields = alert.fields.iter();
        let (_, value) = fields.find(|(field, _)| **field == *name)?;
        match value {
            AlertValue::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    };
    let pod = PodRef {
        namespace: text("k8s.ns.name")?,
        name: text("k8s.pod.name")?,
        uid: text("k8s.pod.uid")?,
    };
    let container = match text("container.name") {
        Some(name) => format!("container {name}: "),
        None => String::new(),
    };
    let is_of_policy = alert.tags.iter().any(|tag| tag == POLICY) && alert.details.file.is_none();
    let (reason, subject, note) = match text("policy.rule") {
        Some(rule) if is_of_policy => {
            let note = format!("{container}{}", alert.message);
            (EventReason::PolicyViolation, rule, note)
        }
        _ => {
            let (rule, message) = (&alert.rule, &alert.message);
            let note = format!("{container}{rule} ({}): {message}", alert.priority);
            (EventReason::RuleMatched, rule.to_string(), note)
        }
    };
    Some(Occurrence {
        pod,
        reason,
        subject,
        is_warning: alert.priority <= Priority::Warning,
        note,
    })
}

#[cfg(test)]
mod tests {
    use rules::AlertDetails;

    use super::*;

    fn alert(priority: Priority, fields: &[(&str, &str)]) -> Alert {
        let text = |value: &str| match value {
            "" => AlertValue::Absent,
            value => AlertValue::Text(value.to_owned()),
        };
        Alert {
            time_ns: 1,
            made_ns: 2,
            rule: "Terminal shell".into(),
            priority,
            source: "syscall".into(),
            tags: Arc::new([]),
            hostname: "n1".into(),
            message: "a shell".to_owned(),
            fields: fields
                .iter()
                .map(|(name, value)| ((*name).into(), text(value)))
                .collect(),
            details: AlertDetails {
                file: Some("rules.yaml".into()),
                ..AlertDetails::default()
            },
        }
    }

    const POD: [(&str, &str); 4] = [
        ("k8s.ns.name", "demo"),
        ("k8s.pod.name", "web"),
        ("k8s.pod.uid", "u"),
        ("container.name", "app"),
    ];

    #[test]
    fn an_alert_of_a_pod_becomes_an_event_and_others_do_not() {
        let found = occurrence(&alert(Priority::Notice, &POD)).expect("it is of a pod");
        assert_eq!((&*found.pod.namespace, &*found.pod.uid), ("demo", "u"));
        assert_eq!(
            found.note,
            "container app: Terminal shell (Notice): a shell"
        );
        assert_eq!(found.reason, EventReason::RuleMatched);
        assert!(!found.is_warning);
        let found = occurrence(&alert(Priority::Warning, &POD)).expect("it is of a pod");
        assert!(found.is_warning);
        let unnamed = POD.map(|(name, _)| (name, ""));
        assert!(occurrence(&alert(Priority::Warning, &unnamed)).is_none());
        assert!(occurrence(&alert(Priority::Warning, &[])).is_none());
    }

    #[test]
    fn a_violation_is_of_its_policy_and_a_rule_cannot_pretend_to_be_one() {
        let fields = [&POD[..], &[("policy.rule", "disallow-mount")]].concat();
        let mut violation = alert(Priority::Warning, &fields);
        violation.tags = Arc::new([POLICY.to_owned()]);
        let forged = occurrence(&violation).expect("it is of a pod");
        assert_eq!(forged.reason, EventReason::RuleMatched);
        violation.details.file = None;
        let found = occurrence(&violation).expect("it is of a pod");
        assert_eq!(found.reason, EventReason::PolicyViolation);
        assert_eq!(found.subject, "disallow-mount");
        assert_eq!(found.note, "container app: a shell");
    }
}
