//! One connection to a NATS server: the crate `async-nats` on a runtime of this thread.
//!
//! The client reconnects by itself and forgets then which messages the server has taken. A
//! connection here lives as long as its socket: the channel opens the next one and publishes again
//! what is not acknowledged.

mod errors;
mod tls;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::connection::State as ConnectionState;
use async_nats::jetstream::context::{Context, ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, ConnectOptions, Event, ServerAddr, ServerError, Subscriber};
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, channel};

use self::errors::acknowledged;
pub(super) use self::errors::{connecting, is_refusal};
pub(super) use self::tls::{Unnamed, check_system_store, client_config};
use super::address::Address;
use super::credentials::Credentials;
use super::letter::{Letter, State};
use crate::net::names::Names;

/// Number of alerts between two acknowledgements of core NATS. `async-nats` keeps 128 events that
/// nobody has read and drops others, so this many alerts may be refused at once.
const CHUNK: usize = 64;

/// Events that wait to be read; more than one chunk causes.
const EVENTS: usize = 256;

pub(super) struct Connection {
    client: Client,
    events: Receiver<Event>,
    acknowledgement: Acknowledgement,
    /// Last, so that it outlives what runs on it. Dropping it ends the client's tasks.
    runtime: Runtime,
}

/// Parameters of a new connection.
pub(super) struct Login<'l> {
    pub(super) credentials: &'l Credentials,
    /// TLS configuration. If it is missing, an encrypted connection is refused; otherwise an
    /// unencrypted one.
    pub(super) tls: Option<&'l Unnamed>,
    pub(super) jetstream: bool,
}

/// What acknowledges an alert.
enum Acknowledgement {
    /// A message to this client itself: the server handles the messages of a client in order.
    Barrier {
        inbox: String,
        arrivals: Subscriber,
        count: u64,
    },
    /// The stream's answer.
    Stream(Context),
}

impl Connection {
    /// Connects and logs in. A server that refuses the login is a refusal ([`is_refusal`]).
    pub(super) fn open(
        address: &Address,
        login: &Login<'_>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let mut last = None;
        for ip in Names::default().addresses(&address.host, deadline)? {
            match Self::open_at(SocketAddr::new(ip, address.port), address, login, deadline) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ErrorKind::NotFound.into()))
    }

    fn open_at(
        at: SocketAddr,
        address: &Address,
        login: &Login<'_>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (options, events) = one_socket(address, login, deadline)?;
        let server = server_at(at)?;
        let connected = runtime.block_on(async {
            let client = in_time(deadline, options.connect(server)).await?;
            let client =
                client.map_err(|error| connecting(&error, address, login.tls.is_some()))?;
            let acknowledgement = Acknowledgement::prepare(&client, login.jetstream).await?;
            Ok::<_, io::Error>((client, acknowledgement))
        });
        let (client, acknowledgement) = connected?;
        Ok(Self {
            client,
            events,
            acknowledgement,
            runtime,
        })
    }

    /// Reads what the server has sent meanwhile. Returns `None` if it has closed the connection.
    pub(super) fn still_open(mut self) -> Option<Self> {
        let Self {
            client,
            events,
            runtime,
            ..
        } = &mut self;
        let is_open = runtime.block_on(async {
            settle().await;
            let mut is_sound = true;
            while let Ok(event) = events.try_recv() {
                is_sound &= !matches!(event, Event::Disconnected | Event::ServerError(_));
            }
            is_sound && client.connection_state() == ConnectionState::Connected
        });
        is_open.then_some(self)
    }

    /// Publishes pending alerts and waits for their acknowledgements.
    pub(super) fn publish(&mut self, letters: &mut [Letter], deadline: Instant) -> io::Result<()> {
        let Self {
            client,
            events,
            acknowledgement,
            runtime,
        } = self;
        let mut link = Link { client, events };
        runtime.block_on(async {
            for letters in letters.chunks_mut(CHUNK) {
                let published = async {
                    match acknowledgement {
                        Acknowledgement::Barrier {
                            inbox,
                            arrivals,
                            count,
                        } => {
                            *count += 1;
                            link.publish(letters, &format!("{inbox}.{count}"), arrivals)
                                .await
                        }
                        Acknowledgement::Stream(stream) => link.store(letters, stream).await,
                    }
                };
                in_time(deadline, published).await??;
            }
            Ok(())
        })
    }
}

impl Acknowledgement {
    async fn prepare(client: &Client, jetstream: bool) -> io::Result<Self> {
        if jetstream {
            // The channel has a deadline of its own.
            let context = ContextBuilder::new().timeout(Duration::MAX);
            return Ok(Self::Stream(context.build(client.clone())));
        }
        let inbox = client.new_inbox();
        let arrivals = client.subscribe(format!("{inbox}.*")).await;
        Ok(Self::Barrier {
            inbox,
            arrivals: arrivals.map_err(io::Error::other)?,
            count: 0,
        })
    }
}

/// Returns the options of a client that lives as long as its socket, and what it reports.
pub(super) fn one_socket(
    address: &Address,
    login: &Login<'_>,
    deadline: Instant,
) -> io::Result<(ConnectOptions, Receiver<Event>)> {
    let (sender, events) = channel(EVENTS);
    let is_first = AtomicBool::new(true);
    let options = ConnectOptions::new()
        .name("tollgate")
        .connection_timeout(left(deadline)?)
        .ignore_discovered_servers()
        .require_tls(login.tls.is_some())
        // Also without TLS, or the client would encrypt at a server's wish.
        .tls_client_config(tls::naming(login.tls, &address.host)?)
        // A second attempt never begins: the user opens a new connection.
        .reconnect_delay_callback(move |_| {
            if is_first.swap(false, Ordering::Relaxed) {
                Duration::ZERO
            } else {
                Duration::MAX
            }
        })
        .event_callback(move |event| {
            let sender = sender.clone();
            async move {
                // The connection is being dropped if nobody listens.
                let _ = sender.send(event).await;
            }
        });
    let options = login.credentials.apply(options).map_err(io::Error::other)?;
    Ok((options, events))
}

/// Returns the server at an address, so that `async-nats` does not ask the C library for it.
pub(super) fn server_at(at: SocketAddr) -> io::Result<ServerAddr> {
    format!("nats://{at}").parse()
}

/// The client and its events, while it publishes.
struct Link<'c> {
    client: &'c Client,
    events: &'c mut Receiver<Event>,
}

impl Link<'_> {
    /// Core NATS: what the server has not refused before the barrier arrives, it has taken.
    async fn publish(
        &mut self,
        letters: &mut [Letter],
        barrier: &str,
        arrivals: &mut Subscriber,
    ) -> io::Result<()> {
        for letter in letters.iter_mut().filter(|letter| letter.is_open()) {
            letter.state = State::Waiting;
            let payload = letter.payload.clone().into();
            let sent = self.client.publish(letter.subject.clone(), payload).await;
            if let Err(error) = sent {
                letter.state = errors::unsent(letter, self.client, &error)?;
            }
        }
        let sent = self.client.publish(barrier.to_owned(), "".into()).await;
        sent.map_err(io::Error::other)?;
        let mut is_reached = false;
        while !is_reached {
            tokio::select! {
                // What has arrived counts, though the server has closed the connection after it.
                biased;
                message = arrivals.next() => {
                    let message = message.ok_or_else(closed)?;
                    // Others belong to attempts that have timed out.
                    is_reached = message.subject.as_str() == barrier;
                }
                event = self.events.recv() => is_reached = hear(event, letters, Some(barrier))?,
            }
        }
        self.hear_all(letters, barrier).await?;
        for letter in letters.iter_mut().filter(|letter| letter.is_waiting()) {
            letter.state = State::Delivered;
        }
        Ok(())
    }

    /// JetStream: a stream that has stored an alert says so.
    async fn store(&mut self, letters: &mut [Letter], stream: &Context) -> io::Result<()> {
        let mut answers = Vec::new();
        for (at, letter) in letters.iter_mut().enumerate() {
            if !letter.is_open() {
                continue;
            }
            letter.state = State::Waiting;
            let mut message = PublishMessage::build()
                .payload(letter.payload.clone().into())
                .message_id(&letter.id);
            if let Some(expected) = &letter.stream {
                message = message.expected_stream(expected);
            }
            match stream.send_publish(letter.subject.clone(), message).await {
                Ok(answer) => answers.push((at, answer)),
                Err(error) => letter.state = errors::unstored(letter, self.client, &error)?,
            }
        }
        for (at, answer) in answers {
            self.answer(letters, at, answer).await?;
        }
        Ok(())
    }

    /// Waits until the stream, or an error of the server, decides on one alert.
    async fn answer(
        &mut self,
        letters: &mut [Letter],
        at: usize,
        answer: PublishAckFuture,
    ) -> io::Result<()> {
        let mut answer = answer.into_future();
        while letters[at].is_waiting() {
            tokio::select! {
                biased;
                answer = &mut answer => letters[at].state = acknowledged(answer),
                event = self.events.recv() => {
                    hear(event, letters, None)?;
                }
            }
        }
        Ok(())
    }

    /// Takes over the errors that the server has sent before the barrier: the client's task passes
    /// them on after it has read the barrier.
    async fn hear_all(&mut self, letters: &mut [Letter], barrier: &str) -> io::Result<()> {
        settle().await;
        while let Ok(event) = self.events.try_recv() {
            if matches!(event, Event::ServerError(_)) {
                hear(Some(event), letters, Some(barrier))?;
            }
        }
        Ok(())
    }
}

/// Handles an event. Returns true if the server refuses the barrier, which proves as much as its
/// arrival: that the server has read it.
fn hear(event: Option<Event>, letters: &mut [Letter], barrier: Option<&str>) -> io::Result<bool> {
    match event {
        Some(Event::ServerError(ServerError::Other(text))) => {
            let subject = text.split('"').nth(1);
            if barrier.is_some() && errors::is_publish_violation(&text) && subject == barrier {
                return Ok(true);
            }
            errors::refuse(letters, &text)?;
        }
        Some(Event::ServerError(error)) => return Err(errors::answered(&error)),
        Some(Event::Disconnected | Event::Closed) | None => return Err(closed()),
        Some(_) => {}
    }
    Ok(false)
}

/// Lets the client's tasks run until they wait for the server.
async fn settle() {
    // The socket's task, that of events and once more each, for what the first round has begun.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

pub(super) async fn in_time<T>(
    deadline: Instant,
    future: impl Future<Output = T>,
) -> io::Result<T> {
    let result = tokio::time::timeout_at(deadline.into(), future).await;
    result.map_err(|_elapsed| late())
}

pub(super) fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// Returns the time left until `deadline`, or an error if it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(late())
    } else {
        Ok(left)
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
}
