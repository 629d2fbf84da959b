//! A web server that gets each alert as a POST request.

mod names;
mod outage;
mod tls;

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use ureq::http::uri::{Authority, Scheme};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use self::names::Names;
use self::outage::Outage;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};

/// Where alerts are sent, and how.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// `http://` or `https://`.
    pub url: String,
    /// Value of the `User-Agent` header.
    pub user_agent: String,
    /// Further headers: names and values.
    pub headers: Vec<(String, String)>,
    /// Whether alerts are JSON, for the `Content-Type` header.
    pub json: bool,
    /// Whom to trust, and who to be, for `https://`.
    pub tls: TlsOptions,
    /// Print answers to the standard output.
    pub echo: bool,
    /// Compress bodies with gzip.
    pub compress: bool,
    /// Keep a connection for as long as the server does. Otherwise it is closed after a second
    /// without alerts.
    pub keep_alive: bool,
    /// How often an alert that the server does not answer is sent again. Counted over alerts: once
    /// so many requests in a row have timed out, each alert is sent once, until one is answered.
    pub max_consecutive_timeouts: u32,
    /// How long one request may take from the look-up of the name to the end of the answer.
    pub timeout: Duration,
}

/// Whom to trust, and who to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Trust any server. For tests.
    pub insecure: bool,
    /// File with the certificates of the authorities to trust.
    pub authorities: Option<PathBuf>,
    /// Folder with such files, if there is no file.
    pub authority_folder: PathBuf,
    /// Certificate and key of this client, if it is to show one.
    pub client: Option<ClientFiles>,
}

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificate chain, the client's own first.
    pub certificate: PathBuf,
    /// Private key, not encrypted.
    pub key: PathBuf,
}

/// The options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is not one that alerts can be sent to.
    #[error("cannot send alerts to `{url}`: {problem}")]
    Url {
        /// The address.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A header is not one.
    #[error("cannot send the header `{name}`: {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate or key cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not what it has to be.
    #[error("cannot use {}: {problem}", path.display())]
    Pem {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Sends alerts to a web server.
///
/// An answer other than 2xx is a loss. Redirections are not followed: an alert goes where it was
/// configured to go. A server that hangs up on a connection that was in use before gets the alert
/// once more on a new one, so it may see an alert twice. While nobody listens at the address the alert
/// is tried again and again, for some seconds.
pub struct HttpChannel {
    options: HttpOptions,
    agent: Agent,
    headers: HeaderMap,
    /// Where answers are printed.
    echo: Option<File>,
    timeouts_in_a_row: u32,
    /// Whether a connection may be left from an alert before.
    has_connected: bool,
    outage: Outage,
    peer: Arc<Peer>,
}

impl fmt::Debug for HttpChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpChannel")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl HttpChannel {
    /// Reads certificates and keys, so that a wrong one stops the start. Connects with the first
    /// alert.
    ///
    /// # Errors
    ///
    /// If the address, a certificate or the key cannot be used.
    pub fn open(options: HttpOptions) -> Result<Self, HttpError> {
        let agent = agent(&options)?;
        let headers = headers(&options.headers)?;
        let stdout = || io::stdout().as_fd().try_clone_to_owned();
        let echo = options.echo.then(stdout).transpose();
        let echo = echo.map_err(|source| HttpError::Read {
            path: "/dev/stdout".into(),
            source,
        })?;
        Ok(Self {
            options,
            agent,
            headers,
            echo: echo.map(File::from),
            timeouts_in_a_row: 0,
            has_connected: false,
            outage: Outage::default(),
            peer: Arc::default(),
        })
    }

    fn send(&mut self, alert: &Delivery) -> io::Result<()> {
        let body = self.body(alert.line().trim_end_matches('\n'))?;
        let mut may_be_stale = self.has_connected;
        loop {
            let error = match self.post(&body) {
                Ok(()) => {
                    self.timeouts_in_a_row = 0;
                    self.has_connected = true;
                    self.is_there();
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.kind() == ErrorKind::ConnectionRefused {
                if self.wait_for_server(&error) {
                    continue;
                }
                return Err(error);
            }
            self.is_there();
            if error.kind() == ErrorKind::TimedOut {
                self.peer.count_timeout();
                self.timeouts_in_a_row = self.timeouts_in_a_row.saturating_add(1);
                if self.timeouts_in_a_row <= self.options.max_consecutive_timeouts {
                    continue;
                }
            } else if may_be_stale && is_hang_up(&error) {
                may_be_stale = false;
                continue;
            }
            return Err(error);
        }
    }

    /// Nobody listens: waits a while; false if that has taken too long.
    fn wait_for_server(&mut self, error: &io::Error) -> bool {
        let pause = self.outage.refused(Instant::now());
        let Some(pause) = pause.filter(|_| !self.peer.is_killed()) else {
            self.peer.set_trouble(None);
            return false;
        };
        self.peer.set_trouble(Some(error.to_string()));
        std::thread::sleep(pause);
        true
    }

    /// Somebody listens.
    fn is_there(&mut self) {
        if self.outage.has_begun() {
            self.outage.end();
            self.peer.set_trouble(None);
        }
    }

    fn body(&self, line: &str) -> io::Result<Vec<u8>> {
        if !self.options.compress {
            return Ok(line.as_bytes().to_vec());
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(line.as_bytes())?;
        encoder.finish()
    }

    fn post(&mut self, body: &[u8]) -> io::Result<()> {
        let content_type = if self.options.json {
            "application/json"
        } else {
            "text/plain"
        };
        let mut request = self
            .agent
            .post(&self.options.url)
            .header("Content-Type", content_type);
        if self.options.compress {
            request = request.header("Content-Encoding", "gzip");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut answer = request.send(body).map_err(io_error)?;
        // Read even if nobody looks at it: only then can the connection be used again.
        let text = read(answer.body_mut())?;
        if let Some(stdout) = &mut self.echo {
            stdout.write_all(&text)?;
        }
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        Err(io::Error::other(format!("the server answered {status}")))
    }
}

impl Channel for HttpChannel {
    fn name(&self) -> &str {
        "http"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        DeliveryError::of_each(alerts, |alert| self.send(alert))
    }

    /// Reads certificates and keys anew and drops the connection.
    fn reopen(&mut self) -> io::Result<()> {
        self.agent = agent(&self.options).map_err(io::Error::other)?;
        self.has_connected = false;
        self.outage.end();
        Ok(())
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Longest answer that is read; a receiver of alerts has little to say.
const MAX_ANSWER: u64 = 64 << 10;

/// How long a connection is kept without alerts: short, so that the server seldom closes it first.
const IDLE: Duration = Duration::from_secs(1);

/// The same when the user wants it kept: until the server closes it.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(24 * 60 * 60);

fn agent(options: &HttpOptions) -> Result<Agent, HttpError> {
    let is_secure = check_url(&options.url)?;
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // The environment is the watched command's: its proxy need not know where alerts go.
        .proxy(None)
        .user_agent(options.user_agent.as_str())
        .max_idle_age(if options.keep_alive {
            KEEP_ALIVE_IDLE
        } else {
            IDLE
        })
        .timeout_global(Some(options.timeout));
    if is_secure {
        config = config.tls_config(tls::config(&options.tls)?);
    }
    let connector = DefaultConnector::default();
    Ok(Agent::with_parts(
        config.build(),
        connector,
        Names::default(),
    ))
}

/// Headers that are set here: two of a name, or another length, would break the request.
const OWN_HEADERS: [&str; 7] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "user-agent",
];

fn headers(wanted: &[(String, String)]) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let wrong = |problem: &str| HttpError::Header {
            name: name.clone(),
            problem: problem.to_owned(),
        };
        let known: HeaderName = name
            .parse()
            .map_err(|_no_name| wrong("it is not a header name"))?;
        if OWN_HEADERS.contains(&known.as_str()) {
            return Err(wrong("it is set by other keys, or by itself"));
        }
        let value: HeaderValue = value
            .parse()
            .map_err(|_no_value| wrong("its value has characters that a header cannot have"))?;
        headers.append(known, value);
    }
    Ok(headers)
}

/// Whether the address is one of `https`.
fn check_url(url: &str) -> Result<bool, HttpError> {
    let wrong = |problem: String| HttpError::Url {
        url: url.to_owned(),
        problem,
    };
    let uri: Uri = url
        .parse()
        .map_err(|error| wrong(format!("invalid URL: {error}")))?;
    if uri.host().is_none_or(str::is_empty) {
        return Err(wrong("it names no host".to_owned()));
    }
    if let Some(port) = uri.authority().and_then(written_port)
        && !port.parse::<u16>().is_ok_and(|port| port != 0)
    {
        return Err(wrong(format!("invalid port `{port}`: expected 1 to 65535")));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(false),
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(true),
        _ => Err(wrong("it has to start with http:// or https://".to_owned())),
    }
}

/// The port, whatever is written there; without one the scheme decides.
fn written_port(authority: &Authority) -> Option<&str> {
    let text = authority.as_str();
    let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
    let port = place.strip_prefix(authority.host())?.strip_prefix(':')?;
    (!port.is_empty()).then_some(port)
}

fn read(body: &mut Body) -> io::Result<Vec<u8>> {
    let text = body.with_config().limit(MAX_ANSWER).read_to_vec();
    match text {
        Err(ureq::Error::BodyExceedsLimit(_)) => Ok(Vec::new()),
        text => text.map_err(io_error),
    }
}

fn io_error(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Timeout(_) => {
            io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
        }
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    let is_protocol = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<ureq::Error>())
        .is_some_and(|error| matches!(error, ureq::Error::Protocol(_)));
    is_protocol
        || matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
                | ErrorKind::UnexpectedEof
        )
}

#[cfg(test)]
mod tests;
