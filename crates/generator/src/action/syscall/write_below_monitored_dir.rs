//! Writes a file to a folder of libraries.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.WriteBelowMonitoredDir",
    "create a file in /lib",
    play,
)
.optional_rule("Write below monitored dir")
.needs(&[Requirement::Root])
.touches(SideEffects::System(&["/lib"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.claim_in("/lib")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
