//! Queue of alerts for gRPC clients. Each subscriber gets all later alerts, and those before that
//! no client has taken yet.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use outputs::{Channel, Delivery, DeliveryError, QueueAccount};
use tokio::sync::Notify;

use super::frame;
use super::message::Output;

/// Maximum number of kept alerts. Untaken alerts are kept; when the queue is full, new ones are
/// lost and counted.
const CAPACITY: usize = 8192;
/// Maximum size of kept alerts in bytes.
const MAX_BYTES: usize = 8 << 20;

/// Keeps alerts for clients.
#[derive(Clone, Debug, Default)]
pub struct GrpcChannel {
    pub(super) queue: Arc<Queue>,
}

/// The list that all subscribers share, so that memory does not grow with their number.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Notify,
    account: OnceLock<Arc<dyn QueueAccount>>,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Number of the first frame that is kept. Frames are numbered from 0.
    first: u64,
    /// Number of the first frame that no client has taken.
    taken: u64,
    subscribers: Vec<Cursor>,
    last_id: u64,
    /// Alerts missed by slow subscribers, counted once per subscriber.
    missed: u64,
}

/// Position of a subscriber.
#[derive(Debug)]
struct Cursor {
    id: u64,
    /// Number of its next frame.
    next: u64,
}

/// Result of queueing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PushResult {
    Kept,
    /// The frame was kept, and a slow subscriber misses older ones.
    KeptAndMissed,
    /// The queue was full.
    Lost,
}

impl GrpcChannel {
    /// Records the number of alerts that wait for clients in `account`.
    pub fn keep_account(&self, account: Arc<dyn QueueAccount>) {
        // A second call would be a defect; the first account stays.
        let _ = self.queue.account.set(account);
    }

    /// Returns the number of alerts that no client has taken yet.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let state = self.queue.state();
        state.end() - state.taken
    }

    /// Returns the number of alerts missed by slow subscribers, counted once per subscriber.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.queue.state().missed
    }
}

impl State {
    /// Returns the number of the next frame.
    fn end(&self) -> u64 {
        self.first + count(self.frames.len())
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame.len();
            self.first += 1;
        }
    }

    /// Drops frames that no subscriber needs any more.
    fn trim(&mut self) {
        let slowest = self.subscribers.iter().map(|cursor| cursor.next).min();
        let needed = slowest.map_or(self.taken, |slowest| slowest.min(self.taken));
        while self.first < needed {
            self.drop_first();
        }
    }

    fn is_full(&self, more: usize) -> bool {
        self.frames.len() >= CAPACITY || self.bytes + more > MAX_BYTES
    }

    fn push(&mut self, frame: Bytes) -> PushResult {
        // Frames that some client has received make room; other clients miss them.
        while self.is_full(frame.len()) && self.first < self.taken {
            self.drop_first();
        }
        let before = self.missed;
        for cursor in &mut self.subscribers {
            self.missed += self.first.saturating_sub(cursor.next);
            cursor.next = cursor.next.max(self.first);
        }
        if self.is_full(frame.len()) {
            return PushResult::Lost;
        }
        self.bytes += frame.len();
        self.frames.push_back(frame);
        if self.missed > before {
            PushResult::KeptAndMissed
        } else {
            PushResult::Kept
        }
    }

    fn cursor(&mut self, id: u64) -> Option<&mut Cursor> {
        self.subscribers.iter_mut().find(|cursor| cursor.id == id)
    }
}

fn count(frames: usize) -> u64 {
    u64::try_from(frames).expect("no supported machine has more than 64-bit addresses")
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // No critical section can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, frame: Bytes) -> PushResult {
        let mut state = self.state();
        let pushed = state.push(frame);
        if pushed != PushResult::Lost
            && let Some(account) = self.account.get()
        {
            account.queued();
        }
        drop(state);
        self.arrived.notify_waiters();
        pushed
    }

    #[cfg(test)]
    pub(super) fn subscribers(&self) -> usize {
        self.state().subscribers.len()
    }

    /// Adds a subscriber. Its first frame is the first that no client has taken.
    pub(super) fn subscribe(self: &Arc<Self>) -> Subscriber {
        let mut state = self.state();
        state.last_id += 1;
        let (id, next) = (state.last_id, state.taken);
        state.subscribers.push(Cursor { id, next });
        Subscriber {
            id,
            queue: Arc::clone(self),
        }
    }
}

/// A subscription, which ends when dropped. Frames that this client alone has not taken wait for
/// others.
#[derive(Debug)]
pub(super) struct Subscriber {
    id: u64,
    queue: Arc<Queue>,
}

impl Subscriber {
    /// Returns the next frame and its number, if there is one. It stays the next one until
    /// [`Subscriber::took`].
    pub(super) fn peek(&self) -> Option<(u64, Bytes)> {
        let mut state = self.queue.state();
        let next = state.cursor(self.id)?.next;
        let at = usize::try_from(next.checked_sub(state.first)?).ok()?;
        Some((next, state.frames.get(at)?.clone()))
    }

    /// Waits for the next frame and returns it with its number.
    pub(super) async fn next(&self) -> (u64, Bytes) {
        loop {
            let arrived = self.queue.arrived.notified();
            if let Some(frame) = self.peek() {
                return frame;
            }
            arrived.await;
        }
    }

    /// Marks the frame with this number as received by the client.
    pub(super) fn took(&self, number: u64) {
        let mut state = self.queue.state();
        let Some(cursor) = state.cursor(self.id) else {
            return;
        };
        if cursor.next > number {
            // The frame was dropped in transit and counted as missed.
            state.missed -= 1;
            return;
        }
        cursor.next = number + 1;
        let next = cursor.next;
        let more = next.saturating_sub(state.taken);
        state.taken += more;
        state.trim();
        if more > 0
            && let Some(account) = self.queue.account.get()
        {
            account.settled(more);
        }
    }

    /// Gives up the client. It misses the remaining frames.
    pub(super) fn give_up(self) {
        let mut state = self.queue.state();
        let end = state.end();
        if let Some(cursor) = state.cursor(self.id) {
            let left = end - cursor.next;
            state.missed += left;
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let id = self.id;
        state.subscribers.retain(|cursor| cursor.id != id);
        state.trim();
    }
}

impl Channel for GrpcChannel {
    fn name(&self) -> &str {
        "grpc"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let mut is_missed = false;
        for (delivered, alert) in alerts.iter().enumerate() {
            let output = Output::of(alert.alert(), &alert.output());
            match self.queue.push(frame::encode(&output)) {
                PushResult::Kept => {}
                PushResult::KeptAndMissed => is_missed = true,
                PushResult::Lost => {
                    let source = io::Error::other("no client reads them");
                    return Err(DeliveryError {
                        delivered,
                        ..DeliveryError::of_all(source)
                    });
                }
            }
        }
        if !is_missed {
            return Ok(());
        }
        // Others have got older ones, or will get these; one client has not.
        let source = io::Error::other("a client reads too slowly and misses some");
        Err(DeliveryError {
            delivered: alerts.len().saturating_sub(1),
            ..DeliveryError::of_all(source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: usize) -> Bytes {
        Bytes::from(n.to_string())
    }

    fn take(subscriber: &Subscriber) -> Option<Bytes> {
        let (number, frame) = subscriber.peek()?;
        subscriber.took(number);
        Some(frame)
    }

    fn all(subscriber: &Subscriber) -> Vec<Bytes> {
        std::iter::from_fn(|| take(subscriber)).collect()
    }

    fn frames(range: std::ops::Range<usize>) -> Vec<Bytes> {
        range.map(frame).collect()
    }

    #[test]
    fn every_subscriber_gets_all_and_the_first_what_was_there() {
        let queue = Arc::new(Queue::default());
        for n in 0..3 {
            assert_eq!(queue.push(frame(n)), PushResult::Kept);
        }
        let one = queue.subscribe();
        let two = queue.subscribe();
        assert_eq!(all(&one), frames(0..3));
        queue.push(frame(3));
        assert_eq!((all(&one), all(&two)), (frames(3..4), frames(0..4)));
        // Nobody needs them any more.
        let state = queue.state();
        assert_eq!((state.frames.len(), state.bytes), (0, 0));
        drop(state);
        drop((one, two));
        queue.push(frame(4));
        let late = queue.subscribe();
        assert_eq!(all(&late), frames(4..5));
    }

    #[test]
    fn a_slow_subscriber_misses_the_oldest_and_harms_nobody() {
        let queue = Arc::new(Queue::default());
        let (fast, slow) = (queue.subscribe(), queue.subscribe());
        for n in 0..CAPACITY + 10 {
            let expected = if n < CAPACITY {
                PushResult::Kept
            } else {
                PushResult::KeptAndMissed
            };
            assert_eq!(queue.push(frame(n)), expected);
            assert_eq!(take(&fast), Some(frame(n)));
        }
        assert_eq!(queue.state().missed, 10);
        assert_eq!(all(&slow), frames(10..CAPACITY + 10));
        queue.push(frame(0));
        slow.give_up();
        assert_eq!(queue.state().missed, 11);
    }

    #[test]
    fn what_nobody_takes_stays_and_what_comes_is_lost() {
        let queue = Arc::new(Queue::default());
        let stuck = queue.subscribe();
        for n in 0..CAPACITY {
            queue.push(frame(n));
        }
        assert_eq!(queue.push(frame(0)), PushResult::Lost);
        drop(stuck);
        assert_eq!(all(&queue.subscribe()), frames(0..CAPACITY));
    }
}
