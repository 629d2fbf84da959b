//! Engines for tests.

use std::sync::{Arc, Mutex};

use event::{Evaluator, Event, Relevance, Stage};
use rules::{Alert, AlertSink, Diagnostic, Engine, EngineOptions, Loader, RuleMatching, Ruleset};

use crate::case::Case;

/// A sink that stores alerts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<Alert>>>);

impl AlertSink for Kept {
    fn emit(&self, alert: Alert) {
        self.0
            .lock()
            .expect("no test panics while it holds the lock")
            .push(alert);
    }
}

impl Kept {
    pub(crate) fn take(&self) -> Vec<Alert> {
        std::mem::take(
            &mut self
                .0
                .lock()
                .expect("no test panics while it holds the lock"),
        )
    }
}

/// Returns options with which every matching rule alerts.
pub(crate) fn all_matching() -> EngineOptions {
    EngineOptions {
        rule_matching: RuleMatching::All,
        clock: || 42,
        ..EngineOptions::default()
    }
}

/// Returns the text of a rule with this condition.
pub(crate) fn rule_text(name: &str, condition: &str) -> String {
    let condition = condition.replace('\'', "''");
    format!(
        "- rule: {name}\n  desc: test\n  condition: '{condition}'\n  output: matched\n  \
         priority: WARNING\n"
    )
}

/// Loads a rule set without errors.
pub(crate) fn load(text: &str) -> Ruleset {
    let (ruleset, diagnostics) = Loader::new().add("test.yaml", text).finish();
    let errors: Vec<_> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    ruleset
}

/// Compiles an engine from rules that may have errors.
pub(crate) fn try_engine(text: &str, options: &EngineOptions) -> (Engine, Kept, Vec<Diagnostic>) {
    compile(&load(text), options)
}

/// Compiles a rule set and reads the engine back from its image, so that tests cover both.
pub(crate) fn compile(
    ruleset: &Ruleset,
    options: &EngineOptions,
) -> (Engine, Kept, Vec<Diagnostic>) {
    let kept = Kept::default();
    let (compiled, diagnostics) = Engine::new(ruleset, options, Box::new(kept.clone()));
    let (plan, _) = compiled.plan();
    let image = compiled.to_image(&plan);
    let read = Engine::from_image(&image, options, Box::new(kept.clone()));
    let (engine, read_plan) = read.expect("what was written just now");
    assert_eq!(read_plan, plan);
    assert_eq!(engine.plan().0, plan);
    (engine, kept, diagnostics)
}

/// Compiles an engine from rules without errors.
pub(crate) fn engine(text: &str, options: &EngineOptions) -> (Engine, Kept) {
    let (engine, kept, diagnostics) = try_engine(text, options);
    let errors: Vec<_> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    (engine, kept)
}

/// Prefilters a case at a stage.
pub(crate) fn weigh(engine: &Engine, case: &Case, stage: Stage) -> Relevance {
    let mut scratch = engine.scratch();
    case.at(stage, |event: &Event<'_>| {
        engine.prefilter(&mut scratch, event)
    })
}

/// Evaluates a case at a stage.
pub(crate) fn conclude(engine: &Engine, case: &Case, stage: Stage) -> Vec<Arc<str>> {
    let mut scratch = engine.scratch();
    case.at(stage, |event: &Event<'_>| {
        engine.evaluate(&mut scratch, event)
    })
}
