//! Shows the events of a capture to a judge as a live engine would.

mod apply;
mod capture_state;
mod decode;
mod dialect;
mod enter;
mod event_view;
mod meta;
mod openings;
mod system_info;

use std::io::Read;
use std::time::Duration;

use event::Evaluator;

use crate::Error;
use crate::read::Reader;

use capture_state::CaptureState;
use dialect::Dialect;

pub(crate) use apply::{as_int, opened_kind};

pub use crate::state::StateLosses;

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

/// Replays captures, one after the other.
pub struct Replay<'j, J: Evaluator> {
    dialect: Dialect,
    course: CaptureState<'j, J>,
    /// How long after the first event a capture counts as ended.
    longest_ns: u64,
}

impl<'j, J: Evaluator> Replay<'j, J> {
    /// `utc_offset`: seconds that printed times are east of Greenwich.
    pub fn new(judge: &'j J, utc_offset: i32) -> Self {
        Self {
            dialect: Dialect::new(|kind| judge.concerns(kind)),
            course: CaptureState::new(judge, utc_offset),
            longest_ns: u64::MAX,
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
        self.course.counts
    }

    /// What could not be kept.
    pub fn lost(&self) -> StateLosses {
        self.course.state.lost
    }

    /// Working memory of the judge.
    pub fn scratch(&self) -> &J::Scratch {
        &self.course.scratch
    }

    /// Replays up to `limit` further events. `false`: the capture has no more.
    ///
    /// # Errors
    ///
    /// If the capture cannot be read further. What came before stands.
    pub fn step<R: Read>(&mut self, reader: &mut Reader<R>, limit: u64) -> Result<bool, Error> {
        let earlier = self.course.counts.events.saturating_sub(reader.events());
        let result = self.steps(reader, limit, earlier);
        // Those before what cannot be read count, too.
        self.course.counts.events = earlier + reader.events();
        result
    }

    /// `earlier`: events of the readers before this one.
    fn steps<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        limit: u64,
        earlier: u64,
    ) -> Result<bool, Error> {
        let Self {
            dialect,
            course,
            longest_ns,
        } = self;
        let last = reader.events().saturating_add(limit);
        loop {
            let before = reader.events();
            let passed = match course.first_ns {
                Some(_) => reader.pass_over(&dialect.skips, last - before),
                // Of those the time is not looked at.
                None => 0,
            };
            if before + passed >= last {
                return Ok(true);
            }
            let number = before + passed + 1;
            let Some(record) = reader.next(&mut course.state)? else {
                return Ok(false);
            };
            course.counts.events = earlier + number;
            let first_ns = *course.first_ns.get_or_insert(record.time_ns);
            if record.time_ns.saturating_sub(first_ns) >= *longest_ns {
                return Ok(false);
            }
            course.state.finish_lists();
            course.event(dialect, &record)?;
        }
    }
}
