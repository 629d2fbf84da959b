//! A second name for a file with secrets, where fewer people look.

use std::fs;
use std::path::Path;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

const EPERM: i32 = 1;
const EXDEV: i32 = 18;

pub(super) const ACTION: Action = Action::new(
    "syscall.CreateHardlinkOverSensitiveFiles",
    "make a hard link to /etc/shadow",
    play,
)
.rule("Create Hardlink Over Sensitive Files")
.needs(&[Requirement::Readable("/etc/shadow")])
.touches(SideEffects::Shared(&["/etc"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    // A layer is a file system of its own.
    let folder = if scene.has_layers() {
        Path::new("/etc")
    } else {
        scene.folder()
    };
    let link = scene.claim_in(folder)?;
    match fs::hard_link("/etc/shadow", link.path()) {
        Err(error) if matches!(error.raw_os_error(), Some(EPERM | EXDEV)) => Err(Stop::Skipped(
            format!("needs the right to link /etc/shadow: {error}"),
        )),
        result => Ok(result.map_err(Error::file("link", link.path()))?),
    }
}
