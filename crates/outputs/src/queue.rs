//! The bounded queue between the capture threads and one channel's thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::channel::{Delivery, DeliveryError, ReceiverState};

/// Capacity of a channel's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCapacity {
    /// Number of alerts.
    pub alerts: usize,
    /// Approximate memory in bytes.
    pub bytes: usize,
}

/// Default capacity: eight seconds of a stuck channel at a thousand alerts a second. The byte limit
/// keeps two stuck channels within the agent's 40 MB.
pub const QUEUE_CAPACITY: QueueCapacity = QueueCapacity {
    alerts: 8192,
    bytes: 8 << 20,
};

/// Number of internal alerts that a full queue still accepts, so that announcements of losses are
/// not lost too.
const RESERVE: usize = 64;

/// Records pending alerts outside of this process, where a successor finds them if this process
/// dies.
pub trait QueueAccount: std::fmt::Debug + Send + Sync {
    /// An alert was queued for one channel.
    fn queued(&self);
    /// `alerts` alerts were delivered or counted as lost.
    fn settled(&self, alerts: u64);
    /// Marks the start of writing lines. Returns true if a process that has ended may have left an
    /// incomplete line.
    fn begins_lines(&self, output: LineOutput) -> bool;
    /// Marks that all lines that were begun are complete.
    fn ends_lines(&self, output: LineOutput);
}

/// An output whose lines a successor process continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOutput {
    /// The alert stream: standard output, standard error or the file of `--log`.
    Stream,
    /// The file of `file_output`.
    File,
}

/// Reason why an alert was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    Full,
    Dead,
}

/// Next step for the channel's thread.
#[derive(Debug)]
pub(crate) enum Task {
    /// Deliver these alerts.
    Deliver(Vec<Arc<Delivery>>),
    /// Announce losses: no alert is queued and a flush waits.
    Announce,
    /// Reopen the channel.
    Reopen,
    /// Tell the channel that a capture has begun.
    Wake,
    /// Deliver what the channel holds back.
    Release {
        /// Also what is not due.
        everything: bool,
    },
    /// Stop.
    Stop,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueCounters {
    pub(crate) queued: u64,
    pub(crate) delivered: u64,
    pub(crate) lost_queue_full: u64,
    pub(crate) lost_write_failed: u64,
    pub(crate) lost_rejected: u64,
    pub(crate) lost_no_receiver: u64,
}

impl QueueCounters {
    /// Without those that had no receiver since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost_queue_full + self.lost_write_failed + self.lost_rejected
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    capacity: QueueCapacity,
    account: Option<Arc<dyn QueueAccount>>,
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Delivery>>,
    /// Bytes of queued alerts and alerts in delivery.
    bytes: usize,
    /// Number and bytes of alerts in delivery.
    in_flight: (usize, usize),
    /// Number of alerts that the channel holds back.
    held: usize,
    counters: QueueCounters,
    /// Losses that the channel itself has announced.
    announced: u64,
    /// A loss notice is being delivered; a flush waits for it.
    announcing: bool,
    /// The last loss notice was not delivered; a flush does not wait for another one.
    announcement_failed: bool,
    flush: bool,
    reopen: bool,
    wake: bool,
    stop: bool,
    dead: bool,
    /// The channel's thread has ended.
    ended: bool,
}

impl Queue {
    pub(crate) fn new(capacity: QueueCapacity, account: Option<Arc<dyn QueueAccount>>) -> Self {
        Self {
            capacity,
            account,
            state: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Queues an alert or counts it as lost. Never blocks.
    pub(crate) fn push(&self, delivery: &Arc<Delivery>) -> Result<(), QueueRefusal> {
        let size = delivery.size();
        let mut state = self.state();
        if state.dead {
            state.counters.lost_write_failed += 1;
            return Err(QueueRefusal::Dead);
        }
        let alerts = state.waiting.len() + state.in_flight.0;
        // A single alert larger than the limit still passes through an empty queue.
        let fits = alerts == 0 || state.bytes.saturating_add(size) <= self.capacity.bytes;
        let has_room = alerts < self.capacity.alerts && fits;
        let has_reserve = delivery.is_internal() && alerts < self.capacity.alerts + RESERVE;
        if !has_room && !has_reserve {
            state.counters.lost_queue_full += 1;
            return Err(QueueRefusal::Full);
        }
        state.counters.queued += 1;
        if let Some(account) = &self.account {
            account.queued();
        }
        state.bytes += size;
        state.waiting.push_back(Arc::clone(delivery));
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Blocks until there is a task. Returns at most `limit` alerts. What the channel holds back is
    /// due at `due`.
    pub(crate) fn take(&self, limit: usize, due: Option<Instant>) -> Task {
        let mut state = self.state();
        loop {
            if state.reopen {
                state.reopen = false;
                return Task::Reopen;
            }
            if std::mem::take(&mut state.wake) {
                return Task::Wake;
            }
            if !state.waiting.is_empty() {
                return Task::Deliver(state.start_delivery(limit));
            }
            if state.flush && state.owes_announcement() {
                return Task::Announce;
            }
            if (state.flush || state.stop) && state.held > 0 {
                return Task::Release { everything: true };
            }
            if state.stop {
                return Task::Stop;
            }
            let Some(due) = due else {
                let woken = self.work.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Task::Release { everything: false };
            }
            let woken = self.work.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Completes the delivery that [`Queue::take`] began, or a release. The channel holds back
    /// `held` alerts now. `failed` is the error if some were not delivered.
    pub(crate) fn finish_delivery(&self, held: usize, failed: Option<&DeliveryError>) {
        let mut state = self.state();
        let (alerts, bytes) = std::mem::take(&mut state.in_flight);
        state.bytes -= bytes;
        let settled = (alerts + state.held).saturating_sub(held);
        state.held = held;
        let (delivered, rejected) =
            failed.map_or((settled, 0), |error| (error.delivered, error.rejected));
        // A line of repetitions stands for more alerts than one.
        let delivered = delivered.min(settled);
        state.counters.delivered += count(delivered);
        if delivered > 0 {
            state.announcement_failed = false;
        }
        state.counters.lost_rejected += count(rejected);
        let rest = count(settled.saturating_sub(delivered + rejected));
        match failed.map(|error| error.receiver) {
            Some(ReceiverState::Absent) => state.counters.lost_no_receiver += rest,
            _ => state.counters.lost_write_failed += rest,
        }
        self.settle(count(settled));
        drop(state);
        self.idle.notify_all();
    }

    /// Marks the channel as dead: every alert is lost from now on.
    pub(crate) fn die(&self) {
        let mut state = self.state();
        state.dead = true;
        self.settle(state.drop_waiting());
        drop(state);
        self.idle.notify_all();
    }

    /// Returns the unannounced losses and all losses, if there are any. They count as announced once
    /// [`Queue::finish_announcement`] says that the notice was delivered.
    pub(crate) fn start_announcement(&self) -> Option<(u64, u64)> {
        let mut state = self.state();
        let unannounced = state.unannounced();
        if unannounced == 0 {
            return None;
        }
        state.announcing = true;
        Some((unannounced, state.counters.lost()))
    }

    /// Ends an announcement. `delivered` is the number of all losses that a delivered notice named; without it the losses stay
    /// unannounced, and the next notice names them again.
    pub(crate) fn finish_announcement(&self, delivered: Option<u64>) {
        let mut state = self.state();
        state.announcing = false;
        state.announcement_failed = delivered.is_none();
        if let Some(total) = delivered {
            state.announced = total;
        }
        drop(state);
        self.idle.notify_all();
    }

    pub(crate) fn reopen(&self) {
        self.state().reopen = true;
        self.work.notify_one();
    }

    /// Tells the channel that a capture has begun. Never blocks.
    pub(crate) fn wake(&self) {
        self.state().wake = true;
        self.work.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.work.notify_one();
    }

    /// Stops the channel's thread after its current delivery. Queued alerts are lost.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        self.settle(state.drop_waiting());
        state.dead = true;
        state.stop = true;
        drop(state);
        self.work.notify_one();
        self.idle.notify_all();
    }

    /// Marks the channel's thread as ended.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.idle.notify_all();
    }

    /// Waits until the channel's thread has ended. Returns false at the deadline.
    pub(crate) fn wait_for_end(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = self
            .idle
            .wait_timeout_while(self.state(), left, |state| !state.ended);
        wait.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Has the channel deliver all alerts, those that it holds back too, and announce losses.
    pub(crate) fn begin_flush(&self) {
        let mut state = self.state();
        state.flush = true;
        state.announcement_failed = false;
        drop(state);
        self.work.notify_one();
    }

    /// Waits until what [`Queue::begin_flush`] began is done, or the deadline has passed. Returns the
    /// number of alerts still queued or in delivery.
    pub(crate) fn end_flush(&self, deadline: Instant) -> usize {
        let mut state = self.state();
        while !state.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .idle
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.flush = false;
        state.pending()
    }

    pub(crate) fn counters(&self) -> QueueCounters {
        self.state().counters
    }

    pub(crate) fn pending(&self) -> usize {
        self.state().pending()
    }

    fn settle(&self, alerts: u64) {
        if let Some(account) = &self.account {
            account.settled(alerts);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No critical section can panic, so a poisoned lock holds consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start_delivery(&mut self, limit: usize) -> Vec<Arc<Delivery>> {
        let count = self.waiting.len().min(limit);
        let batch: Vec<_> = self.waiting.drain(..count).collect();
        self.in_flight = (count, batch.iter().map(|delivery| delivery.size()).sum());
        batch
    }

    /// Counts queued alerts as lost and returns their number.
    fn drop_waiting(&mut self) -> u64 {
        let dropped = count(self.waiting.len());
        self.counters.lost_write_failed += dropped;
        self.waiting.clear();
        self.bytes = self.in_flight.1;
        dropped
    }

    fn unannounced(&self) -> u64 {
        if self.dead {
            0
        } else {
            self.counters.lost() - self.announced
        }
    }

    fn owes_announcement(&self) -> bool {
        self.unannounced() > 0 && !self.announcement_failed
    }

    /// Number of alerts that wait, are in delivery or held back.
    fn pending(&self) -> usize {
        self.waiting.len() + self.in_flight.0 + self.held
    }

    fn is_idle(&self) -> bool {
        self.pending() == 0 && !self.announcing && !self.owes_announcement()
    }
}

fn count(alerts: usize) -> u64 {
    u64::try_from(alerts).expect("no supported machine has more than 64-bit addresses")
}
