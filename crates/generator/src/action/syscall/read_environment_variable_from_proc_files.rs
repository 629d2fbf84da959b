//! Reads environment variables from /proc: containers often get secrets in them.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadEnvironmentVariableFromProcFiles",
    "read the environment of a process below /proc",
    play,
)
.optional_rule("Read environment variable from /proc files")
.inside();

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    fs::read("/proc/self/environ").map_err(Error::file("read", "/proc/self/environ"))?;
    Ok(())
}
