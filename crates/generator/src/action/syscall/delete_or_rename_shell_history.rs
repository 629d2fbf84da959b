//! Removes the history of a shell.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DeleteOrRenameShellHistory",
    "remove a file called `.bash_history`",
    play,
)
.optional_rule("Delete or rename shell history");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let history = scene.file(".bash_history");
    fs::write(&history, "make\n").map_err(Error::file("write", &history))?;
    fs::remove_file(&history).map_err(Error::file("remove", &history))?;
    Ok(())
}
