//! Files hide well among devices.

use std::fs::File;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action =
    Action::new("syscall.CreateFilesBelowDev", "create a file in /dev", play)
        .optional_rule("Create files below dev")
        .needs(&[Need::Root])
        .touches(Touches::System(&["/dev"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let file = scene.claim_in("/dev")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
