//! Evaluates compiled conditions on one event.

use bumpalo::collections::Vec as ArenaVec;
use event::field::{Field, Source};
use event::{Event, Stage, Value};

use super::atom::{AtomId, Check};
use super::index::Candidates;
use super::opening::Openable;
use super::operand::{OperandId, OperandSource, Operands};
use super::program::{Children, Entry, Node, NodeId, Program};
use super::ternary::Ternary;
use super::test::Context;
use super::transform::apply;

/// Results cached during the evaluation of one event. Entries contain the generation (the number of the
/// evaluation) they belong to, so nothing is cleared between events.
#[derive(Debug)]
pub(crate) struct EvaluationCache {
    generation: u32,
    /// Atoms, then nodes: generation and truth value packed in one word.
    truths: Vec<u32>,
    /// Operands: generation, and index in the values of the evaluation.
    slots: Vec<(u32, u32)>,
    atoms: usize,
}

/// Largest generation. The two low bits of a cached word hold the truth value, the others the generation.
const LAST_GENERATION: u32 = u32::MAX >> 2;

impl EvaluationCache {
    /// Creates a cache for a program.
    pub(crate) fn new(program: &Program) -> Self {
        let atoms = program.atoms.len();
        Self {
            generation: 0,
            truths: vec![0; atoms + program.node_count()],
            slots: vec![(0, 0); program.operands.len()],
            atoms,
        }
    }

    fn next_generation(&mut self) {
        if self.generation == LAST_GENERATION {
            self.generation = 0;
            self.truths.fill(0);
            self.slots.fill((0, 0));
        }
        self.generation += 1;
    }

    fn known(&self, index: usize) -> Option<Ternary> {
        let word = self.truths[index];
        if word >> 2 != self.generation {
            return None;
        }
        Some(match word & 3 {
            0 => Ternary::False,
            1 => Ternary::Unknown,
            _ => Ternary::True,
        })
    }

    fn remember(&mut self, index: usize, truth: Ternary) {
        let bits = match truth {
            Ternary::False => 0,
            Ternary::Unknown => 1,
            Ternary::True => 2,
        };
        self.truths[index] = self.generation << 2 | bits;
    }
}

/// One evaluation of one event.
pub(crate) struct Evaluation<'p, 'e, 'a> {
    program: &'p Program,
    memo: &'p mut EvaluationCache,
    event: &'e Event<'a>,
    /// Stage up to which fields may be read.
    stage: Stage,
    /// Stage by operand from which it is known.
    stages: &'p [Stage],
    values: ArenaVec<'a, Value<'a>>,
}

impl<'p, 'e, 'a> Evaluation<'p, 'e, 'a> {
    /// Starts an evaluation with an empty cache.
    pub(crate) fn new(
        program: &'p Program,
        memo: &'p mut EvaluationCache,
        event: &'e Event<'a>,
    ) -> Self {
        memo.next_generation();
        let kind = program.kind(event.kind);
        let values = ArenaVec::with_capacity_in(kind.operands, event.arena);
        Self {
            program,
            memo,
            event,
            stage: event.stage,
            stages: &kind.stages,
            values,
        }
    }

    /// Restricts the evaluation to operands that an opening of a file determines, whichever process makes it.
    pub(crate) fn of_opening(mut self, openable: &'p Openable) -> Self {
        self.stage = Stage::Registers;
        self.stages = &openable.stages;
        self
    }

    /// Returns the rules of the event's kind that must be evaluated.
    pub(crate) fn candidates(&mut self) -> Candidates {
        match &self.program.kind(self.event.kind).index {
            Some(index) => index.candidates(&self.value(index.operand)),
            None => Candidates::ALL,
        }
    }

    /// Evaluates the condition of a rule.
    pub(crate) fn rule(&mut self, entry: &Entry) -> Ternary {
        match entry.root {
            None => Ternary::True,
            Some(_) if self.event.stage < entry.stage => Ternary::Unknown,
            Some(root) => self.node(root),
        }
    }

    #[inline]
    fn node(&mut self, id: NodeId) -> Ternary {
        match self.program.node(id) {
            Node::Literal { atom, negated } => {
                let truth = match self.memo.known(atom.index()) {
                    Some(truth) => truth,
                    None => self.atom(atom),
                };
                if negated { !truth } else { truth }
            }
            Node::All { children, shared } => self.inner(id, children, shared, Ternary::False),
            Node::Any { children, shared } => self.inner(id, children, shared, Ternary::True),
        }
    }

    /// Evaluates children until one has the deciding value.
    fn inner(
        &mut self,
        id: NodeId,
        children: Children,
        shared: bool,
        decisive: Ternary,
    ) -> Ternary {
        let index = self.memo.atoms + id.index();
        if shared && let Some(truth) = self.memo.known(index) {
            return truth;
        }
        let mut result = !decisive;
        let program = self.program;
        for child in program.children(children) {
            match self.node(*child) {
                Ternary::Unknown => result = Ternary::Unknown,
                truth if truth == decisive => {
                    result = decisive;
                    break;
                }
                _ => {}
            }
        }
        if shared {
            self.memo.remember(index, result);
        }
        result
    }

    /// Decides an atom that is not cached.
    #[inline(never)]
    fn atom(&mut self, id: AtomId) -> Ternary {
        let program = self.program;
        let atom = program.atoms.get(id);
        let context = Context {
            world: self.event.world,
            arena: self.event.arena,
        };
        let truth = match &atom.check {
            Check::Test(_) => {
                let operand = atom.key.operand;
                if self.is_early(operand) {
                    return Ternary::Unknown;
                }
                match self.remembered(operand) {
                    Some(left) => atom.decide(left, &Value::Bool(true), context),
                    None => {
                        // Decides before copying the value: loads that span stores just made (tag and
                        // content) stall the processor longer than most extractions take.
                        let left = self.extract(operand);
                        let truth = atom.decide(&left, &Value::Bool(true), context);
                        self.keep(operand, left);
                        truth
                    }
                }
            }
            Check::Operand(_, right) => {
                let left = self.value(atom.key.operand);
                // An absent left side decides the atom without the right one.
                let right = match left {
                    Value::Absent => Value::Bool(true),
                    _ => self.value(*right),
                };
                atom.decide(&left, &right, context)
            }
        };
        self.memo.remember(id.index(), truth);
        truth
    }

    /// Returns the event.
    pub(crate) fn event(&self) -> &'e Event<'a> {
        self.event
    }

    /// Returns the operands of the program.
    pub(crate) fn operands(&self) -> &'p Operands {
        &self.program.operands
    }

    /// Returns true if the event has not reached the stage from which an operand is known.
    fn is_early(&self, id: OperandId) -> bool {
        self.stage < self.stages[id.index()]
    }

    /// Returns the value of an operand.
    pub(crate) fn value(&mut self, id: OperandId) -> Value<'a> {
        if self.is_early(id) {
            return Value::Unknown;
        }
        if let Some(value) = self.remembered(id) {
            return *value;
        }
        let value = self.extract(id);
        self.keep(id, value);
        value
    }

    /// Returns the value of an operand for an event that no condition uses, so that there is no table of
    /// stages.
    pub(crate) fn unasked(&mut self, id: OperandId) -> Value<'a> {
        match self.remembered(id) {
            Some(value) => *value,
            None if self.event.stage == Stage::Exit => self.extract(id),
            None => Value::Unknown,
        }
    }

    /// Returns the value of an operand for printing: an unknown value may be partly known.
    pub(crate) fn shown(&mut self, id: OperandId) -> Value<'a> {
        match (self.value(id), self.program.operands.as_field(id)) {
            (Value::Unknown, Some(field)) => field.shown(self.event),
            (value, _) => value,
        }
    }

    /// Sets the value of an operand, which is then not read from the event.
    pub(crate) fn give(&mut self, id: OperandId, value: Value<'a>) {
        self.keep(id, value);
    }

    fn remembered(&self, id: OperandId) -> Option<&Value<'a>> {
        let (generation, position) = self.memo.slots[id.index()];
        (generation == self.memo.generation).then(|| &self.values[position as usize])
    }

    fn keep(&mut self, id: OperandId, value: Value<'a>) {
        let position = u32::try_from(self.values.len()).expect("fewer values than operands");
        self.values.push(value);
        self.memo.slots[id.index()] = (self.memo.generation, position);
    }

    /// Extracts the value of an operand. The caller has checked the stage from a table: asking the field each
    /// time costs more than most extractions.
    #[inline]
    fn extract(&mut self, id: OperandId) -> Value<'a> {
        match &self.program.operands.get(id).source {
            OperandSource::Field(field) => self.field(field),
            other => self.compose(other),
        }
    }

    #[inline]
    fn field(&self, field: &Field) -> Value<'a> {
        match field.spec.source {
            // The function of a row cannot tell fields of plugins apart.
            Source::Plugin => self
                .event
                .world
                .plugin_field(field.in_plugin(), self.event.arena),
            _ => (field.spec.extract)(self.event, &field.argument),
        }
    }

    fn compose(&mut self, source: &OperandSource) -> Value<'a> {
        let arena = self.event.arena;
        match source {
            OperandSource::Field(field) => self.field(field),
            OperandSource::Constant(text) => Value::Text(arena.alloc_slice_copy(text)),
            OperandSource::List(items) => Value::List(self.all(items)),
            OperandSource::Transform {
                transformer,
                args,
                selector,
            } => apply(*transformer, self.all(args), *selector, arena),
        }
    }

    fn all(&mut self, ids: &[OperandId]) -> &'a [Value<'a>] {
        let mut values = ArenaVec::with_capacity_in(ids.len(), self.event.arena);
        for id in ids {
            let value = self.value(*id);
            values.push(value);
        }
        values.into_bump_slice()
    }
}
