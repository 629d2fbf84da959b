//! The `nats` channel: publishes each alert to a NATS server.
//!
//! The client is our own, because it must wait for the server's answer before an alert counts as
//! delivered, look up names without the C library, and work without an asynchronous runtime.

mod address;
mod connection;
mod credentials;
mod settings;
mod subject;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};
use rustls::ClientConfig;
use serde_json::Value;

use self::address::Address;
use self::connection::{Connection, Login, Received};
use self::credentials::Credentials;
pub use self::settings::{JetStream, NatsOutput, NatsTls};
use self::subject::Subject;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::outage::Outage;
use crate::net::tls::{self, TlsError, TlsOptions};

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

/// The options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The address cannot be used.
    #[error("cannot send alerts to `{url}`: {problem}")]
    Url {
        /// The address.
        url: String,
        /// Description of the error.
        problem: String,
    },
    /// The subject template is invalid.
    #[error("cannot use the subject `{subject}`: {problem}")]
    Subject {
        /// The template.
        subject: String,
        /// Description of the error.
        problem: String,
    },
    /// Two settings conflict.
    #[error("cannot use nats_output: {problem}")]
    Setting {
        /// Description of the conflict.
        problem: String,
    },
    /// A secret cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of secrets is invalid.
    #[error("cannot use the credentials in {}: {problem}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        problem: String,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Publishes alerts.
///
/// An alert counts as delivered when the server has answered the ping sent after it or, with
/// JetStream, when a stream has acknowledged it. Until then the channel publishes it again on a new
/// connection, so subscribers may see an alert twice. A stream stores it once, because each alert
/// has an identifier.
struct NatsChannel {
    options: NatsOptions,
    addresses: Vec<Address>,
    /// Index of the server to try first: the last one that accepted a connection.
    first: usize,
    subject: Subject,
    tls: Option<Arc<ClientConfig>>,
    connection: Option<Connection>,
    /// Unique prefix of this channel's alert identifiers and inbox.
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

/// An alert being published.
struct Letter {
    subject: String,
    id: u64,
    payload: Vec<u8>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The server has not answered yet.
    Waiting,
    Delivered,
    /// No stream has stored the alert; a retry may succeed.
    Untaken(String),
    /// The server rejects the alert.
    Refused(String),
}

impl Letter {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Waiting | State::Untaken(_))
    }
}

impl NatsChannel {
    /// Reads addresses, certificates and secrets, so that a wrong one fails at the start. Connects
    /// with the first alert.
    fn open(options: NatsOptions) -> Result<Self, NatsError> {
        let addresses = options.urls.iter().map(|url| {
            Address::parse(url).map_err(|problem| NatsError::Url {
                url: url.clone(),
                problem,
            })
        });
        let addresses: Vec<_> = addresses.collect::<Result<_, _>>()?;
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
        if options.tls.is_none() && addresses.iter().any(|address| address.tls) {
            let problem = "an address with tls:// needs tls.enabled".to_owned();
            return Err(NatsError::Setting { problem });
        }
        options.credentials.answer("")?;
        let tls = options.tls.as_ref().map(client_config).transpose()?;
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
            match error.kind() {
                ErrorKind::PermissionDenied => {
                    for letter in letters.iter_mut().filter(|letter| letter.is_open()) {
                        letter.state = State::Refused(error.to_string());
                    }
                    return Err(error);
                }
                ErrorKind::TimedOut => self.peer.count_timeout(),
                _ => {}
            }
            if !self.outage.wait(&self.peer, &error) {
                return Err(error);
            }
        }
    }

    /// Publishes pending alerts once. A connection that fails is not used again.
    fn attempt(&mut self, letters: &mut [Letter]) -> io::Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => self.still_open(connection)?,
            None => self.connect()?,
        };
        let deadline = Instant::now() + self.options.timeout;
        let mut bytes = Vec::new();
        for letter in letters.iter_mut().filter(|letter| letter.is_open()) {
            letter.state = State::Waiting;
            self.write(letter, connection.max_payload(), &mut bytes);
        }
        bytes.extend(b"PING\r\n");
        connection.send(&bytes, deadline)?;
        let mut has_answered = false;
        let is_waiting = |letter: &Letter| letter.state == State::Waiting;
        while !has_answered || letters.iter().any(is_waiting) {
            match connection.receive(deadline)? {
                Received::Pong => {
                    has_answered = true;
                    if !self.options.jetstream {
                        for letter in letters.iter_mut().filter(|letter| is_waiting(letter)) {
                            letter.state = State::Delivered;
                        }
                    }
                }
                Received::Error(text) => refuse(letters, &text)?,
                Received::Message {
                    subject,
                    status,
                    payload,
                } => {
                    let id = subject.rsplit('.').next().and_then(|id| id.parse().ok());
                    let letter = letters.iter_mut().find(|letter| Some(letter.id) == id);
                    // Other answers are late: they belong to an attempt that has timed out.
                    if let Some(letter) = letter.filter(|letter| letter.is_open()) {
                        letter.state = acknowledged(status, &payload);
                    }
                }
                Received::Other => {}
            }
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Returns the connection, or a new one if the server has closed it since the last alert.
    fn still_open(&mut self, mut connection: Connection) -> io::Result<Connection> {
        match connection.catch_up(Instant::now() + self.options.timeout) {
            Ok(()) => Ok(connection),
            Err(_closed) => self.connect(),
        }
    }

    /// Connects to the first reachable server.
    fn connect(&mut self) -> io::Result<Connection> {
        let inbox = self.options.jetstream.then(|| self.inbox());
        let login = Login {
            credentials: &self.options.credentials,
            tls: self.tls.clone(),
            inbox: inbox.as_deref(),
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

    fn inbox(&self) -> String {
        format!("_INBOX.{}", self.unique)
    }

    /// Writes the message of an alert, or refuses one that would make the server close the
    /// connection.
    fn write(&self, letter: &mut Letter, max: usize, bytes: &mut Vec<u8>) {
        let Letter { subject, id, .. } = &letter;
        let (verb, head) = if self.options.jetstream {
            let mut header = format!("NATS/1.0\r\nNats-Msg-Id: {}-{id}\r\n", self.unique);
            if !self.options.stream.is_empty() {
                let stream = &self.options.stream;
                header.push_str(&format!("Nats-Expected-Stream: {stream}\r\n"));
            }
            header.push_str("\r\n");
            let length = header.len();
            let verb = format!("HPUB {subject} {}.{id} {length}", self.inbox());
            (verb, header)
        } else {
            (format!("PUB {subject}"), String::new())
        };
        let size = head.len() + letter.payload.len();
        if size > max {
            let why = format!("an alert has {size} bytes, and the server takes {max}");
            letter.state = State::Refused(why);
            return;
        }
        bytes.extend(format!("{verb} {size}\r\n{head}").as_bytes());
        bytes.extend(&letter.payload);
        bytes.extend(b"\r\n");
    }
}

impl Channel for NatsChannel {
    fn name(&self) -> &str {
        "nats"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let mut letters = Vec::with_capacity(alerts.len());
        for alert in alerts {
            self.count += 1;
            letters.push(Letter {
                subject: self.subject.of(alert.alert()),
                id: self.count,
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
            dead: false,
            source,
        })
    }

    /// Reads certificates again and drops the connection. Secrets are read for each connection.
    fn reopen(&mut self) -> io::Result<()> {
        let tls = self.options.tls.as_ref().map(client_config).transpose();
        self.tls = tls.map_err(io::Error::other)?;
        self.connection = None;
        self.outage.end();
        Ok(())
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Parses a JetStream answer: `{"stream":"ALERTS","seq":1}`, or an object with `error`.
fn acknowledged(status: Option<u16>, payload: &[u8]) -> State {
    if status == Some(503) {
        return State::Untaken("no stream takes the subject".to_owned());
    }
    let Ok(answer) = serde_json::from_slice::<Value>(payload) else {
        return State::Refused("the answer of the stream is no JSON".to_owned());
    };
    let error = &answer["error"];
    if error.is_null() {
        return match answer["seq"].as_u64() {
            Some(_) => State::Delivered,
            None => State::Refused("the answer is not that of a stream".to_owned()),
        };
    }
    let why = error["description"].as_str().unwrap_or("unknown error");
    let why = format!("the stream answered: {why}");
    // As in HTTP, codes from 500 on are server errors, which may be temporary.
    if error["code"].as_u64().is_some_and(|code| code >= 500) {
        State::Untaken(why)
    } else {
        State::Refused(why)
    }
}

/// Refuses alerts whose subject the server forbids to this client. Any other error ends the
/// connection.
fn refuse(letters: &mut [Letter], text: &str) -> io::Result<()> {
    let message = format!("the server answered: {text}");
    if !text.starts_with("Permissions Violation") {
        return Err(io::Error::other(message));
    }
    let subject = text.split('"').nth(1).unwrap_or_default();
    let concerned = letters
        .iter_mut()
        .filter(|letter| letter.is_open() && letter.subject == subject);
    let mut count = 0;
    for letter in concerned {
        letter.state = State::Refused(message.clone());
        count += 1;
    }
    if count == 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    // Unusable certificates in the system's store are skipped, as by every client.
    roots.add_parsable_certificates(tls::authorities(options)?);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has the versions that it is built with")
        .with_root_certificates(roots);
    let Some(files) = &options.client else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let (chain, key) = tls::client_certificate(files, &provider)?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map(Arc::new).map_err(|error| TlsError::Pem {
        path: files.key.clone(),
        problem: error.to_string(),
    })
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
