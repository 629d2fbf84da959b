//! A place for programs among programs.

use std::fs;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action =
    Action::new("syscall.MkdirBinaryDirs", "make a folder in /bin", play)
        .optional_rule("Mkdir binary dirs")
        .needs(&[Need::Root])
        .touches(Touches::System(&["/bin"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let folder = scene.claim_in("/bin")?;
    fs::create_dir(folder.path()).map_err(Error::file("make", folder.path()))?;
    Ok(())
}
