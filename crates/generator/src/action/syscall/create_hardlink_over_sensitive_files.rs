//! Creates a second name for a file with secrets.

use std::fs;
use std::path::Path;

use abi::Errno;
use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

const EPERM: i32 = Errno::EPERM.0;
const EXDEV: i32 = Errno::EXDEV.0;

pub(super) const ACTION: Action = Action::new(
    "syscall.CreateHardlinkOverSensitiveFiles",
    "make a hard link to /etc/shadow",
    play,
)
.rule("Create Hardlink Over Sensitive Files")
.needs(&[Requirement::Readable("/etc/shadow")])
.touches(SideEffects::Shared(&["/etc"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    // An overlay is a file system of its own.
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
