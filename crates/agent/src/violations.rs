//! Reports policy violations as alerts, whichever enforcer detects them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use abi::Errno;
use capture::notify::Violation;
use event::{Evaluator, Event};
use outputs::Dispatcher;
use policy::EnforcerKind;
use rules::{Alert, AlertDetails, AlertSink, AlertValue, Engine, EngineOptions, Loader, Priority};
use serde_json::json;

use crate::guard::DenialReporter;
use crate::learn::{Learner, PATHS};

/// Rule name of these alerts.
const RULE: &str = "Policy violation";

/// Reported values besides call or operation: the name in the message, and the field.
const SHOWN: [(&str, &str); 8] = [
    ("args", "evt.args"),
    ("file", "fd.name"),
    ("process", "proc.name"),
    ("pid", "proc.pid"),
    ("exe", "proc.exepath"),
    ("command", "proc.cmdline"),
    ("user", "user.uid"),
    ("container", "container.id"),
];
/// [`SHOWN`] for the start of a program, which is a call with a file and without a descriptor.
const SHOWN_OF_EXEC: [(&str, &str); 7] = [
    ("file", "evt.arg.filename"),
    SHOWN[2],
    SHOWN[3],
    SHOWN[4],
    SHOWN[5],
    SHOWN[6],
    SHOWN[7],
];
/// Name and field of the action: a trapped call, or the kernel's name of an operation.
const CALL: (&str, &str) = ("call", "evt.type");
const OPERATION: (&str, &str) = ("operation", "policy.operation");
/// Tags of these alerts.
const TAGS: [&str; 1] = ["policy"];

/// Fields recorded for learning besides [`PATHS`]: whether a file is opened for writing, and the peer.
const LEARNT: [&str; 3] = ["evt.is_open_write", "fd.rip", "fd.rport"];

/// Converts violations to alerts, one each, subject only to the rate limit of all alerts. Created
/// once for all containers of a process, because it takes as long as loading rules.
pub(super) struct Violations {
    described: Described,
    /// The same for the start of a program, whose `evt.args` has the environment with all its secrets.
    described_exec: Described,
    /// Reporter of a guarded command, in place of alerts.
    guard: Option<Arc<DenialReporter>>,
    /// Recorder for learning, with its description of events.
    learnt: Option<(Arc<Learner>, Described)>,
}

impl Violations {
    /// Creates the converter. `options` are additions to the alerts' own fields.
    pub(super) fn new(
        learner: Option<Arc<Learner>>,
        options: &EngineOptions,
        guard: Option<Arc<DenialReporter>>,
    ) -> anyhow::Result<Self> {
        let fields = PATHS.iter().chain(&LEARNT);
        let fields: Vec<String> = fields.map(|name| format!("%{name}")).collect();
        let learnt = |learner| {
            let described = Described::new(&fields.join(" "), &EngineOptions::default())?;
            anyhow::Ok((learner, described))
        };
        Ok(Self {
            described: Described::new(&output(&SHOWN), options)?,
            described_exec: Described::new(&output(&SHOWN_OF_EXEC), options)?,
            guard,
            learnt: learner.map(learnt).transpose()?,
        })
    }

    /// Asks whether a process may connect to a peer that the list does not have.
    pub(super) fn allows_connect(&self, process: &str, peer: &str) -> bool {
        let guard = self.guard.as_ref();
        guard.is_some_and(|guard| guard.asks(process, peer))
    }

    /// Reports a violation, or records a process's action.
    pub(super) fn report(
        &self,
        dispatcher: &Dispatcher,
        event: &Event<'_>,
        violation: &Violation<'_>,
    ) {
        if let Some((learner, described)) = &self.learnt {
            let made = described.of(event);
            // The rule matches every event. Without fields the action itself would still be
            // recorded.
            let fields = made.first().map(|alert| alert.fields.as_slice());
            return learner.learn(event, violation, fields.unwrap_or_default());
        }
        let described = match event.kind.name().starts_with("exec") {
            true => &self.described_exec,
            false => &self.described,
        };
        if let Some(guard) = &self.guard {
            let made = described.of(event);
            // Without fields the denial itself is reported nevertheless.
            let fields = made.first().map(|alert| alert.fields.as_slice());
            return guard.report(violation, fields.unwrap_or_default());
        }
        let ruling = Ruling {
            rule: violation.rule,
            enforcer: violation.enforcer,
            errno: violation.errno,
        };
        for alert in described.of(event) {
            dispatcher.emit(ruling.describe(alert));
        }
    }
}

/// Description of an event, made by a rule engine with one rule.
pub(super) struct Described {
    engine: Engine,
    made: Collector,
    scratch: Mutex<<Engine as Evaluator>::Scratch>,
}

impl Described {
    /// Creates a description with the fields of this output.
    pub(super) fn new(output: &str, options: &EngineOptions) -> anyhow::Result<Self> {
        let made = Collector::default();
        let engine = engine(output, &made, options)?;
        Ok(Self {
            scratch: Mutex::new(engine.scratch()),
            engine,
            made,
        })
    }

    /// Describes an event: one alert with its fields.
    pub(super) fn of(&self, event: &Event<'_>) -> Vec<Alert> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.evaluate(&mut scratch, event);
        // The lock is held until here, so the result belongs to this event.
        self.made.take()
    }
}

/// Creates a rule engine with one rule, which matches every event.
fn engine(output: &str, made: &Collector, options: &EngineOptions) -> anyhow::Result<Engine> {
    let rule = json!([{
        "rule": RULE,
        "desc": "The policy denied a call, or reports it",
        "condition": "evt.num > 0",
        "output": output,
        "priority": "WARNING",
        "tags": TAGS,
        "warn_evttypes": false,
    }]);
    // JSON is YAML.
    let (ruleset, mut problems) = Loader::new().add(RULE, &rule.to_string()).finish();
    let (engine, found) = Engine::new(&ruleset, options, Box::new(made.clone()));
    problems.extend(found);
    match problems.iter().find(|problem| problem.is_error()) {
        Some(problem) => anyhow::bail!("cannot report violations: {}", problem.message),
        None => Ok(engine),
    }
}

/// Returns the output template for a call.
fn output(shown: &[(&str, &str)]) -> String {
    let shown = std::iter::once(&CALL).chain(shown);
    let shown: Vec<_> = shown
        .map(|(name, field)| format!("{name}=%{field}"))
        .collect();
    shown.join(" ")
}

/// A violation reported by the kernel, for which no call waited.
pub(super) struct KernelViolation<'a> {
    /// The denying rule and the result.
    pub(super) ruling: Ruling<'a>,
    /// Name of the operation.
    pub(super) operation: &'a str,
    /// The values of [`SHOWN`], in the same order.
    pub(super) values: [AlertValue; SHOWN.len()],
    pub(super) hostname: Arc<str>,
}

impl KernelViolation<'_> {
    /// Converts the violation to an alert in the same format as that of a call.
    pub(super) fn into_alert(self) -> Alert {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        });
        let operation = AlertValue::Text(self.operation.to_owned());
        let values = std::iter::once(operation).chain(self.values);
        let shown = std::iter::once(OPERATION).chain(SHOWN).zip(values);
        let (texts, fields): (Vec<_>, Vec<_>) = shown
            .map(|((name, field), value)| {
                (
                    format!("{name}={}", shown_as(&value)),
                    (field.into(), value),
                )
            })
            .unzip();
        self.ruling.describe(Alert {
            time_ns: now,
            made_ns: now,
            rule: RULE.into(),
            priority: Priority::Warning,
            source: "syscall".into(),
            tags: TAGS.map(str::to_owned).into(),
            hostname: self.hostname,
            message: texts.join(" "),
            fields,
            details: AlertDetails::default(),
        })
    }
}

/// Formats a value as in an output template.
fn shown_as(value: &AlertValue) -> String {
    match value {
        AlertValue::Text(text) => text.clone(),
        AlertValue::Int(number) => number.to_string(),
        AlertValue::Uint(number) => number.to_string(),
        _ => "<NA>".to_owned(),
    }
}

/// A policy's decision on an action.
#[derive(Clone, Copy)]
pub(super) struct Ruling<'a> {
    /// Name of the policy's rule.
    pub(super) rule: &'a str,
    /// Enforcer that denied the action.
    pub(super) enforcer: EnforcerKind,
    /// Error returned to the caller; `None` if the violation was only reported.
    pub(super) errno: Option<Errno>,
}

impl Ruling<'_> {
    /// Adds the decision to the front of an alert.
    fn describe(&self, mut alert: Alert) -> Alert {
        let (action, what) = match self.errno {
            Some(errno) => ("denied", format!("denied with {}", name(errno))),
            None => ("audited", "allowed".to_owned()),
        };
        let Self { rule, enforcer, .. } = self;
        // No file of the user's has the rule behind these alerts.
        alert.details.file = None;
        alert.message = format!("{RULE}: {what} by {rule} ({enforcer}) {}", alert.message);
        let text = |text: &str| AlertValue::Text(text.to_owned());
        let mut fields: Vec<(Arc<str>, AlertValue)> = vec![
            ("policy.rule".into(), text(rule)),
            ("policy.enforcer".into(), text(enforcer.name())),
            ("policy.action".into(), text(action)),
        ];
        if let Some(errno) = self.errno {
            fields.push(("policy.errno".into(), AlertValue::Text(name(errno))));
        }
        fields.append(&mut alert.fields);
        alert.fields = fields;
        alert
    }
}

fn name(errno: Errno) -> String {
    errno
        .name()
        .map_or_else(|| errno.0.to_string(), str::to_owned)
}

/// Collects the alerts of the rule engine.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Alert>>>);

impl Collector {
    fn take(&self) -> Vec<Alert> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AlertSink for Collector {
    fn emit(&self, alert: Alert) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(alert);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(errno: Option<Errno>) -> Alert {
        let text = |text: &str| AlertValue::Text(text.to_owned());
        KernelViolation {
            ruling: Ruling {
                rule: "r",
                enforcer: EnforcerKind::Bpf,
                errno,
            },
            operation: "open",
            values: [
                text("a"),
                AlertValue::Absent,
                text("cat"),
                AlertValue::Int(7),
                text("/bin/cat"),
                AlertValue::Absent,
                AlertValue::Int(0),
                text("host"),
            ],
            hostname: "h".into(),
        }
        .into_alert()
    }

    #[test]
    fn what_the_kernel_tells_reads_as_what_a_call_does() {
        let alert = violation(Some(Errno(13)));
        assert_eq!(
            alert.message,
            "Policy violation: denied with EACCES by r (BPF) operation=open args=a file=<NA> process=cat pid=7 \
             exe=/bin/cat command=<NA> user=0 container=host"
        );
        let names: Vec<_> = alert.fields.iter().map(|(name, _)| &**name).collect();
        let head = [
            "policy.rule",
            "policy.enforcer",
            "policy.action",
            "policy.errno",
        ];
        let shown = std::iter::once(OPERATION).chain(SHOWN);
        let expected = head.into_iter().chain(shown.map(|(_, field)| field));
        assert!(names.iter().copied().eq(expected), "{names:?}");
        let reported = violation(None);
        assert!(
            reported
                .message
                .starts_with("Policy violation: allowed by r (BPF) ")
        );
        assert_eq!(reported.fields.len(), alert.fields.len() - 1);
        assert_eq!(
            output(&SHOWN),
            "call=%evt.type args=%evt.args file=%fd.name process=%proc.name pid=%proc.pid exe=%proc.exepath \
             command=%proc.cmdline user=%user.uid container=%container.id"
        );
        assert_eq!(
            output(&SHOWN_OF_EXEC),
            "call=%evt.type file=%evt.arg.filename process=%proc.name pid=%proc.pid exe=%proc.exepath \
             command=%proc.cmdline user=%user.uid container=%container.id",
            "the environment stays out of the report"
        );
    }
}
