//! Destination of the rule engine's alerts.

use std::sync::{Arc, OnceLock};

use outputs::Dispatcher;
use rules::{Alert, AlertSink};

use crate::metrics::Latency;

/// A sink that connects the engine, compiled before the fork, to the dispatcher, created after it.
#[derive(Clone, Default)]
pub struct DeferredSink {
    dispatcher: Arc<OnceLock<Dispatcher>>,
    latency: Arc<Latency>,
}

impl DeferredSink {
    /// Sets the dispatcher. Must be called before the first event.
    pub fn connect(&self, dispatcher: Dispatcher) {
        // A second call would be a defect; the first dispatcher stays.
        let _ = self.dispatcher.set(dispatcher);
    }

    /// Returns the histogram of alert latency.
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
