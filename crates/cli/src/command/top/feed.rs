//! What `tollgate top` shows: an evaluator that counts, and explains each alert.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use capture::notify::EngineObserver;
use event::{
    Comm, Evaluator, Event, EventKind, ImpossibleOpen, Opening, Pid, Plan, Process, Relevance, Tid,
};
use rule_tools::event_explanation::{reasons, shown};
use rules::trace::Tracer;
use rules::{Alert, AlertSink, AlertValue, Engine, Ruleset};
use top::{AlertRow, Seen, Tally};

/// Most ancestors that are shown.
const MOST_ANCESTORS: usize = 12;

thread_local! {
    /// Alerts that the rules make while this thread evaluates an event.
    static MADE: RefCell<Vec<Alert>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the alerts of a thread for the [`Feed`] that evaluates there.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadSink;

impl AlertSink for ThreadSink {
    fn emit(&self, alert: Alert) {
        MADE.with_borrow_mut(|made| made.push(alert));
    }
}

/// Evaluates events by rules, and tells the tally about them.
pub(super) struct Feed {
    engine: Engine,
    ruleset: Ruleset,
    /// Made for the first alert of a rule.
    tracers: Mutex<HashMap<Arc<str>, Arc<Tracer>>>,
    tally: Arc<Mutex<Tally>>,
}

/// Working memory of one thread.
pub(super) struct Scratch {
    rules: <Engine as Evaluator>::Scratch,
    /// The event that was counted last: thread, time, kind.
    last: Option<(Tid, u64, EventKind)>,
}

impl Feed {
    pub(super) fn new(engine: Engine, ruleset: Ruleset, tally: Arc<Mutex<Tally>>) -> Self {
        Self {
            engine,
            ruleset,
            tracers: Mutex::default(),
            tally,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        capture::ebpf::plan(self.engine.plan_for_results())
    }

    pub(super) fn paths(&self) -> Vec<Vec<u8>> {
        self.engine.paths().into_iter().collect()
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, scratch: &mut Scratch, event: &Event<'_>, began: Instant) {
        // Thread 0 marks a question about a call that nobody has made.
        if event.tid == Tid(0) {
            return;
        }
        let now = Instant::now();
        let ns = now.saturating_duration_since(began).as_nanos();
        let key = Some((event.tid, event.time_ns, event.kind));
        let process = event.process;
        let seen = Seen {
            pid: process.pid.0,
            call: event.kind.name(),
            ns: u64::try_from(ns).unwrap_or(u64::MAX),
            is_new: scratch.last != key,
        };
        scratch.last = key;
        let mut tally = self.tally();
        tally.count(seen, now, || {
            let parent = process.parent().map(|parent| name(&parent));
            (name(process), parent.unwrap_or_default())
        });
        if seen.call.starts_with("exec") {
            tally.renamed(seen.pid, &name(process));
        }
    }

    /// Returns the parts of the rule's condition that hold for the event.
    fn why(&self, rule: &Arc<str>, event: &Event<'_>) -> Vec<String> {
        let tracer = {
            let mut tracers = self.tracers.lock().unwrap_or_else(PoisonError::into_inner);
            match (tracers.get(rule), self.ruleset.rule(rule)) {
                (Some(tracer), _) => Arc::clone(tracer),
                (None, Some(known)) => {
                    let tracer = Arc::new(Tracer::new(&self.ruleset, known));
                    tracers.insert(Arc::clone(rule), Arc::clone(&tracer));
                    tracer
                }
                (None, None) => return vec![format!("the rule {rule} is not known")],
            }
        };
        reasons(&tracer.explain(event))
    }

    fn row(&self, alert: &Alert, event: &Event<'_>) -> AlertRow {
        let caller = name(event.process);
        let object = alert
            .fields
            .iter()
            .find(|(field, _)| field.starts_with("fd."));
        let object = object.map(|(_, value)| shown(value)).unwrap_or_default();
        AlertRow {
            priority: alert.priority.to_string(),
            rule: alert.rule.to_string(),
            message: alert.message.clone(),
            process: format!("{} {caller}", event.process.pid.0),
            subject: format!("{caller} {object}"),
            time: clock(alert.time_ns),
            tree: tree(event.process, command(alert)),
            why: self.why(&alert.rule, event),
            count: 0,
        }
    }
}

impl Evaluator for Feed {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch {
            rules: self.engine.scratch(),
            last: None,
        }
    }

    fn concerns(&self, kind: EventKind) -> bool {
        self.engine.concerns(kind)
    }

    fn has_ruled_out(
        &self,
        scratch: &mut Scratch,
        opening: &Opening<'_>,
    ) -> Option<ImpossibleOpen> {
        self.engine.has_ruled_out(&mut scratch.rules, opening)
    }

    fn prefilter(&self, scratch: &mut Scratch, event: &Event<'_>) -> Relevance {
        let began = Instant::now();
        let relevance = self.engine.prefilter(&mut scratch.rules, event);
        self.count(scratch, event, began);
        relevance
    }

    fn evaluate(&self, scratch: &mut Scratch, event: &Event<'_>) -> Vec<Arc<str>> {
        let began = Instant::now();
        let undecided = self.engine.evaluate(&mut scratch.rules, event);
        self.count(scratch, event, began);
        for alert in MADE.take() {
            let row = self.row(&alert, event);
            let mut tally = self.tally();
            tally.alerts.add(row);
            tally.alert_of(event.process.pid.0);
        }
        undecided
    }
}

fn text(comm: Comm) -> String {
    String::from_utf8_lossy(comm.as_bytes()).into_owned()
}

fn name(process: &Process) -> String {
    text(process.exec_name())
}

/// Returns the command line, if the alert has it.
fn command(alert: &Alert) -> Option<String> {
    let field = alert
        .fields
        .iter()
        .find(|(field, _)| &**field == "proc.cmdline");
    match field {
        Some((_, AlertValue::Text(text))) => Some(text.clone()),
        _ => None,
    }
}

/// The process, with its command line if that is known, and its ancestors.
fn tree(process: &Process, command: Option<String>) -> Vec<String> {
    let own = command.unwrap_or_else(|| name(process));
    let mut lines = vec![format!("{} {own}", process.pid.0)];
    let mut next = process.parent();
    while let Some(ancestor) = next.filter(|_| lines.len() < MOST_ANCESTORS) {
        lines.push(format!("{} {}", ancestor.pid.0, name(&ancestor)));
        next = ancestor.parent();
    }
    lines
}

/// The time of day of a time since the epoch.
fn clock(time_ns: u64) -> String {
    match jiff::Timestamp::from_nanosecond(time_ns.into()) {
        Ok(time) => time
            .to_zoned(jiff::tz::TimeZone::system())
            .strftime("%H:%M:%S")
            .to_string(),
        Err(_) => "-".to_owned(),
    }
}

/// Reports of the engine about itself.
#[derive(Debug, Default)]
pub(super) struct EngineReports {
    undecided: AtomicU64,
    timeouts: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl EngineReports {
    /// Formats what the user has to know; empty if there is nothing.
    pub(super) fn trouble(&self) -> String {
        let count = |name: &str, count: &AtomicU64| match count.load(Ordering::Relaxed) {
            0 => String::new(),
            count => format!("  {count} {name}"),
        };
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = trouble
            .as_ref()
            .map_or_else(String::new, |text| format!("  {text}"));
        let undecided = count("undecided", &self.undecided);
        format!(
            "{undecided}{}{trouble}",
            count("unreadable", &self.timeouts)
        )
    }
}

impl EngineObserver for EngineReports {
    fn undecided(&self, _event: &Event<'_>, rules: &[Arc<str>]) {
        let count = u64::try_from(rules.len()).unwrap_or(u64::MAX);
        self.undecided.fetch_add(count, Ordering::Relaxed);
    }

    fn read_timed_out(&self, _pid: Pid) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    fn engine_trouble(&self, error: &(dyn std::error::Error + 'static)) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = Some(top::escaped(&error.to_string()));
    }
}
