//! A queue in front of the store: JetStream of NATS.
//!
//! A batch of an agent is acknowledged as soon as the stream has it, and written to the store later. The order of an agent's
//! records is held twice: they are in one subject of the stream in the order in which they were acknowledged, and the store
//! refuses a batch whose predecessor it does not have. So any number of servers can write from one queue.

mod drain;
mod known;
mod link;
mod message;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_nats::jetstream::Error as Answer;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use axum::http::StatusCode;
use outputs::{NatsError, NatsOutput, NatsServers};
use store::{AgentId, Credential, Receipt, Record, Store};

use self::known::KnownCredentials;
pub(crate) use self::link::run;
use self::link::{Jet, REQUEST};
use self::message::Part;
pub(crate) use self::status::Depth;
use crate::answer::Refusal;
use crate::counter::Counter;

/// Agents whose last number is remembered. Beyond that they are asked for again.
const REMEMBERED: usize = 100_000;

/// Settings of a queue.
#[derive(Clone)]
pub struct QueueSettings {
    /// Servers, credentials and TLS.
    pub servers: NatsOutput,
    /// Name of the stream, and first word of its subjects.
    pub stream: String,
    /// Servers of NATS that keep each batch.
    pub replicas: usize,
    /// Largest size of the stream.
    pub max_bytes: u64,
    /// Largest number of batches in the stream.
    pub max_batches: u64,
    /// How long a credential is accepted after the store has last confirmed it, while the store is away.
    pub grace: Duration,
    /// Says what is wrong with the queue.
    pub report: fn(&str),
}

impl fmt::Debug for QueueSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSettings")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// A queue cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The name of the stream is wrong.
    #[error(
        "cannot use the queue: `{name}` is no name of a stream: expected 1 to 32 letters, digits, `-` and `_`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// An address, a certificate or a secret cannot be used.
    #[error("cannot use the queue")]
    Servers(#[from] NatsError),
}

/// Counters of the queue since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Records by what the store did with them.
    pub(crate) stored: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) missing: Counter,
    /// Batches by what the queue did with them.
    pub(crate) queued: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) delayed: Counter,
    pub(crate) set_aside: Counter,
    pub(crate) away: Counter,
    pub(crate) full: Counter,
    pub(crate) refused: Counter,
}

/// Reads the records of a batch, which arrived at this time.
pub(crate) type ReadRecords = fn(&str, i64) -> Result<Vec<Record>, Refusal>;

/// The queue as requests see it.
pub(crate) struct Queue {
    settings: QueueSettings,
    store: Arc<dyn Store>,
    read_records: ReadRecords,
    /// Taken by the task that connects.
    servers: Mutex<Option<NatsServers>>,
    /// `None` while NATS is away.
    jet: RwLock<Option<Arc<Jet>>>,
    /// Last number of each agent that this server knows to be acknowledged.
    last: Mutex<HashMap<AgentId, u64>>,
    /// What was reported last.
    trouble: Mutex<Option<String>>,
    known: KnownCredentials,
    pub(crate) counters: Counters,
}

impl Queue {
    /// Checks the settings. Connects later: NATS may be away.
    pub(crate) fn new(
        settings: QueueSettings,
        store: Arc<dyn Store>,
        read_records: ReadRecords,
    ) -> Result<Self, QueueError> {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let name = &settings.stream;
        if !(1..=32).contains(&name.len()) || !name.chars().all(is_known) {
            return Err(QueueError::Name { name: name.clone() });
        }
        Ok(Self {
            servers: Mutex::new(Some(NatsServers::open(&settings.servers, REQUEST)?)),
            jet: RwLock::default(),
            last: Mutex::default(),
            trouble: Mutex::default(),
            known: KnownCredentials::new(settings.grace),
            counters: Counters::default(),
            settings,
            store,
            read_records,
        })
    }

    /// Returns what the store answers, `None` if it does not.
    pub(crate) async fn while_store_answers<T>(
        &self,
        asked: impl Future<Output = Result<T, Refusal>>,
    ) -> Option<T> {
        if self.known.is_store_away() {
            return None;
        }
        let answer = tokio::time::timeout(REQUEST, asked).await;
        let answer = answer.ok().and_then(Result::ok);
        if answer.is_none() {
            self.known.store_is_away();
        }
        answer
    }

    /// Returns the connection, `None` while NATS is away.
    fn jet(&self) -> Option<Arc<Jet>> {
        let jet = self.jet.read().unwrap_or_else(PoisonError::into_inner);
        jet.clone()
    }

    /// Sets the connection, and returns true if there was one.
    fn set_jet(&self, jet: Option<Arc<Jet>>) -> bool {
        let mut current = self.jet.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, jet).is_some()
    }

    /// Says what is wrong, once as long as it stays the same; `None` if it is over.
    fn report(&self, trouble: Option<String>) {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == trouble {
            return;
        }
        match &trouble {
            Some(problem) => (self.settings.report)(&format!("warning: the queue: {problem}")),
            None => (self.settings.report)("the queue works"),
        }
        *last = trouble;
    }

    /// Returns whom a secret with this hash belongs to: what the store has confirmed holds for a while.
    pub(crate) async fn credential(&self, hash: [u8; 32]) -> Result<Option<Credential>, Refusal> {
        let known = self.known.credential(&self.store, hash).await?;
        if let Some((Credential::Agent { id, .. }, Some(number))) = &known {
            self.remember(*id, *number);
        }
        Ok(known.map(|(credential, _)| credential))
    }

    /// Counts what the store did with a batch.
    fn count(&self, receipt: &Receipt) {
        self.counters.stored.add(receipt.stored);
        self.counters.duplicates.add(receipt.duplicates);
        self.counters.missing.add(receipt.missing);
    }

    /// Remembers that the records of an agent up to `number` are acknowledged.
    fn remember(&self, agent: AgentId, number: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED && !last.contains_key(&agent) {
            last.clear();
        }
        let known = last.entry(agent).or_default();
        *known = number.max(*known);
    }

    fn remembered(&self, agent: AgentId) -> Option<u64> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&agent).copied()
    }

    /// Puts the records of a batch into the queue, and returns when the stream has them. What was acknowledged before is left
    /// out.
    pub(crate) async fn put(
        &self,
        sender: AgentId,
        (first, lines): (u64, &[&str]),
        received_ns: i64,
    ) -> Result<Receipt, Refusal> {
        let jet = self.jet().ok_or_else(|| self.away())?;
        let before = self.acknowledged(&jet, sender).await?;
        let old = before.saturating_add(1).saturating_sub(first);
        let old = usize::try_from(old).unwrap_or(usize::MAX).min(lines.len());
        let new = &lines[old..];
        let from = first.saturating_add(old as u64);
        for part in message::parts(from, new) {
            self.publish(&jet, sender, &part, received_ns).await?;
            self.remember(sender, part.last());
        }
        Ok(Receipt {
            acknowledged: before.max(from.saturating_add(new.len() as u64) - 1),
            stored: new.len() as u64,
            duplicates: old as u64,
            missing: first.saturating_sub(before.saturating_add(1)),
        })
    }

    /// Returns the number up to which the records of an agent are in the queue or were in it.
    async fn acknowledged(&self, jet: &Jet, sender: AgentId) -> Result<u64, Refusal> {
        // The queue first: what is not in it any more is in the store, or was known before.
        let last = jet.last_of(sender).await.map_err(|problem| {
            self.counters.away.add(1);
            self.report(Some(problem));
            unavailable("the queue does not answer; send it again")
        })?;
        let known = self.remembered(sender);
        let known =
            known.ok_or_else(|| unavailable("the agent is not known yet; send it again"))?;
        Ok(known.max(last))
    }

    async fn publish(
        &self,
        jet: &Jet,
        sender: AgentId,
        part: &Part,
        received_ns: i64,
    ) -> Result<(), Refusal> {
        let encoded = part.encode(sender, received_ns);
        let message = encoded.expected_stream(&self.settings.stream);
        let sent = jet.context.send_publish(jet.subject(sender), message).await;
        let acknowledged = match sent {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(_) => {
                self.counters.queued.add(1);
                Ok(())
            }
            Err(error) => Err(self.refuse(&error)),
        }
    }

    fn refuse(&self, error: &PublishError) -> Refusal {
        let source = std::error::Error::source(error);
        let answer = source.and_then(|source| source.downcast_ref::<Answer>());
        let description = answer.map(ToString::to_string).unwrap_or_default();
        if description.contains("maximum") && description.contains("exceeded") {
            self.counters.full.add(1);
            let problem = format!(
                "the stream {} is full: its batches have to reach the store first",
                self.settings.stream
            );
            self.report(Some(problem));
            return unavailable("the queue is full; send it again");
        }
        let is_away = matches!(
            error.kind(),
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe
        );
        match is_away {
            true => self.counters.away.add(1),
            false => self.counters.refused.add(1),
        }
        self.report(Some(format!("cannot put a batch into it: {error}")));
        unavailable("the queue does not take the batch; send it again")
    }

    fn away(&self) -> Refusal {
        self.counters.away.add(1);
        unavailable("the queue is away; send it again")
    }
}

fn unavailable(message: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
}
