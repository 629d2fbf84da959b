//! A debugger of file systems reads the disks of the host.

use super::super::{Action, Need, Scene, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DebugfsLaunchedInPrivilegedContainer",
    "start a process called `debugfs`",
    play,
)
.rule("Debugfs Launched in Privileged Container")
.inside()
.needs(&[Need::Capability("CAP_SYS_ADMIN")]);

fn play(scene: &Scene) -> Result<(), Stop> {
    let mut debugfs = scene.pose("debugfs")?;
    debugfs.arg("-V");
    scene.run(debugfs)
}
