//! Starts a package manager in a container: images are complete, so later installations are suspicious.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchPackageManagementProcessInContainer",
    "start a process called `apt-get`",
    play,
)
.optional_rule("Launch Package Management Process in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut apt_get = scene.pose("apt-get")?;
    apt_get.args(["install", "nothing"]);
    scene.run(apt_get)
}
