//! Restricting a process that sees other files than this one: a container's first program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use abi::constant::{PR_CAP_AMBIENT, PR_CAPBSET_DROP, PR_CAPBSET_READ, PR_SET_NO_NEW_PRIVS};
use abi::{Capabilities, Errno, Syscall};
use capture::notify::Caller;
use policy::compile::{MachineFeatures, landlock as holes};
use policy::{EnforcerKind, Policy};

use crate::enforcer::{Container, Enforcer, REGISTRY, Registered, registered};
use crate::{ApplyError, Error, Step, landlock};

/// What enforcers have to do to it, beside what becomes of its calls: for each, what [`Enforcer::complete`]
/// reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredConfinement(pub BTreeMap<EnforcerKind, String>);

/// What was made for one container's first program, which is not restricted yet.
#[derive(Debug)]
pub struct Prepared(Vec<(&'static Registered, Box<dyn Enforcer>)>);

/// What a container's first program became.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Capabilities among those that were dropped that it would not have had anyway.
    pub lacked: Capabilities,
    /// The number under which the kernel reports its violations, if it is known only now.
    pub number: Option<u32>,
}

impl DeferredConfinement {
    /// Whether it is the same whenever the same policy is compiled, so that what was made for it can be used
    /// again.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        let mut kinds = self.0.keys();
        kinds.all(|kind| !registered(*kind).about.defers_anew)
    }

    /// Makes what has to be made for a container.
    ///
    /// # Errors
    /// If something cannot be made. Then nothing is left in the kernel.
    pub fn prepare(&self, container: &Container<'_>) -> Result<Prepared, Error> {
        let mut prepared = Prepared(Vec::new());
        for registered in &REGISTRY {
            let Some(deferred) = self.0.get(&registered.about.kind) else {
                continue;
            };
            match (registered.complete)(deferred, container) {
                Ok(enforcer) => prepared.0.push((registered, enforcer)),
                Err(error) => {
                    prepared.discard();
                    return Err(error);
                }
            }
        }
        Ok(prepared)
    }
}

impl Prepared {
    /// Whether [`Prepared::apply`] needs a descriptor that is made in the container's mounts ([`ruleset`]).
    #[must_use]
    pub fn needs_descriptor(&self) -> bool {
        self.0
            .iter()
            .any(|(_, enforcer)| enforcer.needs_descriptor())
    }

    /// Has the process restrict itself, and restricts it. `descriptor`: its number of the one that was made.
    ///
    /// # Errors
    /// The step that failed. What was done before stays.
    pub fn apply(&self, caller: &Caller, descriptor: Option<i32>) -> Result<Applied, ApplyError> {
        let mut applied = Applied {
            lacked: Capabilities::default(),
            number: None,
        };
        for (registered, enforcer) in &self.0 {
            let outcome = enforcer.apply_to(caller, descriptor);
            let lacked = outcome.map_err(|cause| ApplyError {
                step: Step(registered.about.kind),
                cause,
            })?;
            applied.lacked.0 |= lacked.0;
            applied.number = applied.number.or(enforcer.number());
        }
        Ok(applied)
    }

    /// Removes it again: nobody is confined by it.
    pub fn discard(&self) {
        for (_, enforcer) in &self.0 {
            enforcer.discard();
        }
    }
}

/// Makes the Landlock ruleset of a policy for the root that this process has, which sees no `/proc` of
/// its own perhaps: `mounts` is the table of mounts, `path` where programs lie.
///
/// # Errors
/// If it cannot be made.
///
/// Answers with the ruleset and what it lacks, ways past its rules that were found there among it.
pub fn ruleset(
    policy: &Policy,
    machine: &MachineFeatures,
    mounts: &str,
    path: Option<&OsStr>,
) -> Result<Option<(OwnedFd, Vec<String>)>, Error> {
    let profile = holes::Profile::compile(policy, machine);
    let made = landlock::make_for(&profile, mounts, path)?;
    Ok(made.map(|made| (made.ruleset, made.lacks)))
}

/// What was to be handed over was not.
pub(crate) fn missing(call: &'static str) -> sys::SyscallError {
    sys::SyscallError {
        call,
        errno: Errno::EBADF,
    }
}

/// A call of prctl(2) that a process is made to make.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PrctlCall {
    ClearAmbient,
    DropBounding(u8),
    ReadBounding(u8),
    SetNoNewPrivs,
}

impl PrctlCall {
    pub(crate) fn make(self, caller: &Caller) -> sys::Result<u64> {
        let (operation, argument) = match self {
            Self::ClearAmbient => (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL),
            Self::DropBounding(number) => (PR_CAPBSET_DROP, u64::from(number)),
            Self::ReadBounding(number) => (PR_CAPBSET_READ, u64::from(number)),
            Self::SetNoNewPrivs => (PR_SET_NO_NEW_PRIVS, 1),
        };
        caller.call(Syscall::PRCTL, [operation.u64(), argument, 0, 0, 0, 0])
    }
}

pub(crate) fn set_no_new_privs(caller: &Caller) -> sys::Result<()> {
    PrctlCall::SetNoNewPrivs.make(caller)?;
    Ok(())
}

const PR_CAP_AMBIENT_CLEAR_ALL: u64 = 4;
