//! The home of the administrator.

use std::fs::File;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowRoot", "create a file in /root", play)
        .optional_rule("Write below root")
        .needs(&[Need::Root])
        .touches(Touches::System(&["/root"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let file = scene.claim_in("/root")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
