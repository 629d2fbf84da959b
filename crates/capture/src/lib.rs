//! Where events come from: capture engines, kernel filters and their drop counters.

pub mod deadline;
pub mod filter;
pub mod procfs;
pub mod sockets;
