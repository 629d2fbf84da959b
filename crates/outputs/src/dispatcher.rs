//! Takes alerts and hands them to the channels.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rules::{Alert, AlertValue};

use crate::channel::{Channel, Delivery, OnSettled, Peer};
use crate::format::{Format, Formatter};
use crate::internal::{self, Internal, internal_alert};
use crate::queue::{QUEUE_CAPACITY, Queue, QueueAccount, QueueCapacity};
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
    /// Alerts lost because the receiver got them and did not take them.
    pub lost_rejected: u64,
    /// Alerts waiting or being delivered.
    pub pending: usize,
    /// How often the other end did not answer or read in time.
    pub timeouts: u64,
    /// How often the other end, a program, was started anew.
    pub restarts: u64,
    /// Why the alert that is being delivered has to wait, if it has.
    pub trouble: Option<String>,
}

impl ChannelCounters {
    /// Alerts lost for any cause.
    pub fn lost(&self) -> u64 {
        self.lost_queue_full + self.lost_write_failed + self.lost_rejected
    }
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
    /// Whom its internal alerts are about, if not the whole program.
    subject: Option<Arc<Subject>>,
}

/// One of several things that the program watches.
struct Subject {
    fields: Vec<(&'static str, AlertValue)>,
    pace: Mutex<AlertThrottle>,
}

/// Internal alerts by rule: when the last one was raised, and how many have not been since.
type AlertThrottle = HashMap<&'static str, (Option<Instant>, u64)>;

/// Everything but the threads.
pub struct Prepared {
    settings: Settings,
    formatter: Formatter,
    channels: Vec<Box<dyn Channel>>,
    account: Option<Arc<dyn QueueAccount>>,
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

    /// The same dispatcher for one of several things that the program watches: its internal alerts carry
    /// these fields, too, if they have none of that name, and are limited and counted apart from those of others.
    #[must_use]
    pub fn about(&self, fields: Vec<(&'static str, AlertValue)>) -> Self {
        let pace = Mutex::default();
        Self {
            inner: Arc::clone(&self.inner),
            subject: Some(Arc::new(Subject { fields, pace })),
        }
    }

    fn pace(&self) -> MutexGuard<'_, AlertThrottle> {
        let pace = self
            .subject
            .as_ref()
            .map_or(&self.inner.pace, |subject| &subject.pace);
        pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn internal(&self, mut event: Internal) -> Alert {
        if let Some(subject) = &self.subject {
            for (name, value) in &subject.fields {
                if event.fields.iter().all(|(own, _)| own != name) {
                    event.fields.push((name, value.clone()));
                }
            }
        }
        internal_alert(&self.inner.hub().hostname, event)
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
                self.emit_own(notice);
            }
            inner.emitted.fetch_add(1, Ordering::Relaxed);
            inner.send(alert, None);
            return;
        }
        self.emit_now(alert, None);
    }

    /// Raises an alert about the program itself: at most one a second for each rule name, the rest
    /// counted and announced later.
    pub fn emit_internal(&self, event: Internal) {
        let rule = event.rule;
        let now = Instant::now();
        let mut pace = self.pace();
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
            self.emit_own(internal::repeated(rule, skipped));
        }
        self.emit_own(event);
    }

    /// Raises an internal alert that is not one of many: the answer to an order, or one that its
    /// caller raises once for each of a bounded number of things, so that none may stand for the
    /// others.
    pub fn emit_internal_once(&self, event: Internal) {
        self.emit_own(event);
    }

    /// As [`Dispatcher::emit_internal_once`]; something is done as soon as every channel has delivered
    /// the alert or counted it as lost. It is not done if this process is killed before.
    pub fn emit_internal_then(&self, event: Internal, on_settled: OnSettled) {
        self.emit_now(self.internal(event), Some(on_settled));
    }

    /// Makes every channel close and open what it writes to.
    pub fn reopen(&self) {
        for lane in &self.inner.hub().lanes {
            lane.queue.reopen();
        }
    }

    /// Sends alerts through other channels from now on. What waits in the queues of those before is
    /// delivered by them, and no alert goes to both or to neither.
    ///
    /// # Errors
    ///
    /// If a thread cannot be made. Then nothing has changed.
    pub fn replace(&self, prepared: Prepared) -> Result<(), StartError> {
        let rate = prepared.settings.throttle;
        let hub = prepared.open()?;
        let mut current = self
            .inner
            .hub
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, hub);
        // Nobody can be putting something into these queues any more.
        drop(current);
        before.stop();
        self.inner.throttle().bucket.set_rate(rate, Instant::now());
        let mut replaced = self.inner.replaced();
        replaced.hubs.push(before);
        replaced.settle();
        Ok(())
    }

    /// Announces what has not been announced yet, waits until everything is delivered or the
    /// deadline has passed, and returns what is left.
    pub fn flush(&self, deadline: Instant) -> Vec<Pending> {
        let notice = self.inner.throttle().notice();
        if let Some(notice) = notice {
            self.emit_own(notice);
        }
        let repeated: Vec<_> = self
            .pace()
            .iter_mut()
            .map(|(rule, entry)| (*rule, std::mem::take(&mut entry.1)))
            .filter(|(_, skipped)| *skipped > 0)
            .collect();
        for (rule, skipped) in repeated {
            self.emit_own(internal::repeated(rule, skipped));
        }
        let hubs = self.inner.hubs();
        hubs.iter()
            .flat_map(|hub| &hub.lanes)
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
        let hubs = self.inner.hubs();
        let lanes = || hubs.iter().flat_map(|hub| &hub.lanes);
        for lane in lanes() {
            lane.queue.abandon();
        }
        for lane in lanes() {
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
            channels: inner.channels(),
        }
    }

    fn emit_now(&self, alert: Alert, on_settled: Option<OnSettled>) {
        self.inner.internal.fetch_add(1, Ordering::Relaxed);
        self.inner.send(alert, on_settled);
    }

    fn emit_own(&self, event: Internal) {
        self.emit_now(self.internal(event), None);
    }
}

impl Prepared {
    /// Keeps account of what waits in the queues.
    #[must_use]
    pub fn accounting(self, account: Arc<dyn QueueAccount>) -> Self {
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
        let bucket = Throttle::new(self.settings.throttle, Instant::now());
        let inner = Inner {
            hub: RwLock::new(self.open()?),
            replaced: Mutex::default(),
            throttle: Mutex::new(ThrottleState {
                bucket,
                suppressed: 0,
                announced: 0,
            }),
            pace: Mutex::default(),
            emitted: AtomicU64::new(0),
            internal: AtomicU64::new(0),
        };
        Ok(Dispatcher {
            inner: Arc::new(inner),
            subject: None,
        })
    }

    /// Starts the channels.
    fn open(self) -> Result<Arc<DispatcherShared>, StartError> {
        let Self {
            settings,
            formatter,
            channels,
            account,
        } = self;
        let lanes = channels.iter().map(|channel| ChannelHandle {
            name: channel.name().to_owned(),
            queue: Queue::new(settings.capacity, account.clone()),
            peer: channel.peer(),
            loss_announced: Mutex::new(None),
        });
        let hub = Arc::new(DispatcherShared {
            lanes: lanes.collect(),
            formatter: Arc::new(formatter),
            hostname: settings.hostname,
            on_problem: settings.on_problem,
        });
        for (lane, mut channel) in channels.into_iter().enumerate() {
            if let Some(account) = &account {
                channel.keep_account(Arc::clone(account));
            }
            let name = channel.name().to_owned();
            let worker = Worker {
                hub: Arc::clone(&hub),
                lane,
                channel,
                buffered: settings.buffered,
                told: None,
            };
            let started = thread::Builder::new()
                .name(format!("out-{name}"))
                .spawn(move || worker.run());
            if let Err(source) = started {
                // Of the others.
                hub.stop();
                return Err(StartError {
                    channel: name,
                    source,
                });
            }
        }
        Ok(hub)
    }
}

/// How long a channel's thread may take to notice that what it waits for was killed.
const KILL_GRACE: Duration = Duration::from_millis(200);

struct Inner {
    /// Locked while an alert is put into its queues, so that none comes into those of a hub that was
    /// replaced.
    hub: RwLock<Arc<DispatcherShared>>,
    replaced: Mutex<Replaced>,
    throttle: Mutex<ThrottleState>,
    /// For each internal rule: when it was last announced, and how often it was not since.
    pace: Mutex<AlertThrottle>,
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

/// Channels that have been replaced.
#[derive(Default)]
struct Replaced {
    /// Those that deliver what waited for them.
    hubs: Vec<Arc<DispatcherShared>>,
    /// What the others have done.
    settled: Vec<ChannelCounters>,
}

impl Replaced {
    /// Forgets those that have come to their end, but for their counters.
    fn settle(&mut self) {
        let now = Instant::now();
        let has_ended =
            |hub: &Arc<DispatcherShared>| hub.lanes.iter().all(|lane| lane.queue.wait_for_end(now));
        let (ended, rest) = std::mem::take(&mut self.hubs)
            .into_iter()
            .partition(has_ended);
        self.hubs = rest;
        for hub in &ended {
            add(
                &mut self.settled,
                hub.lanes.iter().map(ChannelHandle::counters),
            );
        }
    }
}

/// Adds up counters by channel. What a channel waits for is what the last one says.
fn add(sums: &mut Vec<ChannelCounters>, more: impl Iterator<Item = ChannelCounters>) {
    for new in more {
        let known = sums.iter_mut().find(|known| known.channel == new.channel);
        let Some(sum) = known else {
            sums.push(new);
            continue;
        };
        sum.queued += new.queued;
        sum.delivered += new.delivered;
        sum.lost_queue_full += new.lost_queue_full;
        sum.lost_write_failed += new.lost_write_failed;
        sum.lost_rejected += new.lost_rejected;
        sum.pending += new.pending;
        sum.timeouts += new.timeouts;
        sum.restarts += new.restarts;
        sum.trouble = new.trouble;
    }
}

impl Inner {
    fn send(&self, alert: Alert, on_settled: Option<OnSettled>) {
        let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        hub.send(alert, on_settled);
    }

    fn hub(&self) -> Arc<DispatcherShared> {
        let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&hub)
    }

    /// Those that were replaced and are still at work, and the one in force.
    fn hubs(&self) -> Vec<Arc<DispatcherShared>> {
        let mut hubs = self.replaced().hubs.clone();
        hubs.push(self.hub());
        hubs
    }

    fn channels(&self) -> Vec<ChannelCounters> {
        let mut replaced = self.replaced();
        replaced.settle();
        let mut sums = replaced.settled.clone();
        for hub in &replaced.hubs {
            add(&mut sums, hub.lanes.iter().map(ChannelHandle::counters));
        }
        drop(replaced);
        add(
            &mut sums,
            self.hub().lanes.iter().map(ChannelHandle::counters),
        );
        sums
    }

    fn replaced(&self) -> MutexGuard<'_, Replaced> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn throttle(&self) -> MutexGuard<'_, ThrottleState> {
        // Counting cannot panic, so a poisoned lock holds consistent data; the same below.
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The threads are not joined: one that is stuck in a write would never end.
        self.hub().stop();
    }
}

/// What the dispatcher and the channel threads share.
pub(crate) struct DispatcherShared {
    pub(crate) lanes: Vec<ChannelHandle>,
    pub(crate) on_problem: OnProblem,
    formatter: Arc<Formatter>,
    hostname: Arc<str>,
}

/// One channel as the others see it.
pub(crate) struct ChannelHandle {
    pub(crate) name: String,
    pub(crate) queue: Queue,
    peer: Arc<Peer>,
    /// When the other channels last heard of losses here.
    loss_announced: Mutex<Option<Instant>>,
}

impl DispatcherShared {
    /// Has the channels end when they have delivered what waits for them.
    fn stop(&self) {
        for lane in &self.lanes {
            lane.queue.stop();
        }
    }

    fn send(&self, alert: Alert, on_settled: Option<OnSettled>) {
        let delivery = Delivery::new(alert, Arc::clone(&self.formatter)).then(on_settled);
        let delivery = Arc::new(delivery);
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

    /// Sends an internal alert to all channels.
    pub(crate) fn tell_all(&self, event: Internal) {
        let alert = internal_alert(&self.hostname, event);
        let notice = Arc::new(Delivery::new(alert, Arc::clone(&self.formatter)));
        for lane in &self.lanes {
            // A refusal is counted by the queue.
            let _ = lane.queue.push(&notice);
        }
    }

    pub(crate) fn loss_notice(&self, channel: &str, lost: u64, total: u64) -> Arc<Delivery> {
        let alert = internal_alert(&self.hostname, internal::lost(channel, lost, total));
        Arc::new(Delivery::new(alert, Arc::clone(&self.formatter)))
    }
}

impl ChannelHandle {
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
            lost_rejected: counters.lost_rejected,
            pending: self.queue.pending(),
            timeouts: self.peer.timeouts(),
            restarts: self.peer.restarts(),
            trouble: self.peer.trouble(),
        }
    }
}

#[cfg(test)]
mod tests;
