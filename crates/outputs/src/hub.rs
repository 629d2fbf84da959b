//! The channels of a dispatcher, shared by the dispatcher and the channel threads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rules::{Alert, Level, Priority};

use crate::channel::{Delivery, OnSettled, Peer};
use crate::format::Formatter;
use crate::internal::{self, Internal, internal_alert};
use crate::queue::Queue;

/// Minimum interval between a channel's announcements of its own losses.
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

/// Callback that reports a channel's trouble to the user. Runs on the channel's thread, rarely.
pub type OnProblem = Arc<dyn Fn(&str) + Send + Sync>;

/// Callback that writes an alert of the program about itself to its log. Returns false if no log took it.
pub type OnInternal = Arc<dyn Fn(&Alert) -> bool + Send + Sync>;

/// Start of the names of internal alerts that Falco does not have.
const OWN: &str = "Tollgate internal: ";

/// Channels that take alerts of level forensic: the alert stream and `file_output`.
const FORENSIC: [&str; 4] = ["stdout", "stderr", "log", "file"];

/// Counters of one channel since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Name of the channel.
    pub channel: String,
    /// Alerts accepted by the queue.
    pub queued: u64,
    /// Alerts delivered.
    pub delivered: u64,
    /// Alerts lost because the queue was full: the channel was too slow.
    pub lost_queue_full: u64,
    /// Alerts lost because writing failed or the channel is dead.
    pub lost_write_failed: u64,
    /// Alerts lost because the receiver rejected them.
    pub lost_rejected: u64,
    /// Alerts for which there was no receiver, as there had been none since the start.
    pub lost_no_receiver: u64,
    /// Alerts waiting or being delivered.
    pub pending: usize,
    /// Number of times the other end did not answer or read in time.
    pub timeouts: u64,
    /// Number of times the program at the other end was restarted.
    pub restarts: u64,
    /// Reason why the current delivery is delayed, if it is.
    pub trouble: Option<String>,
}

impl ChannelCounters {
    /// Alerts lost for any cause but that there has never been a receiver.
    pub fn lost(&self) -> u64 {
        self.lost_queue_full + self.lost_write_failed + self.lost_rejected
    }
}

/// State shared by the dispatcher and the channel threads.
pub(crate) struct DispatcherShared {
    pub(crate) lanes: Vec<ChannelHandle>,
    pub(crate) on_problem: OnProblem,
    pub(crate) formatter: Arc<Formatter>,
    pub(crate) hostname: Arc<str>,
    /// Each channel takes alerts of every level.
    pub(crate) ignores_levels: bool,
    /// Takes the place of the channels for internal alerts that Falco does not have, as for Falco.
    pub(crate) log: Option<OnInternal>,
}

/// One channel as seen by the others.
pub(crate) struct ChannelHandle {
    pub(crate) name: String,
    pub(crate) queue: Queue,
    pub(crate) peer: Arc<Peer>,
    /// Time of the last loss announcement to the other channels.
    loss_announced: Mutex<Option<Instant>>,
}

impl DispatcherShared {
    /// Stops the channels once they have delivered their queued alerts.
    pub(crate) fn stop(&self) {
        for lane in &self.lanes {
            lane.queue.stop();
        }
    }

    /// Tells the channels that a capture has begun.
    pub(crate) fn wake(&self) {
        for lane in &self.lanes {
            lane.queue.wake();
        }
    }

    /// Writes an internal alert that Falco does not have to the log, if such alerts belong there. Returns false for
    /// an alert that goes to the channels: also one that warns, such as of lost events, and that no log has taken.
    fn is_logged(&self, alert: &Alert) -> bool {
        let is_own = &*alert.source == internal::SOURCE && alert.rule.starts_with(OWN);
        let Some(log) = self.log.as_ref().filter(|_| is_own) else {
            return false;
        };
        log(alert) || alert.priority > Priority::Warning
    }

    pub(crate) fn send(&self, alert: Alert, on_settled: Option<OnSettled>) {
        if self.is_logged(&alert) {
            if let Some(on_settled) = on_settled {
                on_settled();
            }
            return;
        }
        let is_forensic =
            !self.ignores_levels && Level::of_tags(alert.tags.iter()) == Level::Forensic;
        let delivery = Delivery::new(alert, Arc::clone(&self.formatter)).then(on_settled);
        let delivery = Arc::new(delivery);
        for (at, lane) in self.lanes.iter().enumerate() {
            if is_forensic && !FORENSIC.contains(&&*lane.name) {
                continue;
            }
            if lane.queue.push(&delivery).is_err() {
                self.announce_loss(at);
            }
        }
    }

    /// Announces to the other channels that one loses alerts, at most once per
    /// [`ANNOUNCE_INTERVAL`].
    pub(crate) fn announce_loss(&self, losing: usize) {
        let lane = &self.lanes[losing];
        if !lane.is_announcement_due() {
            return;
        }
        let counters = lane.queue.counters();
        let Some(notice) = self.loss_notice(&lane.name, counters.lost(), counters.lost()) else {
            return;
        };
        for (at, other) in self.lanes.iter().enumerate() {
            // The queue counts a refusal; announcing it here could loop.
            if at != losing && other.queue.push(&notice).is_err() {
                continue;
            }
        }
    }

    /// Sends an internal alert to all channels.
    pub(crate) fn tell_all(&self, event: Internal) {
        let alert = internal_alert(&self.hostname, event);
        if self.is_logged(&alert) {
            return;
        }
        let notice = Arc::new(Delivery::new(alert, Arc::clone(&self.formatter)));
        for lane in &self.lanes {
            // The queue counts a refusal.
            let _ = lane.queue.push(&notice);
        }
    }

    /// Returns the alert of losses of a channel; `None` if the log has it.
    pub(crate) fn loss_notice(
        &self,
        channel: &str,
        lost: u64,
        total: u64,
    ) -> Option<Arc<Delivery>> {
        let alert = internal_alert(&self.hostname, internal::lost(channel, lost, total));
        let is_logged = self.is_logged(&alert);
        (!is_logged).then(|| Arc::new(Delivery::new(alert, Arc::clone(&self.formatter))))
    }
}

impl ChannelHandle {
    pub(crate) fn new(name: String, queue: Queue, peer: Arc<Peer>) -> Self {
        Self {
            name,
            queue,
            peer,
            loss_announced: Mutex::new(None),
        }
    }

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

    pub(crate) fn counters(&self) -> ChannelCounters {
        let counters = self.queue.counters();
        ChannelCounters {
            channel: self.name.clone(),
            queued: counters.queued,
            delivered: counters.delivered,
            lost_queue_full: counters.lost_queue_full,
            lost_write_failed: counters.lost_write_failed,
            lost_rejected: counters.lost_rejected,
            lost_no_receiver: counters.lost_no_receiver,
            pending: self.queue.pending(),
            timeouts: self.peer.timeouts(),
            restarts: self.peer.restarts(),
            trouble: self.peer.trouble(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Channel, DeliveryError};
    use crate::dispatcher::{Dispatcher, Settings};

    /// Counts the alerts that it takes.
    struct Counting {
        name: &'static str,
        taken: Arc<Mutex<usize>>,
    }

    impl Channel for Counting {
        fn name(&self) -> &str {
            self.name
        }

        fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
            *self.taken.lock().unwrap() += alerts.len();
            Ok(())
        }
    }

    /// Returns how many alerts of a rule with this tag the channels take.
    fn taken(tag: &str, ignores_levels: bool) -> [usize; 4] {
        let names = ["stdout", "file", "http", "collector"];
        let counts = names.map(|_| Arc::new(Mutex::new(0)));
        let channels = names.iter().zip(&counts).map(|(name, taken)| {
            let taken = Arc::clone(taken);
            Box::new(Counting { name, taken }) as Box<dyn Channel>
        });
        let settings = Settings {
            ignores_levels,
            ..Settings::new("box".into(), Arc::new(|_| ()))
        };
        let dispatcher = Dispatcher::prepare(settings, channels.collect());
        let dispatcher = dispatcher.start().unwrap();
        let mut alert = internal_alert(&"box".into(), internal::lost("x", 1, 1));
        alert.source = "syscall".into();
        alert.tags = Arc::new([tag.to_owned()]);
        dispatcher.emit(alert);
        assert!(
            dispatcher
                .flush(Instant::now() + Duration::from_secs(10))
                .is_empty()
        );
        counts.map(|count| *count.lock().unwrap())
    }

    #[test]
    fn forensic_alerts_reach_every_channel_only_where_levels_are_ignored() {
        assert_eq!(taken("level_hunting", false), [1, 1, 1, 1]);
        assert_eq!(taken("level_forensic", false), [1, 1, 0, 0]);
        assert_eq!(taken("level_forensic", true), [1, 1, 1, 1]);
    }
}
