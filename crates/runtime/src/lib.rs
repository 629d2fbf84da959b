//! Parts of an OCI runtime that stands in for another one: the shared command line, the bundle,
//! settings and annotations, notes about containers, and the configuration of container engines.
//!
//! This crate does not watch processes.

mod agent_spec;
pub mod annotations;
pub mod caller;
pub mod cgroup;
pub mod command_line;
pub mod containerd;
pub mod containers;
pub mod install;
pub mod installer;
pub mod kata;
pub mod leftovers;
pub mod recall;
pub mod settings;
pub mod spec;
pub mod store;
pub mod underlying;

pub use cgroup::Groups;
pub use command_line::{Call, CommandLine, Verb};
pub use settings::Settings;
pub use spec::{Spec, SpecError};
pub use store::{Note, Store, StoreError};
pub use underlying::{EMBEDDED, Embedded, Runtime, RuntimeError};
