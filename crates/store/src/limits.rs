//! Limits of answers, the same for each database, and what the audit log says.

use crate::account::Triage;
use crate::model::{Acknowledgement, Filter, GroupId, Scope};

/// Rows of a page if the filter names no number, and at most.
const PAGE: u32 = 50;
const MAX_PAGE: u32 = 1000;

/// Alerts that a search by words looks at, the latest ones. A common word occurs in all of them.
pub(crate) const SEARCHED: u32 = 5000;

/// Rules and hosts in an overview, and the latest losses.
pub(crate) const TOP: u32 = 10;

/// Rows of a tail at most.
pub(crate) const MAX_TAIL: u32 = 1000;

/// Characters of an alert's output that a row of a tail has: a body may have 256 KiB.
pub(crate) const OUTPUT: u32 = 500;

/// Alerts that a tail counts as left out at most.
pub(crate) const COUNTED: u32 = 10_000;

/// Comments of a group that are kept: a script must not fill the store.
pub(crate) const COMMENTS: i64 = 500;

/// Returns the number of rows that a filter asks for.
pub(crate) fn rows(filter: &Filter) -> u32 {
    match filter.limit {
        0 => PAGE,
        limit => limit.min(MAX_PAGE),
    }
}

/// Returns what the audit log calls a scope.
pub(crate) fn scope_text(scope: &Scope) -> String {
    match scope.columns() {
        (class, "") => format!("agents of class {class}"),
        (_, role) => role.to_owned(),
    }
}

/// Returns action and object of an acknowledgement for the audit log.
pub(crate) fn acknowledgement(group: GroupId, how: &Acknowledgement) -> (&'static str, String) {
    let action = match how.is_set {
        true => "acknowledge",
        false => "take acknowledgement back",
    };
    (action, format!("group {}: {}", group.0, how.note))
}

/// Returns action and object of a change of a group for the audit log.
pub(crate) fn triage(group: GroupId, change: &Triage) -> (&'static str, String) {
    let object = |what: &str| format!("group {}: {what}", group.0);
    match change {
        Triage::Assign(to) if to.is_empty() => ("assign", object("nobody")),
        Triage::Assign(to) => ("assign", object(to)),
        Triage::Mute(Some(until)) => ("mute", object(&format!("until {until} ns"))),
        Triage::Mute(None) => ("unmute", object("")),
        Triage::Comment(text) => ("comment", object(text)),
    }
}
