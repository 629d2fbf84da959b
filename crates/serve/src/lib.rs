//! What others can ask of a running agent: pages over HTTP, and alerts over gRPC, as older Falcos had
//! it. And the other side of the latter, for programs that wait for a detector's alerts.
//!
//! This is the one place with an asynchronous runtime; it lives on threads of its own, which are made
//! only if the configuration asks for a server. Listening and serving are separate, because a process
//! that still has to fork must not have threads.

mod connections;
mod error;
pub mod grpc;
mod listen;
mod progress;
mod tls;
mod web;

pub use error::ServeError;
pub use listen::Address;
pub use tls::ServerFiles;
pub use web::{Page, WebListener, WebServer};
