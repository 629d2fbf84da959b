//! Why options cannot be used.

use std::io;
use std::path::PathBuf;

use crate::net::tls::TlsError;

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
