//! From the queue to the store. A batch leaves the queue when the store has committed it.

use std::fmt::Display;
use std::time::Duration;

use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt as _;
use store::{AgentId, Batch, Receipt, StoreError};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::failing::Failing;
use super::link::{ACK_WAIT, Jet};
use super::report::Source;
use super::{Queue, message};

/// Batches that are taken at once: they bound the memory, and share transactions.
const AT_ONCE: usize = 32;

/// How long one request waits for the next batch.
const WAIT: Duration = Duration::from_secs(2);

/// Time beyond that within which NATS says that there is none, and time limit for the batches that come with the first one. The
/// server that has to answer may have died, while the one of this connection lives.
const SILENCE: Duration = Duration::from_secs(2);

/// Requests in succession that may fail before everything is prepared anew: the consumer or the stream may be gone.
const FAILURES: u32 = 3;

/// Pause after a failure of the store or of NATS.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// What the store answers to a batch.
type Answer = oneshot::Receiver<Result<Receipt, StoreError>>;

/// A batch that is being written.
pub(super) struct Taken {
    pub(super) message: Message,
    pub(super) agent: AgentId,
    answer: Answer,
}

/// Writes from the queue to the store over one connection.
pub(super) struct Drain<'a> {
    pub(super) queue: &'a Queue,
    pub(super) jet: &'a Jet,
    pub(super) failing: Failing,
}

/// Writes batches until none can be taken any more, and returns the cause.
pub(super) async fn run(queue: &Queue, jet: &Jet) -> String {
    let mut drain = Drain {
        queue,
        jet,
        failing: Failing::default(),
    };
    let mut failures = 0;
    loop {
        match next(jet).await {
            Ok(messages) => {
                failures = 0;
                queue.reports.over(Source::Take);
                if drain.round(messages).await.is_err() {
                    sleep(PAUSE).await;
                }
            }
            Err(problem) => {
                failures += 1;
                if failures >= FAILURES {
                    return problem;
                }
                queue.reports.trouble(Source::Take, problem);
                sleep(PAUSE).await;
            }
        }
    }
}

/// Returns the next batches, or none if none came for a while.
async fn next(jet: &Jet) -> Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    let first = timeout(WAIT + SILENCE, first(jet, &mut messages)).await;
    match first {
        Ok(first) => first?,
        Err(_elapsed) if messages.is_empty() => return Err(cannot_take(&"no answer in time")),
        Err(_elapsed) => {}
    }
    if !messages.is_empty() {
        // Those that came are stored first. One that comes too late is delivered again.
        let _ = timeout(SILENCE, more(jet, &mut messages)).await;
    }
    Ok(messages)
}

fn cannot_take(cause: &dyn Display) -> String {
    format!("cannot take batches from it: {cause}")
}

/// Waits for a batch.
async fn first(jet: &Jet, messages: &mut Vec<Message>) -> Result<(), String> {
    let first = jet.consumer.batch().max_messages(1).expires(WAIT);
    let mut first = first.messages().await.map_err(|e| cannot_take(&e))?;
    while let Some(message) = first.next().await {
        messages.push(message.map_err(|error| cannot_take(&error))?);
    }
    Ok(())
}

/// Takes the batches that are there.
async fn more(jet: &Jet, messages: &mut Vec<Message>) {
    let more = jet.consumer.fetch().max_messages(AT_ONCE - 1).messages();
    let Ok(mut more) = more.await else { return };
    while let Some(Ok(message)) = more.next().await {
        messages.push(message);
    }
}

impl Drain<'_> {
    /// Writes batches in their order. Fails if the next ones had better wait.
    async fn round(&mut self, messages: Vec<Message>) -> Result<(), ()> {
        let mut result = Ok(());
        let mut taken = Vec::new();
        for message in messages {
            if message.info().is_ok_and(|info| info.delivered > 1) {
                self.queue.counters.redelivered.add(1);
            }
            match self.read(&message) {
                Ok(batch) => match self.take(message, batch).await {
                    Ok(one) => taken.push(one),
                    Err(()) => result = Err(()),
                },
                Err(why) => result = result.and(self.set_aside(&message, &why).await),
            }
        }
        let mut rest = taken.into_iter();
        while let Some(mut one) = rest.next() {
            let answer = wait(&mut one.answer, &one.message, rest.as_slice()).await;
            result = result.and(self.conclude(&one, answer, rest.as_slice()).await);
        }
        if self.failing.is_empty() {
            self.queue.reports.over(Source::Batch);
        }
        result
    }

    /// Submits a batch, or asks for it to come again.
    async fn take(&mut self, message: Message, batch: Batch) -> Result<Taken, ()> {
        let agent = batch.sender;
        match self.submit(batch, true) {
            Ok(answer) => Ok(Taken {
                message,
                agent,
                answer,
            }),
            Err(error) => {
                self.again(&message, &error).await?;
                Err(())
            }
        }
    }

    /// Reads the batch of a message, or says why it cannot be stored.
    pub(super) fn read(&self, message: &Message) -> Result<Batch, String> {
        let agent = self.jet.agent(&message.subject);
        let agent = agent.ok_or("its subject names no agent")?;
        let queued = message::decode(message.headers.as_ref(), &message.payload)?;
        let records = (self.queue.read_records)(&queued.text, queued.received_ns)
            .map_err(|refusal| refusal.message)?;
        Ok(Batch {
            sender: agent,
            first: Some(queued.first),
            records,
            received_ns: queued.received_ns,
        })
    }

    /// Submits a batch. One that must follow is refused if a record before it is not stored.
    pub(super) fn submit(&self, batch: Batch, must_follow: bool) -> Result<Answer, StoreError> {
        let (done, answer) = oneshot::channel();
        let done = Box::new(move |result| {
            // Nobody waits if the connection has ended: the batch comes again.
            let _ = done.send(result);
        });
        match must_follow {
            true => self.queue.store.append_next(batch, done)?,
            false => self.queue.store.append(batch, done)?,
        }
        Ok(answer)
    }

    /// Stores a batch that need not follow, and returns when it is committed.
    pub(super) async fn store(
        &self,
        batch: Batch,
        message: &Message,
        rest: &[Taken],
    ) -> Result<Receipt, StoreError> {
        let mut answer = self.submit(batch, false)?;
        wait(&mut answer, message, rest).await
    }

    /// Confirms a batch or asks for it to come again.
    pub(super) async fn answer(&self, message: &Message, kind: AckKind) -> Result<(), ()> {
        message.ack_with(kind).await.map_err(|error| {
            let text = format!("cannot confirm a batch: {error}");
            self.queue.reports.trouble(Source::Take, text);
        })
    }
}

/// Waits for the answer of the store. While it is slow, no other server is to begin with this batch and those that wait.
async fn wait(
    answer: &mut Answer,
    message: &Message,
    rest: &[Taken],
) -> Result<Receipt, StoreError> {
    loop {
        match timeout(ACK_WAIT / 3, &mut *answer).await {
            Ok(answer) => return answer.unwrap_or(Err(StoreError::Stopped)),
            Err(_elapsed) => {
                progress(message).await;
                for waiting in rest {
                    progress(&waiting.message).await;
                }
            }
        }
    }
}

async fn progress(message: &Message) {
    // If it gets lost, the batch comes again, which the store notices.
    let _ = message.ack_with(AckKind::Progress).await;
}
