//! Modifies a file that a shell reads at login.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, SideEffects, Stop, home};

pub(super) const ACTION: Action = Action::new(
    "syscall.ModifyShellConfigurationFile",
    "write a `.bashrc` below /home",
    play,
)
.optional_rule("Modify Shell Configuration File")
.also(&["Modify shell start-up file"])
.touches(SideEffects::Shared(&["/home"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let home = home::make(scene)?;
    let file = home.path().join(".bashrc");
    fs::write(&file, "# nothing\n").map_err(Error::file("write", &file))?;
    Ok(())
}
