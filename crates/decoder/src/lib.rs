//! From the calls of live processes to events.
//!
//! What every engine has in common: the call in the terms of the call table, what its arguments say, who
//! makes it, what the files are called that it is about, and what rules ask beyond.

pub mod call;
pub mod counters;
pub mod decode;
pub mod host;
pub mod initial_stack;
pub mod lineage;
pub mod names;
pub mod process_inspector;
pub mod stdio;
pub mod system_info;
pub mod tree;
