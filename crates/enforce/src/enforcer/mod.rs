//! The trait that each enforcer implements, in a file of its own below, and the table of them all.

mod apparmor;
mod bpf;
mod caps;
mod landlock;
mod seccomp;

use std::fmt;
use std::time::Duration;

use abi::Capabilities;
use capture::notify::Caller;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::{MachineFeatures, seccomp::Profile as CallProfile};
use policy::{EnforcerKind, Policy};
use probe::Support;

use crate::{Denial, Error, Target};

/// A part of the kernel that puts policies in force. A value is what it compiled of one policy.
pub trait Enforcer: fmt::Debug + Send + Sync {
    /// Whether the enforcer works here, found out by using it. The calling process must have one thread,
    /// because this forks.
    fn probe() -> Support
    where
        Self: Sized;

    /// Compiles what the enforcer carries of a policy, and makes everything that [`Enforcer::apply`] needs.
    ///
    /// # Errors
    /// If something cannot be made. Then nothing of it is left in the kernel.
    fn compile(request: &Request<'_>, shared: &mut Shared) -> Result<Self, Error>
    where
        Self: Sized;

    /// Restricts the calling process, which becomes the command. Makes only system calls and allocates
    /// nothing: it runs between fork and exec.
    ///
    /// # Errors
    /// If it is not restricted; then the command must not run.
    fn apply(&self) -> sys::Result<()>;

    /// What the enforcer was given.
    fn report(&self) -> Report;

    /// Takes back what was loaded into the kernel: nobody is to be confined by it.
    fn discard(&self) {}

    /// What the enforcer does to a container's first program, as [`Enforcer::complete`] reads it, perhaps in
    /// another process. `None`: nothing.
    fn deferred(&self) -> Option<String> {
        None
    }

    /// Takes up what was deferred, for a container whose first program is about to begin.
    ///
    /// # Errors
    /// If it cannot be made, or the text is not one of [`Enforcer::deferred`].
    fn complete(deferred: &str, container: &Container<'_>) -> Result<Self, Error>
    where
        Self: Sized;

    /// Whether [`Enforcer::apply_to`] needs a descriptor that a process makes in the container's mounts.
    fn needs_descriptor(&self) -> bool {
        false
    }

    /// Restricts another process, which is held in its exec. `descriptor`: its number of the one that was
    /// made. Answers with the capabilities among those that it loses which it would not have had anyway.
    ///
    /// # Errors
    /// If it is not restricted; then it must not go on.
    fn apply_to(&self, caller: &Caller, descriptor: Option<i32>) -> sys::Result<Capabilities>;

    /// The number under which the kernel reports violations of what was taken up for a container.
    fn number(&self) -> Option<u32> {
        None
    }

    /// Where the kernel reports violations. `None`: it does not, or the filter hands them over.
    fn reporter(&self) -> Option<Reporter> {
        None
    }

    /// Listens to the reporter of this name. `policy` is asked which rule a report is about.
    ///
    /// # Errors
    /// If this process may not hear it.
    fn listen(name: &str, policy: &dyn Fn() -> Option<Policy>) -> Result<Listen, Error>
    where
        Self: Sized,
    {
        let _ = policy;
        Err(Error::NoReporter(name.to_owned()))
    }

    /// Exchanges the policies of this name that are in force, and answers with how many. `None`: only a process
    /// itself can change what confines it.
    fn exchange(_policy: &Policy, _machine: &MachineFeatures) -> Option<Result<usize, Error>>
    where
        Self: Sized,
    {
        None
    }

    /// The policies in force. `None`: the kernel has no list of them.
    fn loaded() -> Option<Result<Vec<Loaded>, Error>>
    where
        Self: Sized,
    {
        None
    }

    /// Removes from the kernel what confines nobody any more.
    ///
    /// # Errors
    /// If something cannot be removed.
    fn sweep() -> Result<(), Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// What an enforcer compiles.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// What is known of the machine.
    pub machine: &'a MachineFeatures,
    /// Where it is to be in force.
    pub place: Target,
}

/// What the enforcers of a policy make together.
#[derive(Debug)]
pub struct Shared {
    /// What becomes of system calls.
    pub calls: CallProfile,
    /// What tells which failures were denials.
    pub witness: DenialClassifier,
}

/// What an enforcer was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How much, or what.
    pub given: String,
    /// What the kernel cannot do of it.
    pub lacks: Vec<String>,
}

/// A container whose first program is about to begin.
pub struct Container<'a> {
    /// The policy, and the table of the container's mounts (`/proc/PID/mountinfo`). Asked only by those that
    /// need it.
    pub read: &'a dyn Fn() -> Result<(Policy, String), Box<dyn std::error::Error + Send + Sync>>,
}

/// Where the kernel reports violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// Under this name.
    Named(String),
    /// Under a number that is known when a container's first program begins.
    Later,
}

/// Opens what the kernel reports, in the thread that reads it.
pub type Listen = Box<dyn FnOnce() -> Result<Box<dyn Reports>, Error> + Send>;

/// What the kernel reports of violations.
pub trait Reports {
    /// Waits so long for violations, and answers with those that came.
    ///
    /// # Errors
    /// If they cannot be read.
    fn wait(&mut self, limit: Duration) -> Result<Vec<Denial>, Error>;

    /// How often something was lost; `None` if the counter cannot be read.
    fn lost(&self) -> Option<u64>;

    /// What is said of a loss.
    fn describe_loss(&self, lost: u64) -> String;
}

/// A policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// What the kernel counts of it, if it does.
    pub counts: Option<Counts>,
}

/// What the kernel counts of a policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The number of the policy.
    pub number: u32,
    /// Tasks that it confines.
    pub tasks: u64,
    /// Operations that it denied.
    pub denied: u64,
    /// Operations that it let pass and reported.
    pub audited: u64,
    /// Reports for which there was no room.
    pub lost: u64,
}

/// What is said of an enforcer.
#[derive(Debug)]
pub struct About {
    /// Which.
    pub kind: EnforcerKind,
    /// The name of its probe.
    pub probe: &'static str,
    /// What it is good for.
    pub purpose: &'static str,
    /// What a process that it restricts does: it can or cannot ...
    pub step: &'static str,
    /// Whether [`Enforcer::deferred`] is another text each time, such as a name that is used once.
    pub defers_anew: bool,
}

type ListenFn = fn(&str, &dyn Fn() -> Option<Policy>) -> Result<Listen, Error>;
type CompileFn = fn(&Request<'_>, &mut Shared) -> Result<Box<dyn Enforcer>, Error>;
type CompleteFn = fn(&str, &Container<'_>) -> Result<Box<dyn Enforcer>, Error>;

/// An enforcer in the table.
#[derive(Debug)]
pub struct Registered {
    /// What is said of it.
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

/// Every enforcer, in the order in which they restrict a process. BPF and AppArmor hold from the next exec on
/// and hinder none of those after them. Landlock is last of those that a process applies to itself: a ruleset
/// may deny what the others need.
pub static REGISTRY: [Registered; EnforcerKind::ALL.len()] = TABLE;

const TABLE: [Registered; EnforcerKind::ALL.len()] = [
    Registered::new::<bpf::Bpf>(&bpf::ABOUT),
    Registered::new::<apparmor::AppArmor>(&apparmor::ABOUT),
    Registered::new::<caps::Caps>(&caps::ABOUT),
    Registered::new::<landlock::Landlock>(&landlock::ABOUT),
    Registered::new::<seccomp::Seccomp>(&seccomp::ABOUT),
];

/// Each kind is in the table: an enforcer that is left out would confine nobody.
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
/// Never: the compiler has checked that each kind is in the table.
#[must_use]
pub fn registered(kind: EnforcerKind) -> &'static Registered {
    let mut all = REGISTRY.iter();
    all.find(|registered| registered.about.kind == kind)
        .expect("each kind is in the table")
}

/// A number of things, in words.
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
