//! Contacts the metadata service for the host's credentials from a container. This process plays the service.

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};
use super::connection::contact;

pub(super) const ACTION: Action = Action::new(
    "syscall.ContactEC2InstanceMetadataServiceFromContainer",
    "connect to the metadata service of clouds",
    play,
)
.optional_rule("Contact EC2 Instance Metadata Service From Container")
.also(&["Contact cloud metadata service from container"])
.inside()
.needs(&[Requirement::Address(address::METADATA)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    contact(address::METADATA, 80)
}
