//! How far the queue is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Queue;

/// Time limit for the answer of NATS.
const ANSWER: Duration = Duration::from_secs(2);

/// What waits in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// Batches that the store does not have yet.
    pub(crate) batches: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Age of the oldest in seconds.
    pub(crate) lag_seconds: u64,
    /// Batches that are delivered and not confirmed.
    pub(crate) in_work: u64,
    /// Batches that were delivered more than once and are not confirmed.
    pub(crate) redelivered: u64,
    /// Batches that are set aside.
    pub(crate) set_aside: u64,
}

impl Queue {
    /// Asks NATS. `None` if it does not answer.
    pub(crate) async fn depth(&self) -> Option<Depth> {
        tokio::time::timeout(ANSWER, self.ask()).await.ok()?
    }

    async fn ask(&self) -> Option<Depth> {
        let jet = self.jet()?;
        let state = jet.stream.get_info().await.ok()?.state;
        let consumer = jet.consumer.get_info().await.ok()?;
        let aside = jet.aside.get_info().await.ok()?.state;
        // An empty stream has a time long ago.
        let first_ns = state.first_timestamp.unix_timestamp_nanos();
        let lag_ns = match state.messages {
            0 => 0,
            _ => now_ns().saturating_sub(first_ns).max(0),
        };
        let count = |number| u64::try_from(number).unwrap_or(u64::MAX);
        Some(Depth {
            batches: state.messages,
            bytes: state.bytes,
            lag_seconds: u64::try_from(lag_ns / 1_000_000_000).unwrap_or(u64::MAX),
            in_work: count(consumer.num_ack_pending),
            redelivered: count(consumer.num_redelivered),
            set_aside: aside.messages,
        })
    }
}

/// Returns the time in nanoseconds since 1970.
fn now_ns() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    i128::try_from(now).unwrap_or(i128::MAX)
}
