//! Reads a shell's configuration, which may hold secrets in variables.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadShellConfigurationFile",
    "read a `.bashrc`",
    play,
)
.optional_rule("Read Shell Configuration File");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.file(".bashrc");
    fs::write(&file, "# nothing\n").map_err(Error::file("write", &file))?;
    fs::read(&file).map_err(Error::file("read", &file))?;
    Ok(())
}
