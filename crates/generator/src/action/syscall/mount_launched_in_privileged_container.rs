//! Disks of the host and control groups are reached by mounting them.

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action = Action::new(
    "syscall.MountLaunchedInPrivilegedContainer",
    "`mount` a file system in memory",
    play,
)
.rule("Mount Launched in Privileged Container")
.also(&["Mount in container"])
.inside()
.needs(&[Need::Capability("CAP_SYS_ADMIN"), Need::Program("mount")])
.touches(Touches::Mounts);

fn play(scene: &Scene) -> Result<(), Stop> {
    let mut mount = scene.command("mount")?;
    mount.args(["-t", "tmpfs", "none"]).arg(scene.folder());
    scene.run(mount)
}
