//! Alerts that the program raises about itself.

use std::sync::Arc;

use rules::{Alert, AlertValue, Priority};

use crate::time;

/// What the program has to say about itself.
#[derive(Clone, Debug)]
pub struct Internal {
    /// Stands where a rule's name stands, and is what the rate limit counts by.
    pub rule: &'static str,
    /// How serious it is.
    pub priority: Priority,
    /// The message; field values are not put into it.
    pub message: String,
    /// The facts, for JSON.
    pub fields: Vec<(&'static str, AlertValue)>,
}

/// Source of internal alerts.
pub(crate) const SOURCE: &str = "internal";

/// Makes the alert. The time is now; there are no tags.
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
    }
}

/// Some alerts did not get through a channel.
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

/// Somebody has changed what a channel writes to.
pub(crate) fn exchanged(notice: &str) -> Internal {
    Internal {
        rule: "Tollgate internal: output changed",
        priority: Priority::Error,
        message: notice.to_owned(),
        fields: Vec::new(),
    }
}

/// The throttle held some alerts back.
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

/// Internal alerts of one rule came too fast to announce each.
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
