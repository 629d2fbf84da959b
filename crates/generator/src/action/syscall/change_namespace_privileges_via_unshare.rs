//! A user namespace gives its maker every capability inside.

use super::super::{Action, Need, Scene, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ChangeNamespacePrivilegesViaUnshare",
    "`unshare` in a container that lacks CAP_SYS_ADMIN",
    play,
)
.optional_rule("Change namespace privileges via unshare")
.also(&["Change thread namespace"])
.inside()
.needs(&[
    Need::NoCapability("CAP_SYS_ADMIN"),
    Need::Program("unshare"),
]);

fn play(scene: &Scene) -> Result<(), Stop> {
    let mut unshare = scene.command("unshare")?;
    unshare.args(["--user", "true"]);
    scene.run(unshare)
}
