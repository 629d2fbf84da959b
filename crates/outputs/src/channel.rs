//! What a channel is to the dispatcher.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rules::{Alert, AlertValue};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::format::Formatter;
use crate::internal;
use crate::queue::QueueAccount;

/// What is done when no channel has anything to do with an alert any more: each has delivered it, or
/// counted it as lost.
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
    /// The last channel lets go of it.
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

    /// Whether it is one of the program's own.
    pub(crate) fn is_internal(&self) -> bool {
        &*self.alert.source == internal::SOURCE
    }

    /// The alert as one line, line feed included. Made by the first channel thread that asks, so
    /// that no capture thread pays for it.
    pub fn line(&self) -> &str {
        self.line.get_or_init(|| self.formatter.line(&self.alert))
    }

    /// The alert as text with time and priority, in whatever form lines are.
    pub fn output(&self) -> String {
        self.formatter.text(&self.alert)
    }

    /// About how much memory the alert and its line take.
    pub(crate) fn size(&self) -> usize {
        let fields: usize = self
            .alert
            .fields
            .iter()
            .map(|(name, value)| name.len() + value_size(value))
            .sum();
        // The line holds the message once or twice and each field once.
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

/// Why a channel could not deliver.
#[derive(Debug, thiserror::Error)]
#[error("cannot write alerts")]
pub struct DeliveryError {
    /// How many of the alerts were delivered all the same.
    pub delivered: usize,
    /// How many of the alerts the receiver has got and does not take.
    pub rejected: usize,
    /// Whether trying again is pointless: the reader of a pipe has gone.
    pub dead: bool,
    /// The cause.
    pub source: io::Error,
}

impl DeliveryError {
    /// Delivers alerts one at a time, the next also after one that failed. The error is the last.
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
                rejected: 0,
                dead: false,
                source,
            })
        })
    }
}

/// Takes alerts somewhere. Lives on a thread of its own and may block as long as it likes: what
/// arrives meanwhile waits in a bounded queue, and what does not fit there is counted as lost.
pub trait Channel: Send {
    /// Name in messages and counters: `stdout`, `file`, ...
    fn name(&self) -> &str;

    /// Delivers alerts in order.
    ///
    /// # Errors
    ///
    /// If not all of them could be delivered. Those that were not are lost.
    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError>;

    /// Closes and opens what the channel writes to, for log rotation.
    ///
    /// # Errors
    ///
    /// If it cannot be opened again; the next delivery tries once more.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Where a process that takes over finds whether this one ended within a line.
    fn keep_account(&mut self, account: Arc<dyn QueueAccount>) {
        // Only what continues another process's lines has something to note.
        let _ = account;
    }

    /// What somebody else has done to the place since this was last asked, if users should know.
    fn notice(&mut self) -> Option<String> {
        None
    }

    /// Nothing will be delivered any more: ends what the channel has started.
    fn close(&mut self) {}

    /// What others may know of the other end, and do to it, while a delivery blocks.
    fn peer(&self) -> Arc<Peer> {
        Arc::default()
    }
}

/// The other end of a channel, seen from other threads.
#[derive(Debug, Default)]
pub struct Peer {
    timeouts: AtomicU64,
    restarts: AtomicU64,
    /// Why a delivery is being tried again.
    trouble: Mutex<Option<String>>,
    /// Leader of the process group that the channel writes to. There only while it is not reaped,
    /// so that the number cannot be another process's.
    group: Mutex<Option<Pid>>,
    killed: AtomicBool,
}

impl Peer {
    /// How often the other end did not answer or read in time.
    pub fn timeouts(&self) -> u64 {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// How often the other end was started anew after it had ended by itself or been killed.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Why the alert that is being delivered has to wait, if it has.
    pub fn trouble(&self) -> Option<String> {
        // A text is stored whole or not at all.
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone()
    }

    pub(crate) fn set_trouble(&self, text: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    pub(crate) fn count_timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn group(&self) -> MutexGuard<'_, Option<Pid>> {
        // A pid is stored whole or not at all, so a poisoned lock holds a valid one.
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no process may be started any more.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Kills the process at the other end, if there is one, which ends a delivery that waits for
    /// it, and keeps the channel from starting another. Says whether there was one.
    pub(crate) fn kill(&self) -> bool {
        self.killed.store(true, Ordering::Release);
        self.kill_group()
    }

    /// Kills the process at the other end. Says whether there was one.
    pub(crate) fn kill_group(&self) -> bool {
        let group = self.group();
        if let Some(group) = *group {
            // Fails only if all of the group have just ended.
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
