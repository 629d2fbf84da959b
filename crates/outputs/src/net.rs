//! What outputs that reach a server have in common.

pub(crate) mod client;
pub(crate) mod names;
pub(crate) mod outage;
pub(crate) mod tls;
