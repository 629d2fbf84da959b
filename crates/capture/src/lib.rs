//! Where events come from: capture engines, kernel filters and their drop counters.

pub mod ebpf;
pub mod gvisor;
mod tripwire;

pub mod notify;
pub mod ptrace;
