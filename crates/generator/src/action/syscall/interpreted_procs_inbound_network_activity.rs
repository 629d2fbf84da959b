//! An interpreter that accepts connections may be a back door.

use super::super::{Action, Need, Scene, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.InterpretedProcsInboundNetworkActivity",
    "accept a connection in a process called `lua`",
    play,
)
.optional_rule("Interpreted procs inbound network activity")
.needs(&[Need::Address(address::PUBLIC)]);

fn play(scene: &Scene) -> Result<(), Stop> {
    scene.spawn_as("lua", "helper.InboundConnection")
}
