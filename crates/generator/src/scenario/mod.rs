//! Described tests: a chain of processes, resources, and calls.
//!
//! The description is that of Falco's event generator. Its reader checks it and passes a [`Scenario`] to a
//! process (`PROGRAM generate scene`), which isolates itself from what must not be changed, starts the chain of
//! processes and ends with the status of the last one. That one makes the calls and prints its outcome in a
//! line of JSON, as an action does.

mod chain;
mod resource;
mod stage;
mod step;
mod values;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use chain::{LINK, follow_order};
pub use stage::{SceneOptions, command, scene};

/// One test, without the expected alerts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scenario {
    /// Name of the test.
    pub name: String,
    /// Context of the calls.
    pub context: Context,
    /// A script of bash to run before everything else.
    pub before: Option<String>,
    /// A script of bash to run at the end, in every case.
    pub after: Option<String>,
    /// Resources that exist during the calls, in order.
    pub resources: Vec<Resource>,
    /// The calls.
    pub steps: Vec<Step>,
}

/// Context in which a test runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    /// The chain of processes. Each is the parent of the next; the last one makes the calls.
    pub processes: Vec<Process>,
    /// The container in which they run, if any.
    pub container: Option<Container>,
}

/// Namespaces like those of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container, used as host name.
    pub name: Option<String>,
    /// Image name. Nothing is fetched: the files are those of the host.
    pub image: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
}

/// A process of the chain, or a process that calls act on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Process {
    /// Path of the program.
    pub exe_path: Option<String>,
    /// Arguments, with quotes as in a shell.
    pub args: Option<String>,
    /// Argument 0.
    pub exe: Option<String>,
    /// The kernel's name of the process.
    pub name: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// User.
    pub user: Option<String>,
    /// Capabilities, as in cap_from_text(3).
    pub capabilities: Option<String>,
}

/// A resource that calls need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// Name by which calls refer to it.
    pub name: String,
    /// Kind of the resource, with its properties.
    #[serde(flatten)]
    pub kind: ResourceKind,
}

/// Kind of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ResourceKind {
    /// Two connected sockets.
    ClientServer {
        /// Protocol: `tcp4`, `tcp6`, `udp4`, `udp6`, `unix`.
        l4_proto: String,
        /// Address and port of the server.
        address: String,
    },
    /// A file descriptor.
    Fd {
        /// Kind of the descriptor.
        subtype: String,
        /// Path of the file, for some kinds.
        file_path: Option<String>,
        /// Path of the folder, for some kinds.
        dir_path: Option<String>,
        /// Name of a file in memory.
        file_name: Option<String>,
    },
    /// A process.
    Process {
        /// Path of the program.
        exe_path: Option<String>,
        /// Arguments, with quotes as in a shell.
        args: Option<String>,
        /// Argument 0.
        exe: Option<String>,
        /// The kernel's name of the process.
        proc_name: Option<String>,
        /// Environment variables.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Name by which later calls refer to its arguments and result.
    pub name: String,
    /// Name of the system call.
    pub syscall: String,
    /// Arguments; `${NAME.PATH}` refers to a property of a resource or an earlier call.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Name of the expected error, such as EPERM. Without it the call must succeed.
    #[serde(default)]
    pub expected_error: Option<String>,
}

impl Scenario {
    /// Returns every address that the scenario names, so that no other host has them.
    fn addresses(&self) -> impl Iterator<Item = &str> {
        let resources = self
            .resources
            .iter()
            .filter_map(|resource| match &resource.kind {
                ResourceKind::ClientServer { address, .. } => Some(address.as_str()),
                _ => None,
            });
        let steps = self.steps.iter().flat_map(|step| {
            let names = ["address", "destAddr"].into_iter();
            names.filter_map(|name| step.args.get(name)?.as_str())
        });
        resources.chain(steps)
    }
}
