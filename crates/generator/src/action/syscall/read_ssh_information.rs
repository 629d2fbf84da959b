//! Keys, and where they fit.

use std::fs;

use workload::Error;

use super::super::{Action, Scene, Stop, Touches, home};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadSshInformation",
    "read a `known_hosts` below /home",
    play,
)
.optional_rule("Read ssh information")
.touches(Touches::Shared(&["/home"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let home = home::make(scene)?;
    let ssh = home.path().join(".ssh");
    fs::create_dir(&ssh).map_err(Error::file("make", &ssh))?;
    let hosts = ssh.join("known_hosts");
    fs::write(&hosts, "").map_err(Error::file("write", &hosts))?;
    fs::read(&hosts).map_err(Error::file("read", &hosts))?;
    Ok(())
}
