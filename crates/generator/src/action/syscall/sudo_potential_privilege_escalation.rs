//! Calls `sudoedit` with a backslash at the end of an argument, as the exploit of CVE-2021-3156 does.

use super::super::{Action, ActionEnvironment, Stop, passwd};

pub(super) const ACTION: Action = Action::new(
    "syscall.SudoPotentialPrivilegeEscalation",
    "start a process called `sudoedit` with such an argument, as a system user",
    play,
)
.optional_rule("Sudo Potential Privilege Escalation");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut sudoedit = scene.pose("sudoedit")?;
    sudoedit.args(["-u", "daemon", "-s", "ls\\"]);
    scene.run(passwd::as_system_user(sudoedit)?)
}
