//! Sends captures that the collector asked for.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::CollectorChannel;
use super::link::Order;
use crate::report::{CaptureProgress, CaptureSource};

/// Size of a part in bytes.
const PART: usize = 512 << 10;

/// Interval at which the end of a capture is looked for.
const LOOK: Duration = Duration::from_secs(1);

impl CollectorChannel {
    /// Begins a capture that the collector asks for, or says that there are none.
    pub(super) fn begin_capture(&self, order: &Order) -> io::Result<()> {
        let Some(source) = self.reports.captures() else {
            // Before the engine runs nobody knows whether there will be some.
            return match self.reports.report() {
                None => Ok(()),
                Some(_) => self.refuse(order, "this agent allows no captures (--allow-captures)"),
            };
        };
        match source.progress() {
            CaptureProgress::Idle => {}
            CaptureProgress::Recording { id } | CaptureProgress::Done { id, .. }
                if id == order.id =>
            {
                return Ok(());
            }
            // The collector has given up the one before.
            CaptureProgress::Recording { .. } | CaptureProgress::Done { .. } => source.forget(),
        }
        if order.parts > 0 {
            // An earlier process recorded them: what follows would be another capture.
            let why = "the agent was started again while it sent the capture";
            return self.refuse(order, why);
        }
        source.begin(order.id, order.seconds);
        Ok(())
    }

    fn refuse(&self, order: &Order, why: &str) -> io::Result<()> {
        let end = json!({"chunks": 0, "events": 0, "lost": 0, "failure": why});
        self.link.end_capture(order.id, &end).map(|_is_known| ())
    }

    /// Sends a capture that is over. What has arrived before an interruption is not sent again: the collector says which part it
    /// expects.
    pub(super) fn send_capture(&self) -> io::Result<()> {
        let Some(source) = self.reports.captures() else {
            return Ok(());
        };
        let CaptureProgress::Done {
            id,
            bytes,
            events,
            lost,
        } = source.progress()
        else {
            return Ok(());
        };
        let parts = bytes.div_ceil(PART);
        if self.send_parts(&**source, id, parts)? {
            let end = json!({"chunks": parts, "events": events, "lost": lost, "failure": null});
            // One that the collector does not know any more it has given up.
            self.link.end_capture(id, &end)?;
        }
        source.forget();
        Ok(())
    }

    /// Sends parts until the collector has all. Returns false if it does not want them any more.
    fn send_parts(&self, source: &dyn CaptureSource, id: u64, parts: usize) -> io::Result<bool> {
        let mut number = 0;
        // One request more than there are parts: the first one may learn which part is expected.
        for _request in 0..=parts {
            if number >= parts {
                return Ok(true);
            }
            let part = source.read(number * PART, PART);
            match self.link.send_chunk(id, number, &part)? {
                Some(next) => number = next,
                None => return Ok(false),
            }
        }
        match number >= parts {
            true => Ok(true),
            false => Err(io::Error::other("the collector takes no part of a capture")),
        }
    }

    /// Returns when the end of a capture is to be looked for, if one is recorded.
    pub(super) fn capture_due(&self) -> Option<Instant> {
        let progress = self.reports.captures()?.progress();
        let is_recording = matches!(progress, CaptureProgress::Recording { .. });
        is_recording.then(|| Instant::now() + LOOK)
    }
}
