//! Reads records from the rings and evaluates them.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use event::Evaluator;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use sys::poll::{self, PollFd};
use sys::schedule;

use super::Shared;
use super::error::Error;
use super::worker::{self, RecordEvaluator};
use crate::notify::Losses;

/// Maximum sleep. A record ends it, except one that is being written while the agent falls asleep.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time for which records are gathered after one has come: waking up for each would cost more than a batch of them.
const LINGER: Duration = Duration::from_millis(1);
/// Time between two reads of the loss counters.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);
/// Number of records taken from the bulk ring before the critical one is checked again.
const BATCH: usize = 1024;
/// Time slice of the consumer's thread: short slices come sooner, also where many threads want a processor,
/// and data that records lack is read before the processes have ended. Not a higher priority: the threads
/// that write alerts would then starve while there are many alerts.
const TURN: Duration = Duration::from_micros(100);
/// Number of records for which other threads help: starting one takes as long as evaluating a few records.
const CROWD: usize = 256;

/// Records copied out of a ring.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn records(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.bytes[start..*end])
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

/// One ring with the records taken from it.
struct RingReader {
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
}

impl RingReader {
    fn open(map: &MapHandle) -> Result<Self, Error> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let into = Rc::clone(&batch);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                into.borrow_mut().push(record);
                0
            })
            .map_err(Error::map)?;
        let ring = builder.build().map_err(Error::map)?;
        Ok(Self { ring, batch })
    }

    /// Takes up to `limit` records; returns their number.
    fn take(&self, limit: usize) -> usize {
        self.batch.borrow_mut().clear();
        // Only the callback could return an error, and it never does.
        usize::try_from(self.ring.consume_raw_n(limit)).unwrap_or(0)
    }
}

/// Says at the end of the thread that the engine has ended, also if a defect ends it.
struct Ending<J: Evaluator>(Arc<Shared<J>>);

impl<J: Evaluator> Drop for Ending<J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notices.engine_trouble(&Error::Panicked);
        }
        self.0.progress.ended.store(true, Ordering::Release);
    }
}

/// The thread that empties the rings and evaluates records, with other threads when many records wait.
pub(super) struct Consumer<J: Evaluator> {
    shared: Arc<Shared<J>>,
    /// Evaluator of this thread first; those of other threads from the first crowd on.
    workers: Vec<RecordEvaluator<J>>,
    /// Maximum number of threads that evaluate a crowd.
    limit: usize,
    /// The kernel's counts at the last check: sent and lost.
    counted: (u64, u64),
    looked: Instant,
}

impl<J: Evaluator + 'static> Consumer<J> {
    pub(super) fn start(shared: Arc<Shared<J>>, limit: usize) -> Result<JoinHandle<()>, Error> {
        let thread = std::thread::Builder::new().name("ebpf".to_owned());
        thread
            .spawn(move || {
                // A kernel that refuses uses slices of its own length.
                let _ = schedule::shorten_turns(TURN);
                let ending = Ending(Arc::clone(&shared));
                if let Err(error) = Self::new(shared, limit).run() {
                    ending.0.notices.engine_trouble(&error);
                }
            })
            .map_err(Error::Thread)
    }

    fn new(shared: Arc<Shared<J>>, limit: usize) -> Self {
        Self {
            workers: vec![RecordEvaluator::new(Arc::clone(&shared))],
            limit: limit.max(1),
            counted: (0, 0),
            looked: Instant::now(),
            shared,
        }
    }

    fn run(mut self) -> Result<(), Error> {
        let critical = RingReader::open(&self.shared.maps.critical)?;
        let bulk = RingReader::open(&self.shared.maps.bulk)?;
        let (mut is_idle, mut emptied, mut settled) = (false, 0, 0);
        loop {
            // Requests that were made before the rings are read.
            let asked = self.shared.progress.asked.load(Ordering::Acquire);
            let is_last = self.is_to_end()?;
            self.workers
                .iter_mut()
                .for_each(RecordEvaluator::follow_rules);
            // This batch was sent before whatever the other ring holds afterwards, so that every exec is
            // known before the events of the new program.
            let mut taken = bulk.take(BATCH);
            loop {
                let urgent = critical.take(BATCH);
                if urgent == 0 {
                    break;
                }
                taken += urgent;
                self.evaluate(&critical.batch.borrow());
            }
            let is_emptied = bulk.batch.borrow().len() < BATCH;
            self.evaluate_concurrently(&bulk.batch.borrow());
            if is_emptied {
                // It takes two such passes: in the first, a record that was being written may have hidden those behind it.
                settled = std::mem::replace(&mut emptied, asked);
                self.shared
                    .progress
                    .settled
                    .store(settled, Ordering::Release);
            }
            if self.report_losses(is_last && taken == 0).is_break() {
                self.shared.progress.gave_up.store(true, Ordering::Release);
                return Err(Error::TooManyLost);
            }
            if taken > 0 {
                is_idle = false;
            } else if is_last {
                return Ok(());
            } else if is_idle && settled == asked {
                self.sleep()?;
            } else {
                self.gather();
                is_idle = true;
            }
        }
    }

    /// Waits until many records have come, or an urgent one, or a moment has passed.
    fn gather(&self) {
        self.wait(LINGER);
    }

    /// Waits until the next record comes.
    fn sleep(&self) -> Result<(), Error> {
        self.shared.maps.await_record()?;
        self.wait(PATIENCE);
        Ok(())
    }

    /// Waits until the programs wake the agent, or the time has passed.
    fn wait(&self, time: Duration) {
        let maps = &self.shared.maps;
        let rings = [&maps.critical, &maps.bulk];
        let mut polled = rings.map(|ring| PollFd::new(AsFd::as_fd(ring), poll::IN));
        // An interruption is a reason to check again, too.
        let _ = poll::poll(&mut polled, Some(time));
    }

    /// Returns whether no further record can come except those in the rings.
    fn is_to_end(&self) -> Result<bool, Error> {
        Ok(self.shared.progress.stopping.load(Ordering::Acquire)
            || (self.shared.ends_with_processes && !self.shared.maps.watches_any()?))
    }

    /// Evaluates records one after the other: a process's state determines that of its children.
    fn evaluate(&mut self, batch: &Batch) {
        let own = &mut self.workers[0];
        batch.records().for_each(|record| own.evaluate(record));
    }

    /// Evaluates calls: those of one process in their order and by one thread, those of several in parallel.
    /// None of these calls creates, replaces or ends a process, so the data they are evaluated by stays the
    /// same meanwhile.
    fn evaluate_concurrently(&mut self, batch: &Batch) {
        let count = self.limit;
        if batch.len() < CROWD || count == 1 {
            return self.evaluate(batch);
        }
        let mut shares = vec![0_usize; count];
        let owners = batch.records().map(|record| worker::owner(record, count));
        owners.for_each(|owner| shares[owner] += 1);
        if shares.iter().filter(|records| **records > 0).count() < 2 {
            return self.evaluate(batch);
        }
        self.shared.crowds.fetch_add(1, Ordering::Relaxed);
        while self.workers.len() < count {
            self.workers
                .push(RecordEvaluator::new(Arc::clone(&self.shared)));
        }
        let mut left = Vec::new();
        std::thread::scope(|scope| {
            let mut workers = self.workers.iter_mut().zip(0_usize..);
            let own = workers.next();
            for (worker, share) in workers.filter(|(_, share)| shares[*share] > 0) {
                let thread = std::thread::Builder::new().name("ebpf-crowd".to_owned());
                let evaluate = move || worker.evaluate_share(batch.records(), share, count);
                if thread.spawn_scoped(scope, evaluate).is_err() {
                    left.push(share);
                }
            }
            if let Some((worker, share)) = own {
                worker.evaluate_share(batch.records(), share, count);
            }
        });
        // Shares for which no thread was available.
        for share in left {
            self.workers[0].evaluate_share(batch.records(), share, count);
        }
    }

    fn report_losses(&mut self, at_once: bool) -> ControlFlow<()> {
        if !at_once && self.looked.elapsed() < LOSS_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.looked = Instant::now();
        let shared = &self.shared;
        shared.name_files(|named, attached| named.refresh(false, attached, &shared.maps));
        let counts = self.shared.kernel_counts();
        let (sent, lost) = (counts.sent, counts.lost());
        let (sent_before, lost_before) = std::mem::replace(&mut self.counted, (sent, lost));
        if lost <= lost_before {
            return ControlFlow::Continue(());
        }
        self.shared.notices.events_dropped(&Losses {
            dropped: lost - lost_before,
            sent: sent - sent_before,
            by_call: self.shared.losses(),
            by_process: self.shared.maps.losers(),
        })
    }
}
