//! Replays a capture: shows its events to an evaluator as a live engine would.

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

pub(crate) use apply::opened_kind;
pub(crate) use decode::as_int;

pub use crate::state::StateLosses;

/// Counters of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events in the capture.
    pub events: u64,
    /// Events that the evaluator evaluated.
    pub evaluated: u64,
    /// Rules that stayed undecided because the capture lacks the required data.
    pub undecided: u64,
    /// Events of types that are newer than this program.
    pub unknown_types: u64,
    /// Events that plugins made.
    pub of_plugins: u64,
}

/// An event of the source of a plugin, in a capture.
#[derive(Clone, Copy, Debug)]
pub struct PluginEvent<'b> {
    /// Number of the event in the capture.
    pub number: u64,
    /// Time in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Number of the plugin that is the source.
    pub plugin: u32,
    /// Name of an asynchronous event; `None` for an event that the plugin itself made.
    pub asynchronous: Option<&'b [u8]>,
    /// The bytes of the plugin, which it alone understands.
    pub data: &'b [u8],
}

/// Receives the events of plugins.
pub trait PluginEvents {
    /// Receives an event. It may be evaluated later, with others.
    fn take(&mut self, event: &PluginEvent<'_>);

    /// Evaluates the events received so far: an event of another kind follows, or none.
    fn flush(&mut self);
}

/// Replays captures one after the other.
pub struct Replay<'j, J: Evaluator> {
    dialect: Dialect,
    course: CaptureState<'j, J>,
    /// Maximum time after the first event, in nanoseconds.
    longest_ns: u64,
}

impl<'j, J: Evaluator> Replay<'j, J> {
    /// Creates a replay. `utc_offset` is the offset of printed times from UTC in seconds.
    pub fn new(evaluator: &'j J, utc_offset: i32) -> Self {
        Self {
            dialect: Dialect::new(|kind| evaluator.concerns(kind)),
            course: CaptureState::new(evaluator, utc_offset),
            longest_ns: u64::MAX,
        }
    }

    /// Ignores events later than `longest` after the first one.
    #[must_use]
    pub fn until(self, longest: Duration) -> Self {
        Self {
            longest_ns: u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Passes events of plugins to `events`. Without it they are counted only.
    #[must_use]
    pub fn with_plugins(mut self, events: &'j mut dyn PluginEvents) -> Self {
        self.course.plugins = Some(events);
        self
    }

    /// Names the host of all events; `None` leaves the recorded name.
    pub fn set_host_name(&mut self, name: Option<String>) {
        self.course.state.host_name = name;
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> Counts {
        self.course.counts
    }

    /// Returns the counters of state that was lost or missing.
    pub fn lost(&self) -> StateLosses {
        self.course.state.lost
    }

    /// Returns the evaluator's working memory.
    pub fn scratch(&self) -> &J::Scratch {
        &self.course.scratch
    }

    /// Replays up to `limit` further events. Returns false at the end of the capture.
    ///
    /// # Errors
    ///
    /// The capture cannot be read further. Earlier events stay valid.
    pub fn step<R: Read>(&mut self, reader: &mut Reader<R>, limit: u64) -> Result<bool, Error> {
        let earlier = self.course.counts.events.saturating_sub(reader.events());
        let result = self.steps(reader, limit, earlier);
        self.course.flush_plugins();
        // Events before an unreadable one count, too.
        self.course.counts.events = earlier + reader.events();
        result
    }

    /// `earlier` is the number of events in previous readers.
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
                // The time of these events is not used.
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
