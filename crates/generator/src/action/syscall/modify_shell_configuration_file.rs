//! What a shell reads when somebody logs in.

use std::fs;

use workload::Error;

use super::super::{Action, Scene, Stop, Touches, home};

pub(super) const ACTION: Action = Action::new(
    "syscall.ModifyShellConfigurationFile",
    "write a `.bashrc` below /home",
    play,
)
.optional_rule("Modify Shell Configuration File")
.also(&["Modify shell start-up file"])
.touches(Touches::Shared(&["/home"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let home = home::make(scene)?;
    let file = home.path().join(".bashrc");
    fs::write(&file, "# nothing\n").map_err(Error::file("write", &file))?;
    Ok(())
}
