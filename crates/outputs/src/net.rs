//! Shared parts of the outputs that connect to a server.

pub(crate) mod client;
pub(crate) mod names;
pub(crate) mod outage;
pub(crate) mod tls;
