//! From the rings to the judge.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bumpalo::Bump;
use event::Judge;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use sys::poll::{self, PollFd};
use sys::time::{Clock, now_ns};

use super::{Error, Shared};
use crate::memory::Memory;
use crate::sockets::ResolvedDescriptor;

/// Longest sleep. A record ends it, but for one that is being written while the agent falls asleep.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long records are gathered where one has just come: waking up for each would cost more than a
/// crowd of them.
const LINGER: Duration = Duration::from_millis(1);
/// Time between two looks at the counters of losses.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);
/// Records taken from the bulk ring before the critical one is looked at again.
const BATCH: usize = 1024;
/// Records that were copied out of a ring.
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
}

/// One ring and what was taken from it.
struct Lane {
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
}

impl Lane {
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

    /// Takes up to so many records; answers with their number.
    fn take(&self, limit: usize) -> usize {
        self.batch.borrow_mut().clear();
        // An error would be one of the callback, which has none.
        usize::try_from(self.ring.consume_raw_n(limit)).unwrap_or(0)
    }
}

/// The thread that judges.
pub(super) struct Consumer<J: Judge> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) judge: Arc<J>,
    pub(super) scratch: J::Scratch,
    pub(super) memory: Memory,
    pub(super) arena: Bump,
    pub(super) directories: Vec<(i32, Vec<u8>)>,
    /// Standard streams of the process that a record is about; `None` of one that is closed.
    pub(super) streams: Vec<(i32, Option<ResolvedDescriptor>)>,
    /// Added to a time since boot to get one since the epoch.
    pub(super) epoch: u64,
    pub(super) number: u64,
    /// What the kernel had counted when it was last looked: sent and lost.
    counted: (u64, u64),
    looked: Instant,
}

impl<J: Judge + 'static> Consumer<J> {
    pub(super) fn start(shared: Arc<Shared<J>>) -> Result<JoinHandle<()>, Error> {
        let thread = std::thread::Builder::new().name("ebpf".to_owned());
        thread
            .spawn(move || {
                let notices = Arc::clone(&shared.notices);
                let ended = Arc::clone(&shared);
                if let Err(error) = Self::new(shared).run() {
                    notices.engine_trouble(&error);
                }
                ended.ended.store(true, Ordering::Release);
            })
            .map_err(Error::Thread)
    }

    fn new(shared: Arc<Shared<J>>) -> Self {
        let judge = shared.judge.load_full();
        Self {
            scratch: judge.scratch(),
            judge,
            memory: Memory::captured(),
            arena: Bump::with_capacity(64 * 1024),
            directories: Vec::new(),
            streams: Vec::new(),
            epoch: now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot)),
            number: 0,
            counted: (0, 0),
            looked: Instant::now(),
            shared,
        }
    }

    fn run(mut self) -> Result<(), Error> {
        let critical = Lane::open(&self.shared.maps.critical)?;
        let bulk = Lane::open(&self.shared.maps.bulk)?;
        let mut is_idle = false;
        loop {
            let is_last = self.is_to_end();
            self.follow_rules();
            // What is in this batch was sent before what the other ring holds afterwards, so that
            // every exec is known before the events of the new program.
            let mut taken = bulk.take(BATCH);
            loop {
                let urgent = critical.take(BATCH);
                if urgent == 0 {
                    break;
                }
                taken += urgent;
                critical
                    .batch
                    .borrow()
                    .records()
                    .for_each(|record| self.judge(record));
            }
            bulk.batch
                .borrow()
                .records()
                .for_each(|record| self.judge(record));
            if self.report_losses(is_last && taken == 0).is_break() {
                self.shared.gave_up.store(true, Ordering::Release);
                return Err(Error::TooManyLost);
            }
            if taken > 0 {
                is_idle = false;
            } else if is_last {
                return Ok(());
            } else if is_idle {
                self.sleep()?;
            } else {
                self.gather();
                is_idle = true;
            }
        }
    }

    /// Until many records have come, or a moment has passed.
    fn gather(&self) {
        let mut polled = [PollFd::new(AsFd::as_fd(&self.shared.maps.bulk), poll::IN)];
        // An interruption is a reason to look again, too.
        let _ = poll::poll(&mut polled, Some(LINGER));
    }

    /// Until the next record comes.
    fn sleep(&self) -> Result<(), Error> {
        let maps = &self.shared.maps;
        maps.await_record()?;
        let mut polled = [
            PollFd::new(AsFd::as_fd(&maps.critical), poll::IN),
            PollFd::new(AsFd::as_fd(&maps.bulk), poll::IN),
        ];
        // An interruption is a reason to look again, too.
        let _ = poll::poll(&mut polled, Some(PATIENCE));
        Ok(())
    }

    /// Whether nothing can come any more but what waits in the rings.
    fn is_to_end(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
            || (self.shared.ends_with_processes && !self.shared.maps.watches_any())
    }

    fn follow_rules(&mut self) {
        let judge = self.shared.judge.load();
        if !Arc::ptr_eq(&judge, &self.judge) {
            self.scratch = judge.scratch();
            self.judge = Arc::clone(&judge);
            // The clock may have been set, too.
        }
        self.epoch = now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot));
    }

    fn report_losses(&mut self, at_once: bool) -> ControlFlow<()> {
        if !at_once && self.looked.elapsed() < LOSS_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.looked = Instant::now();
        let counts = self.shared.kernel_counts();
        let (sent, lost) = (counts.sent, counts.lost());
        let (sent_before, lost_before) = std::mem::replace(&mut self.counted, (sent, lost));
        if lost <= lost_before {
            return ControlFlow::Continue(());
        }
        let by_call = self.shared.losses();
        let notices = &self.shared.notices;
        notices.events_dropped(lost - lost_before, sent - sent_before, &by_call)
    }
}
