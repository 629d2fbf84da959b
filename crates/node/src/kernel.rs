//! Policies that the kernel applies to the containers of every runtime.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use policy::{EnforcerKind, Enforcers, Policy};

/// Enforces policies in containers that another program makes, from their first program on.
pub trait KernelEnforcer: Send + Sync {
    /// Returns what tells its programs from those of other builds, whose containers it does not know.
    fn build(&self) -> &str;

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
    /// program. What is confined stays so when the agent ends. Policies of one `owner` are versions of one another.
    /// A container that is confined already keeps the version that it has.
    ///
    /// # Errors
    ///
    /// What is wrong. Nothing is confined then.
    fn confine(&self, owner: &str, policy: &Policy, pid: i32) -> Result<KernelContainer, String>;

    /// Brings a version of the owner's policy into force in all its containers that are confined, while their programs run.
    ///
    /// # Errors
    ///
    /// What is wrong. Containers may have the version before then.
    fn change(&self, owner: &str, policy: &Policy) -> Result<(), String>;

    /// Removes what the kernel has of containers that have ended.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn remove_ended(&self) -> Result<(), String>;

    /// Opens the stream of violations in all containers; `None` if no policy was prepared yet. It goes on where the agent
    /// before has ended. `take` gets each violation before the kernel hears that it was read.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn violations(&self, take: TakeViolation) -> Result<Option<Box<dyn KernelViolations>>, String>;
}

/// A container that the kernel confines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelContainer {
    /// Number by which the kernel names it.
    pub number: u32,
    /// It has the policy that was asked for, and not another version of it.
    pub is_current: bool,
}

/// Takes a violation.
pub type TakeViolation = Box<dyn FnMut(KernelViolation)>;

/// A stream of violations.
pub trait KernelViolations {
    /// Waits up to `limit` for violations, and has those taken that have come.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn wait(&self, limit: Duration) -> Result<(), String>;

    /// Returns how many violations were lost since the kernel began to report.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn lost(&self) -> Result<u64, String>;

    /// Returns false if the kernel reports to another stream by now.
    ///
    /// # Errors
    ///
    /// What is wrong.
    fn is_current(&self) -> Result<bool, String>;
}

/// A violation in a container that the kernel confines.
#[derive(Clone, Debug)]
pub struct KernelViolation {
    /// Number of the container.
    pub number: u32,
    /// How long ago it was.
    pub age: Duration,
    /// Name of the rule.
    pub rule: String,
    /// Name of the enforcer.
    pub enforcer: &'static str,
    /// Name of the error, if it was denied.
    pub errno: Option<String>,
    /// What was done.
    pub operation: String,
    /// Arguments of the operation.
    pub detail: String,
    /// The file that it was done to.
    pub path: Option<String>,
    /// The process.
    pub pid: u32,
    /// Name of its thread.
    pub comm: String,
    /// Its program.
    pub exe: Option<String>,
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

    /// The build of its programs; `None` if the node has no such enforcer.
    pub(crate) fn build(&self) -> Option<&str> {
        self.0.as_ref().map(|own| own.build())
    }

    pub(crate) fn lacks(&self, policy: &Policy) -> Vec<String> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |own| own.lacks(policy))
    }

    pub(crate) fn prepare(&self, policy: &Policy) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |own| own.prepare(policy))
    }

    pub(crate) fn enforcer(&self) -> Option<&dyn KernelEnforcer> {
        self.0.as_deref()
    }

    pub(crate) fn confine(
        &self,
        owner: &str,
        policy: &Policy,
        pid: u32,
    ) -> Result<KernelContainer, String> {
        let enforcer = self.0.as_ref().ok_or("the node has no such enforcer")?;
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or("the container runtime has not named its first process")?;
        enforcer.confine(owner, policy, pid)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Kernel({})", self.enforcers().joined())
    }
}
