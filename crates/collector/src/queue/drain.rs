//! From the queue to the store. A batch leaves the queue when the store has committed it.

use std::convert::Infallible;
use std::time::Duration;

use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt as _;
use store::{AgentId, Batch, Receipt, StoreError};
use tokio::sync::oneshot;

use super::Queue;
use super::link::{ACK_WAIT, Jet};
use super::message;

/// Batches that are taken at once: they bound the memory, and share transactions.
const AT_ONCE: usize = 32;

/// How long one request waits for the next batch.
const WAIT: Duration = Duration::from_secs(2);

/// Pause after a failure of the store or of NATS.
const PAUSE: Duration = Duration::from_secs(1);

/// Time after which a batch whose predecessor is not stored comes again.
const EARLY: Duration = Duration::from_millis(300);

/// What the store answers to a batch.
type Answer = oneshot::Receiver<Result<Receipt, StoreError>>;

/// A batch that is being written.
struct Taken {
    message: Message,
    agent: AgentId,
    answer: Answer,
}

/// Writes batches until the connection ends.
pub(super) async fn run(queue: &Queue, jet: &Jet) -> Infallible {
    loop {
        let problem = match next(jet).await {
            Ok(messages) => round(queue, jet, messages).await.err(),
            Err(problem) => Some(problem),
        };
        if let Some(problem) = problem {
            queue.report(Some(problem));
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Returns the next batches, or none if none came for a while.
async fn next(jet: &Jet) -> Result<Vec<Message>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot take batches from it: {error}");
    let mut messages = Vec::new();
    let first = jet.consumer.batch().max_messages(1).expires(WAIT);
    let mut first = first.messages().await.map_err(|error| failed(&error))?;
    while let Some(message) = first.next().await {
        messages.push(message.map_err(|error| failed(&error))?);
    }
    if messages.is_empty() {
        return Ok(messages);
    }
    let more = jet.consumer.fetch().max_messages(AT_ONCE - 1);
    let mut more = more.messages().await.map_err(|error| failed(&error))?;
    while let Some(message) = more.next().await {
        // Those that came are stored first.
        let Ok(message) = message else { break };
        messages.push(message);
    }
    Ok(messages)
}

/// Writes batches in their order.
async fn round(queue: &Queue, jet: &Jet, messages: Vec<Message>) -> Result<(), String> {
    let mut result = Ok(());
    let mut taken = Vec::new();
    for message in messages {
        if message.info().is_ok_and(|info| info.delivered > 1) {
            queue.counters.redelivered.add(1);
        }
        let batch = match read(queue, jet, &message) {
            Ok(batch) => batch,
            Err(why) => {
                result = result.and(set_aside(queue, jet, &message, &why).await);
                continue;
            }
        };
        let agent = batch.sender;
        match submit(queue, batch, true) {
            Ok(answer) => taken.push(Taken {
                message,
                agent,
                answer,
            }),
            Err(error) => result = result.and(again(&message, &error).await),
        }
    }
    let mut rest = taken.into_iter();
    while let Some(mut one) = rest.next() {
        let answer = loop {
            match tokio::time::timeout(ACK_WAIT / 3, &mut one.answer).await {
                Ok(answer) => break answer.unwrap_or(Err(StoreError::Stopped)),
                // The store is slow: nobody else is to begin with them.
                Err(_elapsed) => {
                    progress(&one.message).await;
                    for waiting in rest.as_slice() {
                        progress(&waiting.message).await;
                    }
                }
            }
        };
        result = result.and(conclude(queue, jet, &one, answer).await);
    }
    result
}

/// Reads the batch of a message, or says why it cannot be stored.
fn read(queue: &Queue, jet: &Jet, message: &Message) -> Result<Batch, String> {
    let agent = jet
        .agent(&message.subject)
        .ok_or("its subject names no agent")?;
    let queued = message::decode(message.headers.as_ref(), &message.payload)?;
    let records = (queue.read_records)(&queued.text, queued.received_ns)
        .map_err(|refusal| refusal.message)?;
    Ok(Batch {
        sender: agent,
        first: Some(queued.first),
        records,
        received_ns: queued.received_ns,
    })
}

/// Submits a batch. One that must follow is refused if a record before it is not stored.
fn submit(queue: &Queue, batch: Batch, must_follow: bool) -> Result<Answer, StoreError> {
    let (done, answer) = oneshot::channel();
    let done = Box::new(move |result| {
        // Nobody waits if the connection has ended: the batch comes again.
        let _ = done.send(result);
    });
    match must_follow {
        true => queue.store.append_next(batch, done)?,
        false => queue.store.append(batch, done)?,
    }
    Ok(answer)
}

/// Removes a stored batch from the queue, or decides what becomes of another one.
async fn conclude(
    queue: &Queue,
    jet: &Jet,
    taken: &Taken,
    answer: Result<Receipt, StoreError>,
) -> Result<(), String> {
    let message = &taken.message;
    match answer {
        Ok(receipt) => {
            queue.count(&receipt);
            queue.remember(taken.agent, receipt.acknowledged);
            queue.report(None);
            acknowledge(message).await
        }
        Err(StoreError::OutOfOrder { .. }) => early(queue, jet, message).await,
        Err(error @ StoreError::UnknownAgent { .. }) => {
            set_aside(queue, jet, message, &error.to_string()).await
        }
        Err(error) => {
            queue.known.store_is_away();
            again(message, &error).await
        }
    }
}

/// Lets a batch wait whose predecessor is still in the queue. Without one in it, what is missing never came.
async fn early(queue: &Queue, jet: &Jet, message: &Message) -> Result<(), String> {
    let own = message.info().map(|info| info.stream_sequence);
    let own = own.map_err(|error| format!("a batch has no place in the stream: {error}"))?;
    let first = jet.first_of(&message.subject).await?;
    if first.is_some_and(|first| first < own) {
        queue.counters.delayed.add(1);
        return answer(message, AckKind::Nak(Some(EARLY))).await;
    }
    let batch = read(queue, jet, message)?;
    let stored = match submit(queue, batch, false) {
        Ok(answer) => answer.await.unwrap_or(Err(StoreError::Stopped)),
        Err(error) => Err(error),
    };
    match stored {
        Ok(receipt) => {
            queue.count(&receipt);
            acknowledge(message).await
        }
        Err(error) => again(message, &error).await,
    }
}

/// Puts a batch that can never be stored into a stream of its own, with the reason.
async fn set_aside(queue: &Queue, jet: &Jet, message: &Message, why: &str) -> Result<(), String> {
    let info = message.info().map_err(|error| error.to_string())?;
    let id = format!("aside-{}", info.stream_sequence);
    let mut headers = message.headers.clone().unwrap_or_default();
    headers.insert("Tollgate-Subject", message.subject.as_str());
    let reason: String = why.chars().filter(|c| !c.is_control()).collect();
    headers.insert("Tollgate-Reason", &*reason);
    let kept = async_nats::jetstream::message::PublishMessage::build()
        .payload(message.payload.clone())
        .headers(headers)
        .message_id(id);
    let sent = jet.context.send_publish(jet.aside_subject(), kept).await;
    let kept = match sent {
        Ok(answer) => answer.await,
        Err(error) => Err(error),
    };
    if let Err(error) = kept {
        answer(message, AckKind::Nak(Some(PAUSE))).await?;
        return Err(format!("cannot set a batch aside ({why}): {error}"));
    }
    queue.counters.set_aside.add(1);
    (queue.settings.report)(&format!("warning: the queue: a batch is set aside: {why}"));
    acknowledge(message).await
}

/// Asks for a batch to come again, and says why.
async fn again(message: &Message, error: &StoreError) -> Result<(), String> {
    answer(message, AckKind::Nak(Some(PAUSE))).await?;
    Err(format!("its batches wait for the store: {error}"))
}

async fn acknowledge(message: &Message) -> Result<(), String> {
    answer(message, AckKind::Ack).await
}

async fn answer(message: &Message, kind: AckKind) -> Result<(), String> {
    let sent = message.ack_with(kind).await;
    sent.map_err(|error| format!("cannot confirm a batch: {error}"))
}

async fn progress(message: &Message) {
    // If it gets lost, the batch comes again, which the store notices.
    let _ = message.ack_with(AckKind::Progress).await;
}
