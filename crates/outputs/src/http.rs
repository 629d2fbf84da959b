//! A web server that gets each alert as a POST request.

mod settings;

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::http::HeaderMap;

pub use self::settings::HttpOutput;
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::client::{self, ClientOptions, HttpError};
use crate::net::outage::Outage;
use crate::net::tls::TlsOptions;

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
        let headers = client::headers(&options.headers)?;
        let stdout = || io::stdout().as_fd().try_clone_to_owned();
        let echo = options.echo.then(stdout).transpose();
        let echo = echo.map_err(|source| HttpError::Echo { source })?;
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
            } else if may_be_stale && client::is_hang_up(&error) {
                may_be_stale = false;
                continue;
            }
            return Err(error);
        }
    }

    /// Nobody listens: waits a while; false if that has taken too long.
    fn wait_for_server(&mut self, error: &io::Error) -> bool {
        self.outage.wait(&self.peer, error)
    }

    /// Somebody listens.
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
        // Read even if nobody looks at it: only then can the connection be used again.
        let text = client::read(answer.body_mut())?;
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

/// How long a connection is kept without alerts: short, so that the server seldom closes it first.
const IDLE: Duration = Duration::from_secs(1);

/// The same when the user wants it kept: until the server closes it.
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
