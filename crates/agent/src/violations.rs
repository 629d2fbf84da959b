//! Violations of the policy as alerts.

use std::sync::{Arc, Mutex, PoisonError};

use abi::Errno;
use capture::notify::Violation;
use event::{Evaluator, Event};
use outputs::Dispatcher;
use rules::{Alert, AlertSink, AlertValue, Engine, EngineOptions, Loader};
use serde_json::json;

use crate::learn::Learner;

/// What stands where a rule's name stands.
pub(super) const RULE: &str = "Policy violation";

/// What is told of each, in the language of rules.
const OUTPUT: &str = "call=%evt.type args=%evt.args file=%fd.name process=%proc.name pid=%proc.pid \
                      exe=%proc.exepath command=%proc.cmdline user=%user.uid container=%container.id";

/// What is learnt of each: an absolute path, whether it is opened to be written, who is contacted, a path
/// that was passed.
const LEARNT: [&str; 7] = [
    "fd.name",
    "evt.is_open_write",
    "fd.rip",
    "fd.rport",
    "fs.path.name",
    "fs.path.source",
    "fs.path.target",
];

/// Turns violations into alerts: one each, none is limited but by the rate of all alerts. Made once for all
/// containers of a process, because it takes as long as loading rules does.
pub(super) struct Violations {
    told: Described,
    /// Where what is seen is recorded, and what is told of it.
    learnt: Option<(Arc<Learner>, Described)>,
}

impl Violations {
    /// `options`: what alerts are given beside their own fields.
    pub(super) fn new(
        learner: Option<Arc<Learner>>,
        options: &EngineOptions,
    ) -> anyhow::Result<Self> {
        let fields = LEARNT.map(|name| format!("%{name}"));
        let learnt = |learner| {
            let described = Described::new(&fields.join(" "), &EngineOptions::default())?;
            anyhow::Ok((learner, described))
        };
        Ok(Self {
            told: Described::new(OUTPUT, options)?,
            learnt: learner.map(learnt).transpose()?,
        })
    }

    /// Reports a violation, or records what a process did.
    pub(super) fn report(
        &self,
        dispatcher: &Dispatcher,
        event: &Event<'_>,
        violation: &Violation<'_>,
    ) {
        if let Some((learner, described)) = &self.learnt {
            let made = described.of(event);
            // The rule holds for every event. Without fields the deed itself would be learnt all the same.
            let fields = made.first().map(|alert| alert.fields.as_slice());
            return learner.learn(event, violation, fields.unwrap_or_default());
        }
        for alert in self.told.of(event) {
            dispatcher.emit(self::described(alert, violation));
        }
    }
}

/// What is told of an event, by an engine with one rule.
struct Described {
    engine: Engine,
    made: Collector,
    scratch: Mutex<<Engine as Evaluator>::Scratch>,
}

impl Described {
    fn new(output: &str, options: &EngineOptions) -> anyhow::Result<Self> {
        let made = Collector::default();
        let engine = engine(output, &made, options)?;
        Ok(Self {
            scratch: Mutex::new(engine.scratch()),
            engine,
            made,
        })
    }

    fn of(&self, event: &Event<'_>) -> Vec<Alert> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.evaluate(&mut scratch, event);
        // Held until here: what was made is of this event.
        self.made.take()
    }
}

/// An engine with one rule, which holds for every event.
fn engine(output: &str, made: &Collector, options: &EngineOptions) -> anyhow::Result<Engine> {
    let rule = json!([{
        "rule": RULE,
        "desc": "The policy denies something, or wants to be told of it",
        "condition": "evt.num > 0",
        "output": output,
        "priority": "WARNING",
        "tags": ["policy"],
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

fn described(mut alert: Alert, violation: &Violation<'_>) -> Alert {
    let (action, what) = match violation.errno {
        Some(errno) => ("denied", format!("denied with {}", name(errno))),
        None => ("audited", "allowed".to_owned()),
    };
    let enforcer = violation.enforcer;
    alert.message = format!(
        "{RULE}: {what} by {} ({enforcer}) {}",
        violation.rule, alert.message
    );
    let text = |text: &str| AlertValue::Text(text.to_owned());
    let mut fields: Vec<(Arc<str>, AlertValue)> = vec![
        ("policy.rule".into(), text(violation.rule)),
        ("policy.enforcer".into(), text(enforcer.name())),
        ("policy.action".into(), text(action)),
    ];
    if let Some(errno) = violation.errno {
        fields.push(("policy.errno".into(), AlertValue::Text(name(errno))));
    }
    fields.append(&mut alert.fields);
    alert.fields = fields;
    alert
}

fn name(errno: Errno) -> String {
    errno
        .name()
        .map_or_else(|| errno.0.to_string(), str::to_owned)
}

/// Keeps what the engine makes.
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
