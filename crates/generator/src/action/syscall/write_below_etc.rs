//! Writes a file below /etc.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowEtc", "create a file in /etc", play)
        .optional_rule("Write below etc")
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/etc"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.claim_in("/etc")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
