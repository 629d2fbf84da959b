//! Rules and events for several targets.

use std::hint::black_box;
use std::sync::LazyLock;

use rules::synthetic_event::{SyntheticEvent, SyntheticValue, UnsetFields};
use rules::trace::Tracer;
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

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

/// A rule set of one rule. What stands in it is quoted, so that YAML has no part in it.
#[allow(dead_code)]
pub fn rule(condition: &str, output: &str) -> Ruleset {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''").replace(['\n', '\r'], " "));
    let text = format!(
        "- rule: R\n  desc: d\n  condition: {}\n  output: {}\n  priority: INFO\n",
        quoted(condition),
        quoted(output)
    );
    Loader::new().add("f.yaml", &text).finish().0
}

/// Everything that can be done with rules.
pub fn judge(ruleset: &Ruleset) {
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
