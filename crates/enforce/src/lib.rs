//! Enforcement of policies by the kernel.
//!
//! Each enforcer implements [`Enforcer`], in a file of its own, and is registered in the table [`REGISTRY`].
//! [`probe`](mod@probe) determines which enforcers work on this host, by using them. [`Confinement::prepare`]
//! compiles a policy for those, and reports for each whether it enforces its part fully, partially or not at
//! all. [`Confinement::apply`] restricts the calling process, which is about to become the command. A step
//! that fails ends the process: nothing runs with less confinement than was announced. The first program of a
//! container restricts itself in the same way ([`DeferredConfinement`]).

mod apparmor;
mod audit;
mod bpf;
mod caps;
mod confinement;
mod container;
mod denial;
mod egress;
mod enforcer;
mod error;
mod landlock;
mod names;
mod needs;
pub mod probe;
mod quarantine;
mod server;
mod tree;

pub use bpf::Error as BpfError;
pub use bpf::{
    ConfinedContainer, ContainerPlace, ContainerReports, ContainerViolation, change_containers,
    confine_container, containers_build, enter_host_groups, missing_hooks, prepare_containers,
    remove_ended_containers,
};
pub use confinement::{
    ApplyError, Confinement, EnforcedExtent, Line, LoadedPolicy, Step, available,
};
pub use container::{Applied, DeferredConfinement, Prepared, ruleset};
pub use denial::Denial;
pub use egress::{EgressPrograms, EgressTable, LoadedEgress, try_egress, what_egress_lacks};
pub use enforcer::{
    About, Container, Counts, Enforcer, Listen, Loaded, REGISTRY, Registered, Report, Reporter,
    Reports, Request, Shared, Target, registered,
};
pub use error::Error;
pub use landlock::{LandlockError, other_names};
pub use needs::ListenerHelper;
pub use quarantine::{end_quarantine, quarantine, try_quarantine};
pub use server::restrict_server;

/// Tells the programs at control groups of this build from those of others.
#[must_use]
pub fn egress_build() -> &'static str {
    env!("TOLLGATE_EGRESS_BUILD")
}
