//! Shows the events of a capture to a judge as a live engine would.

mod apply;
mod decode;
mod dialect;
mod enter;
mod meta;
mod world;

use std::collections::VecDeque;
use std::io::Read;
use std::time::Duration;

use bumpalo::Bump;
use event::{
    Descriptor, DescriptorKind, DescriptorSource, Event, Judge, Known, Live, Name, Outcome, Param,
    Stage, Tid,
};

use crate::read::{Reader, Record, Starts};
use crate::state::State;
use crate::table::EventType;
use crate::{Error, note};

use apply::{Afterwards, Happening};
use dialect::{Action, Dialect, Exit, Row};
use enter::Enters;
use world::Recorded;

pub(crate) use apply::{as_int, opened_kind};

pub use crate::state::Lost;

/// What was read and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events in the capture.
    pub events: u64,
    /// Events that the judge was shown.
    pub judged: u64,
    /// Rules that stayed undecided, because the capture does not tell what they ask for.
    pub undecided: u64,
    /// Events of types that are newer than this program.
    pub unknown_types: u64,
}

/// Threads that are kept past their end.
const MAX_LEAVING: usize = 1024;

/// Replays captures, one after the other.
pub struct Replay<'j, J: Judge> {
    judge: &'j J,
    scratch: J::Scratch,
    dialect: Dialect,
    state: State,
    enters: Enters,
    starts: Starts,
    arena: Bump,
    counts: Counts,
    utc_offset: i32,
    /// When the first event was.
    first_ns: Option<u64>,
    /// How long after that a capture counts as ended.
    longest_ns: u64,
    /// What the last event removes.
    afterwards: Afterwards,
    /// Threads whose end was recorded by this program, and of which more may come.
    leaving: VecDeque<i64>,
    /// What was noted of a thread's next event.
    call: Option<(i64, note::Call)>,
}

impl<'j, J: Judge> Replay<'j, J> {
    /// `utc_offset`: seconds that printed times are east of Greenwich.
    pub fn new(judge: &'j J, utc_offset: i32) -> Self {
        Self {
            scratch: judge.scratch(),
            dialect: Dialect::new(|kind| judge.concerns(kind)),
            judge,
            state: State::default(),
            enters: Enters::default(),
            starts: Starts::default(),
            arena: Bump::new(),
            counts: Counts::default(),
            utc_offset,
            first_ns: None,
            longest_ns: u64::MAX,
            afterwards: Afterwards::Nothing,
            call: None,
            leaving: VecDeque::new(),
        }
    }

    /// Passes over what came later than this after the first event.
    #[must_use]
    pub fn until(self, longest: Duration) -> Self {
        Self {
            longest_ns: u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX),
            ..self
        }
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What could not be kept.
    pub fn lost(&self) -> Lost {
        self.state.lost
    }

    /// Working memory of the judge.
    pub fn scratch(&self) -> &J::Scratch {
        &self.scratch
    }

    /// Replays up to `limit` further events. `false`: the capture has no more.
    ///
    /// # Errors
    ///
    /// If the capture cannot be read further. What came before stands.
    pub fn step<R: Read>(&mut self, reader: &mut Reader<R>, limit: u64) -> Result<bool, Error> {
        let earlier = self.counts.events.saturating_sub(reader.events());
        let result = self.steps(reader, limit, earlier);
        // Those before what cannot be read count, too.
        self.counts.events = earlier + reader.events();
        result
    }

    /// `earlier`: events of the readers before this one.
    fn steps<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        limit: u64,
        earlier: u64,
    ) -> Result<bool, Error> {
        let last = reader.events().saturating_add(limit);
        loop {
            let before = reader.events();
            let passed = match self.first_ns {
                Some(_) => reader.pass_over(&self.dialect.skips, last - before),
                // Of those the time is not looked at.
                None => 0,
            };
            if before + passed >= last {
                return Ok(true);
            }
            let number = before + passed + 1;
            let Some(record) = reader.next(&mut self.state)? else {
                return Ok(false);
            };
            self.counts.events = earlier + number;
            let first_ns = *self.first_ns.get_or_insert(record.time_ns);
            if record.time_ns.saturating_sub(first_ns) >= self.longest_ns {
                return Ok(false);
            }
            self.state.finish_lists();
            self.event(&record)?;
        }
    }

    #[inline]
    fn event(&mut self, record: &Record<'_>) -> Result<(), Error> {
        match self.dialect.row(record.code) {
            Row::Skip => Ok(()),
            Row::Unknown => {
                self.counts.unknown_types += 1;
                Ok(())
            }
            Row::Enter(ty) => {
                let ty = *ty;
                self.enter(record, ty)
            }
            Row::Exit(_) | Row::Generic => self.exit(record),
            Row::Meta(meta) => {
                let meta = *meta;
                self.settle();
                self.meta(record, meta)
            }
        }
    }

    /// Carries out what the last event left.
    #[inline]
    fn settle(&mut self) {
        match self.afterwards {
            Afterwards::Nothing => return,
            Afterwards::Close { process, number } => self.state.close(process, number),
            Afterwards::Forget { tid } => {
                if let Some(slot) = self.state.find(tid) {
                    self.enters.forget(slot);
                }
                self.state.remove(tid);
            }
        }
        self.afterwards = Afterwards::Nothing;
    }

    /// Keeps the beginning of a call until its end.
    fn enter(&mut self, record: &Record<'_>, ty: &EventType) -> Result<(), Error> {
        self.settle();
        let params = record.params_of(ty, &mut self.starts)?;
        if let Some(slot) = self.state.find_or_add(record.tid) {
            let is_kept = self.enters.keep(slot, record.tid, record.code, &params);
            self.state.lost.unkept += u64::from(!is_kept);
        }
        Ok(())
    }

    fn exit(&mut self, record: &Record<'_>) -> Result<(), Error> {
        self.settle();
        let Some(exit) = self.dialect.end(record, self.call.as_ref())? else {
            return Ok(());
        };
        let is_shown = exit.is_wanted && !record.is_state_only();
        if !is_shown && exit.action == Action::None {
            return Ok(());
        }
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
        // What this program has noted of a call may contradict its parameters.
        let is_ruled_out = self.call.is_none()
            && exit
                .opening(params, result)
                .is_some_and(|opening| self.judge.has_ruled_out(&mut self.scratch, &opening));
        let happening = Happening {
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
        let is_described = carry_out(&happening, &mut self.state, slot, &mut self.afterwards);
        if is_described && let Afterwards::Forget { tid } = self.afterwards {
            // Engines with several lanes may show an event of a process behind that of its end.
            self.afterwards = Afterwards::Nothing;
            self.leaving.push_back(tid);
            if self.leaving.len() > MAX_LEAVING
                && let Some(tid) = self.leaving.pop_front()
            {
                self.afterwards = Afterwards::Forget { tid };
            }
        }
        if !is_shown {
            return Ok(());
        }
        // After a clone the thread may be another one.
        let Some(slot) = self.state.find(record.tid) else {
            return Ok(());
        };
        let process = self.state.thread(slot).process;
        self.state.lost.strangers += u64::from(self.state.process(process).is_stranger);
        self.counts.judged += 1;
        if is_ruled_out {
            return Ok(());
        }
        let noted = self.call.take_if(|(tid, _)| *tid == record.tid);
        let noted = noted.map(|(_, call)| call);
        if let Some(call) = &noted {
            exit.correct(params, call, &self.arena);
        }
        let look = Look {
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
        let undecided = look.show(&self.state, slot, number, self.judge, &mut self.scratch);
        self.counts.undecided += u64::from(undecided);
        Ok(())
    }
}

/// Lets an event change the state. Whether its process is described by a recording of ours.
#[inline]
fn carry_out(
    happening: &Happening<'_, '_>,
    state: &mut State,
    slot: usize,
    afterwards: &mut Afterwards,
) -> bool {
    let process = state.thread(slot).process;
    let is_described = state.process(process).exact.is_some() && !happening.is_description;
    // It has described the process as it is after the call.
    if !is_described || !happening.exit.action.is_about_process() {
        happening.apply(state, slot, afterwards);
    }
    is_described
}

/// What an event is seen with.
struct Look<'e, 'b> {
    exit: &'e Exit,
    record: &'e Record<'b>,
    params: &'b [Param<'b>],
    result: Option<i64>,
    noted: Option<&'e note::Call>,
    arena: &'b Bump,
    utc_offset: i32,
    first_ns: Option<u64>,
}

impl Look<'_, '_> {
    fn show<J: Judge>(
        &self,
        state: &State,
        slot: usize,
        number: u64,
        judge: &J,
        scratch: &mut J::Scratch,
    ) -> u32 {
        let thread = state.thread(slot);
        let caller = state.process(thread.process);
        let world = Recorded {
            state,
            caller,
            noted: self.noted,
            utc_offset: self.utc_offset,
            first_ns: self.first_ns,
        };
        let live = Live::default();
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
            // Generic events do not tell it, and no event of theirs ever will.
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
        judge.conclude(scratch, &event)
    }

    /// What the event's descriptor is, by what was known of it and what the event itself tells.
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
                param.and_then(apply::as_int)?
            }
        };
        const EINPROGRESS: i64 = -115;
        let renamed = matches!(spec.descriptor, DescriptorSource::Addressed { .. })
            && matches!(self.result, Some(result) if result >= 0 || result == EINPROGRESS);
        let known = state.process(process).descriptors.get(number);
        Some(known.map_or_else(
            || unknown(number, spec.descriptor),
            |open| open.show(number, renamed),
        ))
    }

    fn opened(&self, name: u8, flags: u8, number: i64) -> Descriptor<'_> {
        let base = self.exit.base.and_then(|at| self.params.get(at));
        let base = base.and_then(apply::as_int).filter(|base| *base >= 0);
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
            // The capture does not tell, which is not to say that there is none.
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

/// A descriptor of which nothing was told; a failed call tells what it would have made.
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
