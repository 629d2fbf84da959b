//! Sends captures: those that the collector asked for, and those around alerts.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::link::{CaptureAnswer, Order};
use super::{CollectorChannel, SendTime};
use crate::capture::{CaptureCause, CaptureProgress, CaptureSource, CapturedAlert};

/// Size of a part in bytes.
const PART: usize = 512 << 10;

/// Pauses after a request about a capture that the collector could not take: the first, and the longest. Alerts do not wait for them.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time for which a collector that answers other requests may refuse or miss the same part of a capture: as long as it waits for one itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

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
    pub(super) retry: Retry,
}

/// When a request about a capture is made again.
#[derive(Default)]
pub(super) struct Retry {
    /// When a request first failed, or the collector first answered that it cannot take it now, since it took something last, and
    /// since requests without a capture failed last.
    pub(super) refused: Option<Instant>,
    pause: Duration,
    /// The next attempt; `None`: at once.
    pub(super) due: Option<Instant>,
    /// Why the last attempt failed.
    pub(super) trouble: Option<String>,
}

impl Retry {
    /// Plans the next attempt.
    fn plan(&mut self, error: &io::Error, now: Instant) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.due = Some(now + self.pause);
        self.trouble = Some(format!("cannot send a capture: {error}"));
    }
}

/// What became of a capture in a turn.
enum Progress {
    /// The collector has all of it.
    Taken,
    /// There is more to send.
    More,
    /// The collector does not want it any more.
    Unwanted,
    /// The collector cannot take it now.
    Later(io::Error),
}

impl CollectorChannel {
    /// Begins a capture that the collector asks for, or says that there are none. What fails here comes again with the next sign of
    /// life, as the collector goes on asking; alerts do not wait for it.
    pub(super) fn begin_capture(&mut self, order: &Order) {
        let Some(source) = self.reports.captures().cloned() else {
            // Before the engine runs nobody knows whether there will be some.
            if self.reports.report().is_some() {
                self.refuse(order, "this agent allows no captures (--allow-captures)");
            }
            return;
        };
        let (cause, is_over) = match source.progress() {
            CaptureProgress::Idle => (None, true),
            CaptureProgress::Recording { cause, .. } => (Some(cause), false),
            CaptureProgress::Done { cause, .. } => (Some(cause), true),
        };
        match cause {
            None => {}
            Some(CaptureCause::Asked(id)) if id == order.id => return,
            // The collector has given up the one before.
            Some(CaptureCause::Asked(_)) => {
                self.sending = Sending::default();
                source.forget();
            }
            // One that the collector refuses would keep the only place for as long as it may: somebody waits for it.
            Some(CaptureCause::Alert(_)) if is_over && order.parts == 0 && self.is_refused() => {
                self.sending = Sending::default();
                source.refuse();
            }
            // Its order comes again with the next sign of life.
            Some(CaptureCause::Alert(_)) => return,
        }
        if order.parts > 0 {
            // An earlier process recorded them: what follows would be another capture.
            let why = "the agent was started again while it sent the capture";
            return self.refuse(order, why);
        }
        source.begin(order.id, order.seconds);
    }

    /// Returns true if the collector did not take the capture when it was last sent, and has nothing of it.
    fn is_refused(&self) -> bool {
        self.sending.retry.refused.is_some() && self.sending.part == 0
    }

    fn refuse(&self, order: &Order, why: &str) {
        let end = json!({"chunks": 0, "events": 0, "lost": 0, "failure": why});
        // Not needed: the order comes again, or its time is over.
        let _ = self.link.end_capture(order.id, &end);
    }

    /// Sends a capture that is over, or the parts for which the turn has time, unless it has to wait because the collector could not
    /// take it. What has arrived before an interruption is not sent again: the collector says which part it expects. A capture that
    /// the collector refuses or misses for too long is given up, and counted. Returns false if there are more parts.
    pub(super) fn send_capture(&mut self, turn: SendTime) -> bool {
        let Some(source) = self.reports.captures().cloned() else {
            return true;
        };
        let CaptureProgress::Done {
            cause,
            bytes,
            events,
            lost,
        } = source.progress()
        else {
            return true;
        };
        let is_early = |due: Instant| turn == SendTime::Bounded && Instant::now() < due;
        if self.sending.retry.due.is_some_and(is_early) {
            return true;
        }
        let parts = bytes.div_ceil(PART);
        let is_own = matches!(cause, CaptureCause::Alert(_));
        let end = json!({"chunks": parts, "events": events, "lost": lost, "failure": null});
        let is_taken = match self.advance(&*source, cause, (parts, &end), turn) {
            Ok(Progress::Taken) => true,
            Ok(Progress::More) => return false,
            Ok(Progress::Later(error)) if self.waits_after(&error) => return true,
            Ok(Progress::Unwanted | Progress::Later(_)) => false,
            Err(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.peer.count_timeout();
                }
                // It may be too slow for this capture alone. If it is away, signs of life fail, too.
                if self.waits_after(&error) {
                    return true;
                }
                false
            }
        };
        match is_own && !is_taken {
            true => source.refuse(),
            false => source.forget(),
        }
        // A collector with another store may give its number to another one.
        self.sending = Sending::default();
        true
    }

    /// Plans the next attempt after the collector could not take a capture. Returns false if it could not for too long.
    fn waits_after(&mut self, error: &io::Error) -> bool {
        let (now, retry) = (Instant::now(), &mut self.sending.retry);
        let since = *retry.refused.get_or_insert(now);
        let waits = now.duration_since(since) < self.patience;
        if waits {
            retry.plan(error, now);
        }
        waits
    }

    /// Announces a capture if nobody asked for it, and sends what there is time for.
    fn advance(
        &mut self,
        source: &dyn CaptureSource,
        cause: CaptureCause,
        (parts, end): (usize, &Value),
        turn: SendTime,
    ) -> io::Result<Progress> {
        let id = match cause {
            CaptureCause::Asked(id) => id,
            CaptureCause::Alert(alert) => match self.announced(alert)? {
                CaptureAnswer::Taken(id) => id,
                CaptureAnswer::Unwanted => return Ok(Progress::Unwanted),
                CaptureAnswer::Later(error) => return Ok(Progress::Later(error)),
            },
        };
        match self.send_parts(source, id, parts, turn)? {
            Progress::Taken => {}
            other => return Ok(other),
        }
        Ok(match self.link.end_capture(id, end)? {
            CaptureAnswer::Taken(()) => Progress::Taken,
            // One that the collector does not know any more it has given up.
            CaptureAnswer::Unwanted => Progress::Unwanted,
            CaptureAnswer::Later(error) => Progress::Later(error),
        })
    }

    /// Returns the number that the collector gives the capture around an alert.
    fn announced(&mut self, alert: CapturedAlert) -> io::Result<CaptureAnswer<u64>> {
        if self.sending.alert.as_ref() == Some(&alert) {
            return Ok(CaptureAnswer::Taken(self.sending.id));
        }
        Ok(match self.link.announce(&alert)? {
            CaptureAnswer::Taken((id, part)) => {
                self.sending = Sending {
                    id,
                    alert: Some(alert),
                    part,
                    ..Sending::default()
                };
                CaptureAnswer::Taken(id)
            }
            CaptureAnswer::Unwanted => CaptureAnswer::Unwanted,
            CaptureAnswer::Later(error) => CaptureAnswer::Later(error),
        })
    }

    /// Sends parts until the collector has all, or the turn is over.
    fn send_parts(
        &mut self,
        source: &dyn CaptureSource,
        id: u64,
        parts: usize,
        turn: SendTime,
    ) -> io::Result<Progress> {
        let began = Instant::now();
        if self.sending.id != id {
            let retry = std::mem::take(&mut self.sending.retry);
            self.sending = Sending {
                id,
                retry,
                ..Sending::default()
            };
        }
        loop {
            let number = self.sending.part;
            if number >= parts {
                return Ok(Progress::Taken);
            }
            if turn == SendTime::Bounded && began.elapsed() >= self.turn {
                return Ok(Progress::More);
            }
            let part = source.read(number * PART, PART);
            let next = match self.link.send_chunk(id, number, &part)? {
                CaptureAnswer::Taken(next) => next,
                CaptureAnswer::Unwanted => return Ok(Progress::Unwanted),
                CaptureAnswer::Later(error) => return Ok(Progress::Later(error)),
            };
            self.sending.part = next;
            if next > number {
                self.sending.retry = Retry::default();
                continue;
            }
            // It may expect an earlier part than this process thinks, once for each.
            self.sending.in_vain += 1;
            if self.sending.in_vain > parts {
                self.sending.in_vain = 0;
                let error = io::Error::other("the collector takes no part of it");
                return Ok(Progress::Later(error));
            }
        }
    }

    /// Returns when a capture that is recorded is over, or when one is sent again. One that begins by itself wakes the channel.
    pub(super) fn capture_due(&self) -> Option<Instant> {
        match self.reports.captures()?.progress() {
            CaptureProgress::Idle => None,
            CaptureProgress::Recording { until, .. } => Some(until),
            CaptureProgress::Done { .. } => {
                Some(self.sending.retry.due.unwrap_or_else(Instant::now))
            }
        }
    }
}
