//! Starts a program with an HTTP proxy that could read its traffic. Nothing is fetched.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ProgramRunWithDisallowedHttpProxyEnv",
    "start a process called `curl` with a proxy",
    play,
)
.optional_rule("Program run with disallowed http proxy env");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut curl = scene.pose("curl")?;
    curl.args(["http://page.invalid"]);
    curl.env("HTTP_PROXY", "http://proxy.invalid");
    scene.run(curl)
}
