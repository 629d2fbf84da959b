//! An interpreter that accepts connections may be a back door.

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
