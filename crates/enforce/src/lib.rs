//! A policy in force.
//!
//! Each part of the kernel that can put policies in force implements [`Enforcer`], in a file of its own, and is
//! in the table [`REGISTRY`]. [`probe`](mod@probe) finds out which of them work here, by using them.
//! [`Confinement::prepare`] compiles a policy for those, and says of each whether it carries its part fully,
//! partially or not at all. [`Confinement::apply`] restricts the calling process, which is about to become the command. A
//! step that fails ends it: nothing runs with less than was announced. A container's first program is
//! made to restrict itself in the same way ([`DeferredConfinement`]).

mod apparmor;
mod audit;
mod bpf;
mod caps;
mod confinement;
mod container;
mod denial;
mod enforcer;
mod landlock;
mod names;
mod needs;
pub mod probe;
mod tree;

pub use confinement::{
    ApplyError, Confinement, EnforcedExtent, Line, LoadedPolicy, Step, Target, available,
};
pub use container::{Applied, DeferredConfinement, Prepared, ruleset};
pub use denial::Denial;
pub use enforcer::{
    About, Container, Counts, Enforcer, Listen, Loaded, REGISTRY, Registered, Report, Reporter,
    Reports, Request, Shared, registered,
};
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
    /// What BPF keeps in the kernel is out of reach.
    #[error(transparent)]
    KeptPolicies(bpf::Error),
    /// The profiles of AppArmor that are loaded are out of reach.
    #[error(transparent)]
    LoadedProfiles(apparmor::Error),
    /// The audit records of the kernel are out of reach.
    #[error("cannot hear the kernel's audit records (it needs CAP_AUDIT_READ)")]
    Audit(#[source] std::io::Error),
    /// The policy or the mounts of a container cannot be read.
    #[error("cannot read the policy of the container, or its mounts")]
    Container(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What was handed over to restrict a container is of another version of this program.
    #[error(
        "{0} cannot restrict a container by `{1}`, which another version of this program wrote"
    )]
    Deferred(policy::EnforcerKind, String),
    /// Nothing reports violations under this name.
    #[error("nothing reports violations as `{0}`")]
    NoReporter(String),
}
