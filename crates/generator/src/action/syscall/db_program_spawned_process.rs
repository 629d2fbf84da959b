//! Databases start nothing but themselves.

use super::super::{Action, Scene, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DbProgramSpawnedProcess",
    "start `ls` from a process called `mysqld`",
    play,
)
.optional_rule("DB program spawned process");

fn play(scene: &Scene) -> Result<(), Stop> {
    scene.spawn_as("mysqld", "helper.ExecLs")
}
