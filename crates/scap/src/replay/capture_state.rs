//! The state during a replay: its changes with each event, and the events shown to the evaluator.

use std::collections::VecDeque;
use std::rc::Rc;

use bumpalo::Bump;
use event::Evaluator;
use event::field::{ASYNC_EVENT, is_plain};

use super::apply::{AppliedEvent, PostEventChanges};
use super::decode::as_int;
use super::dialect::{Action, Dialect, Exit, Row};
use super::enter::PendingEnters;
use super::event_view::EventView;
use super::openings::{KnownOpen, OpenExit, Openings};
use super::{Counts, PluginEvent, PluginEvents};
use crate::bytes::{unsigned, until_nul};
use crate::read::{Record, Starts};
use crate::state::State;
use crate::table::EventType;
use crate::{Error, note};

/// Maximum number of ended threads that are kept.
const MAX_LEAVING: usize = 1024;

/// The state after all events so far.
pub(super) struct CaptureState<'j, J: Evaluator> {
    evaluator: &'j J,
    pub(super) scratch: J::Scratch,
    pub(super) state: State,
    enters: PendingEnters,
    openings: Openings,
    starts: Starts,
    arena: Bump,
    pub(super) counts: Counts,
    utc_offset: i32,
    /// Time of the first event.
    pub(super) first_ns: Option<u64>,
    /// Pending removals of the last event.
    afterwards: PostEventChanges,
    /// Ended threads in a recording of this program, of which more events may follow.
    leaving: VecDeque<i64>,
    /// Note about a call that follows.
    pub(super) call: Option<NotedCall>,
    /// Receives the events of plugins.
    pub(super) plugins: Option<&'j mut dyn PluginEvents>,
}

/// This program's note about a call.
pub(super) struct NotedCall {
    pub(super) tid: i64,
    pub(super) time_ns: u64,
    pub(super) call: note::Call,
}

impl NotedCall {
    /// Returns true if the note is about this event. A call that no rule uses may be skipped, and
    /// the next one of its thread is another call.
    pub(super) fn is_of(&self, record: &Record<'_>) -> bool {
        self.tid == record.tid && self.time_ns == record.time_ns
    }
}

impl<'j, J: Evaluator> CaptureState<'j, J> {
    pub(super) fn new(evaluator: &'j J, utc_offset: i32) -> Self {
        Self {
            scratch: evaluator.scratch(),
            evaluator,
            state: State::default(),
            enters: PendingEnters::default(),
            openings: Openings::default(),
            starts: Starts::default(),
            arena: Bump::new(),
            counts: Counts::default(),
            utc_offset,
            first_ns: None,
            afterwards: PostEventChanges::Nothing,
            call: None,
            leaving: VecDeque::new(),
            plugins: None,
        }
    }

    #[inline]
    pub(super) fn event(&mut self, dialect: &Dialect, record: &Record<'_>) -> Result<(), Error> {
        match dialect.row(record.code) {
            Row::Skip => Ok(()),
            Row::Unknown => {
                self.counts.unknown_types += 1;
                Ok(())
            }
            Row::Enter(ty) => self.enter(record, ty),
            Row::Exit(exit) => self.exit(record, exit),
            Row::Generic => {
                self.settle();
                match dialect.untyped(record, noted(&self.call, record))? {
                    Some(exit) => self.exit(record, exit),
                    None => Ok(()),
                }
            }
            Row::Meta(meta) => {
                self.settle();
                self.meta(record, *meta)
            }
            Row::Plugin(ty) => self.plugin_event(record, ty),
        }
    }

    /// Passes on an event of the source of a plugin.
    #[cold]
    pub(super) fn plugin_event(
        &mut self,
        record: &Record<'_>,
        ty: &EventType,
    ) -> Result<(), Error> {
        if record.is_state_only() {
            return Ok(());
        }
        self.counts.of_plugins += 1;
        let params = record.params_of(ty, &mut self.starts)?;
        let plugin = params.get(0).and_then(unsigned);
        let plugin = plugin.and_then(|plugin| u32::try_from(plugin).ok());
        // An asynchronous event has its name before its data.
        let is_async = ty.name == ASYNC_EVENT;
        let name = params.get(1).filter(|_| is_async).map(until_nul);
        let data = params.get(if is_async { 2 } else { 1 });
        let (Some(plugin), Some(data)) = (plugin, data) else {
            return Err(record.corrupt("no number of a plugin and its event"));
        };
        if let Some(plugins) = &mut self.plugins {
            plugins.take(&PluginEvent {
                number: self.counts.events,
                time_ns: record.time_ns,
                plugin,
                asynchronous: name,
                data,
            });
        }
        Ok(())
    }

    /// Has the events of plugins evaluated that came before.
    #[inline]
    pub(super) fn flush_plugins(&mut self) {
        if let Some(plugins) = &mut self.plugins {
            plugins.flush();
        }
    }

    /// Applies the pending removals of the last event.
    #[inline]
    fn settle(&mut self) {
        match self.afterwards {
            PostEventChanges::Nothing => return,
            PostEventChanges::Close { process, number } => self.state.close(process, number),
            PostEventChanges::Forget { tid } => {
                if let Some(slot) = self.state.find(tid) {
                    self.enters.forget(slot);
                }
                self.state.remove(tid);
            }
        }
        self.afterwards = PostEventChanges::Nothing;
    }

    /// Keeps the enter event of a call until its exit.
    #[inline]
    fn enter(&mut self, record: &Record<'_>, ty: &EventType) -> Result<(), Error> {
        self.settle();
        let params = record.params_of(ty, &mut self.starts)?;
        if let Some(slot) = self.state.find_or_add(record.tid) {
            let is_kept = self.enters.keep(slot, record.tid, record.code, &params);
            self.state.lost.unkept += u64::from(!is_kept);
        }
        Ok(())
    }

    #[inline]
    fn exit(&mut self, record: &Record<'_>, exit: &Exit) -> Result<(), Error> {
        self.settle();
        let is_shown = exit.is_wanted && !record.is_state_only();
        if !is_shown {
            if !record.is_state_only() {
                // The note must not be applied to the next call.
                self.call.take_if(|noted| noted.is_of(record));
            }
            match exit.action {
                Action::None => return Ok(()),
                Action::Close => return self.close(record, exit),
                _ => {}
            }
        }
        if is_shown {
            self.flush_plugins();
        }
        // This program's note about a call may contradict its parameters.
        let open_exit = match noted(&self.call, record) {
            None if exit.is_repeatable => opening(record),
            _ => None,
        };
        match open_exit {
            Some((open_exit, result)) if self.open_again(record, exit, &open_exit, result) => {
                Ok(())
            }
            _ => self.carry_out(record, exit, open_exit.map(|(open_exit, _)| open_exit)),
        }
    }

    /// Applies the exit of a `close` that the evaluator does not use.
    fn close(&mut self, record: &Record<'_>, exit: &Exit) -> Result<(), Error> {
        let raw = record.params_of(exit.ty, &mut self.starts)?;
        let Some(slot) = self.state.find_or_add(record.tid) else {
            return Ok(());
        };
        let enter = self.enters.end(slot, record.tid, record.code);
        // Numbers need no memory of the arena.
        let int =
            |at: Option<usize>| as_int(&exit.slots.get(at?)?.param(&raw, &enter, &self.arena));
        if let (Some(0..), Some(number)) = (int(exit.result), int(exit.number)) {
            let process = self.state.thread(slot).process;
            self.state.close(process, number);
        }
        Ok(())
    }

    /// Applies an opening that is known from an earlier event with the same bytes. Returns false if
    /// there is none, or the result may depend on the process.
    #[inline]
    fn open_again(
        &mut self,
        record: &Record<'_>,
        exit: &Exit,
        open_exit: &OpenExit<'_>,
        result: i64,
    ) -> bool {
        let Some(known) = self.openings.find(open_exit, result) else {
            return false;
        };
        let Some(slot) = self.state.find_or_add(record.tid) else {
            return true;
        };
        self.enters.forget(slot);
        let process = self.state.thread(slot).process;
        if let Some(open) = &known.open {
            self.state.open_shared(process, result, Rc::clone(open));
        }
        if exit.is_wanted {
            self.state.lost.strangers += u64::from(self.state.process(process).is_stranger);
            self.counts.evaluated += 1;
        }
        true
    }

    /// Applies an event. `open_exit` is set for a file that other processes may open in the same way.
    fn carry_out(
        &mut self,
        record: &Record<'_>,
        exit: &Exit,
        open_exit: Option<OpenExit<'_>>,
    ) -> Result<(), Error> {
        let is_shown = exit.is_wanted && !record.is_state_only();
        let raw = record.params_of(exit.ty, &mut self.starts)?;
        let Some(slot) = self.state.find_or_add(record.tid) else {
            return Ok(());
        };
        let enter = self.enters.end(slot, record.tid, record.code);
        self.arena.reset();
        let params = match is_shown {
            true => exit.params(&raw, &enter, &self.arena),
            false => &mut [][..],
        };
        let result = match params.get(exit.result.unwrap_or(usize::MAX)) {
            Some(param) => as_int(param),
            None => exit.result(&raw, &enter, &self.arena),
        };
        let ruled_out = match noted(&self.call, record) {
            None => exit
                .opening(params, result)
                .and_then(|opening| self.evaluator.has_ruled_out(&mut self.scratch, &opening)),
            Some(_) => None,
        };
        let happening = AppliedEvent {
            exit,
            time_ns: record.time_ns,
            tid: record.tid,
            is_description: record.is_state_only(),
            raw: &raw,
            raw_enter: &enter,
            params,
            arena: &self.arena,
            result,
        };
        let is_described = change(&happening, &mut self.state, slot, &mut self.afterwards);
        if is_described {
            put_off(&mut self.afterwards, &mut self.leaving);
        }
        let name = || exit.opened_name(&raw, &enter, &self.arena);
        if !is_shown {
            return Ok(());
        }
        // After a clone the thread may be another one.
        let Some(slot) = self.state.find(record.tid) else {
            return Ok(());
        };
        let process = self.state.thread(slot).process;
        self.state.lost.strangers += u64::from(self.state.process(process).is_stranger);
        self.counts.evaluated += 1;
        if ruled_out.is_none() {
            let noted = self.call.take_if(|noted| noted.is_of(record));
            let noted = noted.map(|noted| noted.call);
            if let Some(call) = &noted {
                exit.correct(params, call, &self.arena);
            }
            let look = EventView {
                exit,
                record,
                params,
                result,
                noted: noted.as_ref(),
                arena: &self.arena,
                utc_offset: self.utc_offset,
                first_ns: self.first_ns,
            };
            let number = self.counts.events;
            let undecided = look.show(&self.state, slot, number, self.evaluator, &mut self.scratch);
            self.counts.undecided += undecided;
        }
        if let (Some(open_exit), Some(result)) = (open_exit, result) {
            // The evaluator may have found this out just now.
            let mut ask = || {
                let opening = exit.opening(params, Some(result))?;
                self.evaluator.has_ruled_out(&mut self.scratch, &opening)
            };
            self.openings.keep(&open_exit, || {
                let ruled_out = ruled_out.or_else(&mut ask)?;
                known(&self.state, slot, name()?, result, ruled_out.alike_from)
            });
        }
        Ok(())
    }
}

/// Returns the note about the call that ends with this event.
#[inline]
fn noted<'n>(noted: &'n Option<NotedCall>, record: &Record<'_>) -> Option<&'n note::Call> {
    let noted = noted.as_ref()?;
    noted.is_of(record).then_some(&noted.call)
}

/// Applies an event to the state. Returns true if a recording of this program describes the
/// process.
#[inline]
fn change(
    happening: &AppliedEvent<'_, '_>,
    state: &mut State,
    slot: usize,
    afterwards: &mut PostEventChanges,
) -> bool {
    let process = state.thread(slot).process;
    let is_described = state.process(process).exact.is_some() && !happening.is_description;
    // The recording has described the process as it is after the call.
    if !is_described || !happening.exit.action.is_about_process() {
        happening.apply(state, slot, afterwards);
    }
    is_described
}

/// Keeps an ended thread for a while: engines with several lanes may show an event of a process
/// after its end.
fn put_off(afterwards: &mut PostEventChanges, leaving: &mut VecDeque<i64>) {
    let PostEventChanges::Forget { tid } = *afterwards else {
        return;
    };
    *afterwards = PostEventChanges::Nothing;
    leaving.push_back(tid);
    if leaving.len() > MAX_LEAVING
        && let Some(tid) = leaving.pop_front()
    {
        *afterwards = PostEventChanges::Forget { tid };
    }
}

/// Returns the exit of a call that opens a file, and its result.
#[inline]
fn opening<'b>(record: &Record<'b>) -> Option<(OpenExit<'b>, i64)> {
    // A state-only event is never shown.
    if record.is_state_only() {
        return None;
    }
    let (result, lens, rest) = record.first_and_rest()?;
    let code = record.code;
    Some((OpenExit { code, lens, rest }, result))
}

/// Returns the effect of an opening, if it is the same in every process.
fn known(
    state: &State,
    slot: usize,
    name: &[u8],
    result: i64,
    alike_from: i64,
) -> Option<KnownOpen> {
    if !is_plain(name) {
        return None;
    }
    let descriptors = &state.process(state.thread(slot).process).descriptors;
    let open = match result {
        0.. => Some(Rc::clone(descriptors.get(result)?)),
        _ => None,
    };
    Some(KnownOpen {
        open,
        result,
        // A failed call opens nothing.
        alike_from: alike_from.max(0),
    })
}
