//! Reads SSH keys and the hosts they are for.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, SideEffects, Stop, home};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadSshInformation",
    "read a `known_hosts` below /home",
    play,
)
.optional_rule("Read ssh information")
.touches(SideEffects::Shared(&["/home"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let home = home::make(scene)?;
    let ssh = home.path().join(".ssh");
    fs::create_dir(&ssh).map_err(Error::file("make", &ssh))?;
    let hosts = ssh.join("known_hosts");
    fs::write(&hosts, "").map_err(Error::file("write", &hosts))?;
    fs::read(&hosts).map_err(Error::file("read", &hosts))?;
    Ok(())
}
