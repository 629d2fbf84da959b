//! Annotations of ours. A node decides by them, because it reads nothing else of most objects.

/// Annotation of an ArmorProfile with its target as JSON.
pub const TARGET: &str = "tollgate.dev/target";

/// Annotation of an ArmorProfile with the hash of its policy.
pub const HASH: &str = "tollgate.dev/hash";

/// Annotation of an ArmorProfile with the namespace of the installation that wrote it.
pub const INSTALLATION: &str = "tollgate.dev/installation";

/// Finalizer of an ArmorProfile: it stays, and is enforced, until all nodes have seen that it is being deleted.
pub const FINALIZER: &str = "tollgate.dev/nodes";

/// Annotation of a policy, copied to its ArmorProfile: [`FailMode`].
pub const FAIL_MODE: &str = "tollgate.dev/fail-mode";

/// Annotation of an ArmorProfile whose containers are observed, and of the ArmorProfileModel that is made of it:
/// [`ModelingRun`](crate::ModelingRun).
pub const MODELING: &str = "tollgate.dev/modeling";

/// Annotation of a pod with the profile of a container, whose name follows. Earlier builds wrote it: it counts in pods
/// that have no [`OF_POLICY`].
pub const MARK: &str = "container.tollgate.dev/";

/// Annotation of a pod, followed by the name of a profile: the mark of a policy. The value says nothing. Each policy has
/// its own, so that none overwrites that of another.
pub const OF_POLICY: &str = "profile.tollgate.dev/";

/// Annotation of a pod, followed by the name of a profile: its workload was restarted for the policy with the hash that is the
/// value.
pub const RESTARTED_FOR: &str = "restart.tollgate.dev/";

/// Annotation of a pod whose workload was restarted for a policy, with the time.
pub const RESTARTED_AT: &str = "controller.tollgate.dev/restartedAt";

/// The same by vArmor's name.
pub const VARMOR_RESTARTED_AT: &str = "controller.varmor.org/restartedAt";

/// What becomes of a container whose policy a node cannot enforce as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// The container is not created.
    #[default]
    Closed,
    /// The container runs with the rules that can be enforced, and is reported as unprotected.
    Open,
}

impl FailMode {
    /// The mode of an annotation's value. Everything but `open` is closed, so that a mistake weakens nothing.
    #[must_use]
    pub fn of(value: Option<&str>) -> Self {
        match value {
            Some("open") => Self::Open,
            _ => Self::Closed,
        }
    }

    /// The value of the annotation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}
