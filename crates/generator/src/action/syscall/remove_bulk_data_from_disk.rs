//! Destroys data for good.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action =
    Action::new("syscall.RemoveBulkDataFromDisk", "`shred` a file", play)
        .rule("Remove Bulk Data from Disk")
        .needs(&[Requirement::Program("shred")]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = scene.file("data");
    fs::write(&file, "data\n").map_err(Error::file("write", &file))?;
    let mut shred = scene.command("shred")?;
    shred.arg("-u").arg(&file);
    scene.run(shred)
}
