//! Tests that are described, not programmed: a chain of processes, resources, and calls.
//!
//! The description is that of Falco's event generator. Who reads it checks it and hands a [`Scenario`]
//! to a process (`PROGRAM generate scene`), which leaves what must not be changed, starts the chain of
//! processes and ends with the status of the last one. That one plays, and tells what came of it in a
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

/// One test, without what is expected of a detector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Where it plays.
    pub context: Context,
    /// A script of bash to run before everything else.
    pub before: Option<String>,
    /// A script of bash to run at the end, whatever happened.
    pub after: Option<String>,
    /// Resources that exist during the calls, in order.
    pub resources: Vec<Resource>,
    /// The calls.
    pub steps: Vec<Step>,
}

/// Where a test plays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    /// Each is the parent of the next; the last one plays.
    pub processes: Vec<Process>,
    /// Whether that is in a container, and its environment.
    pub container: Option<Container>,
}

/// Namespaces like those of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Becomes the host name.
    pub name: Option<String>,
    /// Nothing is fetched: the files are those of this machine.
    pub image: Option<String>,
    /// Variables.
    pub env: BTreeMap<String, String>,
}

/// A process of the chain, or one to do something to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Process {
    /// The program's file.
    pub exe_path: Option<String>,
    /// Arguments, with quotes as in a shell.
    pub args: Option<String>,
    /// Argument 0.
    pub exe: Option<String>,
    /// The kernel's name of the process.
    pub name: Option<String>,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// As whom.
    pub user: Option<String>,
    /// Capabilities, as in cap_from_text(3).
    pub capabilities: Option<String>,
}

/// Something that calls need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// By which calls refer to it.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: ResourceKind,
}

/// What a resource is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ResourceKind {
    /// Two connected sockets.
    ClientServer {
        /// `tcp4`, `tcp6`, `udp4`, `udp6`, `unix`.
        l4_proto: String,
        /// Address and port of the server.
        address: String,
    },
    /// A descriptor.
    Fd {
        /// Of what.
        subtype: String,
        /// The file, for some.
        file_path: Option<String>,
        /// The folder, for some.
        dir_path: Option<String>,
        /// The name, for a file in memory.
        file_name: Option<String>,
    },
    /// A process.
    Process {
        /// The program's file.
        exe_path: Option<String>,
        /// Arguments, with quotes as in a shell.
        args: Option<String>,
        /// Argument 0.
        exe: Option<String>,
        /// The kernel's name of the process.
        proc_name: Option<String>,
        /// Variables.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// By which later calls refer to what it was and what came of it.
    pub name: String,
    /// Which call.
    pub syscall: String,
    /// Its arguments; `${NAME.PATH}` is what a resource or an earlier call has.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// The error that it must end with, as in EPERM. Without it the call must not fail.
    #[serde(default)]
    pub expected_error: Option<String>,
}

impl Scenario {
    /// Every address that it names, so that nobody else has them.
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
