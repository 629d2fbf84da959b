//! Starts a child process.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new("helper.ExecLs", "start `ls`", play);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut ls = scene.command("ls")?;
    ls.arg(scene.folder());
    scene.run(ls)
}
