//! Confinement of a process in another mount namespace: a container's first program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use abi::Capabilities;
use capture::notify::Caller;
use policy::EnforcerKind;
use policy::compile::{NarrowedPolicy, landlock as holes};

use crate::enforcer::{Container, Enforcer, REGISTRY, Registered, registered};
use crate::{ApplyError, Error, Step, landlock};

/// The steps of each enforcer for a container's first program, besides the filter: the texts that
/// [`Enforcer::complete`] reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredConfinement(pub BTreeMap<EnforcerKind, String>);

/// The parts created for one container's first program, which is not restricted yet.
#[derive(Debug)]
pub struct Prepared(Vec<(&'static Registered, Box<dyn Enforcer>)>);

/// The result of restricting a container's first program.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Dropped capabilities that the program would not have had anyway.
    pub lacked: Capabilities,
    /// The number under which the kernel reports the program's violations, if it is known only now.
    pub number: Option<u32>,
}

impl DeferredConfinement {
    /// Returns true if each compilation of the policy yields the same value, so that what was created for it
    /// can be reused.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        let mut kinds = self.0.keys();
        kinds.all(|kind| !registered(*kind).about.defers_anew)
    }

    /// Creates the parts that a container needs.
    ///
    /// # Errors
    /// Fails if a part cannot be created. Nothing is left in the kernel then.
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
    /// Returns true if [`Prepared::apply`] needs a descriptor that is created in the container's mounts
    /// ([`ruleset`]).
    #[must_use]
    pub fn needs_descriptor(&self) -> bool {
        self.0
            .iter()
            .any(|(_, enforcer)| enforcer.needs_descriptor())
    }

    /// Restricts the process, partly by making it restrict itself. `descriptor` is the process's number of
    /// the created descriptor.
    ///
    /// # Errors
    /// Returns the step that failed. Steps before it stay in force.
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

    /// Unloads the parts: they confine no process.
    pub fn discard(&self) {
        for (_, enforcer) in &self.0 {
            enforcer.discard();
        }
    }
}

/// Creates the Landlock ruleset of a policy for the root of this process, which may lack a `/proc` of its
/// own: `mounts` is the mount table, `path` lists the folders of programs.
///
/// # Errors
/// Fails if the ruleset cannot be created.
///
/// Returns the ruleset and its gaps, including names that bypass its rules.
pub fn ruleset(
    policy: &NarrowedPolicy,
    mounts: &str,
    path: Option<&OsStr>,
) -> Result<Option<(OwnedFd, Vec<String>)>, Error> {
    let profile = holes::Profile::compile(policy, policy.machine());
    let made = landlock::make_for(&profile, mounts, path)?;
    Ok(made.map(|made| (made.ruleset, made.lacks)))
}
