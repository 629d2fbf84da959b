//! Takes alerts and hands them to the channels.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rules::Alert;

use crate::channel::{Channel, Delivery, Peer};
use crate::format::{Format, Formatter};
use crate::internal::{self, Internal, internal_alert};
use crate::queue::{Account, QUEUE_CAPACITY, Queue, QueueCapacity};
use crate::throttle::{Throttle, ThrottleRate};
use crate::worker::{ANNOUNCE_INTERVAL, Worker};

/// Tells the user about trouble with a channel. Called on the channel's thread, rarely.
pub type OnProblem = Arc<dyn Fn(&str) + Send + Sync>;

/// How alerts go out.
#[derive(Clone)]
pub struct Settings {
    /// Form of the lines.
    pub format: Format,
    /// Whether a backlog may be written many alerts at a time. Nothing is held back either way
    /// once the channel is free.
    pub buffered: bool,
    /// What each channel's queue holds.
    pub capacity: QueueCapacity,
    /// Limit on alerts by rules. Internal alerts have their own.
    pub throttle: ThrottleRate,
    /// `hostname` of internal alerts.
    pub hostname: Arc<str>,
    /// Where trouble is reported.
    pub on_problem: OnProblem,
}

impl Settings {
    /// Defaults: unbuffered text, no throttle.
    pub fn new(hostname: Arc<str>, on_problem: OnProblem) -> Self {
        Self {
            format: Format::default(),
            buffered: false,
            capacity: QUEUE_CAPACITY,
            throttle: ThrottleRate::default(),
            hostname,
            on_problem,
        }
    }
}

/// A channel's thread could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread of alert channel {channel}")]
pub struct StartError {
    /// Name of the channel.
    pub channel: String,
    /// The cause.
    pub source: io::Error,
}

/// What a channel has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Name of the channel.
    pub channel: String,
    /// Alerts that found room in the queue.
    pub queued: u64,
    /// Alerts delivered.
    pub delivered: u64,
    /// Alerts lost because the queue was full: the channel was too slow.
    pub lost_queue_full: u64,
    /// Alerts lost because writing failed or the channel is dead.
    pub lost_write_failed: u64,
    /// Alerts waiting or being delivered.
    pub pending: usize,
    /// How often the other end did not answer or read in time.
    pub timeouts: u64,
    /// How often the other end, a program, was started anew.
    pub restarts: u64,
    /// Why the alert that is being delivered has to wait, if it has.
    pub trouble: Option<String>,
}

/// What has happened to alerts so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Alerts by rules handed to the channels.
    pub emitted: u64,
    /// Alerts by rules that the throttle held back.
    pub suppressed: u64,
    /// Alerts that the program raised about itself.
    pub internal: u64,
    /// By channel.
    pub channels: Vec<ChannelCounters>,
}

/// Alerts that a flush left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Name of the channel.
    pub channel: String,
    /// Alerts waiting or being delivered.
    pub alerts: usize,
}

/// Takes alerts from any thread. Cheap to clone; all clones are one dispatcher, whose threads end
/// with the last of them.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
}

/// Everything but the threads.
pub struct Prepared {
    settings: Settings,
    formatter: Formatter,
    channels: Vec<Box<dyn Channel>>,
    account: Option<Arc<dyn Account>>,
}

impl Dispatcher {
    /// Readies a dispatcher over opened channels without making a thread, so that the process can
    /// still fork.
    pub fn prepare(settings: Settings, channels: Vec<Box<dyn Channel>>) -> Prepared {
        let formatter = Formatter::new(settings.format);
        Prepared {
            settings,
            formatter,
            channels,
            account: None,
        }
    }

    /// Sends an alert to all channels. Never waits for one.
    pub fn emit(&self, alert: Alert) {
        let now = Instant::now();
        let inner = &self.inner;
        if &*alert.source != internal::SOURCE {
            let mut throttle = inner.throttle();
            if !throttle.bucket.admit(now) {
                throttle.suppressed += 1;
                return;
            }
            let notice = throttle.notice();
            drop(throttle);
            if let Some(notice) = notice {
                self.emit_now(internal_alert(&inner.hub.hostname, notice));
            }
            inner.emitted.fetch_add(1, Ordering::Relaxed);
            inner.hub.send(alert);
            return;
        }
        self.emit_now(alert);
    }

    /// Raises an alert about the program itself: at most one a second for each rule name, the rest
    /// counted and announced later.
    pub fn emit_internal(&self, event: Internal) {
        let rule = event.rule;
        let now = Instant::now();
        let mut pace = self.inner.pace();
        let entry = pace.entry(rule).or_insert((None, 0));
        if entry
            .0
            .is_some_and(|last| now.duration_since(last) < ANNOUNCE_INTERVAL)
        {
            entry.1 += 1;
            return;
        }
        let skipped = std::mem::take(&mut entry.1);
        entry.0 = Some(now);
        drop(pace);
        if skipped > 0 {
            self.emit_now(internal_alert(
                &self.inner.hub.hostname,
                internal::repeated(rule, skipped),
            ));
        }
        self.emit_now(internal_alert(&self.inner.hub.hostname, event));
    }

    /// Raises an internal alert that is not one of many: the answer to an order, or one that its
    /// caller raises once for each of a bounded number of things, so that none may stand for the
    /// others.
    pub fn emit_internal_once(&self, event: Internal) {
        self.emit_now(internal_alert(&self.inner.hub.hostname, event));
    }

    /// Makes every channel close and open what it writes to.
    pub fn reopen(&self) {
        for lane in &self.inner.hub.lanes {
            lane.queue.reopen();
        }
    }

    /// Announces what has not been announced yet, waits until everything is delivered or the
    /// deadline has passed, and returns what is left.
    pub fn flush(&self, deadline: Instant) -> Vec<Pending> {
        let notice = self.inner.throttle().notice();
        if let Some(notice) = notice {
            self.emit_now(internal_alert(&self.inner.hub.hostname, notice));
        }
        let repeated: Vec<_> = self
            .inner
            .pace()
            .iter_mut()
            .map(|(rule, entry)| (*rule, std::mem::take(&mut entry.1)))
            .filter(|(_, skipped)| *skipped > 0)
            .collect();
        for (rule, skipped) in repeated {
            self.emit_now(internal_alert(
                &self.inner.hub.hostname,
                internal::repeated(rule, skipped),
            ));
        }
        let lanes = self.inner.hub.lanes.iter();
        lanes
            .map(|lane| Pending {
                channel: lane.name.clone(),
                alerts: lane.queue.flush(deadline),
            })
            .filter(|pending| pending.alerts > 0)
            .collect()
    }

    /// Ends every channel and what it has started: a program gets the end of its input and `grace`
    /// to end, or is killed at once if it is holding up a delivery. What waits in a queue is lost,
    /// so [`Dispatcher::flush`] comes before.
    pub fn close(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let lanes = &self.inner.hub.lanes;
        for lane in lanes {
            lane.queue.abandon();
        }
        for lane in lanes {
            let is_idle = lane.queue.pending() == 0;
            let has_ended = is_idle && lane.queue.wait_for_end(deadline);
            if !has_ended && lane.peer.kill() {
                lane.queue.wait_for_end(Instant::now() + KILL_GRACE);
            }
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let inner = &self.inner;
        Counters {
            emitted: inner.emitted.load(Ordering::Relaxed),
            suppressed: inner.throttle().suppressed,
            internal: inner.internal.load(Ordering::Relaxed),
            channels: inner.hub.lanes.iter().map(Lane::counters).collect(),
        }
    }

    fn emit_now(&self, alert: Alert) {
        self.inner.internal.fetch_add(1, Ordering::Relaxed);
        self.inner.hub.send(alert);
    }
}

impl Prepared {
    /// Keeps account of what waits in the queues.
    #[must_use]
    pub fn accounting(self, account: Arc<dyn Account>) -> Self {
        Self {
            account: Some(account),
            ..self
        }
    }

    /// Makes one thread for each channel.
    ///
    /// # Errors
    ///
    /// If a thread cannot be made.
    pub fn start(self) -> Result<Dispatcher, StartError> {
        let Self {
            settings,
            formatter,
            channels,
            account,
        } = self;
        let lanes = channels.iter().map(|channel| Lane {
            name: channel.name().to_owned(),
            queue: Queue::new(settings.capacity, account.clone()),
            peer: channel.peer(),
            loss_announced: Mutex::new(None),
        });
        let hub = Arc::new(Hub {
            lanes: lanes.collect(),
            formatter: Arc::new(formatter),
            hostname: settings.hostname,
            on_problem: settings.on_problem,
        });
        let bucket = Throttle::new(settings.throttle, Instant::now());
        let inner = Inner {
            hub: Arc::clone(&hub),
            throttle: Mutex::new(ThrottleState {
                bucket,
                suppressed: 0,
                announced: 0,
            }),
            pace: Mutex::default(),
            emitted: AtomicU64::new(0),
            internal: AtomicU64::new(0),
        };
        // Made before the threads: if one of them cannot be made, dropping it ends the others.
        let dispatcher = Dispatcher {
            inner: Arc::new(inner),
        };
        for (lane, channel) in channels.into_iter().enumerate() {
            let name = channel.name().to_owned();
            let buffered = settings.buffered;
            let worker = Worker {
                hub: Arc::clone(&hub),
                lane,
                channel,
                buffered,
            };
            thread::Builder::new()
                .name(format!("out-{name}"))
                .spawn(move || worker.run())
                .map_err(|source| StartError {
                    channel: name,
                    source,
                })?;
        }
        Ok(dispatcher)
    }
}

/// How long a channel's thread may take to notice that what it waits for was killed.
const KILL_GRACE: Duration = Duration::from_millis(200);

struct Inner {
    hub: Arc<Hub>,
    throttle: Mutex<ThrottleState>,
    /// For each internal rule: when it was last announced, and how often it was not since.
    pace: Mutex<HashMap<&'static str, (Option<Instant>, u64)>>,
    emitted: AtomicU64,
    internal: AtomicU64,
}

struct ThrottleState {
    bucket: Throttle,
    suppressed: u64,
    announced: u64,
}

impl ThrottleState {
    /// The announcement of what was suppressed since the last one.
    fn notice(&mut self) -> Option<Internal> {
        let new = self.suppressed - self.announced;
        self.announced = self.suppressed;
        (new > 0).then(|| internal::suppressed(new, self.suppressed))
    }
}

impl Inner {
    fn throttle(&self) -> MutexGuard<'_, ThrottleState> {
        // Counting cannot panic, so a poisoned lock holds consistent data; the same below.
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pace(&self) -> MutexGuard<'_, HashMap<&'static str, (Option<Instant>, u64)>> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The threads are not joined: one that is stuck in a write would never end.
        for lane in &self.hub.lanes {
            lane.queue.stop();
        }
    }
}

/// What the dispatcher and the channel threads share.
pub(crate) struct Hub {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) on_problem: OnProblem,
    formatter: Arc<Formatter>,
    hostname: Arc<str>,
}

/// One channel as the others see it.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) queue: Queue,
    peer: Arc<Peer>,
    /// When the other channels last heard of losses here.
    loss_announced: Mutex<Option<Instant>>,
}

impl Hub {
    fn send(&self, alert: Alert) {
        let delivery = Arc::new(Delivery::new(alert, Arc::clone(&self.formatter)));
        for (at, lane) in self.lanes.iter().enumerate() {
            if lane.queue.push(&delivery).is_err() {
                self.announce_loss(at);
            }
        }
    }

    /// Tells the other channels that one loses alerts, at most once in [`ANNOUNCE_INTERVAL`].
    pub(crate) fn announce_loss(&self, losing: usize) {
        let lane = &self.lanes[losing];
        if !lane.is_announcement_due() {
            return;
        }
        let counters = lane.queue.counters();
        let notice = self.loss_notice(&lane.name, counters.lost(), counters.lost());
        for (at, other) in self.lanes.iter().enumerate() {
            // A refusal is counted by the queue; announcing it here could go round in circles.
            if at != losing && other.queue.push(&notice).is_err() {
                continue;
            }
        }
    }

    pub(crate) fn loss_notice(&self, channel: &str, lost: u64, total: u64) -> Arc<Delivery> {
        let alert = internal_alert(&self.hostname, internal::lost(channel, lost, total));
        Arc::new(Delivery::new(alert, Arc::clone(&self.formatter)))
    }
}

impl Lane {
    fn is_announcement_due(&self) -> bool {
        let mut last = self
            .loss_announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= ANNOUNCE_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    fn counters(&self) -> ChannelCounters {
        let counters = self.queue.counters();
        ChannelCounters {
            channel: self.name.clone(),
            queued: counters.queued,
            delivered: counters.delivered,
            lost_queue_full: counters.lost_queue_full,
            lost_write_failed: counters.lost_write_failed,
            pending: self.queue.pending(),
            timeouts: self.peer.timeouts(),
            restarts: self.peer.restarts(),
            trouble: self.peer.trouble(),
        }
    }
}

#[cfg(test)]
mod tests;
