//! Decodes a payload, which is encoded to pass unseen.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DecodingPayloadInContainer",
    "start `base64 -d`",
    play,
)
.optional_rule("Decoding Payload in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut base64 = scene.command("base64")?;
    base64.arg("-d");
    scene.run(base64)
}
