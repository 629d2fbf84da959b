//! The [`Channel`] trait, through which the dispatcher delivers alerts, and its types.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rules::{Alert, AlertValue};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::format::Formatter;
use crate::internal;
use crate::json;
use crate::queue::QueueAccount;
use crate::report::ReportSlot;

/// Callback that runs once every channel has delivered an alert or counted it as lost.
pub type OnSettled = Box<dyn FnOnce() + Send + Sync>;

/// One alert on its way to one or more channels.
pub struct Delivery {
    alert: Alert,
    formatter: Arc<Formatter>,
    line: OnceLock<String>,
    on_settled: Option<OnSettled>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let alert = &self.alert;
        f.debug_struct("Delivery")
            .field("alert", alert)
            .finish_non_exhaustive()
    }
}

impl Drop for Delivery {
    /// Runs when the last channel drops the delivery.
    fn drop(&mut self) {
        if let Some(on_settled) = self.on_settled.take() {
            on_settled();
        }
    }
}

impl Delivery {
    pub(crate) fn new(alert: Alert, formatter: Arc<Formatter>) -> Self {
        Self {
            alert,
            formatter,
            line: OnceLock::new(),
            on_settled: None,
        }
    }

    pub(crate) fn then(self, on_settled: Option<OnSettled>) -> Self {
        let mut delivery = self;
        delivery.on_settled = on_settled;
        delivery
    }

    /// The alert.
    pub fn alert(&self) -> &Alert {
        &self.alert
    }

    /// Returns true for an alert that the program raised about itself.
    pub(crate) fn is_internal(&self) -> bool {
        &*self.alert.source == internal::SOURCE
    }

    /// Returns the alert as one line, line feed included. The first channel thread that asks
    /// formats it, so that no capture thread pays for it.
    pub fn line(&self) -> &str {
        self.line.get_or_init(|| self.formatter.line(&self.alert))
    }

    /// Returns the alert as a line of text with time and priority, even where lines are JSON.
    pub(crate) fn text_line(&self) -> String {
        self.formatter.text_line(&self.alert)
    }

    /// Returns the alert as a JSON object with all members, even where lines are text.
    pub(crate) fn json(&self) -> String {
        self.formatter.json(&self.alert)
    }

    /// Returns an alert by the program itself that is formatted as this one.
    pub(crate) fn beside(&self, event: internal::Internal) -> Arc<Self> {
        let alert = internal::internal_alert(&self.alert.hostname, event);
        Arc::new(Self::new(alert, Arc::clone(&self.formatter)))
    }

    /// Returns the alert as text with time and priority, even where lines are JSON.
    pub fn output(&self) -> String {
        self.formatter.text(&self.alert)
    }

    /// Approximate memory use of the alert and its line, in bytes.
    pub(crate) fn size(&self) -> usize {
        let fields: usize = self
            .alert
            .fields
            .iter()
            .map(|(name, value)| name.len() + value_size(value))
            .sum();
        // The line contains the message once or twice and each field once.
        size_of::<Self>() + 3 * self.alert.message.len() + 2 * fields
    }
}

fn value_size(value: &AlertValue) -> usize {
    size_of::<AlertValue>()
        + match value {
            AlertValue::Text(text) => text.len(),
            AlertValue::List(values) => values.iter().map(value_size).sum(),
            AlertValue::Absent
            | AlertValue::Bool(_)
            | AlertValue::Float(_)
            | AlertValue::Int(_)
            | AlertValue::Uint(_) => 0,
        }
}

/// A channel could not deliver some alerts.
#[derive(Debug, thiserror::Error)]
#[error("cannot write alerts")]
pub struct DeliveryError {
    /// Number of alerts that were delivered nevertheless.
    pub delivered: usize,
    /// Number of alerts that the receiver got and rejected.
    pub rejected: usize,
    /// The state of the receiver.
    pub receiver: ReceiverState,
    /// The cause.
    pub source: io::Error,
}

/// The receiver of a channel that could not deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverState {
    /// It may take the next alert.
    Failing,
    /// It never takes one again: the reader of a pipe has gone.
    Gone,
    /// There has been none since the start, such as a log daemon in a container. That is a property of the machine, which is
    /// said once; the alerts are counted, but not as lost.
    Absent,
}

impl DeliveryError {
    /// No alert was delivered; the receiver may take the next one.
    pub fn of_all(source: io::Error) -> Self {
        Self {
            delivered: 0,
            rejected: 0,
            receiver: ReceiverState::Failing,
            source,
        }
    }

    /// Delivers alerts one at a time and continues after a failure. Returns the last error.
    pub(crate) fn of_each(
        alerts: &[Arc<Delivery>],
        mut deliver: impl FnMut(&Delivery) -> io::Result<()>,
    ) -> Result<(), Self> {
        let mut delivered = 0;
        let mut last = None;
        for alert in alerts {
            match deliver(alert) {
                Ok(()) => delivered += 1,
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(()), |source| {
            Err(Self {
                delivered,
                ..Self::of_all(source)
            })
        })
    }
}

/// Destination of alerts. Runs on a thread of its own and may block: alerts that arrive meanwhile
/// wait in a bounded queue, and those that do not fit are counted as lost.
pub trait Channel: Send {
    /// Name in messages and counters: `stdout`, `file`, ...
    fn name(&self) -> &str;

    /// Delivers alerts in order.
    ///
    /// # Errors
    ///
    /// Some alerts could not be delivered and are lost.
    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError>;

    /// Returns the number of alerts that were passed to [`Channel::deliver`] and are held back.
    fn held(&self) -> usize {
        0
    }

    /// Returns the time at which [`Channel::release`] is to be called, if something is held back.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Delivers what is held back and due, or everything.
    ///
    /// # Errors
    ///
    /// Some alerts could not be delivered and are lost.
    fn release(&mut self, everything: bool) -> Result<(), DeliveryError> {
        let _ = everything;
        Ok(())
    }

    /// Closes and reopens the channel's file, for log rotation.
    ///
    /// # Errors
    ///
    /// The file cannot be opened again. The next delivery retries.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Sets the account in which a successor process sees whether this process died within a line.
    fn keep_account(&mut self, account: Arc<dyn QueueAccount>) {
        // Only channels that continue another process's lines use the account.
        let _ = account;
    }

    /// Sets the place in which reports of this program about itself are found. Called before the first delivery.
    fn keep_reports(&mut self, reports: &ReportSlot) {
        // Most receivers take alerts alone.
        let _ = reports;
    }

    /// Called after [`CaptureSource`](crate::CaptureSource) has begun a capture by itself: [`Channel::due`] may be another one.
    fn woken(&mut self) {
        // Most receivers take alerts alone.
    }

    /// Returns a message for the user if another process has changed the channel's file since the
    /// last call.
    fn notice(&mut self) -> Option<String> {
        None
    }

    /// Returns a message for the user about the receiver, if there is one that the last call did not return: it takes no
    /// alerts, or takes them again.
    fn receiver_notice(&mut self) -> Option<String> {
        None
    }

    /// Stops the processes that the channel has started. Nothing is delivered after this call.
    fn close(&mut self) {}

    /// Returns the channel's other end, which other threads can inspect or kill while a delivery
    /// blocks.
    fn peer(&self) -> Arc<Peer> {
        Arc::default()
    }
}

/// The other end of a channel, seen from other threads.
#[derive(Debug, Default)]
pub struct Peer {
    timeouts: AtomicU64,
    restarts: AtomicU64,
    /// Reason why a delivery is being retried.
    trouble: Mutex<Option<String>>,
    /// Leader of the process group that the channel writes to. Set only until the process is
    /// reaped, so that the number cannot be another process's.
    group: Mutex<Option<Pid>>,
    killed: AtomicBool,
}

impl Peer {
    /// Number of times the other end did not answer or read in time.
    pub fn timeouts(&self) -> u64 {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// Number of times the other end was restarted after it exited or was killed.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns the reason why the current delivery is delayed, if it is.
    pub fn trouble(&self) -> Option<String> {
        // The text is stored as a whole, so a poisoned lock holds a valid one.
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone()
    }

    pub(crate) fn set_trouble(&self, text: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) =
            text.map(|text| json::shown(&text));
    }

    pub(crate) fn count_timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn group(&self) -> MutexGuard<'_, Option<Pid>> {
        // The pid is stored as a whole, so a poisoned lock holds a valid one.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if no process may be started any more.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Kills the process at the other end, which ends a delivery that waits for it, and prevents
    /// the channel from starting another. Returns true if a process was killed.
    pub(crate) fn kill(&self) -> bool {
        self.killed.store(true, Ordering::Release);
        self.kill_group()
    }

    /// Kills the process at the other end. Returns true if there was one.
    pub(crate) fn kill_group(&self) -> bool {
        let group = self.group();
        if let Some(group) = *group {
            // Fails only if the whole group has just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        group.is_some()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use rules::Priority;

    use super::*;
    use crate::format::Format;
    use crate::internal::{Internal, internal_alert};

    /// An alert of a known time.
    pub(crate) fn alert() -> Alert {
        Alert {
            time_ns: 1_795_248_942_000_000_007,
            made_ns: 1_795_248_942_000_100_000,
            rule: "Read sensitive file untrusted".into(),
            priority: Priority::Warning,
            source: "syscall".into(),
            tags: Arc::new([]),
            hostname: "box".into(),
            message: "Sensitive file opened (file=/etc/sh\"adow\n user=<NA>)".to_owned(),
            fields: Vec::new(),
            details: rules::AlertDetails {
                file: Some("rules/a.yaml".into()),
                line: 12,
                context: Vec::new(),
                process: None,
            },
        }
    }

    /// Alerts with the messages `n=0`, `n=1`, ...
    pub(crate) fn deliveries(count: usize, format: Format) -> Vec<Arc<Delivery>> {
        let formatter = Arc::new(Formatter::new(format));
        let alert = |n| {
            let event = Internal {
                rule: "t",
                priority: Priority::Notice,
                message: format!("n={n}"),
                fields: vec![],
            };
            internal_alert(&"box".into(), event)
        };
        (0..count)
            .map(|n| Arc::new(Delivery::new(alert(n), Arc::clone(&formatter))))
            .collect()
    }
}
