//! Policies that the kernel applies to the containers of every runtime.

use std::fmt;
use std::sync::Arc;

use policy::{EnforcerKind, Enforcers, Policy};

/// Enforces policies in containers that another program makes, from their first program on.
pub trait KernelEnforcer: Send + Sync {
    /// Returns the enforcers that it has here; empty if the kernel has none of them.
    fn enforcers(&self) -> Enforcers;

    /// Returns what the kernel lacks for a policy: it is not enforced as a whole then.
    fn lacks(&self, policy: &Policy) -> Vec<String>;

    /// Prepares the kernel for a policy, which may take seconds. Called when the policy is read.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn prepare(&self, policy: &Policy) -> Result<(), String>;

    /// Confines all programs that begin in a container from now on. `pid`: its first process, which waits for its
    /// program. What is confined stays so when the agent ends.
    ///
    /// # Errors
    ///
    /// What is wrong. Nothing is confined then.
    fn confine(&self, policy: &Policy, pid: i32) -> Result<(), String>;
}

/// What of a policy the enforcers of the node carry.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Option<Arc<dyn KernelEnforcer>>);

impl Kernel {
    pub(crate) fn new(enforcer: Option<Arc<dyn KernelEnforcer>>) -> Self {
        Self(enforcer)
    }

    /// Returns the enforcers of a policy that the node uses for a container of another runtime: the seccomp filter, and
    /// those of the kernel.
    pub(crate) fn enforcers_of(&self, policy: &Policy) -> Enforcers {
        let own = self.enforcers().with(EnforcerKind::Seccomp);
        let used = policy.enforcers.iter().filter(|kind| own.contains(*kind));
        used.fold(Enforcers::default(), Enforcers::with)
    }

    pub(crate) fn enforcers(&self) -> Enforcers {
        self.0
            .as_ref()
            .map_or_else(Enforcers::default, |own| own.enforcers())
    }

    pub(crate) fn lacks(&self, policy: &Policy) -> Vec<String> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |own| own.lacks(policy))
    }

    pub(crate) fn prepare(&self, policy: &Policy) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |own| own.prepare(policy))
    }

    pub(crate) fn confine(&self, policy: &Policy, pid: u32) -> Result<(), String> {
        let enforcer = self.0.as_ref().ok_or("the node has no such enforcer")?;
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or("the container runtime has not named its first process")?;
        enforcer.confine(policy, pid)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Kernel({})", self.enforcers().joined())
    }
}
