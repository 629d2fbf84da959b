//! Errors of servers and clients.

use std::io;

use outputs::TlsError;

/// A server cannot start, or cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A socket cannot listen at the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// An address is invalid.
    #[error("cannot use the address `{address}`: {problem}")]
    Address {
        /// The address as written.
        address: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread or an asynchronous runtime cannot be created.
    #[error("cannot start a server")]
    Start {
        /// The cause.
        source: io::Error,
    },
    /// A server cannot be reached.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A server refused a call.
    #[error("cannot subscribe at {address}: status {status} {message}")]
    Refused {
        /// The address.
        address: String,
        /// The gRPC or HTTP status.
        status: String,
        /// The server's message.
        message: String,
    },
}
