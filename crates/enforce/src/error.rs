//! The errors of all enforcers.

use crate::landlock::LandlockError;
use crate::{apparmor, bpf};

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
