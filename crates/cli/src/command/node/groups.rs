//! Egress rules at the control groups of containers, for kernels without BPF LSM.

use enforce::{BpfError, ContainerPlace, EgressPrograms, EgressTable};
use node::{KernelContainer, KernelEnforcer, KernelViolations, TakeViolation};
use policy::{EnforcerKind, Enforcers, Policy};

use super::kernel::chain;

/// The enforcer `BPF` for policies whose only rules are about egress.
pub(super) struct ControlGroups;

impl ControlGroups {
    /// Checks that the kernel takes the programs.
    pub(super) fn find() -> Result<Self, BpfError> {
        enforce::try_egress()?;
        enforce::enter_host_groups()?;
        Ok(Self)
    }
}

impl KernelEnforcer for ControlGroups {
    fn build(&self) -> &str {
        enforce::egress_build()
    }

    fn enforcers(&self) -> Enforcers {
        Enforcers::default().with(EnforcerKind::Bpf)
    }

    fn lacks(&self, policy: &Policy) -> Vec<String> {
        enforce::what_egress_lacks(policy)
    }

    /// Loading takes milliseconds: it is left to the start of a container.
    fn prepare(&self, policy: &Policy) -> Result<(), String> {
        EgressTable::of(policy)
            .map(drop)
            .map_err(|error| chain(&error))
    }

    fn confine(&self, owner: &str, policy: &Policy, pid: i32) -> Result<KernelContainer, String> {
        let confine = || {
            let table = EgressTable::of(policy)?;
            let place = ContainerPlace::of(pid)?;
            EgressPrograms::open()?.confine(owner, &table, &place)
        };
        let is_current = confine().map_err(|error: BpfError| chain(&error))?;
        Ok(KernelContainer {
            // Nothing is reported by it.
            number: 0,
            is_current,
        })
    }

    fn change(&self, owner: &str, policy: &Policy) -> Result<(), String> {
        let change = || {
            let table = EgressTable::of(policy)?;
            EgressPrograms::open()?.change(owner, &table)
        };
        change().map_err(|error: BpfError| chain(&error))
    }

    fn remove_ended(&self) -> Result<(), String> {
        let programs = EgressPrograms::open();
        let removed = programs.and_then(|programs| programs.remove_ended());
        removed.map_err(|error| chain(&error))
    }

    /// The programs count, and report nothing.
    fn violations(
        &self,
        _take: TakeViolation,
    ) -> Result<Option<Box<dyn KernelViolations>>, String> {
        Ok(None)
    }
}
