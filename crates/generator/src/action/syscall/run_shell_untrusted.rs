//! Starts a shell from a server, as an exploited server does.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.RunShellUntrusted",
    "start a shell from a process called `httpd`",
    play,
)
.rule("Run shell untrusted");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("httpd", "helper.RunShell")
}
