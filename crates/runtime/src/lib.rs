//! Container runtimes by the OCI specification, as far as one that stands in for another has to know
//! them: the command line that they share, the bundle, and what is noted of a container.
//!
//! Nothing here starts or watches a process.

pub mod cgroup;
pub mod command_line;
pub mod install;
pub mod runtime;
pub mod spec;
pub mod store;
pub mod vm;

pub use cgroup::Groups;
pub use command_line::{Call, CommandLine, Verb};
pub use runtime::{EMBEDDED, Embedded, Runtime, RuntimeError};
pub use spec::{Spec, SpecError};
pub use store::{Note, Store, StoreError};
