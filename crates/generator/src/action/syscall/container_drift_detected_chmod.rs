//! Makes a file of a container executable after the container's start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ContainerDriftDetectedChmod",
    "make a file executable",
    play,
)
.optional_rule("Container Drift Detected (chmod)")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.file("drift");
    fs::write(&file, "").map_err(Error::file("write", &file))?;
    fs::set_permissions(&file, Permissions::from_mode(0o755))
        .map_err(Error::file("open", &file))?;
    Ok(())
}
