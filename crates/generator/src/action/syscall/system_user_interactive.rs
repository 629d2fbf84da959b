//! Runs an interactive command as a user that nobody logs in as.

use super::super::{Action, ActionEnvironment, Requirement, Stop, passwd};

pub(super) const ACTION: Action = Action::new(
    "syscall.SystemUserInteractive",
    "start `id` as a system user from a process called `sshd`",
    play,
)
.rule("System user interactive")
.needs(&[Requirement::Root]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    if !scene.is_spawned() {
        return scene.spawn_as("sshd", ACTION.name);
    }
    let id = scene.command("id")?;
    scene.run(passwd::as_system_user(id)?)
}
