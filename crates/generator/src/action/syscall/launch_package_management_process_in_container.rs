//! Images are complete; what is installed later is somebody's own.

use super::super::{Action, Scene, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchPackageManagementProcessInContainer",
    "start a process called `apt-get`",
    play,
)
.optional_rule("Launch Package Management Process in Container")
.inside();

fn play(scene: &Scene) -> Result<(), Stop> {
    let mut apt_get = scene.pose("apt-get")?;
    apt_get.args(["install", "nothing"]);
    scene.run(apt_get)
}
