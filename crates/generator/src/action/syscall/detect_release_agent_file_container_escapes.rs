//! Writes a file called release_agent. The kernel runs the program in the real one on the host when a control
//! group empties; this file is not the kernel's.

use std::fs;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DetectReleaseAgentFileContainerEscapes",
    "write a file called `release_agent`",
    play,
)
.rule("Detect release_agent File Container Escapes")
.inside()
.needs(&[
    Requirement::Capability("CAP_SYS_ADMIN"),
    Requirement::Capability("CAP_DAC_OVERRIDE"),
]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let agent = scene.file("release_agent");
    fs::write(&agent, "/nothing\n").map_err(Error::file("write", &agent))?;
    Ok(())
}
