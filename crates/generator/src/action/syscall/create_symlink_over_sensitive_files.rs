//! Creates another name for a folder with secrets, which no rule knows.

use std::fs;
use std::os::unix::fs::symlink;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.CreateSymlinkOverSensitiveFiles",
    "make a symbolic link to /etc, and look through it",
    play,
)
.rule("Create Symlink Over Sensitive Files");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let link = scene.file(&scene.unique());
    symlink("/etc", &link).map_err(Error::file("make", &link))?;
    fs::read_dir(&link).map_err(Error::file("read", &link))?;
    fs::remove_file(&link).map_err(Error::file("remove", &link))?;
    Ok(())
}
