//! The enforcer `AppArmor`: it loads a profile, which the process applies at its exec.

use std::time::Duration;

use abi::{Capabilities, Syscall};
use capture::notify::Caller;
use policy::compile::MachineFeatures;
use policy::{EnforcerKind, Policy};
use probe::Support;

use super::{
    About, Container, Enforcer, Listen, Loaded, Report, Reporter, Reports, Request, Shared,
};
use crate::audit::Audit;
use crate::{Denial, Error, apparmor};

pub(super) const ABOUT: About = About {
    kind: EnforcerKind::AppArmor,
    probe: "enforce-apparmor",
    purpose: "policies: denies by a profile of AppArmor",
    step: "request its AppArmor profile",
    defers_anew: true,
};

#[derive(Debug)]
pub(super) enum AppArmor {
    /// This process loaded the profile, and keeps other processes from removing it.
    Loaded(apparmor::Profile),
    /// Another process loaded the profile.
    Named(String),
}

impl AppArmor {
    fn name(&self) -> &str {
        match self {
            Self::Loaded(profile) => &profile.name,
            Self::Named(name) => name,
        }
    }
}

impl Enforcer for AppArmor {
    fn probe() -> Support {
        apparmor::probe()
    }

    fn compile(request: &Request<'_>, _shared: &mut Shared) -> Result<Self, Error> {
        let profile = apparmor::Profile::load(request.policy, request.policy.machine())?;
        Ok(Self::Loaded(profile))
    }

    fn apply(&self) -> sys::Result<()> {
        match self {
            Self::Loaded(profile) => profile.take(),
            // A named profile belongs to a container; the agent itself does not apply it.
            Self::Named(_) => Err(super::remote::missing("write(attr/exec)")),
        }
    }

    fn report(&self) -> Report {
        Report {
            given: format!("profile {}", self.name()),
            lacks: Vec::new(),
        }
    }

    /// A named profile belongs to who loaded it.
    fn discard(&self) {
        if let Self::Loaded(profile) = self {
            profile.discard();
        }
    }

    fn deferred(&self) -> Option<String> {
        Some(self.name().to_owned())
    }

    fn complete(deferred: &str, _container: &Container<'_>) -> Result<Self, Error> {
        Ok(Self::Named(deferred.to_owned()))
    }

    /// The process requests the profile, in addition to one that its runtime applies.
    fn apply_to(&self, caller: &Caller, _descriptor: Option<i32>) -> sys::Result<Capabilities> {
        let (file, order) = apparmor::order_for(caller.tid(), self.name());
        let path = [file.as_bytes(), b"\0"].concat();
        let opened = caller.call_with(Syscall::OPENAT, &path, |address| {
            [AT_FDCWD, address, O_WRONLY_CLOEXEC, 0, 0, 0]
        })?;
        let length = u64::try_from(order.len()).unwrap_or(u64::MAX);
        let written = caller.call_with(Syscall::WRITE, order.as_bytes(), |address| {
            [opened, address, length, 0, 0, 0]
        });
        caller.call(Syscall::CLOSE, [opened, 0, 0, 0, 0, 0])?;
        written?;
        Ok(Capabilities::default())
    }

    fn reporter(&self) -> Option<Reporter> {
        Some(Reporter::Named(self.name().to_owned()))
    }

    fn listen(name: &str, policy: &dyn Fn() -> Option<Policy>) -> Result<Listen, Error> {
        let audit = Audit::open(name, policy()).map_err(Error::Audit)?;
        Ok(Box::new(|| Ok(Box::new(audit))))
    }

    fn exchange(policy: &Policy, machine: &MachineFeatures) -> Option<Result<usize, Error>> {
        Some(apparmor::exchange(policy, machine).map_err(Error::LoadedProfiles))
    }

    fn loaded() -> Option<Result<Vec<Loaded>, Error>> {
        let loaded = |name| Loaded { name, counts: None };
        let names = apparmor::loaded().map_err(Error::LoadedProfiles);
        Some(names.map(|names| names.into_iter().map(loaded).collect()))
    }

    fn sweep() -> Result<(), Error> {
        apparmor::sweep().map_err(Error::LoadedProfiles)
    }
}

impl Reports for Audit {
    fn wait(&mut self, limit: Duration) -> Result<Vec<Denial>, Error> {
        Self::wait(self, limit).map_err(Error::Audit)
    }

    fn lost(&self) -> Option<u64> {
        Some(Self::lost(self))
    }

    fn describe_loss(&self, _lost: u64) -> String {
        "the kernel threw audit records away before they were read".to_owned()
    }
}

/// `AT_FDCWD` as a register holds it.
const AT_FDCWD: u64 = 0xffff_ffff_ffff_ff9c;
const O_WRONLY_CLOEXEC: u64 = 0o2_000_001;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_profile_that_is_not_applied_is_removed_by_who_loaded_it() {
        let kernel = tempfile::tempdir().unwrap();
        let removed = kernel.path().join(".remove");
        AppArmor::Named("tollgate-other.1".to_owned()).discard();
        assert!(!removed.exists());
        let profile = apparmor::testing::profile("tollgate-p.1", kernel.path());
        AppArmor::Loaded(profile).discard();
        assert_eq!(fs::read_to_string(removed).unwrap(), "tollgate-p.1");
    }
}
