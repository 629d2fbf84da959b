//! Accepts a connection in an interpreter, as a back door does.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.InterpretedProcsInboundNetworkActivity",
    "accept a connection in a process called `lua`",
    play,
)
.optional_rule("Interpreted procs inbound network activity")
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("lua", "helper.InboundConnection")
}
