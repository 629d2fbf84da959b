//! The enforcer `Landlock`: the process restricts itself with a ruleset.

use std::os::fd::{AsFd, OwnedFd};

use abi::{Capabilities, Errno, Syscall};
use capture::notify::Caller;
use policy::EnforcerKind;
use policy::compile::landlock::Profile;
use probe::{Support, landlock as probe_landlock};

use super::remote::{missing, set_no_new_privs};
use super::{About, Container, Enforcer, Report, Request, Shared, count};
use crate::{Error, Target, landlock};

pub(super) const ABOUT: About = About {
    kind: EnforcerKind::Landlock,
    probe: "enforce-landlock",
    purpose: "policies: denies files, mounts and processes outside",
    step: "restrict itself by Landlock",
    defers_anew: false,
};

/// Deferred text: the ruleset is created later.
const RULESET: &str = "ruleset";

#[derive(Debug)]
pub(super) struct Landlock {
    ruleset: Option<OwnedFd>,
    /// Set if the ruleset is created in the container, whose files its rules are about.
    is_later: bool,
    report: Report,
}

impl Landlock {
    fn later() -> Self {
        Self {
            ruleset: None,
            is_later: true,
            report: Report {
                given: "rules are made when it begins".to_owned(),
                lacks: Vec::new(),
            },
        }
    }
}

impl Enforcer for Landlock {
    fn probe() -> Support {
        probe_landlock()
    }

    fn compile(request: &Request<'_>, shared: &mut Shared) -> Result<Self, Error> {
        let profile = Profile::compile(request.policy, request.policy.machine());
        if request.place == Target::Elsewhere && !profile.entries.is_empty() {
            return Ok(Self::later());
        }
        let made = match request.place {
            Target::Here => landlock::make(&profile)?,
            Target::Elsewhere => None,
        };
        let rules = made.as_ref().map_or(0, |made| made.rules);
        let given = count(rules, "rule", "rules");
        let Some(made) = made else {
            return Ok(Self {
                ruleset: None,
                is_later: false,
                report: Report {
                    given,
                    lacks: Vec::new(),
                },
            });
        };
        let classifier = std::mem::take(&mut shared.classifier);
        shared.classifier = classifier.with_ruleset(made.denied, &made.granted);
        Ok(Self {
            ruleset: Some(made.ruleset),
            is_later: false,
            report: Report {
                given,
                lacks: made.lacks,
            },
        })
    }

    /// A process with CAP_SYS_ADMIN can restrict itself and still gain privileges.
    fn apply(&self) -> sys::Result<()> {
        let Some(ruleset) = &self.ruleset else {
            return Ok(());
        };
        match sys::landlock::restrict_self(ruleset.as_fd()) {
            Err(error) if error.is(Errno::EPERM) => {
                sys::seccomp::set_no_new_privs()?;
                sys::landlock::restrict_self(ruleset.as_fd())
            }
            outcome => outcome,
        }
    }

    fn report(&self) -> Report {
        self.report.clone()
    }

    fn deferred(&self) -> Option<String> {
        self.is_later.then(|| RULESET.to_owned())
    }

    fn complete(deferred: &str, _container: &Container<'_>) -> Result<Self, Error> {
        match deferred {
            RULESET => Ok(Self::later()),
            other => Err(Error::Deferred(EnforcerKind::Landlock, other.to_owned())),
        }
    }

    fn needs_descriptor(&self) -> bool {
        self.is_later
    }

    /// Containers usually lack CAP_SYS_ADMIN; without it, restricting needs `no_new_privs`.
    fn apply_to(&self, caller: &Caller, descriptor: Option<i32>) -> sys::Result<Capabilities> {
        let number = descriptor.ok_or_else(|| missing("landlock_restrict_self"))?;
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        let restrict = || caller.call(Syscall::LANDLOCK_RESTRICT_SELF, [number, 0, 0, 0, 0, 0]);
        match restrict() {
            Err(error) if error.is(Errno::EPERM) => {
                set_no_new_privs(caller)?;
                restrict()?;
            }
            outcome => drop(outcome?),
        }
        Ok(Capabilities::default())
    }
}
