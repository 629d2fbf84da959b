//! The trait [`Enforcer`], which each enforcer implements in a file of its own, and the table of enforcers.

mod apparmor;
mod bpf;
mod caps;
mod landlock;
mod remote;
mod seccomp;

use std::fmt;
use std::time::Duration;

use abi::Capabilities;
use capture::notify::Caller;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::{MachineFeatures, NarrowedPolicy, seccomp::Profile as CallProfile};
use policy::{EnforcerKind, Policy};
use probe::Support;

use crate::{Denial, Error};

/// A kernel mechanism that enforces policies. A value is the compiled part of one policy.
pub trait Enforcer: fmt::Debug + Send + Sync {
    /// Probes whether the enforcer works on this host, by using it. The calling process must have one thread,
    /// because the probe forks.
    fn probe() -> Support
    where
        Self: Sized;

    /// Compiles the part of a policy that the enforcer supports, and creates everything that
    /// [`Enforcer::apply`] needs.
    ///
    /// # Errors
    /// Fails if something cannot be created. Nothing is left in the kernel then.
    fn compile(request: &Request<'_>, shared: &mut Shared) -> Result<Self, Error>
    where
        Self: Sized;

    /// Restricts the calling process, which becomes the command. Makes only system calls and allocates
    /// nothing: it runs between fork and exec.
    ///
    /// # Errors
    /// Fails if the process is not restricted; the command must not run then.
    fn apply(&self) -> sys::Result<()>;

    /// A report on the compiled part.
    fn report(&self) -> Report;

    /// Unloads what was loaded into the kernel: the part will not be applied.
    fn discard(&self) {}

    /// Serialises the steps for a container's first program; [`Enforcer::complete`] reads the text, possibly
    /// in another process. `None` means that there are none.
    fn deferred(&self) -> Option<String> {
        None
    }

    /// Continues from a deferred text, for a container whose first program is about to start.
    ///
    /// # Errors
    /// Fails if something cannot be created, or if the text does not come from [`Enforcer::deferred`].
    fn complete(deferred: &str, container: &Container<'_>) -> Result<Self, Error>
    where
        Self: Sized;

    /// Returns true if [`Enforcer::apply_to`] needs a descriptor that a process creates in the container's
    /// mounts.
    fn needs_descriptor(&self) -> bool {
        false
    }

    /// Restricts another process, which is held in its exec. `descriptor` is the process's number of the
    /// created descriptor. Returns those of the lost capabilities that the process would not have had anyway.
    ///
    /// # Errors
    /// Fails if the process is not restricted; it must not go on then.
    fn apply_to(&self, caller: &Caller, descriptor: Option<i32>) -> sys::Result<Capabilities>;

    /// The number under which the kernel reports violations of a part that was completed for a container.
    fn number(&self) -> Option<u32> {
        None
    }

    /// The kernel's reporter of violations. `None` if the kernel does not report, or if the filter traps the
    /// calls.
    fn reporter(&self) -> Option<Reporter> {
        None
    }

    /// Listens to the reporter of this name. `policy` returns the policy whose rules reports refer to.
    ///
    /// # Errors
    /// Fails if this process may not listen.
    fn listen(name: &str, policy: &dyn Fn() -> Option<Policy>) -> Result<Listen, Error>
    where
        Self: Sized,
    {
        let _ = policy;
        Err(Error::NoReporter(name.to_owned()))
    }

    /// Exchanges the loaded policies of this name, and returns their number. `None` if only a process itself
    /// can change its confinement.
    fn exchange(_policy: &Policy, _machine: &MachineFeatures) -> Option<Result<usize, Error>>
    where
        Self: Sized,
    {
        None
    }

    /// The loaded policies. `None` if the kernel keeps no list of them.
    fn loaded() -> Option<Result<Vec<Loaded>, Error>>
    where
        Self: Sized,
    {
        None
    }

    /// Removes policies that confine no process from the kernel.
    ///
    /// # Errors
    /// Fails if something cannot be removed.
    fn sweep() -> Result<(), Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// Input of [`Enforcer::compile`].
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The policy.
    pub policy: &'a NarrowedPolicy,
    /// The process that the policy is for.
    pub place: Target,
}

/// The process in which a policy is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The calling process, which becomes the command.
    Here,
    /// A process in another mount namespace.
    Elsewhere,
}

/// Results that the enforcers of a policy build together.
#[derive(Debug)]
pub struct Shared {
    /// The actions on system calls.
    pub calls: CallProfile,
    /// The classifier of failed calls as denials.
    pub classifier: DenialClassifier,
}

/// Report of an enforcer on its compiled part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The compiled content, such as the number of entries.
    pub given: String,
    /// Features that the kernel lacks.
    pub lacks: Vec<String>,
}

/// A container whose first program is about to start.
pub struct Container<'a> {
    /// Reads the policy and the mount table of the container (`/proc/PID/mountinfo`). Called only by
    /// enforcers that need them.
    pub read:
        &'a dyn Fn() -> Result<(NarrowedPolicy, String), Box<dyn std::error::Error + Send + Sync>>,
}

/// The kernel's reporter of violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// A reporter with this name.
    Named(String),
    /// A reporter whose number is known when a container's first program starts.
    Later,
}

/// Opens a reporter, in the thread that reads it.
pub type Listen = Box<dyn FnOnce() -> Result<Box<dyn Reports>, Error> + Send>;

/// A stream of violations from the kernel.
pub trait Reports {
    /// Waits up to `limit` for violations, and returns those that arrived.
    ///
    /// # Errors
    /// Fails if the stream cannot be read.
    fn wait(&mut self, limit: Duration) -> Result<Vec<Denial>, Error>;

    /// Number of losses; `None` if the counter cannot be read.
    fn lost(&self) -> Option<u64>;

    /// The message on a loss.
    fn describe_loss(&self, lost: u64) -> String;
}

/// A loaded policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Name of the policy.
    pub name: String,
    /// The kernel's counters, if it counts.
    pub counts: Option<Counts>,
}

/// The kernel's counters of a loaded policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of the policy.
    pub number: u32,
    /// Number of confined tasks.
    pub tasks: u64,
    /// Number of denied operations.
    pub denied: u64,
    /// Number of operations that were allowed and reported.
    pub audited: u64,
    /// Number of reports lost for lack of room.
    pub lost: u64,
}

/// Static description of an enforcer.
#[derive(Debug)]
pub struct About {
    /// The kind of enforcer.
    pub kind: EnforcerKind,
    /// Name of its probe.
    pub probe: &'static str,
    /// Its purpose, for reports.
    pub purpose: &'static str,
    /// The verb phrase for the restriction of a process, as in "can ..." and "cannot ...".
    pub step: &'static str,
    /// Set if each [`Enforcer::deferred`] returns a different text, such as a name that is used once.
    pub defers_anew: bool,
}

type ListenFn = fn(&str, &dyn Fn() -> Option<Policy>) -> Result<Listen, Error>;
type CompileFn = fn(&Request<'_>, &mut Shared) -> Result<Box<dyn Enforcer>, Error>;
type CompleteFn = fn(&str, &Container<'_>) -> Result<Box<dyn Enforcer>, Error>;

/// A row of the table of enforcers.
#[derive(Debug)]
pub struct Registered {
    /// Static description.
    pub about: &'static About,
    /// [`Enforcer::probe`]
    pub probe: fn() -> Support,
    /// [`Enforcer::exchange`]
    pub exchange: fn(&Policy, &MachineFeatures) -> Option<Result<usize, Error>>,
    /// [`Enforcer::loaded`]
    pub loaded: fn() -> Option<Result<Vec<Loaded>, Error>>,
    /// [`Enforcer::sweep`]
    pub sweep: fn() -> Result<(), Error>,
    /// [`Enforcer::listen`]
    pub listen: ListenFn,
    pub(crate) compile: CompileFn,
    pub(crate) complete: CompleteFn,
}

impl Registered {
    const fn new<E: Enforcer + 'static>(about: &'static About) -> Self {
        Self {
            about,
            probe: E::probe,
            exchange: E::exchange,
            loaded: E::loaded,
            sweep: E::sweep,
            listen: E::listen,
            compile: |request, shared| Ok(Box::new(E::compile(request, shared)?)),
            complete: |deferred, container| Ok(Box::new(E::complete(deferred, container)?)),
        }
    }
}

/// Every enforcer, in the order in which they restrict a process. BPF and AppArmor take effect at the next
/// exec and affect no later step. Landlock is the last of those that a process applies to itself: a ruleset
/// may deny what the others need.
pub static REGISTRY: [Registered; EnforcerKind::ALL.len()] = TABLE;

const TABLE: [Registered; EnforcerKind::ALL.len()] = [
    Registered::new::<bpf::Bpf>(&bpf::ABOUT),
    Registered::new::<apparmor::AppArmor>(&apparmor::ABOUT),
    Registered::new::<caps::Caps>(&caps::ABOUT),
    Registered::new::<landlock::Landlock>(&landlock::ABOUT),
    Registered::new::<seccomp::Seccomp>(&seccomp::ABOUT),
];

/// Checks that each kind is in the table: a missing enforcer would confine no process.
const _: () = {
    let (mut index, mut found) = (0, 0_u32);
    while index < TABLE.len() {
        found |= 1 << TABLE[index].about.kind as u32;
        index += 1;
    }
    assert!(found == (1 << EnforcerKind::ALL.len()) - 1);
};

/// The enforcer of a kind.
///
/// # Panics
/// Never: the compiler checks that each kind is in the table.
#[must_use]
pub fn registered(kind: EnforcerKind) -> &'static Registered {
    let mut all = REGISTRY.iter();
    all.find(|registered| registered.about.kind == kind)
        .expect("each kind is in the table")
}

/// Formats a number with its noun.
fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_things_read_as_words() {
        assert_eq!(count(1, "rule", "rules"), "1 rule");
        assert_eq!(count(0, "call rule", "call rules"), "0 call rules");
        assert_eq!(count(3, "entry", "entries"), "3 entries");
    }

    #[test]
    fn each_kind_is_registered_under_its_own_name() {
        for kind in EnforcerKind::ALL {
            let about = registered(kind).about;
            assert_eq!(about.kind, kind);
            assert_eq!(about.probe, format!("enforce-{}", kind.id()));
        }
    }
}
