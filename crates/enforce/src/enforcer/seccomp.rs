//! The enforcer `Seccomp`: a filter on system calls, which the starter of the command installs.

use abi::Capabilities;
use capture::notify::Caller;
use policy::EnforcerKind;
use policy::compile::seccomp::Profile;
use probe::{Support, seccomp_filter};

use super::{About, Container, Enforcer, Report, Request, Shared, count};
use crate::Error;

pub(super) const ABOUT: About = About {
    kind: EnforcerKind::Seccomp,
    probe: "enforce-seccomp",
    purpose: "policies: denies system calls by number and arguments",
    step: "install its filter",
    defers_anew: false,
};

/// The calls of a policy are part of the filter that is installed last, together with the calls that rules
/// watch: there is nothing to apply here.
#[derive(Debug)]
pub(super) struct Seccomp {
    rules: usize,
}

impl Enforcer for Seccomp {
    fn probe() -> Support {
        seccomp_filter()
    }

    fn compile(request: &Request<'_>, shared: &mut Shared) -> Result<Self, Error> {
        shared.calls = Profile::compile(request.policy);
        let rules = shared.calls.rules.len();
        Ok(Self { rules })
    }

    fn apply(&self) -> sys::Result<()> {
        Ok(())
    }

    fn report(&self) -> Report {
        Report {
            given: count(self.rules, "call rule", "call rules"),
            lacks: Vec::new(),
        }
    }

    fn complete(deferred: &str, _container: &Container<'_>) -> Result<Self, Error> {
        // This enforcer defers nothing.
        Err(Error::Deferred(EnforcerKind::Seccomp, deferred.to_owned()))
    }

    fn apply_to(&self, _caller: &Caller, _descriptor: Option<i32>) -> sys::Result<Capabilities> {
        Ok(Capabilities::default())
    }
}
