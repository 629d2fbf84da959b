//! Records events to captures: all of them (`-w`), or from the match of a rule on (`capture`).
//!
//! The threads that evaluate events encode them as blocks, and one thread writes the blocks. Blocks
//! that do not fit the queue in between are counted and lost, so a slow or full disk never delays
//! the workload. After a loss everything is described again, so the file stays readable.

mod collector_capture;
mod file;
mod header;
mod response_capture;
mod ring;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use collector_capture::CollectorCapture;
use config::{CaptureMode, CaptureOptions};
use diagnostics::failure::Failure;
use event::Event;
pub(crate) use file::Writing;
use file::{Chunk, Target};
use outputs::Dispatcher;
pub(crate) use response_capture::{ResponseCapture, for_responses};
use rules::{Recorder, RuleMatch};
use scap::write::Writer;

/// Options of `-w`.
#[derive(Clone, Debug)]
pub(crate) struct RecordOptions {
    pub(crate) path: PathBuf,
    pub(crate) rotation: Rotation,
}

/// Limits at which another file begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) bytes: Option<u64>,
    pub(crate) time: Option<Duration>,
    pub(crate) events: Option<u64>,
    /// Number of files that are kept.
    pub(crate) keep: Option<u64>,
}

impl Rotation {
    fn is_wanted(&self) -> bool {
        self.bytes.is_some() || self.time.is_some() || self.events.is_some()
    }
}

/// Maximum number of bytes that wait for the disk: about one second of a busy machine.
const MAX_WAITING: usize = 16 << 20;
/// Maximum number of chunks that wait for the disk.
const MAX_CHUNKS: usize = 16_384;

/// All recordings of one agent.
#[derive(Default)]
pub(crate) struct Recordings {
    files: Vec<Arc<Recording>>,
    /// What a collector gets.
    for_collector: Option<Arc<CollectorCapture>>,
}

/// Inputs of the writing threads, which are started later.
pub(crate) struct UnstartedRecording {
    recording: Arc<Recording>,
    chunks: Receiver<Chunk>,
    target: Target,
}

impl Recordings {
    /// Opens everything that can be opened before the first event. `is_resumed`: an earlier agent
    /// has written to the files.
    pub(crate) fn open(
        record: Option<&RecordOptions>,
        capture: &CaptureOptions,
        is_resumed: bool,
    ) -> Result<(Self, Vec<UnstartedRecording>), Failure> {
        let mut recordings = Self::default();
        let mut unstarted = Vec::new();
        if let Some(options) = record {
            let target = Target::file(&options.path, options.rotation, is_resumed)?;
            unstarted.push(recordings.add(Trigger::Always(options.rotation), target));
        }
        if capture.enabled {
            let target = Target::prefix(&capture.path_prefix)?;
            let trigger = Trigger::Match {
                mode: capture.mode,
                duration: Duration::from_millis(capture.default_duration_ms),
                max_mib: Some(capture.max_file_size_mb).filter(|mib| *mib > 0),
            };
            unstarted.push(recordings.add(trigger, target));
        }
        Ok((recordings, unstarted))
    }

    fn add(&mut self, trigger: Trigger, target: Target) -> UnstartedRecording {
        let (sender, chunks) = sync_channel(MAX_CHUNKS);
        let recording = Arc::new(Recording {
            trigger,
            sender,
            waiting: AtomicUsize::new(0),
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            may_capture: AtomicBool::new(false),
            state: Mutex::new(State {
                writer: Writer::new(header::header()),
                buffer: Vec::new(),
                file: None,
                is_behind: false,
            }),
        });
        self.files.push(Arc::clone(&recording));
        UnstartedRecording {
            recording,
            chunks,
            target,
        }
    }

    /// Adds what a collector gets.
    pub(crate) fn also(self, for_collector: Option<Arc<CollectorCapture>>) -> Self {
        Self {
            for_collector,
            ..self
        }
    }

    /// Returns the recorder for engines; `None` if nothing is recorded.
    pub(crate) fn recorder(self) -> Option<Arc<dyn Recorder>> {
        let is_needed = !self.files.is_empty() || self.for_collector.is_some();
        is_needed.then(|| Arc::new(self) as Arc<dyn Recorder>)
    }
}

impl Recorder for Recordings {
    fn is_recording(&self) -> bool {
        let mut files = self.files.iter();
        files.any(|recording| recording.is_recording())
            || self
                .for_collector
                .as_ref()
                .is_some_and(|it| it.is_recording())
    }

    fn record(&self, event: &Event<'_>, matched: &[RuleMatch<'_>]) {
        for recording in &self.files {
            recording.record(event, matched);
        }
        if let Some(capture) = &self.for_collector {
            capture.record(event, matched);
        }
    }
}

impl UnstartedRecording {
    /// Starts the writing threads.
    pub(crate) fn start(self, dispatcher: Dispatcher) -> anyhow::Result<Writing> {
        self.recording.begin();
        file::start(self.recording, self.chunks, self.target, dispatcher)
    }
}

enum Trigger {
    Always(Rotation),
    Match {
        mode: CaptureMode,
        duration: Duration,
        max_mib: Option<u64>,
    },
}

impl Trigger {
    /// Returns the limit in MiB that a capture of this size has reached.
    fn is_exceeded_by(&self, bytes: u64) -> Option<u64> {
        match self {
            Self::Match { max_mib, .. } => {
                max_mib.filter(|mib| bytes >= mib.saturating_mul(1 << 20))
            }
            // The next file begins without a match.
            Self::Always(_) => None,
        }
    }
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A stream of events to files.
pub(crate) struct Recording {
    trigger: Trigger,
    sender: SyncSender<Chunk>,
    /// Bytes that are queued and not written.
    waiting: AtomicUsize,
    recorded: AtomicU64,
    lost: AtomicU64,
    /// Writing has failed permanently, or has ended.
    is_over: AtomicBool,
    /// A triggered capture may still be running. Checked at every event.
    may_capture: AtomicBool,
    state: Mutex<State>,
}

struct State {
    writer: Writer,
    buffer: Vec<u8>,
    file: Option<Current>,
    /// The last event was lost.
    is_behind: bool,
}

/// The file that is being written.
struct Current {
    started: Instant,
    ends: Option<Instant>,
    bytes: u64,
    events: u64,
}

impl Recording {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_recording(&self) -> bool {
        if self.is_over() {
            return false;
        }
        match self.trigger {
            Trigger::Always(_) => true,
            Trigger::Match { .. } => {
                self.may_capture.load(Ordering::Relaxed) && self.state().is_capturing()
            }
        }
    }

    /// Begins the first file, so that a run without events leaves a valid capture.
    fn begin(&self) {
        if matches!(self.trigger, Trigger::Match { .. }) {
            return;
        }
        let mut state = self.state();
        let mut bytes = Vec::new();
        state.writer.begin(&mut bytes);
        let begins = Some((0, 0));
        let size = size(&bytes);
        let chunk = Chunk {
            begins,
            bytes,
            too_large: None,
        };
        if self.hand_over(chunk) {
            let mut file = Current::new(Instant::now(), None);
            file.bytes = size;
            state.file = Some(file);
        }
    }

    fn record(&self, event: &Event<'_>, matched: &[RuleMatch<'_>]) {
        if self.is_over() {
            self.lost.fetch_add(
                u64::from(matches!(self.trigger, Trigger::Always(_))),
                Ordering::Relaxed,
            );
            return;
        }
        let may_concern = matches!(self.trigger, Trigger::Always(_))
            || !matched.is_empty()
            || self.may_capture.load(Ordering::Relaxed);
        if !may_concern {
            return;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(begins) = self.begins_file(state, matched) else {
            return;
        };
        state.buffer.clear();
        if begins {
            state.writer.begin(&mut state.buffer);
        } else if state.is_behind {
            state.writer.forget();
        }
        let events = u64::from(state.writer.event(event, &mut state.buffer));
        // A file that has begun without its event goes on with the next one.
        self.lost.fetch_add(1 - events, Ordering::Relaxed);
        let bytes = std::mem::take(&mut state.buffer);
        let size = size(&bytes);
        let written = state.file.as_ref().map_or(0, |file| file.bytes) + size;
        let too_large = self.trigger.is_exceeded_by(written);
        let chunk = Chunk {
            begins: begins.then_some((event.time_ns, event.number)),
            bytes,
            too_large,
        };
        if self.hand_over(chunk) {
            self.note_recorded(state, size, events, too_large.is_some());
        } else {
            self.lost.fetch_add(events, Ordering::Relaxed);
            state.is_behind = true;
            if begins {
                // Nothing can follow a missing beginning.
                state.file = None;
            }
        }
    }

    /// Returns whether an event begins another file, which is then the current one. `None`: the event belongs to
    /// no capture.
    fn begins_file(&self, state: &mut State, matched: &[RuleMatch<'_>]) -> Option<bool> {
        let now = Instant::now();
        let ends = match &self.trigger {
            Trigger::Always(rotation) => match &state.file {
                Some(file) if !file.is_full(rotation, now) => return Some(false),
                _ => None,
            },
            Trigger::Match { mode, duration, .. } => {
                match extend(state, matched, *mode, *duration, now) {
                    Extension::Outside => {
                        self.may_capture.store(false, Ordering::Relaxed);
                        return None;
                    }
                    Extension::Begins(ends) => {
                        self.may_capture.store(true, Ordering::Relaxed);
                        Some(ends)
                    }
                    Extension::Within => return Some(false),
                }
            }
        };
        state.file = Some(Current::new(now, ends));
        Some(true)
    }

    /// Counts queued blocks of `size` bytes, which have this many events: one, or none that could be written.
    fn note_recorded(&self, state: &mut State, size: u64, events: u64, is_too_large: bool) {
        state.is_behind = false;
        self.recorded.fetch_add(events, Ordering::Relaxed);
        if let Some(file) = &mut state.file {
            file.bytes += size;
            file.events += events;
        }
        if is_too_large {
            // The next match begins another file.
            state.file = None;
            self.may_capture.store(false, Ordering::Relaxed);
        }
    }

    /// Queues blocks for the writing thread if there is room. Never blocks.
    fn hand_over(&self, chunk: Chunk) -> bool {
        let size = chunk.bytes.len();
        if self.waiting.fetch_add(size, Ordering::Relaxed) + size > MAX_WAITING {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        match self.sender.try_send(chunk) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.waiting.fetch_sub(size, Ordering::Relaxed);
                false
            }
        }
    }

    /// Records that the writing thread has written this many bytes.
    fn written(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Stops recording. The writing thread sees the end of the queue.
    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread. If the queue is full, the thread is awake.
        let _ = self.sender.try_send(Chunk {
            begins: None,
            bytes: Vec::new(),
            too_large: None,
        });
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Records that writing has failed.
    fn fail(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn is_capturing(&self) -> bool {
        let ends = self.file.as_ref().and_then(|file| file.ends);
        ends.is_some_and(|ends| Instant::now() < ends)
    }
}

impl Current {
    fn new(started: Instant, ends: Option<Instant>) -> Self {
        Self {
            started,
            ends,
            bytes: 0,
            events: 0,
        }
    }

    fn is_full(&self, rotation: &Rotation, now: Instant) -> bool {
        rotation.bytes.is_some_and(|limit| self.bytes >= limit)
            || rotation.events.is_some_and(|limit| self.events >= limit)
            || rotation
                .time
                .is_some_and(|limit| now.duration_since(self.started) >= limit)
    }
}

/// Effect of an event on a triggered capture.
enum Extension {
    /// The event is in no capture.
    Outside,
    /// The event is in the current capture.
    Within,
    /// The event starts a capture, which lasts until then.
    Begins(Instant),
}

/// Extends a capture at another match, if the rule asks for more time than is left.
fn extend(
    state: &mut State,
    matched: &[RuleMatch<'_>],
    mode: CaptureMode,
    default: Duration,
    now: Instant,
) -> Extension {
    let asks = |matched: &&RuleMatch<'_>| mode == CaptureMode::AllRules || matched.capture;
    let until = matched.iter().filter(asks).map(|matched| {
        let own = u64::from(matched.capture_duration_ms);
        now + if own > 0 {
            Duration::from_millis(own)
        } else {
            default
        }
    });
    let until = until.max();
    let running = state.file.as_mut().and_then(|file| file.ends.as_mut());
    match (running.filter(|ends| now < **ends), until) {
        (Some(ends), until) => {
            *ends = until.map_or(*ends, |until| until.max(*ends));
            Extension::Within
        }
        (None, Some(until)) => Extension::Begins(until),
        (None, None) => Extension::Outside,
    }
}
