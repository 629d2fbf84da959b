//! Starts a network reconnaissance tool in a container. Nothing is sent.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchSuspiciousNetworkToolInContainer",
    "start a process called `nmap` in a container",
    play,
)
.optional_rule("Launch Suspicious Network Tool in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut nmap = scene.pose("nmap")?;
    nmap.args(["-sn", "192.0.2.0/24"]);
    scene.run(nmap)
}
