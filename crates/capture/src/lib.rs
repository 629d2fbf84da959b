//! Capture engines: the sources of events, with their drop counters.

pub mod ebpf;
mod engine;
pub mod gvisor;
pub mod notify;
pub mod ptrace;
mod tripwire;

pub use engine::{Engine, Idle, Scope};
