//! Tools of the system that compute need no network.

use super::super::{Action, Need, Scene, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.SystemProcsNetworkActivity",
    "connect to a private address in a process called `sha1sum`",
    play,
)
.optional_rule("System procs network activity")
.needs(&[Need::Address(address::PRIVATE)]);

fn play(scene: &Scene) -> Result<(), Stop> {
    scene.spawn_as("sha1sum", "helper.NetworkActivity")
}
