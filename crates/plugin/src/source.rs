//! Keeps the process of an event source running.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::evaluator::SourceEvaluator;
use crate::host_process::{Helper, HelperError, Limits, Stopper};
use crate::protocol::{Missed, PluginSpec, ProtocolError, Record, Reply};

/// Time before the first restart; doubles with each one that follows soon.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest time before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A source that ran this long begins again with the first pause.
const SOUND_AFTER: Duration = Duration::from_secs(60);

/// What a source is made of.
#[derive(Clone, Debug)]
pub struct SourcePlan {
    /// Name of the source.
    pub source: String,
    /// The source plugin, and those that add events to it, take fields from them or parse them, in the order of the configuration.
    pub plugins: Vec<PluginSpec>,
    /// Limits of its process.
    pub limits: Limits,
}

/// Counts what happened to a source.
#[derive(Debug, Default)]
pub struct Counters {
    /// Events that were shown to rules.
    pub events: AtomicU64,
    /// Times that the process was started anew.
    pub restarts: AtomicU64,
    /// Times that the process ended by itself.
    pub crashes: AtomicU64,
    /// Times that the process did not answer in time.
    pub hangs: AtomicU64,
    /// Times that the process sent garbage.
    pub garbage: AtomicU64,
    /// Times that the plugin reported a failure.
    pub failures: AtomicU64,
    /// Rules that stayed undecided because a plugin could not say a value.
    pub undecided: AtomicU64,
    /// Events that a plugin could not parse. Rules saw them.
    pub unparsed: AtomicU64,
    /// Asynchronous events for which the queue had no room, or that waited when the source failed. No rule saw them.
    pub async_lost: AtomicU64,
    /// Asynchronous events that were refused. No rule saw them.
    pub async_refused: AtomicU64,
}

/// Counts at one moment; see [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Counters`")]
pub struct Totals {
    pub events: u64,
    pub restarts: u64,
    pub crashes: u64,
    pub hangs: u64,
    pub garbage: u64,
    pub failures: u64,
    pub undecided: u64,
    pub unparsed: u64,
    pub async_lost: u64,
    pub async_refused: u64,
}

impl Counters {
    /// Returns the counts.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            events: load(&self.events),
            restarts: load(&self.restarts),
            crashes: load(&self.crashes),
            hangs: load(&self.hangs),
            garbage: load(&self.garbage),
            failures: load(&self.failures),
            undecided: load(&self.undecided),
            unparsed: load(&self.unparsed),
            async_lost: load(&self.async_lost),
            async_refused: load(&self.async_refused),
        }
    }

    fn miss(&self, missed: Missed) {
        self.async_lost.fetch_add(missed.lost, Ordering::Relaxed);
        let refused = &self.async_refused;
        refused.fetch_add(missed.refused, Ordering::Relaxed);
    }
}

impl Totals {
    /// Counts a failure.
    pub(crate) fn count(&mut self, error: &HelperError) {
        let counter = match error {
            HelperError::Ended(_) => &mut self.crashes,
            HelperError::Hung(_) => &mut self.hangs,
            HelperError::Garbage(_) => &mut self.garbage,
            HelperError::Plugin(_) | HelperError::Missing(_) | HelperError::Start { .. } => {
                &mut self.failures
            }
        };
        *counter += 1;
    }
}

/// Something that the user should hear of.
#[derive(Clone, Debug)]
pub struct Incident {
    /// Name of the source.
    pub source: String,
    /// What happened.
    pub kind: IncidentKind,
    /// The same in words, with the cause.
    pub message: String,
    /// Restarts so far.
    pub restarts: u64,
}

/// Kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentKind {
    /// The source sends events.
    Opened,
    /// The process is started again after a pause.
    Restarting,
    /// The source has no more events.
    Ended,
}

/// Hears what happens to sources. Threads of sources call it.
pub trait Observer: Send + Sync {
    /// Receives an incident.
    fn happened(&self, incident: Incident);
}

/// An event source with the thread that keeps its process running.
pub struct Source {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    plan: SourcePlan,
    counters: Counters,
    observer: Arc<dyn Observer>,
    stop: AtomicBool,
    has_ended: AtomicBool,
    /// Ends the waiting for the present process.
    stopper: Mutex<Option<Stopper>>,
    /// The evaluator that takes over from the present one.
    next: Mutex<Option<SourceEvaluator>>,
}

/// Why a process is not followed any more.
enum FollowEnd {
    Stopped,
    Ended,
    /// Another evaluator asks for other fields.
    Replaced,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("plan", &self.shared.plan)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Starts the source.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started. Failures of plugins are incidents.
    pub fn start(
        plan: SourcePlan,
        evaluator: SourceEvaluator,
        observer: Arc<dyn Observer>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            plan,
            counters: Counters::default(),
            observer,
            stop: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            stopper: Mutex::new(None),
            next: Mutex::new(None),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("plugin-source".to_owned())
            .spawn(move || of_thread.run(evaluator))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns the name of the source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.plan.source
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Evaluates later events with another evaluator. If it asks for other fields, the source is opened anew, after the present
    /// evaluator has seen the events that it has taken.
    pub fn replace(&self, evaluator: SourceEvaluator) {
        *lock(&self.shared.next) = Some(evaluator);
    }

    /// Returns true if the source has no more events.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
    }

    /// Ends the source, even one that hangs.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(stopper) = lock(&self.shared.stopper).take() {
            stopper.stop();
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Locks what is only ever replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn run(&self, mut evaluator: SourceEvaluator) {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            match self.follow(&mut evaluator) {
                Ok(FollowEnd::Stopped) => return,
                Ok(FollowEnd::Replaced) => continue,
                Ok(FollowEnd::Ended) => {
                    self.tell(IncidentKind::Ended, "it has no more events".to_owned());
                    self.has_ended.store(true, Ordering::Release);
                    return;
                }
                Err(_) if self.stop.load(Ordering::Acquire) => return,
                Err(error) => self.note(&error),
            }
            if started.elapsed() >= SOUND_AFTER {
                pause = FIRST_PAUSE;
            }
            if self.sleeps(pause) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Starts a process and follows it to its end.
    fn follow(&self, evaluator: &mut SourceEvaluator) -> Result<FollowEnd, HelperError> {
        let mut helper = Helper::start(&self.plan.limits)?;
        *lock(&self.stopper) = helper.stopper();
        if self.stop.load(Ordering::Acquire) {
            return Ok(FollowEnd::Stopped);
        }
        helper.load(&self.plan.plugins)?;
        helper.open(evaluator.wanted())?;
        self.tell(IncidentKind::Opened, "it is open".to_owned());
        loop {
            let reply = helper.reply()?;
            if self.stop.load(Ordering::Acquire) {
                return Ok(FollowEnd::Stopped);
            }
            // What was read is judged by the rules that it was asked for; it does not come again.
            if self.take(evaluator, reply)? {
                return Ok(FollowEnd::Ended);
            }
            let Some(next) = self.successor() else {
                continue;
            };
            let has_other_fields = next.wanted() != evaluator.wanted();
            let drained = match has_other_fields {
                true => self.drain(&mut helper, evaluator),
                false => Ok(()),
            };
            let former = std::mem::replace(evaluator, next);
            evaluator.continue_after(&former);
            drained?;
            if has_other_fields {
                return Ok(FollowEnd::Replaced);
            }
        }
    }

    /// Takes a message of an open source. Returns true if it is the last one.
    fn take(&self, evaluator: &mut SourceEvaluator, reply: Reply) -> Result<bool, HelperError> {
        match reply {
            Reply::Batch(records) => self.show(evaluator, &records)?,
            Reply::Idle => {}
            Reply::Unparsed(events) => {
                self.counters.unparsed.fetch_add(events, Ordering::Relaxed);
            }
            Reply::Missed(missed) => self.counters.miss(missed),
            Reply::Ended => return Ok(true),
            Reply::Loaded(_) | Reply::Opened | Reply::Failed(_) => {
                let what = "an answer to nothing".to_owned();
                return Err(HelperError::Garbage(ProtocolError::Invalid(what)));
            }
        }
        Ok(false)
    }

    /// Has the process end its source, and shows rules the events that it has taken. Waits no longer than about its deadline.
    fn drain(
        &self,
        helper: &mut Helper,
        evaluator: &mut SourceEvaluator,
    ) -> Result<(), HelperError> {
        let until = Instant::now() + self.plan.limits.deadline;
        helper.ask_for_the_end();
        while Instant::now() < until {
            let reply = helper.reply()?;
            if self.take(evaluator, reply)? {
                break;
            }
        }
        Ok(())
    }

    fn show(&self, evaluator: &mut SourceEvaluator, records: &[Record]) -> Result<(), HelperError> {
        for record in records {
            evaluator.check(record).map_err(HelperError::Garbage)?;
            let undecided = evaluator.evaluate(record);
            self.counters.events.fetch_add(1, Ordering::Relaxed);
            let undecided = u64::try_from(undecided).unwrap_or(u64::MAX);
            self.counters
                .undecided
                .fetch_add(undecided, Ordering::Relaxed);
        }
        Ok(())
    }

    fn successor(&self) -> Option<SourceEvaluator> {
        lock(&self.next).take()
    }

    /// Counts and reports a failure.
    fn note(&self, error: &HelperError) {
        let counter = match error {
            HelperError::Ended(_) => &self.counters.crashes,
            HelperError::Hung(_) => &self.counters.hangs,
            HelperError::Garbage(_) => &self.counters.garbage,
            HelperError::Plugin(_) | HelperError::Missing(_) | HelperError::Start { .. } => {
                &self.counters.failures
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.counters.restarts.fetch_add(1, Ordering::Relaxed);
        self.tell(IncidentKind::Restarting, error.to_string());
    }

    fn tell(&self, kind: IncidentKind, message: String) {
        self.observer.happened(Incident {
            source: self.plan.source.clone(),
            kind,
            message,
            restarts: self.counters.restarts.load(Ordering::Relaxed),
        });
    }

    /// Waits; returns true if the source is to stop.
    fn sleeps(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::park_timeout(left);
        }
    }
}
