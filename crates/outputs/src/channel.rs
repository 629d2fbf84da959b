//! What a channel is to the dispatcher.

use std::io;
use std::sync::{Arc, OnceLock};

use rules::{Alert, AlertValue};

use crate::format::Formatter;

/// One alert on its way to one or more channels.
#[derive(Debug)]
pub struct Delivery {
    alert: Alert,
    formatter: Arc<Formatter>,
    line: OnceLock<String>,
}

impl Delivery {
    pub(crate) fn new(alert: Alert, formatter: Arc<Formatter>) -> Self {
        Self {
            alert,
            formatter,
            line: OnceLock::new(),
        }
    }

    /// The alert.
    pub fn alert(&self) -> &Alert {
        &self.alert
    }

    /// The alert as one line, line feed included. Made by the first channel thread that asks, so
    /// that no capture thread pays for it.
    pub fn line(&self) -> &str {
        self.line.get_or_init(|| self.formatter.line(&self.alert))
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
            AlertValue::Absent | AlertValue::Bool(_) | AlertValue::Int(_) | AlertValue::Uint(_) => {
                0
            }
        }
}

/// Why a channel could not deliver.
#[derive(Debug, thiserror::Error)]
#[error("cannot write alerts")]
pub struct DeliveryError {
    /// How many of the alerts, counted from the first, were delivered all the same.
    pub delivered: usize,
    /// Whether trying again is pointless: the reader of a pipe has gone.
    pub dead: bool,
    /// The cause.
    pub source: io::Error,
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
}
