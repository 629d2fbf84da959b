//! Starts a remote copy tool in a container. Nothing is copied.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchRemoteFileCopyToolsInContainer",
    "start a process called `scp`",
    play,
)
.optional_rule("Launch Remote File Copy Tools in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let scp = scene.pose("scp")?;
    scene.run(scp)
}
