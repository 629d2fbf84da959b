//! Makes a folder in a folder of programs.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.MkdirBinaryDirs", "make a folder in /bin", play)
        .optional_rule("Mkdir binary dirs")
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/bin"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let folder = scene.claim_in("/bin")?;
    fs::create_dir(folder.path()).map_err(Error::file("make", folder.path()))?;
    Ok(())
}
