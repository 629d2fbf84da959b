//! Configuration that nobody wanted.

use std::fs::File;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowEtc", "create a file in /etc", play)
        .optional_rule("Write below etc")
        .needs(&[Need::Root])
        .touches(Touches::System(&["/etc"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let file = scene.claim_in("/etc")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
