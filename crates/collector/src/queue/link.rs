//! The connection to NATS, its streams, and the consumer that the store is written from.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use outputs::NatsServers;
use store::AgentId;

use super::message::{self, MAX_MESSAGE};
use super::report::Source;
use super::{Queue, QueueSettings, drain};

/// Time limit for an answer of NATS.
pub(super) const REQUEST: Duration = Duration::from_secs(5);

/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(500);

/// Time after which a batch that a server has not confirmed is delivered again, to another one or the same.
pub(super) const ACK_WAIT: Duration = Duration::from_secs(5);

/// Batches that are delivered and not confirmed at most, over all servers.
const IN_WORK: i64 = 256;

/// Time within which JetStream recognises a batch that comes again. The store recognises it ever after.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Part of the size of the stream that batches set aside may have.
const ASIDE: u64 = 8;

/// Name of the consumer.
const CONSUMER: &str = "store";

/// A connection with everything that is needed.
pub(super) struct Jet {
    pub(super) context: Context,
    pub(super) stream: Stream,
    pub(super) aside: Stream,
    pub(super) consumer: Consumer<pull::Config>,
    name: String,
}

impl Jet {
    /// Returns the subject of an agent's batches.
    pub(super) fn subject(&self, agent: AgentId) -> String {
        format!("{}.batch.{}", self.name, agent.0)
    }

    /// Returns the subject for a batch that is set aside.
    pub(super) fn aside_subject(&self) -> String {
        format!("{}.aside", self.name)
    }

    /// Returns what to do while that stream is full.
    pub(super) fn aside_help(&self) -> String {
        let name = &self.name;
        format!(
            "\n  help: look at the stream {name}-aside and purge it: {IN_WORK} such batches would stop the queue"
        )
    }

    /// Returns the agent of a subject.
    pub(super) fn agent(&self, subject: &str) -> Option<AgentId> {
        let rest = subject.strip_prefix(&self.name)?.strip_prefix(".batch.")?;
        rest.parse().ok().map(AgentId)
    }

    /// Returns the number of the last record of an agent in the stream, 0 if there is none.
    pub(super) async fn last_of(&self, agent: AgentId) -> Result<u64, String> {
        let subject = self.subject(agent);
        match self.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(found) => Ok(message::last(&found.headers).unwrap_or(0)),
            Err(error) if is_none(&error.kind()) => Ok(0),
            Err(error) => Err(format!("cannot read the last batch of an agent: {error}")),
        }
    }

    /// Returns the place in the stream of the first batch of a subject.
    pub(super) async fn first_of(&self, subject: &str) -> Result<Option<u64>, String> {
        let found = self.stream.get_first_raw_message_by_subject(subject, 1);
        match found.await {
            Ok(found) => Ok(Some(found.sequence)),
            Err(error) if is_none(&error.kind()) => Ok(None),
            Err(error) => Err(format!("cannot read the first batch of an agent: {error}")),
        }
    }
}

fn is_none(kind: &LastRawMessageErrorKind) -> bool {
    match kind {
        LastRawMessageErrorKind::NoMessageFound => true,
        LastRawMessageErrorKind::JetStream(error) => {
            error.error_code() == ErrorCode::NO_MESSAGE_FOUND
        }
        _ => false,
    }
}

/// Keeps a connection, and writes from the queue to the store as long as there is one.
pub(crate) async fn run(queue: Arc<Queue>) {
    let servers = queue
        .servers
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take();
    let Some(mut servers) = servers else { return };
    let mut failures = 0_u32;
    loop {
        let problem = connected(&queue, &mut servers).await;
        let was_connected = queue.set_jet(None);
        failures = if was_connected {
            1
        } else {
            failures.saturating_add(1)
        };
        // Another server of a cluster may be there at once, and the address of this server is what a start says first.
        if failures > 1 {
            queue.reports.trouble(Source::Link, problem);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Connects, works until the connection ends, and returns the cause.
async fn connected(queue: &Queue, servers: &mut NatsServers) -> String {
    let mut link = match servers.connect().await {
        Ok(link) => link,
        Err(error) => return error.to_string(),
    };
    let client = link.client.clone();
    let jet = tokio::select! {
        prepared = prepare(queue, &client) => prepared,
        error = link.ended() => Err(error.to_string()),
    };
    let jet = match jet {
        Ok(jet) => Arc::new(jet),
        Err(problem) => return problem,
    };
    queue.set_jet(Some(Arc::clone(&jet)));
    queue.reports.over(Source::Link);
    tokio::select! {
        error = link.ended() => error.to_string(),
        problem = drain::run(queue, &jet) => problem,
    }
}

/// Makes streams and consumer, or checks those that exist.
async fn prepare(queue: &Queue, client: &async_nats::Client) -> Result<Jet, String> {
    let settings = &queue.settings;
    if client.max_payload() < MAX_MESSAGE {
        return Err(format!(
            "the server takes messages of {} bytes: set its max_payload to {MAX_MESSAGE} at least",
            client.max_payload()
        ));
    }
    let context = ContextBuilder::new()
        .timeout(REQUEST)
        .ack_timeout(REQUEST)
        .build(client.clone());
    let name = &settings.stream;
    let stream = stream(queue, &context, batches(settings)).await?;
    let aside = self::stream(queue, &context, set_aside(settings)).await?;
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: IN_WORK,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await;
    let consumer = consumer
        .map_err(|error| format!("cannot make the consumer {CONSUMER} of {name}: {error}"))?;
    Ok(Jet {
        context,
        stream,
        aside,
        consumer,
        name: name.clone(),
    })
}

fn batches(settings: &QueueSettings) -> Config {
    Config {
        name: settings.stream.clone(),
        subjects: vec![format!("{}.batch.*", settings.stream)],
        // A batch is deleted when the store has it.
        retention: RetentionPolicy::WorkQueue,
        max_bytes: signed(settings.max_bytes),
        max_messages: signed(settings.max_batches),
        duplicate_window: DUPLICATES,
        ..common(settings)
    }
}

fn set_aside(settings: &QueueSettings) -> Config {
    Config {
        name: format!("{}-aside", settings.stream),
        subjects: vec![format!("{}.aside", settings.stream)],
        retention: RetentionPolicy::Limits,
        max_bytes: signed(settings.max_bytes / ASIDE),
        max_messages: signed(settings.max_batches),
        ..common(settings)
    }
}

fn common(settings: &QueueSettings) -> Config {
    Config {
        // A full stream refuses; it deletes nothing.
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        max_consumers: -1,
        max_messages_per_subject: -1,
        max_message_size: -1,
        ..Config::default()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the stream. Makes it if it is missing; enlarges one that exists.
async fn stream(queue: &Queue, context: &Context, wanted: Config) -> Result<Stream, String> {
    let name = wanted.name.clone();
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot {what} the stream {name}: {error}")
    };
    let found = match context.get_stream(&name).await {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                GetStreamErrorKind::JetStream(answer)
                    if answer.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    let made = context.create_stream(wanted).await;
                    made.map_err(|error| cannot("make", &error))
                }
                _ => Err(cannot("find", &error)),
            };
        }
    };
    let has = &found.cached_info().config;
    if !is_ours(has, &wanted) {
        return Err(format!(
            "the stream {name} exists and is no queue of tollgate; name another with --queue-stream"
        ));
    }
    let (changed, notices) = enlarged(has, &wanted);
    for notice in notices {
        queue.reports.notice(notice);
    }
    if let Some(changed) = changed {
        let changed = context.update_stream(changed).await;
        changed.map_err(|error| cannot("change", &error))?;
    }
    Ok(found)
}

/// Returns true if a stream keeps and refuses what a queue has to.
fn is_ours(has: &Config, wanted: &Config) -> bool {
    let is_unlimited = |bound: i64| bound <= 0;
    let least = i32::try_from(MAX_MESSAGE).unwrap_or(i32::MAX);
    has.retention == wanted.retention
        && has.discard == wanted.discard
        && has.storage == wanted.storage
        && has.subjects == wanted.subjects
        && has.max_age == wanted.max_age
        && is_unlimited(has.max_messages_per_subject)
        && (is_unlimited(has.max_message_size.into()) || has.max_message_size >= least)
        // Without answers nothing could be acknowledged, and a sealed stream takes and gives nothing.
        && !has.no_ack
        && !has.sealed
}

/// Returns the larger bounds and the larger number of replicas, `None` if the stream has them, and what it has more than wanted.
///
/// A bound is never lowered: NATS would delete the oldest batches, which are acknowledged, and servers with different options
/// would change it again and again.
fn enlarged(has: &Config, wanted: &Config) -> (Option<Config>, Vec<String>) {
    let mut notices = Vec::new();
    let mut larger = |has: i64, wants: i64, what: &str| {
        // 0 and -1 are no bound.
        let bound = match has {
            ..=0 => format!("no bound on {what}"),
            _ if has > wants => format!("its bound of {has} {what}"),
            _ => return wants,
        };
        notices.push(format!(
            "the stream {} keeps {bound}, which is not lowered to {wants}: NATS would delete batches\n  \
             help: wait until it is empty, and use `nats stream edit`",
            wanted.name
        ));
        has
    };
    let max_bytes = larger(has.max_bytes, wanted.max_bytes, "bytes");
    let max_messages = larger(has.max_messages, wanted.max_messages, "batches");
    let num_replicas = has.num_replicas.max(wanted.num_replicas);
    let is_same = num_replicas == has.num_replicas
        && max_bytes == has.max_bytes
        && max_messages == has.max_messages;
    let changed = Config {
        num_replicas,
        max_bytes,
        max_messages,
        ..has.clone()
    };
    ((!is_same).then_some(changed), notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            name: "q".to_owned(),
            max_bytes: 1000,
            max_messages: 20,
            num_replicas: 1,
            max_messages_per_subject: -1,
            max_message_size: -1,
            ..Config::default()
        }
    }

    #[test]
    fn a_bound_of_a_stream_is_enlarged_and_never_lowered() {
        let smaller = Config {
            max_bytes: 900,
            max_messages: 10,
            ..config()
        };
        let (changed, notices) = enlarged(&config(), &smaller);
        assert_eq!(changed, None);
        assert_eq!(notices.len(), 2);
        for (notice, numbers) in notices.iter().zip([["1000", "900"], ["20", "10"]]) {
            assert!(numbers.iter().all(|n| notice.contains(n)), "{notice}");
        }
        // Servers with different options leave it alone in the end.
        assert_eq!(enlarged(&smaller, &config()), (Some(config()), Vec::new()));
        assert_eq!(enlarged(&config(), &config()), (None, Vec::new()));
        let other = Config {
            max_bytes: 2000,
            max_messages: 10,
            num_replicas: 3,
            ..config()
        };
        let (changed, notices) = enlarged(&config(), &other);
        let changed = changed.expect("it is changed");
        let bounds = (changed.max_bytes, changed.max_messages);
        assert_eq!((bounds, changed.num_replicas), ((2000, 20), 3));
        assert_eq!(notices.len(), 1);
        let unlimited = Config {
            max_bytes: -1,
            ..config()
        };
        let (changed, notices) = enlarged(&unlimited, &config());
        assert_eq!(changed, None);
        assert!(notices[0].contains("no bound on bytes"), "{notices:?}");
    }

    #[test]
    fn a_stream_that_keeps_or_takes_less_than_a_queue_is_none_of_ours() {
        assert!(is_ours(&config(), &config()));
        let changes: [fn(&mut Config); 5] = [
            |it| it.max_messages_per_subject = 1,
            |it| it.max_message_size = 1000,
            |it| it.no_ack = true,
            |it| it.sealed = true,
            |it| it.max_age = Duration::from_secs(1),
        ];
        for change in changes {
            let mut has = config();
            change(&mut has);
            assert!(!is_ours(&has, &config()), "{has:?}");
        }
    }
}
