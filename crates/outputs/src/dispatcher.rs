//! The dispatcher: accepts alerts from any thread and queues them for the channels.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rules::{Alert, AlertValue, Priority};

use crate::capture::CaptureSource;
use crate::channel::{Channel, OnSettled};
use crate::format::{Format, Formatter};
use crate::hub::{
    ANNOUNCE_INTERVAL, ChannelCounters, ChannelHandle, DispatcherShared, OnInternal, OnProblem,
};
use crate::internal::{self, Internal, internal_alert};
use crate::queue::{QUEUE_CAPACITY, Queue, QueueAccount, QueueCapacity};
use crate::report::{BundleSink, ReportSlot, ReportSource};
use crate::throttle::{Throttle, ThrottleRate};
use crate::worker::Worker;

/// Settings of a [`Dispatcher`].
#[derive(Clone)]
pub struct Settings {
    /// Format of the lines.
    pub format: Format,
    /// A backlog may be written many alerts at a time. Either way, no alert is held back once the
    /// channel is free.
    pub buffered: bool,
    /// Capacity of each channel's queue.
    pub capacity: QueueCapacity,
    /// Rate limit for alerts raised by rules. Internal alerts have their own limit.
    pub throttle: ThrottleRate,
    /// Each channel takes alerts of every level. Otherwise those of level forensic go to the alert stream and
    /// `file_output` alone.
    pub ignores_levels: bool,
    /// `hostname` of internal alerts.
    pub hostname: Arc<str>,
    /// Callback that receives trouble reports.
    pub on_problem: OnProblem,
    /// Takes the place of the channels for internal alerts that Falco does not have; `None` sends them to the
    /// channels.
    pub log: Option<OnInternal>,
}

impl Settings {
    /// Defaults: unbuffered text, no throttle.
    pub fn new(hostname: Arc<str>, on_problem: OnProblem) -> Self {
        Self {
            format: Format::default(),
            buffered: false,
            capacity: QUEUE_CAPACITY,
            throttle: ThrottleRate::default(),
            ignores_levels: false,
            hostname,
            on_problem,
            log: None,
        }
    }
}

/// The thread of a channel cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread of alert channel {channel}")]
pub struct StartError {
    /// Name of the channel.
    pub channel: String,
    /// The cause.
    pub source: io::Error,
}

/// Counters of a [`Dispatcher`] since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Alerts by rules handed to the channels.
    pub emitted: u64,
    /// Alerts by rules that the throttle held back.
    pub suppressed: u64,
    /// Alerts that the program raised about itself.
    pub internal: u64,
    /// By rule, suppressed ones included.
    pub by_rule: Vec<RuleAlerts>,
    /// By channel.
    pub channels: Vec<ChannelCounters>,
}

/// Number of alerts of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleAlerts {
    /// Name of the rule, or of the internal alert.
    pub rule: Arc<str>,
    /// Priority of the last of the alerts.
    pub priority: Priority,
    /// Number of alerts.
    pub alerts: u64,
}

/// Alerts of one channel that a flush left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Name of the channel.
    pub channel: String,
    /// Alerts waiting or being delivered.
    pub alerts: usize,
}

/// Sends alerts to all channels, from any thread. Clones are cheap and share the channel threads,
/// which end when the last clone is dropped.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
    /// Subject of the internal alerts; `None` for the whole program.
    subject: Option<Arc<Subject>>,
}

/// One of several watched things, such as a container.
struct Subject {
    fields: Vec<(&'static str, AlertValue)>,
    pace: Mutex<AlertThrottle>,
}

/// Per internal rule: the time of the last alert, and the number held back since.
type AlertThrottle = HashMap<&'static str, (Option<Instant>, u64)>;

/// A dispatcher that has no threads yet.
pub struct Prepared {
    settings: Settings,
    formatter: Formatter,
    channels: Vec<Box<dyn Channel>>,
    account: Option<Arc<dyn QueueAccount>>,
}

impl Dispatcher {
    /// Prepares a dispatcher over opened channels without creating a thread, so that the process
    /// can still fork.
    pub fn prepare(settings: Settings, channels: Vec<Box<dyn Channel>>) -> Prepared {
        let formatter = Formatter::new(settings.format);
        Prepared {
            settings,
            formatter,
            channels,
            account: None,
        }
    }

    /// Returns a handle to the same dispatcher for one of several watched things. Its internal
    /// alerts also carry `fields`, except names they already have, and are rate-limited and counted
    /// separately.
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

    /// Sends an alert to all channels. Never blocks.
    pub fn emit(&self, alert: Alert) {
        let now = Instant::now();
        let inner = &self.inner;
        if &*alert.source != internal::SOURCE {
            inner.count(&alert);
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

    /// Raises an alert about the program itself: at most one a second per rule name. The rest are
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

    /// Raises an internal alert that is exempt from the rate limit: the answer to an order, or an
    /// alert that the caller raises once for each of a bounded number of things.
    pub fn emit_internal_once(&self, event: Internal) {
        self.emit_own(event);
    }

    /// Like [`Dispatcher::emit_internal_once`], and runs `on_settled` once every channel has
    /// delivered the alert or counted it as lost. The callback does not run if this process is
    /// killed first.
    pub fn emit_internal_then(&self, event: Internal, on_settled: OnSettled) {
        self.emit_now(self.internal(event), Some(on_settled));
    }

    /// Sets what makes reports of this program about itself, for channels whose receivers take them, replaced
    /// channels included. Only the first call has an effect.
    pub fn report_from(&self, source: ReportSource) {
        self.inner.reports.fill(source);
    }

    /// Sets who takes bundles that a collector hands down. Only the first call has an effect.
    pub fn take_bundles(&self, sink: BundleSink) {
        self.inner.reports.take_bundles(sink);
    }

    /// Sets who records captures for a collector: those that it asks for, and those around alerts. Only the first call has an effect.
    pub fn take_captures(&self, source: Arc<dyn CaptureSource>) {
        let inner = Arc::downgrade(&self.inner);
        source.wake_by(Box::new(move || {
            inner.upgrade().iter().for_each(|it| it.hub().wake());
        }));
        self.inner.reports.take_captures(source);
    }

    /// Has channels report at their next delivery, because other rules are in force.
    pub fn report_again(&self) {
        self.inner.reports.change();
    }

    /// Reopens every channel's file.
    pub fn reopen(&self) {
        for lane in &self.inner.hub().lanes {
            lane.queue.reopen();
        }
    }

    /// Replaces the channels. The previous channels still deliver what waits in their queues, and
    /// no alert goes to both sets or to neither.
    ///
    /// # Errors
    ///
    /// A thread cannot be created. Then nothing has changed.
    pub fn replace(&self, prepared: Prepared) -> Result<(), StartError> {
        let rate = prepared.settings.throttle;
        let hub = prepared.open(&self.inner.reports)?;
        let mut current = self
            .inner
            .hub
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, hub);
        // No thread can be queueing into these hubs any more.
        drop(current);
        before.stop();
        self.inner.throttle().bucket.set_rate(rate, Instant::now());
        let mut replaced = self.inner.replaced();
        replaced.hubs.push(before);
        replaced.settle();
        Ok(())
    }

    /// Announces pending losses, waits until everything is delivered or `deadline` has passed, and
    /// returns what is left.
    pub fn flush(&self, deadline: Instant) -> Vec<Pending> {
        self.flush_each(|_| deadline)
    }

    /// Like [`Dispatcher::flush`], with a deadline for each channel by its name.
    pub fn flush_each(&self, deadline: impl Fn(&str) -> Instant) -> Vec<Pending> {
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
        let lanes = || hubs.iter().flat_map(|hub| &hub.lanes);
        // All at once: one that is waited for in vain takes no time from those after it.
        for lane in lanes() {
            lane.queue.begin_flush();
        }
        lanes()
            .map(|lane| Pending {
                channel: lane.name.clone(),
                alerts: lane.queue.end_flush(deadline(&lane.name)),
            })
            .filter(|pending| pending.alerts > 0)
            .collect()
    }

    /// Closes every channel and stops the programs they started: a program gets end-of-file on its
    /// input and `grace` to exit, or is killed at once if it blocks a delivery. Queued alerts are
    /// lost, so call [`Dispatcher::flush`] first.
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

    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        let inner = &self.inner;
        Counters {
            emitted: inner.emitted.load(Ordering::Relaxed),
            suppressed: inner.throttle().suppressed,
            internal: inner.internal.load(Ordering::Relaxed),
            by_rule: inner.by_rule(),
            channels: inner.channels(),
        }
    }

    fn emit_now(&self, alert: Alert, on_settled: Option<OnSettled>) {
        self.inner.internal.fetch_add(1, Ordering::Relaxed);
        self.inner.count(&alert);
        self.inner.send(alert, on_settled);
    }

    fn emit_own(&self, event: Internal) {
        self.emit_now(self.internal(event), None);
    }
}

impl Prepared {
    /// Records the number of queued alerts in `account`.
    #[must_use]
    pub fn accounting(self, account: Arc<dyn QueueAccount>) -> Self {
        Self {
            account: Some(account),
            ..self
        }
    }

    /// Starts one thread per channel.
    ///
    /// # Errors
    ///
    /// A thread cannot be created.
    pub fn start(self) -> Result<Dispatcher, StartError> {
        let bucket = Throttle::new(self.settings.throttle, Instant::now());
        let reports = ReportSlot::default();
        let inner = Inner {
            hub: RwLock::new(self.open(&reports)?),
            replaced: Mutex::default(),
            throttle: Mutex::new(ThrottleState {
                bucket,
                suppressed: 0,
                announced: 0,
            }),
            pace: Mutex::default(),
            emitted: AtomicU64::new(0),
            internal: AtomicU64::new(0),
            by_rule: Mutex::default(),
            reports,
        };
        Ok(Dispatcher {
            inner: Arc::new(inner),
            subject: None,
        })
    }

    /// Starts the channels.
    fn open(self, reports: &ReportSlot) -> Result<Arc<DispatcherShared>, StartError> {
        let Self {
            settings,
            formatter,
            channels,
            account,
        } = self;
        let lanes = channels.iter().map(|channel| {
            let queue = Queue::new(settings.capacity, account.clone());
            ChannelHandle::new(channel.name().to_owned(), queue, channel.peer())
        });
        let hub = Arc::new(DispatcherShared {
            lanes: lanes.collect(),
            formatter: Arc::new(formatter),
            hostname: settings.hostname,
            ignores_levels: settings.ignores_levels,
            on_problem: settings.on_problem,
            log: settings.log,
        });
        for (lane, mut channel) in channels.into_iter().enumerate() {
            if let Some(account) = &account {
                channel.keep_account(Arc::clone(account));
            }
            channel.keep_reports(reports);
            let name = channel.name().to_owned();
            let worker = Worker {
                hub: Arc::clone(&hub),
                lane,
                channel,
                buffered: settings.buffered,
                reported: None,
                told_absence: false,
            };
            let started = thread::Builder::new()
                .name(format!("out-{name}"))
                .spawn(move || worker.run());
            if let Err(source) = started {
                // Stops the channels whose threads have started.
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

/// Time in which a channel's thread must notice that the process it waits for was killed.
const KILL_GRACE: Duration = Duration::from_millis(200);

struct Inner {
    /// Locked while an alert is queued, so that no alert goes to the queues of a replaced hub.
    hub: RwLock<Arc<DispatcherShared>>,
    replaced: Mutex<Replaced>,
    throttle: Mutex<ThrottleState>,
    /// Per internal rule: the time of the last announcement, and the number held back since.
    pace: Mutex<AlertThrottle>,
    emitted: AtomicU64,
    internal: AtomicU64,
    /// Alerts by rule; as many entries as there are rules.
    by_rule: Mutex<BTreeMap<Arc<str>, (Priority, u64)>>,
    reports: ReportSlot,
}

struct ThrottleState {
    bucket: Throttle,
    suppressed: u64,
    announced: u64,
}

impl ThrottleState {
    /// Builds the announcement of alerts suppressed since the last one.
    fn notice(&mut self) -> Option<Internal> {
        let new = self.suppressed - self.announced;
        self.announced = self.suppressed;
        (new > 0).then(|| internal::suppressed(new, self.suppressed))
    }
}

/// Channels that have been replaced.
#[derive(Default)]
struct Replaced {
    /// Hubs that still deliver their queued alerts.
    hubs: Vec<Arc<DispatcherShared>>,
    /// Counters of the hubs that have finished.
    settled: Vec<ChannelCounters>,
}

impl Replaced {
    /// Drops finished hubs and keeps their counters.
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

/// Adds up counters by channel. `trouble` is that of the last entry.
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
        sum.lost_no_receiver += new.lost_no_receiver;
        sum.pending += new.pending;
        sum.timeouts += new.timeouts;
        sum.restarts += new.restarts;
        sum.trouble = new.trouble;
    }
}

impl Inner {
    /// Counts an alert by its rule.
    fn count(&self, alert: &Alert) {
        // The numbers are set one by one, so a poisoned lock holds valid ones.
        let mut counts = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&alert.rule) {
            Some(known) => *known = (alert.priority, known.1 + 1),
            None => {
                counts.insert(Arc::clone(&alert.rule), (alert.priority, 1));
            }
        }
    }

    fn by_rule(&self) -> Vec<RuleAlerts> {
        let counts = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        let each = counts.iter().map(|(rule, (priority, alerts))| RuleAlerts {
            rule: Arc::clone(rule),
            priority: *priority,
            alerts: *alerts,
        });
        each.collect()
    }

    fn send(&self, alert: Alert, on_settled: Option<OnSettled>) {
        let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        hub.send(alert, on_settled);
    }

    fn hub(&self) -> Arc<DispatcherShared> {
        let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&hub)
    }

    /// Returns the replaced hubs that are still delivering, then the current one.
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

#[cfg(test)]
mod tests;
