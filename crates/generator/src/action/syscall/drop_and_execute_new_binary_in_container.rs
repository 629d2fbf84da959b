//! Executes a program that was not in the image.

use std::fs;
use std::process::Command;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.DropAndExecuteNewBinaryInContainer",
    "write a program to /usr/bin and run it",
    play,
)
.rule("Drop and execute new binary in container")
.inside()
.needs(&[Requirement::Root, Requirement::Readable("/bin/true")])
.touches(SideEffects::System(&["/usr/bin"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let program = scene.claim_in("/usr/bin")?;
    fs::copy("/bin/true", program.path()).map_err(Error::file("write", program.path()))?;
    scene.run(Command::new(program.path()))
}
