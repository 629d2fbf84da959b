//! A queue in front of the store: JetStream of NATS.
//!
//! A batch of an agent is acknowledged as soon as the stream has it, and written to the store later. The order of an agent's
//! records is held twice: they are in one subject of the stream in the order in which they were acknowledged, and the store
//! refuses a batch whose predecessor it does not have. So any number of servers can write from one queue.

mod asking;
mod bounded;
mod drain;
mod failing;
mod known;
mod link;
mod message;
mod report;
mod settle;
mod status;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_nats::jetstream::Error as Answer;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use axum::http::StatusCode;
use outputs::{NatsError, NatsOutput, NatsServers};
use store::{AgentId, Credential, Receipt, Record, Store, StoreError};

use self::asking::{Health, Questions};
use self::bounded::Bounded;
use self::known::KnownCredentials;
pub(crate) use self::link::run;
use self::link::{Jet, REQUEST};
use self::message::Part;
use self::report::{Reports, Source};
pub(crate) use self::status::Depth;
use crate::answer::Refusal;
use crate::counter::Counter;

/// Agents whose credential and last number are kept. Beyond that those that were heard of longest ago are forgotten, which
/// have to wait for the store then.
const KEPT: usize = 100_000;

/// Threads that a silent store can keep: credentials are asked for by as many as everything else that agents need.
pub(crate) const THREADS: usize = 2 * asking::TURNS;

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
    last: Mutex<Bounded<AgentId, u64>>,
    reports: Arc<Reports>,
    health: Arc<Health>,
    known: KnownCredentials,
    /// Questions to the store that are not about credentials.
    others: Questions,
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
        let reports = Arc::new(Reports::new(settings.report));
        let health = Arc::new(Health::new(Arc::clone(&reports)));
        Ok(Self {
            servers: Mutex::new(Some(NatsServers::open(&settings.servers, REQUEST)?)),
            jet: RwLock::default(),
            last: Mutex::new(Bounded::new(KEPT)),
            known: KnownCredentials::new(Arc::clone(&health), settings.grace),
            others: Questions::new(Arc::clone(&health), REQUEST),
            reports,
            health,
            counters: Counters::default(),
            settings,
            store,
            read_records,
        })
    }

    /// Returns what the store answers, `None` if it fails or does not answer in time, which is reported.
    pub(crate) async fn while_store_answers<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let store = Arc::clone(&self.store);
        self.others.ask(move || question(&*store)).await.ok()
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

    /// Returns whom a secret with this hash belongs to: what the store has confirmed holds for a while.
    pub(crate) async fn credential(&self, hash: [u8; 32]) -> Result<Option<Credential>, Refusal> {
        let known = self.known.credential(hash, {
            let store = Arc::clone(&self.store);
            move || known::ask(&*store, &hash)
        });
        let known = known.await?;
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
        let before = last.get(&agent).map_or(0, |(_, before)| *before);
        last.insert(agent, Instant::now(), number.max(before));
    }

    fn remembered(&self, agent: AgentId) -> Option<u64> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&agent).map(|(_, number)| *number)
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
        let (receipt, parts) = new_parts(before, (first, lines));
        for part in parts {
            self.publish(&jet, sender, &part, received_ns).await?;
            self.remember(sender, part.last());
        }
        Ok(receipt)
    }

    /// Returns the number up to which the records of an agent are in the queue or were in it.
    async fn acknowledged(&self, jet: &Jet, sender: AgentId) -> Result<u64, Refusal> {
        // The queue first: what is not in it any more is in the store, or was known before.
        let last = jet.last_of(sender).await.map_err(|problem| {
            self.counters.away.add(1);
            self.reports.trouble(Source::Put, problem);
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
                self.reports.over(Source::Put);
                Ok(())
            }
            Err(error) => Err(self.refuse(&error)),
        }
    }

    fn refuse(&self, error: &PublishError) -> Refusal {
        if is_full(error) {
            self.counters.full.add(1);
            let problem = format!(
                "the stream {} is full: its batches have to reach the store first",
                self.settings.stream
            );
            self.reports.trouble(Source::Put, problem);
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
        let problem = format!("cannot put a batch into it: {}", explain(error));
        self.reports.trouble(Source::Put, problem);
        unavailable("the queue does not take the batch; send it again")
    }

    fn away(&self) -> Refusal {
        self.counters.away.add(1);
        unavailable("the queue is away; send it again")
    }
}

/// Returns what of a batch was not acknowledged before, and what is said about it.
fn new_parts(before: u64, (first, lines): (u64, &[&str])) -> (Receipt, Vec<Part>) {
    let old = before.saturating_add(1).saturating_sub(first);
    let old = usize::try_from(old).unwrap_or(usize::MAX).min(lines.len());
    let new = &lines[old..];
    let from = first.saturating_add(old as u64);
    let parts = message::parts(from, new);
    let receipt = Receipt {
        acknowledged: parts.last().map_or(before, |part| before.max(part.last())),
        stored: new.len() as u64,
        duplicates: old as u64,
        missing: match new.is_empty() {
            true => 0,
            false => first.saturating_sub(before.saturating_add(1)),
        },
    };
    (receipt, parts)
}

/// Returns true if a stream does not take a message because it has no room.
fn is_full(error: &PublishError) -> bool {
    let source = std::error::Error::source(error);
    let answer = source.and_then(|source| source.downcast_ref::<Answer>());
    let description = answer.map(ToString::to_string);
    description.is_some_and(|text| text.contains("maximum") && text.contains("exceeded"))
}

/// Returns an error with its causes, of each the first line: PostgreSQL shows a part of the alert in the next one.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let line = |error: &dyn std::error::Error| {
        let text = error.to_string();
        text.lines().next().map(str::to_owned)
    };
    let mut texts: Vec<String> = line(error).into_iter().collect();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = line(error).filter(|next| !texts.iter().any(|text| text.ends_with(next)));
        texts.extend(next);
        cause = error.source();
    }
    texts.join(": ")
}

fn unavailable(message: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_acknowledges_what_is_new_in_it_and_an_empty_one_nothing() {
        let said = |before, first, lines: &[&str]| {
            let (receipt, parts) = new_parts(before, (first, lines));
            let counts = (receipt.stored, receipt.duplicates, receipt.missing);
            (receipt.acknowledged, counts, parts.len())
        };
        assert_eq!(said(3, 4, &["a", "b"]), (5, (2, 0, 0), 1));
        assert_eq!(said(3, 2, &["a", "b", "c"]), (4, (1, 2, 0), 1));
        assert_eq!(said(9, 2, &["a", "b"]), (9, (0, 2, 0), 0));
        assert_eq!(said(3, 9, &["a"]), (9, (1, 0, 5), 1));
        assert_eq!(said(3, 9, &[]), (3, (0, 0, 0), 0));
    }
}
