//! Egress rules at the control groups of containers, for kernels without BPF LSM.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use enforce::{BpfError, ContainerPlace, EgressPrograms, EgressTable, LoadedEgress};
use node::{KernelContainer, KernelEnforcer, KernelViolations, TakeViolation};
use policy::{EnforcerKind, Enforcers, Policy};

use super::kernel::chain;

/// The enforcer `BPF` for policies whose only rules are about egress.
pub(super) struct ControlGroups {
    spare: Arc<Spare>,
}

/// Programs for the next policy, loaded beforehand: a container that starts waits for them.
struct Spare(Mutex<Option<LoadedEgress>>);

impl Spare {
    fn lock(&self) -> MutexGuard<'_, Option<LoadedEgress>> {
        // Programs are there as a whole, or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads programs, if there are none. Who needs some meanwhile waits for these. Where the kernel refuses them, who takes some
    /// loads them, and is told why.
    fn fill(&self) {
        let mut spare = self.lock();
        if spare.is_none() {
            *spare = LoadedEgress::load().ok();
        }
    }

    /// Returns programs. Who takes them calls [`Spare::fill_later`] when nobody waits any more.
    fn take(&self) -> Result<LoadedEgress, BpfError> {
        let taken = self.lock().take();
        taken.map_or_else(LoadedEgress::load, Ok)
    }

    /// Loads the next programs in a thread. Where there can be none, who takes the next ones loads them.
    fn fill_later(self: &Arc<Self>) {
        let own = Arc::clone(self);
        let thread = thread::Builder::new().name("egress-programs".to_owned());
        let _ = thread.spawn(move || own.fill());
    }
}

impl ControlGroups {
    /// Checks that the kernel takes the programs.
    pub(super) fn find() -> Result<Self, BpfError> {
        let loaded = enforce::try_egress()?;
        enforce::enter_host_groups()?;
        let spare = Arc::new(Spare(Mutex::new(Some(loaded))));
        Ok(Self { spare })
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

    fn prepare(&self, policy: &Policy) -> Result<(), String> {
        let prepared = EgressTable::of(policy).map(drop);
        // The policy is not known before this returns, and its containers wait for it.
        self.spare.fill_later();
        prepared.map_err(|error| chain(&error))
    }

    fn confine(&self, owner: &str, policy: &Policy, pid: i32) -> Result<KernelContainer, String> {
        let is_taken = Cell::new(false);
        let take = || {
            is_taken.set(true);
            self.spare.take()
        };
        let confine = || {
            let table = EgressTable::of(policy)?;
            let place = ContainerPlace::of(pid)?;
            EgressPrograms::open()?.confine(owner, &table, &place, take)
        };
        let confined = confine();
        if is_taken.get() {
            self.spare.fill_later();
        }
        let is_current = confined.map_err(|error: BpfError| chain(&error))?;
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
