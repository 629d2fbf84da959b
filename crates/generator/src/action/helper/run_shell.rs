//! Starts a shell.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action =
    Action::new("helper.RunShell", "start a shell that lists a folder", play);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut shell = scene.command("sh")?;
    shell.args(["-c", "ls > /dev/null"]);
    scene.run(shell)
}
