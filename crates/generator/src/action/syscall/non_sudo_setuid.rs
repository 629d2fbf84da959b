//! Changes to a system user and calls setuid(0), as a process that makes itself root; the kernel refuses.

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop, passwd};

pub(super) const ACTION: Action = Action::new(
    "syscall.NonSudoSetuid",
    "`setuid` to a system user, and back to root",
    play,
)
.optional_rule("Non sudo setuid")
.also(&["Become root without a login program"]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    if !scene.is_spawned() {
        return scene.spawn_as("child", ACTION.name);
    }
    if rustix::process::geteuid().is_root() {
        passwd::set_all(passwd::user(passwd::SYSTEM_USER)?.uid)?;
    }
    match passwd::set_all(0) {
        Err(_refused) => Ok(()),
        Ok(()) => Err(Error::Unexpected {
            expected: "the kernel to refuse".to_owned(),
            got: "root".to_owned(),
        }
        .into()),
    }
}
