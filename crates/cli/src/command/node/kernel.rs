//! Enforcement by the kernel in the containers of every runtime.

use std::error::Error;
use std::sync::Arc;

use diagnostics::terminal;
use enforce::ContainerPlace;
use node::KernelEnforcer;
use policy::{EnforcerKind, Enforcers, Policy};
use probe::Support;

/// Returns the enforcers of this kernel. Policies for others are not enforced as a whole, which the report says.
pub(super) fn enforcer() -> Option<Arc<dyn KernelEnforcer>> {
    match enforce::probe::probe(EnforcerKind::Bpf) {
        Support::Yes { .. } => match enforce::enter_host_groups() {
            Ok(()) => Some(Arc::new(BpfLsm)),
            Err(error) => {
                let why = chain(&error);
                terminal::complain(&format!(
                    "tollgate: BPF enforces nothing on this node: {why}\n"
                ));
                None
            }
        },
        Support::Partial { why, .. } | Support::No { why, .. } => {
            terminal::complain(&format!(
                "tollgate: BPF enforces nothing on this node: {why}\n"
            ));
            None
        }
    }
}

/// The enforcer `BPF`.
struct BpfLsm;

impl KernelEnforcer for BpfLsm {
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

    fn confine(&self, policy: &Policy, pid: i32) -> Result<(), String> {
        let place = ContainerPlace::of(pid).map_err(|error| chain(&error))?;
        enforce::confine_container(policy, &place)
            .map(drop)
            .map_err(|error| chain(&error))
    }
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
