//! Where events come from: capture engines, kernel filters and their drop counters.

pub mod container;
pub mod deadline;
pub mod ebpf;
pub mod gvisor;
pub mod probe;
pub mod procfs;
pub mod sockets;
mod tripwire;
pub mod users;
pub mod world;

mod host;
mod live;
mod memory;
mod names;
pub mod notify;
pub mod ptrace;
mod regular;

pub use host::host_name;
