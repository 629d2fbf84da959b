//! Captures that a collector asks for: some seconds of events, kept in memory until the collector has them.
//!
//! Nothing is written to a disk, so a capture waits for none and leaves no file behind. While it runs, events wait for one another: one at a
//! time is added to it. An agent that ends loses what it has not sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use config::Config;
use event::Event;
use outputs::{CaptureProgress, CaptureSource};
use rules::{Recorder, RuleMatch};
use scap::write::Writer;

use super::header;

/// Largest capture in bytes: what a collector takes.
const MAX_BYTES: usize = 16 << 20;

/// Longest capture in seconds, whatever the collector asks for.
const MAX_SECONDS: u64 = 300;

/// A capture that a collector asks for. There is one at a time.
#[derive(Default)]
pub(crate) struct AskedCapture {
    /// A capture is being recorded. Checked at every event.
    is_active: AtomicBool,
    capture: Mutex<Option<Capture>>,
}

struct Capture {
    id: u64,
    until: Instant,
    writer: Writer,
    bytes: Vec<u8>,
    events: u64,
    /// Events after the capture had reached its size.
    lost: u64,
    is_over: bool,
}

impl AskedCapture {
    /// Returns what records the captures that the collector asks for; `None` if that is not allowed.
    pub(crate) fn of(config: &Config) -> Option<Arc<Self>> {
        let collector = &config.outputs.collector;
        let is_allowed = collector.enabled && collector.allow_captures;
        is_allowed.then(Arc::default)
    }

    fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        // Every change leaves whole blocks behind.
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the capture if its time is over.
    fn end_if(&self, capture: &mut Capture, is_over: bool) {
        if is_over && !capture.is_over {
            capture.is_over = true;
            self.is_active.store(false, Ordering::Relaxed);
        }
    }
}

impl Recorder for AskedCapture {
    fn is_recording(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn record(&self, event: &Event<'_>, _matched: &[RuleMatch<'_>]) {
        if !self.is_recording() {
            return;
        }
        let mut guard = self.capture();
        let Some(capture) = guard.as_mut().filter(|capture| !capture.is_over) else {
            return;
        };
        if Instant::now() >= capture.until {
            return self.end_if(capture, true);
        }
        if capture.lost > 0 {
            // What came before has to be whole, so nothing follows what did not fit.
            capture.lost += 1;
            return;
        }
        let before = capture.bytes.len();
        let is_written = capture.writer.event(event, &mut capture.bytes);
        match is_written && capture.bytes.len() <= MAX_BYTES {
            false => {
                capture.bytes.truncate(before);
                capture.lost += 1;
            }
            true => capture.events += 1,
        }
    }
}

impl CaptureSource for AskedCapture {
    fn begin(&self, id: u64, seconds: u64) {
        let mut guard = self.capture();
        if guard.is_some() {
            return;
        }
        let mut writer = Writer::new(header::header());
        let mut bytes = Vec::new();
        writer.begin(&mut bytes);
        *guard = Some(Capture {
            id,
            until: Instant::now() + Duration::from_secs(seconds.min(MAX_SECONDS)),
            writer,
            bytes,
            events: 0,
            lost: 0,
            is_over: false,
        });
        self.is_active.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        if let Some(capture) = self.capture().as_mut() {
            self.end_if(capture, true);
        }
    }

    fn progress(&self) -> CaptureProgress {
        let mut guard = self.capture();
        let Some(capture) = guard.as_mut() else {
            return CaptureProgress::Idle;
        };
        let is_over = Instant::now() >= capture.until;
        self.end_if(capture, is_over);
        match capture.is_over {
            false => CaptureProgress::Recording { id: capture.id },
            true => CaptureProgress::Done {
                id: capture.id,
                bytes: capture.bytes.len(),
                events: capture.events,
                lost: capture.lost,
            },
        }
    }

    fn read(&self, from: usize, length: usize) -> Vec<u8> {
        let guard = self.capture();
        let bytes = guard.as_ref().map_or(&[][..], |capture| &capture.bytes);
        let from = from.min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        bytes[from..to].to_vec()
    }

    fn forget(&self) {
        self.is_active.store(false, Ordering::Relaxed);
        *self.capture() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_capture_at_a_time_and_it_ends_by_its_time() {
        let asked = AskedCapture::default();
        assert_eq!(asked.progress(), CaptureProgress::Idle);
        asked.begin(7, 300);
        assert!(asked.is_recording());
        asked.begin(8, 1);
        assert_eq!(asked.progress(), CaptureProgress::Recording { id: 7 });
        asked.end();
        assert!(!asked.is_recording());
        let CaptureProgress::Done { id: 7, bytes, .. } = asked.progress() else {
            panic!("it is over");
        };
        // The header alone is a capture, too.
        assert_eq!(asked.read(0, usize::MAX).len(), bytes);
        assert_eq!(asked.read(bytes - 1, 5).len(), 1);
        assert!(asked.read(bytes + 1, 5).is_empty());
        asked.forget();
        assert_eq!(asked.progress(), CaptureProgress::Idle);
        asked.begin(9, 0);
        assert!(matches!(
            asked.progress(),
            CaptureProgress::Done { id: 9, .. }
        ));
    }
}
