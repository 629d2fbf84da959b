//! What can go wrong with a server, or on the way to one.

use std::io;
use std::path::PathBuf;

/// A server does not work, or cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody can listen there.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The address is none.
    #[error("cannot use the address `{address}`: expected unix:///PATH or HOST:PORT")]
    Address {
        /// As it was written.
        address: String,
    },
    /// A file of certificates or keys cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of certificates or keys is of no use.
    #[error("cannot use {}: {problem}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No thread or no runtime can be made.
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
        /// The status: that of gRPC, or of HTTP.
        status: String,
        /// What the server says.
        message: String,
    },
}
