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

/// The reason why a policy cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Landlock ruleset cannot be created.
    #[error("cannot make the Landlock ruleset")]
    Landlock(#[from] LandlockError),
    /// The BPF programs or tables cannot be loaded.
    #[error("cannot load the policy into the kernel")]
    Bpf(#[from] bpf::Error),
    /// The AppArmor profile cannot be loaded.
    #[error("cannot load the AppArmor profile")]
    AppArmor(#[from] apparmor::Error),
    /// The capabilities of this process cannot be read.
    #[error("cannot read the own capabilities")]
    Capabilities(#[from] sys::SyscallError),
    /// The BPF policies in the kernel are not accessible.
    #[error(transparent)]
    KeptPolicies(bpf::Error),
    /// The loaded AppArmor profiles are not accessible.
    #[error(transparent)]
    LoadedProfiles(apparmor::Error),
    /// The kernel's audit records are not accessible.
    #[error("cannot hear the kernel's audit records (it needs CAP_AUDIT_READ)")]
    Audit(#[source] std::io::Error),
    /// The policy or the mounts of a container cannot be read.
    #[error("cannot read the policy of the container, or its mounts")]
    Container(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The deferred confinement of a container comes from another version of this program.
    #[error(
        "{0} cannot restrict a container by `{1}`, which another version of this program wrote"
    )]
    Deferred(policy::EnforcerKind, String),
    /// No enforcer reports violations under this name.
    #[error("nothing reports violations as `{0}`")]
    NoReporter(String),
}
