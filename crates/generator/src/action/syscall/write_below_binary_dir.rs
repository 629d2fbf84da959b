//! A program that nobody installed.

use std::fs::File;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action =
    Action::new("syscall.WriteBelowBinaryDir", "create a file in /bin", play)
        .optional_rule("Write below binary dir")
        .needs(&[Need::Root])
        .touches(Touches::System(&["/bin"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let file = scene.claim_in("/bin")?;
    File::create(file.path()).map_err(Error::file("create", file.path()))?;
    Ok(())
}
