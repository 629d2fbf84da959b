//! Where the rule engine's alerts go.

use std::sync::{Arc, OnceLock};

use outputs::Dispatcher;
use rules::{Alert, AlertSink};

use crate::metrics::Latency;

/// Ties the engine, which is compiled before the fork, to the dispatcher, which exists after it.
#[derive(Clone, Default)]
pub(in crate::command) struct DeferredSink {
    dispatcher: Arc<OnceLock<Dispatcher>>,
    latency: Arc<Latency>,
}

impl DeferredSink {
    /// Names the dispatcher. Happens before the first event.
    pub(in crate::command) fn connect(&self, dispatcher: Dispatcher) {
        // A second call would be a defect; the first dispatcher stays.
        let _ = self.dispatcher.set(dispatcher);
    }

    /// How long alerts have taken.
    pub(in crate::command) fn latency(&self) -> Arc<Latency> {
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
