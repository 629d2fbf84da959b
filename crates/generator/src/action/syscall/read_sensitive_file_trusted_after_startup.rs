//! Reads secrets in a server after its start; servers read them only at their start.

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ReadSensitiveFileTrustedAfterStartup",
    "read /etc/shadow six seconds after the start of a process called `httpd`",
    play,
)
.rule("Read sensitive file trusted after startup")
.needs(&[Requirement::Readable("/etc/shadow")]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut server = scene.part("httpd", "syscall.ReadSensitiveFileUntrusted")?;
    server.args(["--after", "6000"]);
    scene.run(server)
}
