//! The thread of a channel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::{Channel, Delivery, DeliveryError, ReceiverState};
use crate::hub::{ANNOUNCE_INTERVAL, DispatcherShared};
use crate::internal;
use crate::json;
use crate::queue::Task;

/// Maximum number of alerts per delivery when outputs are buffered and a backlog has built up.
const BATCH: usize = 256;

/// Minimum interval between reports of a failing channel's trouble.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct Worker {
    pub(crate) hub: Arc<DispatcherShared>,
    pub(crate) lane: usize,
    pub(crate) channel: Box<dyn Channel>,
    pub(crate) buffered: bool,
    /// Time of the last notice that another process has changed the channel's file.
    pub(crate) reported: Option<Instant>,
    /// It was said that the channel has no receiver.
    pub(crate) told_absence: bool,
}

impl Worker {
    /// Serves the queue until [`Task::Stop`].
    pub(crate) fn run(mut self) {
        let limit = if self.buffered { BATCH } else { 1 };
        let mut reported = None;
        let mut announced: Option<Instant> = None;
        loop {
            let queue = &self.hub.lanes[self.lane].queue;
            match queue.take(limit, self.channel.due()) {
                Task::Deliver(batch) => {
                    let is_due = announced.is_none_or(|last| last.elapsed() >= ANNOUNCE_INTERVAL);
                    if is_due && self.announce(&mut reported) {
                        announced = Some(Instant::now());
                    }
                    self.deliver(&batch, &mut reported);
                }
                Task::Announce => {
                    self.announce(&mut reported);
                }
                Task::Reopen => {
                    if let Err(error) = self.channel.reopen() {
                        self.report(&mut reported, "cannot reopen alert channel", &error);
                    }
                }
                Task::Wake => self.channel.woken(),
                Task::Release { everything } => {
                    let result = self.channel.release(everything);
                    self.settle(result, &mut reported);
                }
                Task::Stop => {
                    self.channel.close();
                    return self.hub.lanes[self.lane].queue.end();
                }
            }
        }
    }

    fn deliver(&mut self, batch: &[Arc<Delivery>], reported: &mut Option<Instant>) {
        let result = self.channel.deliver(batch);
        if let Some(notice) = self.channel.notice() {
            self.tell(&notice);
        }
        self.settle(result, reported);
    }

    /// Counts delivered and lost alerts, and tells what the user has to know of the receiver.
    fn settle(&mut self, result: Result<(), DeliveryError>, reported: &mut Option<Instant>) {
        let queue = &self.hub.lanes[self.lane].queue;
        let held = self.channel.held();
        if let Some(notice) = self.channel.receiver_notice() {
            (self.hub.on_problem)(&notice);
        }
        match result {
            Ok(()) => queue.finish_delivery(held, None),
            Err(error) => {
                if error.receiver == ReceiverState::Gone {
                    queue.die();
                }
                queue.finish_delivery(held, Some(&error));
                if error.receiver == ReceiverState::Absent {
                    return self.tell_absence(&error.source);
                }
                self.report(reported, "cannot write alerts to", &error.source);
                self.hub.announce_loss(self.lane);
            }
        }
    }

    /// Writes a line about lost alerts before the next alerts. Returns true if there was one to write.
    fn announce(&mut self, reported: &mut Option<Instant>) -> bool {
        let lane = &self.hub.lanes[self.lane];
        let Some((lost, total)) = lane.queue.start_announcement() else {
            return false;
        };
        let notice = self.hub.loss_notice(&lane.name, lost, total);
        let result = match notice {
            Some(notice) => self.channel.deliver(&[notice]),
            None => Ok(()),
        };
        let queue = &self.hub.lanes[self.lane].queue;
        queue.finish_announcement(result.is_ok().then_some(total));
        if let Err(error) = result {
            if error.receiver == ReceiverState::Gone {
                queue.die();
            }
            self.report(reported, "cannot write alerts to", &error.source);
        }
        true
    }

    /// Reports once that nobody receives this channel's alerts.
    fn tell_absence(&mut self, error: &std::io::Error) {
        if std::mem::replace(&mut self.told_absence, true) {
            return;
        }
        let name = &self.hub.lanes[self.lane].name;
        let cause = json::shown(&error.to_string());
        (self.hub.on_problem)(&format!(
            "nobody receives alerts of {name}: {cause}; they are counted as lost_no_receiver"
        ));
    }

    /// Reports a change of the channel's file, at most once a second.
    fn tell(&mut self, notice: &str) {
        if self
            .reported
            .is_some_and(|last| last.elapsed() < ANNOUNCE_INTERVAL)
        {
            return;
        }
        self.reported = Some(Instant::now());
        (self.hub.on_problem)(notice);
        self.hub.tell_all(internal::exchanged(notice));
    }

    fn report(&self, reported: &mut Option<Instant>, what: &str, error: &std::io::Error) {
        if reported.is_some_and(|last| last.elapsed() < REPORT_INTERVAL) {
            return;
        }
        *reported = Some(Instant::now());
        // The cause may be words of a server.
        let cause = json::shown(&error.to_string());
        let name = &self.hub.lanes[self.lane].name;
        (self.hub.on_problem)(&format!("{what} {name}: {cause}"));
    }
}
