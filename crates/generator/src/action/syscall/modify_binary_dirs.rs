//! Renames a program in a folder of programs. Programs of the host keep their names.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.ModifyBinaryDirs", "rename a file in /bin", play)
        .optional_rule("Modify binary dirs")
        .also(&["Write below binary dir"])
        .needs(&[Requirement::Root])
        .touches(SideEffects::System(&["/bin"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let (from, to) = (scene.claim_in("/bin")?, scene.claim_in("/bin")?);
    fs::write(from.path(), "").map_err(Error::file("write", from.path()))?;
    fs::rename(from.path(), to.path()).map_err(Error::file("rename", from.path()))?;
    Ok(())
}
