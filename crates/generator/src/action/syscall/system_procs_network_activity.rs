//! Uses the network from a system tool that needs none.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.SystemProcsNetworkActivity",
    "connect to a private address in a process called `sha1sum`",
    play,
)
.optional_rule("System procs network activity")
.needs(&[Requirement::Address(address::PRIVATE)]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("sha1sum", "helper.NetworkActivity")
}
