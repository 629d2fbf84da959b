//! Atoms that the kind of an event alone decides.

use std::sync::Arc;

use bumpalo::Bump;
use event::field::{ASYNC_EVENT, Field, Source};
use event::{
    Comm, DescriptorSource, Event, EventKind, Image, LiveProcess, NoSystemInfo, Outcome, Pid,
    Process, Stage, StartTime, Tid, Value,
};

use super::atom::{Atom, AtomId, Atoms, Check};
use super::operand::Operands;
use super::ternary::Ternary;
use super::test::{Context, Order, Test};

/// Decides atoms for one kind of event.
pub(crate) struct Facts<'a> {
    kind: EventKind,
    operands: &'a Operands,
    atoms: &'a Atoms,
    /// Decision by atom; the outer `None` means not evaluated yet.
    decided: Vec<Option<Option<bool>>>,
    process: &'a Process,
    live: LiveProcess,
    arena: Bump,
}

impl<'a> Facts<'a> {
    /// Creates facts with nothing decided. `process` is a [`blank_process`].
    pub(crate) fn new(
        kind: EventKind,
        operands: &'a Operands,
        atoms: &'a Atoms,
        process: &'a Process,
    ) -> Self {
        Self {
            kind,
            operands,
            atoms,
            decided: vec![None; atoms.len()],
            process,
            live: LiveProcess::default(),
            arena: Bump::new(),
        }
    }

    /// Returns whether an atom holds for all events of the kind or for none; `None` if the kind does not
    /// decide it.
    pub(crate) fn decide(&mut self, id: AtomId) -> Option<bool> {
        if let Some(known) = self.decided[id.index()] {
            return known;
        }
        let decision = self.look(self.atoms.get(id));
        self.decided[id.index()] = Some(decision);
        decision
    }

    fn look(&self, atom: &Atom) -> Option<bool> {
        if let Check::Operand(..) = atom.check {
            return None;
        }
        let field = self.operands.as_field(atom.key.operand)?;
        // Events are numbered from 1: `evt.num = 0` is how rule files write "never".
        if field.spec.name == "evt.num" {
            let never = matches!(atom.check, Check::Test(Test::Number(Order::Equal, 0)));
            return never.then_some(atom.inverted);
        }
        if !is_fixed(field, self.kind) {
            return None;
        }
        let event = blank_event(self.kind, self.process, &self.live, &self.arena);
        let value = field.extract(&event);
        let context = Context {
            world: &NoSystemInfo,
            arena: &self.arena,
        };
        match atom.decide(&value, &Value::Absent, context) {
            Ternary::False => Some(false),
            Ternary::True => Some(true),
            Ternary::Unknown => None,
        }
    }
}

/// Returns true if all events of a kind have the same value of a field.
fn is_fixed(field: &Field, kind: EventKind) -> bool {
    let spec = kind.spec();
    match field.depends_on() {
        Source::Kind | Source::Nowhere => true,
        Source::Plugin => !matches!(kind.name(), "pluginevent" | ASYNC_EVENT),
        Source::Param | Source::RawParam => field.param_index(kind).is_none(),
        Source::Result => !kind.has_result(),
        Source::OpenFlags | Source::OpenMode | Source::OpenResult => {
            !matches!(spec.descriptor, DescriptorSource::Opened { .. })
        }
        Source::Descriptor(_) => spec.descriptor == DescriptorSource::None,
        _ => false,
    }
}

/// Creates a placeholder process whose facts are never read.
pub(crate) fn blank_process() -> Process {
    Process::new(
        Pid(1),
        StartTime(0),
        0,
        None,
        Arc::new(Image::default()),
        Comm::new(b""),
    )
}

/// Creates an event of a kind without any fact that differs between events of the kind.
pub(crate) fn blank_event<'a>(
    kind: EventKind,
    process: &'a Process,
    live: &'a LiveProcess,
    arena: &'a Bump,
) -> Event<'a> {
    Event {
        number: 1,
        time_ns: 0,
        kind,
        stage: Stage::Registers,
        cpu: None,
        tid: Tid(1),
        process,
        image: process.image(),
        params: &[],
        descriptor: None,
        outcome: Outcome::None,
        world: &NoSystemInfo,
        live,
        arena,
    }
}
