//! Starts a Kubernetes client in a container, from which the whole cluster is in reach.

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.KubernetesClientToolLaunchedInContainer",
    "start a process called `kubectl`",
    play,
)
.optional_rule("Kubernetes Client Tool Launched in Container")
.inside();

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let kubectl = scene.pose("kubectl")?;
    scene.run(kubectl)
}
