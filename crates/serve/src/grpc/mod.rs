//! Falco's gRPC interface, which Falco had until 0.43: `falco.outputs.service` and
//! `falco.version.service`.

mod client;
mod frame;
mod message;
mod queue;
mod server;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use client::{ClientFiles, subscribe};
pub use message::{Output, Timestamp, Version};
pub use queue::GrpcChannel;
pub use server::{GrpcListener, GrpcServer, PeerCheck};
