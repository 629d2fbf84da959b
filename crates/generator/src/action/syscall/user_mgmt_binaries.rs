//! Starts a program that changes accounts.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.UserMgmtBinaries",
    "start a process called `vipw` outside containers",
    play,
)
.optional_rule("User mgmt binaries")
.outside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("vipw", "helper.ExecLs")
}
