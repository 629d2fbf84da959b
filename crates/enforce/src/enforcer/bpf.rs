//! The enforcer `BPF`: it loads the policy into tables of programs at the hooks of the security modules,
//! which confine the process from its exec on.

use std::time::Duration;

use abi::Capabilities;
use capture::notify::Caller;
use policy::compile::MachineFeatures;
use policy::compile::bpf::Profile;
use policy::{EnforcerKind, Policy};
use probe::Support;

use super::remote::missing;
use super::{
    About, Container, Counts, Enforcer, Listen, Loaded, Report, Reporter, Reports, Request, Shared,
    count,
};
use crate::bpf::{self, BpfPolicyHandle};
use crate::{Denial, Error, Target};

pub(super) const ABOUT: About = About {
    kind: EnforcerKind::Bpf,
    probe: "enforce-bpf",
    purpose: "policies: denies at the hooks of the security modules",
    step: "enter the BPF LSM policy",
    defers_anew: false,
};

/// Deferred text: the policy is loaded for the container's mounts.
const TABLES: &str = "tables";

#[derive(Debug)]
pub(super) struct Bpf {
    entries: usize,
    tenancy: Option<BpfPolicyHandle>,
    /// Set if the policy is loaded when the container's first program starts.
    is_later: bool,
}

impl Enforcer for Bpf {
    fn probe() -> Support {
        bpf::probe()
    }

    fn compile(request: &Request<'_>, _shared: &mut Shared) -> Result<Self, Error> {
        let profile = Profile::compile(request.policy, request.policy.machine());
        let entries = profile.entries.len();
        let is_later = request.place == Target::Elsewhere && entries != 0;
        let tenancy = match entries == 0 || is_later {
            true => None,
            false => Some(BpfPolicyHandle::load(&profile, &request.policy.name)?),
        };
        Ok(Self {
            entries,
            tenancy,
            is_later,
        })
    }

    fn apply(&self) -> sys::Result<()> {
        self.tenancy
            .as_ref()
            .map_or(Ok(()), BpfPolicyHandle::confine)
    }

    fn report(&self) -> Report {
        Report {
            given: count(self.entries, "entry", "entries"),
            lacks: self
                .tenancy
                .as_ref()
                .map_or_else(Vec::new, |tenancy| tenancy.lacks.clone()),
        }
    }

    fn discard(&self) {
        if let Some(tenancy) = &self.tenancy {
            tenancy.discard();
        }
    }

    fn deferred(&self) -> Option<String> {
        self.is_later.then(|| TABLES.to_owned())
    }

    fn complete(deferred: &str, container: &Container<'_>) -> Result<Self, Error> {
        if deferred != TABLES {
            return Err(Error::Deferred(EnforcerKind::Bpf, deferred.to_owned()));
        }
        let (policy, mounts) = (container.read)().map_err(Error::Container)?;
        let profile = Profile::compile(&policy, policy.machine());
        Ok(Self {
            entries: profile.entries.len(),
            tenancy: Some(BpfPolicyHandle::load_for(&profile, &policy.name, &mounts)?),
            is_later: false,
        })
    }

    /// The task that makes the exec is confined; in a process with several threads, only the first thread can
    /// be named on every kernel.
    fn apply_to(&self, caller: &Caller, _descriptor: Option<i32>) -> sys::Result<Capabilities> {
        match &self.tenancy {
            Some(tenancy) if caller.is_leader() => tenancy.confine_process(caller.tid())?,
            _ => return Err(missing("bpf")),
        }
        Ok(Capabilities::default())
    }

    fn number(&self) -> Option<u32> {
        self.tenancy.as_ref().map(BpfPolicyHandle::number)
    }

    fn reporter(&self) -> Option<Reporter> {
        match &self.tenancy {
            Some(tenancy) => Some(Reporter::Named(tenancy.number().to_string())),
            None => self.is_later.then_some(Reporter::Later),
        }
    }

    fn listen(name: &str, _policy: &dyn Fn() -> Option<Policy>) -> Result<Listen, Error> {
        let number: u32 = name
            .parse()
            .map_err(|_no_number| Error::NoReporter(name.to_owned()))?;
        Ok(Box::new(move || {
            let reports = bpf::Reports::open(number).map_err(Error::KeptPolicies)?;
            Ok(Box::new(reports))
        }))
    }

    /// Asks for every hook, also for those that this kernel lacks: the exchange fails then.
    fn exchange(policy: &Policy, _machine: &MachineFeatures) -> Option<Result<usize, Error>> {
        let profile = Profile::compile(policy, &MachineFeatures::default());
        Some(bpf::exchange(&profile, &policy.name).map_err(Error::KeptPolicies))
    }

    fn loaded() -> Option<Result<Vec<Loaded>, Error>> {
        let loaded = |loaded: bpf::Loaded| Loaded {
            name: loaded.name,
            counts: Some(Counts {
                number: loaded.number,
                tasks: loaded.users,
                denied: loaded.denied,
                audited: loaded.audited,
                lost: loaded.lost,
            }),
        };
        let policies = bpf::loaded().map_err(Error::KeptPolicies);
        Some(policies.map(|policies| policies.into_iter().map(loaded).collect()))
    }

    fn sweep() -> Result<(), Error> {
        bpf::release().map_err(Error::KeptPolicies)
    }
}

impl Reports for bpf::Reports {
    fn wait(&mut self, limit: Duration) -> Result<Vec<Denial>, Error> {
        Self::wait(self, limit).map_err(Error::KeptPolicies)
    }

    fn lost(&self) -> Option<u64> {
        Self::lost(self).ok()
    }

    fn describe_loss(&self, lost: u64) -> String {
        format!("{lost} violations were dropped (buffer full)")
    }
}
