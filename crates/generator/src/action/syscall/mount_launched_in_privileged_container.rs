//! Mounts a file system in a container, which gives access to disks and control groups of the host.

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.MountLaunchedInPrivilegedContainer",
    "`mount` a file system in memory",
    play,
)
.rule("Mount Launched in Privileged Container")
.also(&["Mount in container"])
.inside()
.needs(&[
    Requirement::Capability("CAP_SYS_ADMIN"),
    Requirement::Program("mount"),
])
.touches(SideEffects::Mounts);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut mount = scene.command("mount")?;
    mount.args(["-t", "tmpfs", "none"]).arg(scene.folder());
    scene.run(mount)
}
