//! Destination of the rule engine's alerts.

use std::sync::{Arc, OnceLock};

use outputs::Dispatcher;
use response::{Denials, Responder};
use rules::{Alert, AlertSink};

use crate::metrics::Latency;

/// A sink that connects the engine, compiled before the fork, to the dispatcher, created after it.
#[derive(Clone, Default)]
pub struct DeferredSink {
    dispatcher: Arc<OnceLock<Dispatcher>>,
    responder: Arc<OnceLock<Responder>>,
    latency: Arc<Latency>,
}

impl DeferredSink {
    /// Sets the dispatcher. Must be called before the first event.
    pub fn connect(&self, dispatcher: Dispatcher) {
        // A second call would be a defect; the first dispatcher stays.
        let _ = self.dispatcher.set(dispatcher);
    }

    /// Sets the responder, which is shown each alert. Must be called before the first event.
    pub(crate) fn respond(&self, responder: Responder) {
        // As above.
        let _ = self.responder.set(responder);
    }

    /// Returns who withholds calls from processes; `None` without responses.
    pub(crate) fn denials(&self) -> Option<Denials> {
        self.responder.get().map(Responder::denials)
    }

    /// Returns the histogram of alert latency.
    pub(crate) fn latency(&self) -> Arc<Latency> {
        Arc::clone(&self.latency)
    }
}

impl AlertSink for DeferredSink {
    fn emit(&self, alert: Alert) {
        self.latency.note(&alert);
        // Before the alert is written, which takes longer: its process may go on afterwards.
        let responder = self.responder.get();
        let offered = responder.and_then(|responder| responder.offer(&alert));
        if let Some(dispatcher) = self.dispatcher.get() {
            dispatcher.emit(alert);
        }
        // Alerts about actions follow the alert that started them.
        if let Some(offered) = offered {
            offered.start();
        }
    }
}
