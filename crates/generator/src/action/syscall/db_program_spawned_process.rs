//! Starts another program from a database, which normally starts only itself.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DbProgramSpawnedProcess",
    "start `ls` from a process called `mysqld`",
    play,
)
.optional_rule("DB program spawned process");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("mysqld", "helper.ExecLs")
}
