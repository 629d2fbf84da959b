//! Sends captures: those that the collector asked for, and those around alerts.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::link::Order;
use super::{CollectorChannel, SendTime};
use crate::capture::{CaptureCause, CaptureProgress, CaptureSource, CapturedAlert};

/// Size of a part in bytes.
const PART: usize = 512 << 10;

/// Interval at which the end of a capture is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// A capture on its way.
#[derive(Default)]
pub(super) struct Sending {
    id: u64,
    /// The alert that the number stands for; `None` if the collector asked for the capture.
    alert: Option<CapturedAlert>,
    /// Number of the part that the collector expects.
    part: usize,
    /// Requests after which it expected no later part.
    in_vain: usize,
}

/// What became of the parts of a capture.
enum Parts {
    /// The collector has all.
    All,
    /// There are more to send.
    More,
    /// The collector does not want them any more.
    Unwanted,
}

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
            CaptureProgress::Recording(cause) | CaptureProgress::Done { cause, .. } => {
                match cause {
                    CaptureCause::Asked(id) if id == order.id => return Ok(()),
                    // The collector has given up the one before.
                    CaptureCause::Asked(_) => source.forget(),
                    // Its order comes again with the next sign of life.
                    CaptureCause::Alert(_) => return Ok(()),
                }
            }
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

    /// Sends a capture that is over, or the parts for which the turn has time. What has arrived before an interruption is not sent
    /// again: the collector says which part it expects. Returns false if there are more parts.
    pub(super) fn send_capture(&mut self, turn: SendTime) -> io::Result<bool> {
        let Some(source) = self.reports.captures().cloned() else {
            return Ok(true);
        };
        let CaptureProgress::Done {
            cause,
            bytes,
            events,
            lost,
        } = source.progress()
        else {
            return Ok(true);
        };
        let (id, is_own) = match cause {
            CaptureCause::Asked(id) => (id, false),
            CaptureCause::Alert(alert) => match self.announced(alert)? {
                Some(id) => (id, true),
                None => {
                    source.refuse();
                    return Ok(true);
                }
            },
        };
        let parts = bytes.div_ceil(PART);
        let is_taken = match self.send_parts(&*source, id, parts, turn)? {
            Parts::More => return Ok(false),
            Parts::Unwanted => false,
            Parts::All => {
                let end = json!({"chunks": parts, "events": events, "lost": lost, "failure": null});
                // One that the collector does not know any more it has given up.
                self.link.end_capture(id, &end)?
            }
        };
        match is_own && !is_taken {
            true => source.refuse(),
            false => source.forget(),
        }
        // A collector with another store may give its number to another one.
        self.sending = Sending::default();
        Ok(true)
    }

    /// Returns the number that the collector gives the capture around an alert; `None` if it does not take it.
    fn announced(&mut self, alert: CapturedAlert) -> io::Result<Option<u64>> {
        if self.sending.alert.as_ref() == Some(&alert) {
            return Ok(Some(self.sending.id));
        }
        let begun = self.link.announce(&alert)?;
        self.sending = begun.map_or_else(Sending::default, |(id, part)| Sending {
            id,
            alert: Some(alert),
            part,
            in_vain: 0,
        });
        Ok(begun.map(|(id, _part)| id))
    }

    /// Sends parts until the collector has all, or the turn is over.
    fn send_parts(
        &mut self,
        source: &dyn CaptureSource,
        id: u64,
        parts: usize,
        turn: SendTime,
    ) -> io::Result<Parts> {
        let began = Instant::now();
        if self.sending.id != id {
            self.sending = Sending {
                id,
                ..Sending::default()
            };
        }
        loop {
            let number = self.sending.part;
            if number >= parts {
                return Ok(Parts::All);
            }
            if turn == SendTime::Bounded && began.elapsed() >= self.turn {
                return Ok(Parts::More);
            }
            let part = source.read(number * PART, PART);
            let Some(next) = self.link.send_chunk(id, number, &part)? else {
                return Ok(Parts::Unwanted);
            };
            self.sending.part = next;
            self.sending.in_vain += usize::from(next <= number);
            // It may expect an earlier part than this process thinks, once for each.
            if self.sending.in_vain > parts {
                self.sending.in_vain = 0;
                return Err(io::Error::other("the collector takes no part of a capture"));
            }
        }
    }

    /// Returns when the end of a capture is to be looked for, if one is recorded, or an alert may begin one.
    pub(super) fn capture_due(&self) -> Option<Instant> {
        let source = self.reports.captures()?;
        let is_recording = matches!(source.progress(), CaptureProgress::Recording(_));
        (is_recording || source.on_alert().is_some()).then(|| Instant::now() + LOOK)
    }
}
