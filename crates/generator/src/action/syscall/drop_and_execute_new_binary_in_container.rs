//! A program that was not in the image.

use std::fs;
use std::process::Command;

use workload::Error;

use super::super::{Action, Need, Scene, Stop, Touches};

pub(super) const ACTION: Action = Action::new(
    "syscall.DropAndExecuteNewBinaryInContainer",
    "write a program to /usr/bin and run it",
    play,
)
.rule("Drop and execute new binary in container")
.inside()
.needs(&[Need::Root, Need::Readable("/bin/true")])
.touches(Touches::System(&["/usr/bin"]));

fn play(scene: &Scene) -> Result<(), Stop> {
    let program = scene.claim_in("/usr/bin")?;
    fs::copy("/bin/true", program.path()).map_err(Error::file("write", program.path()))?;
    scene.run(Command::new(program.path()))
}
