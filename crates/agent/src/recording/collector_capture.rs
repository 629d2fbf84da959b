//! Captures for a collector: some seconds of events that it asks for, or those around an alert, kept in memory until it has them.
//!
//! Nothing is written to a disk, so a capture waits for none and leaves no file behind. While it runs, and as long as past events are
//! kept for the next alert, events wait for one another: one at a time is encoded. An agent that ends loses what it has not sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use config::Config;
use event::Event;
use outputs::{
    AlertCaptureCounts, CaptureCause, CaptureOnAlert, CaptureProgress, CaptureSource, CaptureWake,
    CapturedAlert, MAX_AFTER, MAX_BEFORE, MAX_LIMIT_MIB,
};
use rules::{Recorder, RuleMatch};
use scap::write::Header;

use super::header;
use super::ring::Ring;

/// Largest capture in bytes: what a collector takes.
const MAX_BYTES: usize = 16 << 20;

/// Longest capture in seconds, whatever the collector asks for.
const MAX_SECONDS: u64 = 300;

/// Time for which captures around alerts are counted.
const HOUR: Duration = Duration::from_secs(3600);

/// Captures for a collector. There is one at a time.
pub(crate) struct CollectorCapture {
    /// Events are encoded. Checked at every event.
    is_active: AtomicBool,
    state: Mutex<State>,
    /// Called when a capture around an alert has begun.
    wake: OnceLock<CaptureWake>,
}

struct State {
    ring: Ring,
    capture: Option<Capture>,
    /// What the agent's settings say of captures around alerts.
    own: CaptureOnAlert,
    /// What the collector says of them.
    wanted: Option<CaptureOnAlert>,
    /// The alerts to record around.
    on_alert: Option<CaptureOnAlert>,
    /// When captures around alerts were begun, the latest last.
    begun: VecDeque<Instant>,
    counts: AlertCaptureCounts,
}

struct Capture {
    cause: CaptureCause,
    began: Instant,
    until: Instant,
    bytes: Vec<u8>,
    events: u64,
    /// Events after the capture had reached its size.
    lost: u64,
    is_over: bool,
}

impl CollectorCapture {
    /// Returns what records for the collector; `None` if that is not allowed.
    pub(crate) fn of(config: &Config) -> Option<Arc<Self>> {
        let collector = &config.outputs.collector;
        let is_allowed = collector.enabled && collector.allow_captures;
        is_allowed.then(|| Arc::new(Self::new(collector.capture_on_alert.clone())))
    }

    fn new(own: CaptureOnAlert) -> Self {
        let capture = Self {
            is_active: AtomicBool::new(false),
            state: Mutex::new(State {
                ring: Ring::new(header::header()),
                capture: None,
                own: own.clone(),
                wanted: None,
                on_alert: None,
                begun: VecDeque::new(),
                counts: AlertCaptureCounts::default(),
            }),
            wake: OnceLock::new(),
        };
        capture.set_own(&own);
        capture
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves whole blocks behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a capture that the collector asks for, unless there is one. `header` reads files: events wait for none of them.
    fn begin_with(&self, id: u64, seconds: u64, header: impl FnOnce() -> Header) {
        if self.state().capture.is_some() {
            return;
        }
        let header = header();
        self.with(|state| {
            // An alert may have begun one meanwhile.
            if state.capture.is_some() {
                return;
            }
            let now = Instant::now();
            state.capture = Some(Capture {
                cause: CaptureCause::Asked(id),
                began: now,
                until: now + Duration::from_secs(seconds.min(MAX_SECONDS)),
                bytes: state.ring.begin(header),
                events: 0,
                lost: 0,
                is_over: false,
            });
        });
    }

    /// Changes the state, and notes whether it needs events afterwards.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        self.is_active
            .store(state.needs_events(), Ordering::Relaxed);
        result
    }
}

impl Recorder for CollectorCapture {
    fn is_recording(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn record(&self, event: &Event<'_>, matched: &[RuleMatch<'_>]) {
        if !self.is_recording() {
            return;
        }
        let has_begun = self.with(|state| state.record(event, matched, Instant::now()));
        if let Some(wake) = self.wake.get().filter(|_| has_begun) {
            wake();
        }
    }
}

impl State {
    fn needs_events(&self) -> bool {
        self.on_alert.is_some() || self.capture.as_ref().is_some_and(|it| !it.is_over)
    }

    /// Records around the alerts that the settings name, or else around those that the collector names.
    fn decide(&mut self) {
        let own = Some(self.own.clone()).filter(CaptureOnAlert::is_on);
        self.follow(own.or_else(|| self.wanted.clone()));
    }

    /// Records around these alerts from now on. What was kept goes if the time or the memory is another one.
    fn follow(&mut self, on_alert: Option<CaptureOnAlert>) {
        if self.on_alert == on_alert {
            return;
        }
        let (time, limit) = on_alert.as_ref().map_or((0, 0), |on_alert| {
            // The event of the alert has to fit.
            let limit = on_alert.limit_mib.clamp(1, MAX_LIMIT_MIB) << 20;
            (on_alert.before.min(MAX_BEFORE), limit)
        });
        let limit = usize::try_from(limit).unwrap_or(0);
        self.ring.keep(Duration::from_secs(time), limit);
        self.on_alert = on_alert;
    }

    /// Records an event. Returns true if a capture has begun with it.
    fn record(&mut self, event: &Event<'_>, matched: &[RuleMatch<'_>], now: Instant) -> bool {
        if let Some(capture) = &mut self.capture {
            capture.end_at(now);
        }
        if !self.needs_events() {
            return false;
        }
        let on_alert = self.on_alert.as_ref();
        let fitting = on_alert.and_then(|on_alert| longest(on_alert, matched));
        if self.capture.is_none() && self.ring.keeps_no_past() {
            if fitting.is_none() {
                return false;
            }
            // The capture begins with the event of the alert.
            self.ring.cut();
        }
        let blocks = self.ring.add(event, now);
        if let Some(capture) = &mut self.capture {
            capture.add(blocks);
        }
        fitting.is_some_and(|fitting| self.alert(event.time_ns, fitting, now))
    }

    /// Begins a capture around an alert, whose event is the last one, or counts why there is none. Returns true if it has begun one.
    fn alert(&mut self, time_ns: u64, (rule, after): (&str, Duration), now: Instant) -> bool {
        if let Some(capture) = &self.capture {
            // An alert in a capture around another one has that.
            self.counts.busy += u64::from(!capture.has_alert());
            return false;
        }
        let max = self.on_alert.as_ref().map_or(0, |it| it.max_per_hour);
        while let Some(first) = self.begun.front() {
            if now.duration_since(*first) < HOUR {
                break;
            }
            self.begun.pop_front();
        }
        if u64::try_from(self.begun.len()).unwrap_or(u64::MAX) >= max {
            self.counts.rate += 1;
            return false;
        }
        self.begun.push_back(now);
        self.counts.begun += 1;
        let past = self.ring.past();
        let before_ns = past
            .first_ns
            .map_or(0, |first| time_ns.saturating_sub(first));
        self.capture = Some(Capture {
            cause: CaptureCause::Alert(CapturedAlert {
                rule: rule.to_owned(),
                time_ns,
                before_ms: before_ns / 1_000_000,
                // Known at its end.
                after_ms: 0,
            }),
            began: now,
            until: now + after,
            bytes: past.bytes,
            events: past.events,
            lost: 0,
            is_over: after.is_zero(),
        });
        true
    }
}

/// Returns the matched rule with an alert to record around that asks for the most time, and that time.
fn longest<'m>(
    on_alert: &CaptureOnAlert,
    matched: &[RuleMatch<'m>],
) -> Option<(&'m str, Duration)> {
    // A rule with `capture: true` asks for one itself, and may say how long.
    let fits = |it: &&RuleMatch<'_>| it.capture || on_alert.fits(it.rule, it.priority);
    let after = |it: &RuleMatch<'_>| match it.capture_duration_ms {
        0 => Duration::from_secs(on_alert.after),
        own => Duration::from_millis(own.into()),
    };
    let fitting = matched.iter().filter(fits);
    // Of equal ones the first, whose alert is the first, too.
    let longest = fitting.rev().max_by_key(|it| after(it))?;
    let after = after(longest).min(Duration::from_secs(MAX_AFTER));
    Some((longest.rule, after))
}

impl Capture {
    /// Returns true if the last event is in this capture, and it is one around an alert.
    fn has_alert(&self) -> bool {
        matches!(self.cause, CaptureCause::Alert(_)) && !self.is_over && self.lost == 0
    }

    fn add(&mut self, blocks: Option<&[u8]>) {
        if self.is_over {
            return;
        }
        match blocks {
            // What came before has to be whole, so nothing follows what did not fit.
            Some(blocks) if self.lost == 0 && self.bytes.len() + blocks.len() <= MAX_BYTES => {
                self.bytes.extend_from_slice(blocks);
                self.events += 1;
            }
            _ => self.lost += 1,
        }
    }

    /// Ends the capture if its time is over.
    fn end_at(&mut self, now: Instant) {
        if now >= self.until {
            self.end(self.until);
        }
    }

    fn end(&mut self, now: Instant) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        if let CaptureCause::Alert(alert) = &mut self.cause {
            let after = now.duration_since(self.began).as_millis();
            alert.after_ms = u64::try_from(after).unwrap_or(u64::MAX);
        }
    }
}

impl CaptureSource for CollectorCapture {
    fn begin(&self, id: u64, seconds: u64) {
        self.begin_with(id, seconds, header::header);
    }

    fn wake_by(&self, wake: CaptureWake) {
        // The first one stays: an agent has one set of outputs.
        let _ = self.wake.set(wake);
    }

    fn follow(&self, wanted: Option<CaptureOnAlert>) {
        self.with(|state| {
            state.wanted = wanted;
            state.decide();
        });
    }

    fn set_own(&self, own: &CaptureOnAlert) {
        self.with(|state| {
            state.own = own.clone();
            state.decide();
        });
    }

    fn on_alert(&self) -> Option<(CaptureOnAlert, AlertCaptureCounts)> {
        let state = self.state();
        Some((state.on_alert.clone()?, state.counts))
    }

    fn end(&self) {
        self.with(|state| {
            if let Some(capture) = &mut state.capture {
                capture.end(Instant::now());
            }
        });
    }

    fn progress(&self) -> CaptureProgress {
        self.with(|state| {
            let Some(capture) = &mut state.capture else {
                return CaptureProgress::Idle;
            };
            capture.end_at(Instant::now());
            let cause = capture.cause.clone();
            match capture.is_over {
                false => CaptureProgress::Recording {
                    cause,
                    until: capture.until,
                },
                true => CaptureProgress::Done {
                    cause,
                    bytes: capture.bytes.len(),
                    events: capture.events,
                    lost: capture.lost,
                },
            }
        })
    }

    fn read(&self, from: usize, length: usize) -> Vec<u8> {
        let state = self.state();
        let bytes = state
            .capture
            .as_ref()
            .map_or(&[][..], |capture| &capture.bytes);
        let from = from.min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        bytes[from..to].to_vec()
    }

    fn forget(&self) {
        self.with(|state| state.capture = None);
    }

    fn refuse(&self) {
        self.with(|state| {
            state.capture = None;
            state.counts.refused += 1;
        });
    }
}

#[cfg(test)]
mod tests;
