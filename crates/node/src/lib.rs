//! The agent of a Kubernetes node.
//!
//! It is a plug-in of the container runtime (NRI): the runtime asks before it creates a container, and waits. The agent
//! finds the container's ArmorProfile, and confines the container in one of these ways:
//!
//! - by a seccomp filter that the runtime installs, joined with the one that the container has;
//! - with a [`KernelEnforcer`] by the kernel, which tells the programs of a container by its namespaces and groups;
//! - by tollgate's own runtime, in pods whose RuntimeClass has one of its handlers: the agent hands over the policy.
//!
//! A rule that neither enforces is a gap. The fail mode of the policy decides about it: a container is not created, or
//! it runs and is reported as unprotected. Filters are the kernel's: they stay when the agent dies.
//!
//! The agent reads the metadata of all ArmorProfiles, and the policies of those that its containers need. It keeps both
//! on disk, and never waits for the API server while the runtime waits for it.
//!
//! With [`PodEvents`] it writes what happens in pods as Events. With a [`Detection`] it also brings Rulesfiles and Configs to an engine that watches the node, and tells that engine what
//! the runtime says of pods and containers, before they start. With a [`Behavior`] an engine observes the containers of policies
//! in the mode BehaviorModeling, and the report says what they did.

mod agent;
mod behavior;
mod change;
mod confine;
mod coverage;
mod detect;
mod enforcers;
mod event_limits;
mod event_writer;
pub mod explain;
mod facts;
mod filter;
mod follow;
mod index;
mod kernel;
#[cfg(test)]
mod kernel_tests;
mod kernel_violations;
mod late;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod marks_tests;
mod merge;
mod modeled;
mod names;
mod observe;
mod pod_events;
mod printable;
mod profiles;
mod queue;
mod report;
mod run;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod too_long;
mod violation_log;
mod violations;
mod workload;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use behavior::{Behavior, BehaviorEngine, Recorder};
pub use detect::{Detection, Detector, DetectorFigures, last_sources};
pub use kernel::{
    KernelContainer, KernelEnforcer, KernelViolation, KernelViolations, TakeViolation,
};
pub use pod_events::{EventFigures, EventReason, Occurrence, PodEvents, PodRef};
pub use printable::printable;
pub use report::metric_names;
pub use run::{Parts, RunError, run};
pub use store::StoreError;
pub use violations::ViolationFiles;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node, which is also that of its NodeReport.
    pub node: String,
    /// Namespace of the installation, in which the profiles of the cluster's policies are.
    pub installation: String,
    /// Socket of the container runtime's NRI.
    pub socket: PathBuf,
    /// Folder for what the agent keeps.
    pub state: PathBuf,
    /// Handlers of RuntimeClasses that are tollgate's runtime.
    pub handlers: Vec<String>,
    /// Folder in which tollgate's runtime looks for policies.
    pub policies: PathBuf,
    /// Folder in which tollgate's runtime notes containers.
    pub runtime_state: PathBuf,
    /// How long an answer to the container runtime may take. It asks for one container after the other.
    pub deadline: Duration,
    /// Address for metrics and health.
    pub listen: Option<SocketAddr>,
    /// Time between two reports without a change.
    pub renewal: Duration,
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
