//! Starts a file system debugger, which can read the disks of the host.

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DebugfsLaunchedInPrivilegedContainer",
    "start a process called `debugfs`",
    play,
)
.rule("Debugfs Launched in Privileged Container")
.inside()
.needs(&[Requirement::Capability("CAP_SYS_ADMIN")]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut debugfs = scene.pose("debugfs")?;
    debugfs.arg("-V");
    scene.run(debugfs)
}
