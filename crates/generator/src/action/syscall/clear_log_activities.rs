//! Truncates a file with the name of a log, to remove traces.

use std::fs::File;

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ClearLogActivities",
    "empty a file called `syslog`",
    play,
)
.rule("Clear Log Activities");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let log = scene.file("syslog");
    File::create(&log).map_err(Error::file("empty", &log))?;
    Ok(())
}
