//! Connects out from an interpreter.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.InterpretedProcsOutboundNetworkActivity",
    "connect to a public address in a process called `lua`",
    play,
)
.optional_rule("Interpreted procs outbound network activity")
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("lua", "helper.OutboundConnection")
}
