//! What became of an action, and the alert that says so.

use std::time::Duration;

use event::Pid;
use outputs::Internal;
use rules::{Alert, AlertValue, Priority};

use crate::load::Action;

/// Name of the alert about an action.
pub(crate) const TAKEN: &str = "Tollgate internal: response";
/// Name of the alert about actions that were not started.
pub(crate) const NOT_TAKEN: &str = "Tollgate internal: response not started";

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It was done.
    Done,
    /// It would have been done.
    DryRun,
    /// There was nothing left to act on.
    Gone,
    /// The guard refused it.
    Refused,
    /// It was not done, or only in part.
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::DryRun => "dry_run",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }

    fn priority(self) -> Priority {
        match self {
            Self::Done | Self::DryRun => Priority::Notice,
            Self::Gone => Priority::Informational,
            Self::Refused => Priority::Warning,
            Self::Failed => Priority::Error,
        }
    }
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    /// What was done, or why not.
    pub(crate) text: String,
    /// The processes that were hit.
    pub(crate) processes: Vec<Pid>,
    /// How to undo it, if it can be.
    pub(crate) undo: Option<String>,
    /// What a script has printed.
    pub(crate) output: Option<String>,
}

impl Outcome {
    /// An outcome without processes.
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            processes: Vec::new(),
            undo: None,
            output: None,
        }
    }

    /// Returns true if the actions after this one are not done unless errors are ignored.
    pub(crate) fn is_error(&self) -> bool {
        matches!(self.status, Status::Failed | Status::Refused)
    }
}

/// When an action began and ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// From the making of the alert to the first effect, or to the end of what has none.
    pub(crate) latency: Duration,
    /// From the start of the action to its end.
    pub(crate) duration: Duration,
}

/// Returns the alert about an action.
pub(crate) fn report(
    rule: &str,
    action: &Action,
    alert: &Alert,
    outcome: &Outcome,
    timing: Timing,
) -> Internal {
    let actionner = action.act.actionner().name();
    let text = |text: &str| AlertValue::Text(text.to_owned());
    let nanoseconds =
        |time: Duration| AlertValue::Uint(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let mut fields = vec![
        ("response.rule", text(rule)),
        ("response.action", text(&action.name)),
        ("response.actionner", text(actionner)),
        ("response.result", text(outcome.status.name())),
        ("response.reason", text(&outcome.text)),
        ("response.alert", text(&alert.rule)),
        ("response.alert_id", text(&alert.id())),
        ("response.latency_ns", nanoseconds(timing.latency)),
        ("response.duration_ns", nanoseconds(timing.duration)),
    ];
    if let Some(process) = &alert.details.process {
        fields.push(("response.pid", AlertValue::Int(process.pid.0.into())));
    }
    let processes = outcome
        .processes
        .iter()
        .map(|pid| AlertValue::Int(pid.0.into()));
    let processes: Vec<_> = processes.collect();
    if !processes.is_empty() {
        fields.push(("response.processes", AlertValue::List(processes)));
    }
    if let Some(undo) = &outcome.undo {
        fields.push(("response.undo", text(undo)));
    }
    if let Some(output) = &outcome.output {
        fields.push(("response.output", text(output)));
    }
    Internal {
        rule: TAKEN,
        priority: outcome.status.priority(),
        message: format!(
            "{actionner} of response rule `{rule}` to `{}`: {}: {}",
            alert.rule,
            outcome.status.name().replace('_', " "),
            outcome.text
        ),
        fields,
    }
}

/// Returns the alert about a rule whose actions are not started.
pub(crate) fn not_started(rule: &str, alert: &Alert, why: &str) -> Internal {
    let text = |text: &str| AlertValue::Text(text.to_owned());
    Internal {
        rule: NOT_TAKEN,
        priority: Priority::Error,
        message: format!("response rule `{rule}` to `{}`: {why}", alert.rule),
        fields: vec![
            ("response.rule", text(rule)),
            ("response.alert", text(&alert.rule)),
            ("response.alert_id", text(&alert.id())),
            ("response.reason", text(why)),
        ],
    }
}
