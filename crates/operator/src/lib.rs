//! The operator: it watches a cluster, and writes what [`cluster::Cluster`] says that there has to be.
//!
//! [`Operator::run`] waits until it is the leader, starts a thread for each kind of objects that matters, and writes
//! ArmorProfiles and status. It keeps nothing that it could not read again: a leader that is lost ends, and another one
//! lists everything.

mod error_text;
mod events;
mod lease;
pub mod manifests;
mod metrics;
mod operator;
mod restarts;
mod silence;
mod sources;
#[cfg(test)]
mod tests;
mod webhook;
mod writer;

pub use error_text::chain_of;
pub use lease::LeaseError;
pub use metrics::{Metrics, serve_pages};
pub use operator::{Operator, OperatorError, Settings};
pub use webhook::{Webhook, WebhookError, WebhookSettings};
