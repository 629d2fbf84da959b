//! Captures for responses (`host:capture`): some seconds of events, kept in memory until their time is over.
//!
//! Whoever asks writes the file, on a thread of its own, so that no disk delays an event. An agent that is killed loses them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::Config;
use event::Event;
use response::{CapturedEvents, EventCapture};
use rules::{Recorder, RuleMatch};
use scap::write::Writer;

use super::header;

/// What records for responses.
#[derive(Default)]
pub(crate) struct ResponseCapture {
    /// Events are encoded. Checked at every event.
    is_active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By number.
    running: BTreeMap<u64, Running>,
    begun: u64,
}

struct Running {
    writer: Writer,
    captured: CapturedEvents,
    max_bytes: usize,
    /// Blocks of one event.
    blocks: Vec<u8>,
}

impl ResponseCapture {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves whole blocks behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventCapture for ResponseCapture {
    fn begin(&self, max_bytes: usize) -> u64 {
        // Reads files: before events wait for the state.
        let mut writer = Writer::new(header::header());
        let mut captured = CapturedEvents::default();
        writer.begin(&mut captured.bytes);
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        let running = Running {
            writer,
            captured,
            max_bytes,
            blocks: Vec::new(),
        };
        state.running.insert(number, running);
        self.is_active.store(true, Ordering::Relaxed);
        number
    }

    fn end(&self, number: u64) -> CapturedEvents {
        let mut state = self.state();
        let ended = state.running.remove(&number);
        let is_active = !state.running.is_empty();
        self.is_active.store(is_active, Ordering::Relaxed);
        // One that was never begun has nothing.
        ended.map_or_else(CapturedEvents::default, |running| running.captured)
    }
}

impl Recorder for ResponseCapture {
    fn is_recording(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn record(&self, event: &Event<'_>, _matched: &[RuleMatch<'_>]) {
        if !self.is_recording() {
            return;
        }
        for running in self.state().running.values_mut() {
            running.record(event);
        }
    }
}

impl Running {
    fn record(&mut self, event: &Event<'_>) {
        let captured = &mut self.captured;
        if captured.lost > 0 {
            // What came before has to be whole, so nothing follows what did not fit.
            captured.lost += 1;
            return;
        }
        self.blocks.clear();
        let is_written = self.writer.event(event, &mut self.blocks);
        let fits = captured.bytes.len() + self.blocks.len() <= self.max_bytes;
        if !is_written || !fits {
            captured.lost += 1;
            return;
        }
        captured.bytes.extend_from_slice(&self.blocks);
        captured.events += 1;
    }
}

/// Adds what records for responses, if an action does.
pub(crate) fn for_responses(
    config: &Config,
    recorder: Option<Arc<dyn Recorder>>,
) -> (Option<Arc<dyn Recorder>>, Option<Arc<ResponseCapture>>) {
    if !config.responses.may_capture {
        return (recorder, None);
    }
    let capture = Arc::new(ResponseCapture::default());
    let own: Arc<dyn Recorder> = Arc::clone(&capture) as Arc<dyn Recorder>;
    let recorder = match recorder {
        Some(first) => Arc::new(Both { first, second: own }),
        None => own,
    };
    (Some(recorder), Some(capture))
}

/// Records for two.
struct Both {
    first: Arc<dyn Recorder>,
    second: Arc<dyn Recorder>,
}

impl Recorder for Both {
    fn is_recording(&self) -> bool {
        self.first.is_recording() || self.second.is_recording()
    }

    fn record(&self, event: &Event<'_>, matched: &[RuleMatch<'_>]) {
        self.first.record(event, matched);
        self.second.record(event, matched);
    }
}

#[cfg(test)]
mod tests {
    use event::Stage;
    use event::testing::{self, Arg, EventBuilder, FakeSystemInfo};
    use scap::read::Reader;

    use super::*;

    fn record(recorder: &dyn Recorder) {
        let process = testing::process(42, None, &["/bin/test"]);
        let event = EventBuilder::new("openat")
            .process(&process)
            .world(FakeSystemInfo::default())
            .result(5)
            .arg("name", Arg::Text(b"/file".to_vec()));
        recorder.record(&event.at(Stage::Exit), &[]);
    }

    #[test]
    fn events_are_kept_from_the_beginning_to_the_end_within_the_size() {
        let capture = Arc::new(ResponseCapture::default());
        let other: Arc<dyn Recorder> = Arc::new(ResponseCapture::default());
        let second: Arc<dyn Recorder> = Arc::clone(&capture) as Arc<dyn Recorder>;
        let both = Both {
            first: other,
            second,
        };
        record(&both);
        assert!(!both.is_recording());
        let (large, small) = (capture.begin(1 << 20), capture.begin(0));
        assert!(both.is_recording());
        record(&both);
        record(&both);
        let small = capture.end(small);
        assert_eq!((small.events, small.lost), (0, 2));
        assert!(both.is_recording());
        let large = capture.end(large);
        assert_eq!((large.events, large.lost), (2, 0));
        assert!(!both.is_recording());
        record(&both);
        assert!(Reader::new(&*large.bytes).is_ok());
        assert_eq!(capture.end(9), CapturedEvents::default());
    }
}
