//! Explains why rules do or do not match one event, clause by clause.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use config::rule_files::Loaded;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::{Evaluator, Event, Relevance};
use rules::diagnostic::closest;
use rules::trace::{Clause, Part, Tracer};
use rules::{AlertValue, Rule, Ruleset};
use serde_json::{Value, json};
use yaml::quote::comment;
use yaml::settings;

use crate::clause_rows::{brief, line, values};
use crate::described_event::{self, Described, unusable};
use crate::explain::ExplainOptions;

pub use crate::clause_rows::{ClauseRow, reasons, rows, shown};

/// The result of one rule for an event.
struct Verdict<'r> {
    rule: &'r Rule,
    clause: Clause,
}

/// Explains the event that the options name.
pub(super) fn explain(args: &ExplainOptions, loaded: &Loaded, path: &Path) -> Outcome {
    let rules = chosen(args, &loaded.ruleset)?;
    let subject = Subject::open(path, args.number, &loaded.ruleset)?;
    let verdicts = subject.verdicts(&loaded.ruleset, &rules)?;
    let is_long = args.rule.is_some();
    let taken = subject.taken();
    terminal::print(&if args.json {
        let all: Vec<_> = verdicts.iter().map(json_verdict).collect();
        let mut object = json!({ "rules": all });
        if let Some((kind, may_be)) = taken {
            object["type_taken"] = json!({ "evt.type": kind, "may_be": may_be });
        }
        format!("{object}\n")
    } else {
        taken_line(taken) + &text(&verdicts, is_long)
    })
}

/// Formats the type that was inferred for the event, if it does not have one.
fn taken_line(taken: Option<(&str, &[&str])>) -> String {
    match taken {
        None => String::new(),
        Some((kind, [])) => format!("evt.type: {kind}, inferred from the alert's rule\n"),
        Some((kind, others)) => format!(
            "evt.type: {kind}, inferred from the alert's rule; {} also match\n",
            others.join(", ")
        ),
    }
}

fn chosen<'r>(args: &ExplainOptions, ruleset: &'r Ruleset) -> Result<Vec<&'r Rule>, Failure> {
    let Some(name) = &args.rule else {
        return Ok(ruleset.rules.iter().filter(|rule| rule.enabled).collect());
    };
    if let Some(rule) = ruleset.rule(name) {
        return Ok(vec![rule]);
    }
    let names = ruleset.rules.iter().map(|rule| &*rule.name);
    let message = format!("cannot explain rule `{name}`: no such rule");
    Err(
        Failure::new(Exit::BadInput, message).help(match closest(name, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`tollgate rules list` shows all".to_owned(),
        }),
    )
}

/// Source of the event.
enum Subject<'p> {
    Given(Box<Described>),
    Recorded { path: &'p Path, number: u64 },
}

/// First bytes of captures: uncompressed and compressed.
pub(super) const MAGIC: [&[u8]; 2] = [b"\x0a\x0d\x0d\x0a", b"\x1f\x8b"];

impl<'p> Subject<'p> {
    fn open(path: &'p Path, number: Option<u64>, ruleset: &Ruleset) -> Result<Self, Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            let message = format!("cannot read {}: {error}", path.display());
            Failure::new(Exit::BadInput, message)
                .help("name an event as YAML, an alert as JSON, or a capture with --number")
        };
        let mut bytes = Vec::new();
        let read = if path == Path::new("-") {
            io::stdin().read_to_end(&mut bytes)
        } else {
            File::open(path).and_then(|mut file| {
                file.by_ref().take(4).read_to_end(&mut bytes)?;
                if MAGIC.iter().any(|magic| bytes.starts_with(magic)) {
                    return Ok(bytes.len());
                }
                file.read_to_end(&mut bytes)
            })
        };
        read.map_err(|error| cannot(&error))?;
        let is_capture = MAGIC.iter().any(|magic| bytes.starts_with(magic));
        match (is_capture, number) {
            (true, Some(number)) => Ok(Self::Recorded { path, number }),
            (true, None) => Err(cannot(&"a capture has many events").help(
                "choose one with --number; `tollgate replay FILE --filter ...` prints the numbers",
            )),
            (false, Some(_)) => Err(cannot(&"--number needs a capture")),
            (false, None) => {
                let text = String::from_utf8(bytes).map_err(|error| cannot(&error))?;
                let described = settings::read(&path.display().to_string(), &text)
                    .and_then(|root| described_event::describe(&root, ruleset));
                let described = described.map_err(|problem| unusable(&problem))?;
                Ok(Self::Given(Box::new(described)))
            }
        }
    }

    /// Returns the type that was inferred for the event, and other possible types. `None` if the event has its
    /// type.
    fn taken(&self) -> Option<(&'static str, &[&'static str])> {
        match self {
            Self::Given(event) => {
                let may_be = event.may_be.as_deref()?;
                Some((event.given.kind().name(), may_be))
            }
            Self::Recorded { .. } => None,
        }
    }

    fn verdicts<'r>(
        &self,
        ruleset: &Ruleset,
        rules: &[&'r Rule],
    ) -> Result<Vec<Verdict<'r>>, Failure> {
        let tracers = rules.iter().map(|rule| (*rule, Tracer::new(ruleset, rule)));
        match self {
            Self::Given(event) => Ok(tracers
                .filter(|(_, tracer)| rules.len() == 1 || tracer.concerns(event.given.kind()))
                .map(|(rule, tracer)| Verdict {
                    rule,
                    clause: tracer.explain_given(&event.given),
                })
                .collect()),
            Self::Recorded { path, number } => {
                let spy = EventWaiter {
                    number: *number,
                    tracers: tracers.collect(),
                    verdicts: Mutex::new(None),
                };
                replay::evaluate(path, &spy)?;
                let verdicts = spy.verdicts.into_inner();
                verdicts
                    .unwrap_or_else(PoisonError::into_inner)
                    .ok_or_else(|| {
                        let message =
                            format!("cannot explain event {number} of {}: the rules evaluated no event with this number", path.display());
                        Failure::new(Exit::BadInput, message)
                            .help("`tollgate replay FILE --filter 'evt.type exists'` prints all with their numbers")
                    })
            }
        }
    }
}

/// An evaluator that waits for one event.
struct EventWaiter<'r> {
    number: u64,
    tracers: Vec<(&'r Rule, Tracer)>,
    verdicts: Mutex<Option<Vec<Verdict<'r>>>>,
}

impl Evaluator for EventWaiter<'_> {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), event: &Event<'_>) -> Relevance {
        if event.number == self.number {
            Relevance::Undecided
        } else {
            Relevance::Reject
        }
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        if event.number == self.number {
            let is_only = self.tracers.len() == 1;
            let tracers = self.tracers.iter();
            let verdicts = tracers
                .filter(|(_, tracer)| is_only || tracer.concerns(event.kind))
                .map(|(rule, tracer)| Verdict {
                    rule,
                    clause: tracer.explain(event),
                });
            let mut kept = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(verdicts.collect());
        }
        Vec::new()
    }
}

fn text(verdicts: &[Verdict<'_>], is_long: bool) -> String {
    if verdicts.is_empty() {
        return "no rule uses events of this type\n".to_owned();
    }
    let mut out = String::new();
    for Verdict { rule, clause } in verdicts {
        let word = match clause.holds {
            Some(true) => "matches",
            Some(false) => "no match",
            None => "undecided",
        };
        out.push_str(&format!("{word:10} {}\n", comment(&rule.name)));
        if is_long {
            for row in rows(clause) {
                out.push_str(&format!("{}\n", line(&row, 1)));
            }
        } else {
            for reason in clause.reasons() {
                out.push_str(&format!("           {}\n", sentence(reason)));
            }
        }
    }
    out
}

/// Returns the reason why a clause does not have the value that the rule wants.
pub(super) fn sentence(clause: &Clause) -> String {
    let what = match clause.holds {
        Some(true) => "holds",
        Some(false) => "does not hold",
        None => "cannot be evaluated",
    };
    let title = brief(clause.name.as_deref().unwrap_or(&clause.text));
    comment(&format!("`{title}` {what}{}", values(&clause.values)))
}

fn json_verdict(verdict: &Verdict<'_>) -> Value {
    json!({
        "rule": &*verdict.rule.name,
        "matches": verdict.clause.holds,
        "condition": json_clause(&verdict.clause),
    })
}

/// Returns a clause and its parts as JSON.
pub(super) fn json_clause(clause: &Clause) -> Value {
    let part = match clause.part {
        Part::All => "all",
        Part::Any => "any",
        Part::Not => "not",
        Part::Test => "test",
    };
    let values: serde_json::Map<String, Value> = clause
        .values
        .iter()
        .map(|(field, value)| {
            let value = match value {
                None => json!({ "unknown": true }),
                Some(AlertValue::Absent) => Value::Null,
                Some(value) => shown(value).into(),
            };
            (field.clone(), value)
        })
        .collect();
    json!({
        "part": part,
        "macro": clause.name.as_deref(),
        "text": clause.text,
        "at": clause.location.to_string(),
        "holds": clause.holds,
        "values": values,
        "parts": clause.parts.iter().map(json_clause).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use config::rule_files::{self, RuleFile};

    use super::*;

    #[test]
    fn names_and_conditions_of_rules_do_not_reach_the_terminal_raw() {
        let rule = "- rule: \"R\\x1b[2J\"\n  desc: d\n  condition: \"evt.type = open and fd.name = 'a\\x1b[2J'\"\n  \
            output: o\n  priority: INFO\n";
        let file = RuleFile {
            name: "r.yaml".into(),
            text: Ok(rule.to_owned()),
        };
        let loaded = rule_files::load_read(vec![file]);
        loaded.usable().expect("the rule is right");
        let root = settings::read("e", "{evt.type: open, fd.name: b}").expect("YAML");
        let event = described_event::describe(&root, &loaded.ruleset);
        let Ok(event) = event else {
            panic!("an event");
        };
        let rules: Vec<_> = loaded.ruleset.rules.iter().collect();
        let subject = Subject::Given(Box::new(event));
        let Ok(verdicts) = subject.verdicts(&loaded.ruleset, &rules) else {
            panic!("verdicts");
        };
        for is_long in [false, true] {
            let text = text(&verdicts, is_long);
            assert!(text.contains("R\\x1b[2J"), "{text:?}");
            assert!(!text.contains('\u{1b}'), "{text:?}");
        }
    }
}
