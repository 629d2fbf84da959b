//! Hashes of passwords.

use std::fs::File;

use workload::Error;

use super::super::{Action, Need, Scene, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadSensitiveFileUntrusted",
    "open /etc/shadow",
    play,
)
.rule("Read sensitive file untrusted")
.needs(&[Need::Readable("/etc/shadow")]);

fn play(_scene: &Scene) -> Result<(), Stop> {
    File::open("/etc/shadow").map_err(Error::file("open", "/etc/shadow"))?;
    Ok(())
}
