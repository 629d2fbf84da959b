//! An event in the form that an evaluator uses.

use abi::Errno;
use bumpalo::Bump;
use event::{
    Descriptor, DescriptorKind, DescriptorSource, Evaluator, Event, Known, LiveProcess, Name,
    Outcome, Param, Stage, Tid,
};

use super::apply;
use super::decode::as_int;
use super::dialect::Exit;
use super::system_info::RecordedSystemInfo;
use crate::note;
use crate::read::Record;
use crate::state::State;

/// An event with its decoding context.
pub(super) struct EventView<'e, 'b> {
    pub(super) exit: &'e Exit,
    pub(super) record: &'e Record<'b>,
    pub(super) params: &'b [Param<'b>],
    pub(super) result: Option<i64>,
    pub(super) noted: Option<&'e note::Call>,
    pub(super) arena: &'b Bump,
    pub(super) utc_offset: i32,
    pub(super) first_ns: Option<u64>,
}

impl EventView<'_, '_> {
    pub(super) fn show<J: Evaluator>(
        &self,
        state: &State,
        slot: usize,
        number: u64,
        evaluator: &J,
        scratch: &mut J::Scratch,
    ) -> u64 {
        let thread = state.thread(slot);
        let caller = state.process(thread.process);
        let world = RecordedSystemInfo {
            state,
            caller,
            thread_name: thread.name(caller),
            noted: self.noted,
            utc_offset: self.utc_offset,
            first_ns: self.first_ns,
        };
        let live = LiveProcess::default();
        if let Some(stat) = self.noted.and_then(note::Call::stat) {
            let _ = live.stat.set(stat);
        }
        let noted = self.noted.and_then(|noted| noted.descriptor(self.arena));
        let descriptor = match noted {
            Some(noted) => noted,
            None => self.descriptor(state, thread.process),
        };
        let outcome = match (self.exit.result, self.result) {
            (_, Some(result)) => Outcome::Returned(result),
            // Generic events never contain this parameter.
            (Some(at), None) if self.exit.slots[at].exit.is_some() => Outcome::Unlearnt,
            _ => Outcome::None,
        };
        let event = Event {
            number,
            time_ns: self.record.time_ns,
            kind: self.exit.kind,
            stage: Stage::Exit,
            cpu: Some(u32::from(self.record.cpu)),
            tid: Tid(crate::state::process::number(thread.tid)),
            process: &caller.process,
            image: std::sync::Arc::clone(&caller.image),
            params: self.params,
            descriptor,
            outcome: self.noted.and_then(note::Call::outcome).unwrap_or(outcome),
            world: &world,
            live: &live,
            arena: self.arena,
        };
        evaluator.evaluate(scratch, &event).len() as u64
    }

    /// Returns the event's descriptor, from the state and the event itself.
    fn descriptor<'s>(&'s self, state: &'s State, process: usize) -> Option<Descriptor<'s>> {
        let spec = self.exit.kind.spec();
        let made = self.result.map_or(-1, |result| result.max(-1));
        let number = match spec.descriptor {
            DescriptorSource::None => return None,
            DescriptorSource::Opened { name, flags } => {
                return Some(self.opened(name, flags, made));
            }
            DescriptorSource::Duplicated(_)
            | DescriptorSource::Accepted(_)
            | DescriptorSource::CreatedSocket
            | DescriptorSource::Created(_) => made,
            _ => {
                let param = self.exit.number.and_then(|at| self.params.get(at));
                param.and_then(as_int)?
            }
        };
        let renamed = matches!(spec.descriptor, DescriptorSource::Addressed { .. })
            && matches!(self.result, Some(result) if result >= 0 || result == Errno::EINPROGRESS.result());
        let known = state.process(process).descriptors.get(number);
        Some(known.map_or_else(
            || unknown(number, spec.descriptor),
            |open| open.show(number, renamed),
        ))
    }

    fn opened(&self, name: u8, flags: u8, number: i64) -> Descriptor<'_> {
        let base = self.exit.base.and_then(|at| self.params.get(at));
        let base = base.and_then(as_int).filter(|base| *base >= 0);
        let name = match self.params.get(usize::from(name)) {
            Some(Param::Text(raw)) => Name::Passed {
                raw,
                base: base.and_then(|base| i32::try_from(base).ok()),
            },
            _ => Name::None,
        };
        let flags = self.params.get(usize::from(flags));
        let fact = |at: Option<usize>| match at.and_then(|at| self.params.get(at)) {
            Some(Param::Uint(fact)) => Known::Yes(*fact),
            // The capture does not contain it, which does not mean that there is none.
            _ => Known::NotYet,
        };
        let [device, inode] = self.exit.file;
        Descriptor {
            number: Known::Yes(number),
            kind: Known::Yes(apply::opened_kind(flags)),
            name,
            socket: None,
            device: fact(device),
            inode: fact(inode),
        }
    }
}

/// Returns a descriptor that the capture does not describe. A failed call names the kind it would
/// have created.
fn unknown<'a>(number: i64, source: DescriptorSource) -> Descriptor<'a> {
    let kind = match source {
        DescriptorSource::Created(kind) => Known::Yes(kind),
        DescriptorSource::CreatedSocket => Known::Yes(DescriptorKind::OtherSocket),
        _ => Known::Never,
    };
    Descriptor {
        number: Known::Yes(number),
        kind,
        name: Name::None,
        socket: None,
        device: Known::Never,
        inode: Known::Never,
    }
}
