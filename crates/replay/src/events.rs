//! Replay without rules: prints the events that match a condition.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, PoisonError};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use outputs::json;
use rules::{Alert, AlertSink, AlertValue, Engine, EngineOptions, Loader};
use serde_json::{Value, json};

use crate::{ReplayOptions, play};

/// Default format of an event: that of sysdig, without the direction.
const LINE: &str = "%evt.num %evt.time %evt.cpu %proc.name (%thread.tid) %evt.type %evt.args";
/// Condition that matches every event.
const ALL: &str = "evt.num > 0";
/// Number of bytes that are collected before they are written.
const BUFFER: usize = 64 << 10;

pub(super) fn print(args: &ReplayOptions) -> Outcome {
    let printer = Printer::new(args.json);
    let engine = engine(args, printer.clone())?;
    let played = play(args, &[&engine], None, || printer.write(BUFFER));
    printer.write(1)?;
    played?.end(args)
}

/// Creates an engine with one rule, whose output is the line to print.
fn engine(args: &ReplayOptions, printer: Printer) -> Result<Engine, Failure> {
    let rule = json!([{
        "rule": "events",
        "desc": "what is printed",
        "condition": args.filter.as_deref().unwrap_or(ALL),
        "output": args.fields.as_deref().unwrap_or(LINE),
        "priority": "DEBUG",
        "warn_evttypes": false,
    }]);
    // JSON is YAML.
    let (ruleset, mut diagnostics) = Loader::new().add(OPTIONS, &rule.to_string()).finish();
    let (engine, found) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(printer));
    diagnostics.extend(found);
    let errors: Vec<String> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .map(|diagnostic| match &diagnostic.help {
            Some(help) => format!("{} ({help})", diagnostic.message),
            None => diagnostic.message.clone(),
        })
        .collect();
    if errors.is_empty() {
        return Ok(engine);
    }
    let options = match (&args.filter, &args.fields) {
        (Some(_), Some(_)) => OPTIONS,
        (Some(_), None) => "--filter",
        _ => "--fields",
    };
    let message = format!("cannot use {options}: {}", errors.join("; "));
    Err(Failure::new(Exit::BadInput, message)
        .help("`tollgate rules fields` lists the fields, `tollgate rules events` the events"))
}

/// Name of the source in error messages about the options.
const OPTIONS: &str = "--filter and --fields";

/// Collector of lines.
#[derive(Clone)]
struct Printer {
    lines: Arc<Mutex<String>>,
    is_json: bool,
}

impl Printer {
    fn new(is_json: bool) -> Self {
        Self {
            lines: Arc::default(),
            is_json,
        }
    }

    /// Writes the collected lines if there are at least `enough` bytes. Returns false if the reader has closed
    /// the pipe.
    fn write(&self, enough: usize) -> Result<bool, Failure> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < enough {
            return Ok(true);
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
        lines.clear();
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::new(
                Exit::BadInput,
                format!("cannot print: {error}"),
            )),
        }
    }
}

impl AlertSink for Printer {
    fn emit(&self, alert: Alert) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_json {
            let fields = alert.fields.iter();
            let object: serde_json::Map<String, Value> = fields
                .map(|(name, value)| (name.to_string(), json_value(value)))
                .collect();
            lines.push_str(&Value::Object(object).to_string());
        } else {
            json::write_escaped(&mut lines, &alert.message);
        }
        lines.push('\n');
    }
}

fn json_value(value: &AlertValue) -> Value {
    match value {
        AlertValue::Absent => Value::Null,
        AlertValue::Bool(value) => (*value).into(),
        AlertValue::Int(value) => (*value).into(),
        AlertValue::Uint(value) => (*value).into(),
        AlertValue::Float(value) => (*value).into(),
        AlertValue::Text(text) => text.as_str().into(),
        AlertValue::List(values) => values.iter().map(json_value).collect(),
    }
}
