//! Which alerts of an agent about itself say that something was lost or unwatched.

use serde_json::{Map, Value};
use store::{Loss, LossKind};

/// An alert about the agent: name, what it says, and the field with the number, if it has one.
type Row = (&'static str, LossKind, Option<&'static str>);

const TABLE: [Row; 7] = [
    (
        "Falco internal: syscall event drop",
        LossKind::DroppedEvents,
        Some("n_drops"),
    ),
    (
        "Tollgate internal: alerts lost",
        LossKind::LostAlerts,
        Some("tollgate.lost"),
    ),
    (
        "Tollgate internal: output queue full",
        LossKind::LostAlerts,
        Some("tollgate.lost"),
    ),
    (
        "Tollgate internal: alerts suppressed",
        LossKind::LostAlerts,
        Some("tollgate.suppressed"),
    ),
    (
        "Tollgate internal: unwatched gap",
        LossKind::Unwatched,
        Some("tollgate.gap.calls"),
    ),
    (
        "Tollgate internal: unwatched process",
        LossKind::Unwatched,
        None,
    ),
    ("Tollgate internal: no progress", LossKind::Unwatched, None),
];

/// Returns what an alert says about losses.
pub(crate) fn of_alert(
    rule: &str,
    fields: &Map<String, Value>,
    time_ns: i64,
    message: &str,
) -> Option<Loss> {
    let (_, kind, field) = TABLE.iter().find(|(name, ..)| *name == rule)?;
    // An interval without a number is at least one; zero would hide it.
    let count = field
        .and_then(|name| number(fields.get(name)?))
        .unwrap_or(1)
        .max(1);
    Some(Loss {
        time_ns,
        kind: *kind,
        count,
        detail: message.to_owned(),
    })
}

/// Falco writes some numbers as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
