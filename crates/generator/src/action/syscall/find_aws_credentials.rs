//! Searches well-known files for the keys of a cloud account.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.FindAwsCredentials",
    "look for `.aws/credentials` with `find`",
    play,
)
.rule("Find AWS Credentials");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut find = scene.command("find")?;
    find.arg(scene.folder())
        .args(["-maxdepth", "1", "-ipath", "*.aws/credentials"]);
    scene.run(find)
}
