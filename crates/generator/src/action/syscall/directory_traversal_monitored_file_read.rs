//! Reads a file by directory traversal, as servers do that join paths without checks.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

const PATH: &str = "/etc/../etc/../etc/passwd";

pub(super) const ACTION: Action = Action::new(
    "syscall.DirectoryTraversalMonitoredFileRead",
    "open a file below /etc by a path that climbs",
    play,
)
.rule("Directory traversal monitored file read");

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    File::open(PATH).map_err(Error::file("open", PATH))?;
    Ok(())
}
