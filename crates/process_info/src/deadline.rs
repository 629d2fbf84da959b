//! Bounded waiting for operations that the watched program may block forever.
//!
//! A page behind userfaultfd or a file on a FUSE mount blocks its reader for as long as the serving program
//! likes, and the reader cannot be interrupted. Such reads run on a thread of a small pool; after the
//! time-out the caller abandons the thread and continues without a result. The number of stuck threads is
//! bounded too: when all threads are stuck, further reads are refused at once instead of being queued behind
//! them.
//!
//! On a busy machine a thread may be late only because others have the processors. The kernel shows that: the
//! thread can run, and does not wait for anybody. Its caller then waits longer, up to [`STARVED_LIMIT`]. A pool for
//! files ([`Deadline::for_files`]) gives that time also to a thread that waits for a disk, or for a folder that others
//! change. A watched program can make such waits last, so they are given in all no more than a share of the time.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The reason why there is no result in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedOut {
    /// The work is still running.
    #[error("cannot wait longer than {after:?} for something the watched program controls")]
    Late {
        /// Time waited.
        after: Duration,
    },
    /// No thread was free: too many earlier reads never returned.
    #[error("cannot start another guarded read: {stuck} earlier reads hang")]
    Refused {
        /// Number of stuck threads.
        stuck: usize,
    },
    /// The work panicked or no thread could be started.
    #[error("cannot do a guarded read")]
    Failed,
}

/// Counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineCounts {
    /// Number of requested reads.
    pub runs: u64,
    /// Number of abandoned reads.
    pub late: u64,
    /// Number of refused reads.
    pub refused: u64,
    /// Number of threads that are stuck now.
    pub stuck: u64,
}

/// Maximum time beyond the limit for a thread that has had no processor, or no disk: a hundred time slices of the
/// kernel's scheduler (`base_slice_ns`, 2.8 ms), rounded up.
pub const STARVED_LIMIT: Duration = Duration::from_secs(1);
/// Time between two looks at a thread that is late.
const STARVED_STEP: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for work that may never finish.
#[derive(Debug)]
pub struct Deadline {
    shared: Arc<Shared>,
    limit: usize,
    /// Time that may be given to threads that wait for a disk; `None` if they are given none.
    disk_time: Option<Mutex<DiskTime>>,
}

/// Time that may be given to threads that wait for a disk.
#[derive(Debug)]
struct DiskTime {
    left: Duration,
    /// When that was the rest.
    at: Instant,
}

impl DiskTime {
    /// Maximum.
    const MAX: Duration = Duration::from_secs(3);
    /// A second is added in so many.
    const SHARE: u32 = 20;

    fn full() -> Self {
        Self {
            left: Self::MAX,
            at: Instant::now(),
        }
    }

    /// Takes an amount, if there is that much.
    fn take(&mut self, amount: Duration, now: Instant) -> bool {
        let added = now.saturating_duration_since(self.at) / Self::SHARE;
        self.left = Self::MAX.min(self.left + added);
        self.at = now;
        match self.left.checked_sub(amount) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    pool: Mutex<Pool>,
    freed: Condvar,
    runs: AtomicU64,
    late: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Sender<Job>>,
    threads: usize,
    stuck: usize,
}

/// State of a job: whether a caller still waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Abandoned,
    Done,
}

impl Deadline {
    /// Creates a pool of at most `limit` threads, and starts none of them yet.
    pub fn new(limit: usize) -> Self {
        Self {
            shared: Arc::default(),
            limit: limit.max(1),
            disk_time: None,
        }
    }

    /// As [`Deadline::new`], for work that looks files up. A disk that is busy, or a folder in which others make and
    /// remove files, delays it as a busy processor does: the thread is in an uninterruptible wait (`D`).
    pub fn for_files(limit: usize) -> Self {
        Self {
            disk_time: Some(Mutex::new(DiskTime::full())),
            ..Self::new(limit)
        }
    }

    /// Runs `work` and waits at most `time` for its result.
    pub fn run<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TimedOut> {
        let end = Instant::now() + time;
        self.shared.runs.fetch_add(1, Ordering::Relaxed);
        let worker = self.worker(end)?;
        let (answer, answers) = sync_channel(1);
        let phase = Arc::new(Mutex::new(Phase::Waiting));
        let tid = Arc::new(AtomicI32::new(0));
        let noted = Arc::clone(&tid);
        let work = move || {
            noted.store(
                rustix::thread::gettid().as_raw_nonzero().get(),
                Ordering::Relaxed,
            );
            work()
        };
        let job = self.job(worker.clone(), Arc::clone(&phase), answer, work);
        worker.send(job).map_err(|_gone| TimedOut::Failed)?;
        self.wait((time, end), &answers, &phase, &tid)
    }

    /// Starts `work` without waiting for it: for closing what may take long to close.
    pub fn leave(&self, work: impl FnOnce() + Send + 'static) -> Result<(), TimedOut> {
        self.shared.runs.fetch_add(1, Ordering::Relaxed);
        let worker = self.worker(Instant::now())?;
        let (answer, _nobody) = sync_channel(1);
        self.shared.pool().stuck += 1;
        let phase = Arc::new(Mutex::new(Phase::Abandoned));
        let job = self.job(worker.clone(), phase, answer, work);
        worker.send(job).map_err(|_gone| TimedOut::Failed)
    }

    /// Returns true if every thread is stuck, so that nothing can be started.
    pub fn is_exhausted(&self) -> bool {
        self.shared.pool().stuck >= self.limit
    }

    /// The counters.
    pub fn counts(&self) -> DeadlineCounts {
        DeadlineCounts {
            runs: self.shared.runs.load(Ordering::Relaxed),
            late: self.shared.late.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            stuck: u64::try_from(self.shared.pool().stuck).unwrap_or(u64::MAX),
        }
    }

    /// Returns an idle thread, a new one, or the next that becomes free.
    fn worker(&self, end: Instant) -> Result<Sender<Job>, TimedOut> {
        let mut pool = self.shared.pool();
        loop {
            if let Some(worker) = pool.idle.pop() {
                return Ok(worker);
            }
            if pool.threads < self.limit {
                let worker = start_thread()?;
                pool.threads += 1;
                return Ok(worker);
            }
            let left = end.saturating_duration_since(Instant::now());
            if pool.stuck >= self.limit || left.is_zero() {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                return Err(TimedOut::Refused { stuck: pool.stuck });
            }
            pool = self
                .shared
                .freed
                .wait_timeout(pool, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Wraps the work so that its thread returns to the pool afterwards.
    fn job<T: Send + 'static>(
        &self,
        worker: Sender<Job>,
        phase: Arc<Mutex<Phase>>,
        answer: SyncSender<T>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Job {
        let shared = Arc::clone(&self.shared);
        Box::new(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let before = std::mem::replace(
                &mut *phase.lock().unwrap_or_else(PoisonError::into_inner),
                Phase::Done,
            );
            let mut pool = shared.pool();
            if before == Phase::Abandoned {
                pool.stuck -= 1;
            }
            pool.idle.push(worker);
            drop(pool);
            shared.freed.notify_one();
            if let Ok(result) = result {
                // The caller may have given up; then nobody needs the result.
                let _ = answer.send(result);
            }
        })
    }

    /// Returns whether a late thread is given another step of time.
    fn may_wait(&self, state: State, now: Instant) -> bool {
        match state {
            State::NotBegun | State::Known(b'R') => true,
            State::Known(b'D') => self.disk_time.as_ref().is_some_and(|time| {
                let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
                time.take(STARVED_STEP, now)
            }),
            State::Known(_) | State::Unknown => false,
        }
    }

    fn wait<T>(
        &self,
        (time, end): (Duration, Instant),
        answers: &Receiver<T>,
        phase: &Mutex<Phase>,
        tid: &AtomicI32,
    ) -> Result<T, TimedOut> {
        let mut left = end.saturating_duration_since(Instant::now());
        loop {
            match answers.recv_timeout(left) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(TimedOut::Failed),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            let state = State::of(tid.load(Ordering::Relaxed));
            if now >= end + STARVED_LIMIT || !self.may_wait(state, now) {
                break;
            }
            left = STARVED_STEP;
        }
        let mut phase = phase.lock().unwrap_or_else(PoisonError::into_inner);
        if *phase == Phase::Waiting {
            *phase = Phase::Abandoned;
            self.shared.pool().stuck += 1;
            self.shared.late.fetch_add(1, Ordering::Relaxed);
            return Err(TimedOut::Late { after: time });
        }
        drop(phase);
        // The work finished between the time-out and the lock: the result is on its way.
        answers.recv().map_err(|_panicked| TimedOut::Failed)
    }
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not begun its work.
    NotBegun,
    /// The letter in `/proc/PID/stat`.
    Known(u8),
    Unknown,
}

impl State {
    /// Reads the state of a thread; `tid`: 0 before it has begun.
    fn of(tid: i32) -> Self {
        if tid == 0 {
            return Self::NotBegun;
        }
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
        // The state follows the name, which is in parentheses.
        let letter = stat
            .ok()
            .and_then(|stat| stat.rsplit(") ").next()?.bytes().next());
        letter.map_or(Self::Unknown, Self::Known)
    }
}

/// Starts a thread that runs jobs until its pool is dropped.
fn start_thread() -> Result<Sender<Job>, TimedOut> {
    let (jobs, queue) = channel::<Job>();
    std::thread::Builder::new()
        .name("guarded-read".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            for job in queue {
                job();
            }
        })
        .map(|_detached| jobs)
        .map_err(|_no_thread| TimedOut::Failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn answers_come_back_and_threads_are_reused() {
        let deadline = Deadline::new(2);
        for number in 0..100 {
            assert_eq!(deadline.run(LONG, move || number * 2), Ok(number * 2));
        }
        let pool = deadline.shared.pool();
        assert!(pool.threads <= 2);
        assert_eq!(pool.stuck, 0);
    }

    #[test]
    fn work_that_lacks_a_processor_is_not_late_but_work_that_waits_is() {
        let deadline = Deadline::new(2);
        // To the kernel, what computes is the same as what waits for a processor.
        let computed = deadline.run(SHORT, || {
            let end = Instant::now() + 4 * SHORT;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            7
        });
        assert_eq!(computed, Ok(7));
        let waited = deadline.run(SHORT, || std::thread::sleep(8 * SHORT));
        assert_eq!(waited, Err(TimedOut::Late { after: SHORT }));
        let endless = Instant::now();
        let stop = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let computed = deadline.run(SHORT, move || {
            while stopped.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
        });
        assert_eq!(computed, Err(TimedOut::Late { after: SHORT }));
        assert!(endless.elapsed() >= STARVED_LIMIT);
        stop.store(1, Ordering::Relaxed);
    }

    #[test]
    fn only_a_pool_for_files_waits_for_disks_and_none_waits_for_a_program() {
        let (files, others) = (Deadline::for_files(1), Deadline::new(1));
        let now = Instant::now();
        for pool in [&files, &others] {
            assert!(pool.may_wait(State::NotBegun, now));
            assert!(pool.may_wait(State::Known(b'R'), now));
            for state in [State::Known(b'S'), State::Known(b'Z'), State::Unknown] {
                assert!(!pool.may_wait(state, now), "{state:?}");
            }
        }
        assert!(files.may_wait(State::Known(b'D'), now));
        assert!(!others.may_wait(State::Known(b'D'), now));
        files.disk_time.as_ref().unwrap().lock().unwrap().left = Duration::ZERO;
        assert!(
            !files.may_wait(State::Known(b'D'), now),
            "the time is spent"
        );
    }

    #[test]
    fn the_state_of_a_thread_is_read() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(State::of(tid), State::Known(b'R'));
        assert_eq!(State::of(0), State::NotBegun);
        assert_eq!(State::of(i32::MAX), State::Unknown);
    }

    #[test]
    fn waits_for_disks_are_given_a_share_of_the_time() {
        let mut time = DiskTime::full();
        let begun = time.at;
        let mut given = Duration::ZERO;
        // A thread that always waits for a disk, looked at every ten milliseconds for a minute.
        for step in 0..6000 {
            if time.take(STARVED_STEP, begun + step * STARVED_STEP) {
                given += STARVED_STEP;
            }
        }
        let share = Duration::from_secs(60) / DiskTime::SHARE;
        assert!(given <= DiskTime::MAX + share, "{given:?}");
        assert!(
            given >= DiskTime::MAX + share - 2 * STARVED_STEP,
            "{given:?}"
        );
    }

    #[test]
    fn stuck_threads_are_left_behind_counted_and_taken_back() {
        let deadline = Deadline::new(2);
        let gate = Arc::new(Barrier::new(3));
        for _ in 0..2 {
            let gate = Arc::clone(&gate);
            let stuck = deadline.run(SHORT, move || {
                gate.wait();
            });
            assert_eq!(stuck, Err(TimedOut::Late { after: SHORT }));
        }
        let begun = Instant::now();
        assert_eq!(
            deadline.run(LONG, || 1),
            Err(TimedOut::Refused { stuck: 2 })
        );
        assert!(begun.elapsed() < LONG / 2, "a refusal must not wait");
        let counts = DeadlineCounts {
            runs: 3,
            late: 2,
            refused: 1,
            stuck: 2,
        };
        assert_eq!(deadline.counts(), counts);
        gate.wait();
        let end = Instant::now() + LONG;
        while deadline.counts().stuck > 0 && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(deadline.run(LONG, || 7), Ok(7));
        assert_eq!(deadline.shared.pool().threads, 2);
    }

    #[test]
    fn a_panic_costs_one_answer_only() {
        let deadline = Deadline::new(1);
        let failed: Result<(), _> = deadline.run(LONG, || panic!("expected by this test"));
        assert_eq!(failed, Err(TimedOut::Failed));
        assert_eq!(deadline.run(LONG, || 3), Ok(3));
    }

    #[test]
    fn busy_but_not_stuck_threads_are_waited_for() {
        let deadline = Arc::new(Deadline::new(1));
        let callers: Vec<_> = (0..8)
            .map(|number| {
                let deadline = Arc::clone(&deadline);
                std::thread::spawn(move || {
                    deadline.run(LONG, move || {
                        std::thread::sleep(Duration::from_millis(2));
                        number
                    })
                })
            })
            .collect();
        for (number, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.join().unwrap(), Ok(number));
        }
    }
}
