//! Executes a file in a world-writable folder in memory, of which nothing remains after a reboot.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use workload::Error;

use super::super::{Action, ActionEnvironment, SideEffects, Stop};

/// Exit status of a shell where /dev/shm is mounted noexec.
const NOT_EXECUTABLE: i32 = 126;

pub(super) const ACTION: Action = Action::new(
    "syscall.ExecutionFromDevShm",
    "run a script in /dev/shm",
    play,
)
.rule("Execution from /dev/shm")
.touches(SideEffects::Shared(&["/dev/shm"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let script = scene.claim_in("/dev/shm")?;
    fs::write(script.path(), "#!/bin/sh\necho hello\n")
        .map_err(Error::file("write", script.path()))?;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(script.path(), open).map_err(Error::file("open", script.path()))?;
    let mut shell = scene.command("sh")?;
    shell.arg("-c").arg(script.path());
    match scene.run(shell) {
        // The execution was tried, which detectors see.
        Err(Stop::Failed(Error::Program { status, .. }))
            if status.code() == Some(NOT_EXECUTABLE) =>
        {
            Ok(())
        }
        result => result,
    }
}
