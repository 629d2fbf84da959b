//! Alerts: the output of a rule that matched an event.

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
    /// Floating-point number. Only metrics use it; no field of an event is one.
    Float(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Several values.
    List(Vec<AlertValue>),
}

/// One alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Time of the event in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Time at which the alert was created, in nanoseconds since the epoch. The difference to `time_ns` is
    /// the agent's own latency.
    pub made_ns: u64,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Priority of the rule.
    pub priority: Priority,
    /// Event source: `syscall`, or `internal` for messages of the agent itself.
    pub source: Arc<str>,
    /// Tags of the rule.
    pub tags: Arc<[String]>,
    /// Host name.
    pub hostname: Arc<str>,
    /// Output template with its fields filled in, without time and priority.
    pub message: String,
    /// Fields that the template names, in the template's order.
    pub fields: Vec<(Arc<str>, AlertValue)>,
}
