//! Enforcement by the kernel in the containers of every runtime.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use diagnostics::terminal;
use enforce::{ContainerPlace, ContainerReports, ContainerViolation};
use node::{KernelContainer, KernelEnforcer, KernelViolation, KernelViolations, TakeViolation};
use policy::{EnforcerKind, Enforcers, Policy};
use probe::Support;

use super::groups::ControlGroups;

/// Returns the enforcers of this kernel. Policies for others are not enforced as a whole, which the report says.
pub(super) fn enforcer() -> Option<Arc<dyn KernelEnforcer>> {
    let why = match enforce::probe::probe(EnforcerKind::Bpf) {
        Support::Yes { .. } => match enforce::enter_host_groups() {
            Ok(()) => return Some(Arc::new(BpfLsm)),
            Err(error) => chain(&error),
        },
        Support::Partial { why, .. } | Support::No { why, .. } => why,
    };
    match ControlGroups::find() {
        Ok(groups) => {
            terminal::complain(&format!(
                "tollgate: BPF enforces rules about egress alone on this node: {why}\n"
            ));
            Some(Arc::new(groups))
        }
        Err(error) => {
            let groups = chain(&error);
            terminal::complain(&format!(
                "tollgate: BPF enforces nothing on this node: {why}; egress: {groups}\n"
            ));
            None
        }
    }
}

/// The enforcer `BPF`.
struct BpfLsm;

impl KernelEnforcer for BpfLsm {
    fn build(&self) -> &str {
        enforce::containers_build()
    }

    fn enforcers(&self) -> Enforcers {
        Enforcers::default().with(EnforcerKind::Bpf)
    }

    fn lacks(&self, policy: &Policy) -> Vec<String> {
        let missing = enforce::missing_hooks(policy).into_iter();
        missing
            .map(|hook| format!("the kernel of the node has no hook {hook}"))
            .collect()
    }

    fn prepare(&self, policy: &Policy) -> Result<(), String> {
        enforce::prepare_containers(policy).map_err(|error| chain(&error))
    }

    fn confine(&self, owner: &str, policy: &Policy, pid: i32) -> Result<KernelContainer, String> {
        let place = ContainerPlace::of(pid).map_err(|error| chain(&error))?;
        let confined = enforce::confine_container(owner, policy, &place);
        let confined = confined.map_err(|error| chain(&error))?;
        Ok(KernelContainer {
            number: confined.number,
            is_current: confined.is_current,
        })
    }

    fn change(&self, owner: &str, policy: &Policy) -> Result<(), String> {
        let changed = enforce::change_containers(owner, policy);
        changed.map(drop).map_err(|error| chain(&error))
    }

    fn remove_ended(&self) -> Result<(), String> {
        enforce::remove_ended_containers().map_err(|error| chain(&error))
    }

    fn violations(
        &self,
        mut take: TakeViolation,
    ) -> Result<Option<Box<dyn KernelViolations>>, String> {
        let opened = ContainerReports::open(move |violation| take(plain(violation)));
        let opened = opened.map_err(|error| chain(&error))?;
        Ok(opened.map(|stream| Box::new(Stream(stream)) as Box<dyn KernelViolations>))
    }
}

/// The violations of all containers.
struct Stream(ContainerReports);

impl KernelViolations for Stream {
    fn wait(&self, limit: Duration) -> Result<(), String> {
        self.0.wait(limit).map_err(|error| chain(&error))
    }

    fn lost(&self) -> Result<u64, String> {
        self.0.lost().map_err(|error| chain(&error))
    }

    fn is_current(&self) -> Result<bool, String> {
        self.0.is_current().map_err(|error| chain(&error))
    }
}

fn plain(violation: ContainerViolation) -> KernelViolation {
    let denial = violation.denial;
    let name = |errno: abi::Errno| {
        let name = errno.name();
        name.map_or_else(|| errno.0.to_string(), str::to_owned)
    };
    KernelViolation {
        number: violation.number,
        age: violation.age,
        rule: denial.rule,
        enforcer: denial.enforcer.name(),
        errno: denial.errno.map(name),
        operation: denial.operation,
        detail: denial.detail,
        path: denial.path,
        pid: denial.pid,
        comm: denial.comm,
        exe: denial.exe,
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
