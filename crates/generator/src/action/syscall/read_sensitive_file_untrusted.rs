//! Reads password hashes.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadSensitiveFileUntrusted",
    "open /etc/shadow",
    play,
)
.rule("Read sensitive file untrusted")
.needs(&[Requirement::Readable("/etc/shadow")]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    File::open("/etc/shadow").map_err(Error::file("open", "/etc/shadow"))?;
    Ok(())
}
