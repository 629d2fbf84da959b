//! Connects by SSH to a port that firewalls leave open. Both ends are on this host.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};
use super::connection::{listen, reach};

pub(super) const ACTION: Action = Action::new(
    "syscall.DisallowedSSHConnectionNonStandardPort",
    "connect to port 443 of a public address from a process called `ssh`",
    play,
)
.rule("Disallowed SSH Connection Non Standard Port")
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    if scene.is_spawned() {
        return reach(address::PUBLIC, 443);
    }
    let _server = listen(address::PUBLIC, 443)?;
    scene.spawn_as("ssh", ACTION.name)
}
