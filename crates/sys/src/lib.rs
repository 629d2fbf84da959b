//! Safe wrappers over the raw kernel calls that tollgate needs; the only hand-written unsafe code.
//!
//! Wrappers return [`SyscallError`] with the call's name. Structures that the kernel fills are `repr(C)`, and
//! tests check them against the kernel's layout. Pids and tids are plain `i32`, as in the kernel's interface;
//! the crates above have their own types for them.

#[macro_use]
mod kernel;

pub mod attempt;
pub mod bpf;
pub mod clone;
pub mod credential;
pub mod error;
pub mod exec;
pub mod fd;
pub mod features;
pub mod file;
pub mod landlock;
pub mod machine;
pub mod namespace;
pub mod notify;
pub mod pidfd;
pub mod poll;
pub mod prctl;
pub mod process_memory;
pub mod ptrace;
pub mod resource;
pub mod schedule;
pub mod seccomp;
pub mod shared;
pub mod signal;
pub mod socket;
pub mod syscall;
pub mod time;
pub mod wait;

pub use error::{Result, SyscallError};

#[cfg(test)]
mod testing;
