//! Schedules a recurring command with cron.

use std::fs;
use std::path::Path;

use workload::Error;

use super::super::{Action, ActionEnvironment, ClaimedPath, Requirement, SideEffects, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ScheduleCronJobs",
    "write a table of timed commands to /etc/cron.d",
    play,
)
.optional_rule("Schedule Cron Jobs")
.needs(&[Requirement::Root])
.touches(SideEffects::System(&["/etc"]));

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    // If there is no such folder, it is made for the duration of the action.
    let made = if Path::new("/etc/cron.d").exists() {
        None
    } else {
        fs::create_dir("/etc/cron.d").map_err(Error::file("make", "/etc/cron.d"))?;
        Some(ClaimedPath::new("/etc/cron.d"))
    };
    let table = scene.claim_in("/etc/cron.d")?;
    fs::write(table.path(), "# nothing\n").map_err(Error::file("write", table.path()))?;
    drop(table);
    drop(made);
    Ok(())
}
