//! The last events in memory, as blocks of a capture.
//!
//! Blocks depend on earlier ones, which introduce processes and descriptors. So the events are kept in segments, each of which
//! introduces everything again: whatever segments are dropped, the rest is readable after a header.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use event::Event;
use scap::write::{Header, Writer};

/// Segments in the time and in the memory that are kept: the more, the less is kept beyond that time, and the more often
/// processes are introduced.
const SEGMENTS: usize = 8;
const PARTS: u32 = 8;
/// Shortest time of a segment: each one says anew who the processes are.
const SHORTEST: Duration = Duration::from_millis(100);

/// Encodes events, and keeps the last ones.
pub(super) struct Ring {
    writer: Writer,
    /// The beginning of every capture.
    header: Vec<u8>,
    segments: VecDeque<Segment>,
    /// Size of all segments.
    size: usize,
    /// Largest size; 0 keeps nothing.
    limit: usize,
    /// How long events are kept.
    time: Duration,
    /// The next event begins a segment.
    is_cut: bool,
    /// Blocks of the last event.
    last: Vec<u8>,
}

struct Segment {
    began: Instant,
    /// When its last event was added.
    ended: Instant,
    /// Time of its first event.
    first_ns: u64,
    bytes: Vec<u8>,
    events: u64,
}

/// What a capture of the past has.
pub(super) struct Past {
    pub(super) bytes: Vec<u8>,
    pub(super) events: u64,
    /// Time of the first event.
    pub(super) first_ns: Option<u64>,
}

impl Ring {
    /// Creates a ring that keeps nothing.
    pub(super) fn new(header: Header) -> Self {
        let (writer, header) = begun(header);
        Self {
            writer,
            header,
            segments: VecDeque::new(),
            size: 0,
            limit: 0,
            time: Duration::ZERO,
            is_cut: false,
            last: Vec::new(),
        }
    }

    /// Keeps events of this time within this size from now on.
    pub(super) fn keep(&mut self, time: Duration, limit: usize) {
        self.time = time;
        self.limit = limit;
        self.segments.clear();
        self.size = 0;
        // What comes has to stand alone.
        self.writer.forget();
    }

    /// Returns true if a capture of the past has nothing but the last event.
    pub(super) fn keeps_no_past(&self) -> bool {
        self.time.is_zero()
    }

    /// Drops all events. The next one stands alone.
    pub(super) fn cut(&mut self) {
        self.segments.clear();
        self.size = 0;
        self.is_cut = true;
    }

    /// Encodes an event and keeps it. Returns its blocks, which may follow those of the event before; `None` if it cannot be written.
    pub(super) fn add(&mut self, event: &Event<'_>, now: Instant) -> Option<&[u8]> {
        let begins = self.is_kept() && self.begins_segment(now);
        if begins {
            self.writer.forget();
            self.is_cut = false;
        }
        self.last.clear();
        if !self.writer.event(event, &mut self.last) {
            // It may have introduced something in vain.
            self.writer.forget();
            return None;
        }
        if self.is_kept() {
            self.push(event.time_ns, now, begins);
        }
        Some(&self.last)
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn is_kept(&self) -> bool {
        self.limit > 0
    }

    fn begins_segment(&self, now: Instant) -> bool {
        let share = self.limit / SEGMENTS;
        self.segments.back().is_none_or(|segment| {
            self.is_cut
                || segment.bytes.len() >= share
                || now.duration_since(segment.began) >= (self.time / PARTS).max(SHORTEST)
        })
    }

    fn push(&mut self, time_ns: u64, now: Instant, begins: bool) {
        if begins {
            self.segments.push_back(Segment {
                began: now,
                ended: now,
                first_ns: time_ns,
                bytes: Vec::new(),
                events: 0,
            });
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes.extend_from_slice(&self.last);
            segment.ended = now;
            segment.events += 1;
            self.size += self.last.len();
        }
        self.drop_old(now);
    }

    /// Drops segments that are too old or too much. Events that follow never depend on them.
    fn drop_old(&mut self, now: Instant) {
        while let Some(segment) = self.segments.front() {
            let is_old = now.duration_since(segment.ended) > self.time;
            if !is_old && self.size <= self.limit {
                return;
            }
            self.size -= segment.bytes.len();
            self.segments.pop_front();
            if self.segments.is_empty() {
                self.writer.forget();
            }
        }
    }

    /// Begins a capture without the past. Events that are added later can follow.
    pub(super) fn begin(&mut self, header: Header) -> Vec<u8> {
        // What follows stands alone, in the capture and among the events that are kept.
        (self.writer, self.header) = begun(header);
        self.is_cut = true;
        self.header.clone()
    }

    /// Begins a capture with all events that are kept. Events that are added later can follow.
    pub(super) fn past(&self) -> Past {
        let mut bytes = Vec::with_capacity(self.header.len() + self.size);
        bytes.extend_from_slice(&self.header);
        for segment in &self.segments {
            bytes.extend_from_slice(&segment.bytes);
        }
        Past {
            bytes,
            events: self.segments.iter().map(|segment| segment.events).sum(),
            first_ns: self.segments.front().map(|segment| segment.first_ns),
        }
    }
}

/// Returns a writer, and the beginning of a capture.
fn begun(header: Header) -> (Writer, Vec<u8>) {
    let mut writer = Writer::new(header);
    let mut bytes = Vec::new();
    writer.begin(&mut bytes);
    (writer, bytes)
}
