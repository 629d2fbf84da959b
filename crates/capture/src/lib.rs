//! Where events come from: capture engines and their drop counters.

pub mod ebpf;
mod engine;
pub mod gvisor;
pub mod notify;
pub mod ptrace;
mod tripwire;

pub use engine::{Engine, Idle, Scope};
