//! Writes a file below /root.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowRoot", "create a file in /root", play)
        .optional_rule("Write below root")
        .also(&["Write in the home of root"])
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/root"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.claim_in("/root")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
