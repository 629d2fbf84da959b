//! The `otlp` channel: exports each alert to an OpenTelemetry collector as a log record over HTTP.

mod request;
mod settings;

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode};

pub use self::settings::OtlpOutput;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::client::{self, ClientOptions, HttpError};
use crate::net::outage::Outage;
use crate::net::tls::TlsOptions;

/// Encoding of log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Binary Protocol Buffers.
    Protobuf,
    /// JSON.
    Json,
}

impl Encoding {
    fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }
}

/// Options of [`OtlpChannel`].
#[derive(Clone, Debug)]
struct OtlpOptions {
    url: String,
    encoding: Encoding,
    headers: Vec<(String, String)>,
    compress: bool,
    /// Resource attributes.
    resource: Vec<(String, String)>,
    tls: TlsOptions,
    /// Time limit of one request.
    timeout: Duration,
}

/// Exports alerts.
///
/// Errors that the specification calls retryable are retried for some seconds: no connection, no
/// answer, and the statuses 429, 502, 503 and 504, whose `Retry-After` is respected. Any other
/// status except 200 rejects the alerts.
struct OtlpChannel {
    options: OtlpOptions,
    agent: Agent,
    headers: HeaderMap,
    outage: Outage,
    peer: Arc<Peer>,
}

impl fmt::Debug for OtlpChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpChannel")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Result of a request.
#[derive(Debug)]
enum Answer {
    /// Number of rejected records, and the reason.
    Taken(usize, String),
    Refused(String),
    /// Retry after this delay, if the server names one.
    TryAgain(io::Error, Option<Duration>),
}

impl OtlpChannel {
    /// Reads certificates and keys, so that a wrong one fails at the start. Connects with the first
    /// alert.
    fn open(options: OtlpOptions) -> Result<Self, HttpError> {
        Ok(Self {
            agent: agent(&options)?,
            headers: client::headers(&options.headers)?,
            outage: Outage::default(),
            peer: Arc::default(),
            options,
        })
    }

    /// Sends a request until it is accepted or rejected, or the server is away for too long.
    fn send(&mut self, body: &[u8], count: usize) -> Result<(), DeliveryError> {
        let lost = |rejected: usize, source: io::Error| DeliveryError {
            delivered: count.saturating_sub(rejected),
            rejected,
            ..DeliveryError::of_all(source)
        };
        loop {
            match self.post(body) {
                Answer::Taken(rejected, why) => {
                    self.outage.is_over(&self.peer);
                    if rejected == 0 {
                        return Ok(());
                    }
                    return Err(lost(rejected.min(count), io::Error::other(why)));
                }
                Answer::Refused(why) => {
                    self.outage.is_over(&self.peer);
                    return Err(lost(count, io::Error::other(why)));
                }
                Answer::TryAgain(error, after) => {
                    if error.kind() == ErrorKind::TimedOut {
                        self.peer.count_timeout();
                    }
                    if !self.outage.wait(&self.peer, &error) || !self.pause(after) {
                        return Err(DeliveryError::of_all(error));
                    }
                }
            }
        }
    }

    /// Waits for the delay that the server names. Returns false if the channel is closed meanwhile.
    fn pause(&self, after: Option<Duration>) -> bool {
        let end = Instant::now() + after.unwrap_or_default().min(LONGEST_PAUSE);
        while Instant::now() < end && !self.peer.is_killed() {
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(STEP));
        }
        !self.peer.is_killed()
    }

    fn post(&self, body: &[u8]) -> Answer {
        let mut request = self
            .agent
            .post(&self.options.url)
            .header("Content-Type", self.options.encoding.content_type());
        if self.options.compress {
            request = request.header("Content-Encoding", "gzip");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut answer = match request.send(body) {
            Ok(answer) => answer,
            Err(error) => return Answer::TryAgain(client::io_error(error), None),
        };
        let text = match client::read(answer.body_mut()) {
            Ok(text) => text,
            Err(error) => return Answer::TryAgain(error, None),
        };
        let status = answer.status();
        match status {
            status if status.is_success() => self.taken(text.as_deref()),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                let after = answer.headers().get("retry-after");
                let after = after.and_then(|after| after.to_str().ok());
                let after = after.and_then(|after| retry_after(after, Timestamp::now()));
                let error = io::Error::other(format!("the collector answered {status}"));
                Answer::TryAgain(error, after)
            }
            _ => Answer::Refused(format!("the collector answered {status}")),
        }
    }

    /// Parses the number of records that a collector rejected in a successful answer. An answer that
    /// cannot be read proves nothing; sending the alerts again could store them twice.
    fn taken(&self, text: Option<&[u8]>) -> Answer {
        let partial = match (text, self.options.encoding) {
            (None, _) => Err("it is too long".to_owned()),
            // Some collectors answer without a body.
            (Some([]), _) => Ok((0, String::new())),
            (Some(text), Encoding::Protobuf) => partial_protobuf(text),
            (Some(text), Encoding::Json) => partial_json(text),
        };
        match partial {
            Ok((rejected, why)) => {
                let why = format!("the collector refused {rejected} of the alerts: {why}");
                Answer::Taken(rejected, why)
            }
            Err(why) => Answer::Refused(format!("cannot read the answer of the collector: {why}")),
        }
    }
}

impl Channel for OtlpChannel {
    fn name(&self) -> &str {
        "otlp"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let request = request::request(alerts, &self.options.resource);
        let body = match self.options.encoding {
            Encoding::Protobuf => Ok(request.encode_to_vec()),
            Encoding::Json => serde_json::to_vec(&request).map_err(io::Error::from),
        };
        let body = body.and_then(|body| {
            if self.options.compress {
                client::compressed(&body)
            } else {
                Ok(body)
            }
        });
        let body = body.map_err(DeliveryError::of_all)?;
        self.send(&body, alerts.len())
    }

    /// Reads certificates and keys again and drops the connection.
    fn reopen(&mut self) -> io::Result<()> {
        self.agent = agent(&self.options).map_err(io::Error::other)?;
        self.outage.end();
        Ok(())
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Maximum delay that a collector can request; alerts wait in a bounded queue meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Interval at which a pause checks whether the channel is closed.
const STEP: Duration = Duration::from_millis(50);

/// Time a connection is kept without alerts.
const IDLE: Duration = Duration::from_secs(15);

fn agent(options: &OtlpOptions) -> Result<Agent, HttpError> {
    client::agent(&ClientOptions {
        url: &options.url,
        user_agent: concat!("tollgate/", env!("CARGO_PKG_VERSION")),
        tls: &options.tls,
        idle: IDLE,
        timeout: options.timeout,
    })
}

fn partial_protobuf(text: &[u8]) -> Result<(usize, String), String> {
    let answer = ExportLogsServiceResponse::decode(text).map_err(|error| error.to_string())?;
    let partial = answer.partial_success.unwrap_or_default();
    Ok((count(partial.rejected_log_records)?, partial.error_message))
}

/// Parses `partialSuccess`: its number is a string, as in the JSON mapping of 64-bit integers, or a
/// number, which is also allowed.
fn partial_json(text: &[u8]) -> Result<(usize, String), String> {
    let answer: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let answer = answer.as_object().ok_or("it is no object")?;
    let partial = match answer.get("partialSuccess") {
        None | Some(Value::Null) => return Ok((0, String::new())),
        Some(partial) => partial.as_object().ok_or("partialSuccess is no object")?,
    };
    let number = match partial.get("rejectedLogRecords") {
        None | Some(Value::Null) => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_i64(),
    };
    let number = number.ok_or("rejectedLogRecords is no number")?;
    let why = partial.get("errorMessage").and_then(Value::as_str);
    Ok((count(number)?, why.unwrap_or_default().to_owned()))
}

fn count(rejected: i64) -> Result<usize, String> {
    usize::try_from(rejected).map_err(|_negative| format!("{rejected} records were refused"))
}

/// `Retry-After`: seconds, or a date such as `Wed, 21 Oct 2026 07:28:00 GMT`.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    // A date in the past requests no delay.
    Duration::try_from(date - now).ok().or(Some(Duration::ZERO))
}

/// Entries for fuzzing: answers of a collector of OpenTelemetry.
#[cfg(feature = "testing")]
pub(crate) mod testing {
    use std::time::Duration;

    use jiff::Timestamp;

    /// Returns the number of log records that were refused, and the reason.
    ///
    /// # Errors
    ///
    /// The reason why it is no answer.
    pub fn otlp_partial(bytes: &[u8], is_json: bool) -> Result<(usize, String), String> {
        match is_json {
            true => super::partial_json(bytes),
            false => super::partial_protobuf(bytes),
        }
    }

    /// Returns the pause that `Retry-After` requests.
    #[must_use]
    pub fn otlp_retry_after(text: &str) -> Option<Duration> {
        super::retry_after(text, Timestamp::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests;
