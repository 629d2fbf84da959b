//! Alerts that the program raises about itself.

use std::sync::Arc;

use rules::{Alert, AlertDetails, AlertValue, Priority};

use crate::time;

/// An event that the program reports about itself.
#[derive(Clone, Debug)]
pub struct Internal {
    /// Takes the place of a rule's name; the rate limit counts by it.
    pub rule: &'static str,
    /// Priority of the alert.
    pub priority: Priority,
    /// The message. Field values are not inserted into it.
    pub message: String,
    /// Fields of a JSON alert.
    pub fields: Vec<(&'static str, AlertValue)>,
}

/// Source of internal alerts.
pub(crate) const SOURCE: &str = "internal";

/// Creates the alert with the current time and no tags.
pub fn internal_alert(hostname: &Arc<str>, event: Internal) -> Alert {
    let now = time::now_ns();
    Alert {
        time_ns: now,
        made_ns: now,
        rule: event.rule.into(),
        priority: event.priority,
        source: SOURCE.into(),
        tags: Arc::new([]),
        hostname: Arc::clone(hostname),
        message: event.message,
        fields: event
            .fields
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect(),
        details: AlertDetails::default(),
    }
}

/// Alert: alerts that came while a program had the terminal to itself, beyond those that are shown.
pub(crate) fn left_out(rule: &str, times: u64) -> Internal {
    Internal {
        rule: "Tollgate internal: alerts left out",
        priority: Priority::Notice,
        message: format!("{rule}: {times} more while a program used the terminal"),
        fields: vec![
            ("tollgate.rule", AlertValue::Text(rule.to_owned())),
            ("tollgate.times", AlertValue::Uint(times)),
        ],
    }
}

/// Alert: a channel lost alerts.
pub(crate) fn lost(channel: &str, lost: u64, total: u64) -> Internal {
    Internal {
        rule: "Tollgate internal: output queue full",
        priority: Priority::Error,
        message: format!("alerts lost (channel={channel} lost={lost} lost_total={total})"),
        fields: vec![
            ("tollgate.channel", AlertValue::Text(channel.to_owned())),
            ("tollgate.lost", AlertValue::Uint(lost)),
            ("tollgate.lost_total", AlertValue::Uint(total)),
        ],
    }
}

/// Alert: another process changed a channel's file.
pub(crate) fn exchanged(notice: &str) -> Internal {
    Internal {
        rule: "Tollgate internal: output changed",
        priority: Priority::Error,
        message: notice.to_owned(),
        fields: Vec::new(),
    }
}

/// Alert: the throttle suppressed alerts.
pub(crate) fn suppressed(suppressed: u64, total: u64) -> Internal {
    Internal {
        rule: "Tollgate internal: alerts suppressed",
        priority: Priority::Warning,
        message: format!(
            "alerts suppressed by outputs.rate (suppressed={suppressed} suppressed_total={total})"
        ),
        fields: vec![
            ("tollgate.suppressed", AlertValue::Uint(suppressed)),
            ("tollgate.suppressed_total", AlertValue::Uint(total)),
        ],
    }
}

/// Alert: internal alerts of one rule came too fast to announce each.
pub(crate) fn repeated(rule: &str, times: u64) -> Internal {
    Internal {
        rule: "Tollgate internal: alerts repeated",
        priority: Priority::Notice,
        message: format!("{rule}: {times} more"),
        fields: vec![
            ("tollgate.rule", AlertValue::Text(rule.to_owned())),
            ("tollgate.times", AlertValue::Uint(times)),
        ],
    }
}
