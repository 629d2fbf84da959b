//! Where the rule engine's alerts go.

use std::sync::{Arc, OnceLock};

use outputs::Dispatcher;
use rules::{Alert, AlertSink};

use crate::metrics::Latency;

/// Ties the engine, which is compiled before the fork, to the dispatcher, which exists after it.
#[derive(Clone, Default)]
pub struct DeferredSink {
    dispatcher: Arc<OnceLock<Dispatcher>>,
    latency: Arc<Latency>,
}

impl DeferredSink {
    /// Names the dispatcher. Happens before the first event.
    pub fn connect(&self, dispatcher: Dispatcher) {
        // A second call would be a defect; the first dispatcher stays.
        let _ = self.dispatcher.set(dispatcher);
    }

    /// How long alerts have taken.
    pub(crate) fn latency(&self) -> Arc<Latency> {
        Arc::clone(&self.latency)
    }
}

impl AlertSink for DeferredSink {
    fn emit(&self, alert: Alert) {
        self.latency.note(&alert);
        if let Some(dispatcher) = self.dispatcher.get() {
            dispatcher.emit(alert);
        }
    }
}
