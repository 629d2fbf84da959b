//! Observes what containers do, by an engine `ebpf` of its own, beside the one that evaluates rules.
//!
//! The engine sees the containers that an observer has chosen, and of these every call that not all programs make. Rules, outputs
//! and settings have no part in it, so none of them can hide anything from a model.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use abi::{Arch, Syscall};
use capture::ebpf::{self, Hooks, RingSizes, Target, WatchScope};
use capture::notify::{EngineObserver, Losses, RingAnswer};
use container::ContainerOptions;
use container::registry::Registry;
use decoder::system_info::SystemInfoOptions;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::{
    Comm, Evaluator, Event, EventKind, Outcome, Param, ParamType, Pid, Process, Relevance, Tid,
};
use policy::Model;
use policy::model::WorkloadAction;
use rules::{AlertSink, AlertValue, Engine, EngineOptions, Loader};
use serde_json::json;

use crate::learn::{CHANGERS, CONTACTS, LOOKERS, MAKERS, PATHS};
use crate::violations::Described;

/// Fields of an event besides [`PATHS`].
const FIELDS: [&str; 7] = [
    "evt.arg.filename",
    "evt.arg.pathname",
    "evt.is_open_write",
    "evt.is_open_create",
    "fd.rip",
    "fd.rport",
    "proc.exepath",
];
/// Name of the rule that chooses calls, for messages.
const RULE: &str = "behaviour";
/// Sizes in bytes of the rings, which there are only while a run lasts: a lost event makes a model incomplete.
const RINGS: RingSizes = RingSizes {
    critical: 8 << 20,
    bulk: 16 << 20,
};

/// Receives what containers do. Its methods are called by threads of the engine, and must not block.
pub trait BehaviorObserver: Send + Sync {
    /// Returns true if the container with this full id is observed. Asked once for each of its places, at their first events.
    fn watches(&self, container: &str) -> bool;

    /// Receives what one call in a container did. `starts_program`: the call was an exec that succeeded.
    fn observe(&self, container: &str, starts_program: bool, actions: &[WorkloadAction]);

    /// Receives that a call in a container did something that could not be read.
    fn unread(&self, container: &str, call: &str);

    /// Receives that events were lost, of whichever containers.
    fn lost(&self, events: u64);

    /// Receives that the engine cannot see something that it should.
    fn trouble(&self, cause: String);
}

/// A running engine. It ends when dropped.
pub struct BehaviorEngine(Option<ebpf::Engine<Watcher>>);

impl BehaviorEngine {
    /// Starts to observe. `containers` is what the container runtime has said about containers.
    ///
    /// # Errors
    ///
    /// The kernel lacks what the engine needs, or the process may not load programs into it.
    pub fn start(
        observer: Arc<dyn BehaviorObserver>,
        containers: Arc<Registry>,
    ) -> Result<Self, Failure> {
        let unable = |error: String| {
            let message = format!("cannot observe containers: {error}");
            Failure::new(Exit::Unsupported, message).help("`tollgate doctor` shows what works here")
        };
        let watcher = Watcher::new(Arc::clone(&observer)).map_err(unable)?;
        let plan = watcher.calls.plan_for_results();
        let chosen = Arc::clone(&observer);
        let scope = WatchScope::chosen(move |id| chosen.watches(id));
        let options = ContainerOptions {
            registry: Some(containers),
            ..ContainerOptions::default()
        };
        let parts = ebpf::Parts {
            plan,
            evaluator: Arc::new(watcher),
            paths: Vec::new(),
            world: SystemInfoOptions {
                container: options,
                ..SystemInfoOptions::default()
            },
            notices: Arc::new(ToObserver(observer)),
            rings: RINGS,
            filters: true,
            hooks: Hooks::Auto,
            rule_threads: 1,
            target: Target::Places(scope),
            transparent: Vec::new(),
        };
        let started = ebpf::Engine::start(parts);
        started
            .map(|engine| Self(Some(engine)))
            .map_err(|error| unable(format!("{:#}", anyhow::Error::new(error))))
    }

    /// Returns true if the engine has ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_none_or(ebpf::Engine::has_ended)
    }
}

impl Drop for BehaviorEngine {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.stop();
            engine.join();
        }
    }
}

/// Calls that are recorded, by the kind of their events.
static RECORDED: LazyLock<BTreeMap<usize, Vec<Syscall>>> = LazyLock::new(|| {
    let native = Arch::native().unwrap_or(Arch::X86_64);
    let profile = Model::recorder();
    let mut calls: BTreeMap<usize, Vec<Syscall>> = BTreeMap::new();
    // Rules with a condition are about calls that all programs make.
    let rules = profile.rules.iter().filter(|rule| rule.when.is_empty());
    for call in rules
        .map(|rule| rule.call)
        .filter(|call| call.number(native).is_some())
    {
        let kind = EventKind::of_syscall(call);
        calls.entry(kind.index()).or_default().push(call);
    }
    calls
});

/// Takes no alert: the rule that chooses calls is evaluated by [`Watcher`] itself.
struct NoAlerts;

impl AlertSink for NoAlerts {
    fn emit(&self, _: rules::Alert) {}
}

/// Makes actions of events.
struct Watcher {
    /// One rule, about the calls that are recorded.
    calls: Engine,
    described: Described,
    observer: Arc<dyn BehaviorObserver>,
}

impl Watcher {
    fn new(observer: Arc<dyn BehaviorObserver>) -> Result<Self, String> {
        let fields = PATHS.iter().chain(&FIELDS);
        let fields: Vec<String> = fields.map(|name| format!("%{name}")).collect();
        let described = Described::new(&fields.join(" "), &EngineOptions::default());
        Ok(Self {
            calls: rule_about_calls()?,
            described: described.map_err(|error| format!("{error:#}"))?,
            observer,
        })
    }

    fn observe(&self, event: &Event<'_>) {
        let Some(calls) = RECORDED.get(&event.kind.index()) else {
            return;
        };
        // Of the places that the engine watches, each is in a container with an id.
        let Some(id) = event.container().full_id.as_deref() else {
            return;
        };
        let name = event.kind.name();
        let mut actions: Vec<WorkloadAction> =
            calls.iter().copied().map(WorkloadAction::Call).collect();
        let succeeded = matches!(event.outcome, Outcome::Returned(result) if result >= 0);
        let starts_program = name.starts_with("exec") && succeeded;
        if name == "socket" {
            actions.extend(socket(event));
        } else if has_objects(event.kind) {
            let made = self.described.of(event);
            // The rule of the description matches every event.
            let fields = made.first().map_or(&[][..], |alert| &alert.fields[..]);
            let objects = objects(name, fields, starts_program);
            // A call that has failed may have had no readable path.
            let lacks_path = objects.is_empty() && has_unread_path(event);
            if succeeded && (lacks_path || objects.iter().any(is_torn)) {
                self.observer.unread(id, name);
            }
            actions.extend(objects.into_iter().filter(|action| !is_torn(action)));
        }
        self.observer.observe(id, starts_program, &actions);
    }
}

/// A path with bytes that are no text: what it names is not known.
fn is_torn(action: &WorkloadAction) -> bool {
    action.path().contains(char::REPLACEMENT_CHARACTER)
}

/// Returns the engine that chooses calls.
fn rule_about_calls() -> Result<Engine, String> {
    let kinds = EventKind::all().filter(|kind| RECORDED.contains_key(&kind.index()));
    let names: Vec<&str> = kinds.map(EventKind::name).collect();
    let rule = json!([{
        "rule": RULE,
        "desc": "Calls that not all programs make",
        "condition": format!("evt.type in ({})", names.join(", ")),
        "output": "%evt.type",
        "priority": "DEBUG",
    }]);
    // JSON is YAML.
    let (ruleset, mut problems) = Loader::new().add(RULE, &rule.to_string()).finish();
    let (engine, found) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoAlerts));
    problems.extend(found);
    match problems.iter().find(|problem| problem.is_error()) {
        Some(problem) => Err(problem.message.clone()),
        None => Ok(engine),
    }
}

/// Returns true if events of this kind are about files, programs or addresses.
fn has_objects(kind: EventKind) -> bool {
    let name = kind.name();
    let mut params = kind.spec().params.iter();
    params.any(|param| matches!(param.ty, ParamType::Path))
        || name.starts_with("exec")
        || [&MAKERS[..], &CONTACTS, &CHANGERS, &LOOKERS]
            .iter()
            .any(|names| names.contains(&name))
}

fn has_unread_path(event: &Event<'_>) -> bool {
    let specs = event.kind.spec().params;
    let mut params = specs.iter().zip(event.params);
    params.any(|(spec, param)| {
        matches!(spec.ty, ParamType::Path) && matches!(param, Param::Unreadable)
    })
}

/// The socket that a call makes.
fn socket(event: &Event<'_>) -> Option<WorkloadAction> {
    let number = |name: &str| {
        let param = event.params.get(event.kind.param_index(name)?)?;
        match param {
            Param::Uint(number) => Some(*number),
            Param::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    };
    Some(WorkloadAction::Socket(
        number("domain")?,
        number("type")?,
        number("proto")?,
    ))
}

type Fields = [(Arc<str>, AlertValue)];

fn value<'f>(fields: &'f Fields, name: &str) -> Option<&'f AlertValue> {
    let (_, value) = fields.iter().find(|(known, _)| &**known == name)?;
    Some(value)
}

fn text<'f>(fields: &'f Fields, name: &str) -> Option<&'f str> {
    match value(fields, name)? {
        AlertValue::Text(text) => Some(text),
        _ => None,
    }
}

fn is_set(fields: &Fields, name: &str) -> bool {
    matches!(value(fields, name), Some(AlertValue::Bool(true)))
}

/// A path by which a file can be found: that of a nameless one cannot be.
fn path(text: &str) -> Option<&str> {
    (text.starts_with('/') && !text.ends_with(" (deleted)")).then_some(text)
}

/// What a call did to files, programs and addresses. `fields` are the values of [`PATHS`] and [`FIELDS`].
fn objects(call: &str, fields: &Fields, starts_program: bool) -> Vec<WorkloadAction> {
    // `fs.path` is known only after a call has succeeded, the arguments of calls that make, move and remove names before.
    let is_maker = MAKERS.contains(&call);
    let names = match (call.starts_with("exec"), is_maker) {
        (true, _) => &FIELDS[..2],
        (false, true) => &PATHS[..],
        (false, false) => &PATHS[..4],
    };
    let mut paths: Vec<&str> = names
        .iter()
        .filter_map(|name| path(text(fields, name)?))
        .collect();
    paths.dedup();
    let owned = |path: &str| path.to_owned();
    if call.starts_with("exec") {
        // The interpreter of a script is the program that runs.
        let runs = text(fields, "proc.exepath").and_then(path);
        let runs = runs.filter(|_| starts_program);
        let programs = paths.into_iter().chain(runs);
        return programs.map(owned).map(WorkloadAction::Execute).collect();
    }
    if CONTACTS.contains(&call) {
        return contact(fields).into_iter().collect();
    }
    let changes = is_maker || is_set(fields, "evt.is_open_write") || CHANGERS.contains(&call);
    let makes = is_maker || is_set(fields, "evt.is_open_create");
    let mut actions = Vec::new();
    for path in paths {
        if makes && !path.starts_with("/proc/") {
            actions.push(WorkloadAction::Make(path.to_owned()));
        }
        actions.push(match (changes, LOOKERS.contains(&call)) {
            (true, _) => WorkloadAction::Write(path.to_owned()),
            (false, true) => WorkloadAction::Look(path.to_owned()),
            (false, false) => WorkloadAction::Read(path.to_owned()),
        });
    }
    actions
}

/// The peer of a connection or message.
fn contact(fields: &Fields) -> Option<WorkloadAction> {
    let port = match value(fields, "fd.rport") {
        Some(AlertValue::Text(text)) => text.parse().ok(),
        Some(AlertValue::Int(number)) => u16::try_from(*number).ok(),
        Some(AlertValue::Uint(number)) => u16::try_from(*number).ok(),
        _ => None,
    };
    let address = text(fields, "fd.rip").and_then(|text| text.parse::<IpAddr>().ok());
    if let (Some(address), Some(port)) = (address, port) {
        return Some(WorkloadAction::Contact(address, port));
    }
    // `ADDRESS->PATH` of a local socket.
    let name = text(fields, "fd.name")?;
    let peer = name.rsplit("->").next().unwrap_or(name);
    path(peer).map(|path| WorkloadAction::ContactLocally(path.to_owned()))
}

impl Evaluator for Watcher {
    type Scratch = <Engine as Evaluator>::Scratch;

    fn scratch(&self) -> Self::Scratch {
        self.calls.scratch()
    }

    fn concerns(&self, kind: EventKind) -> bool {
        self.calls.concerns(kind)
    }

    fn prefilter(&self, scratch: &mut Self::Scratch, event: &Event<'_>) -> Relevance {
        self.calls.prefilter(scratch, event)
    }

    fn evaluate(&self, _: &mut Self::Scratch, event: &Event<'_>) -> Vec<Arc<str>> {
        self.observe(event);
        Vec::new()
    }
}

/// Passes on what the engine does not see.
struct ToObserver(Arc<dyn BehaviorObserver>);

impl EngineObserver for ToObserver {
    fn undecided(&self, _: &Event<'_>, _: &[Arc<str>]) {
        // No event is: the kind of an event is always known.
    }

    fn read_timed_out(&self, pid: Pid) {
        self.0
            .trouble(format!("process {} could not be read in time", pid.0));
    }

    fn no_progress(&self, _: &Process, _: Tid, call: &'static str) {
        self.0.trouble(format!("results of {call} were not seen"));
    }

    fn renamed(&self, _: &Process, _: Comm) {
        // No rule compares names.
    }

    fn ring(&self, process: &Process, answer: RingAnswer) {
        if matches!(answer, RingAnswer::Refused) {
            return;
        }
        let name = String::from_utf8_lossy(process.exec_name().as_bytes()).into_owned();
        self.0.trouble(format!(
            "{name} has made an io_uring, whose operations are not seen"
        ));
    }

    fn events_dropped(&self, losses: &Losses) -> ControlFlow<()> {
        self.0.lost(losses.dropped);
        ControlFlow::Continue(())
    }

    fn engine_trouble(&self, error: &(dyn std::error::Error + 'static)) {
        self.0.trouble(error.to_string());
    }
}

#[cfg(test)]
#[path = "behavior_tests.rs"]
mod tests;
