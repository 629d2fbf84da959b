//! Looks into a capture: the events that a condition selects, page by page, and the process tree.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use event::{Evaluator, Event, Image, Pid, Process, Relevance, StartTime};
use rules::condition::ast::SourceId;
use rules::condition::parser::parse;
use rules::engine::Scratch;
use rules::{Alert, AlertSink, AlertValue, Diagnostic, Engine, EngineOptions, Loader};
use scap::browse::{BrowseQuery, Browsed, BrowsedEvent, BrowsedProcess, FilterError};
use scap::read::Reader;
use scap::replay::Replay;

/// Number of events between two looks at the clock.
const BATCH: u64 = 256;

/// Longest chain of ancestors that is followed.
const MAX_ANCESTORS: usize = 64;

/// Longest text of a value in bytes: a page shows less.
const MAX_TEXT: usize = 4096;

/// How a compressed capture begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Fields of an event, in the order of [`BrowsedEvent`].
const OUTPUT: &str = "%evt.num %evt.time %proc.name %thread.tid %evt.type %evt.args";

/// Condition that matches every event.
const ALL: &str = "evt.num > 0";

/// The condition's line begins with this.
const INDENT: &str = "    ";

/// Looks into a capture. A broken one shows what is before its mistake, and a compressed one nothing: a small one could be endless.
///
/// # Errors
///
/// The condition cannot be used.
pub fn browse(source: impl Read, query: BrowseQuery<'_>) -> Result<Browsed, FilterError> {
    let found = Found::default();
    let browser = Browser {
        engine: engine(query.filter, found.clone())?,
        found,
        query,
        tree: Mutex::default(),
    };
    let stopped = browser.read(source);
    Ok(browser.end(stopped))
}

fn unreadable(error: &scap::Error) -> String {
    let mut text = format!("the capture cannot be read further: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Creates an engine whose only rule has the condition.
fn engine(filter: &str, found: Found) -> Result<Engine, FilterError> {
    let filter = match filter.trim() {
        "" => ALL,
        filter => filter,
    };
    if let Some(at) = filter.chars().position(char::is_control) {
        return Err(FilterError {
            message: "a condition has no line breaks and no control characters".to_owned(),
            at: Some(at),
            help: None,
        });
    }
    // The parser knows the place of a mistake exactly.
    parse(filter, SourceId(0)).map_err(|error| {
        let start = usize::try_from(error.span.start).unwrap_or(usize::MAX);
        FilterError {
            at: filter.get(..start).map(|before| before.chars().count()),
            message: error.message,
            help: error.help,
        }
    })?;
    // A literal block: nothing in the condition is YAML.
    let rule = format!(
        "- rule: events\n  desc: what is shown\n  output: \"{OUTPUT}\"\n  priority: DEBUG\n  \
         warn_evttypes: false\n  condition: |-\n{INDENT}{filter}\n"
    );
    let (ruleset, mut diagnostics) = Loader::new().add(SOURCE, &rule).build();
    let (engine, further) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(found));
    diagnostics.extend(further);
    match diagnostics.iter().find(|it| it.is_error()) {
        None => Ok(engine),
        Some(error) => Err(place(&rule, error)),
    }
}

/// Name of the rule's text in messages, which nobody sees.
const SOURCE: &str = "the condition";

/// Returns an error with its place in the condition, which is the last line of the rule.
fn place(rule: &str, error: &Diagnostic) -> FilterError {
    let line = rule.lines().count();
    let is_in_filter = usize::try_from(error.location.line) == Ok(line);
    let column = usize::try_from(error.location.column).unwrap_or(0);
    FilterError {
        message: error.message.clone(),
        at: column
            .checked_sub(INDENT.len() + 1)
            .filter(|_| is_in_filter),
        help: error.help.clone(),
    }
}

/// The alerts of the only rule.
#[derive(Clone, Default)]
struct Found(Arc<Mutex<Vec<BrowsedEvent>>>);

impl Found {
    fn events(&self) -> MutexGuard<'_, Vec<BrowsedEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AlertSink for Found {
    fn emit(&self, alert: Alert) {
        let mut event = BrowsedEvent::default();
        for (name, value) in &alert.fields {
            let text = text(value);
            match &**name {
                // It is a number: the engine made it.
                "evt.num" => event.number = text.parse().unwrap_or(0),
                "evt.time" => event.time = text,
                "proc.name" => event.process = text,
                "thread.tid" => event.thread = text,
                "evt.type" => event.call = text,
                "evt.args" => event.arguments = text,
                _ => {}
            }
        }
        self.events().push(event);
    }
}

fn text(value: &AlertValue) -> String {
    let mut text = match value {
        AlertValue::Absent => String::new(),
        AlertValue::Bool(value) => value.to_string(),
        AlertValue::Int(value) => value.to_string(),
        AlertValue::Uint(value) => value.to_string(),
        AlertValue::Float(value) => value.to_string(),
        AlertValue::Text(text) => text.clone(),
        AlertValue::List(values) => values.iter().map(self::text).collect::<Vec<_>>().join(","),
    };
    bound(&mut text);
    text
}

fn bound(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at));
        // 0 is one, so there is always one.
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}

/// Evaluates the condition until there are enough events, and notes the processes of all.
struct Browser<'q> {
    engine: Engine,
    found: Found,
    query: BrowseQuery<'q>,
    tree: Mutex<Tree>,
}

#[derive(Default)]
struct Tree {
    places: HashMap<(Pid, StartTime), usize>,
    processes: Vec<BrowsedProcess>,
    has_more: bool,
    /// Events so far, without those that only introduce processes.
    events: u64,
}

impl Browser<'_> {
    /// Evaluates the events of a capture. Returns why not all of them.
    fn read(&self, mut source: impl Read) -> Option<String> {
        let ends = Instant::now() + self.query.time;
        let mut start = Vec::new();
        let begun = source.by_ref().take(2).read_to_end(&mut start);
        if let Err(cause) = begun {
            return Some(unreadable(&scap::Error::Io { offset: 0, cause }));
        }
        if start == GZIP {
            return Some("the capture is compressed; download it to look into it".to_owned());
        }
        let mut replay = Replay::new(self, 0);
        let mut reader = match Reader::new(start.as_slice().chain(source)) {
            Err(error) => return Some(unreadable(&error)),
            Ok(reader) => reader,
        };
        loop {
            match replay.step(&mut reader, BATCH) {
                Err(error) => return Some(unreadable(&error)),
                Ok(false) => return None,
                Ok(true) if replay.counts().events >= self.query.scanned => {
                    let scanned = self.query.scanned;
                    return Some(format!("the first {scanned} events were looked at"));
                }
                Ok(true) if Instant::now() >= ends => {
                    let seconds = self.query.time.as_secs();
                    return Some(format!(
                        "what could be looked at in {seconds} s was looked at"
                    ));
                }
                Ok(true) => {}
            }
        }
    }

    fn end(self, stopped: Option<String>) -> Browsed {
        let mut events = std::mem::take(&mut *self.found.events());
        let has_more = events.len() > self.query.events;
        events.truncate(self.query.events);
        let tree = self.tree.into_inner();
        let tree = tree.unwrap_or_else(PoisonError::into_inner);
        Browsed {
            events,
            has_more,
            scanned: tree.events,
            stopped,
            processes: tree.processes,
            has_more_processes: tree.has_more,
        }
    }
}

impl Evaluator for Browser<'_> {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        self.engine.scratch()
    }

    fn prefilter(&self, _scratch: &mut Scratch, _event: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, scratch: &mut Scratch, event: &Event<'_>) -> Vec<Arc<str>> {
        let mut tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        tree.note(event, self.query.processes);
        drop(tree);
        // One more than is shown tells that there are more.
        let is_enough = self.found.events().len() > self.query.events;
        match is_enough || event.number <= self.query.after {
            true => Vec::new(),
            false => self.engine.evaluate(scratch, event),
        }
    }
}

impl Tree {
    /// Notes the process of an event below its ancestors.
    fn note(&mut self, event: &Event<'_>, limit: usize) {
        self.events += 1;
        let mut line = Vec::new();
        let mut next = event.process.parent();
        while let Some(process) = next.filter(|_| line.len() < MAX_ANCESTORS) {
            next = process.parent();
            let is_known = self.places.contains_key(&(process.pid, process.start));
            line.push(process);
            if is_known {
                break;
            }
        }
        let mut parent = None;
        for process in line.iter().rev() {
            let Some(at) = self.place(process, parent, limit) else {
                return;
            };
            if self.processes[at].name.is_empty() {
                self.describe(at, process, &process.image());
            }
            parent = Some(at);
        }
        if let Some(at) = self.place(event.process, parent, limit) {
            self.describe(at, event.process, &event.image);
        }
    }

    fn place(&mut self, process: &Process, parent: Option<usize>, limit: usize) -> Option<usize> {
        let key = (process.pid, process.start);
        if let Some(at) = self.places.get(&key) {
            return Some(*at);
        }
        if self.processes.len() >= limit {
            self.has_more = true;
            return None;
        }
        self.places.insert(key, self.processes.len());
        self.processes.push(BrowsedProcess {
            pid: process.pid.0,
            parent,
            ..BrowsedProcess::default()
        });
        Some(self.processes.len() - 1)
    }

    fn describe(&mut self, at: usize, process: &Process, image: &Image) {
        let known = &mut self.processes[at];
        let name = process.name().unwrap_or_else(|| process.exec_name());
        known.name = String::from_utf8_lossy(name.as_bytes()).into_owned();
        if let Some(Some(line)) = image.command_line.get() {
            let words = std::iter::once(&line.exe).chain(&line.args);
            let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word)).collect();
            known.command = words.join(" ");
            bound(&mut known.command);
        }
    }
}

#[cfg(test)]
mod tests;
