//! Connections to NATS for other users than the channel of alerts: the same addresses, credentials and TLS.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_nats::{Client, Event, ServerError};
use tokio::sync::mpsc::Receiver;

use super::address::Address;
use super::connection::{Login, Unnamed, closed, connecting, in_time, one_socket, server_at};
use super::credentials::Credentials;
use super::error::NatsError;
use super::settings::NatsOutput;
use crate::net::names::Names;

/// Interval at which the client asks whether the server still answers. Two unanswered questions end a connection.
const PING: Duration = Duration::from_secs(5);

/// NATS servers, one of which is connected to.
pub struct NatsServers {
    addresses: Vec<Address>,
    /// Index of the server to try first.
    first: usize,
    credentials: Credentials,
    tls: Option<Unnamed>,
    /// Time limit for one attempt to connect.
    timeout: Duration,
}

impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsServers")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// A connection. It ends with its socket; whoever uses it connects anew.
pub struct NatsLink {
    /// The client of the connection.
    pub client: Client,
    events: Receiver<Event>,
}

impl fmt::Debug for NatsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLink").finish_non_exhaustive()
    }
}

impl NatsServers {
    /// Reads addresses, certificates and secrets of the settings. Subject and JetStream settings are not used.
    ///
    /// # Errors
    ///
    /// An address, a certificate or a secret cannot be used.
    pub fn open(settings: &NatsOutput, timeout: Duration) -> Result<Self, NatsError> {
        let credentials = settings.credentials()?;
        let tls = settings.tls.enabled.then(|| settings.tls.options());
        let tls = tls.transpose()?;
        let (addresses, tls) = super::servers(&settings.url, &credentials, tls.as_ref())?;
        Ok(Self {
            addresses,
            first: 0,
            credentials,
            tls,
            timeout,
        })
    }

    /// Connects to the first server that can be reached, beginning with the one after the last that was.
    ///
    /// # Errors
    ///
    /// No server can be reached, or the last one refuses this client.
    pub async fn connect(&mut self) -> io::Result<NatsLink> {
        let mut last = None;
        let first = self.first;
        for step in 0..self.addresses.len() {
            let at = (first + step) % self.addresses.len();
            // One that is lost is likely to be away still.
            self.first = (at + 1) % self.addresses.len();
            match self.connect_to(&self.addresses[at]).await {
                Ok(link) => return Ok(link),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ErrorKind::NotFound.into()))
    }

    async fn connect_to(&self, address: &Address) -> io::Result<NatsLink> {
        let deadline = Instant::now() + self.timeout;
        let host = address.host.clone();
        let names = move || Names::default().addresses(&host, deadline);
        // A thread for it may not be free either.
        let found = in_time(deadline, tokio::task::spawn_blocking(names)).await?;
        let mut last = None;
        for ip in found.map_err(io::Error::other)?? {
            match self
                .connect_at(SocketAddr::new(ip, address.port), address, deadline)
                .await
            {
                Ok(link) => return Ok(link),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ErrorKind::NotFound.into()))
    }

    async fn connect_at(
        &self,
        at: SocketAddr,
        address: &Address,
        deadline: Instant,
    ) -> io::Result<NatsLink> {
        let login = Login {
            credentials: &self.credentials,
            tls: self.tls.as_ref(),
            jetstream: true,
        };
        let (options, events) = one_socket(address, &login, deadline)?;
        let options = options.ping_interval(PING);
        let client = in_time(deadline, options.connect(server_at(at)?)).await?;
        let client = client.map_err(|error| connecting(&error, address, self.tls.is_some()))?;
        Ok(NatsLink { client, events })
    }
}

impl NatsLink {
    /// Waits for the end of the connection and returns the cause.
    pub async fn ended(&mut self) -> io::Error {
        loop {
            match self.events.recv().await {
                None | Some(Event::Disconnected | Event::Closed) => return closed(),
                Some(Event::ServerError(ServerError::Other(text))) => {
                    return io::Error::other(format!("the server answered: {text}"));
                }
                Some(Event::ServerError(error)) => {
                    return io::Error::other(format!("the server answered: {error}"));
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_thread_looks_up_in_time_ends_the_attempt() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .expect("threads");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || ended.recv());
        let settings = NatsOutput {
            url: vec!["nats://localhost:1".to_owned()],
            ..NatsOutput::default()
        };
        let limit = Duration::from_millis(200);
        let mut servers = NatsServers::open(&settings, limit).expect("good settings");
        let connected = async { tokio::time::timeout(limit * 20, servers.connect()).await };
        let answer = runtime.block_on(connected).expect("it ends");
        let error = answer.expect_err("nobody looks the name up");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        drop(end);
    }
}
