//! Adds an SSH key that opens an account, as a persistent way back in.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, SideEffects, Stop, home};

pub(super) const ACTION: Action = Action::new(
    "syscall.AddingSshKeysToAuthorizedKeys",
    "write an `authorized_keys` below /home",
    play,
)
.optional_rule("Adding ssh keys to authorized_keys")
.touches(SideEffects::Shared(&["/home"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let home = home::make(scene)?;
    let ssh = home.path().join(".ssh");
    fs::create_dir(&ssh).map_err(Error::file("make", &ssh))?;
    let keys = ssh.join("authorized_keys");
    fs::write(&keys, "ssh-ed25519 AAAA nobody\n").map_err(Error::file("write", &keys))?;
    Ok(())
}
