//! Where the rule engine's alerts go.

use std::sync::{Arc, OnceLock};

use outputs::Dispatcher;
use rules::{Alert, AlertSink};

/// Ties the engine, which is compiled before the fork, to the dispatcher, which exists after it.
#[derive(Clone, Default)]
pub(in crate::command) struct DeferredSink(Arc<OnceLock<Dispatcher>>);

impl DeferredSink {
    /// Names the dispatcher. Happens before the first event.
    pub(in crate::command) fn connect(&self, dispatcher: Dispatcher) {
        // A second call would be a defect; the first dispatcher stays.
        let _ = self.0.set(dispatcher);
    }
}

impl AlertSink for DeferredSink {
    fn emit(&self, alert: Alert) {
        if let Some(dispatcher) = self.0.get() {
            dispatcher.emit(alert);
        }
    }
}
