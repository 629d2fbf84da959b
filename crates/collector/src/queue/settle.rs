//! What becomes of a batch that the store has answered to.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{AckKind, Message};
use store::{Batch, Fault, Receipt, StoreError};

use super::drain::{Drain, PAUSE, Taken};
use super::report::Source;
use super::{explain, is_full};

/// Time after which a batch whose predecessor is not stored comes again.
const EARLY: Duration = Duration::from_millis(300);

/// Time after which a batch comes again that can neither be stored nor set aside. It keeps one of the places for batches in work,
/// and is not to keep the server busy as well.
const FULL: Duration = Duration::from_secs(30);

impl Drain<'_> {
    /// Removes a stored batch from the queue, or decides what becomes of another one. Fails if the next ones had better wait.
    pub(super) async fn conclude(
        &mut self,
        taken: &Taken,
        answer: Result<Receipt, StoreError>,
        rest: &[Taken],
    ) -> Result<(), ()> {
        match answer {
            Ok(receipt) => self.stored(taken, &receipt).await,
            Err(StoreError::OutOfOrder { .. }) => self.early(taken, rest).await,
            Err(error) => self.failed(taken, &error, rest).await,
        }
    }

    async fn stored(&mut self, taken: &Taken, receipt: &Receipt) -> Result<(), ()> {
        let queue = self.queue;
        queue.count(receipt);
        queue.remember(taken.agent, receipt.acknowledged);
        queue.reports.over(Source::Write);
        self.failing.stored(place(&taken.message));
        self.answer(&taken.message, AckKind::Ack).await
    }

    /// Lets a batch wait whose predecessor is still in the queue. Without one in it, what is missing never came.
    async fn early(&mut self, taken: &Taken, rest: &[Taken]) -> Result<(), ()> {
        let message = &taken.message;
        let first = self.jet.first_of(&message.subject).await.map_err(|text| {
            self.queue.reports.trouble(Source::Take, text);
        })?;
        if first.is_some_and(|first| place(message).is_none_or(|own| first < own)) {
            self.queue.counters.delayed.add(1);
            return self.answer(message, AckKind::Nak(Some(EARLY))).await;
        }
        let batch = match self.read(message) {
            Ok(batch) => batch,
            Err(why) => return self.set_aside(message, &why).await,
        };
        match self.store(batch, message, rest).await {
            Ok(receipt) => self.stored(taken, &receipt).await,
            Err(error) => self.failed(taken, &error, rest).await,
        }
    }

    /// Lets a batch come again that the store did not take, or sets it aside if it is the batch that is at fault.
    async fn failed(
        &mut self,
        taken: &Taken,
        error: &StoreError,
        rest: &[Taken],
    ) -> Result<(), ()> {
        let message = &taken.message;
        if matches!(error, StoreError::UnknownAgent { .. }) {
            return self.set_aside(message, &error.to_string()).await;
        }
        self.queue.health.note(error);
        let fault = error.fault();
        if matches!(fault, Fault::Away | Fault::Later) {
            self.again(message, error).await?;
            return Err(());
        }
        let why = explain(error);
        let is_alone = place(message).is_some_and(|place| self.failing.count(place, fault));
        if is_alone && self.stores_others(taken, rest).await {
            return self.set_aside(message, &why).await;
        }
        let text = format!("cannot store a batch of agent {}: {why}", taken.agent.0);
        self.queue.reports.trouble(Source::Batch, text);
        // Others need not wait.
        self.answer(message, AckKind::Nak(Some(PAUSE))).await
    }

    /// Returns true if the store commits a change for the same agent that has no records.
    async fn stores_others(&self, taken: &Taken, rest: &[Taken]) -> bool {
        let nothing = Batch {
            sender: taken.agent,
            first: None,
            records: Vec::new(),
            received_ns: 0,
        };
        let stored = self.store(nothing, &taken.message, rest).await;
        stored.is_ok()
    }

    /// Asks for a batch to come again, and says why.
    pub(super) async fn again(&self, message: &Message, error: &StoreError) -> Result<(), ()> {
        let text = format!("its batches wait for the store: {}", explain(error));
        self.queue.reports.trouble(Source::Write, text);
        self.answer(message, AckKind::Nak(Some(PAUSE))).await
    }

    /// Puts a batch that can never be stored into a stream of its own, with the reason.
    pub(super) async fn set_aside(&mut self, message: &Message, why: &str) -> Result<(), ()> {
        let jet = self.jet;
        let mut headers = own_headers(message);
        headers.insert("Tollgate-Subject", message.subject.as_str());
        let reason: String = why.chars().filter(|c| !c.is_control()).collect();
        headers.insert("Tollgate-Reason", &*reason);
        let mut kept = async_nats::jetstream::message::PublishMessage::build()
            .payload(message.payload.clone())
            .headers(headers);
        if let Some(place) = place(message) {
            kept = kept.message_id(format!("aside-{place}"));
        }
        let sent = jet.context.send_publish(jet.aside_subject(), kept).await;
        let kept = match sent {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let (pause, help) = match is_full(&error) {
                true => (FULL, jet.aside_help()),
                false => (PAUSE, String::new()),
            };
            let text = format!(
                "cannot set a batch aside ({why}): {}{help}",
                explain(&error)
            );
            self.queue.reports.trouble(Source::Aside, text);
            return self.answer(message, AckKind::Nak(Some(pause))).await;
        }
        if let Some(place) = place(message) {
            self.failing.forget(place);
        }
        self.queue.reports.over(Source::Aside);
        self.queue.counters.set_aside.add(1);
        let event = format!("a batch is set aside: {why}");
        self.queue.reports.event(&event);
        self.answer(message, AckKind::Ack).await
    }
}

/// Returns the headers of a message without those that JetStream obeys: its stream and its identifier are those of the queue.
fn own_headers(message: &Message) -> HeaderMap {
    let mut own = HeaderMap::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        let text: &str = name.as_ref();
        if !text.to_ascii_lowercase().starts_with("nats-") {
            for value in values {
                own.append(name.clone(), value.clone());
            }
        }
    }
    own
}

/// Returns the place of a batch in the stream.
fn place(message: &Message) -> Option<u64> {
    let info = message.info().ok()?;
    Some(info.stream_sequence)
}
