//! Creates a user namespace, in which its creator has every capability.

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ChangeNamespacePrivilegesViaUnshare",
    "`unshare` in a container that lacks CAP_SYS_ADMIN",
    play,
)
.optional_rule("Change namespace privileges via unshare")
.also(&["Change thread namespace"])
.inside()
.needs(&[
    Requirement::NoCapability("CAP_SYS_ADMIN"),
    Requirement::Program("unshare"),
]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut unshare = scene.command("unshare")?;
    unshare.args(["--user", "true"]);
    scene.run(unshare)
}
