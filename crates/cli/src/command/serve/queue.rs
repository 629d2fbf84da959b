//! Options about a queue in front of the store.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
#[cfg(feature = "serve")]
use collector::QueueSettings;
#[cfg(feature = "serve")]
use diagnostics::terminal;
#[cfg(feature = "serve")]
use outputs::{NatsOutput, NatsTls, OutputKind as _};

use super::args::span;

const QUEUE: &str = "Queue options";

/// Options about a queue.
#[derive(Args, Debug)]
pub(crate) struct QueueOptions {
    /// Acknowledge batches when JetStream of this NATS server has them, and write them to the store later; tls://HOST:PORT
    /// encrypts; repeatable for the servers of a cluster
    #[arg(long, value_name = "nats://HOST:PORT", value_delimiter = ',', help_heading = QUEUE)]
    pub(crate) queue: Vec<String>,
    /// Servers of NATS that keep each batch
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "queue",
          value_parser = clap::value_parser!(u8).range(1..=5), help_heading = QUEUE)]
    pub(crate) queue_replicas: u8,
    /// Name of the stream, which belongs to this store alone
    #[arg(long, value_name = "NAME", default_value = "tollgate", requires = "queue", help_heading = QUEUE)]
    pub(crate) queue_stream: String,
    /// Refuse batches while the stream is larger than this many MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "queue",
          value_parser = clap::value_parser!(u64).range(1..=1 << 30), help_heading = QUEUE)]
    pub(crate) queue_size: u64,
    /// Refuse batches while the stream has this many
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, requires = "queue",
          value_parser = clap::value_parser!(u64).range(1..), help_heading = QUEUE)]
    pub(crate) queue_batches: u64,
    /// While the store is away, accept agents that it confirmed no longer ago than this
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1h", requires = "queue", help_heading = QUEUE)]
    pub(crate) queue_grace: Duration,
    /// User at NATS
    #[arg(long, value_name = "NAME", requires = "queue_password_file", help_heading = QUEUE)]
    pub(crate) queue_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", requires = "queue_user", help_heading = QUEUE)]
    pub(crate) queue_password_file: Option<PathBuf>,
    /// File with a token for NATS
    #[arg(long, value_name = "FILE", requires = "queue", help_heading = QUEUE)]
    pub(crate) queue_token_file: Option<PathBuf>,
    /// File with JWT and seed for NATS, or with the seed alone
    #[arg(long, value_name = "FILE", requires = "queue", help_heading = QUEUE)]
    pub(crate) queue_credentials_file: Option<PathBuf>,
    /// Authorities of the certificate of NATS in PEM form [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "queue", help_heading = QUEUE)]
    pub(crate) queue_ca: Option<PathBuf>,
    /// Certificate of this server for NATS
    #[arg(long, value_name = "FILE", requires = "queue_key", help_heading = QUEUE)]
    pub(crate) queue_cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, value_name = "FILE", requires = "queue_cert", help_heading = QUEUE)]
    pub(crate) queue_key: Option<PathBuf>,
}

#[cfg(feature = "serve")]
impl QueueOptions {
    /// Returns the settings of the collector, `None` without a queue.
    pub(super) fn settings(&self) -> Option<QueueSettings> {
        if self.queue.is_empty() {
            return None;
        }
        let servers = self.servers();
        if servers.exposure().is_some() {
            terminal::complain(
                "tollgate: warning: the secret for NATS is sent to another machine without encryption\n  \
                 help: use tls:// in --queue, or --queue-credentials-file, whose seed is never sent\n",
            );
        }
        Some(QueueSettings {
            servers,
            stream: self.queue_stream.clone(),
            replicas: self.queue_replicas.into(),
            max_bytes: self.queue_size << 20,
            max_batches: self.queue_batches,
            grace: self.queue_grace,
            report: |text| terminal::complain(&format!("tollgate: {text}\n")),
        })
    }

    /// Returns the settings of the output to NATS that are the same.
    pub(super) fn servers(&self) -> NatsOutput {
        // As in the configuration of the output, empty is none.
        let file = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        NatsOutput {
            url: self.queue.clone(),
            user: self.queue_user.clone().unwrap_or_default(),
            password_file: file(&self.queue_password_file),
            token_file: file(&self.queue_token_file),
            credentials_file: file(&self.queue_credentials_file),
            tls: NatsTls {
                // With one encrypted address, none is used without encryption.
                enabled: self.queue.iter().any(|url| url.starts_with("tls://")),
                ca_file: file(&self.queue_ca),
                cert_file: file(&self.queue_cert),
                key_file: file(&self.queue_key),
            },
            ..NatsOutput::default()
        }
    }
}
