//! Alerts for the program that a detector is embedded in, beside the configured outputs.

use std::fmt;
use std::sync::Arc;

use outputs::{Channel, Delivery, DeliveryError};
use rules::Alert;

/// Gets every alert that outputs get. It runs on a thread of its own, behind a bounded queue, and stays when outputs are
/// replaced.
#[derive(Clone)]
pub struct AlertObserver {
    name: &'static str,
    observe: Arc<dyn Fn(&Alert) + Send + Sync>,
}

impl fmt::Debug for AlertObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AlertObserver").field(&self.name).finish()
    }
}

impl AlertObserver {
    /// Creates an observer. `name` is that of its channel in messages and counters.
    pub fn new(name: &'static str, observe: impl Fn(&Alert) + Send + Sync + 'static) -> Self {
        let observe = Arc::new(observe);
        Self { name, observe }
    }

    /// A channel for a set of outputs.
    pub(crate) fn channel(&self) -> Box<dyn Channel> {
        Box::new(self.clone())
    }
}

impl Channel for AlertObserver {
    fn name(&self) -> &str {
        self.name
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        for delivery in alerts {
            (self.observe)(delivery.alert());
        }
        Ok(())
    }
}
