//! Rule files, conditions and output templates. What loads is compiled, planned, linted and asked about events.

use std::hint::black_box;
use std::sync::LazyLock;

use rules::condition::ast::SourceId;
use rules::condition::parser::parse;
use rules::synthetic_event::{SyntheticEvent, SyntheticValue, UnsetFields};
use rules::trace::Tracer;
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

use crate::{Outcome, text, yaml_lines};

/// Takes a rule file: what is wrong has a place in it.
///
/// # Panics
///
/// If that does not hold.
pub fn rules(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let (ruleset, diagnostics) = Loader::new().add("f.yaml", text).finish();
    for diagnostic in &diagnostics {
        assert!(
            diagnostic.location.line <= yaml_lines(text) + 1,
            "{diagnostic:?}"
        );
        black_box(diagnostic.render(Some(text)));
    }
    evaluate(&ruleset);
    Outcome::accepted_if(!diagnostics.iter().any(|found| found.is_error()))
}

/// Takes a condition: what can be parsed is printed so that it parses to the same.
///
/// # Panics
///
/// If that does not hold.
pub fn condition(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let parsed = parse(text, SourceId(0));
    if let Ok(parsed) = &parsed {
        let printed = parsed.to_string();
        let again = parse(&printed, SourceId(0));
        let again = again.unwrap_or_else(|error| panic!("{printed:?}: {error}"));
        assert_eq!(again.to_string(), printed);
    }
    evaluate(&rule(text, "o").0);
    Outcome::accepted_if(parsed.is_ok())
}

/// Takes an output template, compiles and fills it.
///
/// # Panics
///
/// If a compiled rule and its clauses one by one say different things.
pub fn output(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let (ruleset, is_loaded) = rule("evt.type in (open, execve, connect)", text);
    evaluate(&ruleset);
    Outcome::accepted_if(is_loaded)
}

struct Nobody;

impl AlertSink for Nobody {
    fn emit(&self, _alert: Alert) {}
}

/// Events of several types, of which all is known that is given, and all else absent or unknown.
static EVENTS: LazyLock<Vec<SyntheticEvent>> = LazyLock::new(|| {
    let fields = [
        ("fd.name", "/etc/../etc/shadow"),
        ("fd.num", "3"),
        ("fd.sip", "10.0.0.1"),
        ("fd.sport", "443"),
        ("proc.name", "cat"),
        ("proc.args", "-n \"a b\" \u{e9}"),
        ("proc.aname[2]", "sshd"),
        ("user.uid", "0"),
        ("evt.rawres", "-13"),
    ];
    let mut events = Vec::new();
    for kind in ["open", "openat", "execve", "connect", "close"] {
        for others in [UnsetFields::Absent, UnsetFields::Unknown] {
            let mut given = SyntheticEvent::new(kind, others).expect("a known type");
            for (field, value) in fields {
                let value = SyntheticValue::One(value.to_owned());
                given.give(field, &value).expect("it fits");
            }
            events.push(given);
        }
    }
    events
});

/// A rule set of one rule, and whether it has no error. What stands in it is quoted, so that YAML has no part in it.
fn rule(condition: &str, output: &str) -> (Ruleset, bool) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''").replace(['\n', '\r'], " "));
    let text = format!(
        "- rule: R\n  desc: d\n  condition: {}\n  output: {}\n  priority: INFO\n",
        quoted(condition),
        quoted(output)
    );
    let (ruleset, diagnostics) = Loader::new().add("f.yaml", &text).finish();
    let is_loaded = !diagnostics.iter().any(|found| found.is_error());
    (ruleset, is_loaded)
}

/// Does everything that can be done with rules.
fn evaluate(ruleset: &Ruleset) {
    let options = EngineOptions::default();
    let (engine, _) = Engine::new(ruleset, &options, Box::new(Nobody));
    let (plan, _) = engine.plan();
    black_box(engine.explain(&plan));
    black_box(engine.lint(&event::EngineKind::WITH_EVENTS));
    for event in EVENTS.iter() {
        let judged = engine.evaluate_synthetic(event);
        for rule in &ruleset.rules {
            if !rule.enabled || engine.output_fields(&rule.name).is_none() {
                continue;
            }
            // The compiled rule and its clauses one by one say the same.
            let clause = Tracer::new(ruleset, rule).explain_given(event);
            let matched = judged.alerts.iter().any(|alert| alert.rule == rule.name);
            let undecided = judged.undecided.contains(&rule.name);
            let expected = match (matched, undecided) {
                (true, _) => Some(true),
                (_, true) => None,
                _ => Some(false),
            };
            assert_eq!(clause.holds, expected, "{}", rule.condition);
        }
    }
}
