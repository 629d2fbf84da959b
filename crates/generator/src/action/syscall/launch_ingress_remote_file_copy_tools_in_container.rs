//! Starts a download tool in a container. Nothing is fetched.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchIngressRemoteFileCopyToolsInContainer",
    "start a process called `wget`",
    play,
)
.optional_rule("Launch Ingress Remote File Copy Tools in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut wget = scene.pose("wget")?;
    wget.args(["-V"]);
    scene.run(wget)
}
