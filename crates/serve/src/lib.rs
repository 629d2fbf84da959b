//! Servers of a running agent: pages over HTTP, and alerts over gRPC as in older Falco releases.
//! Also the gRPC client, for programs that wait for a detector's alerts, and the loop of an HTTP server
//! that the collector has its pages on.
//!
//! Only this crate uses an asynchronous runtime. The runtime has threads of its own, which are
//! created only if the configuration enables a server. Listening and serving are separate, because
//! a process that still has to fork must not have threads.

mod client_certificate;
mod connections;
mod error;
pub mod grpc;
mod http;
mod listen;
mod posts;
mod progress;
mod spawn;
mod tls;
mod web;

pub use client_certificate::{CertificateRefusal, ClientAuthorities, ClientCertificate};
pub use connections::ClientAddress;
pub use error::ServeError;
pub use http::{ConnectionDeadlines, ConnectionLimits, HttpListener};
pub use listen::Address;
pub use posts::{PostAnswer, PostLimits, PostListener, ReplaceableCertificate};
pub use spawn::WebServer;
pub use tls::{ClientCertificates, ServerFiles};
pub use web::{Page, WebListener};
