//! Alerts: what a matched rule says about an event.

use std::sync::Arc;

use crate::Priority;

/// A value in an alert's `output_fields`, detached from the event.
#[derive(Clone, Debug, PartialEq)]
pub enum AlertValue {
    /// `<NA>` in text, `null` in JSON.
    Absent,
    /// Boolean.
    Bool(bool),
    /// Signed number.
    Int(i64),
    /// Unsigned number.
    Uint(u64),
    /// Fraction. No field of an event is one; metrics are.
    Float(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Several values.
    List(Vec<AlertValue>),
}

/// One alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// When the event happened, nanoseconds since the epoch.
    pub time_ns: u64,
    /// When the alert was made, nanoseconds since the epoch: the agent's own latency is the
    /// difference.
    pub made_ns: u64,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Priority of the rule.
    pub priority: Priority,
    /// Event source: `syscall`, or `internal` for what the agent says of itself.
    pub source: Arc<str>,
    /// Tags of the rule.
    pub tags: Arc<[String]>,
    /// Host name.
    pub hostname: Arc<str>,
    /// The output template with fields filled in, without time and priority.
    pub message: String,
    /// Every field that the template names, in the template's order.
    pub fields: Vec<(Arc<str>, AlertValue)>,
}
