//! Explanation of why a rule does or does not match an event, clause by clause.
//!
//! Compiled rules are optimized for speed: conditions are folded, merged and shared. So this module compiles
//! each part of a condition, as written, as a condition of its own, with the same compiler, and evaluates it
//! on the event.

use std::sync::{Arc, Mutex, PoisonError};

use event::{Event, EventKind, Value};

use crate::alert::AlertValue;
use crate::compile::Ternary;
use crate::compile::check::Checker;
use crate::compile::eval::{Evaluation, EvaluationCache};
use crate::compile::operand::OperandId;
use crate::compile::program::{Program, Source};
use crate::compile::tree::Tree;
use crate::condition::ast::{Expr, ExprKind, Operand, Value as Right};
use crate::diagnostic::Location;
use crate::output::alert_value;
use crate::ruleset::{Rule, Ruleset};
use crate::synthetic_event::SyntheticEvent;

/// Kind of a part of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A conjunction.
    All,
    /// A disjunction.
    Any,
    /// A negation.
    Not,
    /// A comparison.
    Test,
}

/// A part of a condition with its result for one event.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// Kind of the part.
    pub part: Part,
    /// Macro that the part is the body of.
    pub name: Option<Arc<str>>,
    /// Text as written, with macros by name.
    pub text: String,
    /// Position in the rule file.
    pub location: Location,
    /// Result; `None` if it depends on an unknown value.
    pub holds: Option<bool>,
    /// Fields of a comparison with their values; `None` for an unknown value.
    pub values: Vec<(String, Option<AlertValue>)>,
    /// Child parts.
    pub parts: Vec<Clause>,
}

impl Clause {
    /// Returns the parts that make the clause false or undecided.
    #[must_use]
    pub fn reasons(&self) -> Vec<&Clause> {
        self.against(true)
    }

    /// Returns the parts that keep the clause from having the wanted value.
    fn against(&self, wanted: bool) -> Vec<&Clause> {
        /// Maximum number of alternatives that are named one by one.
        const FEW: usize = 3;
        if self.holds == Some(wanted) {
            return Vec::new();
        }
        let all = || {
            let parts = self.parts.iter();
            parts.flat_map(|part| part.against(wanted)).collect()
        };
        match self.part {
            Part::Test => vec![self],
            Part::Not => self
                .parts
                .iter()
                .flat_map(|part| part.against(!wanted))
                .collect(),
            // Each of these parts prevents the wanted value.
            Part::All if wanted => all(),
            Part::Any if !wanted => all(),
            // Any one of the parts would suffice.
            Part::All | Part::Any if self.parts.len() <= FEW => all(),
            Part::All | Part::Any => vec![self],
        }
    }
}

/// Explains one rule.
pub struct Tracer {
    program: Program,
    root: Step,
    memo: Mutex<EvaluationCache>,
}

/// A part of a condition before evaluation.
struct Step {
    clause: Clause,
    /// Index among the compiled conditions.
    position: usize,
    operands: Vec<OperandId>,
    steps: Vec<Step>,
}

impl Tracer {
    /// Compiles the parts of a rule. Problems are dropped: the compiler of the rule has reported them.
    #[must_use]
    pub fn new(ruleset: &Ruleset, rule: &Rule) -> Self {
        let mut builder = Builder {
            ruleset,
            checker: Checker::default(),
            trees: Vec::new(),
        };
        let root = builder.step(&rule.condition);
        let Builder { checker, trees, .. } = builder;
        let sources: Vec<Source<'_>> = trees
            .iter()
            .map(|tree| Source { tree, outputs: &[] })
            .collect();
        let program = Program::new(checker.operands, checker.atoms, &sources);
        let memo = Mutex::new(EvaluationCache::new(&program));
        Self {
            program,
            root,
            memo,
        }
    }

    /// Evaluates the parts of the condition on an event.
    #[must_use]
    pub fn explain(&self, event: &Event<'_>) -> Clause {
        self.look(event, |_evaluation| {})
    }

    /// Evaluates the parts of the condition on a synthetic event.
    #[must_use]
    pub fn explain_given(&self, given: &SyntheticEvent) -> Clause {
        given.with_event(|event| self.look(event, |evaluation| given.seed(evaluation)))
    }

    /// Returns the result of the condition on a synthetic event, as [`Tracer::explain_given`], without its parts and their values.
    #[must_use]
    pub fn holds_given(&self, given: &SyntheticEvent) -> Option<bool> {
        given.with_event(|event| {
            self.evaluated(event, |evaluation| {
                given.seed(evaluation);
                self.holds(&self.root, evaluation)
            })
        })
    }

    /// Returns true if the rule can match events of a kind.
    #[must_use]
    pub fn concerns(&self, kind: EventKind) -> bool {
        let entries = &self.program.kind(kind).entries;
        entries.iter().any(|entry| entry.rule == self.root.position)
    }

    fn look(&self, event: &Event<'_>, prepare: impl FnOnce(&mut Evaluation<'_, '_, '_>)) -> Clause {
        self.evaluated(event, |evaluation| {
            prepare(evaluation);
            self.clause(&self.root, evaluation)
        })
    }

    fn evaluated<T>(
        &self,
        event: &Event<'_>,
        ask: impl FnOnce(&mut Evaluation<'_, '_, '_>) -> T,
    ) -> T {
        // Each evaluation starts anew.
        let mut memo = self.memo.lock().unwrap_or_else(PoisonError::into_inner);
        ask(&mut Evaluation::new(&self.program, &mut memo, event))
    }

    fn holds(&self, step: &Step, evaluation: &mut Evaluation<'_, '_, '_>) -> Option<bool> {
        let kind = self.program.kind(evaluation.event().kind);
        let entry = kind
            .entries
            .iter()
            .find(|entry| entry.rule == step.position);
        match entry.map_or(Ternary::False, |entry| evaluation.rule(entry)) {
            Ternary::False => Some(false),
            Ternary::Unknown => None,
            Ternary::True => Some(true),
        }
    }

    fn clause(&self, step: &Step, evaluation: &mut Evaluation<'_, '_, '_>) -> Clause {
        let holds = self.holds(step, evaluation);
        let kind = self.program.kind(evaluation.event().kind);
        let is_asked = !kind.stages.is_empty();
        let operands = step.operands.iter();
        let values = operands.map(|id| {
            let value = if is_asked {
                evaluation.value(*id)
            } else {
                evaluation.unasked(*id)
            };
            let shown = match value {
                Value::Unknown => None,
                value => Some(alert_value(&value, evaluation.operands(), *id)),
            };
            (evaluation.operands().get(*id).to_string(), shown)
        });
        let values = values.collect();
        Clause {
            holds,
            values,
            parts: step
                .steps
                .iter()
                .map(|step| self.clause(step, evaluation))
                .collect(),
            ..step.clause.clone()
        }
    }
}

struct Builder<'r> {
    ruleset: &'r Ruleset,
    checker: Checker,
    trees: Vec<Tree>,
}

impl Builder<'_> {
    fn step(&mut self, expr: &Expr) -> Step {
        let (part, children): (Part, &[Expr]) = match &expr.kind {
            ExprKind::And(children) => (Part::All, children),
            ExprKind::Or(children) => (Part::Any, children),
            ExprKind::Not(child) => (Part::Not, std::slice::from_ref(child)),
            ExprKind::Expanded { name, body } => {
                let mut step = self.step(body);
                // A macro that consists of another macro keeps the name that is written.
                step.clause.name = Some(Arc::clone(name));
                step.clause.location = self.ruleset.locate(expr.span);
                return step;
            }
            ExprKind::Exists(_) | ExprKind::Compare(_) | ExprKind::Macro(_) => (Part::Test, &[]),
        };
        // The rule's own compilation reports these problems.
        let (tree, _problems) = self.checker.condition(expr);
        let position = self.trees.len();
        self.trees.push(tree);
        Step {
            clause: Clause {
                part,
                name: None,
                text: format!("{expr:#}"),
                location: self.ruleset.locate(expr.span),
                holds: None,
                values: Vec::new(),
                parts: Vec::new(),
            },
            position,
            operands: self.operands(expr),
            steps: children.iter().map(|child| self.step(child)).collect(),
        }
    }

    fn operands(&mut self, expr: &Expr) -> Vec<OperandId> {
        let compared: Vec<&Operand> = match &expr.kind {
            ExprKind::Exists(operand) => vec![operand],
            ExprKind::Compare(compare) => match &compare.right {
                Right::Operand(right) => vec![&compare.left, right],
                _ => vec![&compare.left],
            },
            _ => Vec::new(),
        };
        // A faulty operand was reported with the rule.
        let ids = compared.into_iter();
        ids.filter_map(|operand| self.checker.output_operand(operand).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loader;
    use crate::synthetic_event::{SyntheticValue, UnsetFields};

    const RULES: &str = "- list: shells\n  items: [bash, sh]\n\
        - macro: reads\n  condition: evt.type in (open, openat) and evt.is_open_read = true\n\
        - rule: R\n  desc: d\n  condition: >\n    reads and fd.name startswith /etc/\n    and not (proc.name in (shells) or proc.pname = sshd)\n  \
        output: o\n  priority: INFO\n";

    fn explained(fields: &[(&str, &str)]) -> Clause {
        let (ruleset, diagnostics) = Loader::new().add("r.yaml", RULES).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let mut given = SyntheticEvent::new("openat", UnsetFields::Unknown).expect("a known type");
        for (field, text) in fields {
            let value = SyntheticValue::One((*text).to_owned());
            given.give(field, &value).expect("it fits");
        }
        Tracer::new(&ruleset, &ruleset.rules[0]).explain_given(&given)
    }

    #[test]
    fn each_part_is_asked_by_itself() {
        let clause = explained(&[
            ("evt.is_open_read", "true"),
            ("fd.name", "/etc/shadow"),
            ("proc.name", "bash"),
        ]);
        assert_eq!((clause.part, clause.holds), (Part::All, Some(false)));
        let [reads, name, not] = &clause.parts[..] else {
            panic!("{clause:#?}");
        };
        assert_eq!(reads.name.as_deref(), Some("reads"));
        assert_eq!((reads.holds, reads.parts.len()), (Some(true), 2));
        assert_eq!(reads.parts[0].text, "evt.type in (open, openat)");
        let value = AlertValue::Text("openat".to_owned());
        assert_eq!(
            reads.parts[0].values,
            [("evt.type".to_owned(), Some(value))]
        );
        assert_eq!(reads.location.line, 8);
        assert_eq!(reads.parts[1].location.line, 4);
        assert_eq!((name.part, name.holds), (Part::Test, Some(true)));
        assert_eq!((not.part, not.holds), (Part::Not, Some(false)));
        let any = &not.parts[0];
        assert_eq!((any.part, any.holds), (Part::Any, Some(true)));
        assert_eq!((any.parts[0].holds, any.parts[1].holds), (Some(true), None));
        assert_eq!(any.parts[1].values, [("proc.pname".to_owned(), None)]);
        let reasons = clause.reasons();
        let reasons: Vec<&str> = reasons.iter().map(|reason| &*reason.text).collect();
        assert_eq!(reasons, ["proc.name in (bash, sh)", "proc.pname = sshd"]);
    }

    #[test]
    fn what_is_unknown_decides_nothing() {
        let clause = explained(&[("evt.is_open_read", "true"), ("fd.name", "/etc/shadow")]);
        assert_eq!(clause.holds, None);
        let clause = explained(&[("fd.name", "/home")]);
        assert_eq!(clause.holds, Some(false));
    }
}
