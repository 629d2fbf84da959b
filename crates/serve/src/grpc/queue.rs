//! Alerts that wait for a client. Each goes to one, as with Falco.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use outputs::{Account, Channel, Delivery, DeliveryError};
use tokio::sync::Notify;

use super::frame;
use super::message::Output;

/// Alerts that wait when no client takes them. What comes then is lost, and counted.
const CAPACITY: usize = 8192;
/// Their bytes.
const MAX_BYTES: usize = 8 << 20;

/// Keeps alerts for clients.
#[derive(Clone, Debug, Default)]
pub struct GrpcChannel {
    pub(super) queue: Arc<Queue>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    account: OnceLock<Arc<dyn Account>>,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl GrpcChannel {
    /// Keeps account of what waits for clients from now on.
    pub fn keep_account(&self, account: Arc<dyn Account>) {
        // A second one would be a defect; the first stays.
        let _ = self.queue.account.set(account);
    }

    /// How many alerts wait for a client.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting().frames.len()
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing between the two numbers can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, frame: Bytes) -> bool {
        let mut waiting = self.waiting();
        if waiting.frames.len() >= CAPACITY || waiting.bytes + frame.len() > MAX_BYTES {
            return false;
        }
        waiting.bytes += frame.len();
        waiting.frames.push_back(frame);
        self.queued();
        drop(waiting);
        self.arrived.notify_one();
        true
    }

    /// The oldest, if there is one.
    pub(super) fn pop(&self) -> Option<Bytes> {
        let mut waiting = self.waiting();
        let frame = waiting.frames.pop_front()?;
        waiting.bytes -= frame.len();
        if let Some(account) = self.account.get() {
            account.settled(1);
        }
        Some(frame)
    }

    fn queued(&self) {
        if let Some(account) = self.account.get() {
            account.queued();
        }
    }

    /// Puts back what a client did not take.
    pub(super) fn put_back(&self, frame: Bytes) {
        let mut waiting = self.waiting();
        waiting.bytes += frame.len();
        waiting.frames.push_front(frame);
        self.queued();
        drop(waiting);
        self.arrived.notify_one();
    }

    /// The oldest, once there is one.
    pub(super) async fn next(&self) -> Bytes {
        loop {
            let arrived = self.arrived.notified();
            if let Some(frame) = self.pop() {
                // Another client may wait for the rest.
                self.arrived.notify_one();
                return frame;
            }
            arrived.await;
        }
    }
}

impl Channel for GrpcChannel {
    fn name(&self) -> &str {
        "grpc"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        for (delivered, alert) in alerts.iter().enumerate() {
            let output = Output::of(alert.alert(), &alert.output());
            if !self.queue.push(frame::encode(&output)) {
                let source = io::Error::other("no client takes them");
                return Err(DeliveryError {
                    delivered,
                    dead: false,
                    source,
                });
            }
        }
        Ok(())
    }
}
