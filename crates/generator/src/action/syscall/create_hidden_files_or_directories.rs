//! Makes a folder whose name starts with a dot, which is not listed by default.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.CreateHiddenFilesOrDirectories",
    "make a folder whose name begins with a dot",
    play,
)
.optional_rule("Create Hidden Files or Directories");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let folder = scene.file(&format!(".{}", scene.unique()));
    fs::create_dir(&folder).map_err(Error::file("make", &folder))?;
    fs::remove_dir(&folder).map_err(Error::file("remove", &folder))?;
    Ok(())
}
