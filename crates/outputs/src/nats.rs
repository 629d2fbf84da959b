//! The `nats` channel: publishes each alert to a NATS server.
//!
//! The client is `async-nats`, on a runtime of the channel's thread. What it leaves to its user is
//! here: an alert counts as delivered when the server has answered, and names are looked up without
//! the C library.

mod address;
mod client;
mod connection;
mod credentials;
mod error;
mod letter;
mod settings;
mod subject;

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};

use self::address::Address;
pub use self::client::{NatsLink, NatsServers};
use self::connection::{Connection, Login, Unnamed, check_system_store, client_config, is_refusal};
use self::credentials::Credentials;
pub use self::error::NatsError;
use self::letter::{Letter, State};
pub use self::settings::{JetStream, NatsOutput, NatsTls};
use self::subject::Subject;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::outage::Outage;
use crate::net::tls::TlsOptions;

/// Options of [`NatsChannel`].
#[derive(Clone, Debug)]
struct NatsOptions {
    urls: Vec<String>,
    subject: String,
    credentials: Credentials,
    /// TLS options; `None` for unencrypted connections.
    tls: Option<TlsOptions>,
    /// Wait for a JetStream acknowledgement.
    jetstream: bool,
    /// Name of the stream that must acknowledge; empty for any.
    stream: String,
    /// Time limit for one attempt to connect, or to publish and receive the answer.
    timeout: Duration,
}

/// Publishes alerts.
///
/// An alert counts as delivered when a message that this client sends to itself after the alert has
/// arrived or, with JetStream, when a stream has acknowledged the alert. Until then the channel publishes it again on a new
/// connection, so subscribers may see an alert twice. A stream stores it once, because each alert
/// has an identifier.
struct NatsChannel {
    options: NatsOptions,
    addresses: Vec<Address>,
    /// Index of the server to try first: the last one that accepted a connection.
    first: usize,
    subject: Subject,
    tls: Option<Unnamed>,
    connection: Option<Connection>,
    /// Unique prefix of this channel's alert identifiers.
    unique: String,
    /// Number of alerts that have received an identifier.
    count: u64,
    outage: Outage,
    peer: Arc<Peer>,
}

impl fmt::Debug for NatsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsChannel")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl NatsChannel {
    /// Reads addresses, certificates and secrets, so that a wrong one fails at the start. Connects
    /// with the first alert.
    fn open(options: NatsOptions) -> Result<Self, NatsError> {
        let (addresses, tls) = servers(&options.urls, &options.credentials, options.tls.as_ref())?;
        let subject = Subject::parse(&options.subject).map_err(|problem| NatsError::Subject {
            subject: options.subject.clone(),
            problem,
        })?;
        if options
            .stream
            .contains([' ', '.', '*', '>', '\r', '\n', '\t'])
        {
            let problem = format!("`{}` is no name of a stream", options.stream);
            return Err(NatsError::Setting { problem });
        }
        Ok(Self {
            addresses,
            first: 0,
            subject,
            tls,
            connection: None,
            unique: unique()?,
            count: 0,
            outage: Outage::default(),
            peer: Arc::default(),
            options,
        })
    }

    /// Publishes pending alerts until none is left or the server is away for too long. Returns the
    /// last error.
    fn publish(&mut self, letters: &mut [Letter]) -> Result<(), io::Error> {
        loop {
            let result = self.attempt(letters);
            let untaken = letters.iter().find_map(|letter| match &letter.state {
                State::Untaken(why) => Some(io::Error::other(why.clone())),
                _ => None,
            });
            let error = match (result, untaken) {
                (Ok(()), None) => {
                    self.outage.is_over(&self.peer);
                    return Ok(());
                }
                (Ok(()), Some(error)) => error,
                (Err(error), _) => error,
            };
            if is_refusal(&error) {
                for letter in letters.iter_mut().filter(|letter| letter.is_open()) {
                    letter.state = State::Refused(error.to_string());
                }
                return Err(error);
            }
            if error.kind() == ErrorKind::TimedOut {
                self.peer.count_timeout();
            }
            if !self.outage.wait(&self.peer, &error) {
                return Err(error);
            }
        }
    }

    /// Publishes pending alerts once. A connection that fails is not used again.
    fn attempt(&mut self, letters: &mut [Letter]) -> io::Result<()> {
        let open = self.connection.take();
        let mut connection = match open.and_then(Connection::still_open) {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let deadline = Instant::now() + self.options.timeout;
        connection.publish(letters, deadline)?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Connects to the first reachable server.
    fn connect(&mut self) -> io::Result<Connection> {
        let login = Login {
            credentials: &self.options.credentials,
            tls: self.tls.as_ref(),
            jetstream: self.options.jetstream,
        };
        let mut last = None;
        for step in 0..self.addresses.len() {
            let at = (self.first + step) % self.addresses.len();
            let deadline = Instant::now() + self.options.timeout;
            match Connection::open(&self.addresses[at], &login, deadline) {
                Ok(connection) => {
                    self.first = at;
                    return Ok(connection);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ErrorKind::NotFound.into()))
    }
}

impl Channel for NatsChannel {
    fn name(&self) -> &str {
        "nats"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let stream = &self.options.stream;
        let stream = (!stream.is_empty()).then_some(stream);
        let mut letters = Vec::with_capacity(alerts.len());
        for alert in alerts {
            self.count += 1;
            letters.push(Letter {
                subject: self.subject.of(alert.alert()),
                id: format!("{}-{}", self.unique, self.count),
                stream: stream.cloned(),
                payload: alert.line().trim_end_matches('\n').as_bytes().to_vec(),
                state: State::Waiting,
            });
        }
        let result = self.publish(&mut letters);
        let refusal = letters.iter().find_map(|letter| match &letter.state {
            State::Refused(why) => Some(io::Error::other(why.clone())),
            _ => None,
        });
        let Some(source) = result.err().or(refusal) else {
            return Ok(());
        };
        let is_refused = |state: &State| matches!(state, State::Refused(_) | State::Untaken(_));
        let count = |is: &dyn Fn(&State) -> bool| {
            let states = letters.iter().map(|letter| &letter.state);
            states.filter(|state| is(state)).count()
        };
        Err(DeliveryError {
            delivered: count(&|state| *state == State::Delivered),
            rejected: count(&is_refused),
            ..DeliveryError::of_all(source)
        })
    }

    /// Reads certificates again and drops the connection. Secrets are read for each connection.
    fn reopen(&mut self) -> io::Result<()> {
        let tls = client_config(self.options.tls.as_ref());
        self.tls = tls.map_err(io::Error::other)?;
        self.connection = None;
        self.outage.end();
        Ok(())
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Returns the addresses of the servers and the TLS configuration, and reads certificates and secrets, so that a wrong one
/// fails at the start.
fn servers(
    urls: &[String],
    credentials: &Credentials,
    tls: Option<&TlsOptions>,
) -> Result<(Vec<Address>, Option<Unnamed>), NatsError> {
    let addresses = urls.iter().map(|url| {
        Address::parse(url).map_err(|problem| NatsError::Url {
            url: url.clone(),
            problem,
        })
    });
    let addresses: Vec<_> = addresses.collect::<Result<_, _>>()?;
    if tls.is_none() && addresses.iter().any(|address| address.tls) {
        let problem = "an address with tls:// needs tls.enabled".to_owned();
        return Err(NatsError::Setting { problem });
    }
    credentials.check()?;
    let tls = client_config(tls)?;
    if tls.is_some() {
        check_system_store().map_err(|problem| NatsError::Setting { problem })?;
    }
    Ok((addresses, tls))
}

/// Returns 24 digits that are unique to this channel.
fn unique() -> Result<String, NatsError> {
    let mut bytes = [0; 12];
    let random = SystemRandom::new().fill(&mut bytes);
    random.map_err(|_unspecified| NatsError::Setting {
        problem: "the system gives no random numbers".to_owned(),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
