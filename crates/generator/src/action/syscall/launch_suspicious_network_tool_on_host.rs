//! Starts a network reconnaissance tool on the host. Nothing is sent.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LaunchSuspiciousNetworkToolOnHost",
    "start a process called `nmap` outside containers",
    play,
)
.rule("Launch Suspicious Network Tool on Host")
.outside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut nmap = scene.pose("nmap")?;
    nmap.args(["-sn", "192.0.2.1/32"]);
    scene.run(nmap)
}
