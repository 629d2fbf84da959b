//! The `http` channel: sends each alert to a web server as a POST request.

mod settings;

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::http::HeaderMap;

pub use self::settings::HttpOutput;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::client::{self, ClientOptions, HttpError};
use crate::net::outage::Outage;
use crate::net::tls::TlsOptions;
use crate::stdout::StandardStream;

/// Options of [`HttpChannel`].
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// `http://` or `https://`.
    pub url: String,
    /// Value of the `User-Agent` header.
    pub user_agent: String,
    /// Further headers: names and values.
    pub headers: Vec<(String, String)>,
    /// Alerts are JSON; sets the `Content-Type` header.
    pub json: bool,
    /// Certificates for `https://`.
    pub tls: TlsOptions,
    /// Stream that answers are printed to.
    pub echo: Option<StandardStream>,
    /// Compress bodies with gzip.
    pub compress: bool,
    /// Keep a connection for as long as the server does. Otherwise the channel closes it after a
    /// second without alerts.
    pub keep_alive: bool,
    /// Number of times an alert is sent again when the server does not answer. Counted across
    /// alerts: after this many consecutive timeouts, each alert is sent once until the server
    /// answers one.
    pub max_consecutive_timeouts: u32,
    /// Time limit for one request, from the name lookup to the end of the answer.
    pub timeout: Duration,
}

/// Sends alerts to a web server.
///
/// Any status other than 2xx loses the alert. Redirections are not followed. If a server closes a
/// connection that was in use before, the channel sends the alert once more on a new connection, so
/// the server may see an alert twice. While the address refuses connections, the channel retries
/// for some seconds.
pub struct HttpChannel {
    options: HttpOptions,
    agent: Agent,
    headers: HeaderMap,
    /// Destination of the server's answers.
    echo: Option<File>,
    timeouts_in_a_row: u32,
    /// A connection may be left from an earlier alert.
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
    /// Reads certificates and keys, so that a wrong one fails at the start. Connects with the first
    /// alert.
    ///
    /// # Errors
    ///
    /// The address, a certificate or the key cannot be used.
    pub fn open(options: HttpOptions) -> Result<Self, HttpError> {
        let agent = agent(&options)?;
        let headers = client::headers(&options.headers)?;
        let echo = options.echo.map(StandardStream::duplicate).transpose();
        let echo = echo.map_err(|source| HttpError::Echo { source })?;
        Ok(Self {
            options,
            agent,
            headers,
            echo,
            timeouts_in_a_row: 0,
            has_connected: false,
            outage: Outage::default(),
            peer: Arc::default(),
        })
    }

    /// Changes the time for which a server that refuses connections is waited for, which is 10 seconds otherwise.
    #[must_use]
    pub fn waiting_at_most(mut self, limit: Duration) -> Self {
        self.outage = Outage::of_at_most(limit);
        self
    }

    /// Sends a text, which the header `Content-Type` describes as the options say, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, does not answer in time, or does not answer with success.
    pub fn post_text(&mut self, text: &str) -> io::Result<()> {
        let body = self.body(text)?;
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
            } else if may_be_stale && client::is_hang_up(&error) {
                may_be_stale = false;
                continue;
            }
            return Err(error);
        }
    }

    /// Waits before the next attempt after a refused connection. Returns false if the outage has
    /// lasted too long.
    fn wait_for_server(&mut self, error: &io::Error) -> bool {
        self.outage.wait(&self.peer, error)
    }

    /// Marks the server as reachable.
    fn is_there(&mut self) {
        self.outage.is_over(&self.peer);
    }

    fn body(&self, line: &str) -> io::Result<Vec<u8>> {
        if self.options.compress {
            client::compressed(line.as_bytes())
        } else {
            Ok(line.as_bytes().to_vec())
        }
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
        let mut answer = request.send(body).map_err(client::io_error)?;
        // Read even if unused: only then can the connection be reused.
        let text = client::read(answer.body_mut())?.unwrap_or_default();
        if let Some(echo) = &mut self.echo {
            echo.write_all(&text)?;
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
        DeliveryError::of_each(alerts, |alert| {
            self.post_text(alert.line().trim_end_matches('\n'))
        })
    }

    /// Reads certificates and keys again and drops the connection.
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

/// Time a connection is kept without alerts: short, so that the server seldom closes it first.
const IDLE: Duration = Duration::from_secs(1);

/// Like [`IDLE`] with `keep_alive`: until the server closes the connection.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(24 * 60 * 60);

fn agent(options: &HttpOptions) -> Result<Agent, HttpError> {
    client::agent(&ClientOptions {
        url: &options.url,
        user_agent: &options.user_agent,
        tls: &options.tls,
        idle: if options.keep_alive {
            KEEP_ALIVE_IDLE
        } else {
            IDLE
        },
        timeout: options.timeout,
    })
}

#[cfg(test)]
mod tests;
