//! Searches for files with the usual names of private keys.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.SearchPrivateKeysOrPasswords",
    "look for `id_rsa` with `find`",
    play,
)
.rule("Search Private Keys or Passwords");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut find = scene.command("find")?;
    find.arg(scene.folder())
        .args(["-maxdepth", "1", "-iname", "id_rsa"]);
    scene.run(find)
}
