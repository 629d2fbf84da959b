//! Sets an environment variable of the dynamic loader, as the exploit of CVE-2023-4911 does.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.PotentialLocalPrivilegeEscalationViaEnvironmentVariablesMisuse",
    "start `id` with GLIBC_TUNABLES",
    play,
)
.optional_rule("Potential Local Privilege Escalation via Environment Variables Misuse");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut id = scene.command("id")?;
    id.env("GLIBC_TUNABLES", "glibc.malloc.check=1");
    scene.run(id)
}
