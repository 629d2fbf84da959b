//! Creates a file among devices, where it is easily overlooked.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.CreateFilesBelowDev", "create a file in /dev", play)
        .optional_rule("Create files below dev")
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/dev"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.claim_in("/dev")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
