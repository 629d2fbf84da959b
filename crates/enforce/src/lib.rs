//! A policy in force.
//!
//! [`probe`](mod@probe) finds out which enforcers work here, by using them. [`Confinement::prepare`]
//! compiles a policy for those, and says of each whether it carries its part fully, partially or not at
//! all. [`Confinement::apply`] restricts the calling process, which is about to become the command. A
//! step that fails ends it: nothing runs with less than was announced. A container's first program is
//! made to restrict itself in the same way ([`DeferredConfinement`]).

pub mod apparmor;
mod audit;
pub mod bpf;
mod caps;
mod confinement;
mod deferred;
mod denial;
mod landlock;
mod names;
mod needs;
pub mod probe;
mod tree;

pub use audit::Audit;
pub use confinement::{
    ApplyError, Confinement, EnforcedExtent, Line, LoadedPolicy, Step, Target, available,
};
pub use deferred::{DeferredBpfPolicy, DeferredConfinement, ruleset};
pub use denial::Denial;
pub use landlock::{LandlockError, other_names};
pub use needs::ListenerHelper;

/// Why a policy cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ruleset of Landlock cannot be made.
    #[error("cannot make the Landlock ruleset")]
    Landlock(#[from] LandlockError),
    /// The programs or tables of BPF cannot be loaded.
    #[error("cannot load the policy into the kernel")]
    Bpf(#[from] bpf::Error),
    /// The profile of AppArmor cannot be loaded.
    #[error("cannot load the AppArmor profile")]
    AppArmor(#[from] apparmor::Error),
    /// What this process may cannot be found out.
    #[error("cannot read the own capabilities")]
    Capabilities(#[from] sys::SyscallError),
}
