//! Receives a class file in a Java process (Log4Shell).

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.JavaProcessClassFileDownload",
    "receive the start of a class in a process called `java`",
    play,
)
.optional_rule("Java Process Class File Download");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    scene.spawn_as("java", "helper.CombinedServerClient")
}
