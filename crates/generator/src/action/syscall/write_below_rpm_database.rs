//! Writes to the database of installed packages.

use std::fs;
use std::path::Path;

use workload::Error;

use super::super::{Action, ActionEnvironment, ClaimedPath, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.WriteBelowRpmDatabase",
    "create a file in /var/lib/rpm",
    play,
)
.optional_rule("Write below rpm database")
.also(&["Write below package database"])
.needs(&[Requirement::Root])
.touches(SideEffects::System(&["/var/lib"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    // On hosts without this package manager the folder is made for the duration of the action.
    let made = if Path::new("/var/lib/rpm").exists() {
        None
    } else {
        fs::create_dir("/var/lib/rpm").map_err(Error::file("make", "/var/lib/rpm"))?;
        Some(ClaimedPath::new("/var/lib/rpm"))
    };
    let file = scene.claim_in("/var/lib/rpm")?;
    fs::write(file.path(), "").map_err(Error::file("write", file.path()))?;
    drop(file);
    drop(made);
    Ok(())
}
