//! Sets the bit that lets a program run with its owner's rights.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.SetSetuidOrSetgidBit",
    "set the setuid bit of a file",
    play,
)
.optional_rule("Set Setuid or Setgid bit");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.file("lender");
    fs::write(&file, "").map_err(Error::file("write", &file))?;
    fs::set_permissions(&file, Permissions::from_mode(0o4755))
        .map_err(Error::file("open", &file))?;
    fs::remove_file(&file).map_err(Error::file("remove", &file))?;
    Ok(())
}
