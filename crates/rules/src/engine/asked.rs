//! What compiled rules ask for: fields of plugins, and kinds of events.

use event::field::{Field, Source as FieldSource};

use super::{CompiledRule, Engine};
use crate::diagnostic::{Code, Diagnostic, Location};
use crate::ruleset::Ruleset;

/// Number of event kinds above which a rule counts as matching nearly all (Falco's limit).
const MAX_KINDS: usize = 100;

impl Engine {
    /// Returns the fields of plugins that the rules and their outputs ask for, each once.
    #[must_use]
    pub fn plugin_fields(&self) -> Vec<Field> {
        self.asked_fields(|field| field.spec.source == FieldSource::Plugin)
    }

    /// Returns true if a rule or its output asks for the field of this name.
    #[must_use]
    pub fn asks_for(&self, name: &str) -> bool {
        !self
            .asked_fields(|field| field.spec.name == name)
            .is_empty()
    }

    fn asked_fields(&self, is_meant: impl Fn(&Field) -> bool) -> Vec<Field> {
        let operands = &self.program.operands;
        let fields = operands.ids().filter_map(|id| operands.as_field(id));
        let mut asked: Vec<Field> = Vec::new();
        for field in fields.filter(|field| is_meant(field)) {
            if !asked.contains(field) {
                asked.push(field.clone());
            }
        }
        asked
    }

    /// Reports rules that match nearly every kind of event.
    pub(super) fn unrestricted(&self, ruleset: &Ruleset) -> Vec<Diagnostic> {
        let mut kinds = vec![0_usize; self.rules.len()];
        for kind in event::EventKind::all() {
            for entry in &self.program.kind(kind).entries {
                kinds[entry.rule] += 1;
            }
        }
        let too_many =
            |(rule, kinds): &(&CompiledRule, usize)| rule.warn_evttypes && *kinds > MAX_KINDS;
        let warn = |(rule, kinds): (&CompiledRule, usize)| {
            let problem = |code, location: &Location, message: &str| {
                let message = format!("{message} {kinds} types of events");
                Diagnostic::new(code, location.clone(), message)
                    .in_item(format!("rule {}", rule.name))
                    .with_help("restrict it with `evt.type = ..` or `evt.type in (..)`")
            };
            let appended = ruleset
                .rule(&rule.name)
                .and_then(|rule| rule.appended.as_ref());
            let appended = appended.map(|location| {
                let message = "with what is appended here the condition can match";
                problem(Code::AppendNoEvtType, location, message)
            });
            let whole = problem(Code::NoEvtType, &rule.location, "the condition can match");
            [Some(whole), appended].into_iter().flatten()
        };
        self.rules
            .iter()
            .zip(kinds)
            .filter(too_many)
            .flat_map(warn)
            .collect()
    }
}
