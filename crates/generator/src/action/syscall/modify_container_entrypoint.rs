//! Opens a descriptor for writing by its path below /proc, which is a way to the runtime's program
//! (CVE-2019-5736).

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ModifyContainerEntrypoint",
    "open a descriptor of its own for writing, by its path below /proc",
    play,
)
.optional_rule("Modify Container Entrypoint")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = File::create(scene.file("out")).map_err(Error::call("make a file"))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new()
        .write(true)
        .open(&path)
        .map_err(Error::file("open", &path))?;
    Ok(())
}
