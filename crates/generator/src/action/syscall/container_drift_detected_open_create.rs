//! Creates an executable file in a container after the container's start.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ContainerDriftDetectedOpenCreate",
    "create a file that is executable from its birth",
    play,
)
.optional_rule("Container Drift Detected (open+create)")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.file(&scene.unique());
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o755);
    options.open(&file).map_err(Error::file("create", &file))?;
    fs::remove_file(&file).map_err(Error::file("remove", &file))?;
    Ok(())
}
