//! Writes a file to a folder of programs.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowBinaryDir", "create a file in /bin", play)
        .optional_rule("Write below binary dir")
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/bin"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.claim_in("/bin")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
