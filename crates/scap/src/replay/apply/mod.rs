//! Effects of events on the state.

mod descriptor;
mod process;

use bumpalo::Bump;
use event::{Absence, DescriptorKind, OpenFlags, Outcome, Param, Role};

use super::decode::as_int;
use super::dialect::{Action, Exit};
use crate::bytes::{signed, unsigned, until_nul};
use crate::note;
use crate::read::Params;
use crate::state::State;

/// An event being applied.
pub(crate) struct AppliedEvent<'e, 'b> {
    pub(crate) exit: &'e Exit,
    pub(crate) time_ns: u64,
    pub(crate) tid: i64,
    /// The event describes existing state, not an action.
    pub(crate) is_description: bool,
    /// Parameters as encoded in the capture.
    pub(crate) raw: &'e Params<'b>,
    pub(crate) raw_enter: &'e Params<'b>,
    /// Parameters as shown; empty if the event is not shown.
    pub(crate) params: &'e [Param<'b>],
    /// Arena for derived values.
    pub(crate) arena: &'b Bump,
    pub(crate) result: Option<i64>,
}

/// Changes that are applied after the event was evaluated, because the event shows what it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostEventChanges {
    Nothing,
    Close { process: usize, number: i64 },
    Forget { tid: i64 },
}

impl<'b> AppliedEvent<'_, 'b> {
    /// Applies the event; `slot` is its thread.
    pub(crate) fn apply(&self, state: &mut State, slot: usize, afterwards: &mut PostEventChanges) {
        let process = state.thread(slot).process;
        if self.exit.action == Action::ProcessExit {
            *afterwards = PostEventChanges::Forget { tid: self.tid };
            return;
        }
        let succeeded = self.result.is_some_and(|result| result >= 0);
        match self.exit.action {
            Action::Connect => self.connect(state, process),
            _ if !succeeded => {}
            Action::Close => {
                if let Some(number) = self.number() {
                    *afterwards = PostEventChanges::Close { process, number };
                }
            }
            Action::Clone => self.clone_process(state, slot),
            Action::Exec => self.exec(state, process),
            Action::Open => self.open(state, process),
            Action::Socket => self.socket(state, process),
            Action::Accept => self.accept(state, process),
            Action::Bind => self.bind(state, process),
            Action::Send => self.exchange(state, process, Role::Client),
            Action::Receive => self.exchange(state, process, Role::Server),
            Action::Duplicate => self.duplicate(state, process),
            Action::Fcntl => self.fcntl(state, process),
            Action::Create(kind) => self.create(state, process, kind),
            Action::Pair(kind) => self.pair(state, process, kind),
            Action::CloseRange => self.close_range(state, process),
            Action::ChangeDirectory => self.change_directory(state, process),
            Action::SetIds => self.set_ids(state, process),
            Action::Session => self.session(state, process),
            Action::ProcessName => self.rename(state, process),
            Action::None | Action::ProcessExit => {}
        }
    }

    fn int(&self, name: &str) -> Option<i64> {
        self.int_at(self.exit.kind.param_index(name)?)
    }

    fn text(&self, name: &str) -> Option<&'b [u8]> {
        self.text_at(self.exit.kind.param_index(name)?)
    }

    /// Returns the number of the event's descriptor, if it is an argument.
    fn number(&self) -> Option<i64> {
        self.int_at(self.exit.number?)
    }

    fn int_at(&self, at: usize) -> Option<i64> {
        self.param(at, as_int)
    }

    fn text_at(&self, at: usize) -> Option<&'b [u8]> {
        self.param(at, |param| match param {
            Param::Text(text) => Some(*text),
            _ => None,
        })
    }

    /// Passes a parameter to `take`. The parameter is used where it was written: see
    /// [`Slot::put`](super::decode::Slot::put).
    #[inline]
    fn param<T>(&self, at: usize, take: impl FnOnce(&Param<'b>) -> Option<T>) -> Option<T> {
        match (self.params.get(at), self.exit.slots.get(at)) {
            (Some(param), _) => take(param),
            (None, Some(slot)) => take(&slot.param(self.raw, self.raw_enter, self.arena)),
            (None, None) => None,
        }
    }

    /// Returns the bytes of a parameter by its name in the capture's event type, which describes
    /// processes.
    fn named_param(&self, name: &str) -> Option<&[u8]> {
        let bytes = self.raw.get(self.exit.ty.param(name)?)?;
        (!bytes.is_empty()).then_some(bytes)
    }

    fn text_param(&self, name: &str) -> &[u8] {
        let text = self.named_param(name).map(until_nul).unwrap_or_default();
        // Capturing programs write this for data that they could not read.
        if text == b"<NA>" { b"" } else { text }
    }

    fn int_param(&self, name: &str) -> Option<i64> {
        self.named_param(name).and_then(signed)
    }

    fn id_param(&self, name: &str) -> Option<u32> {
        let id = self.named_param(name).and_then(unsigned)?;
        u32::try_from(id & u64::from(u32::MAX)).ok()
    }
}

impl Exit {
    /// Decodes all parameters, as shown.
    pub(crate) fn params<'b>(
        &self,
        raw: &Params<'b>,
        raw_enter: &Params<'b>,
        arena: &'b Bump,
    ) -> &'b mut [Param<'b>] {
        let params =
            arena.alloc_slice_fill_copy(self.slots.len(), Param::Absent(Absence::recorded()));
        for (slot, place) in self.slots.iter().zip(params.iter_mut()) {
            slot.put(place, raw, raw_enter, arena);
        }
        params
    }

    /// Replaces parameters by those in this program's note, which the capture cannot represent.
    #[cold]
    pub(crate) fn correct<'b>(&self, params: &mut [Param<'b>], call: &note::Call, arena: &'b Bump) {
        call.correct(params, arena);
        // The value in the result's field is meaningless.
        match (self.result, call.outcome()) {
            (Some(at), Some(Outcome::Returned(result))) => params[at] = Param::Int(result),
            (Some(at), Some(_)) => params[at] = Param::Pending,
            _ => {}
        }
    }
}

/// Returns the kind of the opened descriptor, from the parameter with the flags.
pub(crate) fn opened_kind(flags: Option<&Param<'_>>) -> DescriptorKind {
    let flags = flags.and_then(as_int).unwrap_or_default();
    OpenFlags(flags.cast_unsigned()).kind()
}
