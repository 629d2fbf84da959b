//! Decodes the system calls of live processes into events.
//!
//! All engines share this crate. It decodes a call by the call table, reads its arguments, identifies the
//! calling process, resolves the names of files, and answers what rules ask about the system.

pub mod call;
pub mod counters;
pub mod decode;
pub mod host;
pub mod initial_stack;
pub mod lineage;
pub mod linked_file;
pub mod names;
pub mod open_fields;
pub mod process_inspector;
pub mod runtime_process;
pub mod stdio;
pub mod system_info;
pub mod tree;
