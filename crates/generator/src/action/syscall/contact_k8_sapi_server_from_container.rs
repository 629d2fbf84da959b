//! Contacts the Kubernetes API server from a container. This process plays the server.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};
use super::connection::contact;

pub(super) const ACTION: Action = Action::new(
    "syscall.ContactK8SAPIServerFromContainer",
    "connect to a public address at the port of API servers",
    play,
)
.rule("Contact K8S API Server From Container")
.inside()
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    contact(address::PUBLIC, 6443)
}
